//! Messages between a guest's pid 1 and its supervisor: descriptors received, reports sent; and the end of either side.
//! Raw calls only, as in `child`.

use super::{NO_PLACES, SetupState};
use crate::control::{FLAGGED_FDS, MAX_REPORT_FDS, MOST_HANDLES, Message, Report, send};
use crate::doors;
use crate::raw::{close, exit, kernel};
use std::os::fd::RawFd;

pub(super) fn await_supervisor(control: RawFd) -> Result<(), i32> {
    let mut byte = 0u8;
    // SAFETY: one byte into a local.
    match unsafe { kernel!(SYS_read, control, &raw mut byte, 1) }? {
        // The supervisor is gone, so the guest ends.
        0 => exit(1),
        _ => Ok(()),
    }
}

/// Returns true if the supervisor is gone. It may have been killed before PR_SET_PDEATHSIG was set.
pub(super) fn has_hung_up(control: RawFd) -> bool {
    let mut asked = libc::pollfd { fd: control, events: 0, revents: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: locals that outlive the call.
    let found = unsafe { kernel!(SYS_ppoll, &raw mut asked, 1, &raw const at_once, 0, 0) };
    found == Ok(1) && asked.revents & libc::POLLHUP != 0
}

/// Receives the descriptors of one message; slots without a descriptor stay -1.
pub(super) fn receive(control: RawFd, handles: &mut [RawFd; MOST_HANDLES]) -> Result<(), i32> {
    #[repr(C, align(8))]
    struct Ancillary([u8; 16 + 4 * MOST_HANDLES + 16]);
    let mut space = Ancillary([0; 16 + 4 * MOST_HANDLES + 16]);
    let mut byte = 0u8;
    *handles = [-1; MOST_HANDLES];
    // SAFETY: all buffers are locals with their true lengths, and the control message is walked with the kernel's own
    // macros.
    unsafe {
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.0.as_mut_ptr().cast();
        message.msg_controllen = space.0.len() as _;
        if kernel!(SYS_recvmsg, control, &raw mut message, libc::MSG_CMSG_CLOEXEC)? == 0 {
            // The supervisor is gone, so the guest ends.
            exit(1);
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
            let slots = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, handle) in handles.iter_mut().enumerate().take(count) {
                *handle = slots.add(i).read_unaligned();
            }
        }
    }
    Ok(())
}

pub(super) fn join_groups(control: RawFd) -> Result<(), i32> {
    let mut entries = [-1; MOST_HANDLES];
    receive(control, &mut entries)?;
    for fd in entries.into_iter().take_while(|fd| *fd >= 0) {
        // SAFETY: one byte from a constant.
        unsafe { kernel!(SYS_write, fd, c"0".as_ptr(), 1) }?;
        close(fd);
    }
    Ok(())
}

pub(super) fn ready(state: &mut SetupState<'_>) -> Result<(), i32> {
    let mut handles: [RawFd; MAX_REPORT_FDS] = [-1; _];
    let named =
        [state.listener, state.master, state.sockets].into_iter().chain(state.places).chain(state.doors.everywhere);
    let mut which = 0;
    for (at, (slot, fd)) in handles.iter_mut().zip(named.chain(state.doors.loopback)).enumerate() {
        *slot = fd;
        if at < FLAGGED_FDS {
            which |= u64::from(fd >= 0) << at;
        }
    }
    send(state.control, &Report { message: Message::Ready, handles: which, ..Report::default() }, &handles)?;
    for fd in handles {
        if fd >= 0 {
            close(fd);
        }
    }
    (state.listener, state.master, state.sockets, state.places) = (-1, -1, -1, NO_PLACES);
    state.doors = doors::Opened::NONE;
    Ok(())
}
