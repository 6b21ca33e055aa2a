//! Programs that a person is asked about before they start. Their mounts are noexec. A yes makes that one file
//! executable; then the call is judged again and continues. Whatever the guest's memory names by that time (TOCTOU),
//! mounts and landlock decide.

use super::asked::Judged;
use super::{AT_FDCWD, Judge, Last};
use crate::approval::{Bar, OnAllow};
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

/// A program, or a directory of programs, by a handle on its noexec mount.
pub(crate) struct NoexecMount {
    path: PathBuf,
    top: OwnedFd,
}

impl NoexecMount {
    /// Opens the programs of a plan in the guest's tree, before any process of the guest runs. A program that is not on
    /// a noexec mount of its own is left out, and no question is put about it.
    pub(crate) fn all<'p>(programs: impl Iterator<Item = &'p Program>, root: &OwnedFd) -> Vec<NoexecMount> {
        programs.filter_map(|program| NoexecMount::new(&program.path, root)).collect()
    }

    fn new(path: &Path, root: &OwnedFd) -> Option<NoexecMount> {
        let top = open_below(root, path.strip_prefix("/").ok()?)?;
        let barred = StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY;
        let is_barred = fstatvfs(&top).is_ok_and(|found| found.f_flag.contains(barred));
        (is_barred && is_top_of_mount(&top)).then(|| NoexecMount { path: path.to_path_buf(), top })
    }

    /// Opens the regular file at a real path, at or below this one.
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

/// True when the file's mount permits execution.
fn is_open(file: &OwnedFd) -> bool {
    fstatvfs(file).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

impl Judge<'_> {
    /// True when a question about the start of this program can be put.
    pub(super) fn can_ask_to_start(&self, path: &Path) -> bool {
        self.asking.is_some() && self.barred_file(path).is_some()
    }

    fn barred_file(&self, path: &Path) -> Option<OwnedFd> {
        let above = self.barred.iter().filter(|barred| path.starts_with(&barred.path));
        above.max_by_key(|barred| barred.path.as_os_str().len())?.file(path)
    }

    /// Judges an execve(2) where rules ask about programs. The interpreter or loader that the file names is started
    /// with it and has rules of its own: one denial refuses the call.
    pub(super) fn start(&mut self, listener: &Listener, call: &Call, path: PathBuf) -> Judged {
        let mut decided = Vec::new();
        for StartFile { path, role } in self.chain(call.tid, path) {
            if self.is_own_place(&path) {
                continue;
            }
            let decision = match role {
                Role::Named => self.decide_start(&path),
                Role::Loader => self.spec.policy.exec(&path),
            };
            decided.push((path, decision));
        }
        decided.sort_by_key(|(_, decision)| std::cmp::Reverse(decision.action));
        for (path, decision) in decided {
            match self.start_one(listener, call, &path, decision) {
                Judged::Continues => {}
                met => return met,
            }
        }
        Judged::Continues
    }

    /// Judges a call again whose program can run now. The call may name another program by now, or be unreadable
    /// because the caller is a process of the supervisor that becomes the command.
    pub(super) fn start_again(&mut self, listener: &Listener, call: &Call, path: PathBuf) {
        let name = sys::seccomp::name(call.nr);
        let named = self.program_of(listener, call, &name, Some(&path));
        let met = named.map_or(Judged::Continues, |(_, path)| self.start(listener, call, path));
        match met {
            Judged::Waits => {}
            Judged::Refused(errno) => listener.refuse(call, errno),
            Judged::Continues => listener.continue_call(call),
        }
    }

    fn start_one(&mut self, listener: &Listener, call: &Call, path: &Path, decision: Decision) -> Judged {
        let shown = path.to_string_lossy().into_owned();
        let file = match decision.action {
            Action::Ask => self.barred_file(path),
            _ => return self.judge("exec", &shown, decision, call.tid).map_or(Judged::Continues, Judged::Refused),
        };
        match (file, path.to_str(), self.helper.clone()) {
            (Some(file), _, _) if is_open(&file) => Judged::Continues,
            (Some(file), Some(_), Some(helper)) => {
                let on_allow = OnAllow::LetRun(Bar { file, path: path.to_path_buf(), helper });
                self.put(listener, call, ("exec", shown), decision, on_allow)
            }
            (Some(_), None, _) => {
                let why = "its name is not UTF-8, so no question can show it";
                self.turned_down(call, "exec", &shown, &decision.rule, why.into())
            }
            _ => {
                let why = "no question is possible: the file did not exist when the run began";
                self.turned_down(call, "exec", &shown, &decision.rule, why.into())
            }
        }
    }

    /// Lists a program and its interpreters and loader, as far as they can be read; the kernel resolves them by itself.
    fn chain(&mut self, tid: i32, path: PathBuf) -> Vec<StartFile> {
        /// As many as the kernel follows.
        const MOST: usize = 6;
        let mut all = vec![StartFile { path, role: Role::Named }];
        while let Some(last) = all.last().filter(|_| all.len() < MOST) {
            let named = self.resolver.open(tid, AT_FDCWD, last.path.as_os_str().as_bytes()).ok();
            let Some(by) = named.and_then(|(handle, _)| started_by(&handle)) else { break };
            let real = self.resolver.resolve(tid, AT_FDCWD, by.path.as_os_str().as_bytes(), Last::Follow);
            match real.filter(|real| self.exists(real) && !all.iter().any(|known| known.path == *real)) {
                Some(path) => all.push(StartFile { path, ..by }),
                None => break,
            }
        }
        all
    }
}

/// A program, interpreter or loader of one start.
struct StartFile {
    path: PathBuf,
    role: Role,
}

#[derive(Clone, Copy)]
enum Role {
    /// Chosen by the call, or by the first line of a script.
    Named,
    /// Started by the kernel along with the program (PT_INTERP).
    Loader,
}

/// Returns what a file is started by: the interpreter of a script, or a dynamic loader.
fn started_by(handle: &OwnedFd) -> Option<StartFile> {
    const LONGEST: usize = 256;
    let kind = FileType::from_raw_mode(fstat(handle).ok()?.st_mode);
    (kind == FileType::RegularFile).then_some(())?;
    // O_NONBLOCK, because a lease that the guest holds on the file would block the open.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(format!("/proc/self/fd/{}", handle.as_raw_fd()), flags, Mode::empty()).ok()?);
    let mut head = [0; LONGEST];
    let got = file.read_at(&mut head, 0).ok()?;
    match head[..got].strip_prefix(b"#!") {
        Some(line) => interpreter(line).map(|path| StartFile { path, role: Role::Named }),
        None => loader_of(&file).map(|path| StartFile { path, role: Role::Loader }),
    }
}

/// Parses the interpreter after `#!`, as the kernel does.
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
