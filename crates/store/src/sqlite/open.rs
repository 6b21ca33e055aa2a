//! Opening the file: created where there is none, migrated where its schema is older, refused where it is newer. A file with the
//! current schema is not written to.

use super::checkpoint::AUTO_CHECKPOINT;
use super::{fault, journal};
use crate::chain_head::ChainHead;
use crate::fault::{gone, io, newer};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terms::Fault;

/// Version of the schema: the number of migrations that lead to it.
pub const SCHEMA: i64 = MIGRATIONS.len() as i64;

/// Migrations, each from one version of the schema to the next.
const MIGRATIONS: [&str; 2] = [
    "CREATE TABLE record (
         kind TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, name TEXT, scope TEXT, body TEXT NOT NULL,
         PRIMARY KEY (kind, id)) WITHOUT ROWID;
     CREATE UNIQUE INDEX record_name ON record (kind, name) WHERE name IS NOT NULL;
     CREATE INDEX record_scope ON record (kind, scope);
     CREATE TABLE journal (
         seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, verb TEXT NOT NULL, step TEXT NOT NULL, subject TEXT NOT NULL,
         actor TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
     CREATE INDEX journal_subject ON journal (subject, seq);",
    "CREATE TABLE key (
         key TEXT NOT NULL PRIMARY KEY, subject TEXT NOT NULL, params TEXT NOT NULL, expires_ms INTEGER NOT NULL) WITHOUT ROWID;
     CREATE INDEX key_expires ON key (expires_ms);
     CREATE INDEX record_open ON record (kind, id) WHERE json_extract(body, '$.ended_ms') IS NULL;",
];

/// An open store.
pub struct Opened {
    pub db: Connection,
    /// The reason why nothing can be written: the disk is full, and has no store yet. The store is an empty one in memory.
    pub unstored: Option<Fault>,
}

pub fn open(dir: &Path, path: &Path, busy_timeout: Duration) -> Result<Opened, Fault> {
    let head = &ChainHead::of(dir);
    let exists = match mode_of(path) {
        Some(mode) if mode & 0o077 != 0 => {
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(0o600), rustix::fs::AtFlags::empty())
                .map_err(|e| io(path, &e.into()))?;
            true
        }
        found => found.is_some(),
    };
    if !exists && let Some(full) = create(dir, path, head)? {
        let mut db = Connection::open_in_memory().map_err(|e| fault::of(path, &e))?;
        apply_migrations(&mut db, 0).map_err(|e| fault::of(path, &e))?;
        return Ok(Opened { db, unstored: Some(full) });
    }
    let is_new = is_log_empty(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let fail = |e: rusqlite::Error| fault::of(path, &e);
    let mut db = Connection::open_with_flags(path, flags).map_err(fail)?;
    db.busy_handler(Some(busy_handler(busy_timeout))).map_err(fail)?;
    // The log stays when the last connection closes: a process that only reads does not write.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fail)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(fail)?;
    let version = version_of(&db).map_err(fail)?;
    if version > SCHEMA {
        return Err(newer(path, version, SCHEMA));
    }
    if version < SCHEMA {
        let _lock = lock_schema(dir)?;
        migrate(&mut db, path, head)?;
    }
    if is_new {
        // From here on every commit is found again: the files have their names on the disk.
        sync_names(dir)?;
    }
    let settings = format!(
        "PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;
         PRAGMA wal_autocheckpoint = {AUTO_CHECKPOINT};"
    );
    db.execute_batch(&settings).map_err(fail)?;
    Ok(Opened { db, unstored: None })
}

/// Checks that a store could be opened: one that is gone, damaged or of a newer version is refused as by `open`. Nothing is written, and
/// none is created.
pub fn look(dir: &Path) -> Result<(), Fault> {
    let path = dir.join("store.db");
    if mode_of(&path).is_none() {
        let entries = ChainHead::of(dir).last_seq();
        return if entries == 0 { Ok(()) } else { Err(gone(&path, entries)) };
    }
    let fail = |e: rusqlite::Error| fault::of(&path, &e);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(&path, flags).map_err(fail)?;
    let version = version_of(&db).map_err(fail)?;
    if version > SCHEMA {
        return Err(newer(&path, version, SCHEMA));
    }
    // An older one is migrated when it is opened.
    let tables = if version == SCHEMA { &["record", "key", "journal"][..] } else { &[] };
    tables
        .iter()
        .try_for_each(|table| db.query_row(&format!("SELECT count(*) FROM {table}"), [], |_| Ok(())).map_err(fail))
}

/// Pauses between two tries to begin a transaction: the first, and the longest. SQLite's own grow to a tenth of a second, in which
/// processes that came later are served first.
const PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// Returns a handler that waits in short pauses while another connection writes.
fn busy_handler(timeout: Duration) -> impl FnMut(i32) -> bool + Send + 'static {
    let mut since = Instant::now();
    move |times| {
        if times == 0 {
            since = Instant::now();
        }
        std::thread::sleep(PAUSE.saturating_mul(1 << times.clamp(0, 5)).min(LONGEST_PAUSE));
        since.elapsed() < timeout
    }
}

fn mode_of(path: &Path) -> Option<u32> {
    std::fs::symlink_metadata(path).ok().map(|meta| meta.permissions().mode())
}

/// Tells whether the log is empty: then its name may not be on the disk yet.
fn is_log_empty(path: &Path) -> bool {
    std::fs::symlink_metadata(path.with_extension("db-wal")).map_or(true, |meta| meta.len() == 0)
}

/// Syncs the state directory, and the one above it: the state directory itself may be new.
fn sync_names(dir: &Path) -> Result<(), Fault> {
    for named in [Some(dir), dir.parent()].into_iter().flatten() {
        let open = rustix::fs::open(named, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        match open.and_then(rustix::fs::fsync) {
            // A directory above that this user may not read is not new.
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) if named != dir => {}
            // A read-only file system keeps what it has.
            Err(rustix::io::Errno::ROFS) => {}
            other => other.map_err(|e| io(named, &e.into()))?,
        }
    }
    Ok(())
}

/// Returns the version of a file's schema.
pub fn version_of(db: &Connection) -> rusqlite::Result<i64> {
    db.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Locks the state directory while the file is created, migrated or replaced. A lock on the file itself would release SQLite's own
/// when it is closed.
pub fn lock_schema(dir: &Path) -> Result<OwnedFd, Fault> {
    let lock = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let lock = lock.and_then(|fd| rustix::fs::flock(&fd, FlockOperation::LockExclusive).map(|()| fd));
    lock.map_err(|e| io(dir, &e.into()))
}

/// Creates the file, readable by its owner alone; SQLite gives the same mode to the files beside it. It gets its name when it is complete and
/// on the disk: a power failure leaves all of it, or nothing. Returns a fault where the disk is full, and nothing is left of it then.
fn create(dir: &Path, path: &Path, head: &ChainHead) -> Result<Option<Fault>, Fault> {
    let _lock = lock_schema(dir)?;
    if mode_of(path).is_some() {
        return Ok(None);
    }
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Ok(Some(fault::no_room(path, &e))),
        _ => Err(io(path, &e)),
    };
    match head.last_seq() {
        0 => {}
        entries => return Err(gone(path, entries)),
    }
    // Leftovers of a file that is gone, or was never completed.
    let suffixes = ["-wal", "-shm", "-journal", ".part", ".part-wal", ".part-shm", ".part-journal"];
    let mut removed = false;
    for suffix in suffixes {
        removed |= remove(&dir.join(format!("store.db{suffix}")))?;
    }
    if removed {
        // Before there is a file that they could be taken to belong to.
        sync_names(dir)?;
    }
    let part = dir.join("store.db.part");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let empty = rustix::fs::open(&part, flags, Mode::from_raw_mode(0o600));
    let empty = match empty {
        Ok(empty) => empty,
        Err(e) => return failed(e.into()),
    };
    if let Err(e) = fill(&part) {
        let _ = remove(&part); // it takes space and holds nothing
        let fault = fault::uncreated(path, &e);
        return if fault::is_full(&e) { Ok(Some(fault)) } else { Err(fault) };
    }
    let synced = rustix::fs::fsync(&empty).map_err(std::io::Error::from).and_then(|()| head.create(None));
    match synced.and_then(|()| std::fs::rename(&part, path)) {
        Ok(()) => Ok(None),
        Err(e) => {
            let _ = remove(&part); // as above
            failed(e)
        }
    }
}

/// Removes a file; tells whether there was one.
fn remove(path: &Path) -> Result<bool, Fault> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(io(path, &e)),
    }
}

fn fill(part: &Path) -> rusqlite::Result<()> {
    let mut db =
        Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW)?;
    // No other process has it, and it is synced as a whole.
    db.execute_batch("PRAGMA synchronous = OFF")?;
    apply_migrations(&mut db, 0)?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    db.close().map_err(|(_, e)| e)
}

/// Applies the migrations after `version`, all or none.
fn apply_migrations(db: &mut Connection, version: i64) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for migration in &MIGRATIONS[version.max(0) as usize..] {
        tx.execute_batch(migration)?;
    }
    tx.pragma_update(None, "user_version", SCHEMA)?;
    tx.commit()
}

/// Migrates a file to the current schema. The file as it was before is kept in a copy.
fn migrate(db: &mut Connection, path: &Path, head: &ChainHead) -> Result<(), Fault> {
    let fail = |e: rusqlite::Error| fault::of(path, &e);
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(fail)?;
    db.execute_batch("PRAGMA synchronous = FULL").map_err(fail)?;
    let version = version_of(db).map_err(fail)?;
    if version >= SCHEMA {
        return Ok(());
    }
    if version > 0 {
        keep_copy(db, path, version)?;
    }
    let last = match version {
        0 => None,
        _ => journal::last(db).map_err(fail)?,
    };
    head.create(last.as_ref()).map_err(|e| io(path, &e))?;
    apply_migrations(db, version).map_err(fail)
}

/// Copies the file to `store.db.schema-N` as the older version left it.
fn keep_copy(db: &Connection, path: &Path, version: i64) -> Result<(), Fault> {
    let with = |end: &str| PathBuf::from(format!("{}.schema-{version}{end}", path.display()));
    let (copy, part) = (with(""), with(".part"));
    let _ = std::fs::remove_file(&part);
    let fail = |e: std::io::Error| io(&part, &e);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let empty = rustix::fs::open(&part, flags, Mode::from_raw_mode(0o600)).map_err(|e| fail(e.into()))?;
    let name = part.to_str().ok_or_else(|| fail(std::io::ErrorKind::InvalidInput.into()))?;
    db.execute("VACUUM INTO ?1", [name]).map_err(|e| fault::of(path, &e))?;
    rustix::fs::fsync(&empty).map_err(|e| fail(e.into()))?;
    std::fs::rename(&part, &copy).map_err(fail)
}
