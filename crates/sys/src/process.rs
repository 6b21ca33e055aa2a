//! Processes by pidfd: signals, memory, descriptors; and facts about this process.

use crate::{CallError, errno};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Sends a signal through a pidfd, which never refers to another process. True if it was delivered.
pub fn signal(pidfd: BorrowedFd<'_>, signal: i32) -> bool {
    // SAFETY: a descriptor and numbers.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, 0usize, 0u32) == 0 }
}

/// Returns true if the process has ended, reaped or not.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut asked = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that outlives the call.
    unsafe { libc::poll(&mut asked, 1, 0) > 0 }
}

/// Waits for a child and reaps it.
pub fn reap(pidfd: BorrowedFd<'_>) {
    const P_PIDFD: libc::idtype_t = 3;
    // SAFETY: no information wanted; the kernel accepts null.
    while unsafe { libc::waitid(P_PIDFD, pidfd.as_raw_fd() as u32, std::ptr::null_mut(), libc::WEXITED | libc::__WALL) }
        < 0
        && errno() == libc::EINTR
    {}
}

/// Copies a descriptor of another process, by thread id. `None` if access to that process is not permitted.
pub fn copy_descriptor(tid: i32, fd: i32) -> Option<std::os::fd::OwnedFd> {
    try_copy_descriptor(tid, fd).ok()
}

/// Like `copy_descriptor`, with the error number: EBADF if the process has no such descriptor.
pub fn try_copy_descriptor(tid: i32, fd: i32) -> Result<std::os::fd::OwnedFd, i32> {
    use std::os::fd::{FromRawFd, OwnedFd};
    const THREAD: u32 = libc::O_EXCL as u32;
    // SAFETY: numbers only; every descriptor is owned as soon as it exists.
    unsafe {
        let mut pidfd = libc::syscall(libc::SYS_pidfd_open, tid, THREAD);
        if pidfd < 0 {
            // Older kernels have no pidfds for threads; most callers are the main thread anyway.
            pidfd = libc::syscall(libc::SYS_pidfd_open, tid, 0u32);
        }
        if pidfd < 0 {
            return Err(errno());
        }
        let pidfd = OwnedFd::from_raw_fd(pidfd as i32);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0u32);
        if copy >= 0 { Ok(OwnedFd::from_raw_fd(copy as i32)) } else { Err(errno()) }
    }
}

/// Returns true if two threads share a descriptor table. False if the kernel does not say.
pub fn share_descriptors(one: i32, other: i32) -> bool {
    const KCMP_FILES: i32 = 2;
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0usize, 0usize) == 0 }
}

/// Copies an inherited descriptor, by its number, if it can be written to.
pub fn inherited_for_writing(fd: u32) -> Result<std::os::fd::OwnedFd, CallError> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: checks and copies a number that may or may not be open; the copy is owned once.
    unsafe {
        let flags = libc::fcntl(fd as i32, libc::F_GETFL);
        if flags < 0 {
            return Err(CallError::last("fcntl"));
        }
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(CallError { call: "fcntl", errno: libc::EBADF });
        }
        let copy = libc::fcntl(fd as i32, libc::F_DUPFD_CLOEXEC, 3);
        if copy < 0 { Err(CallError::last("fcntl")) } else { Ok(OwnedFd::from_raw_fd(copy)) }
    }
}

/// Kills and reaps a child by pid, where pidfds do not work; the pid cannot be reused before.
pub fn kill_child(pid: i32) {
    // SAFETY: numbers only.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL);
    }
}

/// Reads a C string from another process, at most `most` bytes. `None` when it cannot be read.
pub fn read_string(pid: i32, address: u64, most: usize) -> Option<Vec<u8>> {
    const PAGE: u64 = 4096;
    let mut text = Vec::new();
    let mut at = address;
    while text.len() < most {
        // Reads up to the end of the page: the next page may not be mapped.
        let len = ((PAGE - at % PAGE) as usize).min(most - text.len());
        let chunk = read_memory(pid, at, len)?;
        if let Some(end) = chunk.iter().position(|b| *b == 0) {
            text.extend_from_slice(&chunk[..end]);
            return Some(text);
        }
        text.extend_from_slice(&chunk);
        at += len as u64;
    }
    None
}

/// Reads exactly `len` bytes from another process.
pub fn read_memory(pid: i32, address: u64, len: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0u8; len];
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len };
    // SAFETY: writes at most `len` bytes into our buffer; the remote address is not dereferenced here.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    if got == len as isize {
        return Some(buffer);
    }
    // Seccomp filters of containers sometimes forbid the call but not the file.
    let file = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut buffer, address).ok()?;
    Some(buffer)
}

/// Returns the file creation mask of this process, which must have one thread.
pub fn umask() -> u32 {
    // SAFETY: sets and restores a number.
    unsafe {
        let old = libc::umask(0o077);
        libc::umask(old);
        old
    }
}

/// Closes every descriptor from a number on. Only for the start of a program, before it has opened any of them.
pub fn close_from(first: u32) {
    // SAFETY: takes plain numbers. The caller owns no descriptor from `first` on, as the contract above says.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, 0);
    }
}

/// Blocks signals and returns a signalfd for them; read it with `next_signal`.
pub fn signal_handle(signals: &[i32]) -> Result<std::os::fd::OwnedFd, CallError> {
    use std::os::fd::FromRawFd;
    // SAFETY: local sets, filled before use; the descriptor is owned once.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) < 0 {
            return Err(CallError::last("sigprocmask"));
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(CallError::last("signalfd"));
        }
        Ok(std::os::fd::OwnedFd::from_raw_fd(fd))
    }
}

/// Returns the next signal and the pid of its sender (0: the kernel, a terminal for instance).
pub fn next_signal(handle: BorrowedFd<'_>) -> Option<(i32, i32)> {
    // SAFETY: plain data filled by the kernel, read only when all of it arrived.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        let got = libc::read(handle.as_raw_fd(), (&raw mut info).cast(), size);
        (got == size as isize).then_some((info.ssi_signo as i32, info.ssi_pid as i32))
    }
}

static ARGUMENTS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static ARGUMENTS_LEN: AtomicUsize = AtomicUsize::new(0);

static VARIABLES: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static VARIABLES_LEN: AtomicUsize = AtomicUsize::new(0);

/// Records where the kernel put our arguments and environment. The C library calls it before `main`.
extern "C" fn note_arguments(argc: i32, argv: *const *mut u8, envp: *const *mut u8) {
    // SAFETY: the C library passes the true vectors, the second ended by null.
    unsafe {
        note(argv, argc.max(0) as usize, &ARGUMENTS, &ARGUMENTS_LEN);
        let mut count = 0;
        while !envp.is_null() && !(*envp.add(count)).is_null() {
            count += 1;
        }
        note(envp, count, &VARIABLES, &VARIABLES_LEN);
    }
}

/// `list` must hold `count` strings that are contiguous, as on the initial stack.
unsafe fn note(list: *const *mut u8, count: usize, at: &AtomicPtr<u8>, len: &AtomicUsize) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let (first, last) = (*list, *list.add(count - 1));
        let end = last.add(libc::strlen(last.cast()));
        at.store(first, Ordering::Relaxed);
        len.store(end.offset_from(first).max(0) as usize, Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_ARGUMENTS: extern "C" fn(i32, *const *mut u8, *const *mut u8) = note_arguments;

/// Returns the start of our arguments, with the environment behind them; null if it was not recorded.
pub(crate) fn arguments() -> *mut u8 {
    ARGUMENTS.load(Ordering::Relaxed)
}

/// Overwrites our arguments, which every process in the pid namespace can read, and our environment, which may contain
/// secrets. For the guest's pid 1 only: its memory is a copy, and no data of the caller may be inside.
pub(crate) fn blank_arguments() {
    const NAME: &[u8] = b"cofferdam-init";
    for (start, len, name) in [(&ARGUMENTS, &ARGUMENTS_LEN, NAME), (&VARIABLES, &VARIABLES_LEN, b"")] {
        let (start, len) = (start.load(Ordering::Relaxed), len.load(Ordering::Relaxed));
        for i in 0..if start.is_null() { 0 } else { len } {
            // SAFETY: inside the strings that `note_arguments` measured; no other code uses them in this copy.
            unsafe { start.add(i).write_volatile(name.get(i).copied().unwrap_or(0)) };
        }
    }
}
