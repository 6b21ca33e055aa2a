//! The handle that callers use: it opens a store, runs transactions on its back end, and keeps `journal.head` behind the disk.

use crate::backend::{Access, Backend, ChainLink, Durability, PendingSync};
use crate::chain_head::ChainHead;
use crate::location::Location;
use crate::sqlite::Sqlite;
use crate::transaction::Tx;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terms::Fault;

/// Longest wait for another process's write transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A handle on a store: records, idempotency keys and the journal. A handle belongs to one thread at a time.
pub struct Store {
    pub(crate) backend: Box<dyn Backend>,
    /// State directory on this machine: `journal.head` and the journal's segments are here, whatever the back end.
    pub(crate) dir: PathBuf,
    pub(crate) head: ChainHead,
    /// Last journal entry that was committed with relaxed durability and is not known to be on the disk.
    unsynced: RefCell<Option<ChainLink>>,
}

impl Store {
    /// Opens the store at a directory or URL, and creates it where there is none.
    pub fn open<'a>(location: impl Into<Location<'a>>) -> Result<Store, Fault> {
        Store::open_patiently(location, BUSY_TIMEOUT)
    }

    /// Opens a store with another bound on the wait for other writers.
    pub fn open_patiently<'a>(location: impl Into<Location<'a>>, busy_timeout: Duration) -> Result<Store, Fault> {
        let dir = location.into().directory()?;
        Ok(Store::with_backend(dir, Box::new(Sqlite::open(dir, busy_timeout)?)))
    }

    /// Makes a handle of an open back end and the state directory on this machine.
    pub fn with_backend(dir: &Path, backend: Box<dyn Backend>) -> Store {
        Store { backend, dir: dir.to_owned(), head: ChainHead::of(dir), unsynced: RefCell::new(None) }
    }

    /// Tells whether the open database is the one that is at its location. A handle that is kept for long is checked by this and
    /// opened again.
    pub fn is_current(&self) -> bool {
        self.backend.is_current()
    }

    /// Tells whether a handle that was kept open can be used: it is current, and no other version has changed the schema.
    pub fn is_usable(&self) -> bool {
        self.backend.is_usable()
    }

    /// Tells whether a write that returned a fault may have landed all the same, because the disk failed during the commit. Files
    /// that such a write refers to must be kept.
    pub fn is_in_doubt(&self) -> bool {
        self.backend.is_in_doubt()
    }

    /// Tells whether the disk kept all writes and no commit is in doubt.
    pub fn is_sound(&self) -> bool {
        self.backend.is_sound()
    }

    /// Checks the database's own structures; each line tells of one defect.
    pub fn sound(&self) -> Result<Vec<String>, Fault> {
        self.backend.check()
    }

    /// Reads in one transaction, which sees one state whatever others write meanwhile.
    pub fn read<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        self.transact(Access::Read, work).map(|(answer, _)| answer)
    }

    /// Reads and writes in one transaction, while no other writes. It is on the disk when `work` returns an answer, and has no effect
    /// when `work` returns a fault; `is_in_doubt` tells where the disk left that open.
    pub fn write<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        let (answer, appended) = self.transact(Access::Write(Durability::Synced), work)?;
        if let Some(link) = appended {
            // Earlier commits are on the disk together with this one.
            self.unsynced.replace(None);
            self.head.advance(&link);
        }
        Ok(answer)
    }

    /// Writes with relaxed durability: like `write`, but without waiting for the disk. The commits reach the disk with the next `write`
    /// of any handle, or when `unsettled` is settled.
    pub fn write_soon<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        let (answer, appended) = self.transact(Access::Write(Durability::Relaxed), work)?;
        if appended.is_some() {
            self.unsynced.replace(appended);
        }
        Ok(answer)
    }

    /// Returns the relaxed commits since the last call; none where there are none.
    pub fn unsettled(&self) -> Option<Unsettled> {
        let pending = self.backend.pending()?;
        Some(Unsettled { pending, head: self.head.clone(), last: self.unsynced.take() })
    }

    fn transact<T>(
        &self,
        access: Access,
        work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>,
    ) -> Result<(T, Option<ChainLink>), Fault> {
        let rows = self.backend.begin(access)?;
        let tx = Tx::new(&*rows);
        let answer = work(&tx)?;
        let appended = tx.appended.into_inner();
        rows.commit()?;
        Ok((answer, appended))
    }
}

/// Commits with relaxed durability, to be brought to the disk by a thread that can wait.
#[must_use]
#[derive(Debug)]
pub struct Unsettled {
    pending: Box<dyn PendingSync>,
    head: ChainHead,
    last: Option<ChainLink>,
}

impl Unsettled {
    /// Waits for the disk, then lets `journal.head` follow and the back end do its maintenance. After a failure of the disk the
    /// commits may be lost with the power, and a second try proves nothing.
    pub fn settle(self) -> Result<(), Fault> {
        self.pending.sync()?;
        if let Some(link) = &self.last {
            self.head.advance(link);
        }
        self.pending.maintain()
    }
}
