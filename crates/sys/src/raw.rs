//! System calls without the C library, for processes that share its error number with somebody else: helpers in our
//! memory, and whatever they give birth to.

/// A call by number and arguments; the kernel's own answer, negative when it failed.
///
/// # Safety
/// As for the call itself: every pointer among the arguments must be valid for what the kernel does with it.
pub(crate) unsafe fn call<const N: usize>(words: [usize; N]) -> isize {
    let mut all = [0; 7];
    all[..N].copy_from_slice(&words);
    let [number, a, b, c, d, e, f] = all;
    let answer: isize;
    // SAFETY: the kernel's calling convention; the caller answers for the arguments.
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

/// The answer as a result: a number or descriptor, or the error number.
pub(crate) fn checked(answer: isize) -> Result<i32, i32> {
    if answer < 0 { Err(-answer as i32) } else { Ok(answer as i32) }
}

/// `kernel!(SYS_name, arguments…)`: the call, checked. Unsafe as the call itself is.
macro_rules! kernel {
    ($call:ident $(, $argument:expr)*) => {
        $crate::raw::checked($crate::raw::call([libc::$call as usize $(, $argument as usize)*]))
    };
}
pub(crate) use kernel;
