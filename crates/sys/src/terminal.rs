//! Pseudo-terminals of a guest. Raw calls only, as in `child`.

use crate::raw::kernel;
use std::ffi::CStr;
use std::os::fd::RawFd;

/// Opens a new pseudo-terminal of the guest's devpts; returns master and slave.
pub(crate) fn open_terminal(at: &CStr, rows: u16, columns: u16) -> Result<(RawFd, RawFd), i32> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let unlocked: i32 = 0;
    const OPEN_PEER: libc::c_ulong = 0x5441;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: C strings and locals that outlive the calls.
    unsafe {
        let master = kernel!(SYS_openat, libc::AT_FDCWD, at.as_ptr(), flags, 0)?;
        kernel!(SYS_ioctl, master, libc::TIOCSPTLCK, &raw const unlocked)?;
        kernel!(SYS_ioctl, master, libc::TIOCSWINSZ, &raw const size)?;
        Ok((master, kernel!(SYS_ioctl, master, OPEN_PEER, flags)?))
    }
}
