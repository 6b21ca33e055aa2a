//! Records, keys and the journal, in one SQLite file that survives crashes and power failures.
//!
//! A record is a document with an id, a version that grows with each change, and perhaps a name of its own and a scope to be
//! listed by. The journal is a chain: each entry's hash covers the one before, and `journal.head` beside the file remembers
//! how far it went; its oldest part can be moved to a file of its own. All change in the same transaction or not at all. There is no clock here; whoever writes says when it is.

mod backup;
mod fault;
mod head;
mod journal;
mod key;
mod log;
mod open;
mod part;
mod record;
mod room;
mod soon;

pub use backup::{Copied, Restored, examine, restore};
pub use journal::{Broken, Entry, Noted, Step, Verified, Wanted};
pub use key::Key;
pub use open::{SCHEMA, look};
pub use part::Part;
pub use record::{Kept, Record, Timed};
pub use soon::Unsettled;

pub(crate) use fault::inner;
use head::Head;
use room::Room;
use rusqlite::{Connection, TransactionBehavior};
use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terms::{ErrorKind, Fault};

/// How long another process's transaction is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Store {
    db: RefCell<Connection>,
    path: PathBuf,
    /// Which file it is, by device and number.
    file: Option<(u64, u64)>,
    head: Head,
    room: Room,
    /// Set when the disk did not keep what it was given.
    failed: Cell<bool>,
    /// Set when a commit failed: whoever opens the store next may find all of it there.
    in_doubt: Cell<bool>,
    /// Whether commits wait for the disk, as the connection is set now.
    waits: Cell<bool>,
    /// The last entry of the journal that was committed without waiting, and is not known to be on the disk.
    ahead: RefCell<Option<(u64, String)>>,
    /// Something was.
    unsettled: Cell<bool>,
    /// It is for whoever settles that to move pages into the file.
    moves: Cell<bool>,
}

/// What one transaction can do; all of it lands, or nothing.
pub struct Tx<'a> {
    db: &'a Connection,
    /// The last entry that it added to the journal.
    noted: RefCell<Option<(u64, String)>>,
}

impl Store {
    /// Opens the store in a directory, and makes one where there is none.
    pub fn open(dir: &Path) -> Result<Store, Fault> {
        Store::open_patiently(dir, PATIENCE)
    }

    /// The same, with another bound on how long other writers are waited for.
    pub fn open_patiently(dir: &Path, patience: Duration) -> Result<Store, Fault> {
        let (path, head, room) = (dir.join("store.db"), Head::of(dir), Room::of(dir));
        room.make();
        // Looked at before, where there is one: should another take its place meanwhile, it is seen as not this one.
        let before = identity(&path);
        let db = open::open(dir, &path, &head, patience)?;
        let file = before.or_else(|| identity(&path));
        let (failed, in_doubt) = (Cell::new(false), Cell::new(false));
        let (waits, unsettled, moves, ahead) =
            (Cell::new(true), Cell::new(false), Cell::new(false), RefCell::default());
        Ok(Store { db: RefCell::new(db), path, file, head, room, failed, in_doubt, waits, ahead, unsettled, moves })
    }

    /// Whether the file that is open is the one that is there. Who keeps a store open for long asks this, and opens it again.
    pub fn is_current(&self) -> bool {
        self.file.is_some() && identity(&self.path) == self.file
    }

    /// Whether one that was kept open can go on to be used: the file is the one that is there, and nobody has brought it to another
    /// version meanwhile.
    pub fn is_usable(&self) -> bool {
        self.is_current() && open::version_of(&self.db.borrow()).is_ok_and(|version| version == SCHEMA)
    }

    /// Whether a write that gave a fault may have landed all the same: the disk failed in the midst of it. What it would have told of
    /// must not be taken away.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt.get()
    }

    /// Whether all that was asked of it was done: neither did the disk lose anything nor is a commit in doubt.
    pub fn is_sound(&self) -> bool {
        !self.failed.get() && !self.in_doubt.get()
    }

    /// Reads; sees one state, whatever others write meanwhile.
    pub fn read<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        self.transact(TransactionBehavior::Deferred, work).map(|(answer, _)| answer)
    }

    /// Reads and writes, alone. What `work` did lands durably when it gives an answer, and not at all when it gives a fault; `is_in_doubt` tells
    /// where the disk left that open.
    pub fn write<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        self.wait_for_disk(true)?;
        let (answer, noted) = self.commit(work)?;
        if let Some((seq, hash)) = noted {
            // What was committed before it is on the disk with it.
            self.ahead.replace(None);
            self.head.advance(seq, &hash);
        }
        Ok(answer)
    }

    /// One transaction that writes; its answer, and the last entry that it added to the journal.
    fn commit<T>(&self, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<(T, Option<(u64, String)>), Fault> {
        if self.failed.get() {
            let message =
                format!("{}: the disk did not keep what was written before; nothing more is", self.path.display());
            return Err(Fault::new(ErrorKind::Unavailable, message).hint("look at the disk (`dmesg`), then ask again"));
        }
        self.room.make();
        self.shorten_log()?;
        self.transact(TransactionBehavior::Immediate, work)
    }

    fn transact<T>(
        &self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>,
    ) -> Result<(T, Option<(u64, String)>), Fault> {
        let mut db = self.db.borrow_mut();
        let fail = |e: rusqlite::Error| {
            // After a failed sync the kernel may take the lost bytes for written: to try again would be to pretend.
            self.failed.set(self.failed.get() || fault::is_lost(&e));
            fault::of(&self.path, &e)
        };
        let transaction = db.transaction_with_behavior(behavior).map_err(fail)?;
        let tx = Tx { db: &transaction, noted: RefCell::new(None) };
        let answer = work(&tx)?;
        let noted = tx.noted.into_inner();
        transaction.commit().map_err(|e| {
            self.in_doubt.set(true);
            fail(e)
        })?;
        Ok((answer, noted))
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}
