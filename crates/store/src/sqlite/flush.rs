//! Relaxed durability: commits that do not wait for the disk. Every process sees them at once, and they survive all processes; a power
//! failure alone can take them back, the last ones first, until the log is synced.

use super::{Sqlite, fault};
use crate::backend::{Access, Durability, PendingSync};
use crate::fault::io;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Mode, OFlags};
use std::path::PathBuf;
use std::time::Duration;
use terms::Fault;

/// Journal entries per checkpoint: the handle whose entry is the last of so many checkpoints the log for all. However many processes
/// write, and however little each, the log stays short.
const CHECKPOINT_EVERY: u64 = 24;
/// Pages of log beyond which writers are held up for a moment, because readers and writers kept the log from being restarted.
const RESTART_PAGES: i64 = 1024;
const RESTART_TIMEOUT: Duration = Duration::from_millis(20);

/// The log, with relaxed commits in it.
#[derive(Debug)]
struct WalFile {
    /// `store.db-wal`; SQLite syncs it before it moves its pages to `store.db`.
    log: PathBuf,
    file: PathBuf,
    checkpoint_due: bool,
}

impl Sqlite {
    pub(super) fn set_durability(&self, durability: Durability) -> Result<(), Fault> {
        if self.durability.get() == durability {
            return Ok(());
        }
        let pragma = match durability {
            Durability::Synced => "PRAGMA synchronous = FULL",
            Durability::Relaxed => "PRAGMA synchronous = NORMAL",
        };
        self.db.execute_batch(pragma).map_err(|e| fault::of(&self.path, &e))?;
        self.durability.set(durability);
        Ok(())
    }

    /// Counts a commit and the last journal entry in it.
    pub(super) fn committed(&self, access: Access, appended: Option<u64>) {
        match access {
            Access::Read => {}
            // Relaxed commits before it are on the disk together with it.
            Access::Write(Durability::Synced) => {
                if appended.is_some() {
                    self.last_pending.set(None);
                }
            }
            Access::Write(Durability::Relaxed) => {
                self.pending.set(true);
                if let Some(seq) = appended {
                    let before = self.last_pending.get().unwrap_or(seq - 1);
                    let due = seq / CHECKPOINT_EVERY != before / CHECKPOINT_EVERY;
                    self.checkpoint_due.set(self.checkpoint_due.get() || due);
                    self.last_pending.set(Some(seq));
                }
            }
        }
    }

    pub(super) fn take_pending(&self) -> Option<Box<dyn PendingSync>> {
        if !self.pending.replace(false) {
            return None;
        }
        self.last_pending.set(None);
        let log = self.path.with_extension("db-wal");
        Some(Box::new(WalFile { log, file: self.path.clone(), checkpoint_due: self.checkpoint_due.take() }))
    }
}

impl PendingSync for WalFile {
    fn sync(&self) -> Result<(), Fault> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let synced = rustix::fs::open(&self.log, flags, Mode::empty()).and_then(rustix::fs::fdatasync);
        synced.map_err(|e| io(&self.log, &e.into()))
    }

    /// Checkpoints the log now and then: otherwise the next commit would have to, and each process that opens the file would read
    /// the log.
    fn maintain(&self) -> Result<(), Fault> {
        if !self.checkpoint_due {
            return Ok(());
        }
        let fail = |e: rusqlite::Error| fault::of(&self.file, &e);
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let db = Connection::open_with_flags(&self.file, flags).map_err(fail)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fail)?;
        let pages: i64 = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1)).map_err(fail)?;
        if pages > RESTART_PAGES {
            db.busy_timeout(RESTART_TIMEOUT).map_err(fail)?;
            // A process that still reads then is waited for the next time.
            db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).map_err(fail)?;
        }
        Ok(())
    }
}
