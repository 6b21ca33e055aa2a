//! Landlock rulesets: the files and directories that the guest may use, checked by the kernel at every open. The
//! ruleset is made before the clone; its rules are added after the mounts are made, because rules bind to inodes.

use crate::CallError;
use crate::raw::kernel;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Rights that each ABI version understands.
const FS_V1: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// Rights that make sense on a file that is not a directory.
pub const FILE_RIGHTS: u64 = 1 | 1 << 1 | 1 << 2 | TRUNCATE | IOCTL_DEV;

const SCOPE_ABSTRACT_UNIX: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;

#[repr(C)]
struct RulesetAttr {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: RawFd,
}

/// The kernel's ABI version; 0 when landlock is absent or switched off.
pub fn abi() -> u32 {
    // SAFETY: a null pointer with size 0 and the version flag only asks for a number.
    let got = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0usize, 1u32) };
    u32::try_from(got).unwrap_or(0)
}

/// The file rights that a kernel with this ABI enforces.
pub fn rights(abi: u32) -> u64 {
    let mut rights = if abi >= 1 { FS_V1 } else { 0 };
    if abi >= 2 {
        rights |= REFER;
    }
    if abi >= 3 {
        rights |= TRUNCATE;
    }
    if abi >= 5 {
        rights |= IOCTL_DEV;
    }
    rights
}

/// Returns the names of features that this ABI lacks and that we rely on.
pub fn missing(abi: u32) -> Vec<&'static str> {
    [(1, "landlock"), (2, "landlock.refer"), (3, "landlock.truncate"), (5, "landlock.ioctl_dev"), (6, "landlock.scope")]
        .into_iter()
        .filter(|(since, _)| abi < *since)
        .map(|(_, name)| name)
        .collect()
}

/// Creates an empty ruleset that handles every right that this ABI knows: an access that no rule allows is refused.
pub fn ruleset(abi: u32) -> Result<OwnedFd, CallError> {
    let attr = RulesetAttr {
        handled_fs: rights(abi),
        handled_net: 0,
        scoped: if abi >= 6 { SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL } else { 0 },
    };
    // Older kernels know shorter structures and refuse longer ones.
    let size = match abi {
        0..=3 => 8,
        4..=5 => 16,
        _ => std::mem::size_of::<RulesetAttr>(),
    };
    // SAFETY: `attr` outlives the call and `size` does not exceed it.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &attr, size, 0u32) };
    if fd < 0 {
        return Err(CallError::last("landlock_create_ruleset"));
    }
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Adds one rule to a ruleset; used on either side of the clone, so it must not allocate.
pub(crate) fn add_rule(ruleset: RawFd, parent: RawFd, allowed: u64) -> Result<(), i32> {
    let rule = PathBeneath { allowed, parent };
    // SAFETY: `rule` outlives the call; type 1 is "path beneath".
    unsafe { kernel!(SYS_landlock_add_rule, ruleset, 1, &raw const rule, 0) }.map(drop)
}

pub(crate) fn restrict_self(ruleset: RawFd) -> Result<(), i32> {
    // SAFETY: takes a descriptor and flags, touches no memory of ours.
    unsafe { kernel!(SYS_landlock_restrict_self, ruleset, 0) }.map(drop)
}
