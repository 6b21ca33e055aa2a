//! What an announced call would do, to which paths.

use super::{AT_FDCWD, Judge, LONGEST_PATH, is_private};
use crate::launch::Observed;
use crate::resolve::Last;
use policy::Perm;
use std::path::{Path, PathBuf};
use sys::notify::Call;
use sys::process::{read_memory, read_string};

/// Open flags that matter here, as the kernel numbers them.
const O_ACCMODE: u64 = 3;
const O_CREAT: u64 = 0o100;
const O_EXCL: u64 = 0o200;
const O_TRUNC: u64 = 0o1000;
const O_DIRECTORY: u64 = 0o200_000;
const O_NOFOLLOW: u64 = 0o400_000;
const O_PATH: u64 = 0o10_000_000;
const AT_REMOVEDIR: u64 = 0x200;
const AT_SYMLINK_NOFOLLOW: u64 = 0x100;

/// One thing a call wants to do to one path.
pub(super) struct Act {
    pub(super) op: &'static str,
    pub(super) perm: Perm,
    pub(super) path: PathBuf,
    /// It need not exist yet; what is created must not.
    pub(super) fresh: bool,
    /// As the guest spelled it, where that is known and wanted.
    pub(super) named: Option<PathBuf>,
    /// Whether it exists, where that was looked at already.
    pub(super) there: Option<bool>,
}

impl Act {
    fn create(perm: Perm, path: PathBuf, fresh: bool) -> Act {
        Act { op: "fs.create", perm, path, fresh, named: None, there: None }
    }
}

/// Names that move or multiply between directories need a permission of their own.
fn refer(from: &Path, to: &Path) -> Option<Act> {
    (from.parent() != to.parent()).then(|| Act::create(Perm::Refer, to.to_path_buf(), false))
}

impl Judge<'_> {
    fn removal(&self, path: &Path) -> Act {
        let perm = if self.is_dir(path) { Perm::RemoveDir } else { Perm::RemoveFile };
        Act { op: "fs.remove", perm, path: path.to_path_buf(), fresh: false, named: None, there: None }
    }

    /// The permission to make another of the kind that is at `path`.
    fn make_perm(&self, path: &Path) -> Perm {
        node_perm(u64::from(self.mode(path).unwrap_or(0)))
    }

    /// What a call would do, to which paths.
    pub(super) fn acts(&mut self, call: &Call, name: &str) -> Option<Vec<Act>> {
        let a = &call.args;
        let here = AT_FDCWD;
        let one = |act: Option<Act>| act.map(|a| vec![a]);
        match name {
            "open" => self.open(call, here, a[0], a[1]),
            "openat" => self.open(call, a[0] as i32, a[1], a[2]),
            "openat2" => {
                let flags = read_memory(call.tid, a[2], 8)?;
                self.open(call, a[0] as i32, a[1], u64::from_ne_bytes(flags.try_into().ok()?))
            }
            "creat" => self.open(call, here, a[0], O_CREAT | O_TRUNC | 1),
            "mkdir" => one(self.act(call, here, a[0], "fs.create", Perm::MakeDir)),
            "mkdirat" => one(self.act(call, a[0] as i32, a[1], "fs.create", Perm::MakeDir)),
            "mknod" => one(self.act(call, here, a[0], "fs.create", node_perm(a[1]))),
            "mknodat" => one(self.act(call, a[0] as i32, a[1], "fs.create", node_perm(a[2]))),
            "symlink" => one(self.act(call, here, a[1], "fs.create", Perm::MakeSym)),
            "symlinkat" => one(self.act(call, a[1] as i32, a[2], "fs.create", Perm::MakeSym)),
            "link" => self.link(call, (here, a[0]), (here, a[1])),
            "linkat" => self.link(call, (a[0] as i32, a[1]), (a[2] as i32, a[3])),
            "unlink" => one(self.act(call, here, a[0], "fs.remove", Perm::RemoveFile)),
            "rmdir" => one(self.act(call, here, a[0], "fs.remove", Perm::RemoveDir)),
            "unlinkat" => {
                let perm = if a[2] & AT_REMOVEDIR != 0 { Perm::RemoveDir } else { Perm::RemoveFile };
                one(self.act(call, a[0] as i32, a[1], "fs.remove", perm))
            }
            "rename" => self.rename(call, (here, a[0]), (here, a[1]), 0),
            "renameat" => self.rename(call, (a[0] as i32, a[1]), (a[2] as i32, a[3]), 0),
            "renameat2" => self.rename(call, (a[0] as i32, a[1]), (a[2] as i32, a[3]), a[4]),
            "truncate" => {
                let path = self.path(call, here, a[0], Last::Follow)?;
                Some(vec![Act {
                    op: "fs.write",
                    perm: Perm::Truncate,
                    path,
                    fresh: false,
                    named: self.last_named.take(),
                    there: None,
                }])
            }
            "chmod" | "chown" | "utime" | "utimes" | "setxattr" | "removexattr" => {
                one(self.metadata(call, here, a[0], Last::Follow))
            }
            "lchown" | "lsetxattr" | "lremovexattr" => one(self.metadata(call, here, a[0], Last::Name)),
            "fchmodat" | "futimesat" => one(self.metadata(call, a[0] as i32, a[1], Last::Follow)),
            "fchownat" => one(self.metadata(call, a[0] as i32, a[1], last_by(a[4]))),
            "fchmodat2" => one(self.metadata(call, a[0] as i32, a[1], last_by(a[3]))),
            "utimensat" if a[1] != 0 => one(self.metadata(call, a[0] as i32, a[1], last_by(a[3]))),
            "utimensat" | "fchmod" | "fchown" | "fsetxattr" | "fremovexattr" => one(open_file(call.tid, a[0] as i32)),
            "bind" => self.bind(call),
            "stat" | "access" | "readlink" | "lstat" | "chdir" => self.look(call, here, a[0]),
            "newfstatat" | "statx" | "faccessat" | "faccessat2" | "readlinkat" => self.look(call, a[0] as i32, a[1]),
            _ => None,
        }
    }

    /// Looking needs no permission, but what is looked at must be there.
    fn look(&mut self, call: &Call, dirfd: i32, address: u64) -> Option<Vec<Act>> {
        let path = self.path(call, dirfd, address, Last::Follow)?;
        let named = self.last_named.take().unwrap_or_else(|| path.clone());
        if self.is_own_place(&path) || !self.exists(&path) {
            return None;
        }
        if self.steps.watch.looks {
            self.observe(|| Observed::Looked(named));
            return None;
        }
        let text = read_string(call.tid, address, LONGEST_PATH)?;
        if self.resolver.open(call.tid, dirfd, &text).is_ok() {
            return None;
        }
        let perm = if self.is_dir(&path) { Perm::ReadDir } else { Perm::ReadFile };
        let decision = self.request.policy.fs(&path, perm);
        // Told, and left to the kernel: it says that nothing is there.
        self.judge("fs.read", &path.to_string_lossy(), decision, call.tid);
        None
    }

    fn path(&mut self, call: &Call, dirfd: i32, address: u64, last: Last) -> Option<PathBuf> {
        let text = read_string(call.tid, address, LONGEST_PATH)?;
        self.path_of(call, dirfd, &text, last)
    }

    fn path_of(&mut self, call: &Call, dirfd: i32, text: &[u8], last: Last) -> Option<PathBuf> {
        if text.is_empty() {
            return None;
        }
        if self.steps.watch.looks {
            self.last_named = self.resolver.named(call.tid, dirfd, text);
        }
        self.resolver.resolve(call.tid, dirfd, text, last)
    }

    fn act(&mut self, call: &Call, dirfd: i32, address: u64, op: &'static str, perm: Perm) -> Option<Act> {
        let path = self.path(call, dirfd, address, Last::Name)?;
        Some(Act { op, perm, path, fresh: op == "fs.create", named: self.last_named.take(), there: None })
    }

    /// Landlock has no right for it; a place that may be written may have its metadata changed. A link that leads elsewhere is
    /// itself where it lies.
    fn metadata(&mut self, call: &Call, dirfd: i32, address: u64, last: Last) -> Option<Act> {
        let path = self.path(call, dirfd, address, last)?;
        Some(Act {
            op: "fs.write",
            perm: Perm::WriteFile,
            path,
            fresh: false,
            named: self.last_named.take(),
            there: None,
        })
    }

    fn link(&mut self, call: &Call, from: (i32, u64), to: (i32, u64)) -> Option<Vec<Act>> {
        let from = self.path(call, from.0, from.1, Last::Name)?;
        if !self.exists(&from) && !is_private(&from) {
            return None;
        }
        let to = self.path(call, to.0, to.1, Last::Name)?;
        let mut acts = vec![Act::create(self.make_perm(&from), to.clone(), true)];
        acts.extend(refer(&from, &to));
        self.note_move(&from, &to);
        Some(acts)
    }

    /// A socket with a name in the file tree is a file that is made.
    fn bind(&mut self, call: &Call) -> Option<Vec<Act>> {
        let len = (call.args[2] as usize).min(110);
        let raw = read_memory(call.tid, call.args[1], len)?;
        let is_path = len > 2 && u16::from_ne_bytes([raw[0], raw[1]]) == 1 && raw[2] != 0;
        let name = raw.get(2..).filter(|_| is_path)?.split(|b| *b == 0).next()?;
        let path = self.resolver.resolve(call.tid, AT_FDCWD, name, Last::Name)?;
        Some(vec![Act::create(Perm::MakeSock, path, true)])
    }

    fn rename(&mut self, call: &Call, from: (i32, u64), to: (i32, u64), flags: u64) -> Option<Vec<Act>> {
        const EXCHANGE: u64 = 2;
        let from = self.path(call, from.0, from.1, Last::Name)?;
        if !self.exists(&from) && !is_private(&from) {
            return None;
        }
        let to = self.path(call, to.0, to.1, Last::Name)?;
        let mut acts = vec![self.removal(&from), Act::create(self.make_perm(&from), to.clone(), false)];
        if flags & EXCHANGE != 0 {
            acts.extend([self.removal(&to), Act::create(self.make_perm(&to), from.clone(), false)]);
        }
        acts.extend(refer(&from, &to));
        self.note_move(&from, &to);
        Some(acts)
    }

    /// A name that leaves its directory for another. The kernel wants both in one mount, which whoever writes a policy has to know.
    fn note_move(&mut self, from: &Path, to: &Path) {
        if self.steps.watch.looks && from.parent() != to.parent() && !self.is_own_place(from) && !self.is_own_place(to)
        {
            let (from, to) = (from.to_path_buf(), to.to_path_buf());
            self.observe(|| Observed::Moved { from, to });
        }
    }

    fn open(&mut self, call: &Call, dirfd: i32, address: u64, flags: u64) -> Option<Vec<Act>> {
        if flags & O_PATH != 0 {
            return None;
        }
        let last = if flags & O_NOFOLLOW != 0 { Last::Name } else { Last::Follow };
        let text = read_string(call.tid, address, LONGEST_PATH)?;
        // Nothing inside can take its place, and every other command of a script opens it.
        if text == b"/dev/null" {
            return None;
        }
        let path = self.path_of(call, dirfd, &text, last)?;
        let named = self.last_named.take();
        if self.is_own_place(&path) {
            let (op, perm) = match flags & O_ACCMODE {
                _ if flags & O_CREAT != 0 => ("fs.create", Perm::MakeReg),
                0 => ("fs.read", Perm::ReadFile),
                _ => ("fs.write", Perm::WriteFile),
            };
            return Some(vec![Act { op, perm, path, fresh: flags & O_CREAT != 0, named, there: None }]);
        }
        let found = self.mode(&path);
        let there = found.is_some();
        if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL && there {
            return None;
        }
        let mut acts = Vec::new();
        let mut add = |op, perm| {
            let (path, named) = (path.clone(), named.clone());
            acts.push(Act { op, perm, path, fresh: flags & O_CREAT != 0, named, there: Some(there) })
        };
        if flags & O_CREAT != 0 && !there {
            add("fs.create", Perm::MakeReg);
        }
        if matches!(flags & O_ACCMODE, 1 | 2) {
            add("fs.write", Perm::WriteFile);
        }
        if flags & O_TRUNC != 0 && there {
            add("fs.write", Perm::Truncate);
        }
        if matches!(flags & O_ACCMODE, 0 | 2) {
            let is_dir = flags & O_DIRECTORY != 0 || found.is_some_and(|mode| mode & 0o170_000 == 0o040_000);
            add("fs.read", if is_dir { Perm::ReadDir } else { Perm::ReadFile });
        }
        Some(acts)
    }

    /// Something that would fail outside just the same: a file that is not there, a place to put it that is not there.
    pub(super) fn is_own_failure(&self, act: &Act) -> bool {
        let there = || act.there.unwrap_or_else(|| self.exists(&act.path));
        let has_place = || act.path.parent().is_some_and(|dir| self.leads_to_dir(dir));
        match act.op {
            // What exists already is told so, by the kernel; a rename may replace it.
            "fs.create" => (act.fresh && there()) || !has_place(),
            "fs.write" if act.fresh => !there() && !has_place(),
            _ => !there(),
        }
    }

    /// Whether a path of the host leads to a directory, or one in the workspace is one.
    fn leads_to_dir(&self, path: &Path) -> bool {
        if self.in_workspace(path) { self.is_dir(path) } else { path.is_dir() }
    }
}

/// What the flags of a call say about a link at the end of its path.
fn last_by(flags: u64) -> Last {
    if flags & AT_SYMLINK_NOFOLLOW != 0 { Last::Name } else { Last::Follow }
}

/// The metadata of what a descriptor is open on.
fn open_file(tid: i32, fd: i32) -> Option<Act> {
    let path = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).ok().filter(|p| p.is_absolute())?;
    Some(Act { op: "fs.write", perm: Perm::WriteFile, path, fresh: false, named: None, there: None })
}

fn node_perm(mode: u64) -> Perm {
    match mode & 0o170_000 {
        0o010_000 => Perm::MakeFifo,
        0o140_000 => Perm::MakeSock,
        0o020_000 => Perm::MakeChar,
        0o060_000 => Perm::MakeBlock,
        0o040_000 => Perm::MakeDir,
        0o120_000 => Perm::MakeSym,
        _ => Perm::MakeReg,
    }
}
