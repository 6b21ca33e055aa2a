//! Layers on disk, and stacks of them.

use crate::attributes::Marks;
use crate::dir::Dir;
use crate::name::Rel;
use crate::remove::{self, Removed};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How a workspace keeps changes apart from its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// Layers of overlayfs, mounted inside the enclosure.
    Overlay,
    /// A copy whose bytes are shared until they are changed.
    Reflink,
    Copy,
}

impl Driver {
    /// How a layer of such a workspace is to be read.
    pub fn marks(self) -> Marks {
        match self {
            Driver::Overlay => Marks::Mean,
            Driver::Reflink | Driver::Copy => Marks::Plain,
        }
    }
}

/// Where all layers are: the directory `layers` of the state.
#[derive(Debug)]
pub struct Layers {
    pub dir: Dir,
}

/// One layer; `id` is its name in `layers`.
#[derive(Debug)]
pub struct Layer {
    pub id: String,
    /// The directory that holds `up` and `work`.
    pub dir: Dir,
    /// What changed; under the copying drivers, in the lowest layer, the whole tree.
    pub up: Dir,
}

/// A workspace's bytes: its base and what lies over it.
#[derive(Debug)]
pub struct Stack {
    pub base: Dir,
    pub driver: Driver,
    /// From the bottom up; the last is the one that a guest writes to.
    pub layers: Vec<Layer>,
    /// The clock of the file system when the workspace was made or last rebased as a whole: what the base has changed after it is
    /// drift, unless `anchors` knows better.
    pub since: (i64, u32),
}

impl Stack {
    /// Other handles on the same.
    pub fn try_clone(&self) -> io::Result<Stack> {
        let copy = |l: &Layer| Ok(Layer { id: l.id.clone(), dir: l.dir.try_clone()?, up: l.up.try_clone()? });
        let layers = self.layers.iter().map(copy).collect::<io::Result<_>>()?;
        Ok(Stack { base: self.base.try_clone()?, driver: self.driver, layers, since: self.since })
    }
}

impl Layers {
    /// Opens, and makes where it is missing, the directory `layers` of a state directory.
    pub fn open(state: &Dir) -> io::Result<Layers> {
        make_dir(state, b"layers", 0o700)?;
        state.dir(&Rel::top().join(b"layers")).map(|dir| Layers { dir })
    }

    /// A new empty layer, whose top looks like `base`. It is locked until the handle that is given with it goes.
    pub fn make(&self, base: &Dir, random: [u8; 16]) -> io::Result<(Layer, Lock)> {
        let id = terms::id("lay", random);
        rustix::fs::mkdirat(&self.dir, id.as_str(), Mode::from_raw_mode(0o700))?;
        let dir = self.dir.dir(&Rel::top().join(id.as_bytes()))?;
        // Before there is anything in it: who finds a layer unlocked may take it for one that was left behind.
        let lock = Lock::take(&dir)?.ok_or(io::ErrorKind::WouldBlock)?;
        for name in ["up", "work"] {
            rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o700))?;
        }
        let up = dir.dir(&Rel::top().join(b"up"))?;
        // A guest sees the top of its workspace with the bits that this one has.
        rustix::fs::fchmod(&up, Mode::from_raw_mode(rustix::fs::fstat(base)?.st_mode & 0o777))?;
        Ok((Layer { id, dir, up }, lock))
    }

    /// Makes a layer again that is gone, empty. Whether it was.
    pub fn make_again(&self, base: &Dir, id: &str) -> io::Result<bool> {
        match self.get(id) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => return found.map(|_| false),
        }
        let name = Rel::top().join(id.as_bytes());
        make_dir(&self.dir, id.as_bytes(), 0o700)?;
        let dir = self.dir.dir(&name)?;
        for inner in [b"up".as_slice(), b"work"] {
            make_dir(&dir, inner, 0o700)?;
        }
        let up = dir.dir(&Rel::top().join(b"up"))?;
        rustix::fs::fchmod(&up, Mode::from_raw_mode(rustix::fs::fstat(base)?.st_mode & 0o777))?;
        Ok(true)
    }

    /// Brings the names of a layer to the disk, so that a record can speak of it that is there itself.
    pub fn settle_names(&self, layer: &Layer) -> io::Result<()> {
        rustix::fs::fsync(&layer.dir)?;
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    /// Takes a layer away, with all in it. What nobody refers to any more is for this; nothing there is nothing to do.
    pub fn remove(&self, id: &str) -> io::Result<Removed> {
        let name =
            Rel::parse(id.as_bytes()).filter(|rel| rel.parts().count() == 1).ok_or(io::ErrorKind::InvalidInput)?;
        remove::tree(&self.dir, name.as_bytes())
    }

    /// Brings what all layers hold to the disk, with everything else on their file system: for many files that is a tenth of
    /// the cost of one by one.
    pub fn settle(&self) -> io::Result<()> {
        rustix::fs::syncfs(&self.dir).map_err(io::Error::from)
    }

    pub fn get(&self, id: &str) -> io::Result<Layer> {
        let name =
            Rel::parse(id.as_bytes()).filter(|rel| rel.parts().count() == 1).ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.dir.dir(&name)?;
        let up = open_up(&dir)?;
        Ok(Layer { id: id.to_owned(), dir, up })
    }
}

/// A guest may have shut the top of its workspace. It is ours to go into all the same: who shuts it must not keep from being found what
/// is denied in it, nor the workspace from being looked at.
fn open_up(dir: &Dir) -> io::Result<Dir> {
    const UP: &[u8] = b"up";
    let mode = dir.meta_of(UP)?.map_or(0o700, |meta| meta.mode);
    if mode & 0o700 != 0o700 {
        crate::descent::set_mode(dir, UP, mode | 0o700)?;
    }
    dir.dir(&Rel::top().join(UP))
}

impl Layer {
    /// Holds the layer against all others who would write to it or take it away; none where somebody does already.
    /// The kernel lets go when the holder ends, however it ends.
    pub fn lock(&self) -> io::Result<Option<Lock>> {
        Lock::take(&self.dir)
    }

    /// Whether somebody holds it. Who looks keeps nobody out: see [`Lock::take`].
    pub fn is_held(&self) -> io::Result<bool> {
        let looked_at = OwnedFd::from(self.dir.dir(&Rel::top())?);
        Ok(!try_flock(&looked_at, FlockOperation::NonBlockingLockShared)?)
    }

    /// Nothing was changed in it.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.up.names()?.is_empty())
    }

    /// The clock of its file system when it was made.
    pub fn made_at(&self) -> io::Result<(i64, u32)> {
        let stat = rustix::fs::fstat(&self.up)?;
        Ok((stat.st_ctime, stat.st_ctime_nsec as u32))
    }
}

/// A layer held; let go when dropped.
#[derive(Debug)]
pub struct Lock {
    _held: OwnedFd,
}

/// How often those who only look may be in the way of one who takes, and how long each look is waited for. A look is two calls.
const LOOKS: u32 = 1000;
const LOOK: Duration = Duration::from_micros(200);

impl Lock {
    /// Those who hold have the lock alone, those who look share it for a moment: what can be shared is not held, and is asked for
    /// again.
    fn take(dir: &Dir) -> io::Result<Option<Lock>> {
        for _ in 0..LOOKS {
            // A handle of its own: a lock belongs to an open file, and closing this one must not end others.
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

/// Makes a directory unless it is there.
fn make_dir(at: &Dir, name: &[u8], mode: u32) -> io::Result<()> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
