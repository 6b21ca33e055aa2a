//! The supervisor's end of the seccomp listener: hear of a call, answer it.
//! An answer of "go on" is for reporting only: the guest can change what a pointer points at, so the walls that
//! decide must already stand in the kernel.

use crate::{CallError, errno};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// One call a guest waits on.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    id: u64,
    /// The caller's thread, in our pid namespace.
    pub tid: i32,
    pub nr: u32,
    pub args: [u64; 6],
}

pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    pub fn new(fd: OwnedFd) -> Listener {
        Listener { fd }
    }

    /// Whether the guest and we share a processor while we talk. Older kernels refuse; fine.
    pub fn share_processor(&self, share: bool) {
        const SET_FLAGS: libc::c_ulong = 0x4008_2104;
        const SYNC_WAKE_UP: u64 = 1;
        // SAFETY: a number passed by value.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), SET_FLAGS, if share { SYNC_WAKE_UP } else { 0 }) };
    }

    /// Another handle on the same listener, to answer from another thread.
    pub fn try_clone(&self) -> Option<Listener> {
        self.fd.try_clone().ok().map(|fd| Listener { fd })
    }

    /// The next call, or `None` when the caller died meanwhile.
    pub fn receive(&self) -> Result<Option<Call>, CallError> {
        // SAFETY: plain data, zeroed as the kernel demands, outliving the call.
        unsafe {
            let mut raw: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut raw) < 0 {
                return match errno() {
                    libc::ENOENT | libc::EINTR | libc::EAGAIN => Ok(None),
                    errno => Err(CallError { call: "seccomp receive", errno }),
                };
            }
            Ok(Some(Call { id: raw.id, tid: raw.pid as i32, nr: raw.data.nr as u32, args: raw.data.args }))
        }
    }

    /// Whether the caller still waits; what was read of it before counts only then.
    pub fn is_live(&self, call: &Call) -> bool {
        const ID_VALID: libc::c_ulong = 0x4008_2102;
        // SAFETY: passes a pointer to a number that outlives the call.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), ID_VALID, &call.id) == 0 }
    }

    /// Lets the kernel do the call as if we had not been asked.
    pub fn go_on(&self, call: &Call) {
        const CONTINUE: u32 = 1;
        self.respond(libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags: CONTINUE });
    }

    /// The call fails with this error number.
    pub fn refuse(&self, call: &Call, errno: i32) {
        self.respond(libc::seccomp_notif_resp { id: call.id, val: 0, error: -errno, flags: 0 });
    }

    /// The call is done and gave this value.
    pub fn answer(&self, call: &Call, value: i64) {
        self.respond(libc::seccomp_notif_resp { id: call.id, val: value, error: 0, flags: 0 });
    }

    /// The call gave a copy of this descriptor: the guest has it and goes on, or neither. An error number says why not,
    /// and then the caller still waits.
    pub fn hand_over(&self, call: &Call, fd: BorrowedFd<'_>, close_on_exec: bool) -> Result<(), i32> {
        #[repr(C)]
        struct AddFd {
            id: u64,
            flags: u32,
            srcfd: u32,
            newfd: u32,
            newfd_flags: u32,
        }
        const ADD_FD: libc::c_ulong = 0x4018_2103;
        const SEND: u32 = 2;
        let newfd_flags = if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 };
        let add = AddFd { id: call.id, flags: SEND, srcfd: fd.as_raw_fd() as u32, newfd: 0, newfd_flags };
        loop {
            // SAFETY: a structure with the kernel's layout that outlives the call, and a descriptor that is open.
            if unsafe { libc::ioctl(self.fd.as_raw_fd(), ADD_FD, &raw const add) } >= 0 {
                return Ok(());
            }
            match errno() {
                libc::EINTR => {}
                errno => return Err(errno),
            }
        }
    }

    /// The call is made anew once the signal was dealt with that waits for its caller. Without one the caller would see
    /// a number that no program knows.
    pub fn again(&self, call: &Call) {
        const ERESTARTSYS: i32 = 512;
        self.refuse(call, ERESTARTSYS);
    }

    fn respond(&self, response: libc::seccomp_notif_resp) {
        // A caller that died in between is no error.
        // SAFETY: a structure that outlives the call.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &response) };
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
