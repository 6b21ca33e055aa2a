//! What files of a base held when a sandbox last saw them: from copies that batches kept of what they replaced, and from the
//! commit that the base stood on.

use state::batch::{self, Batch, Paths};
use state::sandbox::Sandbox;
use state::{Caller, State};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use store::Kept;
use terms::Fault;
use workspace::git::{Old, Surroundings, Was};
use workspace::plan::{Act, Plan, Shape};
use workspace::{Anchors, Change, ChangeKind, Diff, Dir, Entry, Rel, Seen, Stack, merge, sight, stage, undo};

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
    replaced(state, sandbox, asked, &mut |id, dir, was| {
        let Some(number) = was.shape.kept.filter(|_| was.is_known(anchors, sandbox.since)) else { return Ok(()) };
        let dir = dir.try_clone().map_err(|e| Fault::internal(format!("batch {id}: {e}")))?;
        found.entry(was.path.clone()).or_insert((dir, number));
        Ok(())
    })?;
    Ok(found)
}

/// Takes the mark of drift off files that are again what the sandbox knew: somebody looked at them then, or replaced them and said what
/// they were. An undo gives them other times, but no other bytes.
pub fn settle(
    state: &State,
    sandbox: &Sandbox,
    stack: &Stack,
    anchors: &Anchors,
    diff: &mut Diff,
) -> Result<(), Fault> {
    sight::settle(stack, anchors, diff);
    let mut drifted: BTreeMap<Rel, &mut Change> = BTreeMap::new();
    for change in diff.files.iter_mut().map(|file| &mut file.change).filter(|change| change.drifted) {
        // Of what was moved, the place it came to must be as free as it was.
        let is_free = matches!(anchors.get(&change.path), None | Some(Seen::Absent));
        if change.before.is_some() && (change.kind.from().is_none() || is_free) {
            drifted.insert(change.kind.from().unwrap_or(&change.path).clone(), change);
        }
    }
    let asked = drifted.keys().cloned().collect();
    replaced(state, sandbox, &asked, &mut |_, _, was| {
        if let (Some(change), true) = (drifted.get_mut(was.path), was.is_known(anchors, sandbox.since)) {
            change.drifted &= !change.before.as_ref().is_some_and(|now| is_as(now, was.shape));
        }
        Ok(())
    })
}

fn is_as(now: &Entry, was: &Shape) -> bool {
    let same_bytes = now.digest.is_some() && now.digest == was.digest;
    same_bytes && now.kind == was.kind && now.mode == was.mode && now.xattrs == was.xattrs
}

/// A file or link that a batch replaced or removed.
struct Replaced<'a> {
    path: &'a Rel,
    shape: &'a Shape,
    /// What `stat` said of it.
    seen: Seen,
    /// When it still stood there, by the clock that stamps files.
    until: (i64, u32),
}

impl Replaced<'_> {
    /// Whether it is what a sandbox knows to be there. Without an anchor that is what stood there when the sandbox was made: something
    /// that is older still may have been replaced before.
    fn is_known(&self, anchors: &Anchors, since: (i64, u32)) -> bool {
        match (anchors.get(self.path), &self.seen) {
            (Some(known), seen) => known == seen,
            (None, Seen::Present { ctime, .. }) => *ctime <= since && since < self.until,
            (None, Seen::Absent) => false,
        }
    }
}

/// Called with the id and the directory of a batch, and what it replaced.
type Tell<'a> = dyn FnMut(&str, &Dir, &Replaced<'_>) -> Result<(), Fault> + 'a;

/// Tells of these paths what batches over the base of a sandbox replaced, the last batch first.
fn replaced(state: &State, sandbox: &Sandbox, asked: &BTreeSet<Rel>, tell: &mut Tell<'_>) -> Result<(), Fault> {
    let Some(base) = sandbox.base.to_str().filter(|_| !asked.is_empty()) else { return Ok(()) };
    let mut batches = state.store.read(|tx| tx.list_in::<Batch>(base))?;
    batches.sort_by_key(|batch| std::cmp::Reverse(batch.record.at_ms));
    for batch in batches.into_iter().take(MOST_BATCHES) {
        let paths = state.store.read(|tx| tx.get::<Paths>(&batch.id))?;
        if !paths.is_some_and(|kept| kept.record.paths.iter().any(|path| asked.contains(path))) {
            continue;
        }
        // One whose copies were cleared away knows nothing any more.
        let Ok(Some(dir)) = batch::copies(state, &batch.id) else { continue };
        let Ok(plan) = undo::read_plan(&dir, &batch.id) else { continue };
        // It is written before anything is replaced.
        let Ok(Some(written)) = dir.meta_of(stage::PLAN.as_bytes()) else { continue };
        for was in replaced_by(&plan, written.mtime).filter(|was| asked.contains(was.path)) {
            tell(&batch.id, &dir, &was)?;
        }
    }
    Ok(())
}

fn replaced_by(plan: &Plan, until: (i64, u32)) -> impl Iterator<Item = Replaced<'_>> {
    let old = plan.steps.iter().filter_map(|step| match &step.act {
        Act::Swap { old, .. } | Act::Remove { old } if !old.is_dir => Some((&step.at, old)),
        _ => None,
    });
    let old: BTreeMap<&Rel, _> = old.collect();
    plan.items.iter().filter_map(move |item| {
        let (shape, piece) = (item.before.as_ref()?, old.get(&item.at)?);
        let seen = Seen::Present { ino: piece.id.ino, size: piece.size, mode: shape.mode, ctime: piece.ctime };
        Some(Replaced { path: &item.at, shape, seen, until })
    })
}
