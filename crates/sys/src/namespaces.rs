//! Kinds of namespaces, as flags of `clone3(2)` and `unshare(2)`.

pub const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
pub const NEW_MOUNT: u64 = libc::CLONE_NEWNS as u64;
pub const NEW_PID: u64 = libc::CLONE_NEWPID as u64;
pub const NEW_IPC: u64 = libc::CLONE_NEWIPC as u64;
pub const NEW_UTS: u64 = libc::CLONE_NEWUTS as u64;
pub const NEW_NET: u64 = libc::CLONE_NEWNET as u64;
pub const NEW_TIME: u64 = 0x80;
pub const NEW_CGROUP: i32 = libc::CLONE_NEWCGROUP;

/// Namespaces that the setup helper creates besides its user namespace.
pub(crate) const HELPER_MAKES: u64 = NEW_NET | NEW_IPC | NEW_UTS | NEW_MOUNT;
