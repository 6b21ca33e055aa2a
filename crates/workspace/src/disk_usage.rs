//! Disk usage of a tree: walked by handles, to any depth. Links are not followed, and only directories are opened.

use crate::descent::Descent;
use crate::{Dir, Layers};
use api::{DiskUsage, Rel};
use rustix::fs::{AtFlags, FileType};
use std::io;

/// Largest number of files that are counted; beyond it the result is marked partial.
const MOST: u64 = 20_000_000;

/// Disk usage of the changes in a layer, the home's among them, without overlayfs's work directories. Zero if the layer
/// is missing.
pub fn layer(layers: &Layers, id: &str) -> DiskUsage {
    let mut size = DiskUsage::default();
    for part in [b"up".as_slice(), b"home", b"brought", b"caches"] {
        match layers.dir.dir(&Rel::top().join(id.as_bytes()).join(part)) {
            Ok(top) => size.partial |= walk(&top, &mut size).is_err(),
            Err(e) => size.partial |= e.kind() != io::ErrorKind::NotFound,
        }
    }
    size
}

/// Disk usage of a directory and everything below it.
pub fn tree(top: &Dir) -> DiskUsage {
    let mut size = DiskUsage::default();
    size.partial |= walk(top, &mut size).is_err();
    size
}

fn walk(top: &Dir, size: &mut DiskUsage) -> io::Result<()> {
    let mut way = Descent::at(top)?;
    // Subdirectories still to visit, for each directory of the current path.
    let mut levels = vec![look(top, size)?];
    while let Some(waiting) = levels.last_mut() {
        if size.files > MOST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let Some(next) = waiting.pop() else {
            levels.pop();
            if !levels.is_empty() {
                way.leave()?;
            }
            continue;
        };
        if way.enter(&next).is_err() {
            size.partial = true;
            continue;
        }
        let below = look(way.here(), size).unwrap_or_else(|_| {
            size.partial = true;
            Vec::new()
        });
        levels.push(below);
    }
    Ok(())
}

/// Adds up the entries of a directory and returns its subdirectories.
fn look(dir: &Dir, size: &mut DiskUsage) -> io::Result<Vec<Vec<u8>>> {
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
    Ok(below)
}

/// True if a directory has no entries.
pub fn is_empty(dir: &Dir) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            return Ok(false);
        }
    }
    Ok(true)
}
