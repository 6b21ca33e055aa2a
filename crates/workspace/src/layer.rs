//! Layers on disk, and stacks of them.

use crate::dir::Dir;
use crate::remove::{self, Removed};
use api::{Driver, Rel};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Directory `layers` of the state directory.
#[derive(Debug)]
pub struct Layers {
    pub dir: Dir,
}

/// Directories of a layer: the changes and overlayfs's work directory, of the workspace and of the sandbox's own home;
/// and what was copied into the home when the layer was made.
const PARTS: [&str; 5] = ["up", "work", "home", "homework", "brought"];

/// Directory with overlayfs's work directories of caches.
const CACHE_WORK: &[u8] = b"cachework";

/// Part of a layer with content of the sandbox's own home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomePart {
    /// Copied from the host; nothing changes it.
    Brought,
    /// Changes above that.
    Changes,
    /// Additions to package caches of the host, a directory for each.
    Caches,
}

impl HomePart {
    pub const ALL: [HomePart; 3] = [HomePart::Brought, HomePart::Changes, HomePart::Caches];
    /// The home itself, from the bottom up.
    pub const HOME: [HomePart; 2] = [HomePart::Brought, HomePart::Changes];

    /// Returns the name of the directory in the layer.
    pub fn name(self) -> &'static str {
        match self {
            HomePart::Brought => "brought",
            HomePart::Changes => "home",
            HomePart::Caches => "caches",
        }
    }
}

/// A layer; `id` is its name in `layers`.
#[derive(Debug)]
pub struct Layer {
    pub id: String,
    /// Directory that holds `up` and `work`, and those of the home.
    pub dir: Dir,
    /// Upper directory with the changes; with a copying driver, the lowest layer holds the whole tree.
    pub up: Dir,
}

/// A base and the layers over it.
#[derive(Debug)]
pub struct Stack {
    pub base: Dir,
    pub driver: Driver,
    /// Layers from the bottom up; the guest writes to the last.
    pub layers: Vec<Layer>,
    /// File system time when the workspace was created or last rebased as a whole: a later change in the base is
    /// drift, unless an anchor says otherwise.
    pub since: (i64, u32),
}

impl Stack {
    /// Duplicates the handles.
    pub fn try_clone(&self) -> io::Result<Stack> {
        let copy = |l: &Layer| Ok(Layer { id: l.id.clone(), dir: l.dir.try_clone()?, up: l.up.try_clone()? });
        let layers = self.layers.iter().map(copy).collect::<io::Result<_>>()?;
        Ok(Stack { base: self.base.try_clone()?, driver: self.driver, layers, since: self.since })
    }
}

impl Layers {
    /// Opens the directory `layers` of a state directory and creates it if missing.
    pub fn open(state: &Dir) -> io::Result<Layers> {
        make_dir(state, b"layers", 0o700)?;
        state.dir(&Rel::top().join(b"layers")).map(|dir| Layers { dir })
    }

    /// Creates an empty layer whose top has the permission bits of `base`. Locked until the returned lock is dropped.
    pub fn make(&self, base: &Dir, random: [u8; 16]) -> io::Result<(Layer, Lock)> {
        let id = terms::id("lay", random);
        rustix::fs::mkdirat(&self.dir, id.as_str(), Mode::from_raw_mode(0o700))?;
        let dir = self.dir.dir(&Rel::top().join(id.as_bytes()))?;
        // Locked before it has contents: an unlocked layer may be taken for an abandoned one.
        let lock = Lock::take(&dir)?.ok_or(io::ErrorKind::WouldBlock)?;
        for name in PARTS {
            rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o700))?;
        }
        let up = dir.dir(&Rel::top().join(b"up"))?;
        // A guest sees these permission bits at the top of its workspace.
        rustix::fs::fchmod(&up, Mode::from_raw_mode(rustix::fs::fstat(base)?.st_mode & 0o777))?;
        Ok((Layer { id, dir, up }, lock))
    }

    /// Creates a missing layer again, empty. Returns true if it was missing.
    pub fn make_again(&self, base: &Dir, id: &str) -> io::Result<bool> {
        match self.get(id) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => return found.map(|_| false),
        }
        let name = Rel::top().join(id.as_bytes());
        make_dir(&self.dir, id.as_bytes(), 0o700)?;
        let dir = self.dir.dir(&name)?;
        for inner in PARTS {
            make_dir(&dir, inner.as_bytes(), 0o700)?;
        }
        let up = dir.dir(&Rel::top().join(b"up"))?;
        rustix::fs::fchmod(&up, Mode::from_raw_mode(rustix::fs::fstat(base)?.st_mode & 0o777))?;
        Ok(true)
    }

    /// Syncs the directory entries of a layer, so that a record that refers to it is not written before it.
    pub fn settle_names(&self, layer: &Layer) -> io::Result<()> {
        rustix::fs::fsync(&layer.dir)?;
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    /// Removes an unreferenced layer and its contents; a missing one is not an error.
    pub fn remove(&self, id: &str) -> io::Result<Removed> {
        let name =
            Rel::parse(id.as_bytes()).filter(|rel| rel.parts().count() == 1).ok_or(io::ErrorKind::InvalidInput)?;
        remove::tree(&self.dir, name.as_bytes())
    }

    /// Syncs the file system of the layers (syncfs): for many files a tenth of the cost of single fsyncs.
    pub fn settle(&self) -> io::Result<()> {
        rustix::fs::syncfs(&self.dir).map_err(io::Error::from)
    }

    pub fn get(&self, id: &str) -> io::Result<Layer> {
        let name =
            Rel::parse(id.as_bytes()).filter(|rel| rel.parts().count() == 1).ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.dir.dir(&name)?;
        let up = open_own(&dir, b"up")?;
        Ok(Layer { id: id.to_owned(), dir, up })
    }
}

/// Opens an upper directory. A guest may have removed the owner's permissions from it; they are restored, or a guest
/// could keep denied files from being found and the workspace from being read.
fn open_own(dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    let mode = dir.meta_of(name)?.map_or(0o700, |meta| meta.mode);
    if mode & 0o700 != 0o700 {
        crate::descent::set_mode(dir, name, mode | 0o700)?;
    }
    dir.dir(&Rel::top().join(name))
}

impl Layer {
    /// Locks the layer against other writers and removal; None if it is locked. The kernel releases the lock when the
    /// process ends.
    pub fn lock(&self) -> io::Result<Option<Lock>> {
        Lock::take(&self.dir)
    }

    /// True if the layer is locked. The test blocks no locker: see [`Lock::take`].
    pub fn is_held(&self) -> io::Result<bool> {
        let looked_at = OwnedFd::from(self.dir.dir(&Rel::top())?);
        Ok(!try_flock(&looked_at, FlockOperation::NonBlockingLockShared)?)
    }

    /// True if the layer has no changes, neither of the workspace nor of the home.
    pub fn is_empty(&self) -> io::Result<bool> {
        let mut parts = HomePart::ALL.into_iter();
        let no_home = parts.try_fold(true, |none, part| Ok::<bool, io::Error>(none && self.filled(part)?.is_none()))?;
        Ok(no_home && self.up.names()?.is_empty())
    }

    /// Opens a part of the home. Layers of older versions have none.
    pub fn home(&self, part: HomePart) -> io::Result<Option<Dir>> {
        match open_own(&self.dir, part.name().as_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Opens a part of the home that has content.
    pub fn filled(&self, part: HomePart) -> io::Result<Option<Dir>> {
        let Some(home) = self.home(part)? else { return Ok(None) };
        Ok(if home.names()?.is_empty() { None } else { Some(home) })
    }

    /// Opens a part of the home, and makes it in a layer of an older version.
    pub fn make_home(&self, part: HomePart) -> io::Result<Dir> {
        make_dir(&self.dir, part.name().as_bytes(), 0o700)?;
        open_own(&self.dir, part.name().as_bytes())
    }

    /// Makes the top ready to take what is added to a package cache. `mode` is that of the host's directory.
    pub fn make_cache(&self, name: &str, mode: u32) -> io::Result<()> {
        let (caches, bits) = (self.make_home(HomePart::Caches)?, mode & 0o777 | 0o700);
        make_dir(&caches, name.as_bytes(), bits)?;
        make_dir(&self.dir, CACHE_WORK, 0o700)?;
        let work = self.dir.dir(&Rel::top().join(CACHE_WORK))?;
        remove::tree(&work, name.as_bytes())?;
        make_dir(&work, name.as_bytes(), 0o700)
    }

    /// Makes the top ready for overlays: a work directory left by an earlier mount is useless to the next one, and makes
    /// it fail. A layer of an older version gets a home.
    pub fn clear_work(&self) -> io::Result<()> {
        for name in ["work", "homework"] {
            remove::tree(&self.dir, name.as_bytes())?;
            rustix::fs::mkdirat(&self.dir, name, Mode::from_raw_mode(0o700))?;
        }
        self.make_home(HomePart::Changes).map(drop)
    }

    /// Creation time by the clock of its file system.
    pub fn made_at(&self) -> io::Result<(i64, u32)> {
        let stat = rustix::fs::fstat(&self.up)?;
        Ok((stat.st_ctime, stat.st_ctime_nsec as u32))
    }
}

/// Exclusive lock on a layer, released when dropped.
#[derive(Debug)]
pub struct Lock {
    _held: OwnedFd,
}

/// Retries against concurrent `is_held` tests, and the pause for each. A test is two system calls.
const LOOKS: u32 = 1000;
const LOOK: Duration = Duration::from_micros(200);

impl Lock {
    /// Tries to lock. Holders lock exclusively, tests briefly lock shared: if a shared lock succeeds, only tests are
    /// in the way, and the attempt is repeated.
    fn take(dir: &Dir) -> io::Result<Option<Lock>> {
        for _ in 0..LOOKS {
            // A separate open file description: an flock belongs to it, and closing this one must not release others.
            let held = OwnedFd::from(dir.dir(&Rel::top())?);
            if try_flock(&held, FlockOperation::NonBlockingLockExclusive)? {
                return Ok(Some(Lock { _held: held }));
            }
            if !try_flock(&held, FlockOperation::NonBlockingLockShared)? {
                return Ok(None);
            }
            drop(held);
            std::thread::sleep(LOOK);
        }
        Ok(None)
    }
}

fn try_flock(file: &OwnedFd, how: FlockOperation) -> io::Result<bool> {
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Creates a directory unless it exists.
fn make_dir(at: &Dir, name: &[u8], mode: u32) -> io::Result<()> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
