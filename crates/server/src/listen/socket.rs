//! The daemon's socket: 0600 in a directory of one's own; one that a dead daemon left is replaced, a live one's never.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};
use tokio::net::UnixListener;

/// What fits into a socket's address.
const LONGEST: usize = 107;

pub struct Socket {
    pub listener: UnixListener,
    path: PathBuf,
    /// Which file it is, so that nobody else's is taken away at the end.
    id: (u64, u64),
    _alone: OwnedFd,
}

/// The directory must be one that nobody else can look into or change. `told` is how the path was given.
pub fn check(told: &str, path: &Path) -> Result<(), Fault> {
    let bad = |path: &Path, why: &str, hint: &str| {
        Fault::invalid(format!("{told} {}: {why}", path.display())).hint(hint).phase(Phase::Admission)
    };
    let hint = "name a file in a directory of your own with mode 0700";
    let (Some(dir), Some(_)) = (path.parent().filter(|_| path.is_absolute()), path.file_name()) else {
        return Err(bad(path, "not a whole path", hint));
    };
    let meta = std::fs::metadata(dir).map_err(|e| bad(path, &format!("{}: {e}", dir.display()), hint))?;
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(bad(path, &format!("others can get into {}", dir.display()), hint));
    }
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(bad(path, "there is a file that is no socket", "name another"))
        }
        _ => Ok(()),
    }
}

/// A lock that only one daemon can hold. The kernel lets it go however the daemon ends.
pub fn alone(path: &Path) -> Result<OwnedFd, Fault> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(|e| around(path, e))?;
    held(path, &file, FlockOperation::NonBlockingLockExclusive).map(|()| file)
}

/// Whether it could be held. Asked without keeping others from it: of several who only ask none is in the other's way.
pub fn check_alone(path: &Path) -> Result<(), Fault> {
    match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(file) => held(path, &file, FlockOperation::NonBlockingLockShared),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(around(path, e)),
    }
}

fn around(path: &Path, error: rustix::io::Errno) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).phase(Phase::Start);
    fault.hint("the directory must be your own and writable")
}

fn held(path: &Path, file: &OwnedFd, how: FlockOperation) -> Result<(), Fault> {
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let message = format!("a daemon is there already: it holds {}", path.display());
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Start);
            Err(fault.hint("speak to that one, or end it first"))
        }
        Err(e) => Err(around(path, e)),
    }
}

impl Socket {
    pub fn bind(told: &str, path: &Path) -> Result<Socket, Fault> {
        check(told, path)?;
        let held = alone(&beside(path))?;
        let cannot = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{}: cannot listen there: {e}", path.display()));
            fault.phase(Phase::Start).hint("the directory must be your own and writable")
        };
        // Nobody else holds the lock, so what is there was left by one that died.
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(cannot(e)),
            _ => {}
        }
        let listener = bind(path).map_err(cannot)?;
        rustix::net::listen(&listener, super::WAITING).map_err(|e| cannot(e.into()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(cannot)?;
        let meta = std::fs::symlink_metadata(path).map_err(cannot)?;
        Ok(Socket { listener, path: path.to_owned(), id: (meta.dev(), meta.ino()), _alone: held })
    }
}

/// The lock of whoever listens at a path.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    path.with_file_name(name)
}

/// A path that does not fit is gone to by way of its directory's handle.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    if path.as_os_str().len() <= LONGEST {
        return UnixListener::bind(path);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path.parent().unwrap_or(path), flags, Mode::empty())?;
    let name = path.file_name().unwrap_or_default();
    UnixListener::bind(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.id);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
