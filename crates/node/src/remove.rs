//! Remove: turns the record into a tombstone in one transaction, then removes the layers that no other record refers to. A crash
//! in between leaves layers that the tombstone names, which `gc` removes.

use crate::own_bases;
use crate::stop::end_runs;
use api::{DiskUsage, JournalStep, SandboxRemoved, SandboxState};
use runtime::Node;
use runtime::keeper::client::{GREETING, LISTING};
use runtime::keeper::place::KeeperDir;
use runtime::liveness;
use serde_json::json;
use state::admission::{Verb, check};
use state::conflicted::Conflicted;
use state::journal::note;
use state::layer_meta::drop_layer;
use state::lock::LockResult;
use state::sandbox::{Anchored, Reviewed, Sandbox, Tombstone, layers_in_use};
use state::sandbox::{Which, pick};
use state::snapshot::FrozenLayer;
use state::{Caller, State};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase};
use workspace::disk_usage;

/// Removes a sandbox. With `force` its runs are ended first; without, a run is a conflict.
pub fn remove(node: &Node, caller: &Caller, which: &Which, force: Option<Duration>) -> Result<SandboxRemoved, Fault> {
    let state = node.states.lend(caller)?;
    let verb = if force.is_some() { Verb::RemoveByForce } else { Verb::Remove };
    let found = state.store.read(|tx| match buried(tx, which, caller)? {
        Some(grave) => Ok(Err(grave)),
        None => {
            let kept = pick(tx, which, caller)?;
            check_alone(tx, which, &kept, caller)?;
            Ok(Ok(kept))
        }
    })?;
    let kept = match found {
        Ok(kept) => kept,
        Err((id, left)) => {
            let (freed, failed) = drop_all(&state, &left);
            return match failed.is_empty() {
                true => Ok(SandboxRemoved { id, changed: false, ended: Vec::new(), freed }),
                false => Err(in_part(&id, &failed)),
            };
        }
    };
    // With force every run is ended, whether the keeper answers or not.
    let standing = liveness::standing(node, &state, &kept, if force.is_some() { LISTING } else { GREETING });
    check(standing, verb, &kept.id)?;
    let whose = match standing {
        SandboxState::Silent => LockResult::Busy,
        _ => liveness::lock_patiently(node, &state, &kept.id)?.result,
    };
    let (ended, _lock) = match (force, whose) {
        (_, LockResult::Locked(lock)) => (Vec::new(), lock),
        (Some(patience), LockResult::Busy) => end_runs(node, &state, &kept, patience)?,
        (None, LockResult::Busy) => return Err(busy(&kept.id)),
    };
    let Kept { id, version, .. } = kept;
    let same = |now: &Kept<Sandbox>| now.version == version || which.version.is_none();
    let (changed, freed) = take(&state, &id, "removed", caller, |now| if same(now) { Ok(()) } else { Err(busy(&id)) })?;
    Ok(SandboxRemoved { id, changed, ended, freed })
}

/// Refuses if the sandbox was not named and several could be meant: a removal cannot be reverted.
fn check_alone(tx: &Tx<'_>, which: &Which, kept: &Kept<Sandbox>, caller: &Caller) -> Result<(), Fault> {
    let Some(base) = kept.record.base.to_str().filter(|_| which.word.is_none()) else { return Ok(()) };
    let mut here = tx.list_in::<Sandbox>(base)?;
    here.retain(|kept| caller.sees_kept(kept));
    if here.len() <= 1 {
        return Ok(());
    }
    let names: Vec<_> = here.iter().take(8).map(|s| s.record.name.as_ref().unwrap_or(&s.id).as_str()).collect();
    let message = format!("{} sandboxes cover {base}: {}", here.len(), names.join(", "));
    Err(Fault::invalid(message).hint("name the one to remove").phase(Phase::Admission))
}

/// Returns the id of a sandbox that was removed already, and the layers that an interrupted removal left.
fn buried(tx: &Tx<'_>, which: &Which, caller: &Caller) -> Result<Option<(String, Vec<String>)>, Fault> {
    let Some(word) = &which.word else { return Ok(None) };
    let gone = tx.get::<Tombstone>(word)?.filter(|gone| caller.sees(word, &gone.record.sandbox));
    let Some(Kept { id, record, .. }) = gone else { return Ok(None) };
    let referred = layers_in_use(tx)?;
    let left = record.gone.into_iter().filter(|layer| !referred.contains_key(layer)).collect();
    Ok(Some((id, left)))
}

/// Removes layers that still exist; returns the freed size and the faults.
fn drop_all(state: &State, layers: &[String]) -> (DiskUsage, Vec<String>) {
    let mut freed = DiskUsage::default();
    let mut failed = Vec::new();
    for layer in layers {
        let size = disk_usage::layer(&state.layers, layer);
        match drop_layer(&state.layers, layer) {
            Ok(()) => freed += size,
            Err(e) => failed.push(format!("{layer}: {e}")),
        }
    }
    (freed, failed)
}

fn in_part(id: &str, failed: &[String]) -> Fault {
    let message = format!("{id} is removed, but not all of it: {}", failed.join("; "));
    let fault = Fault::new(ErrorKind::Unavailable, message).subject(id).phase(Phase::Close);
    fault.hint("`cofferdam gc` removes the rest once that is fixed")
}

fn busy(id: &str) -> Fault {
    let message = format!("cannot remove {id}: another process uses it or has changed it meanwhile");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission).subject(id);
    fault.hint("see `cofferdam inspect`, then repeat")
}

/// Removes a sandbox without runs, whose top layer the caller has locked. `agree` checks the record within the transaction;
/// returns false if the sandbox is gone already.
pub fn take(
    state: &State,
    id: &str,
    why: &str,
    caller: &Caller,
    agree: impl FnOnce(&Kept<Sandbox>) -> Result<(), Fault>,
) -> Result<(bool, DiskUsage), Fault> {
    let gone = state.store.write(|tx| {
        let Some(kept) = tx.get::<Sandbox>(id)? else { return Ok(None) };
        agree(&kept)?;
        let base = kept.record.base.clone();
        bury(tx, kept, why, caller).map(|gone| Some((gone, base)))
    })?;
    let Some((gone, base)) = gone else { return Ok((false, DiskUsage::default())) };
    let (freed, failed) = drop_all(state, &gone);
    own_bases::leave(state, &base)?;
    KeeperDir::of(&state.path, id).remove();
    // The tombstone is on the disk, and names the layers to remove.
    state.store.write_soon(|tx| {
        let step = if failed.is_empty() { JournalStep::Done } else { JournalStep::Failed };
        let body = json!({"bytes": freed.bytes, "files": freed.files, "failed": failed});
        note(tx, "rm", step, id, caller, body)
    })?;
    match failed.is_empty() {
        true => Ok((true, freed)),
        false => Err(in_part(id, &failed)),
    }
}

/// Replaces the record by a tombstone; returns the layers that no other record refers to.
fn bury(tx: &Tx<'_>, kept: Kept<Sandbox>, why: &str, caller: &Caller) -> Result<Vec<String>, Fault> {
    let Kept { id, record: sandbox, .. } = kept;
    let gone: Vec<String> = alone(&sandbox, &layers_in_use(tx)?).cloned().collect();
    note(tx, "rm", JournalStep::Intent, &id, caller, json!({"layers": gone, "why": why, "name": sandbox.name}))?;
    tx.remove::<Sandbox>(&id)?;
    tx.remove::<Anchored>(&id)?;
    tx.remove::<Reviewed>(&id)?;
    tx.remove::<Conflicted>(&id)?;
    gone.iter().try_for_each(|layer| tx.remove::<FrozenLayer>(layer).map(drop))?;
    let (removed_ms, removed_by) = (terms::clock::now_ms(), caller.user.clone());
    tx.add(&id, Tombstone { sandbox, removed_ms, removed_by, why: why.to_owned(), gone: gone.clone() })?;
    Ok(gone)
}

/// Returns the layers that no other record refers to.
pub fn alone<'a>(sandbox: &'a Sandbox, referred: &'a BTreeMap<String, u64>) -> impl Iterator<Item = &'a String> {
    sandbox.layers.iter().filter(|layer| referred.get(*layer).is_none_or(|records| *records <= 1))
}
