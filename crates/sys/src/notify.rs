//! The supervisor's end of the seccomp listener: receives notifications and responds to them. A response of "continue"
//! is for reporting only: the guest can change the memory behind a pointer, so the mechanisms that decide must already
//! be in place in the kernel.

use crate::{CallError, errno};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A system call that waits for a response.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    id: u64,
    /// The calling thread, in our pid namespace.
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

    /// Sets synchronous wake-up, which keeps guest and supervisor on one processor. Older kernels refuse; that is
    /// harmless.
    pub fn set_sync_wakeup(&self, share: bool) {
        const SET_FLAGS: libc::c_ulong = 0x4008_2104;
        const SYNC_WAKE_UP: u64 = 1;
        // SAFETY: a number passed by value.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), SET_FLAGS, if share { SYNC_WAKE_UP } else { 0 }) };
    }

    /// Duplicates the listener, to respond from another thread.
    pub fn try_clone(&self) -> Option<Listener> {
        self.fd.try_clone().ok().map(|fd| Listener { fd })
    }

    /// Receives the next notification; `None` if the caller died meanwhile.
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

    /// Returns true if the caller still waits; data read from its memory before is valid only then.
    pub fn is_live(&self, call: &Call) -> bool {
        const ID_VALID: libc::c_ulong = 0x4008_2102;
        // SAFETY: passes a pointer to a number that outlives the call.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), ID_VALID, &call.id) == 0 }
    }

    /// Continues the call as if there had been no notification.
    pub fn continue_call(&self, call: &Call) {
        const CONTINUE: u32 = 1;
        self.respond(libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags: CONTINUE });
    }

    /// Fails the call with this error number.
    pub fn refuse(&self, call: &Call, errno: i32) {
        self.respond(libc::seccomp_notif_resp { id: call.id, val: 0, error: -errno, flags: 0 });
    }

    /// Completes the call with this return value.
    pub fn answer(&self, call: &Call, value: i64) {
        self.respond(libc::seccomp_notif_resp { id: call.id, val: value, error: 0, flags: 0 });
    }

    /// Completes the call with a copy of this descriptor, atomically: the guest gets the descriptor and continues, or
    /// neither. On error the caller still waits.
    pub fn complete_with_fd(&self, call: &Call, fd: BorrowedFd<'_>, close_on_exec: bool) -> Result<(), i32> {
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

    /// Restarts the call after the caller has handled its pending signal. Without a pending signal the caller would see
    /// ERESTARTSYS, which no program knows.
    pub fn restart(&self, call: &Call) {
        const ERESTARTSYS: i32 = 512;
        self.refuse(call, ERESTARTSYS);
    }

    fn respond(&self, response: libc::seccomp_notif_resp) {
        // A caller that died meanwhile is not an error.
        // SAFETY: a structure that outlives the call.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &response) };
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
