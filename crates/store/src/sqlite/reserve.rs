//! Disk space that is held in reserve, so that verbs which free space, and journal it, can write when the disk is full: a file that is
//! removed then; and blocks beyond the end of the write-ahead log, which no process that fills the disk can take.

use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Upper bound in bytes: a few transactions and the index that readers share.
const MAX_BYTES: u64 = 1 << 20;
/// Lower bound; less is not worth holding.
const MIN_BYTES: u64 = 64 << 10;
/// Fraction of the free space that is held, so that a small disk has a reserve, too.
const SHARE: u64 = 16;
/// Free space below which the reserve is given back: the need of a transaction and of the files beside the database. Given back sooner,
/// it would go to the guest that fills the disk.
const RELEASE_BELOW: u64 = 256 << 10;

/// The reserve of a state directory.
pub struct Reserve {
    dir: PathBuf,
    path: PathBuf,
}

impl Reserve {
    pub fn of(dir: &Path) -> Reserve {
        Reserve { dir: dir.to_owned(), path: dir.join("reserve") }
    }

    /// Gives the space back where little is free, and takes it again where there is enough. Never fails: a write that lacks the
    /// space reports so.
    pub fn adjust(&self) {
        let Ok(now) = rustix::fs::statvfs(&self.dir) else { return };
        let free = now.f_bavail.saturating_mul(now.f_frsize);
        if free < RELEASE_BELOW {
            let _ = std::fs::remove_file(&self.path);
            return;
        }
        let bytes = reserve_of(free);
        if bytes >= MIN_BYTES {
            self.hold_file(bytes);
            self.hold_in_log(bytes);
        }
    }

    /// Allocates blocks beyond the end of the log. SQLite has no locks on this file that closing it could release.
    fn hold_in_log(&self, bytes: u64) {
        let path = self.dir.join("store.db-wal");
        let Ok(meta) = std::fs::symlink_metadata(&path) else { return };
        if meta.blocks() * 512 >= meta.len() + bytes / 2 {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else { return };
        let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, meta.len() + bytes);
    }

    /// Creates the file, or grows one that was created when less was free.
    fn hold_file(&self, bytes: u64) {
        let held = std::fs::symlink_metadata(&self.path).ok().map(|meta| meta.len());
        if held.is_some_and(|held| held >= bytes) {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&self.path, flags, Mode::from_raw_mode(0o600)) else { return };
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).is_err() && held.is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the size of the reserve for an amount of free space: a power of two, so that it does not change with every byte.
fn reserve_of(free: u64) -> u64 {
    let share = (free / SHARE).min(MAX_BYTES);
    if share == 0 { 0 } else { 1 << share.ilog2() }
}
