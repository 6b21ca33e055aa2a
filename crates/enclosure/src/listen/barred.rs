//! Programs that a person is asked about before they start. Their mounts let nothing run; a yes changes the mount of that one
//! file, and only then is the call looked at again and let go on. Whatever the guest's memory names by then, mounts and
//! landlock decide.

use super::asked::Met;
use super::{AT_FDCWD, Judge, Last};
use crate::asking::{Bar, Errand};
use crate::host::loader_of;
use policy::{Decision, Program};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstat, fstatvfs,
    open, openat2, statx,
};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use sys::notify::{Call, Listener};
use terms::Action;

/// A program, or a directory of such, by a handle on the mount that bars it.
pub(crate) struct Barred {
    path: PathBuf,
    top: OwnedFd,
}

impl Barred {
    /// Those of a plan, found in the guest's tree before anything of the guest's runs. One that is not barred is not held, and
    /// nobody is asked about it.
    pub(crate) fn all<'p>(programs: impl Iterator<Item = &'p Program>, root: &OwnedFd) -> Vec<Barred> {
        programs.filter_map(|program| Barred::new(&program.path, root)).collect()
    }

    fn new(path: &Path, root: &OwnedFd) -> Option<Barred> {
        let top = open_below(root, path.strip_prefix("/").ok()?)?;
        let barred = StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY;
        let is_barred = fstatvfs(&top).is_ok_and(|found| found.f_flag.contains(barred));
        (is_barred && is_top_of_mount(&top)).then(|| Barred { path: path.to_path_buf(), top })
    }

    /// The file at a real path at or below it.
    fn file(&self, path: &Path) -> Option<OwnedFd> {
        let rest = path.strip_prefix(&self.path).ok()?;
        let file = match rest.as_os_str().is_empty() {
            true => self.top.try_clone().ok()?,
            false => open_below(&self.top, rest)?,
        };
        let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
        (kind == FileType::RegularFile).then_some(file)
    }
}

fn open_below(top: &OwnedFd, path: &Path) -> Option<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(top, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok()
}

fn is_top_of_mount(handle: &OwnedFd) -> bool {
    let found = statx(handle, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The kernel's own word on whether a file can be executed where it is.
fn is_open(file: &OwnedFd) -> bool {
    fstatvfs(file).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

impl Judge<'_> {
    /// Whether a program that must be asked about can be.
    pub(super) fn can_ask_to_start(&self, path: &Path) -> bool {
        self.asking.is_some() && self.barred_file(path).is_some()
    }

    fn barred_file(&self, path: &Path) -> Option<OwnedFd> {
        let above = self.barred.iter().filter(|barred| path.starts_with(&barred.path));
        above.max_by_key(|barred| barred.path.as_os_str().len())?.file(path)
    }

    /// A start where programs are asked about. What the file names as its interpreter or loader is started with it, and has
    /// rules of its own: one that denies counts for all.
    pub(super) fn start(&mut self, listener: &Listener, call: &Call, path: PathBuf) -> Met {
        let mut decided = Vec::new();
        for Link { path, role } in self.chain(call.tid, path) {
            if self.is_own_place(&path) {
                continue;
            }
            let decision = match role {
                Role::Named => self.decide_start(&path),
                Role::Loader => self.request.policy.exec(&path),
            };
            decided.push((path, decision));
        }
        decided.sort_by_key(|(_, decision)| std::cmp::Reverse(decision.action));
        for (path, decision) in decided {
            match self.start_one(listener, call, &path, decision) {
                Met::Nothing => {}
                met => return met,
            }
        }
        Met::Nothing
    }

    /// A call whose program can run now. What it names may be another by now, or cannot be read because the caller is one of
    /// ours that becomes the command.
    pub(super) fn start_again(&mut self, listener: &Listener, call: &Call, path: PathBuf) {
        let name = sys::seccomp::name(call.nr);
        let named = self.program_of(listener, call, &name, Some(&path));
        let met = named.map_or(Met::Nothing, |(_, path)| self.start(listener, call, path));
        match met {
            Met::Waits => {}
            Met::Refused(errno) => listener.refuse(call, errno),
            Met::Nothing => listener.go_on(call),
        }
    }

    fn start_one(&mut self, listener: &Listener, call: &Call, path: &Path, decision: Decision) -> Met {
        let shown = path.to_string_lossy().into_owned();
        let file = match decision.action {
            Action::Ask => self.barred_file(path),
            _ => return self.judge("exec", &shown, decision, call.tid).map_or(Met::Nothing, Met::Refused),
        };
        match (file, path.to_str(), self.helper.clone()) {
            (Some(file), _, _) if is_open(&file) => Met::Nothing,
            (Some(file), Some(_), Some(helper)) => {
                let errand = Errand::LetRun(Bar { file, path: path.to_path_buf(), helper });
                self.put(listener, call, ("exec", shown), decision, errand)
            }
            (Some(_), None, _) => {
                let why = "its name is no UTF-8, and cannot be shown to anybody";
                self.turned_down(call, "exec", &shown, &decision.rule, why.into())
            }
            _ => {
                let why = "nobody can be asked about it: it is no file that was there when the run began";
                self.turned_down(call, "exec", &shown, &decision.rule, why.into())
            }
        }
    }

    /// A program and what it is started by, as far as that can be told: the kernel looks for itself.
    fn chain(&mut self, tid: i32, path: PathBuf) -> Vec<Link> {
        /// As many as the kernel follows.
        const MOST: usize = 6;
        let mut all = vec![Link { path, role: Role::Named }];
        while let Some(last) = all.last().filter(|_| all.len() < MOST) {
            let named = self.resolver.open(tid, AT_FDCWD, last.path.as_os_str().as_bytes()).ok();
            let Some(by) = named.and_then(|(handle, _)| started_by(&handle)) else { break };
            let real = self.resolver.resolve(tid, AT_FDCWD, by.path.as_os_str().as_bytes(), Last::Follow);
            match real.filter(|real| self.exists(real) && !all.iter().any(|known| known.path == *real)) {
                Some(path) => all.push(Link { path, ..by }),
                None => break,
            }
        }
        all
    }
}

/// One of those who start a program.
struct Link {
    path: PathBuf,
    role: Role,
}

#[derive(Clone, Copy)]
enum Role {
    /// Whoever wrote the call, or the first line of a script, chose it.
    Named,
    /// The kernel starts it beside the program.
    Loader,
}

/// What a file names to be started by: the interpreter of a script, or a loader.
fn started_by(handle: &OwnedFd) -> Option<Link> {
    const LONGEST: usize = 256;
    let kind = FileType::from_raw_mode(fstat(handle).ok()?.st_mode);
    (kind == FileType::RegularFile).then_some(())?;
    // Whoever holds a lease on a file of theirs would have us wait for it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(format!("/proc/self/fd/{}", handle.as_raw_fd()), flags, Mode::empty()).ok()?);
    let mut head = [0; LONGEST];
    let got = file.read_at(&mut head, 0).ok()?;
    match head[..got].strip_prefix(b"#!") {
        Some(line) => interpreter(line).map(|path| Link { path, role: Role::Named }),
        None => loader_of(&file).map(|path| Link { path, role: Role::Loader }),
    }
}

/// The first word behind the mark, as the kernel takes it.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let end = line.iter().position(|b| matches!(b, b'\n' | 0)).unwrap_or(line.len());
    let word = line[..end].split(|b| matches!(b, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_the_first_word_of_the_line() {
        for (line, word) in [
            ("/bin/sh\n", Some("/bin/sh")),
            (" \t/usr/bin/env -S python3 -u\nx", Some("/usr/bin/env")),
            ("/bin/sh", Some("/bin/sh")),
            ("  \n/bin/sh", None),
            ("", None),
        ] {
            assert_eq!(interpreter(line.as_bytes()), word.map(PathBuf::from), "{line:?}");
        }
    }
}
