//! Between a guest's first process and its supervisor: handles that come, reports that go; and the end of either. Raw calls only, as in `child`.

use super::{Kept, MOST_HANDLES, NO_PLACES};
use crate::doors;
use crate::raw::kernel;
use crate::spawn::{KeptSpace, MOST_KEPT, Message, NAMED, Report};
use std::os::fd::RawFd;

pub(super) fn await_supervisor(control: RawFd) -> Result<(), i32> {
    let mut byte = 0u8;
    // SAFETY: one byte into a local.
    match unsafe { kernel!(SYS_read, control, &raw mut byte, 1) }? {
        // The supervisor is gone; so are we.
        0 => exit(1),
        _ => Ok(()),
    }
}

/// Whether the supervisor is gone. It may have been killed before we had ourselves tied to it.
pub(super) fn hung_up(control: RawFd) -> bool {
    let mut asked = libc::pollfd { fd: control, events: 0, revents: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: locals that outlive the call.
    let found = unsafe { kernel!(SYS_ppoll, &raw mut asked, 1, &raw const at_once, 0, 0) };
    found == Ok(1) && asked.revents & libc::POLLHUP != 0
}

/// Takes the handles of one message; those that did not come stay -1.
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
            // The supervisor is gone; so are we.
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

pub(super) fn ready(kept: &mut Kept) -> Result<(), i32> {
    let mut handles: [RawFd; MOST_KEPT] = [-1; _];
    let named = [kept.listener, kept.master, kept.sockets].into_iter().chain(kept.places).chain(kept.doors.everywhere);
    let mut which = 0;
    for (at, (slot, fd)) in handles.iter_mut().zip(named.chain(kept.doors.loopback)).enumerate() {
        *slot = fd;
        if at < NAMED {
            which |= u64::from(fd >= 0) << at;
        }
    }
    send(kept.control, &Report { message: Message::Ready, handles: which, ..Report::default() }, &handles)?;
    for fd in handles {
        if fd >= 0 {
            close(fd);
        }
    }
    (kept.listener, kept.master, kept.sockets, kept.places) = (-1, -1, -1, NO_PLACES);
    kept.doors = doors::Opened::NONE;
    Ok(())
}

/// Sends a report with the given handles (negative ones are left out).
pub(crate) fn send(control: RawFd, report: &Report, handles: &[RawFd]) -> Result<(), i32> {
    let mut space = KeptSpace([0; _]);
    let count = handles.iter().filter(|fd| **fd >= 0).count();
    // SAFETY: the buffer holds one header and the most descriptors there are; every pointer is a local that
    // outlives the call.
    unsafe {
        let mut part =
            libc::iovec { iov_base: (report as *const Report as *mut Report).cast(), iov_len: size_of::<Report>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if count > 0 {
            message.msg_control = space.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE((count * 4) as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN((count * 4) as u32) as _;
            let mut slot = libc::CMSG_DATA(header).cast::<RawFd>();
            for fd in handles.iter().filter(|fd| **fd >= 0) {
                slot.write_unaligned(*fd);
                slot = slot.add(1);
            }
        }
        kernel!(SYS_sendmsg, control, &raw const message, libc::MSG_NOSIGNAL).map(drop)
    }
}

pub(crate) fn close(fd: RawFd) {
    // SAFETY: closes a descriptor this process opened.
    let _ = unsafe { kernel!(SYS_close, fd) };
}

/// Only the line to the supervisor is kept: an end of a pipe held here would hide that the other side closed it.
pub(crate) fn close_all_but(keep: RawFd) {
    // SAFETY: closes descriptors of this process alone; the command has its own copies.
    unsafe {
        if keep > 0 {
            let _ = kernel!(SYS_close_range, 0, keep - 1, 0);
        }
        let _ = kernel!(SYS_close_range, keep + 1, u32::MAX, 0);
    }
}

pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: ends the process without running anything of the supervisor's copied state.
    unsafe {
        loop {
            let _ = kernel!(SYS_exit_group, code);
        }
    }
}
