//! `undo`: reverts a landed batch, completely or not at all, unless the base has changed since. Works when the sandbox is gone;
//! if it exists, the changes are pending in it again.

use super::reject;
use api::{BatchVerb, FileKind, LandedChange, Receipt, Rel};
use runtime::Node;
use runtime::liveness;
use state::batch::{self, Batch};
use state::landing::{self, LandingJob, PATIENCE};
use state::landing_recovery;
use state::lock::{LockAttempt, LockResult};
use state::sandbox::Sandbox;
use state::sandbox::{self, Which};
use state::{Caller, State};
use std::collections::BTreeSet;
use std::path::Path;
use store::{Kept, Tx};
use terms::clock::{date, now_ms};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use workspace::land::BaseLock;
use workspace::plan::{PlanItem, Shape};
use workspace::{Dir, Lock};

/// Reverts a batch: by id or the beginning of one, else the last of a sandbox, else the last that landed in the current
/// directory.
pub fn undo(node: &Node, caller: &Caller, word: Option<&str>) -> Result<Receipt, Fault> {
    let state = node.states.open(caller)?;
    let target = state.store.read(|tx| find(tx, word, caller))?;
    undo_found(node, &state, caller, target)
}

/// Reverts a batch of one sandbox, which may be gone if its whole id is given; by default the last one that is not undone.
pub fn undo_of(node: &Node, caller: &Caller, which: &Which, batch: Option<&str>) -> Result<Receipt, Fault> {
    let state = node.states.open(caller)?;
    let word = which.word.as_deref().unwrap_or_default();
    let target = state.store.read(|tx| {
        let there = match state::sandbox::pick(tx, which, caller) {
            Err(fault) if fault.error_kind == ErrorKind::NotFound && batch.is_some() => None,
            found => Some(found?.id),
        };
        let found = find(tx, batch.or(there.as_deref()), caller)?;
        let is_its = found.record.sandbox == there.as_deref().unwrap_or(word);
        if is_its { Ok(found) } else { Err(unknown(batch.unwrap_or(word))) }
    })?;
    undo_found(node, &state, caller, target)
}

fn undo_found(node: &Node, state: &State, caller: &Caller, target: Kept<Batch>) -> Result<Receipt, Fault> {
    let base = open_base(&target)?;
    let held = BaseLock::take(&base, PATIENCE)?;
    landing_recovery::recover_held(state, &base, target.record.base.to_str().unwrap_or_default(), &held)?;
    // Another undo may have finished while we waited.
    let target = state.store.read(|tx| by_id(tx, &target.id))?;
    if let Some(by) = &target.record.undone_by {
        let fault = Fault::new(ErrorKind::Conflict, format!("{} was undone by {by} already", target.id));
        let hint = "`cofferdam provenance` shows the approvals in effect";
        return Err(fault.hint(hint).subject(&target.id).phase(Phase::Review));
    }
    take_back(node, state, caller, &target, &base, &held).map_err(|fault| fault.subject(&target.id))
}

fn take_back(
    node: &Node,
    state: &State,
    caller: &Caller,
    target: &Kept<Batch>,
    base: &Dir,
    held: &BaseLock,
) -> Result<Receipt, Fault> {
    let dir = batch::copies(state, &target.id)?.ok_or_else(|| collected(target))?;
    let (plan, landed) = workspace::undo::read(&dir, &target.id)?;
    let (goals, mut notes) = workspace::undo::goals(base, &plan, &landed)?;
    // Held until the end: the sandbox's knowledge of its base changes with it.
    let _lock = put_back(node, state, target, &plan)?;
    let batch = Batch {
        verb: BatchVerb::Undo,
        actor: caller.user.clone(),
        at_ms: now_ms(),
        undoes: Some(target.id.clone()),
        undone_by: None,
        commit: None,
        inside: Vec::new(),
        files: goals.len() as u64,
        ..target.record.clone()
    };
    let job = LandingJob { state, batch, base, view: None, undone: Some(&dir), goals };
    let done = landing::land(job, held, &|_| Ok(Shape::dir(0o755)))?;
    notes.extend(done.notes);
    notes.extend(target.record.inside.iter().map(|one| commit_stays(&format!("{} in {}", one.commit, one.path))));
    notes.extend(target.record.commit.as_deref().map(commit_stays));
    let landed = named(&done.plan.items).map(taken_back).collect();
    Ok(Receipt {
        protocol_version: PROTOCOL_VERSION,
        success: true,
        batch: done.id,
        sandbox: target.record.sandbox.clone(),
        digest: target.record.digest.clone(),
        landed,
        left: Vec::new(),
        left_more: 0,
        notes,
        commit: None,
        inside: Vec::new(),
        undoes: Some(target.id.clone()),
    })
}

/// Notes that a commit stays: other commits may be built on it.
fn commit_stays(commit: &str) -> String {
    format!("the commit {commit} stays in the history; commit the files as they are now to take it back there, too")
}

/// Returns the items that were listed at the landing: directories that came or went together with their contents were not.
fn named(items: &[PlanItem]) -> impl Iterator<Item = &PlanItem> {
    let whole = |item: &PlanItem| matches!((&item.before, &item.after), (None, Some(s)) | (Some(s), None) if s.kind == FileKind::Dir);
    let holders: BTreeSet<Rel> = items.iter().filter_map(|item| item.at.split()).map(|(above, _)| above).collect();
    items.iter().filter(move |item| !whole(item) || !holders.contains(&item.at))
}

fn taken_back(item: &PlanItem) -> LandedChange {
    let kind = match (&item.before, &item.after) {
        (None, _) => "added",
        (_, None) => "deleted",
        _ => "modified",
    };
    LandedChange { path: item.at.clone(), kind: kind.to_owned(), from: None, hunks: None }
}

/// Writes changes to the sandbox's layer again that were dropped when they landed, before the base changes.
fn put_back(
    node: &Node,
    state: &State,
    target: &Kept<Batch>,
    plan: &workspace::plan::Plan,
) -> Result<Option<Lock>, Fault> {
    let Batch { sandbox, base, verb, .. } = &target.record;
    let there = state.store.read(|tx| tx.get::<Sandbox>(sandbox))?;
    if there.is_none_or(|kept| kept.record.base != *base) {
        return Ok(None);
    }
    let LockAttempt { sandbox, result } = liveness::lock_patiently(node, state, sandbox)?;
    match (verb, result) {
        // An undo dropped nothing from the workspace.
        (BatchVerb::Undo, LockResult::Locked(lock)) => Ok(lock),
        (BatchVerb::Undo, LockResult::Busy) => Ok(None),
        (BatchVerb::Approve, LockResult::Locked(lock)) => {
            workspace::undo::put_back(&sandbox::stack(state, &sandbox)?, plan)?;
            Ok(lock)
        }
        (BatchVerb::Approve, LockResult::Busy) => Err(reject::running(&sandbox.id)),
    }
}

fn open_base(target: &Kept<Batch>) -> Result<Dir, Fault> {
    let Batch { base, base_id, .. } = &target.record;
    let conflict = |why: String| {
        let fault = Fault::new(ErrorKind::Conflict, format!("{}: {why}", base.display())).subject(&target.id);
        fault.hint("put the directory back where it was").phase(Phase::Admission)
    };
    let opened = Dir::open(base).map_err(|e| conflict(e.to_string()))?;
    match opened.meta(&Rel::top()).map_err(|e| conflict(e.to_string()))? {
        Some(now) if now.ino == base_id.1 => Ok(opened),
        _ => Err(conflict(format!("not the directory that {} landed in", target.id))),
    }
}

fn by_id(tx: &Tx<'_>, id: &str) -> Result<Kept<Batch>, Fault> {
    tx.get(id)?.ok_or_else(|| unknown(id))
}

fn find(tx: &Tx<'_>, word: Option<&str>, caller: &Caller) -> Result<Kept<Batch>, Fault> {
    match word {
        Some(word) if word.starts_with("bat_") => {
            let mut alike: Vec<Kept<Batch>> = match tx.get(word)? {
                Some(found) => vec![found],
                None => tx.list()?,
            };
            alike.retain(|batch| batch.id == word || word.len() >= 8 && batch.id.starts_with(word));
            caller.keep_own(tx, &mut alike, |batch| &batch.record.sandbox)?;
            match (alike.len(), alike.pop()) {
                (1, Some(found)) => Ok(found),
                (0, _) => Err(unknown(word)),
                _ => Err(Fault::invalid(format!("several batches begin with {word:?}")).hint("give more of the id")),
            }
        }
        Some(word) if word.starts_with('/') => of_directory(tx, Path::new(word), caller),
        Some(word) => {
            let sandbox = sandbox::find(tx, Some(word), caller)?;
            let base = sandbox.record.base.to_str().unwrap_or_default().to_owned();
            let of_it = tx.list_in::<Batch>(&base)?.into_iter().filter(|b| b.record.sandbox == sandbox.id);
            last(of_it).ok_or_else(|| unknown(word))
        }
        None => of_directory(tx, &caller.cwd, caller),
    }
}

/// Returns the caller's last batch in a directory, or in the nearest directory above that has one.
fn of_directory(tx: &Tx<'_>, dir: &Path, caller: &Caller) -> Result<Kept<Batch>, Fault> {
    for above in dir.ancestors().filter_map(Path::to_str) {
        let mut batches = tx.list_in::<Batch>(above)?;
        caller.keep_own(tx, &mut batches, |batch| &batch.record.sandbox)?;
        if let Some(found) = last(batches.into_iter()) {
            return Ok(found);
        }
    }
    Err(unknown(&dir.display().to_string()))
}

/// Returns the last batch that is not undone.
fn last(batches: impl Iterator<Item = Kept<Batch>>) -> Option<Kept<Batch>> {
    let standing = |b: &Kept<Batch>| b.record.verb == BatchVerb::Approve && b.record.undone_by.is_none();
    batches.filter(standing).max_by_key(|b| b.record.at_ms)
}

fn collected(target: &Kept<Batch>) -> Fault {
    let when = date(target.record.at_ms / 1000);
    let message = format!("{} landed on {when}, and the files that it replaced were collected since", target.id);
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission);
    fault.hint("it can no longer be undone; `cofferdam provenance` still shows its changes")
}

fn unknown(word: &str) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("no batch to undo matches {word:?}"));
    fault.hint("`cofferdam provenance .` lists what landed here").phase(Phase::Admission)
}
