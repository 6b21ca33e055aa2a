//! Path resolution in user space, one component at a time: each is opened relative to its parent's handle, so that the
//! result stays in the workspace whatever is swapped meanwhile. Links are read and followed here: an absolute link
//! means another path to the guest than on the host.

use super::{Root, error};
use crate::Dir;
use crate::dir::Meta;
use api::{FileKind, Rel};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use terms::Fault;

/// Bound on links per path; the same as the kernel's.
const MOST_LINKS: usize = 40;
/// Bound on directories opened for one path. A link can lead up and down again many times.
const MOST_STEPS: usize = 100_000;
/// Permission bits of a parent directory that is created.
const NEW: u32 = 0o755;
/// Attempts at a resolution that races with a change.
const TRIES: usize = 64;

/// Parent directory and last name of a resolved path; without a name, the directory itself.
#[derive(Debug)]
pub(super) struct ResolvedParent {
    pub dir: Dir,
    pub name: Option<Vec<u8>>,
    /// Resolved path, links followed.
    pub path: Rel,
}

/// Treatment of a link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Followed,
    Itself,
}

/// State of a resolution.
struct Resolution<'a> {
    root: &'a Root,
    asked: &'a Rel,
    /// Components from the top to the current directory.
    names: Vec<Vec<u8>>,
    /// Handle on the current directory; None after `..`.
    here: Option<Dir>,
    /// Components still to resolve, in reverse order.
    todo: Vec<Vec<u8>>,
    links: usize,
    steps: usize,
    /// Missing parents are created.
    makes: bool,
}

impl Root {
    /// Resolves a path. The last component need not exist.
    pub(super) fn find(&self, path: &Rel, last: Last) -> Result<ResolvedParent, Fault> {
        self.go(path, last, false)
    }

    /// Resolves a path and creates missing parents.
    pub(super) fn find_making(&self, path: &Rel, last: Last) -> Result<ResolvedParent, Fault> {
        self.go(path, last, true)
    }

    fn go(&self, path: &Rel, last: Last, makes: bool) -> Result<ResolvedParent, Fault> {
        let todo = path.parts().rev().map(<[u8]>::to_vec).collect();
        let mut resolution =
            Resolution { root: self, asked: path, names: Vec::new(), here: None, todo, links: 0, steps: 0, makes };
        while let Some(part) = resolution.todo.pop() {
            match &part[..] {
                b".." => resolution.up()?,
                _ => {
                    if let Some(spot) = resolution.step(part, last)? {
                        return Ok(spot);
                    }
                }
            }
        }
        resolution.at_directory()
    }
}

impl Resolution<'_> {
    fn fail(&self, error: &io::Error) -> Fault {
        error::fault(self.asked, "go there", error)
    }

    fn up(&mut self) -> Result<(), Fault> {
        self.here = None;
        self.names.pop().map(drop).ok_or_else(|| error::leads_out(self.asked))
    }

    /// Handle on the current directory; after `..` it is opened again from the top.
    fn here(&mut self) -> Result<Dir, Fault> {
        if let Some(here) = self.here.take() {
            return Ok(here);
        }
        let mut here = self.root.dir.try_clone().map_err(|e| self.fail(&e))?;
        self.count(self.names.len())?;
        for name in &self.names {
            here = below(&here, name).map_err(|e| self.fail(&e))?;
        }
        Ok(here)
    }

    fn count(&mut self, steps: usize) -> Result<(), Fault> {
        self.steps += steps;
        match self.steps > MOST_STEPS {
            true => Err(self.fail(&Errno::LOOP.into())),
            false => Ok(()),
        }
    }

    /// Creates a missing directory if the policy permits.
    fn make(&self, here: &Dir, part: &[u8]) -> Result<(), Fault> {
        self.root.check_rules(&self.path().join(part))?;
        match rustix::fs::mkdirat(here, part, Mode::from_raw_mode(NEW)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(self.fail(&e.into())),
        }
    }

    /// Path of the current directory, links followed.
    fn path(&self) -> Rel {
        self.names.iter().fold(Rel::top(), |path, name| path.join(name))
    }

    /// Resolves one component; returns the spot if it was the last.
    fn step(&mut self, part: Vec<u8>, last: Last) -> Result<Option<ResolvedParent>, Fault> {
        let here = self.here()?;
        let is_last = self.todo.is_empty();
        // A failure to look is met again, and told, by what follows.
        if self.root.within_mount && here.is_mounted_on(&part).unwrap_or(false) {
            return Err(error::of_the_host(self.asked));
        }
        if is_last && last == Last::Itself {
            return self.spot(here, part).map(Some);
        }
        if !is_last {
            self.count(1)?;
            let mut next = below(&here, &part);
            if self.makes && next.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                self.make(&here, &part)?;
                next = below(&here, &part);
            }
            match next {
                Ok(next) => {
                    self.names.push(part);
                    self.here = Some(next);
                    return Ok(None);
                }
                Err(e) if !is_no_directory(&e) => return Err(self.fail(&e)),
                Err(_) => {}
            }
        }
        match rustix::fs::readlinkat(&here, &part[..], Vec::new()) {
            Ok(target) => {
                self.here = Some(here);
                self.follow(target.as_bytes()).map(|()| None)
            }
            Err(Errno::INVAL | Errno::NOENT) if is_last => self.spot(here, part).map(Some),
            Err(Errno::INVAL) => Err(self.fail(&Errno::NOTDIR.into())),
            Err(e) => Err(self.fail(&e.into())),
        }
    }

    fn follow(&mut self, target: &[u8]) -> Result<(), Fault> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(self.fail(&Errno::LOOP.into()));
        }
        let mut rest = target;
        if target.starts_with(b"/") {
            rest = self.root.below_place(target).ok_or_else(|| error::leads_out(self.asked))?;
            self.names.clear();
            self.here = None;
        }
        let parts = rest.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".");
        self.todo.extend(parts.rev().map(<[u8]>::to_vec));
        Ok(())
    }

    fn spot(&self, dir: Dir, name: Vec<u8>) -> Result<ResolvedParent, Fault> {
        let path = self.path().join(&name);
        Ok(ResolvedParent { dir, name: Some(name), path })
    }

    /// The path was the top or ended with `..`: the result is a directory on the current path.
    fn at_directory(mut self) -> Result<ResolvedParent, Fault> {
        match self.names.pop() {
            Some(name) => {
                self.here = None;
                let dir = self.here()?;
                self.spot(dir, name)
            }
            None => {
                let dir = self.root.dir.try_clone().map_err(|e| self.fail(&e))?;
                Ok(ResolvedParent { dir, name: None, path: Rel::top() })
            }
        }
    }
}

/// Opens a subdirectory with O_PATH, which needs no read permission.
fn below(dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    dir.open_at(&Rel::top().join(name), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(Dir::from_fd)
}

fn is_no_directory(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOTDIR | Errno::LOOP))
}

impl ResolvedParent {
    /// The name, or a fault for the top of the workspace.
    pub fn name(&self) -> Result<&[u8], Fault> {
        let why = "this is not possible for the top of the workspace";
        self.name.as_deref().ok_or_else(|| Fault::invalid(why).hint("name a path below it"))
    }

    /// Metadata of the entry.
    pub fn meta(&self) -> io::Result<Option<Meta>> {
        match &self.name {
            Some(name) => self.dir.meta_of(name),
            None => self.dir.meta(&Rel::top()),
        }
    }

    pub fn link_target(&self, meta: &Meta) -> io::Result<Option<Vec<u8>>> {
        match (&self.name, meta.kind) {
            (Some(name), FileKind::Symlink) => self.dir.link_target(name).map(Some),
            _ => Ok(None),
        }
    }

    fn rel(&self) -> Rel {
        self.name.as_deref().map_or_else(Rel::top, |name| Rel::top().join(name))
    }

    /// Opens the entry as a directory.
    pub fn open_dir(&self) -> io::Result<Dir> {
        self.dir.dir(&self.rel())
    }

    /// Opens the entry as a regular file. Other kinds are refused before open: opening alone can block or have side
    /// effects.
    pub fn open_file(&self, flags: OFlags) -> io::Result<(File, Meta)> {
        let handle = self.dir.open_at(&self.rel(), OFlags::PATH, Mode::empty())?;
        let meta = Dir::from_fd(handle.try_clone()?).meta(&Rel::top())?.ok_or(Errno::NOENT)?;
        match meta.kind {
            FileKind::File => Ok((File::from(reopen(&handle, flags)?), meta)),
            FileKind::Dir => Err(Errno::ISDIR.into()),
            FileKind::Symlink => Err(Errno::LOOP.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }
}

/// Reopens an O_PATH handle through `/proc/self/fd`; the descriptor is our own.
fn reopen(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    // O_NONBLOCK: a lease on the file would otherwise block the open.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/self/fd/{}", handle.as_raw_fd()), flags, Mode::empty())?)
}

/// Runs `step` at a path, links followed. ELOOP means that the last component became a link meanwhile, and the path is
/// resolved again. With `makes`, missing parents are created.
pub(super) fn settled<T>(
    root: &Root,
    path: &Rel,
    act: &str,
    makes: bool,
    mut step: impl FnMut(&ResolvedParent) -> io::Result<T>,
) -> Result<(ResolvedParent, T), Fault> {
    for _ in 0..TRIES {
        let spot = root.go(path, Last::Followed, makes)?;
        match step(&spot) {
            Ok(done) => return Ok((spot, done)),
            Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
            Err(e) if e.kind() == io::ErrorKind::InvalidInput && e.raw_os_error().is_none() => {
                return Err(error::conflict(path, &e.to_string(), "only regular files can be read and written"));
            }
            Err(e) => return Err(error::fault(path, act, &e)),
        }
    }
    Err(error::conflict(path, "it keeps changing", "try again when it no longer changes"))
}
