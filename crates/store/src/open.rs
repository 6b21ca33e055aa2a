//! Opening the file: made where there is none, brought up to date where it is older, refused where it is newer. A file
//! that is up to date is not written to.

use crate::{fault, head::Head, log::BEYOND};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terms::Fault;

/// Grows when older versions can no longer read what we write: one more than there are steps before it.
pub const SCHEMA: i64 = STEPS.len() as i64;

/// What leads from each version to the next.
const STEPS: [&str; 2] = [
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

pub fn open(dir: &Path, path: &Path, head: &Head, patience: Duration) -> Result<Connection, Fault> {
    let old = match mode_of(path) {
        Some(mode) if mode & 0o077 != 0 => {
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(0o600), rustix::fs::AtFlags::empty())
                .map_err(|e| fault::around(path, &e.into()))?;
            true
        }
        found => found.is_some(),
    };
    if !old {
        make(dir, path, head)?;
    }
    let unnamed = is_unnamed(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let fail = |e: rusqlite::Error| fault::of(path, &e);
    let mut db = Connection::open_with_flags(path, flags).map_err(fail)?;
    db.busy_handler(Some(waits(patience))).map_err(fail)?;
    // The pages beside the file stay there when the last one leaves: who only reads does not write.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fail)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(fail)?;
    let version = version_of(&db).map_err(fail)?;
    if version > SCHEMA {
        return Err(fault::newer(path, version, SCHEMA));
    }
    if version < SCHEMA {
        let _alone = alone(dir)?;
        bring_up(&mut db, path, head)?;
    }
    if unnamed {
        // From here on whatever is committed is found again: these files have their names on the disk.
        settle_names(dir)?;
    }
    let settings = format!(
        "PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;
         PRAGMA wal_autocheckpoint = {BEYOND};"
    );
    db.execute_batch(&settings).map_err(fail)?;
    Ok(db)
}

/// Whether a store could be opened: one that is gone, damaged or of a newer version is refused as `open` would. Nothing is written, and
/// none is made where there is none.
pub fn look(dir: &Path) -> Result<(), Fault> {
    let path = dir.join("store.db");
    if mode_of(&path).is_none() {
        let entries = Head::of(dir).furthest();
        return if entries == 0 { Ok(()) } else { Err(fault::gone(&path, entries)) };
    }
    let fail = |e: rusqlite::Error| fault::of(&path, &e);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(&path, flags).map_err(fail)?;
    let version = version_of(&db).map_err(fail)?;
    if version > SCHEMA {
        return Err(fault::newer(&path, version, SCHEMA));
    }
    // One that is older is brought up to date when it is opened.
    let tables = if version == SCHEMA { &["record", "key", "journal"][..] } else { &[] };
    tables
        .iter()
        .try_for_each(|table| db.query_row(&format!("SELECT count(*) FROM {table}"), [], |_| Ok(())).map_err(fail))
}

/// How long one waits between two looks whether another's transaction has ended: first, and at most. SQLite's own pauses grow to a tenth
/// of a second, in which those who came later are served first.
const PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// Waits while somebody else writes, in short pauses, as long as there is patience.
fn waits(patience: Duration) -> impl FnMut(i32) -> bool + Send + 'static {
    let mut since = Instant::now();
    move |times| {
        if times == 0 {
            since = Instant::now();
        }
        std::thread::sleep(PAUSE.saturating_mul(1 << times.clamp(0, 5)).min(LONGEST_PAUSE));
        since.elapsed() < patience
    }
}

fn mode_of(path: &Path) -> Option<u32> {
    std::fs::symlink_metadata(path).ok().map(|meta| meta.permissions().mode())
}

/// Whether the file that transactions go to first may have no name on the disk yet: nobody has written to it, and whoever does makes
/// sure of its name before.
fn is_unnamed(path: &Path) -> bool {
    std::fs::symlink_metadata(path.with_extension("db-wal")).map_or(true, |meta| meta.len() == 0)
}

/// The state directory's own name goes to the disk, too: it may just have been made.
fn settle_names(dir: &Path) -> Result<(), Fault> {
    for named in [Some(dir), dir.parent()].into_iter().flatten() {
        let open = rustix::fs::open(named, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        match open.and_then(rustix::fs::fsync) {
            // A directory above that we may not read was not made by us.
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) if named != dir => {}
            // A disk that nothing can be written to keeps what it has.
            Err(rustix::io::Errno::ROFS) => {}
            other => other.map_err(|e| fault::around(named, &e.into()))?,
        }
    }
    Ok(())
}

pub(crate) fn version_of(db: &Connection) -> rusqlite::Result<i64> {
    db.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Held while the file is made or changed in its make. Never a lock on the file itself: to close any handle on that would
/// take away SQLite's own.
pub fn alone(dir: &Path) -> Result<OwnedFd, Fault> {
    let held = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let held = held.and_then(|fd| rustix::fs::flock(&fd, FlockOperation::LockExclusive).map(|()| fd));
    held.map_err(|e| fault::around(dir, &e.into()))
}

/// A file for nobody but us; SQLite gives its bits to the files beside it. It gets its name when it is whole and on the disk: a power
/// failure leaves it, or nothing.
fn make(dir: &Path, path: &Path, head: &Head) -> Result<(), Fault> {
    let _alone = alone(dir)?;
    if mode_of(path).is_some() {
        return Ok(());
    }
    match head.furthest() {
        0 => {}
        entries => return Err(fault::gone(path, entries)),
    }
    // What lies beside belongs to a file that is no more, or was never done.
    let ends = ["-wal", "-shm", "-journal", ".part", ".part-wal", ".part-shm", ".part-journal"];
    let mut removed = false;
    for end in ends {
        removed |= remove(&dir.join(format!("store.db{end}")))?;
    }
    if removed {
        // Before there is a file that it could be taken for a part of.
        settle_names(dir)?;
    }
    let part = dir.join("store.db.part");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let empty = rustix::fs::open(&part, flags, Mode::from_raw_mode(0o600));
    let empty = empty.map_err(|e| fault::around(&part, &e.into()))?;
    if let Err(e) = fill(&part) {
        // It takes space, and says nothing.
        let _ = remove(&part);
        return Err(fault::unmade(path, &e));
    }
    let settled = rustix::fs::fsync(&empty).map_err(std::io::Error::from).and_then(|()| head.begin(None));
    settled.and_then(|()| std::fs::rename(&part, path)).map_err(|e| fault::around(path, &e))
}

/// Whether there was one.
fn remove(path: &Path) -> Result<bool, Fault> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(fault::around(path, &e)),
    }
}

fn fill(part: &Path) -> rusqlite::Result<()> {
    let mut db =
        Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW)?;
    // Nobody else has it, and it goes to the disk as a whole.
    db.execute_batch("PRAGMA synchronous = OFF")?;
    climb(&mut db, 0)?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    db.close().map_err(|(_, e)| e)
}

/// Takes the steps that are missing, all or none.
fn climb(db: &mut Connection, version: i64) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in &STEPS[version.max(0) as usize..] {
        tx.execute_batch(step)?;
    }
    tx.pragma_update(None, "user_version", SCHEMA)?;
    tx.commit()
}

/// Takes the steps that are missing, all or none. What was there before is kept in a copy.
fn bring_up(db: &mut Connection, path: &Path, head: &Head) -> Result<(), Fault> {
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
        _ => last_entry(db).map_err(fail)?,
    };
    head.begin(last).map_err(|e| fault::around(path, &e))?;
    climb(db, version).map_err(fail)
}

fn last_entry(db: &Connection) -> rusqlite::Result<Option<(u64, String)>> {
    let mut found = db.prepare("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1")?;
    let mut rows = found.query([])?;
    rows.next()?.map(|row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))).transpose()
}

/// `store.db.schema-N`: the file as the older version left it.
fn keep_copy(db: &Connection, path: &Path, version: i64) -> Result<(), Fault> {
    let with = |end: &str| PathBuf::from(format!("{}.schema-{version}{end}", path.display()));
    let (copy, part) = (with(""), with(".part"));
    let _ = std::fs::remove_file(&part);
    let io = |e: std::io::Error| fault::around(&part, &e);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let empty = rustix::fs::open(&part, flags, Mode::from_raw_mode(0o600)).map_err(|e| io(e.into()))?;
    let name = part.to_str().ok_or_else(|| io(std::io::ErrorKind::InvalidInput.into()))?;
    db.execute("VACUUM INTO ?1", [name]).map_err(|e| fault::of(path, &e))?;
    rustix::fs::fsync(&empty).map_err(|e| io(e.into()))?;
    std::fs::rename(&part, &copy).map_err(io)
}
