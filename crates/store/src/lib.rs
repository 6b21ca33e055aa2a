//! Records and the journal, in one SQLite file that survives crashes and power failures.
//!
//! A record is a document with an id, a version that grows with each change, and perhaps a name of its own and a scope to be
//! listed by. The journal is a chain: each entry's hash covers the one before. Both change in the same transaction or not
//! at all. There is no clock here; whoever writes says when it is.

mod journal;
mod record;

pub use journal::{Broken, Entry, Noted, Step, Verified};
pub use record::{Kept, Record};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase, Retry};

/// Grows when older versions can no longer read what we write.
pub const SCHEMA: i64 = 1;

/// How long another process's transaction is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Store {
    db: RefCell<Connection>,
    path: PathBuf,
}

/// What one transaction can do; all of it lands, or nothing.
pub struct Tx<'a> {
    db: &'a Connection,
}

impl Store {
    /// Opens the store in a directory, and makes one where there is none.
    pub fn open(dir: &Path) -> Result<Store, Fault> {
        let path = dir.join("store.db");
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&path, flags).map_err(|e| fault(&path, &e))?;
        let store = Store { db: RefCell::new(db), path };
        store.prepare()?;
        Ok(store)
    }

    fn prepare(&self) -> Result<(), Fault> {
        let db = self.db.borrow();
        let fail = |e: rusqlite::Error| fault(&self.path, &e);
        db.busy_timeout(PATIENCE).map_err(fail)?;
        let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(fail)?;
        if version > SCHEMA {
            let message = format!(
                "{}: written by a newer version (schema {version}, this one knows {SCHEMA})",
                self.path.display()
            );
            let fault = Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Admission);
            return Err(fault.hint("use that version, or set COFFERDAM_STATE to another directory"));
        }
        db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;")
            .map_err(fail)?;
        if version == SCHEMA {
            return Ok(());
        }
        db.execute_batch(&format!("BEGIN IMMEDIATE; {} PRAGMA user_version = {SCHEMA}; COMMIT;", TABLES)).map_err(fail)
    }

    /// Reads; sees one state, whatever others write meanwhile.
    pub fn read<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        self.transact(TransactionBehavior::Deferred, work)
    }

    /// Reads and writes, alone. What `work` did lands durably when it gives an answer, and not at all when it gives a fault.
    pub fn write<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        self.transact(TransactionBehavior::Immediate, work)
    }

    fn transact<T>(
        &self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut db = self.db.borrow_mut();
        let transaction = db.transaction_with_behavior(behavior).map_err(|e| fault(&self.path, &e))?;
        let answer = work(&Tx { db: &transaction })?;
        transaction.commit().map_err(|e| fault(&self.path, &e))?;
        Ok(answer)
    }
}

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS record (
        kind TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, name TEXT, scope TEXT, body TEXT NOT NULL,
        PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE UNIQUE INDEX IF NOT EXISTS record_name ON record (kind, name) WHERE name IS NOT NULL;
    CREATE INDEX IF NOT EXISTS record_scope ON record (kind, scope);
    CREATE TABLE IF NOT EXISTS journal (
        seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, verb TEXT NOT NULL, step TEXT NOT NULL, subject TEXT NOT NULL,
        actor TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
    CREATE INDEX IF NOT EXISTS journal_subject ON journal (subject, seq);
";

/// What SQLite says, as a person needs it.
fn fault(path: &Path, error: &rusqlite::Error) -> Fault {
    let message = format!("{}: {error}", path.display());
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Fault::new(ErrorKind::Unavailable, message)
            .hint("another cofferdam is writing; try again")
            .retry(Retry::Later),
        Some(ErrorCode::DiskFull) => {
            Fault::new(ErrorKind::Unavailable, message).hint("free some space, then try again")
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            Fault::new(ErrorKind::Internal, message).hint("restore the file from a backup, or move it away")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            Fault::new(ErrorKind::Unavailable, message)
                .hint("the state directory must be the caller's own and writable")
        }
        _ => Fault::new(ErrorKind::Internal, message),
    }
}

pub(crate) fn inner(error: rusqlite::Error) -> Fault {
    fault(Path::new("store.db"), &error)
}
