//! Retention of past records: ended runs, removed sandboxes, keys of old requests, and the oldest part of the journal. They are
//! kept for a time and up to a number, and then removed. Batches are kept for good and name their sandbox themselves.

use super::item;
use crate::snapshots;
use api::{DiskUsage, GcItem, GcItemKind, JournalStep};
use runtime::Node;
use serde_json::json;
use state::config::Keep;
use state::idempotency;
use state::journal::note;
use state::pool::Spare;
use state::sandbox::{Run, Sandbox, Tombstone};
use state::{Caller, State};
use std::collections::{BTreeMap, BTreeSet};
use store::{Timed, Tx};
use terms::Fault;

/// Last runs of an existing sandbox that are always kept: an approval names the last ones, and users look at them.
const LAST_RUNS: usize = 64;
/// Most entries of the journal in one file.
const PART: u64 = 50_000;
/// Most records in one transaction, so that other transactions do not wait long.
const AT_ONCE: usize = 500;
/// Most plans that a daemon executes in a row.
const ROUNDS: usize = 100;

/// Lists the records that can be removed, at most `most`.
pub fn items(state: &State, keep: &Keep, now: u64, most: usize) -> Result<Vec<GcItem>, Fault> {
    let layers: BTreeSet<String> = state.layer_names()?.into_iter().collect();
    state.store.read(|tx| {
        let mut items = tombstones(tx, keep, now, &layers, most)?;
        items.extend(runs(tx, keep, now, most)?);
        let keys = tx.expired_keys(now, most as u32)?;
        items.extend(keys.iter().map(|key| item(GcItemKind::Key, key, "expired".into(), DiskUsage::default())));
        items.truncate(most);
        items.extend(parts(tx, keep)?);
        Ok(items)
    })
}

/// Returns those of `all`, oldest first, that are too old or too many, with the reason.
fn over(all: Vec<Timed>, most: u64, time_ms: u64, now: u64) -> impl Iterator<Item = (Timed, String)> {
    let excess = (all.len() as u64).saturating_sub(most);
    all.into_iter().enumerate().filter_map(move |(place, one)| {
        if one.at_ms.saturating_add(time_ms) <= now {
            let since = terms::clock::date(one.at_ms / 1000);
            return Some((one, format!("ended {since}")));
        }
        ((place as u64) < excess).then(|| (one, format!("more than {most} are kept")))
    })
}

/// Lists tombstones. One that names a layer still on the disk stays as long as the layer does: nothing else names it.
fn tombstones(
    tx: &Tx<'_>,
    keep: &Keep,
    now: u64,
    layers: &BTreeSet<String>,
    most: usize,
) -> Result<Vec<GcItem>, Fault> {
    let mut items = Vec::new();
    for (one, why) in over(tx.timed::<Tombstone>("removed_ms")?, keep.removed, keep.removed_ms, now) {
        if items.len() == most {
            break;
        }
        let left = |kept: &store::Kept<Tombstone>| kept.record.gone.iter().any(|layer| layers.contains(layer));
        if tx.get::<Tombstone>(&one.id)?.is_some_and(|kept| !left(&kept)) {
            items.push(item(GcItemKind::Tombstone, &one.id, why, DiskUsage::default()));
        }
    }
    Ok(items)
}

fn runs(tx: &Tx<'_>, keep: &Keep, now: u64, most: usize) -> Result<Vec<GcItem>, Fault> {
    let there: BTreeSet<String> =
        tx.ids_from::<Sandbox>("", u32::MAX)?.into_iter().chain(tx.ids_from::<Spare>("", u32::MAX)?).collect();
    let all = tx.timed::<Run>("ended_ms")?;
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let mut stay: BTreeSet<String> = BTreeSet::new();
    for run in all.iter().rev() {
        let Some(sandbox) = run.scope.as_ref().filter(|sandbox| there.contains(*sandbox)) else { continue };
        let count = last.entry(sandbox.clone()).or_default();
        *count += 1;
        if *count <= LAST_RUNS {
            stay.insert(run.id.clone());
        }
    }
    let mut items = Vec::new();
    for (one, why) in over(all, keep.runs, keep.runs_ms, now) {
        if items.len() == most {
            break;
        }
        let is_there = one.scope.as_ref().is_some_and(|sandbox| there.contains(sandbox));
        let is_needed = stay.contains(&one.id) || (is_there && is_repeatable(tx, &one, now)?);
        if !is_needed {
            items.push(item(GcItemKind::PastRun, &one.id, why, DiskUsage::default()));
        }
    }
    Ok(items)
}

/// Returns true if the same request may still be repeated under its key and must find this run.
fn is_repeatable(tx: &Tx<'_>, run: &Timed, now: u64) -> Result<bool, Fault> {
    let young = run.at_ms.saturating_add(idempotency::KEPT_MS) > now;
    Ok(young && tx.get::<Run>(&run.id)?.is_some_and(|kept| kept.record.request.is_some()))
}

/// Lists the oldest entries of the journal, if there are a tenth more than shall be kept.
fn parts(tx: &Tx<'_>, keep: &Keep) -> Result<Vec<GcItem>, Fault> {
    let (archived, last) = (tx.archived()?, tx.last_noted()?);
    let excess = (last - archived).saturating_sub(keep.journal);
    if excess == 0 || excess < keep.journal / 10 {
        return Ok(Vec::new());
    }
    let (first, last) = (archived + 1, archived + excess.min(PART));
    let why = format!("{} entries are kept in the store; these go to a file", keep.journal);
    Ok(vec![item(GcItemKind::Journal, &format!("{first}-{last}"), why, DiskUsage::default())])
}

/// Returns true for the sorts that this module removes.
pub fn is_past(sort: GcItemKind) -> bool {
    matches!(sort, GcItemKind::PastRun | GcItemKind::Tombstone | GcItemKind::Key | GcItemKind::Journal)
}

/// Removes records; returns those removed, and the faults.
pub fn take(state: &State, items: Vec<GcItem>, caller: &Caller) -> (Vec<GcItem>, Vec<String>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let (journal, records): (Vec<GcItem>, Vec<GcItem>) =
        items.into_iter().partition(|item| item.sort == GcItemKind::Journal);
    for some in records.chunks(AT_ONCE) {
        let now = terms::clock::now_ms();
        match state.store.write(|tx| some.iter().map(|item| forget(tx, item, now)).collect::<Result<Vec<_>, _>>()) {
            Ok(went) => done.extend(some.iter().zip(went).filter(|(_, went)| *went).map(|(item, _)| item.clone())),
            Err(fault) => failed.push(format!("{} records: {}", some.len(), fault.message)),
        }
    }
    for item in journal {
        let last = item.id.split_once('-').and_then(|(_, last)| last.parse().ok()).unwrap_or(0);
        match state.store.archive(last, &caller.user, terms::clock::now_ms()) {
            Ok(Some(_)) => done.push(item),
            Ok(None) => {}
            Err(fault) => failed.push(fault.message),
        }
    }
    (done, failed)
}

fn forget(tx: &Tx<'_>, item: &GcItem, now: u64) -> Result<bool, Fault> {
    match item.sort {
        GcItemKind::PastRun => tx.remove::<Run>(&item.id),
        GcItemKind::Tombstone => tx.remove::<Tombstone>(&item.id),
        _ => tx.forget_key(&item.id, now),
    }
}

/// Collects past records and nothing else, as a daemon does on its own. Automatic snapshots of sandboxes that are gone count as
/// past. Returns the number of removed records.
pub fn tidy(node: &Node, caller: &Caller, keep: &Keep) -> Result<u64, Fault> {
    let state = node.states.open(caller)?;
    let mut count = 0;
    for kept in state.store.read(snapshots::unneeded)? {
        count += u64::from(snapshots::take::forget(&state, caller, &kept.id).is_ok());
    }
    for _ in 0..ROUNDS {
        let items = items(&state, keep, terms::clock::now_ms(), super::MOST)?;
        if items.is_empty() {
            break;
        }
        let all = items.len();
        let (done, failed) = take(&state, items, caller);
        let body = json!({"past": done.len(), "failed": failed});
        state.store.write(|tx| note(tx, "gc", JournalStep::Done, "state", caller, body))?;
        count += done.len() as u64;
        if done.len() < all {
            break;
        }
    }
    Ok(count)
}
