//! Locks on files. The host's programs wait for a lock as well as the guest's do, and taking one needs no more than to read the file. So where a
//! guest may write nothing, none of its locks reaches the file: one that is shared seems to be taken, because nobody inside can change what it
//! guards, and an exclusive one is refused.
//!
//! A lock of flock(2) belongs to the open file: it is taken here, on a copy of the descriptor that was looked at, and the guest's own call never
//! runs. A lock of fcntl(2) belongs to the process, and only its own call can take it. That call goes on, and threads that share a table of
//! descriptors can put another file under its number meanwhile. docs/decisions/0047-locks.md has the reasons.

use super::asked::Met;
use super::{EINVAL, Judge};
use crate::connect::has_signal;
use crate::resolve;
use policy::Perm;
use rustix::fs::{OFlags, StatVfsMountFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use sys::file_lock::{self, RangeKind, RangeLock, WholeLock};
use sys::notify::{Call, Listener};
use sys::process::{read_memory, try_copy_descriptor};

const EAGAIN: i32 = 11;
const EBADF: i32 = 9;
const EFAULT: i32 = 14;
const EROFS: i32 = 30;
const ENOLCK: i32 = 37;

/// Calls that may wait for a lock at a time, each on a thread and with a descriptor of ours.
const MOST_WAITING: usize = 128;
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// What is tried for the guest.
#[derive(Clone, Copy)]
enum Attempt {
    Take(WholeLock),
    /// Nothing is taken; whether it could be is what the guest is told.
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
        // Whoever has the number by now did not ask for this.
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

    /// A command of fcntl(2); those that take no lock are somebody else's.
    pub(super) fn fcntl(&mut self, listener: &Listener, call: &Call) -> Met {
        let waits = match call.args[1] as u32 {
            file_lock::SET_POSIX | file_lock::SET_OPEN_FILE => false,
            file_lock::SET_POSIX_WAIT | file_lock::SET_OPEN_FILE_WAIT => true,
            _ => return Met::Nothing,
        };
        let file = match self.file_to_lock(call) {
            Ok(file) if self.is_read_only(&file) => file,
            Ok(_) => return Met::Nothing,
            Err(errno) => return Met::Refused(errno),
        };
        let bytes = read_memory(call.tid, call.args[2], RangeLock::SIZE);
        let Some(lock) = bytes.and_then(|bytes| RangeLock::from_bytes(&bytes)) else { return Met::Refused(EFAULT) };
        if !listener.is_live(call) {
            return Met::Waits;
        }
        match lock.kind() {
            Some(RangeKind::Unlock) => listener.answer(call, 0),
            Some(RangeKind::Read) => self.attempt(listener, call, Attempt::Test(lock), file, waits),
            // As the kernel has it: the file is not open for writing.
            Some(RangeKind::Write) => return Met::Refused(EBADF),
            None => return Met::Refused(EINVAL),
        }
        Met::Waits
    }

    /// A copy of the descriptor that a call names. Where we may not look into the process, nobody can say which file it would be.
    fn file_to_lock(&self, call: &Call) -> Result<OwnedFd, i32> {
        let file = try_copy_descriptor(call.tid, call.args[0] as i32)
            .map_err(|errno| if errno == EBADF { EBADF } else { ENOLCK })?;
        let is_handle = rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::PATH));
        if is_handle { Err(EBADF) } else { Ok(file) }
    }

    /// Whether the guest may write nothing to a file. Its mount says so; without mounts of its own, the rules do. What cannot be known counts
    /// as read-only.
    fn is_read_only(&self, file: &OwnedFd) -> bool {
        if self.steps.watch.alone {
            // Pipes and their like have names that are no paths.
            return resolve::path_of(file)
                .is_none_or(|path| path.is_absolute() && !self.request.policy.fs(&path, Perm::WriteFile).allowed());
        }
        !rustix::fs::fstatvfs(file).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Told with the rule that keeps the guest from writing there, which is why.
    fn note_lock(&mut self, call: &Call, file: &OwnedFd) {
        let Some(path) = resolve::path_of(file) else { return };
        let decision = self.request.policy.fs(&path, Perm::WriteFile);
        self.judge("fs.lock", &path.to_string_lossy(), decision, call.tid);
    }

    fn attempt(&self, listener: &Listener, call: &Call, attempt: Attempt, file: OwnedFd, waits: bool) {
        let made = attempt.make(&file);
        if made == Err(EAGAIN) && waits {
            return self.wait_for(listener, call, attempt, file);
        }
        // Before the guest goes on: a file that it then closes shall be closed, and its lock gone.
        drop(file);
        match made {
            Ok(()) => listener.answer(call, 0),
            Err(errno) => listener.refuse(call, errno),
        }
    }

    fn wait_for(&self, listener: &Listener, call: &Call, attempt: Attempt, file: OwnedFd) {
        let room = WAITING.load(Ordering::Relaxed) < MOST_WAITING;
        let Some(own) = listener.try_clone().filter(|_| room) else { return listener.refuse(call, ENOLCK) };
        let waiter = Waiter { listener: own, call: *call, attempt, file, still: self.still.clone() };
        WAITING.fetch_add(1, Ordering::Relaxed);
        let started = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
            waiter.wait();
            WAITING.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            listener.refuse(call, ENOLCK);
        }
    }
}

/// A call that waits for a lock, on a thread of its own. The kernel would make this thread wait with nobody to wake it when the guest's is
/// gone, so it tries again and again, with pauses that grow with the wait.
struct Waiter {
    listener: Listener,
    call: Call,
    attempt: Attempt,
    file: OwnedFd,
    still: Arc<AtomicBool>,
}

impl Waiter {
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
            // One that was meant for another thread is gone at the second look.
            signals = if has_signal(self.call.tid) { signals + 1 } else { 0 };
            if signals > 1 || self.still.load(Ordering::Acquire) {
                drop(self.file);
                return self.listener.again(&self.call);
            }
        };
        drop(self.file);
        match made {
            Ok(()) => self.listener.answer(&self.call, 0),
            Err(errno) => self.listener.refuse(&self.call, errno),
        }
    }
}
