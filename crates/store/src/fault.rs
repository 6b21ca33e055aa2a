//! What SQLite says, as a person needs it.

use rusqlite::{Error, ErrorCode, ffi};
use std::path::Path;
use terms::{ErrorKind, Fault, Phase, Retry};

const REBUILD: &str = "put a good copy in its place; or move store.db* and journal.head away, and `cofferdam gc` takes up \
                       the workspaces that are left";

const FULL: &str = "the disk is full: `cofferdam rm` and `cofferdam gc` free space; where there is no room left even for that, remove \
                    something else from it";

pub fn of(path: &Path, error: &Error) -> Fault {
    let message = format!("{}: {error}", path.display());
    let unavailable = |hint: &str| Fault::new(ErrorKind::Unavailable, message.clone()).hint(hint);
    let fault = match (error.sqlite_error_code(), error.sqlite_error().map(|e| e.extended_code)) {
        (_, Some(ffi::SQLITE_IOERR_SHMSIZE)) | (Some(ErrorCode::DiskFull), _) => unavailable(FULL).retry(Retry::Later),
        (Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked), _) => {
            unavailable("another cofferdam is writing; try again").retry(Retry::Later)
        }
        (Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt), _) => Fault::internal(message).hint(REBUILD),
        (Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied), _) => {
            unavailable("the state directory must be the caller's own and writable")
        }
        (Some(ErrorCode::SystemIoFailure), _) => {
            unavailable("the disk refused to read or to keep it; look at `dmesg`, then ask again")
        }
        // A table or a column is missing, or holds what we never write.
        _ => Fault::internal(message).hint(REBUILD),
    };
    fault.phase(Phase::Admission)
}

/// The file could not be made. Where the disk is full, there is nothing yet by which space could be freed.
pub fn unmade(path: &Path, error: &Error) -> Fault {
    let fault = of(path, error);
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => fault.hint(
            "the disk is full, and nothing is recorded on it yet: free some space; `cofferdam gc` then takes up the workspaces that are left",
        ),
        _ => fault,
    }
}

/// The same inside a transaction, where only the file's name is known.
pub fn inner(error: Error) -> Fault {
    of(Path::new("store.db"), &error)
}

/// Whether bytes that were handed to the disk may be lost.
pub fn is_lost(error: &Error) -> bool {
    let lost = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC, ffi::SQLITE_IOERR_WRITE];
    error.sqlite_error().is_some_and(|e| lost.contains(&e.extended_code))
}

/// Whether the disk did not keep what it was asked to.
pub fn is_unsynced(error: &Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_IOERR_FSYNC)
}

/// The file is from a version that this one does not know.
pub fn newer(path: &Path, version: i64, known: i64) -> Fault {
    let message = format!("{}: written by a newer version (schema {version}, this one knows {known})", path.display());
    let fault = Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Admission);
    fault.hint("use that version, or set COFFERDAM_STATE to another directory")
}

/// The file is gone, and was not empty.
pub fn gone(path: &Path, entries: u64) -> Fault {
    let message = format!("{} is gone; its journal had at least {entries} entries", path.display());
    Fault::new(ErrorKind::Unavailable, message).hint(REBUILD).phase(Phase::Admission)
}

/// Something around the file could not be done.
pub fn around(path: &Path, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).phase(Phase::Admission);
    fault.hint("the state directory must be the caller's own and writable, with space left")
}
