//! System calls that std does not offer. Each takes and returns owned, checked values.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes ownership of a descriptor that the kernel has just returned.
fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd: RawFd = check(result)?;
    // SAFETY: `fd` is non-negative and fresh from the kernel, so it has no other owner. Every caller passes the result
    // of a call that creates a descriptor; passing a borrowed one would close it twice.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn c(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::ErrorKind::InvalidInput.into())
}

pub fn open_at(dir: BorrowedFd<'_>, name: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
    let name = c(name)?;
    // SAFETY: `name` is NUL-terminated and outlives the call; `dir` is open for its lifetime; no mode is needed
    // because O_CREAT is never passed.
    owned(unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC) })
}

pub fn make_dir_at(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: `name` is NUL-terminated and outlives the call; `dir` is open for its lifetime.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) }).map(drop)
}

pub fn remove_dir_at(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: `name` is NUL-terminated and outlives the call; `dir` is open for its lifetime.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) }).map(drop)
}

/// Checks access with the effective ids, so that capabilities and read-only mounts count.
pub fn access_at(dir: BorrowedFd<'_>, name: &str, mode: libc::c_int) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: `name` is NUL-terminated and outlives the call; `dir` is open for its lifetime.
    check(unsafe { libc::faccessat(dir.as_raw_fd(), name.as_ptr(), mode, libc::AT_EACCESS) }).map(drop)
}

pub fn chown_at(dir: BorrowedFd<'_>, name: &str, uid: u32, gid: u32) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: `name` is NUL-terminated and outlives the call; `dir` is open for its lifetime.
    check(unsafe { libc::fchownat(dir.as_raw_fd(), name.as_ptr(), uid, gid, libc::AT_SYMLINK_NOFOLLOW) }).map(drop)
}

pub fn effective_uid() -> u32 {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

pub fn page_size() -> u64 {
    // SAFETY: sysconf only reads its argument.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).ok().filter(|s| s.is_power_of_two()).unwrap_or(4096)
}

/// Creates an eventfd that never blocks its reader.
pub fn event_counter() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes two integers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Opens a pidfd, which stays bound to its process when the number is reused.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a descriptor (always close-on-exec) or -1.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(libc::c_int::try_from(result).unwrap_or(-1))
}

pub fn pidfd_kill(pidfd: &OwnedFd) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: `pidfd` is open; a null siginfo asks the kernel to fill in its own.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, info, 0) };
    check(libc::c_int::try_from(result).unwrap_or(-1)).map(drop)
}
