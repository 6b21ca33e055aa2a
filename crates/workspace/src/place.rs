//! Lookups in a tree that may change at any time: opening a directory, and metadata of a name in it. A file is
//! identified by inode number and birth time, which no rename changes and no other file shares.

use crate::dir::Dir;
use api::{FileKind, Rel};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;

/// Identity of a file under any name. The device number is left out: it may change with a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub ino: u64,
    /// Birth time, if the file system records it: inode numbers are reused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub born: Option<(i64, u32)>,
}

/// Metadata of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    pub id: Identity,
    pub kind: FileKind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
}

/// Metadata of a name by statx; None if it does not exist. A symbolic link is not followed.
pub fn look(dir: &Dir, name: &[u8]) -> io::Result<Option<FileFacts>> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = match rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    let knows_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
    Ok(Some(FileFacts {
        id: Identity { ino: found.stx_ino, born: knows_birth.then(|| time(found.stx_btime)) },
        kind: FileKind::of_mode(u32::from(found.stx_mode)),
        mode: u32::from(found.stx_mode) & 0o7777,
        owner: (found.stx_uid, found.stx_gid),
        size: found.stx_size,
        mtime: time(found.stx_mtime),
        ctime: time(found.stx_ctime),
    }))
}

/// Metadata of an open directory.
pub fn look_at(dir: &Dir) -> io::Result<FileFacts> {
    look(dir, b".")?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Length up to which a path is passed to one system call, below PATH_MAX.
const STRETCH: usize = 3_000;

/// Opens the directory at `at`, also beyond PATH_MAX.
pub fn reach(top: &Dir, at: &Rel) -> io::Result<Dir> {
    if at.as_bytes().len() <= STRETCH {
        return top.dir(at);
    }
    let (mut here, mut stretch) = (top.try_clone()?, Rel::top());
    for part in at.parts() {
        stretch = stretch.join(part);
        if stretch.as_bytes().len() > STRETCH {
            here = here.dir(&std::mem::take(&mut stretch))?;
        }
    }
    here.dir(&stretch)
}

/// Opens the parent directory of `at` and returns the last name.
pub fn parent_of<'a>(top: &Dir, at: &'a Rel) -> io::Result<(Dir, &'a [u8])> {
    let (above, name) = at.split().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((reach(top, &above)?, name))
}
