//! Directory handle and the operations on paths below it. Resolution by openat2 with RESOLVE_BENEATH,
//! RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS: no path passes over a symbolic link, a magic link or `..`.

use api::{FileKind, Rel};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Handle on an open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

/// Metadata of one file, from `stat`. Times are seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub kind: FileKind,
    /// Permission bits with set-id and sticky.
    pub mode: u32,
    pub size: u64,
    /// Allocated space in bytes.
    pub space: u64,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub dev: u64,
    pub ino: u64,
    /// Device number of a device node.
    pub rdev: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
}

impl Meta {
    fn of(stat: &Stat) -> Meta {
        Meta {
            kind: FileKind::of_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            size: stat.st_size as u64,
            space: stat.st_blocks as u64 * 512,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: stat.st_nlink,
            dev: stat.st_dev,
            ino: stat.st_ino,
            rdev: stat.st_rdev,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }

    /// True for an overlayfs whiteout: character device 0/0.
    pub fn is_struck_out(&self) -> bool {
        self.kind == FileKind::Char && self.rdev == 0
    }
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Attempts at an open that fails with EAGAIN or EINTR.
const TRIES: usize = 64;
/// Longest path passed to one system call, below PATH_MAX.
const LONGEST: usize = 4000;

/// Error that `is_mounted` recognises.
fn mounted_on() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "something is mounted on it")
}

/// True if the operation failed because of a mount point.
pub fn is_mounted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy && error.raw_os_error().is_none()
}

impl Dir {
    /// Opens a path of the caller's own; the only place that follows symbolic links.
    pub fn open(path: &Path) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Dir { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Opens a path that was canonicalised and checked before: a component that became a link since then is not
    /// followed.
    pub fn open_canonical(path: &Path) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Dir { fd: rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), plain)? })
    }

    pub fn from_fd(fd: OwnedFd) -> Dir {
        Dir { fd }
    }

    pub fn try_clone(&self) -> io::Result<Dir> {
        Ok(Dir { fd: self.fd.try_clone()? })
    }

    /// Opens a directory below; the top gives another handle on this one.
    pub fn dir(&self, at: &Rel) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.open_at(at, flags, Mode::empty()).map(|fd| Dir { fd })
    }

    /// Opens a subdirectory unless it is a mount point.
    pub fn dir_of_same_mount(&self, name: &[u8]) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.resolve(&Rel::top().join(name), flags, Mode::empty(), BENEATH.union(ResolveFlags::NO_XDEV));
        opened.map(|fd| Dir { fd }).map_err(|e| match e.raw_os_error() {
            Some(code) if code == Errno::XDEV.raw_os_error() => mounted_on(),
            _ => e,
        })
    }

    /// Fails if a name in this directory is a mount point; a missing name passes. The kernel protects a mount point
    /// from rename and unlink only in its own mount namespace; a process in another one would detach the mount.
    pub fn check_not_mounted_on(&self, name: &[u8]) -> io::Result<()> {
        match self.is_mounted_on(name) {
            Ok(false) => Ok(()),
            Ok(true) => Err(mounted_on()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// True if a name in this directory is a mount point.
    pub fn is_mounted_on(&self, name: &[u8]) -> io::Result<bool> {
        let how = BENEATH.union(ResolveFlags::NO_XDEV);
        match self.resolve(&Rel::top().join(name), OFlags::PATH, Mode::empty(), how) {
            Ok(_) => Ok(false),
            Err(e) if e.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Opens a path below with any flags; a link as the last component is not followed either.
    pub fn open_at(&self, at: &Rel, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        self.resolve(at, flags, mode, BENEATH)
    }

    fn resolve(&self, at: &Rel, flags: OFlags, mode: Mode, how: ResolveFlags) -> io::Result<OwnedFd> {
        let (mut above, mut rest) = (None::<OwnedFd>, at.as_bytes());
        // A longer path fails with ENAMETOOLONG, but trees deeper than PATH_MAX exist: they are made by mkdirat step
        // by step.
        while rest.len() > LONGEST {
            let end = rest[..LONGEST].iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            let from = above.as_ref().unwrap_or(&self.fd);
            above = Some(step(from, &rest[..end], OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), how)?);
            rest = &rest[end + 1..];
        }
        step(above.as_ref().unwrap_or(&self.fd), if at.is_top() { b"." } else { rest }, flags, mode, how)
    }

    /// Opens a regular file for reading. Other kinds are refused; O_NONBLOCK keeps a FIFO from blocking.
    pub fn file(&self, at: &Rel) -> io::Result<File> {
        let fd = self.open_at(at, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
        match FileKind::of_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileKind::File => Ok(File::from(fd)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }

    /// Metadata of a path, links not followed; None if it is missing or a component is not a directory.
    pub fn meta(&self, at: &Rel) -> io::Result<Option<Meta>> {
        if at.is_top() {
            return Ok(Some(Meta::of(&rustix::fs::fstat(&self.fd)?)));
        }
        match self.open_at(at, OFlags::PATH, Mode::empty()) {
            Ok(fd) => Ok(Some(Meta::of(&rustix::fs::fstat(&fd)?))),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Metadata of a name in this directory, which is cheaper than `meta`.
    pub fn meta_of(&self, name: &[u8]) -> io::Result<Option<Meta>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Meta::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Names in this directory, unordered, without `.` and `..`.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.each_name(usize::MAX, |name| names.push(name.to_vec()))?;
        Ok(names)
    }

    /// Calls `tell` with each name; more than `most` is an error of kind `QuotaExceeded`.
    pub fn each_name(&self, most: usize, mut tell: impl FnMut(&[u8])) -> io::Result<()> {
        let mut told = 0;
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if told == most {
                let text = format!("a directory has more than {most} names");
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
            }
            told += 1;
            tell(name);
        }
        Ok(())
    }

    /// Target of a symbolic link in this directory.
    pub fn link_target(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.fd, name, Vec::new())?.into_bytes())
    }

    /// Birth time of a name, if the file system records it.
    pub fn born(&self, name: &[u8]) -> Option<(i64, u32)> {
        let found = rustix::fs::statx(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).ok()?;
        let known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        known.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
    }
}

impl From<Dir> for OwnedFd {
    fn from(dir: Dir) -> OwnedFd {
        dir.fd
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// True if the path does not exist: ENOENT, or a component is a file or a link.
pub fn is_absent(error: &io::Error) -> bool {
    let absent = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
    error.raw_os_error().is_some_and(|raw| absent.iter().any(|e| e.raw_os_error() == raw))
}

fn step(from: &OwnedFd, path: &[u8], flags: OFlags, mode: Mode, how: ResolveFlags) -> io::Result<OwnedFd> {
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(from, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, how) {
            // A rename on the host raced with the resolution, or a process holds a lease on the file, which can take a
            // minute to break.
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
            other => return Ok(other?),
        }
    }
}
