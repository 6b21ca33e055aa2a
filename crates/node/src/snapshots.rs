//! Snapshots, forks, templates, and workspaces as files.
//!
//! A snapshot is a list of frozen layers: nobody writes to one again, and each has a digest over all that is in it, which is compared
//! before anything is built upon it. Layers come before the records that refer to them, so whatever ends in the middle leaves at most
//! a layer that nobody refers to, which `gc` collects.

pub(crate) mod fork;
mod restore;
pub(crate) mod running;
mod seed;
mod squash;
pub(crate) mod take;

pub use fork::{Forked, fork, fork_once};
pub use restore::{Restored, Since, restore};
pub use seed::{Seed, find_template, from_template};
pub(crate) use squash::merge;
pub use squash::{DEEP, DEEPEST, squash};
pub use take::{Taken, remove, take, take_once, take_to_disk};
pub use workspace::archive::Bounds;

use runtime::Node;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use state::idempotency::Once;
use state::layer_meta::drop_layer;
use state::sandbox::{self, Anchored, Sandbox, layers_in_use};
pub use state::snapshot::{Frozen, Ground, Snapshot, Template};
use state::{Caller, State};
use std::path::PathBuf;
use store::{Entry, Kept, Step, Tx};
use terms::{ErrorKind, Fault, Phase};
use utoipa::ToSchema;
use workspace::Anchors;

/// Automatic snapshots whose sandbox is gone and that nothing was built upon: `gc` removes their records.
pub fn unneeded(tx: &Tx<'_>) -> Result<Vec<Kept<Snapshot>>, Fault> {
    let sandboxes = tx.list::<Sandbox>()?;
    let needed = |s: &Kept<Snapshot>| !s.record.automatic || sandboxes.iter().any(|b| b.id == s.record.sandbox);
    Ok(tx.list::<Snapshot>()?.into_iter().filter(|s| !needed(s)).collect())
}

/// The snapshot that is meant: by id, by name, or by the beginning of an id that no other has.
pub fn find(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Kept<Snapshot>, Fault> {
    match look(tx, word, caller)? {
        Some(found) => Ok(found),
        None => {
            let fault = Fault::new(ErrorKind::NotFound, format!("there is no snapshot {word:?}")).subject(word);
            Err(fault.hint("`cofferdam snapshot ls` lists them").phase(Phase::Admission))
        }
    }
}

pub(crate) fn look(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Option<Kept<Snapshot>>, Fault> {
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

/// A snapshot at a glance.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SnapshotListed)]
pub struct Listed {
    pub id: String,
    pub name: Option<String>,
    /// The sandbox that it was taken of; it may be gone.
    pub sandbox: String,
    /// Made on the way to something else, and collected when nothing needs it.
    pub automatic: bool,
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// Over the digests of all its layers.
    pub digest: String,
    pub layers: usize,
    /// Of files in all its layers.
    pub bytes: u64,
    pub created_ms: u64,
}

impl Listed {
    pub fn of(Kept { id, record, .. }: Kept<Snapshot>) -> Listed {
        let (layers, bytes) = (record.ground.layers.len(), record.ground.bytes());
        let Snapshot { name, sandbox, automatic, digest, created_ms, ground } = record;
        Listed { id, name, sandbox, automatic, base: ground.base, digest, layers, bytes, created_ms }
    }
}

/// All snapshots, or those of one sandbox, oldest first.
fn list(state: &State, sandbox: Option<&str>) -> Result<Vec<Listed>, Fault> {
    let all = state.store.read(|tx| match sandbox {
        Some(id) => tx.list_in::<Snapshot>(id),
        None => tx.list::<Snapshot>(),
    })?;
    let mut all: Vec<Listed> = all.into_iter().map(Listed::of).collect();
    all.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
    Ok(all)
}

/// Those of all sandboxes that are there for the caller.
pub fn list_all(node: &Node, caller: &Caller) -> Result<Vec<Listed>, Fault> {
    let state = &node.states.lend(caller)?;
    let mut all = list(state, None)?;
    state.store.read(|tx| caller.keep_own(tx, &mut all, |snapshot| &snapshot.sandbox))?;
    Ok(all)
}

/// Those of one sandbox.
pub fn list_of(node: &Node, caller: &Caller, word: &str) -> Result<Vec<Listed>, Fault> {
    let state = &node.states.lend(caller)?;
    let id = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?.id;
    list(state, Some(&id))
}

/// Describes one snapshot.
pub fn describe(node: &Node, caller: &Caller, word: &str) -> Result<Listed, Fault> {
    node.states.lend(caller)?.store.read(|tx| find(tx, word, caller)).map(Listed::of)
}

/// Returns whether a word means a snapshot.
pub fn is_snapshot(node: &Node, caller: &Caller, word: &str) -> Result<bool, Fault> {
    Ok(node.states.lend(caller)?.store.read(|tx| find(tx, word, caller)).is_ok())
}

/// The id of a sandbox, or of a snapshot of it where one is named.
pub fn of_sandbox(node: &Node, caller: &Caller, word: &str, snapshot: Option<&str>) -> Result<String, Fault> {
    node.states.lend(caller)?.store.read(|tx| {
        let sandbox = sandbox::find(tx, Some(word), caller)?.id;
        let Some(snapshot) = snapshot else { return Ok(sandbox) };
        let found = find(tx, snapshot, caller)?;
        if found.record.sandbox == sandbox {
            return Ok(found.id);
        }
        let fault = Fault::new(ErrorKind::NotFound, format!("{snapshot} is no snapshot of {sandbox}"));
        Err(fault.hint("ask for the snapshots of the sandbox").subject(snapshot).phase(Phase::Admission))
    })
}

/// What an earlier request under the same key was answered with.
pub(crate) fn earlier<T: DeserializeOwned>(state: &State, once: Option<&Once>) -> Result<Option<T>, Fault> {
    match once {
        Some(once) => state.store.read(|tx| once.answer(tx, terms::clock::now_ms())),
        None => Ok(None),
    }
}

/// What was noted of a verb that only adds records: its intent and its result become true together.
pub(crate) fn note(
    tx: &Tx<'_>,
    at_ms: u64,
    verb: &str,
    subject: &str,
    actor: &str,
    body: serde_json::Value,
) -> Result<(), Fault> {
    for step in [Step::Intent, Step::Done] {
        tx.note(&Entry { at_ms, verb, step, subject, actor, body: body.clone() })?;
    }
    Ok(())
}

pub(crate) fn anchors_of(tx: &Tx<'_>, sandbox: &str) -> Result<Anchors, Fault> {
    Ok(tx.get::<Anchored>(sandbox)?.map(|kept| kept.record.anchors).unwrap_or_default())
}

/// Sets what a sandbox knows of its base.
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

/// Layers that are to be built upon are still somebody's: whoever forgot the last record of one is about to take it away.
pub fn still_there(tx: &Tx<'_>, layers: &[String]) -> Result<(), Fault> {
    let used = layers_in_use(tx)?;
    match layers.iter().find(|id| !used.contains_key(*id)) {
        None => Ok(()),
        Some(gone) => {
            let fault = Fault::new(ErrorKind::Conflict, format!("layer {gone} was given up meanwhile")).subject(gone);
            Err(fault.hint("use another snapshot").phase(Phase::Admission))
        }
    }
}

/// Takes away a layer that was made for records which were not written. Where the disk left open whether they were, it is for
/// `gc` to say.
pub(crate) fn discard(state: &State, layer: &str) {
    if !state.store.is_in_doubt() {
        let _ = state.layers.remove(layer);
    }
}

/// Takes away layers that nothing refers to any more. What fails is left to `gc`.
pub(crate) fn drop_unused(state: &State, candidates: &[String]) -> Result<(), Fault> {
    let used = state.store.read(layers_in_use)?;
    let unused: Vec<&String> = candidates.iter().filter(|id| !used.contains_key(*id)).collect();
    for id in &unused {
        let _ = drop_layer(&state.layers, id);
    }
    if unused.is_empty() {
        return Ok(());
    }
    state.store.write_soon(|tx| unused.iter().try_for_each(|id| tx.remove::<Frozen>(id).map(|_| ())))
}
