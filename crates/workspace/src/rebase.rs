//! Rebases a workspace onto the present base: changes of both sides are merged by lines, conflicts are kept and
//! reported. Only the writable layer is changed, each file atomically; the base is never written to.
//!
//! ```text
//! plan (reads only) ─▶ write the note of intended results ─▶ write files ─▶ (caller stores anchors) ─▶ remove the note
//! ```
//!
//! An interrupted rebase is simply repeated: a file that already has its noted result is left alone, so that conflict
//! markers are never merged again.

use crate::anchor::{Anchors, BaseStat};
use crate::attributes::{self, Marks};
use crate::dir::{Dir, Meta, is_absent};
use crate::entry::digest;
use crate::git::CommittedFile;
use crate::layer::Stack;
use crate::merge::{self, Merged};
use crate::place;
use crate::sweep;
use crate::top::{Put, TopLayer};
use crate::{known, stage, trouble};
use api::{
    Change, ChangeClass, ChangeKind, ChangeSide, Diff, Driver, FileDiff, FileKind, RebaseFate, RebasedFile, Rel,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::io::Read;
use terms::Fault;

/// Plan and result of a rebase.
#[derive(Debug)]
pub struct Rebase {
    pub moved: Vec<RebasedFile>,
    /// Anchors of the workspace afterwards.
    pub anchors: Anchors,
    acts: Vec<IntendedWrite>,
}

/// Intended write, recorded so that it is recognised after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IntendedWrite {
    path: Rel,
    /// Digest of the base's file.
    theirs: Option<String>,
    /// Digest of the result in the workspace.
    result: Option<String>,
    fate: RebaseFate,
}

/// Name of the note, beside the layer's `up`.
const NOTE: &str = "rebase";

/// Merge base of a path: its content before both sides changed it.
pub type MergeBase<'a> = &'a dyn Fn(&Rel) -> Result<CommittedFile, Fault>;

/// Time of the clock that stamps files, a little before now: every earlier change has an earlier stamp.
pub fn now() -> (i64, u32) {
    const TICKS: i64 = 20_000_000;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    match now.tv_nsec >= TICKS {
        true => (now.tv_sec, (now.tv_nsec - TICKS) as u32),
        false => (now.tv_sec - 1, (now.tv_nsec + 1_000_000_000 - TICKS) as u32),
    }
}

/// Examines every change whose file in the base has drifted. `diff` is current and withholds no path of the base.
pub fn plan(stack: &Stack, diff: &Diff, anchors: &Anchors, before: MergeBase<'_>) -> Result<Rebase, Fault> {
    let noted = noted(stack)?;
    let mut rebase = Rebase { moved: Vec::new(), anchors: Anchors::default(), acts: Vec::new() };
    for file in &diff.files {
        let change = &file.change;
        for path in [Some(&change.path), change.kind.from()].into_iter().flatten() {
            if let Some(seen) = anchors.get(path) {
                rebase.anchors.set(path, *seen);
            }
        }
        if matches!(change.class, ChangeClass::Never { .. }) || !concerns(file, anchors, before)? {
            continue;
        }
        let decision = decide(stack, change, before)?;
        for (path, seen) in decision.seen {
            rebase.anchors.set(&path, seen);
        }
        let ours = change.after.as_ref().and_then(|after| after.digest.clone());
        let theirs = change.before.as_ref().and_then(|before| before.digest.clone());
        if let Some(done) = noted.get(&change.path).filter(|n| n.result == ours && n.theirs == theirs) {
            rebase.moved.push(RebasedFile { path: change.path.clone(), fate: done.fate.clone(), digest: ours });
            rebase.acts.push((*done).clone());
            continue;
        }
        let result = match &decision.act {
            RebaseAction::Nothing => ours.clone(),
            RebaseAction::Write(bytes) => Some(digest(bytes)),
            RebaseAction::Follow => theirs.clone(),
        };
        if !matches!(decision.act, RebaseAction::Nothing) {
            let (path, result, fate) = (change.path.clone(), result.clone(), decision.fate.clone());
            rebase.acts.push(IntendedWrite { path, theirs, result, fate });
        }
        rebase.moved.push(RebasedFile { path: change.path.clone(), fate: decision.fate, digest: result });
    }
    Ok(rebase)
}

impl Rebase {
    /// Writes the results. The caller holds the layer's lock and stores `anchors` afterwards.
    pub fn carry_out(&self, stack: &Stack, diff: &Diff, before: MergeBase<'_>) -> Result<(), Fault> {
        let Some(layer) = stack.layers.last() else { return Ok(()) };
        let fail = |at: &Rel, e: io::Error| trouble::with(at, "bring it onto the base", &e);
        stage::write_durably(&layer.dir, NOTE, &self.acts).map_err(|e| fail(&Rel::top(), e))?;
        let top = TopLayer::of(stack).map_err(|e| fail(&Rel::top(), e))?;
        let files: BTreeMap<&Rel, &FileDiff> = diff.files.iter().map(|file| (&file.change.path, file)).collect();
        for noted in &self.acts {
            let Some(file) = files.get(&noted.path) else { continue };
            if file.change.after.as_ref().and_then(|after| after.digest.as_ref()) == noted.result.as_ref() {
                continue;
            }
            // Merged again instead of kept in memory; the result must match the note.
            let decision = decide(stack, &file.change, before)?;
            perform(&top, stack, &file.change, decision.act, noted)?;
        }
        sweep::drop_redundant(stack, &top, &mentioned(diff))?;
        known::keep(stack, self, diff)
            .map_err(|e| trouble::with(&"the workspace", "keep copies of the base's files", &e))
    }

    /// Removes the note; called once the anchors are stored.
    pub fn forget(stack: &Stack) -> io::Result<()> {
        let Some(layer) = stack.layers.last() else { return Ok(()) };
        match rustix::fs::unlinkat(&layer.dir, NOTE, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub fn conflicts(&self) -> impl Iterator<Item = &RebasedFile> {
        self.moved.iter().filter(|moved| matches!(moved.fate, RebaseFate::Conflict { .. }))
    }
}

fn noted(stack: &Stack) -> Result<BTreeMap<Rel, IntendedWrite>, Fault> {
    let Some(layer) = stack.layers.last() else { return Ok(BTreeMap::new()) };
    let found: Option<Vec<IntendedWrite>> =
        stage::read_back(&layer.dir, NOTE).map_err(|e| trouble::with(&"the workspace", "read a note in it", &e))?;
    Ok(found.unwrap_or_default().into_iter().map(|noted| (noted.path.clone(), noted)).collect())
}

/// Paths that a diff mentions.
fn mentioned(diff: &Diff) -> BTreeSet<Rel> {
    let changes = diff.files.iter().map(|file| &file.change);
    changes.flat_map(|change| [Some(&change.path), change.kind.from()]).flatten().cloned().collect()
}

/// True if the base drifted under a change. For a file that the base no longer has, only its merge base tells.
fn concerns(file: &FileDiff, anchors: &Anchors, before: MergeBase<'_>) -> Result<bool, Fault> {
    let change = &file.change;
    if change.drifted {
        return Ok(true);
    }
    let is_file = change.after.as_ref().is_some_and(|after| after.kind == FileKind::File);
    if change.kind != ChangeKind::Added || !is_file || anchors.get(&change.path).is_some() {
        return Ok(false);
    }
    Ok(matches!(before(&change.path)?, CommittedFile::File(_)))
}

struct Decision {
    fate: RebaseFate,
    act: RebaseAction,
    /// Base metadata on which the decision is based.
    seen: Vec<(Rel, BaseStat)>,
}

enum RebaseAction {
    Nothing,
    Write(Vec<u8>),
    /// Takes over the base's version.
    Follow,
}

fn decide(stack: &Stack, change: &Change, before: MergeBase<'_>) -> Result<Decision, Fault> {
    let source = change.kind.from().unwrap_or(&change.path);
    let fail = |e: io::Error| trouble::with(source, "compare it with the base", &e);
    let mut seen = Vec::new();
    for path in [Some(&change.path), change.kind.from()].into_iter().flatten() {
        seen.push((path.clone(), BaseStat::of(meta_at(&stack.base, path).map_err(fail)?.as_ref())));
    }
    let conflict = |why: &str| (RebaseFate::Conflict { why: why.to_owned(), marks: false }, RebaseAction::Nothing);
    let (fate, act) = match (&change.before, &change.after) {
        (None, None) => (RebaseFate::Kept, RebaseAction::Nothing),
        (Some(theirs), None) => match before(source)? {
            was if equals_merge_base(theirs, &was) => (RebaseFate::Kept, RebaseAction::Nothing),
            // A copied tree lacks files that the base got later; that is not a deletion.
            CommittedFile::Absent if stack.driver != Driver::Overlay && theirs.kind == FileKind::File => {
                (RebaseFate::Dropped, RebaseAction::Follow)
            }
            _ => conflict("deleted in the workspace, changed in the base"),
        },
        (None, Some(ours)) => match equals_merge_base(ours, &before(source)?) {
            true => (RebaseFate::Dropped, RebaseAction::Follow),
            false => conflict("changed in the workspace, deleted in the base"),
        },
        (Some(theirs), Some(ours)) => both(stack, change, source, (theirs, ours), before)?,
    };
    Ok(Decision { fate, act, seen })
}

/// Decides for a path with an entry on both sides.
fn both(
    stack: &Stack,
    change: &Change,
    source: &Rel,
    (theirs, ours): (&ChangeSide, &ChangeSide),
    before: MergeBase<'_>,
) -> Result<(RebaseFate, RebaseAction), Fault> {
    let conflict = |why: String| Ok((RebaseFate::Conflict { why, marks: false }, RebaseAction::Nothing));
    let was = before(source)?;
    match (theirs.kind, ours.kind) {
        (FileKind::Dir, FileKind::Dir) => return Ok((RebaseFate::Kept, RebaseAction::Nothing)),
        (FileKind::File, FileKind::File) => {}
        _ if equals_merge_base(theirs, &was) => return Ok((RebaseFate::Kept, RebaseAction::Nothing)),
        (a, b) if a == b => return conflict(format!("both sides changed a {}", word(b))),
        (a, b) => return conflict(format!("a {} in the workspace, a {} in the base", word(b), word(a))),
    }
    if theirs.size.max(ours.size) > merge::LARGEST as u64 {
        return match equals_merge_base(theirs, &was) {
            true => Ok((RebaseFate::Kept, RebaseAction::Nothing)),
            false => conflict("too large to be merged".into()),
        };
    }
    let (base_text, own_text) = read_both(stack, change, source, (theirs, ours))?;
    let old = match &was {
        CommittedFile::File(bytes) => Some(&bytes[..]),
        CommittedFile::Absent | CommittedFile::Unknown => None,
    };
    let alike = (theirs.mode, &theirs.xattrs) == (ours.mode, &ours.xattrs);
    Ok(match merge::merge(old, &own_text, &base_text) {
        Merged::Clean(text) if text == base_text && alike && change.kind.from().is_none() => {
            (RebaseFate::Dropped, RebaseAction::Follow)
        }
        Merged::Clean(text) if text == own_text => (RebaseFate::Kept, RebaseAction::Nothing),
        Merged::Clean(text) => (RebaseFate::Merged, RebaseAction::Write(text)),
        Merged::Conflict { text, places } => {
            let known = if old.is_some() { "" } else { "; the common ancestor is not known" };
            let what = if places == 1 { "one place".to_owned() } else { format!("{places} places") };
            (
                RebaseFate::Conflict { why: format!("both sides changed {what}{known}"), marks: true },
                RebaseAction::Write(text),
            )
        }
        Merged::Unmergeable => return conflict("not text, and both sides changed it".into()),
    })
}

fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Dir => "directory",
        FileKind::Symlink => "link",
        other => other.name(),
    }
}

/// True if an entry equals the merge base: bytes of a file or target of a link.
fn equals_merge_base(entry: &ChangeSide, was: &CommittedFile) -> bool {
    match was {
        CommittedFile::File(bytes) => entry.digest.as_deref() == Some(digest(bytes).as_str()),
        CommittedFile::Absent | CommittedFile::Unknown => false,
    }
}

/// Reads the base's and the workspace's text, which must match the digests in the diff.
fn read_both(
    stack: &Stack,
    change: &Change,
    source: &Rel,
    (theirs, ours): (&ChangeSide, &ChangeSide),
) -> Result<(Vec<u8>, Vec<u8>), Fault> {
    let read = |file: io::Result<std::fs::File>| {
        let mut bytes = Vec::new();
        file?.take(merge::LARGEST as u64 + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let base = place::parent_of(&stack.base, source).and_then(|(dir, name)| dir.file(&Rel::top().join(name)));
    let base = read(base).map_err(|e| trouble::with(source, "read it in the base", &e))?;
    let own =
        read(stack.file(&change.path)).map_err(|e| trouble::with(&change.path, "read it in the workspace", &e))?;
    let matches_diff = |bytes: &[u8], entry: &ChangeSide| entry.digest.as_deref() == Some(digest(bytes).as_str());
    match matches_diff(&base, theirs) && matches_diff(&own, ours) {
        true => Ok((base, own)),
        false => Err(trouble::moved(source)),
    }
}

fn perform(
    top: &TopLayer<'_>,
    stack: &Stack,
    change: &Change,
    act: RebaseAction,
    noted: &IntendedWrite,
) -> Result<(), Fault> {
    let path = &change.path;
    let fail = |e: io::Error| trouble::with(path, "write it into the workspace", &e);
    match act {
        RebaseAction::Nothing => Ok(()),
        RebaseAction::Write(bytes) if Some(digest(&bytes)) == noted.result => {
            write(top, stack, path, &bytes).map_err(fail)
        }
        RebaseAction::Write(_) => Err(trouble::moved(path)),
        RebaseAction::Follow => match change.before {
            _ if top.shows_base(path).map_err(fail)? => {
                top.remove_entry(path).and_then(|()| top.prune(path)).map_err(fail)
            }
            None => top.hide(path).map_err(fail),
            // A lower layer has its own version, or the tree is a copy: the base's bytes are written on top.
            Some(_) => {
                let (dir, name) = place::parent_of(&stack.base, path).map_err(fail)?;
                let mut file = dir.file(&Rel::top().join(name)).map_err(fail)?;
                let mut bytes = Vec::new();
                (&mut file).take(merge::LARGEST as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
                match Some(digest(&bytes)) == noted.result {
                    true => write(top, stack, path, &bytes).map_err(fail),
                    false => Err(trouble::moved(path)),
                }
            }
        },
    }
}

/// Writes other bytes with the same mode and attributes; those of the base if the workspace has no such file.
fn write(top: &TopLayer<'_>, stack: &Stack, path: &Rel, mut bytes: &[u8]) -> io::Result<()> {
    let (mode, layer, file) = match stack.meta(path)? {
        Some(found) => (found.meta.mode, found.layer, stack.file(path)?),
        None => {
            let (dir, name) = place::parent_of(&stack.base, path)?;
            let meta = dir.meta_of(name)?.ok_or(io::ErrorKind::NotFound)?;
            (meta.mode, None, dir.file(&Rel::top().join(name))?)
        }
    };
    let marks = match (layer, stack.driver) {
        (None, _) => Marks::Foreign,
        (Some(_), Driver::Overlay) => Marks::Mean,
        (Some(_), _) => Marks::Plain,
    };
    let carried = attributes::read(file, marks)?;
    top.put(path, Put::File { bytes: &mut bytes, mode, mtime: None, carried })
}

/// Metadata of a path, links not followed, also beyond PATH_MAX.
pub(crate) fn meta_at(top: &Dir, at: &Rel) -> io::Result<Option<Meta>> {
    match place::parent_of(top, at) {
        Ok((dir, name)) => dir.meta_of(name),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}
