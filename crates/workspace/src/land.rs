//! Carries out a plan of renames, takes it back, and clears up after it. What has been done is read from the tree each time, so
//! any of it can be cut short anywhere and begun again, by this process or by one that finds what it left.
//!
//! ```text
//! staged ──▶ carry_out ──▶ landed ──▶ tidy
//!                │
//!                └──▶ roll_back ──▶ tidy
//! ```

use crate::change::FileKind;
use crate::dir::{Dir, is_absent};
use crate::name::Rel;
use crate::place::{self, Facts, Identity};
use crate::plan::{Act, Look, Piece, Plan, Step};
use crate::{stage, trouble};
use rustix::fs::{AtFlags, FlockOperation, RenameFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry};

/// A base held by one who changes it; let go when dropped, or by the kernel when the holder ends.
#[derive(Debug)]
pub struct Held {
    _held: OwnedFd,
}

impl Held {
    /// Waits its turn: approvals of several workspaces over one base land one after the other.
    pub fn take(base: &Dir, patience: Duration) -> Result<Held, Fault> {
        let fail = |e: io::Error| trouble::with(&"the base directory", "hold it", &e);
        let until = Instant::now() + patience;
        loop {
            if let Some(held) = Held::try_take(base).map_err(fail)? {
                return Ok(held);
            }
            if Instant::now() >= until {
                let fault = Fault::new(ErrorKind::Unavailable, "another approval is landing in the same directory");
                return Err(fault.hint("try again when it is done").retry(Retry::Later).phase(Phase::Application));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn try_take(base: &Dir) -> io::Result<Option<Held>> {
        let held = OwnedFd::from(base.dir(&Rel::top())?);
        match rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Held { _held: held })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// A plan, the base it is for, and the directories that steps were done in: what is taken back is taken back there, wherever
/// somebody moved them meanwhile.
#[derive(Debug)]
pub struct Landing<'a> {
    base: &'a Dir,
    plan: &'a Plan,
    /// Directories that do not stay, and the steps that move them aside.
    leaving: BTreeMap<&'a Rel, &'a Step>,
    open: BTreeMap<Rel, Dir>,
    /// How often a directory that is not in its place is waited for, in all.
    patience: Cell<u32>,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Undone,
    Done,
    /// Somebody else has been at it.
    Off,
}

/// So many directories are kept open.
const MOST_OPEN: usize = 256;

/// What could not be brought back to how it was, and why.
pub type Troubles = Vec<String>;

impl<'a> Landing<'a> {
    pub fn new(base: &'a Dir, plan: &'a Plan) -> Landing<'a> {
        let leaves = |step: &&Step| matches!(&step.act, Act::Remove { old } | Act::Swap { old, .. } if old.is_dir);
        let leaving = plan.steps.iter().filter(leaves).map(|step| (&step.at, step)).collect();
        Landing { base, plan, leaving, open: BTreeMap::new(), patience: Cell::new(stage::PATIENCE) }
    }

    /// Does every step that is not done yet. After a fault the caller calls `roll_back`.
    pub fn carry_out(&mut self) -> Result<(), Fault> {
        let plan = self.plan;
        for step in &plan.steps {
            let (dir, hold) = self.way(step)?;
            let failed = |e: io::Error| trouble::with(&step.at, "put it in its place", &e);
            self.remember(step, &dir, &hold).map_err(failed)?;
            match stand(step, &dir, &hold).map_err(failed)? {
                Stand::Done => {}
                Stand::Undone => do_it(step, &dir, &hold).map_err(|e| refused(step, &e))?,
                Stand::Off => return Err(trouble::moved(&step.at)),
            }
        }
        let dirs = self.touched();
        let fail = |e: io::Error| trouble::with(&"the base directory", "bring it to disk", &e);
        stage::settle(self.base, dirs.iter(), dirs.len() <= SINGLY).map(drop).map_err(fail)
    }

    /// Whether every step is done or could be done now.
    pub fn can_be_carried_out(&self) -> io::Result<bool> {
        for step in &self.plan.steps {
            let Ok((dir, hold)) = self.way(step) else { return Ok(false) };
            if stand(step, &dir, &hold)? == Stand::Off {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes back every step that is done, the last first. An error means: try again later. Troubles are places where somebody
    /// else stepped in; nothing of theirs is touched, and what was there is still beside it.
    pub fn roll_back(&mut self) -> io::Result<Troubles> {
        let mut troubles = Troubles::new();
        let plan = self.plan;
        for step in plan.steps.iter().rev() {
            let Some((dir, hold)) = self.way_back(step)? else {
                troubles.push(format!("{}: its directory was moved or replaced", step.at));
                continue;
            };
            if !was_begun(step, &dir, &hold)? {
                continue;
            }
            match take_back(step, &dir, &hold) {
                Ok(()) => {}
                Err(Errno::EXIST | Errno::NOENT | Errno::NOTEMPTY) => {
                    troubles.push(format!(
                        "{}: somebody else changed it meanwhile; what was there is kept as {}",
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

    /// What is again as it was after `roll_back`, and how it looks now.
    pub fn restored(&self) -> Result<crate::undo::Landed, Fault> {
        crate::undo::restored(self.base, self.plan)
    }

    /// Removes what waits or was put aside, to the disk: who then forgets the batch leaves nothing that nobody knows of. Notes say
    /// what is left because somebody else wrote to it.
    pub fn tidy(&self) -> io::Result<Vec<String>> {
        let mut notes = Vec::new();
        for step in &self.plan.steps {
            if matches!(step.act, Act::Dress { .. }) {
                continue;
            }
            let Some(hold) = self.again(&step.hold, step.hold_id)? else { continue };
            let Some(found) = place::look(&hold, step.name.as_bytes())? else { continue };
            if !is_ours(step, &found) {
                notes.push(format!("{}: kept {} beside it: somebody else wrote to it meanwhile", step.at, step.name));
            } else if was_put_aside(step, &found) {
                match unlink(&hold, &step.name, found.kind) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {
                        notes.push(format!(
                            "{}: kept as {}: somebody else put files into it meanwhile",
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

    /// The directory of a step and the one where its piece waits, by their paths and proven to be those of the plan.
    fn way(&self, step: &Step) -> Result<(Dir, Dir), Fault> {
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

    /// The same for taking back: directories that are still open, else by path. A directory that was put aside is found there.
    fn way_back(&self, step: &Step) -> io::Result<Option<(Dir, Dir)>> {
        let above = step.at.split().map(|(above, _)| above).unwrap_or_default();
        let Some(hold) = self.again(&step.hold, step.hold_id)? else { return Ok(None) };
        let dir = match self.put_aside(&above, step.parent)? {
            Some(dir) => Some(dir),
            None => self.again(&above, step.parent)?,
        };
        Ok(dir.map(|dir| (dir, hold)))
    }

    fn again(&self, at: &Rel, id: Identity) -> io::Result<Option<Dir>> {
        if let Some(open) = self.open.get(at) {
            return open.try_clone().map(Some);
        }
        loop {
            match place::reach(self.base, at) {
                Ok(dir) if place::look_at(&dir)?.id == id => return Ok(Some(dir)),
                Err(e) if !is_absent(&e) => return Err(e),
                // Somebody may be swapping it for another just now.
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
        let Some(hold) = self.again(&own.hold, own.hold_id)? else { return Ok(None) };
        match hold.dir(&Rel::top().join(own.name.as_bytes())) {
            Ok(dir) => Ok((place::look_at(&dir)?.id == id).then_some(dir)),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn remember(&mut self, step: &Step, dir: &Dir, hold: &Dir) -> io::Result<()> {
        let above = step.at.split().map(|(above, _)| above).unwrap_or_default();
        for (at, dir) in [(&above, dir), (&step.hold, hold)] {
            if self.open.len() < MOST_OPEN && !self.open.contains_key(at) {
                self.open.insert(at.clone(), dir.try_clone()?);
            }
        }
        Ok(())
    }

    /// Directories whose names change and that are there in the end.
    fn touched(&self) -> BTreeSet<Rel> {
        let mut dirs: BTreeSet<Rel> = BTreeSet::new();
        for step in &self.plan.steps {
            dirs.insert(step.hold.clone());
            if matches!(step.act, Act::Dress { .. }) {
                dirs.insert(step.at.clone());
            }
        }
        dirs
    }
}

/// Up to so many directories are brought to disk one by one.
const SINGLY: usize = 32;

fn stand(step: &Step, dir: &Dir, hold: &Dir) -> io::Result<Stand> {
    let at = place::look(dir, name_of(step))?;
    let waits = place::look(hold, step.name.as_bytes())?;
    let (at, waits) = (at.as_ref(), waits.as_ref());
    Ok(match &step.act {
        Act::Place { new } if is(at, new) => Stand::Done,
        Act::Place { new } if at.is_none() && is(waits, new) => Stand::Undone,
        Act::Swap { new, .. } if is(at, new) => Stand::Done,
        Act::Swap { old, new } if is_untouched(at, old) && is(waits, new) => Stand::Undone,
        Act::Remove { old } if is(waits, old) => Stand::Done,
        Act::Remove { old } if is_untouched(at, old) && waits.is_none() => Stand::Undone,
        // Attributes are set again either way: it is not worth reading them to know.
        Act::Dress { dir, from, to } if is_dressed(at, *dir, &[from, to]) => Stand::Undone,
        _ => Stand::Off,
    })
}

/// Whether there is something to take back. A name of the batch in a place where only what stood at the path can have come to
/// is proof enough, whoever's file it is.
fn was_begun(step: &Step, dir: &Dir, hold: &Dir) -> io::Result<bool> {
    let at = place::look(dir, name_of(step))?;
    let waits = || place::look(hold, step.name.as_bytes());
    Ok(match &step.act {
        Act::Place { new } | Act::Swap { new, .. } => is(at.as_ref(), new),
        Act::Remove { .. } => waits()?.is_some(),
        Act::Dress { dir, from, to } => is_dressed(at.as_ref(), *dir, &[from, to]),
    })
}

fn name_of(step: &Step) -> &[u8] {
    step.at.split().map(|(_, name)| name).unwrap_or_default()
}

/// Cut off in the middle, a directory can be written to by its owner whatever it shall be.
fn is_dressed(found: Option<&Facts>, dir: Identity, looks: &[&Look]) -> bool {
    let bits = |mode: u32| mode | 0o200;
    found.is_some_and(|now| now.id == dir && looks.iter().any(|look| bits(look.mode) == bits(now.mode)))
}

/// The piece that waited has the bytes that we wrote, and the other those that were kept, or they are somebody's work.
fn is_ours(step: &Step, found: &Facts) -> bool {
    let same = |piece: &Piece| piece.is_dir || (piece.size == found.size && piece.mtime == found.mtime);
    pieces(step).iter().any(|piece| is(Some(found), piece) && same(piece))
}

fn was_put_aside(step: &Step, found: &Facts) -> bool {
    matches!(&step.act, Act::Remove { old } | Act::Swap { old, .. } if is(Some(found), old))
}

fn pieces(step: &Step) -> Vec<Piece> {
    match &step.act {
        Act::Place { new } => vec![*new],
        Act::Swap { old, new } => vec![*old, *new],
        Act::Remove { old } => vec![*old],
        Act::Dress { .. } => Vec::new(),
    }
}

fn is(found: Option<&Facts>, piece: &Piece) -> bool {
    found.is_some_and(|f| f.id == piece.id && (f.kind == FileKind::Dir) == piece.is_dir)
}

/// The very file that was looked at, and nobody has touched it since. What is in a directory changes its times, and is looked
/// at when it goes.
fn is_untouched(found: Option<&Facts>, piece: &Piece) -> bool {
    is(found, piece) && found.is_some_and(|f| piece.is_dir || f.ctime == piece.ctime)
}

fn do_it(step: &Step, dir: &Dir, hold: &Dir) -> io::Result<()> {
    let name = name_of(step);
    let rename = |flags| rustix::fs::renameat_with(hold, &*step.name, dir, name, flags);
    match &step.act {
        Act::Place { .. } => rename(RenameFlags::NOREPLACE)?,
        Act::Swap { old, .. } => {
            if old.is_dir && !is_empty(dir, name)? {
                return Err(Errno::NOTEMPTY.into());
            }
            rename(RenameFlags::EXCHANGE)?;
        }
        Act::Remove { old } => {
            if old.is_dir && !is_empty(dir, name)? {
                return Err(Errno::NOTEMPTY.into());
            }
            rustix::fs::renameat_with(dir, name, hold, &*step.name, RenameFlags::NOREPLACE)?;
        }
        Act::Dress { to, .. } => set(dir, name, to)?,
    }
    // Between the look and the rename somebody may have put another file there, or a file into a directory that went.
    match &step.act {
        Act::Swap { old, .. } | Act::Remove { old } => {
            let aside = place::look(hold, step.name.as_bytes())?;
            let same = is(aside.as_ref(), old) && (!old.is_dir || is_empty(hold, step.name.as_bytes())?);
            let same = same && aside.is_some_and(|a| old.is_dir || (a.size == old.size && a.mtime == old.mtime));
            // Taken back with the rest.
            if same { Ok(()) } else { Err(Errno::BUSY.into()) }
        }
        _ => Ok(()),
    }
}

fn take_back(step: &Step, dir: &Dir, hold: &Dir) -> Result<(), Errno> {
    let name = name_of(step);
    match &step.act {
        Act::Place { .. } => rustix::fs::renameat_with(dir, name, hold, &*step.name, RenameFlags::NOREPLACE),
        Act::Swap { .. } => rustix::fs::renameat_with(dir, name, hold, &*step.name, RenameFlags::EXCHANGE),
        Act::Remove { .. } => rustix::fs::renameat_with(hold, &*step.name, dir, name, RenameFlags::NOREPLACE),
        Act::Dress { from, .. } => set(dir, name, from).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)),
    }
}

fn set(dir: &Dir, name: &[u8], look: &Look) -> io::Result<()> {
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

/// A rename that the kernel did not do, or that met another file than the one that was looked at.
fn refused(step: &Step, error: &io::Error) -> Fault {
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
