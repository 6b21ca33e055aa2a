//! Places in a tree that others may change at any time: the way to a directory, and what stands at a name there. Who a file is
//! is told by its inode and its birth, which no rename changes and no other file shares.

use crate::change::FileKind;
use crate::dir::Dir;
use crate::name::Rel;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;

/// Who a file is, under whatever name. Device numbers are left out: they may be others after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub ino: u64,
    /// When it was made, where the file system knows: an inode's number is given again to another file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub born: Option<(i64, u32)>,
}

/// What stands at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub id: Identity,
    pub kind: FileKind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
}

/// None where nothing has that name. A symbolic link is looked at, not followed.
pub fn look(dir: &Dir, name: &[u8]) -> io::Result<Option<Facts>> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = match rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    let knows_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
    Ok(Some(Facts {
        id: Identity { ino: found.stx_ino, born: knows_birth.then(|| time(found.stx_btime)) },
        kind: FileKind::of_mode(u32::from(found.stx_mode)),
        mode: u32::from(found.stx_mode) & 0o7777,
        owner: (found.stx_uid, found.stx_gid),
        size: found.stx_size,
        mtime: time(found.stx_mtime),
        ctime: time(found.stx_ctime),
    }))
}

/// The same of a directory that is open.
pub fn look_at(dir: &Dir) -> io::Result<Facts> {
    look(dir, b".")?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// So much of a path is given to the kernel at once; a path may be longer than it takes.
const STRETCH: usize = 3_000;

/// The directory at `at`, however long the way is.
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

/// The directory that holds `at`, and its name there.
pub fn parent_of<'a>(top: &Dir, at: &'a Rel) -> io::Result<(Dir, &'a [u8])> {
    let (above, name) = at.split().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((reach(top, &above)?, name))
}
