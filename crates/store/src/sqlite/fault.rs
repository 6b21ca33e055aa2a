//! SQLite's errors as faults with a remedy.

use crate::fault::REBUILD;
use rusqlite::{Error, ErrorCode, ffi};
use std::path::Path;
use terms::{ErrorKind, Fault, Phase, Retry};

const FULL: &str =
    "the disk is full: free space with `cofferdam rm` and `cofferdam gc`; if they fail too, remove other files first";

/// Makes a fault of an error on a file.
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
            unavailable("the disk failed to read or write; check `dmesg`, then repeat")
        }
        // A table or a column is missing, or holds a value that the store never writes.
        _ => Fault::internal(message).hint(REBUILD),
    };
    fault.phase(Phase::Admission)
}

const UNRECORDED: &str = "the disk is full, and nothing is recorded on it yet: free some space; `cofferdam gc` then takes up the workspaces that are left";

/// Makes a fault of an error while the file was created. On a full disk nothing is recorded yet by which space could be freed.
pub fn uncreated(path: &Path, error: &Error) -> Fault {
    let fault = of(path, error);
    if is_full(error) { fault.hint(UNRECORDED) } else { fault }
}

/// Tells whether the disk has no room for what was to be written.
pub fn is_full(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_IOERR_SHMSIZE)
}

/// Makes a fault of a full disk on which there is no file yet.
pub fn no_room(path: &Path, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).retry(Retry::Later);
    fault.hint(UNRECORDED).phase(Phase::Admission)
}

/// Makes a fault of an error inside a transaction.
pub fn inner(error: Error) -> Fault {
    of(Path::new("store.db"), &error)
}

/// Tells whether pages that were handed to the disk may be lost.
pub fn is_lost(error: &Error) -> bool {
    let lost = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC, ffi::SQLITE_IOERR_WRITE];
    error.sqlite_error().is_some_and(|e| lost.contains(&e.extended_code))
}

/// Tells whether a sync failed.
pub fn is_unsynced(error: &Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_IOERR_FSYNC)
}
