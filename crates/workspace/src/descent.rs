//! Descends a tree and climbs back by directory handles. At any depth it holds few descriptors and never assembles a
//! path, so it works beyond PATH_MAX. The inode is checked on the way up, so a tree that is moved meanwhile is an
//! error.

use crate::dir::Dir;
use api::Rel;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsRawFd;

/// Number of parent directories that stay open.
const HELD: usize = 8;

/// Depth of the deepest tree that is walked.
pub const DEEPEST: usize = 100_000;

#[derive(Debug)]
pub struct Descent {
    here: Dir,
    above: Vec<OpenParent>,
}

#[derive(Debug)]
struct OpenParent {
    /// Device and inode.
    id: (u64, u64),
    handle: Option<Dir>,
}

impl Descent {
    pub fn at(top: &Dir) -> io::Result<Descent> {
        Ok(Descent { here: top.try_clone()?, above: Vec::new() })
    }

    pub fn here(&self) -> &Dir {
        &self.here
    }

    pub fn depth(&self) -> usize {
        self.above.len()
    }

    /// Enters a subdirectory.
    pub fn enter(&mut self, name: &[u8]) -> io::Result<()> {
        let below = self.here.dir(&Rel::top().join(name));
        self.go(below)
    }

    /// Enters a subdirectory unless it is a mount point.
    pub fn enter_same_mount(&mut self, name: &[u8]) -> io::Result<()> {
        let below = self.here.dir_of_same_mount(name);
        self.go(below)
    }

    fn go(&mut self, below: io::Result<Dir>) -> io::Result<()> {
        if self.above.len() >= DEEPEST {
            return Err(io::Error::from_raw_os_error(Errno::NAMETOOLONG.raw_os_error()));
        }
        let id = id_of(&self.here)?;
        let handle = std::mem::replace(&mut self.here, below?);
        self.above.push(OpenParent { id, handle: Some(handle) });
        if let Some(far) = self.above.len().checked_sub(HELD + 1) {
            self.above[far].handle = None;
        }
        Ok(())
    }

    /// Returns to the parent; a no-op at the top.
    pub fn leave(&mut self) -> io::Result<()> {
        let Some(OpenParent { id, handle }) = self.above.pop() else { return Ok(()) };
        let up = match handle {
            Some(handle) => handle,
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Dir::from_fd(rustix::fs::openat(&self.here, "..", flags, Mode::empty())?)
            }
        };
        if id_of(&up)? != id {
            return Err(io::Error::other("the tree was moved during the walk"));
        }
        self.here = up;
        Ok(())
    }
}

fn id_of(dir: &Dir) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Sets the permission bits of a name in this directory, also if they deny opening it; a symbolic link is an error.
pub fn set_mode(dir: &Dir, name: &[u8], mode: u32) -> io::Result<()> {
    let fd = dir.open_at(&Rel::top().join(name), OFlags::PATH, Mode::empty())?;
    if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) == rustix::fs::FileType::Symlink {
        return Err(Errno::LOOP.into());
    }
    // `/proc/self/fd` reaches a file that cannot be opened; the descriptor is our own.
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::from_raw_mode(mode & 0o7777))?)
}
