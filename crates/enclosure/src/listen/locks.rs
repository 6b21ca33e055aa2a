//! File locks. Programs of the host wait for a lock as the guest's do, and taking one needs only read access. So on a
//! file that the guest may not write, none of its locks reaches the file: a shared lock succeeds without being taken,
//! because no process inside can change the data that it guards, and an exclusive lock is refused.
//!
//! A flock(2) lock belongs to the open file description: the supervisor takes it on a copy of the descriptor that it
//! judged, and the guest's own call never runs. An fcntl(2) lock belongs to the process, and only the process's own
//! call can take it. That call continues, and a thread that shares the descriptor table can replace the file under its
//! number meanwhile (TOCTOU). docs/decisions/0004-sockets-and-locks-on-read-only-files.md has the reasons.

use super::asked::Judged;
use super::{EINVAL, Judge};
use crate::connect::has_signal;
use crate::resolve;
use crate::waiting_calls::WaitReason;
use policy::Perm;
use rustix::fs::{OFlags, StatVfsMountFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sys::file_lock::{self, RangeKind, RangeLock, WholeLock};
use sys::notify::{Call, Listener};
use sys::process::{read_memory, try_copy_descriptor};

const EAGAIN: i32 = 11;
const EBADF: i32 = 9;
const EFAULT: i32 = 14;
const EROFS: i32 = 30;
const ENOLCK: i32 = 37;

/// A lock operation on the guest's behalf.
#[derive(Clone, Copy)]
enum Attempt {
    Take(WholeLock),
    /// Tests for a conflict without taking the lock.
    Test(RangeLock),
}

impl Attempt {
    fn make(self, file: &OwnedFd) -> Result<(), i32> {
        match self {
            Attempt::Take(lock) => lock.set(file.as_fd()),
            Attempt::Test(lock) => match lock.is_blocked(file.as_fd())? {
                true => Err(EAGAIN),
                false => Ok(()),
            },
        }
    }
}

impl Judge<'_> {
    pub(super) fn flock(&mut self, listener: &Listener, call: &Call) {
        let Some((lock, waits)) = WholeLock::from_argument(call.args[1] as u32) else {
            return listener.refuse(call, EINVAL);
        };
        let file = match self.file_to_lock(call) {
            Ok(file) => file,
            Err(errno) => return listener.refuse(call, errno),
        };
        // A reused thread id belongs to another caller.
        if !listener.is_live(call) {
            return;
        }
        match (self.is_read_only(&file), lock) {
            (false, lock) => self.attempt(listener, call, Attempt::Take(lock), file, waits),
            (true, WholeLock::Shared | WholeLock::Unlock) => listener.answer(call, 0),
            (true, WholeLock::Exclusive) => {
                self.note_lock(call, &file);
                listener.refuse(call, EROFS);
            }
        }
    }

    /// Judges an fcntl(2) command; those that take no lock are not handled here.
    pub(super) fn fcntl(&mut self, listener: &Listener, call: &Call) -> Judged {
        let waits = match call.args[1] as u32 {
            file_lock::SET_POSIX | file_lock::SET_OPEN_FILE => false,
            file_lock::SET_POSIX_WAIT | file_lock::SET_OPEN_FILE_WAIT => true,
            _ => return Judged::Continues,
        };
        let file = match self.file_to_lock(call) {
            Ok(file) if self.is_read_only(&file) => file,
            Ok(_) => return Judged::Continues,
            Err(errno) => return Judged::Refused(errno),
        };
        let bytes = read_memory(call.tid, call.args[2], RangeLock::SIZE);
        let Some(lock) = bytes.and_then(|bytes| RangeLock::from_bytes(&bytes)) else { return Judged::Refused(EFAULT) };
        if !listener.is_live(call) {
            return Judged::Waits;
        }
        match lock.kind() {
            Some(RangeKind::Unlock) => listener.answer(call, 0),
            Some(RangeKind::Read) => self.attempt(listener, call, Attempt::Test(lock), file, waits),
            // EBADF as from the kernel: the file is not open for writing.
            Some(RangeKind::Write) => return Judged::Refused(EBADF),
            None => return Judged::Refused(EINVAL),
        }
        Judged::Waits
    }

    /// Returns a copy of the descriptor that a call names. ENOLCK where the process cannot be inspected and the file is
    /// unknown.
    fn file_to_lock(&self, call: &Call) -> Result<OwnedFd, i32> {
        let file = try_copy_descriptor(call.tid, call.args[0] as i32)
            .map_err(|errno| if errno == EBADF { EBADF } else { ENOLCK })?;
        let is_handle = rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::PATH));
        if is_handle { Err(EBADF) } else { Ok(file) }
    }

    /// True when the guest may not write to a file: by the flags of its mount or, without mounts of its own, by the
    /// rules. Unknown files count as read-only.
    fn is_read_only(&self, file: &OwnedFd) -> bool {
        if self.steps.watch.alone {
            // Pipes, sockets and anonymous inodes have names that are no absolute paths.
            return resolve::path_of(file)
                .is_none_or(|path| path.is_absolute() && !self.spec.policy.fs(&path, Perm::WriteFile).allowed());
        }
        !rustix::fs::fstatvfs(file).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Reports a refused lock with the rule that denies writing, which is the reason.
    fn note_lock(&mut self, call: &Call, file: &OwnedFd) {
        let Some(path) = resolve::path_of(file) else { return };
        let decision = self.spec.policy.fs(&path, Perm::WriteFile);
        self.judge("fs.lock", &path.to_string_lossy(), decision, call.tid);
    }

    fn attempt(&self, listener: &Listener, call: &Call, attempt: Attempt, file: OwnedFd, waits: bool) {
        let made = attempt.make(&file);
        if made == Err(EAGAIN) && waits {
            return self.wait_for(listener, call, attempt, file);
        }
        // Closed before the call returns, so that the guest's close(2) releases the lock.
        drop(file);
        match made {
            Ok(()) => listener.answer(call, 0),
            Err(errno) => listener.refuse(call, errno),
        }
    }

    fn wait_for(&self, listener: &Listener, call: &Call, attempt: Attempt, file: OwnedFd) {
        let Some((own, counted)) = listener.try_clone().zip(self.waiting_calls.enter(WaitReason::Lock)) else {
            return listener.refuse(call, ENOLCK);
        };
        let waiter = LockWait { listener: own, call: *call, attempt, file, freezing: self.freezing.clone() };
        let started = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
            waiter.wait();
            drop(counted);
        });
        if started.is_err() {
            listener.refuse(call, ENOLCK);
        }
    }
}

/// A call that waits for a lock, on a thread of its own. A blocking flock(2) could not be interrupted when the guest's
/// thread is gone, so this polls, with pauses that grow with the wait.
struct LockWait {
    listener: Listener,
    call: Call,
    attempt: Attempt,
    file: OwnedFd,
    freezing: Arc<AtomicBool>,
}

impl LockWait {
    fn wait(self) {
        const SHORTEST: Duration = Duration::from_micros(100);
        const LONGEST: Duration = Duration::from_millis(50);
        let began = Instant::now();
        let mut signals = 0;
        let made = loop {
            std::thread::sleep((began.elapsed() / 4).clamp(SHORTEST, LONGEST));
            if !self.listener.is_live(&self.call) {
                return;
            }
            match self.attempt.make(&self.file) {
                Err(EAGAIN) => {}
                made => break made,
            }
            // A process-directed signal may be taken by another thread; then it is gone at the second look.
            signals = if has_signal(self.call.tid) { signals + 1 } else { 0 };
            if signals > 1 || self.freezing.load(Ordering::Acquire) {
                drop(self.file);
                return self.listener.restart(&self.call);
            }
        };
        drop(self.file);
        match made {
            Ok(()) => self.listener.answer(&self.call, 0),
            Err(errno) => self.listener.refuse(&self.call, errno),
        }
    }
}
