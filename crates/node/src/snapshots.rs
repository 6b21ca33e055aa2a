//! Snapshots, forks, templates, and workspaces as files.
//!
//! A snapshot is a list of frozen layers: nobody writes to one again, and each has a digest over all that is in it, which is compared
//! before anything is built upon it. Layers come before the records that refer to them, so whatever ends in the middle leaves at most
//! a layer that nobody refers to, which `gc` collects.

mod fork;
mod portable;
mod restore;
mod running;
mod squash;
mod take;
mod template;

pub use fork::{Forked, fork, fork_once};
pub use portable::{Imported, Onto, Written, export, import};
pub use restore::{Restored, Since, restore};
pub use squash::{DEEP, DEEPEST, squash};
pub use take::{Taken, remove, take, take_once, take_to_disk};
pub use template::{
    Described, Seed, Template, Templated, create, create_once, describe_template, describe_templates, earlier_template,
    find_template, from_template, refuse_other_template, remove_template,
};
pub use workspace::archive::Bounds;

use crate::Caller;
use crate::fresh;
use crate::lifecycle::create::check_name;
use crate::lifecycle::keys::Once;
use crate::lifecycle::meta::drop_layer;
use crate::sandbox::{self, Anchored, Sandbox, layers_in_use};
use crate::state::State;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use store::{Entry, Kept, Record, Step, Tx};
use terms::{ErrorKind, Fault, Limits, Phase};
use utoipa::ToSchema;
use workspace::{Anchors, Dir, Driver, Layer, manifest};

/// What sandboxes can be built upon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ground {
    pub base: PathBuf,
    pub base_id: (u64, u64),
    pub driver: Driver,
    /// Ids from the bottom up, as every record has them that refers to layers.
    pub layers: Vec<String>,
    /// The same with their digests.
    pub frozen: Vec<Frozen>,
    pub since: (i64, u32),
    /// The commit that the base stood on then.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_head: Option<String>,
    #[serde(default)]
    pub anchors: Anchors,
    pub policy: serde_json::Value,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
}

/// A layer that nobody writes to any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    pub id: String,
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
}

/// By the layer's id, so that every stack that has it finds its digest.
impl Record for Frozen {
    const KIND: &'static str = "frozen";
}

/// Ids are `snp_…`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// The sandbox that it was taken of; it may be gone.
    pub sandbox: String,
    /// Made on the way to something else: kept by `restore`, or for a fork. Collected when nothing needs it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub automatic: bool,
    /// Over the digests of all its layers.
    pub digest: String,
    pub created_ms: u64,
    #[serde(flatten)]
    pub ground: Ground,
}

impl Record for Snapshot {
    const KIND: &'static str = "snapshot";

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn scope(&self) -> Option<&str> {
        Some(&self.sandbox)
    }
}

impl Ground {
    pub fn digest(&self) -> String {
        manifest::whole(self.frozen.iter().map(|l| l.digest.as_str()))
    }

    /// Bytes of files in all its layers.
    pub fn bytes(&self) -> u64 {
        self.frozen.iter().map(|l| l.bytes).sum()
    }

    /// What a sandbox stands on, with other layers than its own.
    fn of(sandbox: &Sandbox, frozen: Vec<Frozen>, anchors: Anchors) -> Ground {
        Ground {
            base: sandbox.base.clone(),
            base_id: sandbox.base_id,
            driver: sandbox.driver,
            layers: frozen.iter().map(|l| l.id.clone()).collect(),
            frozen,
            since: sandbox.since,
            git_head: sandbox.git_head.clone(),
            anchors,
            policy: sandbox.policy.clone(),
            limits: sandbox.limits,
            cpus: sandbox.cpus,
        }
    }

    /// Opens the frozen layers and reads them again; one that is not as it was frozen is a fault that names what differs.
    fn verified(&self, state: &State) -> Result<Vec<Layer>, Fault> {
        let open = |frozen: &Frozen| {
            let layer = state.layers.get(&frozen.id).map_err(|e| lost(&frozen.id, &e))?;
            manifest::verify(&layer, &frozen.digest, self.driver.marks())?;
            Ok(layer)
        };
        self.frozen.iter().map(open).collect()
    }

    fn base(&self) -> Result<Dir, Fault> {
        covered(&self.base, self.base_id, self.since)
    }
}

/// A base, which must still be the directory it was.
fn covered(base: &Path, id: (u64, u64), since: (i64, u32)) -> Result<Dir, Fault> {
    let conflict = |why: String| {
        let fault = Fault::new(ErrorKind::Conflict, format!("{}: {why}", base.display()));
        fault.hint("put the directory back, or export the snapshot and import it elsewhere").phase(Phase::Admission)
    };
    let opened = Dir::open(base).map_err(|e| conflict(e.to_string()))?;
    match sandbox::is_base(&opened, id, since).map_err(|e| conflict(e.to_string()))? {
        true => Ok(opened),
        false => Err(conflict("another directory than the one that was covered".to_owned())),
    }
}

/// A layer that cannot be opened.
fn lost(id: &str, error: &std::io::Error) -> Fault {
    let message = format!("layer {id} cannot be opened: {error}");
    Fault::new(ErrorKind::Conflict, message)
        .hint("use another snapshot; `cofferdam gc --dry-run` shows what else is amiss")
        .subject(id)
}

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

fn look(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Option<Kept<Snapshot>>, Fault> {
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
pub fn list(state: &State, sandbox: Option<&str>) -> Result<Vec<Listed>, Fault> {
    let all = state.store.read(|tx| match sandbox {
        Some(id) => tx.list_in::<Snapshot>(id),
        None => tx.list::<Snapshot>(),
    })?;
    let mut all: Vec<Listed> = all.into_iter().map(Listed::of).collect();
    all.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
    Ok(all)
}

/// Those of all sandboxes that are there for the caller.
pub fn list_all(state: &State, caller: &Caller) -> Result<Vec<Listed>, Fault> {
    let mut all = list(state, None)?;
    state.store.read(|tx| caller.keep_own(tx, &mut all, |snapshot| &snapshot.sandbox))?;
    Ok(all)
}

/// Those of one sandbox.
pub fn list_of(state: &State, caller: &Caller, word: &str) -> Result<Vec<Listed>, Fault> {
    let id = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?.id;
    list(state, Some(&id))
}

/// The id of a sandbox, or of a snapshot of it where one is named.
pub fn of_sandbox(state: &State, caller: &Caller, word: &str, snapshot: Option<&str>) -> Result<String, Fault> {
    state.store.read(|tx| {
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
fn earlier<T: DeserializeOwned>(state: &State, once: Option<&Once>) -> Result<Option<T>, Fault> {
    match once {
        Some(once) => state.store.read(|tx| once.answer(tx, fresh::now_ms())),
        None => Ok(None),
    }
}

/// What was noted of a verb that only adds records: its intent and its result become true together.
fn note(tx: &Tx<'_>, at_ms: u64, verb: &str, subject: &str, actor: &str, body: serde_json::Value) -> Result<(), Fault> {
    for step in [Step::Intent, Step::Done] {
        tx.note(&Entry { at_ms, verb, step, subject, actor, body: body.clone() })?;
    }
    Ok(())
}

fn anchors_of(tx: &Tx<'_>, sandbox: &str) -> Result<Anchors, Fault> {
    Ok(tx.get::<Anchored>(sandbox)?.map(|kept| kept.record.anchors).unwrap_or_default())
}

/// Sets what a sandbox knows of its base.
fn set_anchors(tx: &Tx<'_>, sandbox: &str, anchors: &Anchors) -> Result<(), Fault> {
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
fn discard(state: &State, layer: &str) {
    if !state.store.is_in_doubt() {
        let _ = state.layers.remove(layer);
    }
}

/// Takes away layers that nothing refers to any more. What fails is left to `gc`.
fn drop_unused(state: &State, candidates: &[String]) -> Result<(), Fault> {
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
