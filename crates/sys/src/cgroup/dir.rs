//! A cgroup directory held open: files and children are opened relative to the descriptor, never by a path that another
//! process could replace. Reads are bounded, and no file is ever created.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::raw;

/// Bound on one read. No control file that we read is longer; a longer member list is read in rounds.
const MAX_READ: usize = 256 * 1024;
const CHUNK: usize = 4096;
/// Bound on the children that are listed.
const MAX_CHILDREN: usize = 16 * 1024;

#[derive(Debug)]
pub struct Dir(OwnedFd);

impl Dir {
    pub fn open(path: &Path) -> io::Result<Dir> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_DIRECTORY);
        Ok(Dir(options.open(path)?.into()))
    }

    pub fn child(&self, name: &str) -> io::Result<Dir> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        raw::open_at(self.as_fd(), name, flags).map(Dir)
    }

    pub fn make(&self, name: &str) -> io::Result<Dir> {
        raw::make_dir_at(self.as_fd(), name)?;
        let made = self.child(name).inspect_err(|_| drop(raw::remove_dir_at(self.as_fd(), name)))?;
        #[cfg(test)]
        super::tests::fake::populate(self, &made)?;
        Ok(made)
    }

    /// Makes the child, or opens it when it is there.
    pub fn ensure(&self, name: &str) -> io::Result<Dir> {
        match self.make(name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.child(name),
            other => other,
        }
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        #[cfg(test)]
        super::tests::fake::clear(self, name)?;
        raw::remove_dir_at(self.as_fd(), name)
    }

    pub fn file(&self, name: &str, flags: libc::c_int) -> io::Result<File> {
        raw::open_at(self.as_fd(), name, flags | libc::O_NOFOLLOW).map(File::from)
    }

    /// A control file, which the kernel prints in one piece: a short read is the last.
    pub fn read(&self, name: &str) -> io::Result<String> {
        self.read_while(name, |n| n == CHUNK)
    }

    /// A list, which the kernel prints entry by entry: only an empty read is the last.
    fn read_list(&self, name: &str) -> io::Result<String> {
        self.read_while(name, |n| n > 0)
    }

    fn read_while(&self, name: &str, more: impl Fn(usize) -> bool) -> io::Result<String> {
        let mut file = self.file(name, libc::O_RDONLY)?;
        let mut text = Vec::new();
        let mut chunk = [0; CHUNK];
        while text.len() < MAX_READ {
            let n = file.read(&mut chunk)?;
            text.extend_from_slice(&chunk[..n]);
            if !more(n) {
                break;
            }
        }
        String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    pub fn write(&self, name: &str, text: &str) -> io::Result<()> {
        self.file(name, libc::O_WRONLY | libc::O_TRUNC)?.write_all(text.as_bytes())
    }

    /// Like `write`, for files that only some kernels have. Returns whether the file exists.
    pub fn write_if_there(&self, name: &str, text: &str) -> io::Result<bool> {
        match self.write(name, text) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn may_write(&self, name: &str) -> io::Result<()> {
        raw::access_at(self.as_fd(), name, libc::W_OK)
    }

    pub fn has(&self, name: &str) -> bool {
        raw::access_at(self.as_fd(), name, libc::F_OK).is_ok()
    }

    pub fn chown(&self, name: &str, uid: u32, gid: u32) -> io::Result<()> {
        raw::chown_at(self.as_fd(), name, uid, gid)
    }

    /// The whole file as one number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.read(name).ok()?.trim().parse().ok()
    }

    /// The number after `key` in a file of "key number" lines.
    pub fn keyed(&self, name: &str, key: &str) -> Option<u64> {
        keyed(&self.read(name).ok()?, key)
    }

    /// Space-separated words, as in `cgroup.controllers`.
    pub fn words(&self, name: &str) -> Vec<String> {
        let text = self.read(name).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the member processes that have a number in our pid namespace, and whether the group has any member at
    /// all.
    pub fn members(&self) -> io::Result<(Vec<i32>, bool)> {
        let text = self.read_list("cgroup.procs")?;
        let all: Vec<i32> = text.lines().filter_map(|l| l.trim().parse().ok()).collect();
        let any = !text.trim().is_empty();
        Ok((all.into_iter().filter(|pid| *pid > 0).collect(), any))
    }

    pub fn children(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(format!("/proc/self/fd/{}", self.0.as_raw_fd())) else {
            return Vec::new();
        };
        let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        dirs.filter_map(|e| e.file_name().into_string().ok()).take(MAX_CHILDREN).collect()
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}
