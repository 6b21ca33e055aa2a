//! The store: records, idempotency keys and the journal, which change in the same transaction or not at all.
//!
//! A record is a JSON document with an id, a version that grows with each change, and perhaps a unique name and a scope to be listed by. The
//! journal is a hash chain, whose head `journal.head` remembers outside of the database; its oldest entries can be moved to segment files.
//! There is no clock here: the caller gives the times.
//!
//! ```text
//!  record  key  journal  segment  verify  backup      typed operations
//!                    handle: Store, Tx
//!                    backend: trait                   rows, filters, transactions, durability
//!                    sqlite                           the back end behind a directory
//! ```

pub mod backend;
mod backup;
mod chain;
mod chain_head;
mod fault;
mod files;
mod handle;
mod journal;
mod key;
mod kind;
mod location;
mod record;
mod segment;
mod sqlite;
mod transaction;
mod verify;

pub use backend::Timed;
pub use backup::{BackupContent, Restored, examine, restore};
pub use chain::Segment;
pub use handle::{Store, Unsettled};
pub use journal::{Entry, JournalFilter};
pub use key::Key;
pub use kind::{IdShape, Kind};
pub use location::Location;
pub use record::{Kept, Record};
pub use sqlite::{SCHEMA, Sqlite, look};
pub use transaction::Tx;
