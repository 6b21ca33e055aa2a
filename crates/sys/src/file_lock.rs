//! Advisory file locks, on a descriptor that is a copy of another process's. A flock(2) lock belongs to the open file
//! description, so a holder of a copy can take it for all; an fcntl(2) lock can only be tested. No function here waits.

use crate::errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Commands of fcntl(2) that take or drop a lock.
pub const SET_POSIX: u32 = libc::F_SETLK as u32;
pub const SET_POSIX_WAIT: u32 = libc::F_SETLKW as u32;
pub const SET_OPEN_FILE: u32 = libc::F_OFD_SETLK as u32;
pub const SET_OPEN_FILE_WAIT: u32 = libc::F_OFD_SETLKW as u32;

/// A lock on a range of bytes, `struct flock`.
#[derive(Clone, Copy)]
pub struct RangeLock(libc::flock);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    Read,
    Write,
    Unlock,
}

impl RangeLock {
    pub const SIZE: usize = std::mem::size_of::<libc::flock>();

    /// Parses a lock from the bytes of a process's memory.
    pub fn from_bytes(bytes: &[u8]) -> Option<RangeLock> {
        let bytes: &[u8; RangeLock::SIZE] = bytes.try_into().ok()?;
        // SAFETY: plain numbers, for which every bit pattern is a value; as long as the structure and read without alignment.
        Some(RangeLock(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) }))
    }

    /// Returns the kind of lock; `None` for a value that the kernel refuses, too.
    pub fn kind(&self) -> Option<RangeKind> {
        match i32::from(self.0.l_type) {
            libc::F_RDLCK => Some(RangeKind::Read),
            libc::F_WRLCK => Some(RangeKind::Write),
            libc::F_UNLCK => Some(RangeKind::Unlock),
            _ => None,
        }
    }

    /// Returns true if a lock of another process conflicts with this one, which is not taken.
    pub fn is_blocked(mut self, file: BorrowedFd<'_>) -> Result<bool, i32> {
        self.0.l_pid = 0;
        // SAFETY: a descriptor that is open, and a structure that outlives the call.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut self.0) } {
            0.. => Ok(i32::from(self.0.l_type) != libc::F_UNLCK),
            _ => Err(errno()),
        }
    }
}

/// A lock on a whole file, by flock(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeLock {
    Shared,
    Exclusive,
    Unlock,
}

impl WholeLock {
    /// Parses the argument of flock(2): the lock, and whether the call waits; `None` for a value that the kernel
    /// refuses, too.
    pub fn from_argument(operation: u32) -> Option<(WholeLock, bool)> {
        let dont_wait = libc::LOCK_NB as u32;
        let lock = match (operation & !dont_wait) as i32 {
            libc::LOCK_SH => WholeLock::Shared,
            libc::LOCK_EX => WholeLock::Exclusive,
            libc::LOCK_UN => WholeLock::Unlock,
            _ => return None,
        };
        Some((lock, operation & dont_wait == 0))
    }

    /// Takes or drops the lock for the open file description; EAGAIN if another process holds it.
    pub fn set(self, file: BorrowedFd<'_>) -> Result<(), i32> {
        let operation = match self {
            WholeLock::Shared => libc::LOCK_SH,
            WholeLock::Exclusive => libc::LOCK_EX,
            WholeLock::Unlock => libc::LOCK_UN,
        };
        // SAFETY: a descriptor that is open, and a number.
        match unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn range(kind: i32) -> RangeLock {
        // SAFETY: plain numbers.
        let mut raw: libc::flock = unsafe { std::mem::zeroed() };
        raw.l_type = kind as i16;
        RangeLock(raw)
    }

    #[test]
    fn a_lock_of_the_whole_file_belongs_to_the_open_file() {
        let path = std::env::temp_dir().join(format!("cofferdam-file-lock-{}", std::process::id()));
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (first, other) = (open(), open());
        let copy = first.try_clone().unwrap();
        for lock in [WholeLock::Shared, WholeLock::Exclusive] {
            lock.set(copy.as_fd()).unwrap();
            assert_eq!(WholeLock::Exclusive.set(other.as_fd()), Err(libc::EAGAIN), "{lock:?}");
        }
        assert_eq!(range(libc::F_WRLCK).is_blocked(other.as_fd()), Ok(false));
        let mut held = range(libc::F_RDLCK).0;
        // SAFETY: an open descriptor and a structure that outlives the call.
        assert_eq!(unsafe { libc::fcntl(first.as_raw_fd(), libc::F_OFD_SETLK, &raw mut held) }, 0);
        assert_eq!(range(libc::F_WRLCK).is_blocked(other.as_fd()), Ok(true));
        assert_eq!(range(libc::F_RDLCK).is_blocked(other.as_fd()), Ok(false));
        drop(copy);
        assert_eq!(WholeLock::Exclusive.set(other.as_fd()), Err(libc::EAGAIN), "the file is open still");
        drop(first);
        WholeLock::Exclusive.set(other.as_fd()).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn arguments_and_bytes_say_what_is_wanted() {
        assert_eq!(WholeLock::from_argument(1), Some((WholeLock::Shared, true)));
        assert_eq!(WholeLock::from_argument(2 | 4), Some((WholeLock::Exclusive, false)));
        assert_eq!(WholeLock::from_argument(8), Some((WholeLock::Unlock, true)));
        assert_eq!((WholeLock::from_argument(3), WholeLock::from_argument(32)), (None, None));
        let mut bytes = [0u8; RangeLock::SIZE];
        assert_eq!(RangeLock::from_bytes(&bytes).unwrap().kind(), Some(RangeKind::Read));
        bytes[0] = 9;
        assert_eq!(RangeLock::from_bytes(&bytes).unwrap().kind(), None);
        assert!(RangeLock::from_bytes(&bytes[1..]).is_none());
    }
}
