//! Faults of file operations: message with the path, and a hint.

use api::Rel;
use rustix::io::Errno;
use std::io;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// Fault of a failed system call: "PATH: cannot ACT".
pub(super) fn fault(path: &Rel, act: &str, error: &io::Error) -> Fault {
    let (kind, why, hint) = words(error);
    let why = why.map_or_else(|| error.to_string(), str::to_owned);
    let fault = Fault::new(kind, format!("{}: cannot {act}: {why}", shown(path))).phase(Phase::Execution);
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => fault.hint(hint).retry(Retry::Later),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
            fault.hint(hint).retry(Retry::Later)
        }
        Some(Errno::FBIG) => fault.hint(hint).limit(LimitKind::DiskMb),
        _ => fault.hint(hint),
    }
}

/// Error kind, message in place of the system's, and hint.
fn words(error: &io::Error) -> (ErrorKind, Option<&'static str>, &'static str) {
    use ErrorKind::{Conflict, Internal, InvalidRequest, LimitExceeded, NotFound, PolicyDenied, Unavailable};
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => (NotFound, Some("the file does not exist"), "list the directory to see its files"),
        Some(Errno::NOTDIR) => (NotFound, Some("a part of the path is not a directory"), "list the directory above it"),
        Some(Errno::LOOP) => {
            (Conflict, Some("too many links, or a link where none is allowed"), "name the target of the link")
        }
        Some(Errno::EXIST) => (Conflict, Some("the path exists already"), "remove it first, or request to replace it"),
        Some(Errno::ISDIR) => (Conflict, Some("it is a directory"), "name a file in it"),
        Some(Errno::NOTEMPTY) => (Conflict, Some("the directory is not empty"), "remove it recursively"),
        Some(Errno::XDEV) => (Conflict, Some("it lies on another mount"), "copy it, then remove it"),
        Some(Errno::BUSY | Errno::TXTBSY) => {
            (Conflict, Some("it is in use"), "end the process that uses it, then try again")
        }
        Some(Errno::AGAIN) => (Conflict, Some("a process inside holds a lease on it"), "try again in a minute"),
        Some(Errno::STALE) => (Conflict, Some("it was removed meanwhile"), "try again"),
        Some(Errno::ACCESS | Errno::PERM) => (
            PolicyDenied,
            Some("the guest has no permission either"),
            "change its permission bits, or the sandbox's policy",
        ),
        Some(Errno::ROFS) => {
            (PolicyDenied, Some("it is read-only in this sandbox"), "write elsewhere in the workspace")
        }
        Some(Errno::NAMETOOLONG) => (InvalidRequest, Some("a name is too long"), "a name has at most 255 bytes"),
        Some(Errno::INVAL) => (InvalidRequest, None, "name another path"),
        Some(Errno::NOSPC | Errno::DQUOT) => (Unavailable, None, "free some space, then try again"),
        Some(Errno::FBIG) => (LimitExceeded, None, "write less"),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
            (Unavailable, None, "the machine is out of resources; try again later")
        }
        _ => (Internal, None, "try again"),
    }
}

/// Formats a path for a message.
pub(super) fn shown(path: &Rel) -> String {
    if path.is_top() { "the top of the workspace".to_owned() } else { path.to_string() }
}

pub(super) fn conflict(path: &Rel, why: &str, hint: &str) -> Fault {
    Fault::new(ErrorKind::Conflict, format!("{}: {why}", shown(path))).hint(hint).phase(Phase::Execution)
}

pub(super) fn leads_out(path: &Rel) -> Fault {
    let message = format!("{}: a link on the way leads out of the workspace", shown(path));
    let fault = Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Execution);
    fault.hint("name the file itself, if it is in the workspace")
}

/// Fault for a path that leads to what the host shows below the sandbox's own directory.
pub(super) fn of_the_host(path: &Rel) -> Fault {
    let message = format!("{}: it belongs to the host, and a rule shows it inside", shown(path));
    let fault = Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Execution);
    fault.hint("have a command in the sandbox read or write it")
}

/// Fault for a bound that was exceeded.
pub(super) fn too_much(path: &Rel, what: String, kind: LimitKind, hint: &str) -> Fault {
    let message = format!("{}: {what}", shown(path));
    Fault::new(ErrorKind::LimitExceeded, message).limit(kind).hint(hint).phase(Phase::Execution)
}
