//! Copies of the file, and the integrity check.

use super::reserve::Reserve;
use super::{Sqlite, fault, open};
use crate::fault::unwritable;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Mode, OFlags};
use std::path::Path;
use terms::{ErrorKind, Fault};

impl Sqlite {
    /// Opens a copy for reading, whatever its schema; returns the schema's version, or why it is no store.
    pub fn open_copy(file: &Path) -> Result<(Sqlite, i64), String> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(file, flags).map_err(|e| e.to_string())?;
        let schema = open::version_of(&db).map_err(|e| format!("no store: {e}"))?;
        let reserve = Reserve::of(file.parent().unwrap_or(Path::new("")));
        Ok((Sqlite::of(db, file.to_owned(), None, reserve), schema))
    }
}

/// Copies the database to a new file, and syncs it.
pub fn copy_to(db: &Connection, to: &Path) -> Result<(), Fault> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let io = |e: std::io::Error| unwritable(to, &e);
    let file = rustix::fs::open(to, flags, Mode::from_raw_mode(0o600)).map_err(|e| io(e.into()))?;
    let fail = |e: rusqlite::Error| fault::of(to, &e);
    let mut copy = Connection::open(to).map_err(fail)?;
    {
        // All pages in one step are one reader, which sees one state and delays no writer.
        let backup = Backup::new(db, &mut copy).map_err(fail)?;
        match backup.step(-1).map_err(fail)? {
            StepResult::Done => {}
            _ => return Err(Fault::new(ErrorKind::Unavailable, "the store is busy").hint("try again")),
        }
    }
    // A file that needs no log beside it.
    copy.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).map_err(fail)?;
    copy.close().map_err(|(_, e)| fail(e))?;
    rustix::fs::fsync(&file).map_err(|e| io(e.into()))
}

/// Switches a file that was put in place to a write-ahead log.
pub fn enable_wal(dir: &Path) -> Result<(), Fault> {
    let fail = |e: rusqlite::Error| fault::of(dir, &e);
    let db = Connection::open(dir.join("store.db")).map_err(fail)?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(fail)
}

/// Checks the file; each line tells of one defect, in SQLite's words.
pub fn integrity(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = db.prepare("PRAGMA integrity_check(20)")?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}
