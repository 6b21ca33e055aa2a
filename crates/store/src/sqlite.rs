//! The SQLite back end: one file, `store.db`, with its write-ahead log beside it.

mod checkpoint;
mod copy;
mod fault;
mod flush;
mod journal;
mod key;
mod open;
mod record;
mod reserve;

pub use copy::enable_wal;
pub use open::{SCHEMA, lock_schema, look};

use crate::backend::{
    Access, Backend, ChainLink, Durability, EntryQuery, EntryRow, EntryVisitor, KeyRow, PendingSync, RecordFields,
    RecordQuery, RecordRow, Timed, Transaction, WriteOutcome,
};
use reserve::Reserve;
use rusqlite::{Connection, TransactionBehavior};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terms::{ErrorKind, Fault};

/// A connection to `store.db`.
pub struct Sqlite {
    db: Connection,
    path: PathBuf,
    /// Device and inode number of the open file.
    file: Option<(u64, u64)>,
    reserve: Reserve,
    /// A write or sync failed: pages that were handed to the disk may be lost.
    failed: Cell<bool>,
    /// A commit failed: the next handle may find all of it.
    in_doubt: Cell<bool>,
    /// Durability that the connection is set to.
    durability: Cell<Durability>,
    /// Relaxed commits were made since `pending` was called.
    pending: Cell<bool>,
    /// Last journal entry among them.
    last_pending: Cell<Option<u64>>,
    /// Relaxed commits reached the number of entries at which the log is checkpointed.
    checkpoint_due: Cell<bool>,
    /// The reason why nothing can be written, and the store is an empty one in memory.
    unstored: Option<Fault>,
}

impl Sqlite {
    /// Opens the file in a state directory, and creates it where there is none.
    pub fn open(dir: &Path, busy_timeout: Duration) -> Result<Sqlite, Fault> {
        let (path, reserve) = (dir.join("store.db"), Reserve::of(dir));
        reserve.adjust();
        // Taken before the file is opened: if another takes its place meanwhile, the handle is not current.
        let before = identity(&path);
        let open::Opened { db, unstored } = open::open(dir, &path, busy_timeout)?;
        let file = before.or_else(|| identity(&path));
        Ok(Sqlite { unstored, ..Sqlite::of(db, path, file, reserve) })
    }

    fn of(db: Connection, path: PathBuf, file: Option<(u64, u64)>, reserve: Reserve) -> Sqlite {
        Sqlite {
            db,
            path,
            file,
            reserve,
            failed: Cell::new(false),
            in_doubt: Cell::new(false),
            durability: Cell::new(Durability::Synced),
            pending: Cell::new(false),
            last_pending: Cell::new(None),
            checkpoint_due: Cell::new(false),
            unstored: None,
        }
    }

    fn prepare_write(&self, durability: Durability) -> Result<(), Fault> {
        if let Some(fault) = &self.unstored {
            return Err(fault.clone());
        }
        self.set_durability(durability)?;
        if self.failed.get() {
            let message =
                format!("{}: an earlier write did not reach the disk; no more is written", self.path.display());
            return Err(Fault::new(ErrorKind::Unavailable, message).hint("check the disk (`dmesg`), then repeat"));
        }
        self.reserve.adjust();
        self.shorten_log(durability)
    }

    /// Makes a fault of an error, and notes when pages may be lost: the kernel may take them for written, so that a second try
    /// proves nothing.
    fn fail(&self, error: &rusqlite::Error) -> Fault {
        self.failed.set(self.failed.get() || fault::is_lost(error));
        fault::of(&self.path, error)
    }
}

impl Backend for Sqlite {
    fn begin(&self, access: Access) -> Result<Box<dyn Transaction + '_>, Fault> {
        if !self.db.is_autocommit() {
            return Err(Fault::internal("a transaction is open on this handle already"));
        }
        let behavior = match access {
            Access::Read => TransactionBehavior::Deferred,
            Access::Write(durability) => {
                self.prepare_write(durability)?;
                TransactionBehavior::Immediate
            }
        };
        let tx = rusqlite::Transaction::new_unchecked(&self.db, behavior).map_err(|e| self.fail(&e))?;
        Ok(Box::new(SqliteTransaction { backend: self, tx, access, appended: Cell::new(None) }))
    }

    fn is_current(&self) -> bool {
        self.file.is_some() && identity(&self.path) == self.file
    }

    fn is_usable(&self) -> bool {
        self.unstored.is_none()
            && self.is_current()
            && open::version_of(&self.db).is_ok_and(|version| version == SCHEMA)
    }

    fn is_in_doubt(&self) -> bool {
        self.in_doubt.get()
    }

    fn is_sound(&self) -> bool {
        !self.failed.get() && !self.in_doubt.get()
    }

    fn pending(&self) -> Option<Box<dyn PendingSync>> {
        self.take_pending()
    }

    fn check(&self) -> Result<Vec<String>, Fault> {
        copy::integrity(&self.db).map_err(|e| fault::of(&self.path, &e))
    }

    fn copy_to(&self, file: &Path) -> Result<(), Fault> {
        copy::copy_to(&self.db, file)
    }
}

/// A transaction of the connection; dropped without `commit` it is rolled back.
struct SqliteTransaction<'a> {
    backend: &'a Sqlite,
    tx: rusqlite::Transaction<'a>,
    access: Access,
    /// Number of the last entry that it appended.
    appended: Cell<Option<u64>>,
}

impl SqliteTransaction<'_> {
    /// Returns the connection for writing. SQLite would turn a read transaction into a write transaction, without the wait for others.
    fn writer(&self) -> Result<&Connection, Fault> {
        match self.access {
            Access::Read => Err(Fault::internal("a read transaction cannot write")),
            Access::Write(_) => Ok(&self.tx),
        }
    }
}

impl Transaction for SqliteTransaction<'_> {
    fn select(
        &self,
        query: &RecordQuery<'_>,
        visit: &mut dyn FnMut(RecordRow) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        record::select(&self.tx, query, visit)
    }

    fn ids(&self, kind: &str, prefix: &str, limit: u32) -> Result<Vec<String>, Fault> {
        record::ids(&self.tx, kind, prefix, limit).map_err(fault::inner)
    }

    fn ids_in_scope(&self, scope: &str, limit: u32) -> Result<Vec<(String, String)>, Fault> {
        record::ids_in_scope(&self.tx, scope, limit).map_err(fault::inner)
    }

    fn count(&self, kind: &str) -> Result<u64, Fault> {
        record::count(&self.tx, kind).map_err(fault::inner)
    }

    fn times(&self, kind: &str, field: &str) -> Result<Vec<Timed>, Fault> {
        record::times(&self.tx, kind, field).map_err(fault::inner)
    }

    fn references(&self, field: &str, except: &[&str]) -> Result<BTreeMap<String, u64>, Fault> {
        record::references(&self.tx, field, except).map_err(fault::inner)
    }

    fn insert(&self, row: &RecordFields<'_>) -> Result<WriteOutcome, Fault> {
        record::insert(self.writer()?, row).map_err(fault::inner)
    }

    fn update(&self, row: &RecordFields<'_>, expected: u64) -> Result<WriteOutcome, Fault> {
        record::update(self.writer()?, row, expected).map_err(fault::inner)
    }

    fn delete(&self, kind: &str, id: &str) -> Result<bool, Fault> {
        record::delete(self.writer()?, kind, id).map_err(fault::inner)
    }

    fn key(&self, key: &str, now_ms: u64) -> Result<Option<KeyRow>, Fault> {
        key::get(&self.tx, key, now_ms).map_err(fault::inner)
    }

    fn put_key(&self, row: &KeyRow) -> Result<(), Fault> {
        key::put(self.writer()?, row).map_err(fault::inner)
    }

    fn expired_keys(&self, now_ms: u64, limit: u32) -> Result<Vec<String>, Fault> {
        key::expired(&self.tx, now_ms, limit).map_err(fault::inner)
    }

    fn delete_expired_key(&self, key: &str, now_ms: u64) -> Result<bool, Fault> {
        key::delete_expired(self.writer()?, key, now_ms).map_err(fault::inner)
    }

    fn last_entry(&self) -> Result<Option<ChainLink>, Fault> {
        journal::last(&self.tx).map_err(fault::inner)
    }

    fn append(&self, row: &EntryRow) -> Result<(), Fault> {
        journal::append(self.writer()?, row)?;
        self.appended.set(Some(row.seq));
        Ok(())
    }

    fn entries(&self, query: &EntryQuery<'_>, visit: &mut EntryVisitor<'_>) -> Result<(), Fault> {
        journal::select(&self.tx, query, visit)
    }

    fn entry_range(&self) -> Result<Option<(u64, u64)>, Fault> {
        journal::range(&self.tx).map_err(fault::inner)
    }

    fn delete_entries(&self, last: u64) -> Result<(), Fault> {
        journal::delete(self.writer()?, last).map_err(fault::inner)
    }

    fn commit(self: Box<Self>) -> Result<(), Fault> {
        let SqliteTransaction { backend, tx, access, appended } = *self;
        tx.commit().map_err(|e| {
            backend.in_doubt.set(true);
            backend.fail(&e)
        })?;
        backend.committed(access, appended.get());
        Ok(())
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}
