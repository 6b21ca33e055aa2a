//! Room for the last words: a file that holds space which is given back when the disk is full, so that what frees space,
//! and says so in the journal, still can.

use rustix::fs::{FallocateFlags, Mode, OFlags};
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
        } else if free > PLENTY && !self.path.exists() {
            self.hold();
        }
    }

    fn hold(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&self.path, flags, Mode::from_raw_mode(0o600)) else { return };
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, HELD).is_err() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
