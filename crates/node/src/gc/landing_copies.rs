//! Copies that batches keep of the files they replaced: finds those that are no longer needed, and removes them. The records
//! stay, for provenance.

use api::{DiskUsage, Rel};
use state::State;
use state::batch::{self, Batch, Unfinished};
use state::sandbox::Sandbox;
use state::snapshot::{Snapshot, Template};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use store::{Kept, Tx};
use terms::Fault;
use workspace::Dir;
use workspace::disk_usage;
use workspace::land::BaseLock;

/// Batches over each directory that can be undone at any age, the last ones.
const KEPT: usize = 100;
/// Retention of the copies of older batches.
const KEPT_MS: u64 = 30 * 24 * 3_600_000;

/// A directory of copies that can be removed.
pub struct UnneededCopies {
    pub id: String,
    pub why: String,
    /// No record names it.
    pub orphan: bool,
    pub size: DiskUsage,
}

/// Lists the copies that can be removed, by name.
pub fn unneeded(state: &State) -> Result<Vec<UnneededCopies>, Fault> {
    let Some(all) = batch::batches(state)? else { return Ok(Vec::new()) };
    // Listed before the records are read: a batch is recorded before it has a directory.
    let names = names(&all)?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let past = state.store.read(past)?;
    let (recorded, unfinished) = state.store.read(known)?;
    let mut found = Vec::new();
    for id in names.into_iter().filter(|id| !unfinished.contains(id)) {
        let (why, orphan) = match past.get(&id) {
            Some(why) => (why.clone(), false),
            None if recorded.contains(&id) => continue,
            None => ("nothing refers to it".to_owned(), true),
        };
        let size = all.dir(&Rel::top().join(id.as_bytes())).map(|dir| disk_usage::tree(&dir)).unwrap_or_default();
        found.push(UnneededCopies { id, why, orphan, size });
    }
    Ok(found)
}

fn names(all: &Dir) -> Result<Vec<String>, Fault> {
    let names = all.names().map_err(|e| Fault::internal(format!("batches in the state directory: {e}")))?;
    let mut names: Vec<String> = names.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect();
    names.retain(|name| name.starts_with("bat_"));
    names.sort();
    Ok(names)
}

fn known(tx: &Tx<'_>) -> Result<(BTreeSet<String>, BTreeSet<String>), Fault> {
    let recorded = tx.list::<Batch>()?.into_iter().map(|kept| kept.id).collect();
    Ok((recorded, tx.list::<Unfinished>()?.into_iter().map(|kept| kept.id).collect()))
}

/// Returns the batches whose copies are not needed, with the reason. The files that an undone batch had replaced are back in
/// their directory; a sandbox that saw them before still compares them with the copies, so those are kept as long as such a
/// sandbox exists.
fn past(tx: &Tx<'_>) -> Result<BTreeMap<String, String>, Fault> {
    let mut by_base: BTreeMap<PathBuf, Vec<Kept<Batch>>> = BTreeMap::new();
    for kept in tx.list::<Batch>()? {
        by_base.entry(kept.record.base.clone()).or_default().push(kept);
    }
    let (mut past, now, looks) = (BTreeMap::new(), terms::clock::now_ms(), looks(tx)?);
    for (base, mut batches) in by_base {
        batches.sort_by_key(|kept| std::cmp::Reverse(kept.record.at_ms));
        let at: BTreeMap<String, u64> = batches.iter().map(|kept| (kept.id.clone(), kept.record.at_ms)).collect();
        let seen = looks.get(&base).map(Vec::as_slice).unwrap_or_default();
        for (place, Kept { id, record, .. }) in batches.into_iter().enumerate() {
            let old = place >= KEPT && record.at_ms.saturating_add(KEPT_MS) <= now;
            let undone_ms = |by: &String| at.get(by).copied().unwrap_or(record.at_ms);
            // The sandbox of the batch recorded both the landing and the undo.
            let is_other = |who: &Option<String>| who.as_ref() != Some(&record.sandbox);
            let is_known = |by: &String| seen.iter().any(|(ms, who)| *ms < undone_ms(by) && is_other(who));
            match record.undone_by {
                Some(by) if old || !is_known(&by) => drop(past.insert(id, format!("undone by {by}"))),
                None if old => drop(past.insert(id, format!("landed on {}", terms::clock::date(record.at_ms / 1000)))),
                _ => {}
            }
        }
    }
    Ok(past)
}

/// For each base, the times in milliseconds at which sandboxes, snapshots and templates first saw it, with the id of the sandbox
/// if it is one.
type FirstSeen = BTreeMap<PathBuf, Vec<(u64, Option<String>)>>;

fn looks(tx: &Tx<'_>) -> Result<FirstSeen, Fault> {
    let sandboxes = tx.list::<Sandbox>()?.into_iter();
    let sandboxes = sandboxes.map(|kept| (kept.record.base, kept.record.since, Some(kept.id)));
    let snapshots = tx.list::<Snapshot>()?.into_iter().map(|kept| kept.record.ground);
    let grounds = snapshots.chain(tx.list::<Template>()?.into_iter().map(|kept| kept.record.ground));
    let mut looks = FirstSeen::new();
    for (base, since, who) in sandboxes.chain(grounds.map(|ground| (ground.base, ground.since, None))) {
        let since_ms = u64::try_from(since.0).unwrap_or(0) * 1000 + u64::from(since.1) / 1_000_000;
        looks.entry(base).or_default().push((since_ms, who));
    }
    Ok(looks)
}

/// Removes the copies of a batch, unless a landing or an undo is in progress in its directory.
pub fn take(state: &State, id: &str) -> Result<bool, Fault> {
    let base = state.store.read(|tx| tx.get::<Batch>(id))?.and_then(|kept| Dir::open(&kept.record.base).ok());
    let _held = match base.as_ref().map(BaseLock::try_take) {
        Some(Ok(None)) => return Ok(false),
        Some(Ok(held)) => held,
        // No undo is possible in a directory that is gone or cannot be locked.
        Some(Err(_)) | None => None,
    };
    let ((recorded, unfinished), past) = state.store.read(|tx| Ok((known(tx)?, past(tx)?)))?;
    if unfinished.contains(id) || (recorded.contains(id) && !past.contains_key(id)) {
        return Ok(false);
    }
    batch::forget(state, id).map(|()| true)
}
