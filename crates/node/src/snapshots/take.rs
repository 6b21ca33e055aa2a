//! `snapshot`: freezes the top layer and puts a fresh one in its place. If a run is live, its guest is frozen and the layer
//! copied; if the workspace is a copy, the tree is copied.

use super::{anchors_of, discard, drop_unused, earlier, find, note, running, squash};
use crate::own_bases;
use api::{Driver, SnapshotTaken};
use runtime::Node;
use state::State;
use state::idempotency::KeyedRequest;
use state::layer_meta;
use state::names::check_name;
use state::sandbox::Sandbox;
use state::sandbox::{self, Which};
use state::snapshot::{FrozenLayer, Ground, Snapshot};
use state::{Caller, total};
use std::time::Instant;
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase};
use workspace::{Layer, Lock, copy, manifest, remove};

/// Purpose of a snapshot, which decides its retention and durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotPurpose {
    Asked,
    /// Requested, and synced to the disk before the response, so that it survives a power failure.
    ToDisk,
    Automatic,
}

pub fn take(node: &Node, caller: &Caller, word: Option<&str>, name: Option<&str>) -> Result<SnapshotTaken, Fault> {
    let which = Which { word: word.map(str::to_owned), version: None };
    take_once(node, caller, &which, name, None)
}

/// Takes a snapshot, at most once under a key.
pub fn take_once(
    node: &Node,
    caller: &Caller,
    which: &Which,
    name: Option<&str>,
    once: Option<&KeyedRequest>,
) -> Result<SnapshotTaken, Fault> {
    take_which(node, caller, which, name, (SnapshotPurpose::Asked, once))
}

/// Takes a snapshot and syncs it before the response: waits for all pending writes to the file system of the layers, also those
/// of other processes.
pub fn take_to_disk(
    node: &Node,
    caller: &Caller,
    which: &Which,
    name: Option<&str>,
    once: Option<&KeyedRequest>,
) -> Result<SnapshotTaken, Fault> {
    take_which(node, caller, which, name, (SnapshotPurpose::ToDisk, once))
}

fn take_which(
    node: &Node,
    caller: &Caller,
    which: &Which,
    name: Option<&str>,
    what_for: (SnapshotPurpose, Option<&KeyedRequest>),
) -> Result<SnapshotTaken, Fault> {
    let state = &node.states.lend(caller)?;
    if let Some(known) = earlier(state, what_for.1)? {
        return Ok(SnapshotTaken { existed: true, ..known });
    }
    let sandbox = state.store.read(|tx| state::sandbox::pick(tx, which, caller))?;
    Ok(take_for(node, state, caller, sandbox, name, what_for)?.0)
}

pub fn take_of(
    node: &Node,
    state: &State,
    caller: &Caller,
    sandbox: Kept<Sandbox>,
    name: Option<&str>,
    purpose: SnapshotPurpose,
) -> Result<(SnapshotTaken, Snapshot), Fault> {
    take_for(node, state, caller, sandbox, name, (purpose, None))
}

fn take_for(
    node: &Node,
    state: &State,
    caller: &Caller,
    mut sandbox: Kept<Sandbox>,
    name: Option<&str>,
    what_for: (SnapshotPurpose, Option<&KeyedRequest>),
) -> Result<(SnapshotTaken, Snapshot), Fault> {
    if let Some(name) = name {
        check_name(name)?;
        refuse_taken(state, name, caller)?;
    }
    if sandbox.record.layers.len() >= squash::DEEPEST {
        squash::merge(node, state, caller, &sandbox.id)?;
        sandbox = state.store.read(|tx| sandbox::find(tx, Some(&sandbox.id), caller))?;
    }
    let (sandbox, top, lock) = running::lock(node, state, &sandbox.id)?;
    total::admit_copy(&state.layers, &state.path, caller, (&top.up, sandbox.record.driver))?;
    let cut = match (lock, sandbox.record.driver) {
        (Some(lock), Driver::Overlay) => freeze(state, &sandbox, top, lock)?,
        (lock, _) => copied(state, &sandbox, &top, lock)?,
    };
    record(state, caller, sandbox, name, what_for, cut)
}

/// Refuses a taken name before the work begins. Names the other snapshot only to a caller who may see it.
fn refuse_taken(state: &State, name: &str, caller: &Caller) -> Result<(), Fault> {
    state.store.read(|tx| {
        let Some(other) = tx.get_named::<Snapshot>(name)? else { return Ok(()) };
        let seen = caller.sees_id(tx, &other.record.sandbox)?;
        let which = if seen { format!(": {}", other.id) } else { String::new() };
        let message = format!("a snapshot named {name:?} exists already{which}");
        let fault = Fault::new(ErrorKind::Conflict, message).hint("choose another name").phase(Phase::Admission);
        Err(if seen { fault.subject(other.id) } else { fault })
    })
}

pub fn top_of(state: &State, sandbox: &Kept<Sandbox>) -> Result<Layer, Fault> {
    let top = sandbox.record.layers.last();
    let top = top.ok_or_else(|| Fault::internal(format!("{} has no layer", sandbox.id)).subject(&sandbox.id))?;
    state.layers.get(top).map_err(|e| state::snapshot::lost(top, &e))
}

/// A stack that was split into new frozen layers above the known ones and the layer to write to.
struct SplitStack {
    frozen: Option<FrozenLayer>,
    /// The fresh top, if the former one was frozen.
    fresh: Option<String>,
    held_ms: Option<u64>,
    /// Held until records refer to the layers.
    _locks: Vec<Lock>,
}

/// Freezes the top, at a cost independent of the size of the tree.
fn freeze(state: &State, sandbox: &Kept<Sandbox>, top: Layer, lock: Lock) -> Result<SplitStack, Fault> {
    if top.is_empty().map_err(|e| state::snapshot::lost(&top.id, &e))? {
        return Ok(SplitStack { frozen: None, fresh: None, held_ms: None, _locks: vec![lock] });
    }
    let frozen = sealed(&top, sandbox.record.driver)?;
    drop_meta(&top)?;
    let (fresh, held) = fresh_layer(state, &top)?;
    Ok(SplitStack { frozen: Some(frozen), fresh: Some(fresh.id), held_ms: None, _locks: vec![lock, held] })
}

/// Freezes a copy of the top, which stays as it is: it is a whole tree, or in use.
fn copied(state: &State, sandbox: &Kept<Sandbox>, top: &Layer, lock: Option<Lock>) -> Result<SplitStack, Fault> {
    let (layer, held) = fresh_layer(state, top)?;
    match filled(state, sandbox, top, &layer, lock.as_ref()) {
        Ok((frozen, held_ms)) => {
            let _locks = [held].into_iter().chain(lock).collect();
            Ok(SplitStack { frozen: Some(frozen), fresh: None, held_ms, _locks })
        }
        Err(fault) => {
            let _ = state.layers.remove(&layer.id);
            Err(fault.subject(&sandbox.id))
        }
    }
}

/// Copies the top while no command changes it; returns the time for which a guest was frozen, if there was one.
fn filled(
    state: &State,
    sandbox: &Kept<Sandbox>,
    top: &Layer,
    layer: &Layer,
    lock: Option<&Lock>,
) -> Result<(FrozenLayer, Option<u64>), Fault> {
    let guest = match lock {
        Some(_) => None,
        None => Some((running::hold(state, sandbox)?, Instant::now())),
    };
    let copied = match sandbox.record.driver {
        Driver::Overlay => copy::layers(&[&top.up], &layer.up).and_then(|_| {
            workspace::home::merge(std::slice::from_ref(top), layer, workspace::Marks::of(sandbox.record.driver))
        }),
        Driver::Reflink | Driver::Copy => copy::tree(top, layer).map(drop),
    };
    let held_ms = guest.map(|(guest, since)| {
        drop(guest);
        since.elapsed().as_millis() as u64
    });
    copied.and_then(|()| sealed(layer, sandbox.record.driver)).map(|frozen| (frozen, held_ms))
}

/// Removes the mark by which a layer that is no longer a sandbox's top could be taken for the leftover of a crash.
pub fn drop_meta(top: &Layer) -> Result<(), Fault> {
    remove::tree(&top.dir, layer_meta::NAME).map(|_| ()).map_err(|e| state::snapshot::lost(&top.id, &e))
}

pub fn fresh_layer(state: &State, like: &Layer) -> Result<(Layer, Lock), Fault> {
    state.layers.make(&like.up, sys::random::id_bytes()).map_err(|e| unmade(&e))
}

/// Syncs all layers to the disk.
pub fn settle(state: &State) -> Result<(), Fault> {
    state.layers.settle().map_err(|e| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("the layers could not be written to disk: {e}"));
        fault.hint("check the kernel's log for errors of that disk").phase(Phase::Preparation)
    })
}

pub fn unmade(error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("cannot create a layer: {error}"));
    fault.hint("check space and permissions of the state directory").phase(Phase::Preparation)
}

pub fn sealed(layer: &Layer, driver: Driver) -> Result<FrozenLayer, Fault> {
    let sealed = manifest::seal(layer, workspace::Marks::of(driver))?;
    Ok(FrozenLayer { id: layer.id.clone(), digest: sealed.digest, entries: sealed.entries, bytes: sealed.bytes })
}

/// Lists the frozen layers of a sandbox below its top, with their digests.
pub fn below(state: &State, sandbox: &Sandbox) -> Result<Vec<FrozenLayer>, Fault> {
    let (_, below) = sandbox.layers.split_last().unwrap_or((&sandbox.layers[0], &[]));
    if sandbox.driver != Driver::Overlay {
        return Ok(Vec::new());
    }
    let known = |id: &String| match state.store.read(|tx| tx.get::<FrozenLayer>(id))? {
        Some(kept) => Ok(kept.record),
        // Frozen without a recorded digest: its current contents count.
        None => sealed(&state.layers.get(id).map_err(|e| state::snapshot::lost(id, &e))?, sandbox.driver),
    };
    below.iter().map(known).collect()
}

fn record(
    state: &State,
    caller: &Caller,
    sandbox: Kept<Sandbox>,
    name: Option<&str>,
    (purpose, once): (SnapshotPurpose, Option<&KeyedRequest>),
    cut: SplitStack,
) -> Result<(SnapshotTaken, Snapshot), Fault> {
    let (id, at_ms) = (terms::id("snp", sys::random::id_bytes()), terms::clock::now_ms());
    let below = below(state, &sandbox.record);
    let settled = if purpose == SnapshotPurpose::ToDisk { settle(state) } else { Ok(()) };
    let done = settled.and(below).and_then(|mut layers| {
        layers.extend(cut.frozen.clone());
        write(state, purpose, |tx| {
            let mut now = tx.get::<Sandbox>(&sandbox.id)?.ok_or_else(|| sandbox::unknown(&sandbox.id))?;
            if now.record.layers != sandbox.record.layers {
                let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", sandbox.id));
                return Err(fault.hint("try again").subject(&sandbox.id));
            }
            let ground = Ground::of(&now.record, layers, anchors_of(tx, &sandbox.id)?);
            let snapshot = Snapshot {
                name: name.map(str::to_owned),
                sandbox: sandbox.id.clone(),
                automatic: purpose == SnapshotPurpose::Automatic,
                digest: ground.digest(),
                created_ms: at_ms,
                ground,
            };
            let body =
                serde_json::json!({ "snapshot": id, "digest": snapshot.digest, "layers": snapshot.ground.layers });
            if let Some(frozen) = &cut.frozen {
                tx.add(&frozen.id, frozen.clone())?;
            }
            let snapshot = tx.add(&id, snapshot)?.record;
            if let Some(fresh) = &cut.fresh {
                now.record.layers.push(fresh.clone());
                now.record.used_ms = at_ms;
                tx.change(now)?;
            }
            note(tx, at_ms, "snapshot", &sandbox.id, &caller.user, body)?;
            let (entries, bytes) = cut.frozen.as_ref().map_or((0, 0), |f| (f.entries, f.bytes));
            let taken = SnapshotTaken {
                protocol_version: terms::PROTOCOL_VERSION,
                id: id.clone(),
                name: snapshot.name.clone(),
                sandbox: sandbox.id.clone(),
                digest: snapshot.digest.clone(),
                layers: snapshot.ground.layers.len(),
                entries,
                bytes,
                held_ms: cut.held_ms,
                existed: false,
            };
            once.map_or(Ok(()), |once| once.keep(tx, &id, &taken, at_ms))?;
            Ok((taken, snapshot))
        })
    });
    match done {
        Ok(taken) => Ok(taken),
        Err(fault) => {
            // The new layers; the former top stays as it was.
            let made = cut.fresh.or_else(|| cut.frozen.map(|f| f.id).filter(|id| !sandbox.record.layers.contains(id)));
            made.iter().for_each(|id| discard(state, id));
            Err(fault)
        }
    }
}

/// Writes a record, with a sync if its layers were synced.
fn write<T>(
    state: &State,
    purpose: SnapshotPurpose,
    work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    match purpose {
        SnapshotPurpose::ToDisk => state.store.write(work),
        SnapshotPurpose::Asked | SnapshotPurpose::Automatic => state.store.write_soon(work),
    }
}

/// Removes a snapshot, and the layers that only it had. Sandboxes made from it stay.
pub fn remove(node: &Node, caller: &Caller, word: &str) -> Result<String, Fault> {
    forget(&*node.states.lend(caller)?, caller, word)
}

/// Removes a snapshot in a state that is open.
pub fn forget(state: &State, caller: &Caller, word: &str) -> Result<String, Fault> {
    let at_ms = terms::clock::now_ms();
    let kept = state.store.write(|tx| {
        let kept = find(tx, word, caller)?;
        tx.remove::<Snapshot>(&kept.id)?;
        note(tx, at_ms, "snapshot_rm", &kept.record.sandbox, &caller.user, serde_json::json!({ "snapshot": kept.id }))?;
        Ok(kept)
    })?;
    drop_unused(state, &kept.record.ground.layers)?;
    own_bases::leave(state, &kept.record.ground.base)?;
    Ok(kept.id)
}
