//! Checkpoints of the write-ahead log before a commit, so that it stays short. A process that opens the store while no other has it open
//! reads the whole log; and how far it was checkpointed is known only as long as some process has the store open. A process that
//! commits once and exits would checkpoint after its commit for nothing: the next could not restart the log, and would checkpoint
//! the same pages again. So the checkpoint comes first, and the commit that follows restarts the log.

use super::{Sqlite, fault};
use crate::backend::Durability;
use terms::Fault;

/// Pages of log that a synced commit finds when it checkpoints first; a relaxed commit, which would have to wait for the disk only
/// for this, does so later.
const LIMIT_SYNCED: i64 = 256;
const LIMIT_RELAXED: i64 = 512;

/// Pages of log after which SQLite checkpoints by itself after a commit: reached by a single large transaction only.
pub const AUTO_CHECKPOINT: u32 = 4096;

impl Sqlite {
    /// Checkpoints a log that is too long, as far as no reader needs old pages. Waits for the disk, and for no process.
    pub fn shorten_log(&self, durability: Durability) -> Result<(), Fault> {
        let limit = match durability {
            Durability::Synced => LIMIT_SYNCED,
            Durability::Relaxed => LIMIT_RELAXED,
        };
        let checkpoint = |pragma: &str| {
            let mut statement = self.db.prepare(pragma)?;
            statement.query_row([], |row| row.get::<_, i64>(1))
        };
        let shortened = match checkpoint("PRAGMA wal_checkpoint(NOOP)") {
            Ok(pages) if pages >= limit => checkpoint("PRAGMA wal_checkpoint(PASSIVE)"),
            other => other,
        };
        match shortened {
            // Pages that could not be moved are still in the log. But pages that the disk did not keep are lost.
            Err(e) if fault::is_unsynced(&e) => {
                self.failed.set(true);
                Err(fault::of(&self.path, &e))
            }
            // A transaction that cannot be written reports so itself.
            _ => Ok(()),
        }
    }
}
