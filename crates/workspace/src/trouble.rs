//! Faults of file operations during a landing: message with the path, and a hint.

use api::Rel;
use rustix::io::Errno;
use std::fmt::Display;
use std::io;
use terms::{ErrorKind, Fault, Phase, Retry};

/// Fault of a failed system call: "`what`: cannot `act`".
pub(crate) fn with(what: &dyn Display, act: &str, error: &io::Error) -> Fault {
    let fault = |kind, hint: &str| {
        Fault::new(kind, format!("{what}: cannot {act}: {error}")).hint(hint).phase(Phase::Application)
    };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            fault(ErrorKind::Unavailable, "free some space, then try again").retry(Retry::Later)
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            let hint = "the caller needs write permission there; nothing was changed";
            fault(ErrorKind::Unavailable, hint).retry(Retry::Never)
        }
        Some(Errno::ROFS) => fault(ErrorKind::Unavailable, "the file system is read-only").retry(Retry::Never),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
            fault(ErrorKind::Unavailable, "the machine is out of resources; try again later").retry(Retry::Later)
        }
        Some(Errno::XDEV) => fault(ErrorKind::UnsupportedHost, "a mount point cannot be replaced; unmount it first"),
        Some(Errno::NOTDIR | Errno::NOENT | Errno::LOOP | Errno::EXIST) => {
            fault(ErrorKind::Conflict, "another process changed it meanwhile; review again, then repeat")
        }
        Some(Errno::IO) => fault(ErrorKind::Unavailable, "the device failed; see the kernel's log"),
        _ => fault(ErrorKind::Internal, "nothing was changed; try again"),
    }
}

/// Fault for a base file that is not the one the reviewer saw.
pub(crate) fn moved(at: &Rel) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{at} was changed in the base meanwhile")).phase(Phase::Review);
    fault.hint("review again with `cofferdam diff`; `cofferdam rebase` merges the base's changes")
}
