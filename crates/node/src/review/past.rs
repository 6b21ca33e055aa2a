//! What files of a base held when a sandbox last saw them: from copies that batches kept of what they replaced, and from the
//! commit that the base stood on.

use super::batch::{self, Batch, Paths};
use crate::Caller;
use crate::sandbox::Sandbox;
use crate::state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use store::Kept;
use terms::Fault;
use workspace::git::{Old, Surroundings, Was};
use workspace::plan::{Act, Plan};
use workspace::{Anchors, ChangeKind, Diff, Dir, Rel, Seen, merge, undo};

pub struct Past {
    copies: BTreeMap<Rel, (Dir, u32)>,
    commit: Option<Old>,
    /// Why less is known than could be.
    pub notes: Vec<String>,
}

/// So many batches are searched for copies, the last ones first.
const MOST_BATCHES: usize = 256;

impl Past {
    /// Looks up all that a rebase may ask for.
    pub fn of(
        state: &State,
        caller: &Caller,
        sandbox: &Kept<Sandbox>,
        anchors: &Anchors,
        diff: &Diff,
    ) -> Result<Past, Fault> {
        let asked = asked(diff);
        let copies = copies(state, &sandbox.record, anchors, &asked)?;
        let asked: Vec<Rel> = asked.into_iter().filter(|path| !copies.contains_key(path)).collect();
        let mut notes = Vec::new();
        let commit = match &sandbox.record.git_head {
            Some(commit) if !asked.is_empty() => {
                let surroundings = Surroundings { env: &caller.env };
                // Without git's word a rebase is poorer, not wrong.
                Old::look_up(&sandbox.record.base, &surroundings, commit, &asked).unwrap_or_else(|fault| {
                    notes.push(format!("git was not asked how files were before: {}", fault.message));
                    None
                })
            }
            _ => None,
        };
        Ok(Past { copies, commit, notes })
    }

    pub fn of_file(&self, path: &Rel) -> Result<Was, Fault> {
        const MOST: u64 = merge::LARGEST as u64;
        if let Some((dir, number)) = self.copies.get(path) {
            let name = Rel::top().join(number.to_string().as_bytes());
            let read = dir.file(&name).and_then(|file: File| {
                let mut bytes = Vec::new();
                file.take(MOST + 1).read_to_end(&mut bytes).map(|_| bytes)
            });
            return Ok(match read {
                Ok(bytes) if bytes.len() as u64 <= MOST => Was::File(bytes),
                _ => Was::Unknown,
            });
        }
        match &self.commit {
            Some(old) => old.contents(path, MOST),
            None => Ok(Was::Unknown),
        }
    }
}

/// Files whose base moved, and new ones, which the base may have had.
fn asked(diff: &Diff) -> BTreeSet<Rel> {
    let changes = diff.files.iter().map(|file| &file.change);
    let moved = changes.filter(|change| change.drifted || change.kind == ChangeKind::Added);
    moved.map(|change| change.kind.from().unwrap_or(&change.path).clone()).collect()
}

/// Copies of exactly what the sandbox knew: whoever replaced it kept one.
fn copies(
    state: &State,
    sandbox: &Sandbox,
    anchors: &Anchors,
    asked: &BTreeSet<Rel>,
) -> Result<BTreeMap<Rel, (Dir, u32)>, Fault> {
    let mut found = BTreeMap::new();
    let Some(base) = sandbox.base.to_str().filter(|_| !asked.is_empty()) else { return Ok(found) };
    let mut batches = state.store.read(|tx| tx.list_in::<Batch>(base))?;
    batches.sort_by_key(|batch| std::cmp::Reverse(batch.record.at_ms));
    for batch in batches.into_iter().take(MOST_BATCHES) {
        let paths = state.store.read(|tx| tx.get::<Paths>(&batch.id))?;
        if !paths.is_some_and(|kept| kept.record.paths.iter().any(|path| asked.contains(path))) {
            continue;
        }
        // One whose copies were cleared away knows nothing any more.
        let Ok(dir) = batch::batches(state)?.dir(&Rel::top().join(batch.id.as_bytes())) else { continue };
        let Ok(plan) = undo::read_plan(&dir, &batch.id) else { continue };
        for (path, number, seen) in replaced(&plan).filter(|(path, ..)| asked.contains(*path)) {
            if is_what_was_known(anchors, sandbox.since, path, &seen) {
                let dir = dir.try_clone().map_err(|e| Fault::internal(format!("batch {}: {e}", batch.id)))?;
                found.entry(path.clone()).or_insert((dir, number));
            }
        }
    }
    Ok(found)
}

/// Files that a batch replaced or removed: the number of the copy, and what `stat` said of them.
fn replaced(plan: &Plan) -> impl Iterator<Item = (&Rel, u32, Seen)> {
    let old = plan.steps.iter().filter_map(|step| match &step.act {
        Act::Swap { old, .. } | Act::Remove { old } if !old.is_dir => Some((&step.at, old)),
        _ => None,
    });
    let old: BTreeMap<&Rel, _> = old.collect();
    plan.items.iter().filter_map(move |item| {
        let before = item.before.as_ref()?;
        let piece = old.get(&item.at)?;
        let seen = Seen::Present { ino: piece.id.ino, size: piece.size, mode: before.mode, ctime: piece.ctime };
        Some((&item.at, before.kept?, seen))
    })
}

fn is_what_was_known(anchors: &Anchors, since: (i64, u32), path: &Rel, seen: &Seen) -> bool {
    match (anchors.get(path), seen) {
        (Some(known), seen) => known == seen,
        (None, Seen::Present { ctime, .. }) => *ctime <= since,
        (None, Seen::Absent) => false,
    }
}
