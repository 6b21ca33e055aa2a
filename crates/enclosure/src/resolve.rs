//! What a path means to a guest. Paths inside and outside are the same by design, so the answer is a plain path;
//! links are followed in the guest's own root, never in ours.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// What the last component means to a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// A link at the end is followed.
    Follow,
    /// The name itself is meant.
    Name,
}

/// Follows paths for one guest; remembers its root.
#[derive(Default)]
pub struct Resolver {
    root: Option<OwnedFd>,
}

impl Resolver {
    /// One that knows its root.
    pub fn of(root: OwnedFd) -> Resolver {
        Resolver { root: Some(root) }
    }

    /// The path as the guest named it, made absolute; `None` when it goes up, where only the real path is sure.
    pub fn named(&self, tid: i32, dirfd: i32, path: &[u8]) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(path));
        let whole = if path.is_absolute() { path.to_path_buf() } else { self.base(tid, dirfd)?.join(path) };
        let plain = |c: Component<'_>| !matches!(c, Component::ParentDir);
        whole.components().all(plain).then(|| whole.components().collect())
    }

    /// The real path that `path` (relative to `dirfd` or the caller's directory) names, as far as it exists, with
    /// the rest appended. `None` when the caller cannot be looked at.
    pub fn resolve(&mut self, tid: i32, dirfd: i32, path: &[u8], last: Last) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(path));
        let whole = if path.is_absolute() { path.to_path_buf() } else { self.base(tid, dirfd)?.join(path) };
        let root = self.root(tid)?;
        let (mut dir, mut rest) = match last {
            Last::Follow => (whole, PathBuf::new()),
            Last::Name => split(&whole)?,
        };
        for _ in 0..64 {
            if let Some(real) = real_path(root, &dir) {
                return Some(normal(&real.join(&rest)));
            }
            let (above, name) = split(&dir)?;
            rest = if rest.as_os_str().is_empty() { name } else { name.join(&rest) };
            dir = above;
        }
        None
    }

    /// The directory of a caller, or what a descriptor of theirs is on.
    pub fn base(&self, tid: i32, dirfd: i32) -> Option<PathBuf> {
        const HERE: i32 = -100;
        let link = if dirfd == HERE { format!("/proc/{tid}/cwd") } else { format!("/proc/{tid}/fd/{dirfd}") };
        std::fs::read_link(link).ok().filter(|p| p.is_absolute())
    }

    /// What a path leads to, as a handle, and where that is. Links are followed once.
    pub fn open(&mut self, tid: i32, dirfd: i32, path: &[u8]) -> Result<(OwnedFd, PathBuf), Errno> {
        let missing = Errno::NOENT;
        let path = Path::new(OsStr::from_bytes(path));
        let whole = match path.is_absolute() {
            true => path.to_path_buf(),
            false => self.base(tid, dirfd).ok_or(missing)?.join(path),
        };
        let fd = find(self.root(tid).ok_or(missing)?, &whole)?;
        let real = path_of(&fd).ok_or(missing)?;
        Ok((fd, real))
    }

    /// What is at a real path of a guest's tree, itself; for one whose calls were looked at before.
    pub fn stat(&self, path: &Path) -> Option<Stat> {
        rustix::fs::fstat(self.handle(path)?).ok()
    }

    /// Where a path goes on whose first link leads to nothing in the guest's tree; for one that was resolved before. `None`
    /// where there is no such link.
    pub fn beyond(&self, path: &Path, last: Last) -> Option<PathBuf> {
        let mut above: Vec<&Path> = path.ancestors().skip(usize::from(last == Last::Name)).collect();
        above.reverse();
        for at in above.into_iter().skip(1) {
            let found = self.handle(at)?;
            let is_link = rustix::fs::fstat(&found).is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_symlink());
            if is_link {
                let target = rustix::fs::readlinkat(&found, c"", Vec::new()).ok()?;
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                return Some(normal(&at.parent()?.join(target).join(path.strip_prefix(at).ok()?)));
            }
        }
        None
    }

    fn handle(&self, path: &Path) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(self.root.as_ref()?, path.strip_prefix("/").ok()?, flags, Mode::empty(), resolve).ok()
    }

    fn root(&mut self, tid: i32) -> Option<&OwnedFd> {
        if self.root.is_none() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            self.root = rustix::fs::open(format!("/proc/{tid}/root"), flags, Mode::empty()).ok();
        }
        self.root.as_ref()
    }
}

/// The path of what `path` leads to inside `root`.
fn real_path(root: &OwnedFd, path: &Path) -> Option<PathBuf> {
    path_of(&find(root, path).ok()?)
}

/// What an absolute path leads to inside `root`.
fn find(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    /// A path that goes up is not followed while anything anywhere is being moved or mounted, and the kernel asks to try
    /// again. This is how often we do before the guest hears of it.
    const TRIES: usize = 1000;
    let inside = path.strip_prefix("/").map_err(|_| Errno::NOENT)?;
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let look = || openat2(root, inside, flags, Mode::empty(), resolve);
    let tries = (1..TRIES).map(|_| look()).find(|found| !matches!(found, Err(Errno::AGAIN)));
    // A guest that moves things itself all the time is told what a path gives that cannot be followed.
    tries.unwrap_or(Err(Errno::NOENT))
}

/// Where a handle of the guest's tree is.
pub fn path_of(fd: &OwnedFd) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
    let path = std::fs::read_link(link).ok()?;
    // What covers a hidden path was unlinked once it was in place, and the kernel says so in the name.
    let covered = || rustix::fs::fstat(fd).is_ok_and(|s| s.st_nlink == 0);
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(name) if covered() => Some(PathBuf::from(OsStr::from_bytes(name))),
        _ => Some(path),
    }
}

fn split(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut above = path.components();
    let name = above.next_back()?;
    matches!(name, Component::Normal(_) | Component::ParentDir | Component::CurDir)
        .then(|| (above.as_path().to_path_buf(), PathBuf::from(name.as_os_str())))
}

/// Without `.` and `..`, by name alone: only for the part of a path that does not exist.
pub fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            _ => {}
        }
    }
    out
}
