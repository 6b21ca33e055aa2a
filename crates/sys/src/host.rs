//! Id maps for a guest, resource limits, and small facts about the host.

use crate::CallError;
use crate::raw::{exit, kernel};
use std::os::fd::{FromRawFd, OwnedFd};

/// Creates a user namespace that only carries an id map: files owned by `file_uid:file_gid` on disk appear to belong to
/// `host_uid:host_gid`. Needs root.
pub fn id_map(file_uid: u32, host_uid: u32, file_gid: u32, host_gid: u32) -> Result<IdMap, CallError> {
    extern "C" fn wait(parent: *mut libc::c_void) -> i32 {
        // SAFETY: sleeps until killed; touches no memory.
        unsafe {
            let tied = kernel!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            // A parent that was killed before that sends no signal.
            if tied.is_err() || kernel!(SYS_getppid) != Ok(parent as i32) {
                exit(1);
            }
            loop {
                let _ = kernel!(SYS_ppoll, 0, 0, 0, 0, 0);
            }
        }
    }
    let parent = std::process::id() as usize as *mut libc::c_void;
    let mut stack = vec![0u8; 16 * 1024];
    // SAFETY: the child only sleeps, on a stack that `IdMap` keeps until it has been reaped.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len() & !15).cast();
        libc::clone(wait, top, libc::CLONE_VM | libc::CLONE_NEWUSER | libc::SIGCHLD, parent)
    };
    if pid < 0 {
        return Err(CallError::last("clone(user namespace)"));
    }
    let made = write_id_maps(pid, (file_uid, host_uid), (file_gid, host_gid), false).and_then(|()| {
        let path = crate::cstring(format!("/proc/{pid}/ns/user"));
        // SAFETY: a C string that outlives the call.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(CallError::last("open(user namespace)"));
        }
        // SAFETY: just opened.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    });
    // SAFETY: our own child, not reaped yet, so the pid cannot be reused.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let holder = Holder { pid, _stack: stack };
    Ok(IdMap { namespace: made?, _holder: holder })
}

/// An id map for idmapped mounts. The process that carried its namespace is killed at once and reaped when this is
/// dropped, by when it is long gone.
pub struct IdMap {
    pub namespace: OwnedFd,
    _holder: Holder,
}

struct Holder {
    pid: i32,
    _stack: Vec<u8>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        // SAFETY: our own child; no status wanted.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) };
    }
}

/// Writes the one-entry id maps of a child: `(inside, outside)`. Without root the kernel requires that setgroups is
/// denied first.
pub fn write_id_maps(pid: i32, uid: (u32, u32), gid: (u32, u32), freeze_groups: bool) -> Result<(), CallError> {
    if freeze_groups {
        put(&format!("/proc/{pid}/setgroups"), "deny", "write(setgroups)")?;
    }
    put(&format!("/proc/{pid}/uid_map"), &format!("{} {} 1\n", uid.0, uid.1), "write(uid_map)")?;
    put(&format!("/proc/{pid}/gid_map"), &format!("{} {} 1\n", gid.0, gid.1), "write(gid_map)")
}

fn put(path: &str, text: &str, call: &'static str) -> Result<(), CallError> {
    std::fs::write(path, text).map_err(|e| CallError { call, errno: e.raw_os_error().unwrap_or(0) })
}

/// Returns the effective uid and gid of this process.
pub fn ids() -> (u32, u32) {
    // SAFETY: cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// A resource with an rlimit.
#[derive(Clone, Copy, Debug)]
pub enum BoundedResource {
    OpenFiles,
    PendingSignals,
    QueueBytes,
    /// Size of a core dump, in bytes.
    CoreBytes,
}

/// Soft and hard limit of a resource. `None` if it is unlimited, or if a seccomp filter of the parent hides the call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    pub current: Option<u64>,
    pub maximum: Option<u64>,
}

pub fn bound(what: BoundedResource) -> Bound {
    let resource = match what {
        BoundedResource::OpenFiles => libc::RLIMIT_NOFILE,
        BoundedResource::PendingSignals => libc::RLIMIT_SIGPENDING,
        BoundedResource::QueueBytes => libc::RLIMIT_MSGQUEUE,
        BoundedResource::CoreBytes => libc::RLIMIT_CORE,
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure that the call fills, outliving it.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
        return Bound::default();
    }
    let finite = |value: u64| (value != libc::RLIM_INFINITY).then_some(value);
    Bound { current: finite(limit.rlim_cur), maximum: finite(limit.rlim_max) }
}

/// Returns true if this process may map foreign ids and make idmapped mounts, i.e. is root in the initial user
/// namespace.
pub fn is_privileged() -> bool {
    ids().0 == 0 && has_admin_capability() && is_first_namespace()
}

/// Returns true in the initial user namespace, which maps all ids to themselves.
fn is_first_namespace() -> bool {
    kernel_file("/proc/self/uid_map").is_some_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// Reads a small virtual file in one read: the kernel returns the whole text at once, and reports no size.
pub fn kernel_file(path: &str) -> Option<String> {
    use std::io::Read;
    let mut text = vec![0u8; 4096];
    let len = std::fs::File::open(path).and_then(|mut file| file.read(&mut text)).ok()?;
    text.truncate(len);
    String::from_utf8(text).ok()
}

fn has_admin_capability() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    // Version 3 of the call: a header, then effective, permitted and inheritable sets in two halves.
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: structures of the sizes that this version of the call defines.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    got == 0 && sets[0] & (1 << CAP_SYS_ADMIN) != 0
}
