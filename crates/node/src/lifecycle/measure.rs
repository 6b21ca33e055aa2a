//! How much a tree takes: walked by handles, one at a time, to any depth. Links are not followed and nothing is opened
//! but directories.

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use serde::Serialize;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use workspace::{Dir, Rel};

/// Files that are looked at, at most; beyond them the figures say that they are not whole.
const MOST: u64 = 20_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Size {
    pub bytes: u64,
    pub files: u64,
    /// Some could not be looked at, or there were too many.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl std::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Size) {
        self.bytes += other.bytes;
        self.files += other.files;
        self.partial |= other.partial;
    }
}

/// A directory on the way down: which it is, and what of it is still to be looked at.
struct Level {
    id: (u64, u64),
    below: Vec<Vec<u8>>,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// What the tree `name` in `dir` takes; nothing where it is not there.
pub fn tree(dir: &Dir, name: &[u8]) -> Size {
    let mut size = Size::default();
    let walked = dir.dir(&Rel::top().join(name)).and_then(|top| walk(top.into(), &mut size));
    size.partial |= walked.is_err_and(|e| e.kind() != io::ErrorKind::NotFound);
    size
}

fn walk(top: OwnedFd, size: &mut Size) -> io::Result<()> {
    let mut levels = vec![look(&top, size)?];
    let mut at = top;
    while let Some(level) = levels.last_mut() {
        if size.files > MOST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if let Some(name) = level.below.pop() {
            match rustix::fs::openat(&at, name, DIRECTORY, Mode::empty()).map_err(io::Error::from) {
                Ok(below) => {
                    // A directory that cannot be listed is counted itself, and what is in it is not known.
                    match look(&below, size) {
                        Ok(found) => (levels.push(found), at = below).1,
                        Err(_) => size.partial = true,
                    }
                }
                Err(_) => size.partial = true,
            }
            continue;
        }
        levels.pop();
        let Some(above) = levels.last() else { break };
        at = rustix::fs::openat(&at, c"..", DIRECTORY, Mode::empty())?;
        if identity(&at)? != above.id {
            // Somebody moved it while we were below.
            return Err(io::ErrorKind::ResourceBusy.into());
        }
    }
    Ok(())
}

fn look(dir: &OwnedFd, size: &mut Size) -> io::Result<Level> {
    let mut below = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        size.files += 1;
        size.bytes += stat.st_blocks as u64 * 512;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            below.push(name.to_bytes().to_vec());
        }
    }
    Ok(Level { id: identity(dir)?, below })
}

fn identity(dir: &impl AsFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether anything is in a directory.
pub fn is_empty(dir: &Dir) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            return Ok(false);
        }
    }
    Ok(true)
}
