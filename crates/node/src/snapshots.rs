//! Snapshots, forks, templates, and workspaces as files.
//!
//! A snapshot is a list of frozen layers, which are never written to again. Each has a digest of its contents, which is verified
//! before a sandbox is built on it. Layers are made before the records that refer to them, so a crash in between leaves at most a
//! layer without a record, which `gc` collects.

pub(crate) mod fork;
mod restore;
pub(crate) mod running;
mod seed;
mod squash;
pub(crate) mod take;

use api::{JournalStep, SnapshotSummary};
pub use fork::{fork, fork_once};
pub use restore::{ChangesSince, restore};
pub use seed::{Seed, find_template, from_template};
pub(crate) use squash::merge;
pub use squash::{DEEP, DEEPEST, squash};
pub use take::{remove, take, take_once, take_to_disk};
pub use workspace::archive::Bounds;

use runtime::Node;
use serde::de::DeserializeOwned;
use state::idempotency::KeyedRequest;
use state::layer_meta::drop_layer;
use state::sandbox::{self, Anchored, Sandbox, layers_in_use};
pub use state::snapshot::{FrozenLayer, Ground, Snapshot, Template};
use state::{Caller, State};
use store::{Entry, Kept, Tx};
use terms::{ErrorKind, Fault, Phase};
use workspace::Anchors;

/// Lists automatic snapshots whose sandbox is gone: `gc` removes their records.
pub fn unneeded(tx: &Tx<'_>) -> Result<Vec<Kept<Snapshot>>, Fault> {
    let sandboxes = tx.list::<Sandbox>()?;
    let needed = |s: &Kept<Snapshot>| !s.record.automatic || sandboxes.iter().any(|b| b.id == s.record.sandbox);
    Ok(tx.list::<Snapshot>()?.into_iter().filter(|s| !needed(s)).collect())
}

/// Finds a snapshot by id, by name, or by an unambiguous beginning of an id.
pub fn find(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Kept<Snapshot>, Fault> {
    match try_find(tx, word, caller)? {
        Some(found) => Ok(found),
        None => {
            let fault = Fault::new(ErrorKind::NotFound, format!("there is no snapshot {word:?}")).subject(word);
            Err(fault.hint("`cofferdam snapshot ls` lists them").phase(Phase::Admission))
        }
    }
}

pub(crate) fn try_find(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Option<Kept<Snapshot>>, Fault> {
    for found in [tx.get::<Snapshot>(word)?, tx.get_named::<Snapshot>(word)?].into_iter().flatten() {
        if caller.sees_id(tx, &found.record.sandbox)? {
            return Ok(Some(found));
        }
    }
    if word.len() < 4 || !word.starts_with("snp_") {
        return Ok(None);
    }
    let mut alike: Vec<_> = tx.list::<Snapshot>()?.into_iter().filter(|s| s.id.starts_with(word)).collect();
    caller.keep_own(tx, &mut alike, |snapshot| &snapshot.record.sandbox)?;
    match alike.len() {
        0 | 1 => Ok(alike.pop()),
        count => {
            let fault = Fault::invalid(format!("{count} snapshots begin with {word:?}"));
            Err(fault.hint("give more of the id").phase(Phase::Admission))
        }
    }
}

fn summary(Kept { id, record, .. }: Kept<Snapshot>) -> SnapshotSummary {
    let (layers, bytes) = (record.ground.layers.len(), record.ground.bytes());
    let Snapshot { name, sandbox, automatic, digest, created_ms, ground } = record;
    SnapshotSummary { id, name, sandbox, automatic, base: ground.base, digest, layers, bytes, created_ms }
}

/// Lists all snapshots, or those of one sandbox, oldest first.
fn list(state: &State, sandbox: Option<&str>) -> Result<Vec<SnapshotSummary>, Fault> {
    let all = state.store.read(|tx| match sandbox {
        Some(id) => tx.list_in::<Snapshot>(id),
        None => tx.list::<Snapshot>(),
    })?;
    let mut all: Vec<SnapshotSummary> = all.into_iter().map(summary).collect();
    all.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
    Ok(all)
}

/// Lists the snapshots of all sandboxes that the caller may see.
pub fn list_all(node: &Node, caller: &Caller) -> Result<Vec<SnapshotSummary>, Fault> {
    let state = &node.states.lend(caller)?;
    let mut all = list(state, None)?;
    state.store.read(|tx| caller.keep_own(tx, &mut all, |snapshot| &snapshot.sandbox))?;
    Ok(all)
}

/// Lists the snapshots of one sandbox.
pub fn list_of(node: &Node, caller: &Caller, word: &str) -> Result<Vec<SnapshotSummary>, Fault> {
    let state = &node.states.lend(caller)?;
    let id = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?.id;
    list(state, Some(&id))
}

/// Describes one snapshot.
pub fn describe(node: &Node, caller: &Caller, word: &str) -> Result<SnapshotSummary, Fault> {
    node.states.lend(caller)?.store.read(|tx| find(tx, word, caller)).map(summary)
}

/// Returns true if a word names a snapshot.
pub fn is_snapshot(node: &Node, caller: &Caller, word: &str) -> Result<bool, Fault> {
    Ok(node.states.lend(caller)?.store.read(|tx| find(tx, word, caller)).is_ok())
}

/// Returns the id of a sandbox, or of its named snapshot.
pub fn of_sandbox(node: &Node, caller: &Caller, word: &str, snapshot: Option<&str>) -> Result<String, Fault> {
    node.states.lend(caller)?.store.read(|tx| {
        let sandbox = sandbox::find(tx, Some(word), caller)?.id;
        let Some(snapshot) = snapshot else { return Ok(sandbox) };
        let found = find(tx, snapshot, caller)?;
        if found.record.sandbox == sandbox {
            return Ok(found.id);
        }
        let fault = Fault::new(ErrorKind::NotFound, format!("{snapshot} is not a snapshot of {sandbox}"));
        Err(fault.hint("list the snapshots of the sandbox").subject(snapshot).phase(Phase::Admission))
    })
}

/// Returns the response to an earlier request under the same key.
pub(crate) fn earlier<T: DeserializeOwned>(state: &State, once: Option<&KeyedRequest>) -> Result<Option<T>, Fault> {
    match once {
        Some(once) => state.store.read(|tx| once.answer(tx, terms::clock::now_ms())),
        None => Ok(None),
    }
}

/// Writes the journal entries of a verb that only adds records: intent and result are in one transaction.
pub(crate) fn note(
    tx: &Tx<'_>,
    at_ms: u64,
    verb: &str,
    subject: &str,
    actor: &str,
    body: serde_json::Value,
) -> Result<(), Fault> {
    for step in [JournalStep::Intent, JournalStep::Done] {
        tx.note(&Entry { at_ms, verb, step, subject, actor, body: body.clone() })?;
    }
    Ok(())
}

pub(crate) fn anchors_of(tx: &Tx<'_>, sandbox: &str) -> Result<Anchors, Fault> {
    Ok(tx.get::<Anchored>(sandbox)?.map(|kept| kept.record.anchors).unwrap_or_default())
}

/// Sets the sandbox's knowledge of its base.
pub(crate) fn set_anchors(tx: &Tx<'_>, sandbox: &str, anchors: &Anchors) -> Result<(), Fault> {
    match tx.get::<Anchored>(sandbox)? {
        Some(mut kept) if kept.record.anchors != *anchors => {
            kept.record.anchors = anchors.clone();
            tx.change(kept)?;
        }
        None if !anchors.0.is_empty() => {
            tx.add(sandbox, Anchored { anchors: anchors.clone() })?;
        }
        _ => {}
    }
    Ok(())
}

/// Checks that records still refer to the layers: one without a record is about to be removed.
pub fn check_in_use(tx: &Tx<'_>, layers: &[String]) -> Result<(), Fault> {
    let used = layers_in_use(tx)?;
    match layers.iter().find(|id| !used.contains_key(*id)) {
        None => Ok(()),
        Some(gone) => {
            let fault = Fault::new(ErrorKind::Conflict, format!("layer {gone} was removed meanwhile")).subject(gone);
            Err(fault.hint("use another snapshot").phase(Phase::Admission))
        }
    }
}

/// Removes a layer whose records were not written. If a disk fault leaves that open, `gc` decides.
pub(crate) fn discard(state: &State, layer: &str) {
    if !state.store.is_in_doubt() {
        let _ = state.layers.remove(layer);
    }
}

/// Removes layers that no record refers to. Failures are left to `gc`.
pub(crate) fn drop_unused(state: &State, candidates: &[String]) -> Result<(), Fault> {
    let used = state.store.read(layers_in_use)?;
    let unused: Vec<&String> = candidates.iter().filter(|id| !used.contains_key(*id)).collect();
    for id in &unused {
        let _ = drop_layer(&state.layers, id);
    }
    if unused.is_empty() {
        return Ok(());
    }
    state.store.write_soon(|tx| unused.iter().try_for_each(|id| tx.remove::<FrozenLayer>(id).map(|_| ())))
}
