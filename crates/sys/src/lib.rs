//! Safe faces for the Linux calls the product needs; the only crate with `unsafe` code.
//!
//! Nothing here decides: callers hand in finished lists (mounts, rules, filters) and get errors that name the call.
//! What runs between clone and exec lives in `child`, `first`, `shepherd` and `op`; it neither allocates nor takes a lock.

// Numbers of calls, registers and the architecture that a filter admits are those of x86_64. A build for another machine would
// compile for the most part, and its walls would have been tried by nobody.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("cofferdam runs on Linux on x86_64; other systems and processors are not supported");

pub mod ahead;
pub mod arena;
pub mod bpf;
pub mod cgroup;
mod child;
pub mod core_dumps;
pub mod diag;
pub mod doors;
mod entry;
pub mod file_lock;
mod first;
pub mod freeze;
pub mod host;
pub mod janitor;
pub mod job;
pub mod knock;
pub mod landlock;
mod meeting;
pub mod mount;
pub mod net;
pub mod netfilter;
pub mod netlink;
pub mod notify;
pub mod op;
pub mod owner;
pub mod probe;
pub mod process;
mod raw;
pub mod seccomp;
mod shepherd;
pub mod spawn;
mod withheld;

/// An error number and the call that gave it.
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

/// A path or string for the kernel. Callers have refused NUL long before.
pub fn cstring(bytes: impl AsRef<[u8]>) -> std::ffi::CString {
    std::ffi::CString::new(bytes.as_ref()).expect("paths with NUL are refused at the door")
}
