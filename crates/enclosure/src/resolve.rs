//! Resolves paths of a guest. Paths inside and outside are the same by design, so the result is a plain path; symbolic
//! links are followed in the guest's root, never in the supervisor's.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Treatment of a symbolic link as last component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// The link is followed.
    Follow,
    /// The link itself is meant (O_NOFOLLOW and the like).
    Name,
}

/// Resolves paths for one guest, with a handle on its root.
#[derive(Default)]
pub struct Resolver {
    root: Option<OwnedFd>,
}

impl Resolver {
    /// Returns a resolver for this root.
    pub fn of(root: OwnedFd) -> Resolver {
        Resolver { root: Some(root) }
    }

    /// Returns the path as the guest named it, made absolute; `None` where it contains `..`, so that only the real path
    /// is certain.
    pub fn named(&self, tid: i32, dirfd: i32, path: &[u8]) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(path));
        let whole = if path.is_absolute() { path.to_path_buf() } else { self.base(tid, dirfd)?.join(path) };
        let plain = |c: Component<'_>| !matches!(c, Component::ParentDir);
        whole.components().all(plain).then(|| whole.components().collect())
    }

    /// Returns the real path that `path` (relative to `dirfd` or the caller's working directory) names, as far as it
    /// exists, with the rest appended. `None` when the calling process cannot be read.
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

    /// Returns the working directory of a process, or the path of one of its descriptors.
    pub fn base(&self, tid: i32, dirfd: i32) -> Option<PathBuf> {
        const HERE: i32 = -100;
        let link = if dirfd == HERE { format!("/proc/{tid}/cwd") } else { format!("/proc/{tid}/fd/{dirfd}") };
        std::fs::read_link(link).ok().filter(|p| p.is_absolute())
    }

    /// Opens what a path resolves to, and returns its real path. Symbolic links are resolved once.
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

    /// Returns the metadata at a real path of the guest's tree, without following a link. Needs a root, i.e. an earlier
    /// `resolve`.
    pub fn stat(&self, path: &Path) -> Option<Stat> {
        rustix::fs::fstat(self.handle(path)?).ok()
    }

    /// Returns the continuation of a path whose first symbolic link dangles in the guest's tree. Needs an earlier
    /// `resolve`. `None` where there is no such link.
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

/// Returns the real path of `path` inside `root`.
fn real_path(root: &OwnedFd, path: &Path) -> Option<PathBuf> {
    path_of(&find(root, path).ok()?)
}

/// Opens an absolute path inside `root`.
fn find(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    /// Attempts before the guest gets an error. openat2 with RESOLVE_IN_ROOT gives EAGAIN for a path with `..` while
    /// any rename or mount happens on the system.
    const TRIES: usize = 1000;
    let inside = path.strip_prefix("/").map_err(|_| Errno::NOENT)?;
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let look = || openat2(root, inside, flags, Mode::empty(), resolve);
    let tries = (1..TRIES).map(|_| look()).find(|found| !matches!(found, Err(Errno::AGAIN)));
    // A guest that keeps renaming gets ENOENT.
    tries.unwrap_or(Err(Errno::NOENT))
}

/// Returns the path of a handle in the guest's tree.
pub fn path_of(fd: &OwnedFd) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
    let path = std::fs::read_link(link).ok()?;
    // The file that covers a hidden path was unlinked once it was bound, and the kernel appends ` (deleted)` to its
    // name.
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

/// Removes `.` and `..` lexically: only for the part of a path that does not exist.
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
