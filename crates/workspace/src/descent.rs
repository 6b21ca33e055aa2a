//! A way down a tree and back up by handles. However deep it goes, few descriptors are held, and no path is ever put together:
//! it works where paths would be too long for the kernel. The way up is checked, so a tree that is moved meanwhile is an error.

use crate::dir::Dir;
use crate::name::Rel;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsRawFd;

/// How many directories above the current one stay open.
const HELD: usize = 8;

/// The deepest tree that is walked.
pub const DEEPEST: usize = 100_000;

#[derive(Debug)]
pub struct Descent {
    here: Dir,
    above: Vec<Above>,
}

#[derive(Debug)]
struct Above {
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

    /// Goes into a directory that is right here.
    pub fn enter(&mut self, name: &[u8]) -> io::Result<()> {
        let below = self.here.dir(&Rel::top().join(name));
        self.go(below)
    }

    /// The same, unless something is mounted on it.
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
        self.above.push(Above { id, handle: Some(handle) });
        if let Some(far) = self.above.len().checked_sub(HELD + 1) {
            self.above[far].handle = None;
        }
        Ok(())
    }

    /// Goes back up; at the top it stays.
    pub fn leave(&mut self) -> io::Result<()> {
        let Some(Above { id, handle }) = self.above.pop() else { return Ok(()) };
        let up = match handle {
            Some(handle) => handle,
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Dir::from_fd(rustix::fs::openat(&self.here, "..", flags, Mode::empty())?)
            }
        };
        if id_of(&up)? != id {
            return Err(io::Error::other("the tree was moved while it was walked"));
        }
        self.here = up;
        Ok(())
    }
}

fn id_of(dir: &Dir) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Sets the permission bits of a name right here, whatever they are now, and never those of what a link leads to.
pub fn set_mode(dir: &Dir, name: &[u8], mode: u32) -> io::Result<()> {
    let fd = dir.open_at(&Rel::top().join(name), OFlags::PATH, Mode::empty())?;
    if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) == rustix::fs::FileType::Symlink {
        return Err(Errno::LOOP.into());
    }
    // The only way to change what cannot be opened; the number is our own.
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::from_raw_mode(mode & 0o7777))?)
}
