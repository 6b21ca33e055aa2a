//! Safe interfaces to the Linux system calls that the product needs; the only crate with `unsafe` code.
//!
//! This crate makes no policy decisions: callers pass finished lists (mounts, rules, filters) and get errors that name
//! the system call. Code that runs between clone and exec lives in `child`, `init`, `shepherd`, `control` and `op`; it
//! neither allocates nor takes a lock.

// Call numbers, registers and the architecture in filters are those of x86_64. A build for another machine would mostly
// compile, but its enclosure would be untested.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("cofferdam runs on Linux on x86_64; other systems and processors are not supported");

pub mod arena;
pub mod bpf;
pub mod cgroup;
mod child;
mod clone;
mod command;
mod control;
pub mod core_dumps;
pub mod deadline;
pub mod diag;
mod dont_fork;
pub mod doors;
pub mod early_setup;
mod entry;
pub mod file_lock;
pub mod freeze;
pub mod fs_ids;
pub mod host;
mod init;
pub mod janitor;
pub mod job;
pub mod landlock;
pub mod mount;
mod namespaces;
pub mod net;
pub mod netfilter;
pub mod netlink;
pub mod notify;
pub mod op;
pub mod probe;
pub mod process;
pub mod random;
mod raw;
pub mod ring;
pub mod seccomp;
mod setup_barrier;
mod shepherd;
pub mod spawn;
pub mod syn_capture;
mod terminal;

/// An error number and the system call that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    pub call: &'static str,
    pub errno: i32,
}

impl CallError {
    pub(crate) fn last(call: &'static str) -> CallError {
        CallError { call, errno: errno() }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.call, std::io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for CallError {}

pub(crate) fn errno() -> i32 {
    // SAFETY: the location is thread-local and always valid.
    unsafe { *libc::__errno_location() }
}

/// Converts a path or string for the kernel. Callers have already refused NUL.
pub fn cstring(bytes: impl AsRef<[u8]>) -> std::ffi::CString {
    std::ffi::CString::new(bytes.as_ref()).expect("paths with NUL are refused at the door")
}
