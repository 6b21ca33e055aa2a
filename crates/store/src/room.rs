//! Room for the last words, so that what frees space, and says so in the journal, still can when the disk is full: a file that holds
//! space which is given back then; and space beyond the end of the file that transactions are written to first, which nobody who
//! fills the disk meanwhile can take.

use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What is held at most, in bytes: a few transactions and the index that readers share.
const HELD: u64 = 1 << 20;
/// Less than this is not worth holding.
const LEAST: u64 = 64 << 10;
/// So much of what is free is held, so that a small disk has room for its last words, too.
const SHARE: u64 = 16;
/// What a transaction and the files beside it may need. Given back no sooner: what is free while a guest fills the disk is the guest's.
const NEEDED: u64 = 256 << 10;

pub struct Room {
    dir: PathBuf,
    path: PathBuf,
}

impl Room {
    pub fn of(dir: &Path) -> Room {
        Room { dir: dir.to_owned(), path: dir.join("reserve") }
    }

    /// Gives the space back where there is none left, and takes it again where there is some. Never fails: whoever needs
    /// the space will say so.
    pub fn make(&self) {
        let Ok(now) = rustix::fs::statvfs(&self.dir) else { return };
        let free = now.f_bavail.saturating_mul(now.f_frsize);
        if free < NEEDED {
            let _ = std::fs::remove_file(&self.path);
            return;
        }
        let worth = worth(free);
        if worth >= LEAST {
            self.hold(worth);
            self.hold_beside(worth);
        }
    }

    /// SQLite has no locks on this file that closing it could take away.
    fn hold_beside(&self, worth: u64) {
        let path = self.dir.join("store.db-wal");
        let Ok(meta) = std::fs::symlink_metadata(&path) else { return };
        if meta.blocks() * 512 >= meta.len() + worth / 2 {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else { return };
        let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, meta.len() + worth);
    }

    /// What was held when less was free grows.
    fn hold(&self, worth: u64) {
        let held = std::fs::symlink_metadata(&self.path).ok().map(|meta| meta.len());
        if held.is_some_and(|held| held >= worth) {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&self.path, flags, Mode::from_raw_mode(0o600)) else { return };
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, worth).is_err() && held.is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What to hold of what is free: in steps, so that it does not change with every byte.
fn worth(free: u64) -> u64 {
    let share = (free / SHARE).min(HELD);
    if share == 0 { 0 } else { 1 << share.ilog2() }
}
