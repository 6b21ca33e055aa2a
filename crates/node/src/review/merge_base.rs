//! Merge bases of files: the contents that a sandbox last saw, from copies that batches keep of the files they replaced, and from
//! the commit that the base was at.

use api::{Change, ChangeKind, ChangeSide, Diff, Rel};
use state::batch::{self, Batch, Paths};
use state::sandbox::Sandbox;
use state::{Caller, State};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use store::Kept;
use terms::Fault;
use workspace::git::{CommitFiles, CommittedFile, GitEnvironment};
use workspace::plan::{Plan, Shape, StepAction};
use workspace::{Anchors, BaseStat, Dir, Stack, merge, sight, stage, undo};

pub struct MergeBases {
    copies: BTreeMap<Rel, (Dir, u32)>,
    commit: Option<CommitFiles>,
    /// Reasons for missing merge bases.
    pub notes: Vec<String>,
}

/// Most batches that are searched for copies, the last ones first.
const MOST_BATCHES: usize = 256;

impl MergeBases {
    /// Looks up the merge bases that a rebase may need.
    pub fn of(
        state: &State,
        caller: &Caller,
        sandbox: &Kept<Sandbox>,
        anchors: &Anchors,
        diff: &Diff,
    ) -> Result<MergeBases, Fault> {
        let asked = asked(diff);
        let copies = copies(state, &sandbox.record, anchors, &asked)?;
        let asked: Vec<Rel> = asked.into_iter().filter(|path| !copies.contains_key(path)).collect();
        let mut notes = Vec::new();
        let commit = match &sandbox.record.git_head {
            Some(commit) if !asked.is_empty() => {
                let surroundings = GitEnvironment { env: &caller.env };
                // Without git the rebase finds fewer merge bases, and is still correct.
                CommitFiles::look_up(&sandbox.record.base, &surroundings, commit, &asked).unwrap_or_else(|fault| {
                    notes.push(format!("git could not be asked for earlier versions of files: {}", fault.message));
                    None
                })
            }
            _ => None,
        };
        Ok(MergeBases { copies, commit, notes })
    }

    pub fn of_file(&self, path: &Rel) -> Result<CommittedFile, Fault> {
        const MOST: u64 = merge::LARGEST as u64;
        if let Some((dir, number)) = self.copies.get(path) {
            let name = Rel::top().join(number.to_string().as_bytes());
            let read = dir.file(&name).and_then(|file: File| {
                let mut bytes = Vec::new();
                file.take(MOST + 1).read_to_end(&mut bytes).map(|_| bytes)
            });
            return Ok(match read {
                Ok(bytes) if bytes.len() as u64 <= MOST => CommittedFile::File(bytes),
                _ => CommittedFile::Unknown,
            });
        }
        match &self.commit {
            Some(old) => old.contents(path, MOST),
            None => Ok(CommittedFile::Unknown),
        }
    }
}

/// Returns the files whose base drifted, and the new files, which the base may have had.
fn asked(diff: &Diff) -> BTreeSet<Rel> {
    let changes = diff.files.iter().map(|file| &file.change);
    let moved = changes.filter(|change| change.drifted || change.kind == ChangeKind::Added);
    moved.map(|change| change.kind.from().unwrap_or(&change.path).clone()).collect()
}

/// Reads copies with the exact metadata that the sandbox knew; the batch that replaced the file kept one.
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

/// Clears the drift mark of files whose contents are again those that the sandbox knew, by a recorded digest or by the copy of a
/// batch. An undo restores the bytes with new timestamps.
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
        // The target of a move must be as free as it was.
        let is_free = matches!(anchors.get(&change.path), None | Some(BaseStat::Absent));
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

fn is_as(now: &ChangeSide, was: &Shape) -> bool {
    let same_bytes = now.digest.is_some() && now.digest == was.digest;
    same_bytes && now.kind == was.kind && now.mode == was.mode && now.xattrs == was.xattrs
}

/// A file or link that a batch replaced or removed.
struct ReplacedFile<'a> {
    path: &'a Rel,
    shape: &'a Shape,
    /// Metadata of the file.
    seen: BaseStat,
    /// Time of the replacement, by the clock that stamps files.
    until: (i64, u32),
}

impl ReplacedFile<'_> {
    /// Returns true if it is the version that a sandbox knows. Without an anchor that is the version at the time the sandbox was
    /// made: an older one may have been replaced before.
    fn is_known(&self, anchors: &Anchors, since: (i64, u32)) -> bool {
        match (anchors.get(self.path), &self.seen) {
            (Some(known), seen) => known == seen,
            (None, BaseStat::Present { ctime, .. }) => *ctime <= since && since < self.until,
            (None, BaseStat::Absent) => false,
        }
    }
}

/// Callback with the id and directory of a batch, and the file it replaced.
type OnReplaced<'a> = dyn FnMut(&str, &Dir, &ReplacedFile<'_>) -> Result<(), Fault> + 'a;

/// Reports for these paths the files that batches over the base replaced, the last batch first.
fn replaced(state: &State, sandbox: &Sandbox, asked: &BTreeSet<Rel>, tell: &mut OnReplaced<'_>) -> Result<(), Fault> {
    let Some(base) = sandbox.base.to_str().filter(|_| !asked.is_empty()) else { return Ok(()) };
    let mut batches = state.store.read(|tx| tx.list_in::<Batch>(base))?;
    batches.sort_by_key(|batch| std::cmp::Reverse(batch.record.at_ms));
    for batch in batches.into_iter().take(MOST_BATCHES) {
        let paths = state.store.read(|tx| tx.get::<Paths>(&batch.id))?;
        if !paths.is_some_and(|kept| kept.record.paths.iter().any(|path| asked.contains(path))) {
            continue;
        }
        // A batch whose copies were collected has nothing to read.
        let Ok(Some(dir)) = batch::copies(state, &batch.id) else { continue };
        let Ok(plan) = undo::read_plan(&dir, &batch.id) else { continue };
        // The plan is written before the first replacement.
        let Ok(Some(written)) = dir.meta_of(stage::PLAN.as_bytes()) else { continue };
        for was in replaced_by(&plan, written.mtime).filter(|was| asked.contains(was.path)) {
            tell(&batch.id, &dir, &was)?;
        }
    }
    Ok(())
}

fn replaced_by(plan: &Plan, until: (i64, u32)) -> impl Iterator<Item = ReplacedFile<'_>> {
    let old = plan.steps.iter().filter_map(|step| match &step.act {
        StepAction::Swap { old, .. } | StepAction::Remove { old } if !old.is_dir => Some((&step.at, old)),
        _ => None,
    });
    let old: BTreeMap<&Rel, _> = old.collect();
    plan.items.iter().filter_map(move |item| {
        let (shape, piece) = (item.before.as_ref()?, old.get(&item.at)?);
        let seen = BaseStat::Present { ino: piece.id.ino, size: piece.size, mode: shape.mode, ctime: piece.ctime };
        Some(ReplacedFile { path: &item.at, shape, seen, until })
    })
}
