//! Translates file system calls into the paths and permissions that they need.

use super::{AT_FDCWD, Judge, LONGEST_PATH};
use crate::actors::actor;
use crate::resolve::Last;
use crate::spec::Observed;
use crate::workspace::ChangeStorage;
use policy::Perm;
use std::path::{Path, PathBuf};
use sys::notify::Call;
use sys::process::{read_memory, read_string};

/// Open flags, as the kernel numbers them.
const O_ACCMODE: u64 = 3;
const O_CREAT: u64 = 0o100;
const O_EXCL: u64 = 0o200;
const O_TRUNC: u64 = 0o1000;
const O_DIRECTORY: u64 = 0o200_000;
const O_NOFOLLOW: u64 = 0o400_000;
const O_PATH: u64 = 0o10_000_000;
const AT_REMOVEDIR: u64 = 0x200;
const AT_SYMLINK_NOFOLLOW: u64 = 0x100;

/// A permission that a call needs on a path.
pub(super) struct RequiredPermission {
    pub(super) op: &'static str,
    pub(super) perm: Perm,
    pub(super) path: PathBuf,
    /// The path need not exist; with fs.create, it must not.
    pub(super) fresh: bool,
    /// The path as the guest spelled it, where the observer wants that.
    pub(super) named: Option<PathBuf>,
    /// Result of an earlier existence check.
    pub(super) there: Option<bool>,
}

impl RequiredPermission {
    fn create(perm: Perm, path: PathBuf, fresh: bool) -> RequiredPermission {
        RequiredPermission { op: "fs.create", perm, path, fresh, named: None, there: None }
    }
}

/// Returns the permission that landlock requires for a rename or link between directories.
fn refer(from: &Path, to: &Path) -> Option<RequiredPermission> {
    (from.parent() != to.parent()).then(|| RequiredPermission::create(Perm::Refer, to.to_path_buf(), false))
}

impl Judge<'_> {
    fn removal(&self, path: &Path) -> RequiredPermission {
        let perm = if self.is_dir(path) { Perm::RemoveDir } else { Perm::RemoveFile };
        RequiredPermission { op: "fs.remove", perm, path: path.to_path_buf(), fresh: false, named: None, there: None }
    }

    /// Returns the permission to create a file of the same kind as the one at `path`.
    fn make_perm(&self, path: &Path) -> Perm {
        node_perm(u64::from(self.mode(path).unwrap_or(0)))
    }

    /// Returns the acts of a call; `None` where it needs no permission.
    pub(super) fn acts(&mut self, call: &Call, name: &str) -> Option<Vec<RequiredPermission>> {
        let a = &call.args;
        let here = AT_FDCWD;
        let one = |act: Option<RequiredPermission>| act.map(|a| vec![a]);
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
                Some(vec![RequiredPermission {
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

    /// Judges stat(2) and its kin: they need no permission, but a file that is hidden from the guest is reported.
    fn look(&mut self, call: &Call, dirfd: i32, address: u64) -> Option<Vec<RequiredPermission>> {
        let path = self.path(call, dirfd, address, Last::Follow)?;
        let named = self.last_named.take().unwrap_or_else(|| path.clone());
        let is_own = self.is_own_place(&path) && !self.spec.plan.private.is_in_home(&path);
        if is_own || !self.exists(&path) {
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
        let decision = self.spec.policy.fs(&path, perm);
        // Only reported: the kernel answers ENOENT by itself.
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

    fn act(
        &mut self,
        call: &Call,
        dirfd: i32,
        address: u64,
        op: &'static str,
        perm: Perm,
    ) -> Option<RequiredPermission> {
        let path = self.path(call, dirfd, address, Last::Name)?;
        Some(RequiredPermission {
            op,
            perm,
            path,
            fresh: op == "fs.create",
            named: self.last_named.take(),
            there: None,
        })
    }

    /// Returns the act of changing metadata, for which landlock has no right: where writing is allowed, so is this.
    /// With `Last::Name`, a symbolic link stands for itself.
    fn metadata(&mut self, call: &Call, dirfd: i32, address: u64, last: Last) -> Option<RequiredPermission> {
        let path = self.path(call, dirfd, address, last)?;
        Some(RequiredPermission {
            op: "fs.write",
            perm: Perm::WriteFile,
            path,
            fresh: false,
            named: self.last_named.take(),
            there: None,
        })
    }

    fn link(&mut self, call: &Call, from: (i32, u64), to: (i32, u64)) -> Option<Vec<RequiredPermission>> {
        let from = self.path(call, from.0, from.1, Last::Name)?;
        if !self.exists(&from) && !self.is_private(&from) {
            return None;
        }
        let to = self.path(call, to.0, to.1, Last::Name)?;
        if self.is_unshown(&from) {
            let (op, perm) = ("fs.read", Perm::ReadFile);
            return Some(vec![RequiredPermission {
                op,
                perm,
                path: from,
                fresh: false,
                named: None,
                there: Some(true),
            }]);
        }
        let mut acts = vec![RequiredPermission::create(self.make_perm(&from), to.clone(), true)];
        acts.extend(refer(&from, &to));
        self.note_move(&from, &to);
        Some(acts)
    }

    /// Returns the act of binding a Unix socket to a path, which creates a file.
    fn bind(&mut self, call: &Call) -> Option<Vec<RequiredPermission>> {
        let len = (call.args[2] as usize).min(110);
        let raw = read_memory(call.tid, call.args[1], len)?;
        let is_path = len > 2 && u16::from_ne_bytes([raw[0], raw[1]]) == 1 && raw[2] != 0;
        let name = raw.get(2..).filter(|_| is_path)?.split(|b| *b == 0).next()?;
        let path = self.resolver.resolve(call.tid, AT_FDCWD, name, Last::Name)?;
        Some(vec![RequiredPermission::create(Perm::MakeSock, path, true)])
    }

    fn rename(&mut self, call: &Call, from: (i32, u64), to: (i32, u64), flags: u64) -> Option<Vec<RequiredPermission>> {
        const EXCHANGE: u64 = 2;
        let from = self.path(call, from.0, from.1, Last::Name)?;
        if !self.exists(&from) && !self.is_private(&from) {
            return None;
        }
        let to = self.path(call, to.0, to.1, Last::Name)?;
        let mut acts = vec![self.removal(&from), RequiredPermission::create(self.make_perm(&from), to.clone(), false)];
        if flags & EXCHANGE != 0 {
            acts.extend([self.removal(&to), RequiredPermission::create(self.make_perm(&to), from.clone(), false)]);
        }
        acts.extend(refer(&from, &to));
        self.note_move(&from, &to);
        if flags & EXCHANGE == 0 {
            self.advise_on_rename(call.tid, &from, &to);
        }
        Some(acts)
    }

    /// Notes the rename of a directory of the base: an overlay without `redirect_dir` answers EXDEV, and not every
    /// program copies then, as mv does.
    fn advise_on_rename(&mut self, tid: i32, from: &Path, to: &Path) {
        let is_layered = matches!(self.spec.workspace.as_ref().map(|w| &w.over), Some(ChangeStorage::Layers(_)));
        let of_base = || from.symlink_metadata().is_ok_and(|m| m.is_dir()) && !self.is_unshown(from);
        if !is_layered || !self.in_workspace(from) || !self.in_workspace(to) || !of_base() {
            return;
        }
        if Path::new(&actor(tid).exe).file_name().is_some_and(|name| name == "mv") {
            return;
        }
        let (from, to) = (from.display(), to.display());
        let note = format!(
            "{from} could not be renamed to {to} in one step (EXDEV), because it is a directory of the project; `mv {from} {to}` copies it"
        );
        let job = self.flock.as_ref().and_then(|flock| flock.of(tid));
        let of_job = self.flock.as_mut().zip(job).and_then(|(flock, job)| flock.denials(job));
        of_job.unwrap_or(&mut self.denials).advise(&note);
    }

    /// Reports a rename or link between directories to the observer. The kernel requires both on one mount, which the
    /// author of a policy has to know.
    fn note_move(&mut self, from: &Path, to: &Path) {
        if self.steps.watch.looks && from.parent() != to.parent() && !self.is_own_place(from) && !self.is_own_place(to)
        {
            let (from, to) = (from.to_path_buf(), to.to_path_buf());
            self.observe(|| Observed::Moved { from, to });
        }
    }

    fn open(&mut self, call: &Call, dirfd: i32, address: u64, flags: u64) -> Option<Vec<RequiredPermission>> {
        if flags & O_PATH != 0 {
            return None;
        }
        let last = if flags & O_NOFOLLOW != 0 { Last::Name } else { Last::Follow };
        let text = read_string(call.tid, address, LONGEST_PATH)?;
        // The guest cannot replace /dev/null, and every other command of a script opens it.
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
            return Some(vec![RequiredPermission { op, perm, path, fresh: flags & O_CREAT != 0, named, there: None }]);
        }
        let found = self.mode(&path);
        let there = found.is_some();
        if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL && there {
            let hidden = self.is_unshown(&path);
            let (op, perm) = ("fs.create", Perm::MakeReg);
            return hidden.then(|| vec![RequiredPermission { op, perm, path, fresh: true, named, there: Some(there) }]);
        }
        let mut acts = Vec::new();
        let mut add = |op, perm| {
            let (path, named) = (path.clone(), named.clone());
            acts.push(RequiredPermission { op, perm, path, fresh: flags & O_CREAT != 0, named, there: Some(there) })
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

    /// True for a call that would fail outside as well: a missing file, or a missing directory to create it in.
    pub(super) fn is_own_failure(&self, act: &RequiredPermission) -> bool {
        let there = || act.there.unwrap_or_else(|| self.exists(&act.path));
        let has_place = || act.path.parent().is_some_and(|dir| self.leads_to_dir(dir));
        match act.op {
            // The kernel answers EEXIST, unless the file is hidden; a rename may replace the file.
            "fs.create" => (act.fresh && there() && !self.is_unshown(&act.path)) || !has_place(),
            "fs.write" if act.fresh => !there() && !has_place(),
            _ => !there(),
        }
    }

    /// True for a path of the host where the guest finds nothing.
    fn is_unshown(&self, path: &Path) -> bool {
        !self.is_private(path) && self.resolver.stat(path).is_none()
    }

    /// True for a path that leads to a directory on the host, or that is a directory in the workspace.
    fn leads_to_dir(&self, path: &Path) -> bool {
        if self.in_workspace(path) { self.is_dir(path) } else { path.is_dir() }
    }
}

/// Returns how a call's flags treat a symbolic link as last component.
fn last_by(flags: u64) -> Last {
    if flags & AT_SYMLINK_NOFOLLOW != 0 { Last::Name } else { Last::Follow }
}

/// Returns the act of changing the metadata of an open file.
fn open_file(tid: i32, fd: i32) -> Option<RequiredPermission> {
    let path = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).ok().filter(|p| p.is_absolute())?;
    Some(RequiredPermission { op: "fs.write", perm: Perm::WriteFile, path, fresh: false, named: None, there: None })
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
