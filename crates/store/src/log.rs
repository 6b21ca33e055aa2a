//! The log beside the file, which transactions go to first, is kept short. Whoever opens the store as the only one reads all of it; and how
//! much of it is in the file already is known only as long as somebody has the store open. A process that commits once and goes
//! would move pages after its commit for nothing: the next could not begin the log anew, and would move them again. So they are
//! moved before, and the commit that follows begins it anew.

use crate::{Store, fault};
use terms::Fault;

/// A log of so many pages is begun anew by who waits for the disk in any case; by others when it is very long.
const LONG: i64 = 256;
const VERY_LONG: i64 = 512;

/// What SQLite's own way is left to, which moves pages after a commit: a single transaction that writes so many.
pub(crate) const BEYOND: u32 = 4096;

impl Store {
    /// As far as nobody reads old pages; nobody is waited for but the disk.
    pub(crate) fn shorten_log(&self) -> Result<(), Fault> {
        let most = if self.waits.get() { LONG } else { VERY_LONG };
        let db = self.db.borrow();
        let told = |how: &str| {
            let mut statement = db.prepare(how)?;
            statement.query_row([], |row| row.get::<_, i64>(1))
        };
        let shortened = match told("PRAGMA wal_checkpoint(NOOP)") {
            Ok(pages) if pages >= most => told("PRAGMA wal_checkpoint(PASSIVE)"),
            other => other,
        };
        match shortened {
            // Pages that could not be moved are still in the log. But what the disk did not keep is lost, whoever asked for it.
            Err(e) if fault::is_unsynced(&e) => {
                self.failed.set(true);
                Err(fault::of(&self.path, &e))
            }
            // A transaction that cannot be written says so itself.
            _ => Ok(()),
        }
    }
}
