//! Copies that batches keep of what they replaced: which of them nobody can want any more, and their end. The records stay, for
//! provenance.

use state::State;
use state::batch::{self, Batch, Unfinished};
use state::sandbox::Sandbox;
use state::snapshot::{Snapshot, Template};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use store::{Kept, Tx};
use terms::Fault;
use workspace::disk_usage::{self, Size};
use workspace::land::Held;
use workspace::{Dir, Rel};

/// So many of the last batches over each directory can be undone, however old they are.
const KEPT: usize = 100;
/// And all that landed within this time.
const KEPT_MS: u64 = 30 * 24 * 3_600_000;

/// A directory of copies that can go.
pub struct Unneeded {
    pub id: String,
    pub why: String,
    /// No record knows it.
    pub orphan: bool,
    pub size: Size,
}

/// Those that can go now, in the order of their names.
pub fn unneeded(state: &State) -> Result<Vec<Unneeded>, Fault> {
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
        found.push(Unneeded { id, why, orphan, size });
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

/// Batches that cannot be undone any more, or need not be, and why. What one that was undone had replaced stands in its directory
/// again, and whoever else saw it there before still tells by the copies that it is the same.
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
            // The sandbox that it was of was told of both.
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

/// When each that is built upon a directory saw it, in milliseconds, and which sandbox that is, if it is one.
type Looks = BTreeMap<PathBuf, Vec<(u64, Option<String>)>>;

fn looks(tx: &Tx<'_>) -> Result<Looks, Fault> {
    let sandboxes = tx.list::<Sandbox>()?.into_iter();
    let sandboxes = sandboxes.map(|kept| (kept.record.base, kept.record.since, Some(kept.id)));
    let snapshots = tx.list::<Snapshot>()?.into_iter().map(|kept| kept.record.ground);
    let grounds = snapshots.chain(tx.list::<Template>()?.into_iter().map(|kept| kept.record.ground));
    let mut looks = Looks::new();
    for (base, since, who) in sandboxes.chain(grounds.map(|ground| (ground.base, ground.since, None))) {
        let since_ms = u64::try_from(since.0).unwrap_or(0) * 1000 + u64::from(since.1) / 1_000_000;
        looks.entry(base).or_default().push((since_ms, who));
    }
    Ok(looks)
}

/// Takes one away, unless somebody lands or takes back in its directory now.
pub fn take(state: &State, id: &str) -> Result<bool, Fault> {
    let base = state.store.read(|tx| tx.get::<Batch>(id))?.and_then(|kept| Dir::open(&kept.record.base).ok());
    let _held = match base.as_ref().map(Held::try_take) {
        Some(Ok(None)) => return Ok(false),
        Some(Ok(held)) => held,
        // A directory that is gone, or cannot be held, is one that nothing is taken back in.
        Some(Err(_)) | None => None,
    };
    let ((recorded, unfinished), past) = state.store.read(|tx| Ok((known(tx)?, past(tx)?)))?;
    if unfinished.contains(id) || (recorded.contains(id) && !past.contains_key(id)) {
        return Ok(false);
    }
    batch::forget(state, id).map(|()| true)
}
