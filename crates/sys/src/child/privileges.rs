//! Identity, capabilities and seccomp filter of a process before it becomes a guest. Raw calls only, as in `child`.

use crate::bpf::Insn;
use crate::raw::{close, kernel};
use std::os::fd::RawFd;

pub(super) fn identity(uid: u32, gid: u32, drop_groups: bool) -> Result<(), i32> {
    // SAFETY: numbers only; the group list is empty.
    unsafe {
        // The modes in the list of steps are exact.
        kernel!(SYS_umask, 0)?;
        if drop_groups {
            kernel!(SYS_setgroups, 0, 0)?;
        }
        kernel!(SYS_setresgid, gid, gid, gid)?;
        kernel!(SYS_setresuid, uid, uid, uid)?;
    }
    Ok(())
}

/// Ends with the supervisor, and cannot be dumped. Runs after the ids are set, because changing them clears both
/// settings.
pub(super) fn tie_to_supervisor() -> Result<(), i32> {
    // SAFETY: numbers only.
    unsafe {
        kernel!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)?;
        kernel!(SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0)?;
        kernel!(SYS_setsid)?;
    }
    crate::process::blank_arguments();
    Ok(())
}

/// Empties the capability bounding set, from which an exec could gain capabilities; those we hold stay. A process
/// without capabilities gets EPERM, and has nothing to drop.
pub(super) fn bound_capabilities() -> Result<(), i32> {
    for cap in 0..64 {
        // SAFETY: numbers only.
        match unsafe { kernel!(SYS_prctl, libc::PR_CAPBSET_DROP, cap, 0, 0, 0) } {
            Ok(_) => {}
            // No more capabilities exist.
            Err(libc::EINVAL | libc::EPERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub(super) fn drop_capabilities() -> Result<(), i32> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let nothing = [0u32; 6];
    // SAFETY: numbers, and structures of the sizes that version 3 of the call defines.
    unsafe {
        kernel!(SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)?;
        kernel!(SYS_capset, &raw const header, nothing.as_ptr()).map(drop)
    }
}

pub(super) fn install_filter(program: &[Insn], listener: bool) -> Result<RawFd, i32> {
    #[repr(C)]
    struct Program {
        len: u16,
        insns: *const Insn,
    }
    const SET_MODE_FILTER: u32 = 1;
    const NEW_LISTENER: u32 = 1 << 3;
    const WAIT_KILLABLE: u32 = 1 << 5;
    let wanted = Program { len: program.len() as u16, insns: program.as_ptr() };
    let flags = if listener { NEW_LISTENER | WAIT_KILLABLE } else { 0 };
    // SAFETY: `Insn` has the kernel's layout and the pointer is valid for `len` of them.
    let fd = unsafe { kernel!(SYS_seccomp, SET_MODE_FILTER, flags, &raw const wanted) }?;
    Ok(if listener { fd } else { -1 })
}

pub(super) fn loopback_up() -> Result<(), i32> {
    // SAFETY: ifreq is plain old data; zeroed is a valid value. The name fits with its terminator.
    unsafe {
        let socket = kernel!(SYS_socket, libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        let result = kernel!(SYS_ioctl, socket, libc::SIOCSIFFLAGS, &raw const request).map(drop);
        close(socket);
        result
    }
}
