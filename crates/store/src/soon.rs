//! Commits that do not wait for the disk. Everybody sees them at once, and they outlive every process; a failure of power alone can
//! take them back, the last ones first, until they are settled. `journal.head` hears of them when they are: it never leads.

use crate::head::Head;
use crate::{Store, Tx, fault};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Mode, OFlags};
use std::path::PathBuf;
use std::time::Duration;
use terms::Fault;

/// One entry of the journal in so many falls to whoever wrote it: he moves the pages that all have left beside the file. However many
/// write, and however little each, they stay few.
const MOVED_EVERY: u64 = 24;
/// Where they are more than this all the same, because somebody always reads or writes, all are kept waiting for a moment.
const TOO_MANY_BESIDE: i64 = 1024;
const MOMENT: Duration = Duration::from_millis(20);

/// What was committed without waiting, to be brought to the disk by whoever has time to wait.
#[must_use]
#[derive(Debug)]
pub struct Unsettled {
    /// Pages that are not in the file yet; SQLite brings these to the disk before it moves them there.
    beside: PathBuf,
    file: PathBuf,
    head: Head,
    last: Option<(u64, String)>,
    moves: bool,
}

impl Store {
    /// The same as `write`, but for the disk: settle it within a time that somebody can bear to lose.
    pub fn write_soon<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        self.wait_for_disk(false)?;
        let (answer, noted) = self.commit(work)?;
        self.unsettled.set(true);
        if let Some((seq, _)) = &noted {
            let before = self.ahead.borrow().as_ref().map_or(seq - 1, |(before, _)| *before);
            self.moves.set(self.moves.get() || seq / MOVED_EVERY != before / MOVED_EVERY);
            self.ahead.replace(noted);
        }
        Ok(answer)
    }

    /// What was written soon since this was asked last; none where nothing was.
    pub fn unsettled(&self) -> Option<Unsettled> {
        if !self.unsettled.replace(false) {
            return None;
        }
        let beside = self.path.with_extension("db-wal");
        let (head, last, moves) = (self.head.clone(), self.ahead.take(), self.moves.take());
        Some(Unsettled { beside, file: self.path.clone(), head, last, moves })
    }

    pub(crate) fn wait_for_disk(&self, waits: bool) -> Result<(), Fault> {
        if self.waits.get() == waits {
            return Ok(());
        }
        let level = if waits { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
        self.db.borrow().execute_batch(level).map_err(|e| fault::of(&self.path, &e))?;
        self.waits.set(waits);
        Ok(())
    }
}

impl Unsettled {
    /// Waits for the disk. A failure means that what was committed may be lost with the power, and that nobody can try again: the
    /// kernel may take the lost bytes for written. Now and then it also moves pages that are beside the file into it: else the next
    /// who commits would have to, and whoever opens the file would look through them.
    pub fn settle(self) -> Result<(), Fault> {
        self.sync()?;
        if self.moves { self.move_pages() } else { Ok(()) }
    }

    fn move_pages(&self) -> Result<(), Fault> {
        let file = &self.file;
        let fail = |e: rusqlite::Error| fault::of(file, &e);
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let db = Connection::open_with_flags(file, flags).map_err(fail)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fail)?;
        let beside: i64 = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1)).map_err(fail)?;
        if beside > TOO_MANY_BESIDE {
            db.busy_timeout(MOMENT).map_err(fail)?;
            // Who does not let go in time is asked again the next time.
            db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).map_err(fail)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Fault> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let synced = rustix::fs::open(&self.beside, flags, Mode::empty()).and_then(rustix::fs::fdatasync);
        synced.map_err(|e| fault::around(&self.beside, &e.into()))?;
        if let Some((seq, hash)) = &self.last {
            self.head.advance(*seq, hash);
        }
        Ok(())
    }
}
