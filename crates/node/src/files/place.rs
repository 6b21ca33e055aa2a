//! From a path to the directory that its last name is in, part by part: each is opened by its name alone in the directory before
//! it, so that whatever is swapped meanwhile, the way stays in the workspace. Links are read and followed by us: the guest's view of an
//! absolute link is not the host's.

use super::{Root, trouble};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use terms::Fault;
use workspace::dir::Meta;
use workspace::{Dir, FileKind, Rel};

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;
/// As many directories are opened for one path. A link can lead up and down again many times.
const MOST_STEPS: usize = 100_000;
/// Permission bits of a directory that is made on the way.
const NEW: u32 = 0o755;
/// How often the way is looked for again when it changed under us.
const TRIES: usize = 64;

/// The directory that something is in, and its name there; without a name it is the directory itself.
#[derive(Debug)]
pub(super) struct Spot {
    pub dir: Dir,
    pub name: Option<Vec<u8>>,
    /// Where that is, links followed.
    pub path: Rel,
}

/// Whether a link at the end of the path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Followed,
    Itself,
}

/// Looking for a way.
struct Way<'a> {
    root: &'a Root,
    asked: &'a Rel,
    /// Directories from the top to where we are.
    names: Vec<Vec<u8>>,
    /// A handle on the last of them; none after a step up.
    here: Option<Dir>,
    /// Parts still to go, last first.
    todo: Vec<Vec<u8>>,
    links: usize,
    steps: usize,
    /// Directories that are missing on the way are made.
    makes: bool,
}

impl Root {
    /// Where a path leads. The last name need not be there.
    pub(super) fn find(&self, path: &Rel, last: Last) -> Result<Spot, Fault> {
        self.go(path, last, false)
    }

    /// The same, making the directories above where they are missing.
    pub(super) fn find_making(&self, path: &Rel, last: Last) -> Result<Spot, Fault> {
        self.go(path, last, true)
    }

    fn go(&self, path: &Rel, last: Last, makes: bool) -> Result<Spot, Fault> {
        let todo = path.parts().rev().map(<[u8]>::to_vec).collect();
        let mut way = Way { root: self, asked: path, names: Vec::new(), here: None, todo, links: 0, steps: 0, makes };
        while let Some(part) = way.todo.pop() {
            match &part[..] {
                b".." => way.up()?,
                _ => {
                    if let Some(spot) = way.step(part, last)? {
                        return Ok(spot);
                    }
                }
            }
        }
        way.at_directory()
    }
}

impl Way<'_> {
    fn fail(&self, error: &io::Error) -> Fault {
        trouble::fault(self.asked, "go there", error)
    }

    fn up(&mut self) -> Result<(), Fault> {
        self.here = None;
        self.names.pop().map(drop).ok_or_else(|| trouble::leads_out(self.asked))
    }

    /// The handle on where we are; after a step up it is found again from the top.
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

    /// Makes a directory that is missing, where the policy lets it be there.
    fn make(&self, here: &Dir, part: &[u8]) -> Result<(), Fault> {
        self.root.check_rules(&self.path().join(part))?;
        match rustix::fs::mkdirat(here, part, Mode::from_raw_mode(NEW)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(self.fail(&e.into())),
        }
    }

    /// Where we are, links followed.
    fn path(&self) -> Rel {
        self.names.iter().fold(Rel::top(), |path, name| path.join(name))
    }

    /// One part further; the spot, where it was the last.
    fn step(&mut self, part: Vec<u8>, last: Last) -> Result<Option<Spot>, Fault> {
        let here = self.here()?;
        let is_last = self.todo.is_empty();
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
            rest = self.root.below_place(target).ok_or_else(|| trouble::leads_out(self.asked))?;
            self.names.clear();
            self.here = None;
        }
        let parts = rest.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".");
        self.todo.extend(parts.rev().map(<[u8]>::to_vec));
        Ok(())
    }

    fn spot(&self, dir: Dir, name: Vec<u8>) -> Result<Spot, Fault> {
        let path = self.path().join(&name);
        Ok(Spot { dir, name: Some(name), path })
    }

    /// The path ended with a step up or was the top: it is a directory that we have been in.
    fn at_directory(mut self) -> Result<Spot, Fault> {
        match self.names.pop() {
            Some(name) => {
                self.here = None;
                let dir = self.here()?;
                self.spot(dir, name)
            }
            None => {
                let dir = self.root.dir.try_clone().map_err(|e| self.fail(&e))?;
                Ok(Spot { dir, name: None, path: Rel::top() })
            }
        }
    }
}

/// A handle to go on from; nobody's permission to list it is needed.
fn below(dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    dir.open_at(&Rel::top().join(name), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(Dir::from_fd)
}

fn is_no_directory(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOTDIR | Errno::LOOP))
}

impl Spot {
    /// The name, where it must have one.
    pub fn name(&self) -> Result<&[u8], Fault> {
        let why = "this cannot be done with the top of the workspace itself";
        self.name.as_deref().ok_or_else(|| Fault::invalid(why).hint("name something in it"))
    }

    /// What is there.
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

    /// The directory that it is.
    pub fn open_dir(&self) -> io::Result<Dir> {
        self.dir.dir(&self.rel())
    }

    /// The regular file that it is. Anything else is refused before it is opened: opening alone can block or have an effect.
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

/// Opens what a handle stands for; the number is our own.
fn reopen(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    // A file with a lease would hold up who waits for it.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/self/fd/{}", handle.as_raw_fd()), flags, Mode::empty())?)
}

/// Does something at a path whose link at the end is followed. When a link stands there after all, it was put there meanwhile,
/// and the way is looked for again. With `makes`, directories above are made where they are missing.
pub(super) fn settled<T>(
    root: &Root,
    path: &Rel,
    act: &str,
    makes: bool,
    mut step: impl FnMut(&Spot) -> io::Result<T>,
) -> Result<(Spot, T), Fault> {
    for _ in 0..TRIES {
        let spot = root.go(path, Last::Followed, makes)?;
        match step(&spot) {
            Ok(done) => return Ok((spot, done)),
            Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
            Err(e) if e.kind() == io::ErrorKind::InvalidInput && e.raw_os_error().is_none() => {
                return Err(trouble::conflict(path, &e.to_string(), "only regular files can be read and written"));
            }
            Err(e) => return Err(trouble::fault(path, act, &e)),
        }
    }
    Err(trouble::conflict(path, "it changes all the time", "try again when it stands still"))
}
