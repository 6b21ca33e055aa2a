//! Executes a plan of renames, rolls it back, and removes temporary files. Progress is read from the tree each time,
//! so every phase can be interrupted anywhere and resumed, by this process or by one that finds its traces.
//!
//! ```text
//! staged ──▶ carry_out ──▶ landed ──▶ tidy
//!                │
//!                └──▶ roll_back ──▶ tidy
//! ```

use crate::dir::{Dir, is_absent};
use crate::place::{self, FileFacts, Identity};
use crate::plan::{DirProperties, LandingStep, Piece, Plan, StepAction};
use crate::{stage, trouble};
use api::{FileKind, Rel};
use rustix::fs::{AtFlags, FlockOperation, RenameFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Exclusive lock (flock) on a base directory; released when dropped, or by the kernel when the process ends.
#[derive(Debug)]
pub struct BaseLock {
    _held: OwnedFd,
}

impl BaseLock {
    /// Waits for the lock: approvals of several workspaces over one base land one after the other.
    pub fn take(base: &Dir, patience: Duration) -> Result<BaseLock, Fault> {
        let fail = |e: io::Error| trouble::with(&"the base directory", "hold it", &e);
        let until = Instant::now() + patience;
        loop {
            if let Some(held) = BaseLock::try_take(base).map_err(fail)? {
                return Ok(held);
            }
            if Instant::now() >= until {
                let fault = Fault::new(ErrorKind::Unavailable, "another approval is landing in the same directory");
                return Err(fault.hint("try again when it is done").retry(Retry::Later).phase(Phase::Application));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn try_take(base: &Dir) -> io::Result<Option<BaseLock>> {
        let held = OwnedFd::from(base.dir(&Rel::top())?);
        match rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(BaseLock { _held: held })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// A plan, its base, and handles on the directories in which steps were done: a rollback happens there, even if
/// another process moved them meanwhile.
#[derive(Debug)]
pub struct Landing<'a> {
    base: &'a Dir,
    plan: &'a Plan,
    /// Directories that are removed or replaced, and the steps that move them aside.
    leaving: BTreeMap<&'a Rel, &'a LandingStep>,
    open: BTreeMap<Rel, Dir>,
    /// Remaining retries for directories that are not at their path.
    patience: Cell<u32>,
}

/// State of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepState {
    Undone,
    Done,
    /// Another process has interfered.
    Interfered,
}

/// Bound on the open directory handles.
const MOST_OPEN: usize = 256;

/// Messages about paths that could not be restored.
pub type Troubles = Vec<String>;

impl<'a> Landing<'a> {
    pub fn new(base: &'a Dir, plan: &'a Plan) -> Landing<'a> {
        let leaves = |step: &&LandingStep| matches!(&step.act, StepAction::Remove { old } | StepAction::Swap { old, .. } if old.is_dir);
        let leaving = plan.steps.iter().filter(leaves).map(|step| (&step.at, step)).collect();
        Landing { base, plan, leaving, open: BTreeMap::new(), patience: Cell::new(stage::PATIENCE) }
    }

    /// Executes every step that is not done yet. After a fault the caller calls `roll_back`.
    pub fn carry_out(&mut self) -> Result<(), Fault> {
        let plan = self.plan;
        for step in &plan.steps {
            let (dir, hold) = self.dirs_of(step)?;
            let failed = |e: io::Error| trouble::with(&step.at, "put it in its place", &e);
            self.remember(step, &dir, &hold).map_err(failed)?;
            match state_of(step, &dir, &hold).map_err(failed)? {
                StepState::Done => {}
                StepState::Undone => execute(step, &dir, &hold).map_err(|e| rename_fault(step, &e))?,
                StepState::Interfered => return Err(trouble::moved(&step.at)),
            }
        }
        let dirs = self.touched();
        let fail = |e: io::Error| trouble::with(&"the base directory", "sync it to disk", &e);
        stage::settle(self.base, dirs.iter(), dirs.len() <= SINGLY).map(drop).map_err(fail)
    }

    /// True if every step is done or can be done now.
    pub fn can_be_carried_out(&self) -> io::Result<bool> {
        for step in &self.plan.steps {
            let Ok((dir, hold)) = self.dirs_of(step) else { return Ok(false) };
            if state_of(step, &dir, &hold)? == StepState::Interfered {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Undoes the steps that are done, in reverse order. An error means: try again later. Troubles are paths where
    /// another process has interfered; its files are not touched, and the original is kept beside them.
    pub fn roll_back(&mut self) -> io::Result<Troubles> {
        let mut troubles = Troubles::new();
        let plan = self.plan;
        for step in plan.steps.iter().rev() {
            let Some((dir, hold)) = self.dirs_for_rollback(step)? else {
                troubles.push(format!("{}: its directory was moved or replaced", step.at));
                continue;
            };
            if !was_begun(step, &dir, &hold)? {
                continue;
            }
            match undo_step(step, &dir, &hold) {
                Ok(()) => {}
                Err(Errno::EXIST | Errno::NOENT | Errno::NOTEMPTY) => {
                    troubles.push(format!(
                        "{}: another process changed it meanwhile; the file that was there is kept as {}",
                        step.at, step.name
                    ));
                }
                Err(e) => return Err(e.into()),
            }
        }
        self.settle_present()?;
        Ok(troubles)
    }

    fn settle_present(&self) -> io::Result<()> {
        let dirs = self.touched();
        let present: Vec<&Rel> = dirs.iter().filter(|at| place::reach(self.base, at).is_ok()).collect();
        stage::settle(self.base, present, dirs.len() <= SINGLY).map(drop)
    }

    /// Paths restored by `roll_back`, with their present state.
    pub fn restored(&self) -> Result<crate::undo::Landed, Fault> {
        crate::undo::restored(self.base, self.plan)
    }

    /// Removes staged and set-aside files durably, so that a batch can be forgotten without leaving unknown files.
    /// Notes list files that are kept because another process wrote to them.
    pub fn tidy(&self) -> io::Result<Vec<String>> {
        let mut notes = Vec::new();
        for step in &self.plan.steps {
            if matches!(step.act, StepAction::Dress { .. }) {
                continue;
            }
            let Some(hold) = self.reopen(&step.hold, step.hold_id)? else { continue };
            let Some(found) = place::look(&hold, step.name.as_bytes())? else { continue };
            if !is_ours(step, &found) {
                notes.push(format!("{}: kept {} beside it: another process wrote to it meanwhile", step.at, step.name));
            } else if was_put_aside(step, &found) {
                match unlink(&hold, &step.name, found.kind) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {
                        notes.push(format!(
                            "{}: kept as {}: another process put files into it meanwhile",
                            step.at, step.name
                        ));
                    }
                    other => other?,
                }
            } else {
                crate::remove::tree(&hold, step.name.as_bytes())?;
            }
        }
        self.settle_present()?;
        Ok(notes)
    }

    /// Directory of a step and its staging directory, opened by path and verified by inode against the plan.
    fn dirs_of(&self, step: &LandingStep) -> Result<(Dir, Dir), Fault> {
        let above = step.at.split().map(|(above, _)| above).unwrap_or_default();
        let reach = |at: &Rel, id: Identity| match place::reach(self.base, at) {
            Ok(dir) => match place::look_at(&dir) {
                Ok(found) if found.id == id => Ok(dir),
                Ok(_) => Err(trouble::moved(&step.at)),
                Err(e) => Err(trouble::with(at, "look at it", &e)),
            },
            Err(e) if is_absent(&e) => Err(trouble::moved(&step.at)),
            Err(e) => Err(trouble::with(at, "go there", &e)),
        };
        let dir = reach(&above, step.parent)?;
        let hold = match above == step.hold {
            true => dir.try_clone().map_err(|e| trouble::with(&step.hold, "go there", &e))?,
            false => reach(&step.hold, step.hold_id)?,
        };
        Ok((dir, hold))
    }

    /// As `dirs_of`, for a rollback: by open handles, else by path. A directory that was set aside is found there.
    fn dirs_for_rollback(&self, step: &LandingStep) -> io::Result<Option<(Dir, Dir)>> {
        let above = step.at.split().map(|(above, _)| above).unwrap_or_default();
        let Some(hold) = self.reopen(&step.hold, step.hold_id)? else { return Ok(None) };
        let dir = match self.put_aside(&above, step.parent)? {
            Some(dir) => Some(dir),
            None => self.reopen(&above, step.parent)?,
        };
        Ok(dir.map(|dir| (dir, hold)))
    }

    fn reopen(&self, at: &Rel, id: Identity) -> io::Result<Option<Dir>> {
        if let Some(open) = self.open.get(at) {
            return open.try_clone().map(Some);
        }
        loop {
            match place::reach(self.base, at) {
                Ok(dir) if place::look_at(&dir)?.id == id => return Ok(Some(dir)),
                Err(e) if !is_absent(&e) => return Err(e),
                // Another process may be swapping the directory just now.
                _ if self.patience.get() > 0 => {
                    self.patience.set(self.patience.get() - 1);
                    std::thread::sleep(stage::PAUSE);
                }
                _ => return Ok(None),
            }
        }
    }

    fn put_aside(&self, at: &Rel, id: Identity) -> io::Result<Option<Dir>> {
        let Some(own) = self.leaving.get(at) else { return Ok(None) };
        let Some(hold) = self.reopen(&own.hold, own.hold_id)? else { return Ok(None) };
        match hold.dir(&Rel::top().join(own.name.as_bytes())) {
            Ok(dir) => Ok((place::look_at(&dir)?.id == id).then_some(dir)),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn remember(&mut self, step: &LandingStep, dir: &Dir, hold: &Dir) -> io::Result<()> {
        let above = step.at.split().map(|(above, _)| above).unwrap_or_default();
        for (at, dir) in [(&above, dir), (&step.hold, hold)] {
            if self.open.len() < MOST_OPEN && !self.open.contains_key(at) {
                self.open.insert(at.clone(), dir.try_clone()?);
            }
        }
        Ok(())
    }

    /// Directories whose entries change and that exist in the end.
    fn touched(&self) -> BTreeSet<Rel> {
        let mut dirs: BTreeSet<Rel> = BTreeSet::new();
        for step in &self.plan.steps {
            dirs.insert(step.hold.clone());
            if matches!(step.act, StepAction::Dress { .. }) {
                dirs.insert(step.at.clone());
            }
        }
        dirs
    }
}

/// Number of directories up to which each is synced by itself.
const SINGLY: usize = 32;

fn state_of(step: &LandingStep, dir: &Dir, hold: &Dir) -> io::Result<StepState> {
    let at = place::look(dir, name_of(step))?;
    let waits = place::look(hold, step.name.as_bytes())?;
    let (at, waits) = (at.as_ref(), waits.as_ref());
    Ok(match &step.act {
        StepAction::Place { new } if is(at, new) => StepState::Done,
        StepAction::Place { new } if at.is_none() && is(waits, new) => StepState::Undone,
        StepAction::Swap { new, .. } if is(at, new) => StepState::Done,
        StepAction::Swap { old, new } if is_untouched(at, old) && is(waits, new) => StepState::Undone,
        StepAction::Remove { old } if is(waits, old) => StepState::Done,
        StepAction::Remove { old } if is_untouched(at, old) && waits.is_none() => StepState::Undone,
        // Attributes are set again in either case: reading them first is not worth it.
        StepAction::Dress { dir, from, to } if is_dressed(at, *dir, &[from, to]) => StepState::Undone,
        _ => StepState::Interfered,
    })
}

/// True if the step has to be undone. For a removal the file under the batch's name suffices as proof: only the file
/// that stood at the path can have come there.
fn was_begun(step: &LandingStep, dir: &Dir, hold: &Dir) -> io::Result<bool> {
    let at = place::look(dir, name_of(step))?;
    let waits = || place::look(hold, step.name.as_bytes());
    Ok(match &step.act {
        StepAction::Place { new } | StepAction::Swap { new, .. } => is(at.as_ref(), new),
        StepAction::Remove { .. } => waits()?.is_some(),
        StepAction::Dress { dir, from, to } => is_dressed(at.as_ref(), *dir, &[from, to]),
    })
}

fn name_of(step: &LandingStep) -> &[u8] {
    step.at.split().map(|(_, name)| name).unwrap_or_default()
}

/// True for this directory with one of these modes, ignoring owner write permission, which an interrupted step may
/// have added.
fn is_dressed(found: Option<&FileFacts>, dir: Identity, looks: &[&DirProperties]) -> bool {
    let bits = |mode: u32| mode | 0o200;
    found.is_some_and(|now| now.id == dir && looks.iter().any(|look| bits(look.mode) == bits(now.mode)))
}

/// True if the staged file has the bytes that we wrote, or the set-aside one those that were saved; otherwise another
/// process wrote to it.
fn is_ours(step: &LandingStep, found: &FileFacts) -> bool {
    let same = |piece: &Piece| piece.is_dir || (piece.size == found.size && piece.mtime == found.mtime);
    pieces(step).iter().any(|piece| is(Some(found), piece) && same(piece))
}

fn was_put_aside(step: &LandingStep, found: &FileFacts) -> bool {
    matches!(&step.act, StepAction::Remove { old } | StepAction::Swap { old, .. } if is(Some(found), old))
}

fn pieces(step: &LandingStep) -> Vec<Piece> {
    match &step.act {
        StepAction::Place { new } => vec![*new],
        StepAction::Swap { old, new } => vec![*old, *new],
        StepAction::Remove { old } => vec![*old],
        StepAction::Dress { .. } => Vec::new(),
    }
}

fn is(found: Option<&FileFacts>, piece: &Piece) -> bool {
    found.is_some_and(|f| f.id == piece.id && (f.kind == FileKind::Dir) == piece.is_dir)
}

/// True for the file that was planned for, with an unchanged ctime. A directory's times change with its contents,
/// which are checked when it is removed.
fn is_untouched(found: Option<&FileFacts>, piece: &Piece) -> bool {
    is(found, piece) && found.is_some_and(|f| piece.is_dir || f.ctime == piece.ctime)
}

fn execute(step: &LandingStep, dir: &Dir, hold: &Dir) -> io::Result<()> {
    let name = name_of(step);
    let rename = |flags| rustix::fs::renameat_with(hold, &*step.name, dir, name, flags);
    match &step.act {
        StepAction::Place { .. } => rename(RenameFlags::NOREPLACE)?,
        StepAction::Swap { old, .. } => {
            if old.is_dir && !is_empty(dir, name)? {
                return Err(Errno::NOTEMPTY.into());
            }
            rename(RenameFlags::EXCHANGE)?;
        }
        StepAction::Remove { old } => {
            if old.is_dir && !is_empty(dir, name)? {
                return Err(Errno::NOTEMPTY.into());
            }
            rustix::fs::renameat_with(dir, name, hold, &*step.name, RenameFlags::NOREPLACE)?;
        }
        StepAction::Dress { to, .. } => set(dir, name, to)?,
    }
    // Between check and rename another process may have put a different file there, or a file into a directory that
    // was removed.
    match &step.act {
        StepAction::Swap { old, .. } | StepAction::Remove { old } => {
            let aside = place::look(hold, step.name.as_bytes())?;
            let same = is(aside.as_ref(), old) && (!old.is_dir || is_empty(hold, step.name.as_bytes())?);
            let same = same && aside.is_some_and(|a| old.is_dir || (a.size == old.size && a.mtime == old.mtime));
            // The error causes a rollback of the whole batch.
            if same { Ok(()) } else { Err(Errno::BUSY.into()) }
        }
        _ => Ok(()),
    }
}

fn undo_step(step: &LandingStep, dir: &Dir, hold: &Dir) -> Result<(), Errno> {
    let name = name_of(step);
    match &step.act {
        StepAction::Place { .. } => rustix::fs::renameat_with(dir, name, hold, &*step.name, RenameFlags::NOREPLACE),
        StepAction::Swap { .. } => rustix::fs::renameat_with(dir, name, hold, &*step.name, RenameFlags::EXCHANGE),
        StepAction::Remove { .. } => rustix::fs::renameat_with(hold, &*step.name, dir, name, RenameFlags::NOREPLACE),
        StepAction::Dress { from, .. } => {
            set(dir, name, from).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
        }
    }
}

fn set(dir: &Dir, name: &[u8], look: &DirProperties) -> io::Result<()> {
    let own = dir.dir(&Rel::top().join(name))?;
    stage::set_look(&own, look)
}

fn is_empty(dir: &Dir, name: &[u8]) -> io::Result<bool> {
    Ok(dir.dir(&Rel::top().join(name))?.names()?.is_empty())
}

fn unlink(hold: &Dir, name: &str, kind: FileKind) -> Result<(), Errno> {
    let flags = if kind == FileKind::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match rustix::fs::unlinkat(hold, name, flags) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Fault of a rename that failed, or that met a different file than planned.
fn rename_fault(step: &LandingStep, error: &io::Error) -> Fault {
    match Errno::from_io_error(error) {
        Some(Errno::EXIST | Errno::NOENT | Errno::BUSY | Errno::NOTEMPTY) => trouble::moved(&step.at),
        Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
            let message = format!("{}: this file system cannot exchange two files in one step", step.at);
            let fault = Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Application);
            fault.hint("`cofferdam diff --patch` gives the changes as a patch to apply by hand")
        }
        _ => trouble::with(&step.at, "put it in its place", error),
    }
}
