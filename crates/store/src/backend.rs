//! The interface between the store and the database that holds its rows. The store knows types, kinds, hashes and segments; a back
//! end knows rows, and no more of a body than that it is a JSON object. `tests/conformance` is the contract in executable form.
//!
//! Rules that callers of the store rely on, and every back end keeps:
//!
//! - A write transaction is alone: `begin` waits until no other handle has one open, and gives a fault with `Retry::Later` when that
//!   takes too long. The journal's chain and every read-then-write of a caller depend on it.
//! - A read transaction sees the database as it was at its first read, and neither waits for a writer nor delays one.
//! - A read transaction cannot write: each operation that would is a fault.
//! - A transaction that is dropped without `commit` has no effect.
//! - A row that is refused (`WriteOutcome::Taken`, `WriteOutcome::Stale`) leaves its transaction usable.
//! - Texts are compared and sorted byte by byte, without regard to a locale. A text to be written has no NUL character, which the
//!   store checks; a text to be looked up may have one, and matches nothing.
//! - Numbers of entries, versions and times to be written are below 2^63.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use terms::Fault;

/// Wait for the disk at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The commit returns when it is on the disk, and with it all commits before it.
    Synced,
    /// The commit returns when every process sees it. It survives a crash of any process, and may be lost with the power until
    /// the handle's `pending` is synced. Commits are lost in reverse order: none survives one that came before it.
    Relaxed,
}

/// Kind of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write(Durability),
}

/// A handle on one database. Several handles, in one process or in many, may be open on the same database at a time.
pub trait Backend: Send {
    /// Begins a transaction. A handle has one at a time; a second is a fault.
    fn begin(&self, access: Access) -> Result<Box<dyn Transaction + '_>, Fault>;

    /// Tells whether the handle still leads to the database that is at its location.
    fn is_current(&self) -> bool;

    /// Tells whether a handle that was kept open can be used: it is current, and the schema is the one that this version writes.
    fn is_usable(&self) -> bool;

    /// Tells whether a commit that returned a fault may have landed all the same.
    fn is_in_doubt(&self) -> bool;

    /// Tells whether every write through this handle was kept by the disk and no commit is in doubt.
    fn is_sound(&self) -> bool;

    /// Returns the commits that were made with `Durability::Relaxed` since the last call, to be synced by another thread.
    fn pending(&self) -> Option<Box<dyn PendingSync>>;

    /// Checks the database's own structures; each line tells of one defect.
    fn check(&self) -> Result<Vec<String>, Fault>;

    /// Copies the database as it is at one moment to a new SQLite file, which is on the disk when this returns. SQLite is the
    /// format of copies for every back end. Writers are not delayed.
    fn copy_to(&self, file: &Path) -> Result<(), Fault>;
}

/// Commits that wait to be synced.
pub trait PendingSync: Send + std::fmt::Debug {
    /// Waits until they are on the disk. A failure is final: the kernel may take lost pages for written, so that a second try
    /// proves nothing.
    fn sync(&self) -> Result<(), Fault>;

    /// Does the maintenance that the commits made due. Called after `sync`.
    fn maintain(&self) -> Result<(), Fault> {
        Ok(())
    }
}

/// Operations on rows within one transaction.
pub trait Transaction {
    /// Visits records of a kind in the order of their ids, at most `limit`.
    fn select(
        &self,
        query: &RecordQuery<'_>,
        visit: &mut dyn FnMut(RecordRow) -> Result<(), Fault>,
    ) -> Result<(), Fault>;

    /// Returns ids of a kind that begin with `prefix`, in order, at most `limit`.
    fn ids(&self, kind: &str, prefix: &str, limit: u32) -> Result<Vec<String>, Fault>;

    /// Returns kinds and ids of records of a scope, in the order of both, at most `limit`.
    fn ids_in_scope(&self, scope: &str, limit: u32) -> Result<Vec<(String, String)>, Fault>;

    /// Returns how many records of a kind there are.
    fn count(&self, kind: &str) -> Result<u64, Fault>;

    /// Returns records of a kind with a number in the top-level field `field`, the lowest first, then by id.
    fn times(&self, kind: &str, field: &str) -> Result<Vec<Timed>, Fault>;

    /// Counts, for each text in the top-level list `field` of any record, the occurrences. Kinds in `except` are skipped.
    fn references(&self, field: &str, except: &[&str]) -> Result<BTreeMap<String, u64>, Fault>;

    /// Inserts a record with version 1. `Taken` where the id exists in its kind, or the name.
    fn insert(&self, row: &RecordFields<'_>) -> Result<WriteOutcome, Fault>;

    /// Replaces a record and increments its version, if it has the version `expected`. `Stale` where it has another or is gone,
    /// `Taken` where another record has the name.
    fn update(&self, row: &RecordFields<'_>, expected: u64) -> Result<WriteOutcome, Fault>;

    /// Deletes a record; tells whether there was one.
    fn delete(&self, kind: &str, id: &str) -> Result<bool, Fault>;

    /// Returns an idempotency key that expires after `now_ms`.
    fn key(&self, key: &str, now_ms: u64) -> Result<Option<KeyRow>, Fault>;

    /// Inserts an idempotency key, or replaces the one of the same name.
    fn put_key(&self, row: &KeyRow) -> Result<(), Fault>;

    /// Returns keys that have expired at `now_ms`, the earliest first, then by name, at most `limit`.
    fn expired_keys(&self, now_ms: u64, limit: u32) -> Result<Vec<String>, Fault>;

    /// Deletes a key if it has expired at `now_ms`; tells whether it did.
    fn delete_expired_key(&self, key: &str, now_ms: u64) -> Result<bool, Fault>;

    /// Returns the number and the hash of the journal's last entry.
    fn last_entry(&self) -> Result<Option<ChainLink>, Fault>;

    /// Appends an entry to the journal. A number that is not the one after `last_entry` is a fault, and nothing is appended. An empty journal
    /// takes any number: a copy of a journal whose first entries were archived begins with a later one.
    fn append(&self, row: &EntryRow) -> Result<(), Fault>;

    /// Visits entries of the journal. An entry that is damaged is visited as a fault; the visitor decides whether to go on.
    fn entries(&self, query: &EntryQuery<'_>, visit: &mut EntryVisitor<'_>) -> Result<(), Fault>;

    /// Returns the numbers of the first and the last entry; none where the journal is empty.
    fn entry_range(&self) -> Result<Option<(u64, u64)>, Fault>;

    /// Deletes the journal's entries up to number `last`, which were archived.
    fn delete_entries(&self, last: u64) -> Result<(), Fault>;

    /// Commits. After a fault the handle's `is_in_doubt` tells whether it may have landed.
    fn commit(self: Box<Self>) -> Result<(), Fault>;
}

/// Visitor of journal entries.
pub type EntryVisitor<'v> = dyn FnMut(Result<EntryRow, Fault>) -> Result<ControlFlow<()>, Fault> + 'v;

/// Selection of records of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordQuery<'a> {
    pub kind: &'a str,
    pub filter: Filter<'a>,
    pub limit: Option<u32>,
}

/// Condition that a record meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter<'a> {
    All,
    Id(&'a str),
    Name(&'a str),
    IdPrefix(&'a str),
    Scope(&'a str),
    /// The scope is a path below this one.
    ScopeBelow(&'a str),
    /// The body has no value in `ended_ms`.
    Open,
}

/// Record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRow {
    pub id: String,
    pub version: u64,
    /// JSON object.
    pub body: String,
}

/// Record to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFields<'a> {
    pub kind: &'a str,
    pub id: &'a str,
    /// Unique within the kind.
    pub name: Option<&'a str>,
    pub scope: Option<&'a str>,
    /// JSON object.
    pub body: &'a str,
}

/// Outcome of writing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// The id or the name belongs to another record.
    Taken,
    /// The record has another version than expected, or is gone.
    Stale,
}

/// Record by one of its times, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    pub id: String,
    pub scope: Option<String>,
    pub at_ms: u64,
}

/// Idempotency key as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    pub key: String,
    pub subject: String,
    /// JSON.
    pub params: String,
    pub expires_ms: u64,
}

/// Number and hash of a journal entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainLink {
    pub seq: u64,
    pub hash: String,
}

/// Journal entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    pub seq: u64,
    pub at_ms: u64,
    pub verb: String,
    pub step: String,
    pub subject: String,
    pub actor: String,
    /// JSON, in the bytes that the hash covers.
    pub body: String,
    pub hash: String,
}

/// Selection of journal entries; a field without a value accepts all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery<'a> {
    /// Numbers above this one.
    pub after: u64,
    /// Numbers below this one.
    pub below: Option<u64>,
    pub subject: Option<&'a str>,
    pub verb: Option<&'a str>,
    pub actor: Option<&'a str>,
    pub step: Option<&'a str>,
    pub order: Order,
    pub limit: Option<u32>,
}

/// Order of journal entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    OldestFirst,
    NewestFirst,
}
