//! Mounts that the supervisor prepares before the clone, and the calls that both sides use to move them.

use crate::CallError;
use crate::op::Attr;
use crate::raw::{close, kernel};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

const OPEN_TREE_CLONE: u32 = 1;
const AT_RECURSIVE: u32 = 0x8000;
const ATTR_IDMAP: u64 = 0x0010_0000;
const RESOLVE_NO_SYMLINKS: u64 = 0x04;
const RESOLVE_NO_MAGICLINKS: u64 = 0x02;

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Opens a path as a handle without following any symbolic link.
pub(crate) fn open_straight(at: &CStr) -> Result<RawFd, i32> {
    let how = OpenHow {
        flags: (libc::O_PATH | libc::O_CLOEXEC) as u64,
        mode: 0,
        resolve: RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    // SAFETY: a C string and a structure that outlive the call, with its true size.
    unsafe { kernel!(SYS_openat2, libc::AT_FDCWD, at.as_ptr(), &raw const how, size_of::<OpenHow>()) }
}

/// Clones the mount tree at a descriptor; the copy is detached.
pub(crate) fn clone_tree(fd: RawFd) -> Result<RawFd, i32> {
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | libc::AT_EMPTY_PATH as u32 | AT_RECURSIVE;
    // SAFETY: an empty C string and plain numbers.
    unsafe { kernel!(SYS_open_tree, fd, c"".as_ptr(), flags) }
}

/// Clones the mount tree at a path that no guest can have touched.
pub(crate) fn clone_path(path: &CStr) -> Result<RawFd, i32> {
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | libc::AT_SYMLINK_NOFOLLOW as u32 | AT_RECURSIVE;
    // SAFETY: a C string that outlives the call.
    unsafe { kernel!(SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) }
}

/// Moves a detached tree to a path that no guest can have touched.
pub(crate) fn move_to_path(fd: RawFd, at: &CStr) -> Result<(), i32> {
    const EMPTY_FROM: u32 = 0x04;
    // SAFETY: C strings that outlive the call.
    unsafe { kernel!(SYS_move_mount, fd, c"".as_ptr(), libc::AT_FDCWD, at.as_ptr(), EMPTY_FROM) }.map(drop)
}

/// Sets attributes on a detached tree, all of it, and cuts it off from propagation.
pub(crate) fn set_attr(fd: RawFd, attr: Attr, recursive: bool, userns: Option<RawFd>) -> Result<(), i32> {
    let request = MountAttr {
        set: attr.0 | if userns.is_some() { ATTR_IDMAP } else { 0 },
        clear: 0,
        propagation: libc::MS_PRIVATE,
        userns: userns.unwrap_or(0) as u64,
    };
    let flags = libc::AT_EMPTY_PATH as u32 | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: an empty C string and a structure that outlives the call, with its true size.
    unsafe { kernel!(SYS_mount_setattr, fd, c"".as_ptr(), flags, &raw const request, size_of::<MountAttr>()) }.map(drop)
}

/// Permits the execution of one file on a noexec mount. If the file is a mount of its own, its attributes are changed;
/// otherwise a mount of it is put over it. The caller must be in that tree's mount namespace. Allocates nothing.
pub(crate) fn allow_exec(file: RawFd) -> Result<(), i32> {
    match clear(file, Attr::NO_EXEC) {
        // EINVAL: the file is not the root of a mount.
        Err(libc::EINVAL) => {}
        done => return done,
    }
    let own = clone_tree(file)?;
    let moved = clear(own, Attr::NO_EXEC).and_then(|()| move_to(own, file));
    close(own);
    moved
}

/// Clears attributes of the one mount whose root a descriptor refers to.
fn clear(fd: RawFd, attr: Attr) -> Result<(), i32> {
    let request = MountAttr { set: 0, clear: attr.0, propagation: 0, userns: 0 };
    let flags = libc::AT_EMPTY_PATH as u32;
    // SAFETY: an empty C string and a structure that outlives the call, with its true size.
    unsafe { kernel!(SYS_mount_setattr, fd, c"".as_ptr(), flags, &raw const request, size_of::<MountAttr>()) }.map(drop)
}

/// Moves a detached tree to a descriptor.
pub(crate) fn move_to(fd: RawFd, at: RawFd) -> Result<(), i32> {
    const EMPTY_BOTH: u32 = 0x04 | 0x40;
    // SAFETY: empty C strings and plain numbers.
    unsafe { kernel!(SYS_move_mount, fd, c"".as_ptr(), at, c"".as_ptr(), EMPTY_BOTH) }.map(drop)
}

/// Clones the mount tree at `path` for a guest: with `attr` on all of it and, where `ids` is given, as an idmapped
/// mount, so that files of the caller belong to the guest's user inside.
pub fn prepare(path: &CStr, attr: Attr, ids: Option<BorrowedFd<'_>>) -> Result<OwnedFd, CallError> {
    let error = |call| move |errno| CallError { call, errno };
    let at = open_straight(path).map_err(error("openat2"))?;
    // SAFETY: both descriptors were just made and have no other owner.
    let at = unsafe { OwnedFd::from_raw_fd(at) };
    let tree = clone_tree(at.as_raw_fd()).map_err(error("open_tree"))?;
    // SAFETY: as above.
    let tree = unsafe { OwnedFd::from_raw_fd(tree) };
    let Some(ids) = ids else {
        set_attr(tree.as_raw_fd(), attr, true, None).map_err(error("mount_setattr"))?;
        return Ok(tree);
    };
    // Some file systems of submounts (proc, fuse) do not support idmapped mounts: they keep their owners then.
    if set_attr(tree.as_raw_fd(), attr, true, Some(ids.as_raw_fd())).is_err() {
        set_attr(tree.as_raw_fd(), attr, false, Some(ids.as_raw_fd())).map_err(error("mount_setattr(idmap)"))?;
        set_attr(tree.as_raw_fd(), attr, true, None).map_err(error("mount_setattr"))?;
    }
    Ok(tree)
}
