//! A helper that outlives a supervisor killed without warning and removes its control groups, which only a living
//! process can do. It shares the supervisor's memory, so starting it copies nothing, and it touches only the list that
//! it was given.

use crate::{CallError, errno};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

struct Work {
    /// Files to write "1" to first, to kill remaining members (`cgroup.kill`).
    kill: Vec<CString>,
    /// Directories to remove.
    dirs: Vec<CString>,
    alarm: RawFd,
    stack: Vec<u8>,
}

/// Held while the groups exist. Dropping this tells the helper that they are removed, and collects it.
pub struct Janitor {
    release: OwnedFd,
    pid: i32,
}

/// Starts the helper. The lists stay in memory for the life of the process: the helper reads them.
pub fn start(kill: Vec<CString>, dirs: Vec<CString>) -> Result<Janitor, CallError> {
    let mut pair = [0; 2];
    // SAFETY: the kernel fills both.
    if unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(CallError::last("pipe2"));
    }
    // SAFETY: fresh descriptors, owned once each.
    let (alarm, release) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
    let work = Box::leak(Box::new(Work { kill, dirs, alarm: alarm.as_raw_fd(), stack: vec![0; 16 * 1024] }));
    // SAFETY: the stack and the work list are leaked, so they outlive the helper in every case. It has its own
    // descriptor table, runs only `watch`, and no signal of ours reaches it (own session, signals blocked).
    let pid = unsafe {
        let top = work.stack.as_mut_ptr().add(work.stack.len() & !15).cast();
        libc::clone(watch, top, libc::CLONE_VM, (work as *mut Work).cast())
    };
    if pid < 0 {
        return Err(CallError::last("clone"));
    }
    Ok(Janitor { release, pid })
}

impl Drop for Janitor {
    fn drop(&mut self) {
        let done = 1u8;
        // SAFETY: one byte from a local. Should it fail, the helper finds no group to remove when the pipe ends.
        unsafe { libc::write(self.release.as_raw_fd(), (&raw const done).cast(), 1) };
        // SAFETY: our own child; no status wanted.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) };
    }
}

extern "C" fn watch(work: *mut libc::c_void) -> i32 {
    // SAFETY: leaked by `start`, never changed afterwards.
    let work = unsafe { &*work.cast::<Work>() };
    // SAFETY: raw calls on our own descriptor table and on strings that outlive us.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        let mut all: [u64; 1] = [u64::MAX];
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw mut all, 0usize, 8usize);
        close_all_but(work.alarm);
        let mut byte = 0u8;
        let heard = loop {
            let heard = libc::read(work.alarm, (&raw mut byte).cast(), 1);
            if heard >= 0 || errno() != libc::EINTR {
                break heard;
            }
        };
        // A byte means that the groups were removed; the end of the pipe means that the supervisor is gone.
        if heard != 1 {
            clean(work);
        }
        libc::_exit(0)
    }
}

/// Closes all other descriptors. Our copy of the write end must close, or the end of the supervisor would never show;
/// the caller's own descriptors must not be held open by us either.
unsafe fn close_all_but(keep: RawFd) {
    // SAFETY: acts on this process's own table only.
    unsafe {
        if keep > 0 {
            libc::syscall(libc::SYS_close_range, 0u32, keep as u32 - 1, 0u32);
        }
        libc::syscall(libc::SYS_close_range, keep as u32 + 1, u32::MAX, 0u32);
    }
}

fn clean(work: &Work) {
    for file in &work.kill {
        // SAFETY: C strings that outlive us.
        unsafe {
            let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if fd >= 0 {
                libc::write(fd, c"1".as_ptr().cast(), 1);
                libc::close(fd);
            }
        }
    }
    for dir in &work.dirs {
        for _ in 0..200 {
            // SAFETY: a C string that outlives us.
            if unsafe { libc::rmdir(dir.as_ptr()) } == 0 || errno() != libc::EBUSY {
                break;
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            // SAFETY: a local structure.
            unsafe { libc::nanosleep(&pause, std::ptr::null_mut()) };
        }
    }
}
