//! Copies of the whole store: taken while others write, looked at before they are trusted, and put back in its place.

use crate::head::Head;
use crate::journal::{Verified, chain};
use crate::open::{SCHEMA, alone};
use crate::{Store, fault};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// What a copy holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copied {
    pub schema: i64,
    /// Entries of the journal, all of them as they were written.
    pub entries: u64,
    /// The hash of the last.
    pub head: String,
    pub bytes: u64,
}

/// What `restore` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    #[serde(flatten)]
    pub copied: Copied,
    /// How far the journal went that was there before, as far as that is known.
    pub entries_before: u64,
    /// Where the files went that were there before.
    pub before: PathBuf,
}

impl Store {
    /// Copies everything, as it is at one moment, to a file that is not there yet. Writers are not kept waiting.
    pub fn backup(&self, to: &Path) -> Result<Copied, Fault> {
        let part = beside(to, "part");
        let _ = std::fs::remove_file(&part);
        let done = self.copy_to(&part).and_then(|()| examine(&part)).and_then(|copied| {
            let moved = renameat_with(CWD, &part, CWD, to, RenameFlags::NOREPLACE);
            moved.map_err(|e| taken(to, e)).map(|()| copied)
        });
        if done.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        sync_above(to);
        done
    }

    fn copy_to(&self, part: &Path) -> Result<(), Fault> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let io = |e: std::io::Error| unwritable(part, &e);
        let file = rustix::fs::open(part, flags, Mode::from_raw_mode(0o600)).map_err(|e| io(e.into()))?;
        let fail = |e: rusqlite::Error| fault::of(part, &e);
        let mut copy = Connection::open(part).map_err(fail)?;
        {
            let db = self.db.borrow();
            // All pages in one step: that is one reader, which sees one state and keeps no writer waiting.
            let backup = Backup::new(&db, &mut copy).map_err(fail)?;
            match backup.step(-1).map_err(fail)? {
                StepResult::Done => {}
                _ => return Err(Fault::new(ErrorKind::Unavailable, "the store is busy").hint("try again")),
            }
        }
        // One file that needs no other beside it.
        copy.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).map_err(fail)?;
        copy.close().map_err(|(_, e)| fail(e))?;
        rustix::fs::fsync(&file).map_err(|e| io(e.into()))
    }

    /// What is wrong with the file itself, in SQLite's words; nothing where all is well.
    pub fn sound(&self) -> Result<Vec<String>, Fault> {
        integrity(&self.db.borrow()).map_err(|e| fault::of(&self.path, &e))
    }
}

/// Looks at a copy, without changing it: a sound file, a version that we know, an unbroken journal.
pub fn examine(file: &Path) -> Result<Copied, Fault> {
    let wrong = |why: &str| {
        let fault = Fault::invalid(format!("{}: {why}", file.display())).phase(Phase::Admission);
        fault.hint("name a file that `cofferdam backup` wrote")
    };
    let bytes = std::fs::metadata(file).map_err(|e| wrong(&e.to_string()))?.len();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(file, flags).map_err(|e| wrong(&e.to_string()))?;
    let schema: i64 =
        db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(|e| wrong(&format!("no store: {e}")))?;
    if schema > SCHEMA {
        return Err(fault::newer(file, schema, SCHEMA));
    }
    if schema < 1 {
        return Err(wrong("no store"));
    }
    let broken = integrity(&db).map_err(|e| wrong(&e.to_string()))?;
    if let Some(first) = broken.first() {
        return Err(wrong(&format!("damaged: {first}")));
    }
    let Verified { entries, head, broken, .. } = chain(&db, None)?;
    match broken {
        Some(broken) => {
            Err(wrong(&format!("entry {} of its journal is not as it was written: {}", broken.seq, broken.why)))
        }
        None => Ok(Copied { schema, entries, head, bytes }),
    }
}

/// Puts a copy in the place of the store in `dir`. Nobody may have that store open. What was there before is kept beside.
pub fn restore(dir: &Path, from: &Path, at_ms: u64) -> Result<Restored, Fault> {
    let copied = examine(from)?;
    let head = Head::of(dir);
    let entries_before = head.furthest();
    let _alone = alone(dir)?;
    let part = dir.join("store.db.restored");
    let io = |e: std::io::Error| fault::around(&part, &e);
    let _ = std::fs::remove_file(&part);
    std::fs::copy(from, &part).map_err(io)?;
    rustix::fs::chmodat(CWD, &part, Mode::from_raw_mode(0o600), rustix::fs::AtFlags::empty())
        .map_err(|e| io(e.into()))?;
    File::open(&part).and_then(|file| file.sync_all()).map_err(io)?;
    let before = dir.join(format!("before-restore-{at_ms}"));
    std::fs::DirBuilder::new().mode(0o700).create(&before).map_err(|e| fault::around(&before, &e))?;
    // From here on a crash leaves no store, which is told with where to find both.
    for name in ["store.db", "store.db-wal", "store.db-shm", "journal.head"] {
        match std::fs::rename(dir.join(name), before.join(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(e)),
            _ => {}
        }
    }
    head.begin((copied.entries > 0).then(|| (copied.entries, copied.head.clone()))).map_err(io)?;
    std::fs::rename(&part, dir.join("store.db")).map_err(io)?;
    sync_above(&dir.join("store.db"));
    // Opened once, so that it is as we keep it: brought up to date, with its pages beside it.
    let db = Connection::open(dir.join("store.db")).map_err(|e| fault::of(dir, &e))?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(|e| fault::of(dir, &e))?;
    drop(db);
    Ok(Restored { copied, entries_before, before })
}

fn integrity(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = db.prepare("PRAGMA integrity_check(20)")?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

/// The name is on the disk only when its directory is.
pub(crate) fn sync_above(file: &Path) {
    let above = file.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _ = File::open(above).and_then(|dir| dir.sync_all());
}

fn taken(to: &Path, error: Errno) -> Fault {
    match error {
        Errno::EXIST => {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} is there already", to.display()));
            fault.hint("name a file that is not; nothing is written over").phase(Phase::Admission)
        }
        other => unwritable(to, &other.into()),
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).phase(Phase::Delivery);
    fault.hint("name a file in a directory that you may write to, with space left")
}
