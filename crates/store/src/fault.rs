//! Faults about the files around a database, whichever back end it has.

use std::path::Path;
use terms::{ErrorKind, Fault, Phase};

/// Remedy for a database that is damaged or gone.
pub const REBUILD: &str = "restore a good copy; or move store.db* and journal.head away, and `cofferdam gc` recovers the remaining workspaces";

/// The database was written by a version that this one does not know.
pub fn newer(path: &Path, version: i64, known: i64) -> Fault {
    let message =
        format!("{}: written by a newer version (schema {version}; this version supports {known})", path.display());
    let fault = Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Admission);
    fault.hint("use that version, or set COFFERDAM_STATE to another directory")
}

/// The database is gone, and was not empty.
pub fn gone(path: &Path, entries: u64) -> Fault {
    let message = format!("{} is gone; its journal had at least {entries} entries", path.display());
    Fault::new(ErrorKind::Unavailable, message).hint(REBUILD).phase(Phase::Admission)
}

/// An operation on a file or directory of the state failed.
pub fn io(path: &Path, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).phase(Phase::Admission);
    fault.hint("the state directory must be the caller's own and writable, with space left")
}

/// A backup cannot be written to the named file.
pub fn unwritable(path: &Path, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).phase(Phase::Delivery);
    fault.hint("name a file in a directory that you may write to, with space left")
}
