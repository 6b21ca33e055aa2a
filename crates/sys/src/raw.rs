//! System calls without the C library, for processes that share its `errno` with another: helpers in our memory, and
//! their children. Also the few calls that all such processes need.

use std::os::fd::RawFd;

/// Makes a system call by number and arguments; returns the kernel's result, negative on failure.
///
/// # Safety
/// As for the call itself: every pointer among the arguments must be valid for what the kernel does with it.
pub(crate) unsafe fn call<const N: usize>(words: [usize; N]) -> isize {
    let mut all = [0; 7];
    all[..N].copy_from_slice(&words);
    let [number, a, b, c, d, e, f] = all;
    let answer: isize;
    // SAFETY: the kernel's calling convention; the caller guarantees the arguments.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// Converts the kernel's result: a number or descriptor, or the error number.
pub(crate) fn checked(answer: isize) -> Result<i32, i32> {
    if answer < 0 { Err(-answer as i32) } else { Ok(answer as i32) }
}

/// `kernel!(SYS_name, arguments…)`: makes the call and checks its result. Unsafe as the call itself is.
macro_rules! kernel {
    ($call:ident $(, $argument:expr)*) => {
        $crate::raw::checked($crate::raw::call([libc::$call as usize $(, $argument as usize)*]))
    };
}
pub(crate) use kernel;

/// Closes a descriptor.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: closes a descriptor this process opened.
    let _ = unsafe { kernel!(SYS_close, fd) };
}

/// Closes every descriptor but one: a copy of a pipe's end here would hide that the other side closed it.
pub(crate) fn close_all_but(keep: RawFd) {
    // SAFETY: closes descriptors of this process alone; the command has its own copies.
    unsafe {
        if keep > 0 {
            let _ = kernel!(SYS_close_range, 0, keep - 1, 0);
        }
        let _ = kernel!(SYS_close_range, keep + 1, u32::MAX, 0);
    }
}

/// Exits at once.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: ends the process without running any of the supervisor's copied state.
    unsafe {
        loop {
            let _ = kernel!(SYS_exit_group, code);
        }
    }
}

/// Sets soft and hard value of a resource limit of this process.
pub(crate) fn rlimit(resource: u32, value: u64) -> Result<(), i32> {
    let limit = libc::rlimit64 { rlim_cur: value, rlim_max: value };
    // SAFETY: a structure that outlives the call; no old value wanted.
    unsafe { kernel!(SYS_prlimit64, 0, resource, &raw const limit, 0) }.map(drop)
}
