//! Mounts, directories and files of a guest. Raw calls only, as in `child`.

use crate::mount;
use crate::op::Attr;
use crate::raw::{close, kernel};
use std::ffi::CStr;
use std::os::fd::RawFd;

pub(super) fn legacy_flags(attr: Attr) -> libc::c_ulong {
    let mut flags = 0;
    for (attr_bit, flag) in [
        (Attr::READ_ONLY, libc::MS_RDONLY),
        (Attr::NO_SUID, libc::MS_NOSUID),
        (Attr::NO_DEV, libc::MS_NODEV),
        (Attr::NO_EXEC, libc::MS_NOEXEC),
    ] {
        if attr.has(attr_bit) {
            flags |= flag;
        }
    }
    flags
}

pub(super) fn mount(source: &CStr, at: &CStr, kind: Option<&CStr>, flags: u64, data: Option<&CStr>) -> Result<(), i32> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: C strings or null, all outliving the call.
    unsafe { kernel!(SYS_mount, source.as_ptr(), at.as_ptr(), pointer(kind), flags, pointer(data)) }.map(drop)
}

/// Mounts an overlay. Where the kernel cannot create the work directory, on a full disk say, it mounts the overlay
/// read-only and reports success: that is a failure here.
pub(super) fn overlay(at: &CStr, options: &CStr, attr: Attr) -> Result<(), i32> {
    mount(c"overlay", at, Some(c"overlay"), legacy_flags(attr), Some(options))?;
    if attr.has(Attr::READ_ONLY) {
        return Ok(());
    }
    // SAFETY: a C string that outlives the call. The file system is checked before permissions, so EROFS is reported to
    // every user.
    match unsafe { kernel!(SYS_faccessat, libc::AT_FDCWD, at.as_ptr(), libc::W_OK) } {
        Err(libc::EROFS) => Err(libc::EROFS),
        _ => Ok(()),
    }
}

pub(super) fn pivot(root: &CStr, old: &CStr) -> Result<(), i32> {
    // SAFETY: C strings that outlive the calls.
    unsafe {
        kernel!(SYS_chdir, root.as_ptr())?;
        kernel!(SYS_mkdirat, libc::AT_FDCWD, old.as_ptr(), 0o700)?;
        kernel!(SYS_pivot_root, c".".as_ptr(), old.as_ptr())?;
        kernel!(SYS_chdir, c"/".as_ptr()).map(drop)
    }
}

pub(super) fn make_dir(at: &CStr, mode: u32) -> Result<(), i32> {
    // SAFETY: a C string that outlives the call.
    match unsafe { kernel!(SYS_mkdirat, libc::AT_FDCWD, at.as_ptr(), mode) } {
        Err(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

pub(super) fn make_file(at: &CStr, mode: u32, bytes: &[u8]) -> Result<(), i32> {
    let first = libc::S_IFREG | if bytes.is_empty() { mode } else { 0o600 };
    // SAFETY: a C string that outlives the call; making a plain file needs no privilege.
    unsafe { kernel!(SYS_mknodat, libc::AT_FDCWD, at.as_ptr(), first, 0) }?;
    if bytes.is_empty() {
        return Ok(());
    }
    let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a C string, and a buffer written with its true length.
    unsafe {
        let fd = kernel!(SYS_openat, libc::AT_FDCWD, at.as_ptr(), flags, 0)?;
        let mut rest = bytes;
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            match kernel!(SYS_write, fd, rest.as_ptr(), rest.len()) {
                Ok(wrote) => rest = rest.get(wrote as usize..).unwrap_or(&[]),
                Err(errno) => result = Err(errno),
            }
        }
        let result = result.and_then(|()| kernel!(SYS_fchmod, fd, mode).map(drop));
        close(fd);
        result
    }
}

pub(super) fn put(at: &CStr, bytes: &[u8]) -> Result<(), i32> {
    // SAFETY: a C string, and a buffer with its true length.
    unsafe {
        let fd = kernel!(SYS_openat, libc::AT_FDCWD, at.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC, 0)?;
        let wrote = kernel!(SYS_write, fd, bytes.as_ptr(), bytes.len()).map(drop);
        close(fd);
        wrote
    }
}

/// Binds between paths that only we and the system's owner can have made.
pub(super) fn bind_known(from: &CStr, at: &CStr, attr: Attr) -> Result<(), i32> {
    let tree = mount::clone_path(from)?;
    let result = mount::set_attr(tree, attr, true, None).and_then(|()| mount::move_to_path(tree, at));
    close(tree);
    result
}

pub(super) fn bind(from: &CStr, at: &CStr, attr: Attr) -> Result<(), i32> {
    let source = mount::open_straight(from)?;
    let tree = mount::clone_tree(source);
    close(source);
    let tree = tree?;
    let result = mount::set_attr(tree, attr, true, None).and_then(|()| attach(tree, at));
    close(tree);
    result
}

pub(super) fn attach(tree: RawFd, at: &CStr) -> Result<(), i32> {
    let target = mount::open_straight(at)?;
    let result = mount::move_to(tree, target);
    close(target);
    result
}
