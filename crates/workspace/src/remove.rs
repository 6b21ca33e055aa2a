//! Removes trees of any depth and size by directory handles, without following links, in little memory. They belong to
//! the caller, so directories that a guest made inaccessible are opened with chmod first. A mount point in a tree is
//! an error, and nothing below it is touched.

use crate::descent::{Descent, set_mode};
use crate::dir::Dir;
use api::FileKind;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::io;

/// Totals of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub files: u64,
    pub dirs: u64,
    /// Disk space. A file with several hard links counts once for each.
    pub bytes: u64,
}

/// Names read from a directory at a time; fewer at great depth, because the names of all parents are held as well.
const BATCH: usize = 1024;
const BATCH_DEEP: usize = 16;
const DEEP: usize = 64;

/// Removes `name` in `dir` and everything below; a missing name is not an error. After an error or a crash part of it
/// is gone, and a repeated call removes the rest.
pub fn tree(dir: &Dir, name: &[u8]) -> io::Result<Removed> {
    tree_while(dir, name, &mut |_| Ok(()))
}

/// Removes a tree and calls `go_on` before each name: a guest may refill the tree as fast as it is emptied.
pub fn tree_while(dir: &Dir, name: &[u8], go_on: &mut dyn FnMut(&Removed) -> io::Result<()>) -> io::Result<Removed> {
    let mut removed = Removed::default();
    let mut way = Descent::at(dir)?;
    // Name of each directory of the current path, and names in it still to remove.
    let mut levels: Vec<(Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
    if take(&way, name, &mut removed)? {
        return Ok(removed);
    }
    enter(&mut way, &mut levels, name)?;
    while let Some((own, waiting)) = levels.last_mut() {
        if waiting.is_empty() {
            *waiting = some_names(way.here(), way.depth())?;
        }
        match waiting.pop() {
            Some(next) => {
                go_on(&removed)?;
                if !take(&way, &next, &mut removed)? {
                    enter(&mut way, &mut levels, &next)?;
                }
            }
            None => {
                let own = std::mem::take(own);
                levels.pop();
                way.leave()?;
                ignore_missing(rustix::fs::unlinkat(way.here(), &own[..], AtFlags::REMOVEDIR))?;
                removed.dirs += 1;
            }
        }
    }
    Ok(removed)
}

/// Removes the contents of a directory.
pub fn contents(dir: &Dir) -> io::Result<Removed> {
    let mut removed = Removed::default();
    loop {
        let names = some_names(dir, 0)?;
        if names.is_empty() {
            return Ok(removed);
        }
        for name in names {
            let more = tree(dir, &name)?;
            removed.files += more.files;
            removed.dirs += more.dirs;
            removed.bytes += more.bytes;
        }
    }
}

/// Unlinks a name that is not a directory; returns true if it is gone.
fn take(way: &Descent, name: &[u8], removed: &mut Removed) -> io::Result<bool> {
    let Some(meta) = way.here().meta_of(name)? else { return Ok(true) };
    if meta.kind != FileKind::Dir {
        way.here().check_not_mounted_on(name)?;
        ignore_missing(rustix::fs::unlinkat(way.here(), name, AtFlags::empty()))?;
        removed.files += 1;
        removed.bytes += meta.space;
        return Ok(true);
    }
    removed.bytes += meta.space;
    if meta.mode & 0o700 != 0o700 && !way.here().is_mounted_on(name)? {
        set_mode(way.here(), name, meta.mode | 0o700)?;
    }
    Ok(false)
}

fn enter(way: &mut Descent, levels: &mut Vec<(Vec<u8>, Vec<Vec<u8>>)>, name: &[u8]) -> io::Result<()> {
    way.enter_same_mount(name)?;
    levels.push((name.to_vec(), Vec::new()));
    Ok(())
}

fn some_names(dir: &Dir, depth: usize) -> io::Result<Vec<Vec<u8>>> {
    let most = if depth < DEEP { BATCH } else { BATCH_DEEP };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
        if names.len() == most {
            break;
        }
    }
    Ok(names)
}

fn ignore_missing(done: rustix::io::Result<()>) -> io::Result<()> {
    match done {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
#[path = "remove_test.rs"]
mod tests;
