//! Garbage collection: lists objects that are no longer needed, then removes them. `--dry-run` and the collection use one plan,
//! so that exactly the listed objects are removed. Objects that are in use stay, and nothing outside the state directory is
//! touched.

mod landing_copies;
pub mod retention;

use crate::snapshots;
use crate::warm;
use crate::{list, own_bases, remove};
use api::{DiskUsage, Driver, GcCollected, GcItem, GcItemKind, JournalStep, SandboxState};
use runtime::Node;
use runtime::keeper::lost;
use runtime::keeper::place::KeeperDir;
use runtime::liveness::{self, LivenessFacts, LivenessReport};
use serde_json::json;
use state::config::Keep;
use state::journal::note;
use state::layer_meta::{Meta, drop_layer};
use state::lock::{LockAttempt, LockResult};
use state::pool::Spare;
use state::sandbox::{Run, Sandbox, Tombstone, layers_in_use};
use state::snapshot::{FrozenLayer, Snapshot};
use state::{Caller, State};
use std::collections::BTreeMap;
use terms::{ErrorKind, Fault};
use workspace::Layer;
use workspace::disk_usage;

/// Of each sort, so many are taken at a time; the next call takes the rest.
pub(super) const MOST: usize = 10_000;
/// Time for which a workspace that was found after a crash is kept for review.
const ADOPTED_MS: u64 = 7 * 24 * 3_600_000;

/// Lists what `collect` would remove.
pub fn plan(node: &Node, caller: &Caller, keep: &Keep) -> Result<GcCollected, Fault> {
    let state = node.states.open(caller)?;
    Ok(sum(items(node, &state, keep)?, Vec::new()))
}

pub fn collect(node: &Node, caller: &Caller, keep: &Keep) -> Result<GcCollected, Fault> {
    let state = node.states.open(caller)?;
    let items = items(node, &state, keep)?;
    if items.is_empty() {
        return Ok(sum(items, Vec::new()));
    }
    const SHOWN: usize = 1000;
    let things = items.iter().filter(|item| !retention::is_past(item.sort));
    let ids: Vec<&str> = things.take(SHOWN).map(|item| item.id.as_str()).collect();
    let body = json!({"items": ids, "count": items.len()});
    // The removal of objects that have a record syncs by itself.
    state.store.write_soon(|tx| note(tx, "gc", JournalStep::Intent, "state", caller, body))?;
    let (past, things): (Vec<GcItem>, Vec<GcItem>) = items.into_iter().partition(|item| retention::is_past(item.sort));
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for item in things {
        match take(node, &state, &item, caller) {
            Ok(true) => done.push(item),
            // The object is in use again.
            Ok(false) => {}
            // Another collection removed it first.
            Err(fault) if fault.error_kind == ErrorKind::NotFound => {}
            Err(fault) => failed.push(format!("{}: {}", item.id, fault.message)),
        }
    }
    let (gone, not_gone) = retention::take(&state, past, caller);
    done.extend(gone);
    failed.extend(not_gone);
    let collected = sum(done, failed);
    let body = json!({"count": collected.items.len(), "bytes": collected.bytes, "failed": collected.failed});
    state.store.write(|tx| note(tx, "gc", JournalStep::Done, "state", caller, body))?;
    Ok(collected)
}

fn sum(items: Vec<GcItem>, failed: Vec<String>) -> GcCollected {
    let freed = items.iter().filter(|item| item.sort != GcItemKind::Adopted);
    let (bytes, files) = freed.fold((0, 0), |(b, f), item| (b + item.bytes, f + item.files));
    GcCollected { items, bytes, files, failed }
}

fn items(node: &Node, state: &State, keep: &Keep) -> Result<Vec<GcItem>, Fault> {
    let now = terms::clock::now_ms();
    let known = state.store.read(|tx| {
        Ok(KnownRecords {
            sandboxes: tx.list::<Sandbox>()?,
            spares: tx.list::<Spare>()?,
            layers: layers_in_use(tx)?,
            buried: tx.referred("gone")?,
            snapshots: snapshots::unneeded(tx)?,
            runs: tx.list_open::<Run>()?,
        })
    })?;
    let mut items = Vec::new();
    let expired = known.sandboxes.iter().filter_map(|kept| Some((kept, list::expired(&kept.record, now)?)));
    for (kept, why) in idle(node, state, expired.collect()) {
        let mut size = DiskUsage::default();
        for layer in remove::alone(&kept.record, &known.layers) {
            size += disk_usage::layer(&state.layers, layer);
        }
        items.push(item(GcItemKind::Expired, &kept.id, why, size));
    }
    for id in state.layer_names()?.into_iter().filter(|id| !known.layers.contains_key(id)) {
        items.extend(of_layer(state, &id, &known.buried));
    }
    for kept in &known.snapshots {
        let mut size = DiskUsage::default();
        for layer in kept.record.ground.layers.iter().filter(|id| known.layers.get(*id) == Some(&1)) {
            size += disk_usage::layer(&state.layers, layer);
        }
        items.push(item(GcItemKind::Snapshot, &kept.id, format!("{} is gone", kept.record.sandbox), size));
    }
    let deep = |kept: &&store::Kept<Sandbox>| kept.record.layers.len() > snapshots::DEEP;
    for kept in known.sandboxes.iter().filter(deep).filter(|kept| !state::lock::is_held(state, &kept.record)) {
        let why = format!("{} layers, to be merged", kept.record.layers.len());
        items.push(item(GcItemKind::DeepStack, &kept.id, why, DiskUsage::default()));
    }
    for run in known.runs.iter().filter(|run| is_lost(state, &known, &run.record)) {
        let why = "its supervisor died".to_owned();
        items.push(item(GcItemKind::LostRun, &run.id, why, DiskUsage::default()));
    }
    for gone in landing_copies::unneeded(state)? {
        let sort = if gone.orphan { GcItemKind::OrphanBatch } else { GcItemKind::BatchCopies };
        items.push(item(sort, &gone.id, gone.why, gone.size));
    }
    let bases = own_bases::left(state)?;
    items.extend(
        bases.iter().map(|id| item(GcItemKind::OwnBase, id, "nothing is based on it".into(), DiskUsage::default())),
    );
    for spare in &known.spares {
        if let Some(why) = state.store.read(|tx| warm::idle(tx, state, spare))? {
            items.push(item(GcItemKind::Spare, &spare.id, why.to_owned(), DiskUsage::default()));
        }
    }
    let output = left_output(state, &known);
    items.extend(
        output.iter().map(|id| item(GcItemKind::Output, id, "its sandbox is gone".into(), DiskUsage::default())),
    );
    items.truncate(MOST);
    let room = MOST - items.len();
    items.extend(retention::items(state, keep, now, room)?);
    Ok(items)
}

struct KnownRecords {
    sandboxes: Vec<store::Kept<Sandbox>>,
    spares: Vec<store::Kept<Spare>>,
    layers: BTreeMap<String, u64>,
    buried: BTreeMap<String, u64>,
    snapshots: Vec<store::Kept<Snapshot>>,
    runs: Vec<store::Kept<Run>>,
}

pub(super) fn item(sort: GcItemKind, id: &str, why: String, size: DiskUsage) -> GcItem {
    GcItem { sort, id: id.to_owned(), why, bytes: size.bytes, files: size.files }
}

/// Keeps the objects that are not in use. An idle keeper does not count as use; a silent one may be busy and does.
fn idle<'a, T>(
    node: &Node,
    state: &State,
    sandboxes: Vec<(&'a store::Kept<Sandbox>, T)>,
) -> impl Iterator<Item = (&'a store::Kept<Sandbox>, T)> {
    let facts: Vec<LivenessFacts> = sandboxes.iter().map(|(kept, _)| LivenessFacts::of(state, kept)).collect();
    let looks = liveness::look_all(node, &facts);
    let is_idle =
        |(facts, look): (&LivenessFacts, LivenessReport)| !facts.is_held() || look.standing == SandboxState::Active;
    let idle: Vec<bool> = facts.iter().zip(looks).map(is_idle).collect();
    sandboxes.into_iter().zip(idle).filter(|(_, idle)| *idle).map(|(sandbox, _)| sandbox)
}

/// Returns true for an open run without a supervisor, in a sandbox that is not in use.
fn is_lost(state: &State, known: &KnownRecords, run: &Run) -> bool {
    let sandbox = known.sandboxes.iter().find(|kept| kept.id == run.sandbox);
    state::process::handle(run).is_none() && !sandbox.is_some_and(|kept| state::lock::is_held(state, &kept.record))
}

/// Returns the fate of a layer that no record refers to; none while the layer is in use.
fn of_layer(state: &State, id: &str, buried: &BTreeMap<String, u64>) -> Option<GcItem> {
    let layer = match state.layers.get(id) {
        Ok(layer) => layer,
        Err(_) if is_old(state, id) => {
            let size = disk_usage::layer(&state.layers, id);
            return Some(item(GcItemKind::DeadLayer, id, "it is incomplete".into(), size));
        }
        Err(_) => return None,
    };
    if state::lock::holds(&layer) {
        return None;
    }
    let (sort, why) = match (buried.contains_key(id), Meta::read(&layer)) {
        (true, _) => (GcItemKind::DeadLayer, "its sandbox was removed".to_owned()),
        (_, None) => (GcItemKind::DeadLayer, "nothing refers to it".to_owned()),
        (_, Some(meta)) if is_past(state, &meta) => (GcItemKind::DeadLayer, "nothing refers to it any more".to_owned()),
        (_, Some(meta)) if is_worth_keeping(&layer, &meta) => {
            let what =
                meta.run_id.map_or("a sandbox without a record".into(), |run| format!("run {run}, which crashed"));
            (GcItemKind::Adopted, format!("it has changes of {what}"))
        }
        (_, Some(_)) => (GcItemKind::EmptyLayer, "left by a crash, without a change".to_owned()),
    };
    Some(item(sort, id, why, disk_usage::layer(&state.layers, id)))
}

/// Returns true for a layer without `up` that is older than a moment: it was made or removed only in part.
fn is_old(state: &State, id: &str) -> bool {
    const MAKING_MS: u64 = 1000;
    let meta = state.layers.dir.meta_of(id.as_bytes()).ok().flatten();
    meta.is_some_and(|meta| (meta.ctime.0 as u64 * 1000).saturating_add(MAKING_MS) < terms::clock::now_ms())
}

/// Returns true if the layer's sandbox or run has been recorded: the layer was then given up, perhaps in part, and was not left
/// by a crash.
fn is_past(state: &State, meta: &Meta) -> bool {
    let known = state.store.read(|tx| {
        let sandbox = match &meta.sandbox {
            Some(id) => tx.get::<Sandbox>(id)?.is_some() || tx.get::<Tombstone>(id)?.is_some(),
            None => false,
        };
        let run = meta.run_id.as_ref().map(|id| tx.get::<Run>(id)).transpose()?.flatten();
        Ok(sandbox || run.is_some())
    });
    known.unwrap_or(false)
}

fn is_worth_keeping(layer: &Layer, meta: &Meta) -> bool {
    let changed = !disk_usage::is_empty(&layer.up).unwrap_or(false);
    // A copy is never empty; a reviewer has to compare it with its base.
    changed || meta.driver.is_some_and(|driver| driver != Driver::Overlay)
}

/// Removes one object, if it is still as it was when it was listed.
fn take(node: &Node, state: &State, item: &GcItem, caller: &Caller) -> Result<bool, Fault> {
    let now = terms::clock::now_ms();
    match item.sort {
        GcItemKind::Expired => expire(node, state, item, caller, now),
        GcItemKind::DeadLayer | GcItemKind::EmptyLayer => drop_dead(state, &item.id),
        GcItemKind::Adopted => adopt(state, &item.id, caller, now),
        GcItemKind::Snapshot => snapshots::take::forget(state, caller, &item.id).map(|_| true),
        GcItemKind::DeepStack => snapshots::merge(node, state, caller, &item.id),
        GcItemKind::BatchCopies | GcItemKind::OrphanBatch => landing_copies::take(state, &item.id),
        GcItemKind::LostRun => lose(state, &item.id),
        GcItemKind::Output => Ok(drop_output(state, &item.id)),
        GcItemKind::OwnBase => own_bases::drop_unused(state, &item.id),
        GcItemKind::Spare => warm::drop_spare(node, state, &item.id, caller),
        // Records are removed in batches; see `retention`.
        GcItemKind::Key | GcItemKind::PastRun | GcItemKind::Tombstone | GcItemKind::Journal => Ok(false),
    }
}

fn expire(node: &Node, state: &State, item: &GcItem, caller: &Caller, now: u64) -> Result<bool, Fault> {
    if state.store.read(|tx| tx.get::<Sandbox>(&item.id))?.is_none() {
        return Ok(false);
    }
    let LockAttempt { result: LockResult::Locked(_held), .. } = liveness::lock_patiently(node, state, &item.id)? else {
        return Ok(false);
    };
    let still = std::cell::Cell::new(true);
    let taken = remove::take(state, &item.id, &item.why, caller, |kept| {
        still.set(list::expired(&kept.record, now).is_some());
        if still.get() { Ok(()) } else { Err(Fault::internal("it was used meanwhile")) }
    });
    if still.get() { taken.map(|(done, _)| done) } else { Ok(false) }
}

fn drop_dead(state: &State, id: &str) -> Result<bool, Fault> {
    // The lock is held during the removal, and the records are read again: no run may start on the layer, and no new record may
    // name it.
    let held = state.layers.get(id).ok().map(|layer| layer.lock());
    if matches!(held, Some(Ok(None) | Err(_))) || state.store.read(layers_in_use)?.contains_key(id) {
        return Ok(false);
    }
    drop_layer(&state.layers, id).map_err(|e| Fault::internal(format!("{id}: {e}")))?;
    if state.store.read(|tx| tx.get::<FrozenLayer>(id))?.is_some() {
        state.store.write_soon(|tx| tx.remove::<FrozenLayer>(id))?;
    }
    Ok(true)
}

/// Makes a sandbox of a layer that a crash left, so that its changes can be reviewed.
fn adopt(state: &State, id: &str, caller: &Caller, now: u64) -> Result<bool, Fault> {
    let Ok(layer) = state.layers.get(id) else { return Ok(false) };
    let Ok(Some(_held)) = layer.lock() else { return Ok(false) };
    let Some(meta) = Meta::read(&layer) else { return Ok(false) };
    let born = layer.dir.born(b"up").unwrap_or(((meta.created_ms / 1000) as i64, 0));
    let sandbox_id = meta.sandbox.clone().unwrap_or_else(|| terms::id("sbx", sys::random::id_bytes()));
    let found = if meta.run_id.is_some() { "found after a crash" } else { "found without a record" };
    let named = meta.name.clone();
    let sandbox = Sandbox {
        name: named,
        driver: meta.driver.unwrap_or(Driver::Overlay),
        layers: vec![id.to_owned()],
        since: meta.since.unwrap_or(born),
        limits: meta.limits,
        cpus: meta.cpus,
        reserve: meta.reserve,
        sharing: meta.sharing,
        git_head: meta.git_head,
        used_ms: now,
        expires_ms: Some(now + ADOPTED_MS),
        notes: vec![format!("{found} on {}", terms::clock::date(now / 1000))],
        ..Sandbox::new(meta.base, meta.base_id, meta.policy, meta.created_ms)
    };
    state.store.write(|tx| {
        if layers_in_use(tx)?.contains_key(id) {
            return Ok(false);
        }
        let mut sandbox = sandbox;
        if let Some(name) =
            sandbox.name.take_if(|name| tx.get_named::<Sandbox>(name).is_ok_and(|other| other.is_some()))
        {
            sandbox.notes.push(format!("it was named {name:?}"));
        }
        note(tx, "adopt", JournalStep::Intent, &sandbox_id, caller, json!({"layer": id, "run": meta.run_id}))?;
        tx.add(&sandbox_id, sandbox)?;
        note(tx, "adopt", JournalStep::Done, &sandbox_id, caller, serde_json::Value::Null)?;
        Ok(true)
    })
}

fn lose(state: &State, id: &str) -> Result<bool, Fault> {
    let open = |run: &store::Kept<Run>| run.record.ended_ms.is_none();
    let Some(run) = state.store.read(|tx| tx.get::<Run>(id))?.filter(open) else { return Ok(false) };
    lost::settle_open(state, &run.record.sandbox).map(|()| true)
}

/// Lists the directories of keepers whose sandbox is gone.
fn left_output(state: &State, known: &KnownRecords) -> Vec<String> {
    let is_known = |id: &String| {
        known.sandboxes.iter().any(|kept| kept.id == *id) || known.spares.iter().any(|kept| kept.id == *id)
    };
    // A live keeper is found by its directory alone, which must stay whatever the records say.
    let lives = |id: &String| KeeperDir::of(&state.path, id).card().is_some_and(|card| card.handle().is_some());
    let mut left: Vec<String> =
        KeeperDir::all(&state.path).into_iter().filter(|id| !is_known(id) && !lives(id)).collect();
    left.sort();
    left
}

fn drop_output(state: &State, id: &str) -> bool {
    let gone = state.store.read(|tx| Ok(state::pool::sandbox_or_spare(tx, id)?.is_none())).unwrap_or(false);
    if gone {
        KeeperDir::of(&state.path, id).remove();
    }
    gone
}
