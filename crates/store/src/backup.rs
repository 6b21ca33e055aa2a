//! Backups: a copy of the whole store in one SQLite file, taken while others write, verified before it is trusted, and put back.

use crate::backend::{Access, Backend, ChainLink};
use crate::chain;
use crate::chain_head::ChainHead;
use crate::fault;
use crate::files::sync_parent;
use crate::handle::Store;
use crate::sqlite::{self, SCHEMA, Sqlite};
use api::JournalVerified;
use rustix::fs::{CWD, Mode, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// Content of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackupContent {
    pub schema: i64,
    /// Number of journal entries, all of them as they were written.
    pub entries: u64,
    /// Hash of the last.
    pub head: String,
    pub bytes: u64,
}

/// Result of `restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    #[serde(flatten)]
    pub copied: BackupContent,
    /// Last entry of the journal that was there before, as far as that is known.
    pub entries_before: u64,
    /// Directory of the files that were there before.
    pub before: PathBuf,
}

impl Store {
    /// Copies everything, as it is at one moment, to a file that does not exist yet. Writers are not delayed.
    pub fn backup(&self, to: &Path) -> Result<BackupContent, Fault> {
        let part = with_suffix(to, "part");
        let _ = std::fs::remove_file(&part);
        let done = self.backend.copy_to(&part).and_then(|()| examine(&part)).and_then(|copied| {
            let moved = renameat_with(CWD, &part, CWD, to, RenameFlags::NOREPLACE);
            moved.map_err(|e| refused(to, e)).map(|()| copied)
        });
        if done.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        sync_parent(to);
        done
    }
}

/// Examines a backup without changing it: the file is sound, its schema is known, and its journal unbroken.
pub fn examine(file: &Path) -> Result<BackupContent, Fault> {
    let wrong = |why: &str| {
        let fault = Fault::invalid(format!("{}: {why}", file.display())).phase(Phase::Admission);
        fault.hint("name a file that `cofferdam backup` wrote")
    };
    let bytes = std::fs::metadata(file).map_err(|e| wrong(&e.to_string()))?.len();
    let (copy, schema) = Sqlite::open_copy(file).map_err(|why| wrong(&why))?;
    if schema > SCHEMA {
        return Err(fault::newer(file, schema, SCHEMA));
    }
    if schema < 1 {
        return Err(wrong("no store"));
    }
    let defects = copy.check().map_err(|fault| wrong(&fault.message))?;
    if let Some(first) = defects.first() {
        return Err(wrong(&format!("damaged: {first}")));
    }
    let JournalVerified { entries, head, broken, .. } = chain::verify(&*copy.begin(Access::Read)?, None)?;
    match broken {
        Some(broken) => Err(wrong(&format!("entry {} of its journal was changed: {}", broken.seq, broken.why))),
        None => Ok(BackupContent { schema, entries, head, bytes }),
    }
}

/// Puts a backup in the place of the store in `dir`, which no process may have open. The files that were there before are moved to
/// a directory beside it.
pub fn restore(dir: &Path, from: &Path, at_ms: u64) -> Result<Restored, Fault> {
    let copied = examine(from)?;
    let head = ChainHead::of(dir);
    let entries_before = head.last_seq();
    let _lock = sqlite::lock_schema(dir)?;
    let part = dir.join("store.db.restored");
    let io = |e: std::io::Error| fault::io(&part, &e);
    let _ = std::fs::remove_file(&part);
    std::fs::copy(from, &part).map_err(io)?;
    rustix::fs::chmodat(CWD, &part, Mode::from_raw_mode(0o600), rustix::fs::AtFlags::empty())
        .map_err(|e| io(e.into()))?;
    File::open(&part).and_then(|file| file.sync_all()).map_err(io)?;
    let before = dir.join(format!("before-restore-{at_ms}"));
    std::fs::DirBuilder::new().mode(0o700).create(&before).map_err(|e| fault::io(&before, &e))?;
    // From here on a crash leaves no store; `open` then tells that it is gone.
    for name in ["store.db", "store.db-wal", "store.db-shm", "journal.head"] {
        match std::fs::rename(dir.join(name), before.join(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(e)),
            _ => {}
        }
    }
    let last = (copied.entries > 0).then(|| ChainLink { seq: copied.entries, hash: copied.head.clone() });
    head.create(last.as_ref()).map_err(io)?;
    std::fs::rename(&part, dir.join("store.db")).map_err(io)?;
    sync_parent(&dir.join("store.db"));
    sqlite::enable_wal(dir)?;
    Ok(Restored { copied, entries_before, before })
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn refused(to: &Path, error: Errno) -> Fault {
    match error {
        Errno::EXIST => {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} exists already", to.display()));
            fault.hint("name a new file; no file is overwritten").phase(Phase::Admission)
        }
        other => fault::unwritable(to, &other.into()),
    }
}
