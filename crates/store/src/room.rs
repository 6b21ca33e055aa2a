//! Room for the last words, so that what frees space, and says so in the journal, still can when the disk is full: a file that holds
//! space which is given back then; and space beyond the end of the file that transactions are written to first, which nobody who
//! fills the disk meanwhile can take.

use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What is held, in bytes: a few transactions and the index that readers share.
const HELD: u64 = 1 << 20;
/// Held again only where so much is free.
const PLENTY: u64 = 16 << 20;

pub struct Room {
    dir: PathBuf,
    path: PathBuf,
}

impl Room {
    pub fn of(dir: &Path) -> Room {
        Room { dir: dir.to_owned(), path: dir.join("reserve") }
    }

    /// Gives the space back where there is none left, and takes it again where there is plenty. Never fails: whoever needs
    /// the space will say so.
    pub fn make(&self) {
        let Ok(now) = rustix::fs::statvfs(&self.dir) else { return };
        let free = now.f_bavail.saturating_mul(now.f_frsize);
        if free < HELD {
            let _ = std::fs::remove_file(&self.path);
        } else if free > PLENTY {
            if !self.path.exists() {
                self.hold();
            }
            self.hold_beside();
        }
    }

    /// SQLite has no locks on this file that closing it could take away.
    fn hold_beside(&self) {
        let path = self.dir.join("store.db-wal");
        let Ok(meta) = std::fs::symlink_metadata(&path) else { return };
        if meta.blocks() * 512 >= meta.len() + HELD / 2 {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else { return };
        let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, meta.len() + HELD);
    }

    fn hold(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&self.path, flags, Mode::from_raw_mode(0o600)) else { return };
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, HELD).is_err() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
