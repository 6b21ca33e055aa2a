//! The daemon's Unix socket: mode 0600 in a private directory. A stale socket is replaced, that of a running daemon never.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};
use tokio::net::UnixListener;

/// Longest path in a socket address (`sun_path`).
const MAX_PATH: usize = 107;

pub struct DaemonSocket {
    pub listener: UnixListener,
    path: PathBuf,
    /// Device and inode, so that only our own file is removed at the end.
    id: (u64, u64),
    _lock: OwnedFd,
}

/// Checks that only the daemon's user can access the socket's directory. `setting` names the setting with the path.
pub fn check(setting: &str, path: &Path) -> Result<(), Fault> {
    let bad = |path: &Path, why: &str, hint: &str| {
        Fault::invalid(format!("{setting} {}: {why}", path.display())).hint(hint).phase(Phase::Admission)
    };
    let hint = "name a file in a directory of your own with mode 0700";
    let (Some(dir), Some(_)) = (path.parent().filter(|_| path.is_absolute()), path.file_name()) else {
        return Err(bad(path, "not an absolute path", hint));
    };
    let meta = std::fs::metadata(dir).map_err(|e| bad(path, &format!("{}: {e}", dir.display()), hint))?;
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(bad(path, &format!("other users can access {}", dir.display()), hint));
    }
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(bad(path, "a file that is not a socket exists there", "choose another path"))
        }
        _ => Ok(()),
    }
}

/// Takes the exclusive lock of a daemon. The kernel releases it however the daemon ends.
pub fn lock_exclusive(path: &Path) -> Result<OwnedFd, Fault> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(|e| cannot_open(path, e))?;
    take_lock(path, &file, FlockOperation::NonBlockingLockExclusive).map(|()| file)
}

/// Checks that the exclusive lock is free, with a shared lock, so that concurrent checks do not disturb each other.
pub fn check_unlocked(path: &Path) -> Result<(), Fault> {
    match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(file) => take_lock(path, &file, FlockOperation::NonBlockingLockShared),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(cannot_open(path, e)),
    }
}

fn cannot_open(path: &Path, error: rustix::io::Errno) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).phase(Phase::Start);
    fault.hint("the directory must be your own and writable")
}

fn take_lock(path: &Path, file: &OwnedFd, how: FlockOperation) -> Result<(), Fault> {
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let message = format!("another daemon is running: it holds {}", path.display());
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Start);
            Err(fault.hint("use that daemon, or stop it first"))
        }
        Err(e) => Err(cannot_open(path, e)),
    }
}

impl DaemonSocket {
    pub fn bind(setting: &str, path: &Path) -> Result<DaemonSocket, Fault> {
        check(setting, path)?;
        let held = lock_exclusive(&lock_path(path))?;
        let cannot = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("cannot listen on {}: {e}", path.display()));
            fault.phase(Phase::Start).hint("the directory must be your own and writable")
        };
        // The lock is ours, so an existing socket was left by a daemon that died.
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(cannot(e)),
            _ => {}
        }
        let listener = bind(path).map_err(cannot)?;
        rustix::net::listen(&listener, super::BACKLOG).map_err(|e| cannot(e.into()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(cannot)?;
        let meta = std::fs::symlink_metadata(path).map_err(cannot)?;
        Ok(DaemonSocket { listener, path: path.to_owned(), id: (meta.dev(), meta.ino()), _lock: held })
    }
}

/// Returns the path of the lock file of a socket.
pub fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    path.with_file_name(name)
}

/// Binds a socket; a path too long for `sun_path` is reached through a descriptor of its directory.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    if path.as_os_str().len() <= MAX_PATH {
        return UnixListener::bind(path);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path.parent().unwrap_or(path), flags, Mode::empty())?;
    let name = path.file_name().unwrap_or_default();
    UnixListener::bind(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

impl Drop for DaemonSocket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.id);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
