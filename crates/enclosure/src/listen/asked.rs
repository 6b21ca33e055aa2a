//! Opens and connections that a person is asked about. Landlock and mounts deny the guest direct access. An allowed
//! file is resolved once, shown by its real path, opened by its handle with the guest's ids, and passed to the guest as
//! a descriptor.

use super::held::{AskedTree, AskedTrees, OpenRequest, OpenTarget, find, mount_of};
use super::{AT_FDCWD, EACCES, Judge, LONGEST_PATH};
use crate::actors::actor;
use crate::approval::{ApprovalWaiter, AskResult, AskedOperation, OnAllow, Opening, Question, WaitEnd};
use crate::denials::RefusedOperation;
use crate::resolve::{self, Last};
use crate::spec::Observed;
use crate::waiting_calls::WaitReason;
use policy::{Decision, Perm};
use rustix::fs::{FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use sys::notify::{Call, Listener};
use sys::process::{copy_descriptor, read_string};
use terms::Action;

const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ELOOP: i32 = 40;

/// Result of judging a call that may have to wait.
pub(super) enum Judged {
    /// No question is needed; the call is handled like any other.
    Continues,
    Waits,
    Refused(i32),
}

impl Judge<'_> {
    /// Judges an open(2) on which a question may be needed.
    pub(super) fn open_asked(&mut self, listener: &Listener, call: &Call, name: &str) -> Judged {
        let Some(request) = self.open_request(call, name).filter(|_| listener.is_live(call)) else {
            return Judged::Continues;
        };
        let inside = self.in_workspace(&request.path);
        let holds = |held: &&AskedTrees| request.path.starts_with(&held.place.path);
        // A place above the workspace shows its directory as on the host; the guest's changes are not there.
        let fits = |held: &&AskedTrees| !inside || self.in_workspace(&held.place.path);
        let Some(held) = self.asked.iter().filter(holds).filter(fits).max_by_key(|h| h.place.path.as_os_str().len())
        else {
            return Judged::Continues;
        };
        let target = match find(held, &request) {
            Ok(Some(target)) => target,
            Ok(None) => return Judged::Continues,
            Err(errno) => return Judged::Refused(errno),
        };
        let hides = target.kind == FileType::Directory && held.place.hidden.iter().any(|p| p.starts_with(&target.real));
        self.judge_open(listener, call, &request, target, hides)
    }

    fn judge_open(
        &mut self,
        listener: &Listener,
        call: &Call,
        request: &OpenRequest,
        target: OpenTarget,
        hides: bool,
    ) -> Judged {
        let made = target.name.is_some();
        let mut perms = Vec::new();
        if made {
            perms.push(Perm::MakeReg);
        }
        if request.writes() {
            perms.push(Perm::WriteFile);
        }
        // A writable descriptor permits ftruncate(2).
        if request.changes() {
            perms.push(Perm::Truncate);
        }
        if request.reads() && !made {
            perms.push(if target.kind == FileType::Directory { Perm::ReadDir } else { Perm::ReadFile });
        }
        let decisions: Vec<Decision> = perms.iter().map(|perm| self.spec.policy.fs(&target.real, *perm)).collect();
        let Some(asks) = decisions.iter().find(|d| d.action == Action::Ask).cloned() else { return Judged::Continues };
        let op = match (made, request.reads(), request.changes()) {
            (true, _, _) => "fs.create",
            (_, true, true) => "fs.read_write",
            (_, _, true) => "fs.write",
            _ => "fs.read",
        };
        let Some(shown) = target.real.to_str().map(str::to_owned) else {
            let (name, why) = (target.real.to_string_lossy(), "its name is not UTF-8, so no question can show it");
            return self.turned_down(call, plain(op), &name, &asks.rule, why.into());
        };
        if let Some(denies) = decisions.into_iter().find(|d| d.action == Action::Deny) {
            return self.judge(plain(op), &shown, denies, call.tid).map_or(Judged::Continues, Judged::Refused);
        }
        let unfit = match target.kind {
            _ if hides => Some((EACCES, "it contains paths that a rule denies; open the needed files by name")),
            FileType::RegularFile => request.flags.contains(OFlags::DIRECTORY).then_some((ENOTDIR, "")),
            FileType::Directory if request.changes() || request.flags.contains(OFlags::CREATE) => Some((EISDIR, "")),
            FileType::Directory => None,
            FileType::Symlink => Some((ELOOP, "")),
            _ => Some((EACCES, "only files and directories can be asked for")),
        };
        if let Some((errno, why)) = unfit {
            if !why.is_empty() {
                self.note(plain(op), &shown, &asks.rule, Action::Ask, Some(why.into()), call.tid);
            }
            return Judged::Refused(errno);
        }
        if !KNOWN.contains(request.flags) {
            return Judged::Refused(EINVAL);
        }
        self.has_handed_dirs |= target.kind == FileType::Directory;
        let kept = OFlags::ACCMODE | OFlags::TRUNC | OFlags::APPEND | OFlags::NONBLOCK | OFlags::DSYNC | OFlags::SYNC;
        let on_allow = OnAllow::Open(Opening {
            handle: target.handle,
            name: target.name,
            flags: request.flags & (kept | OFlags::DIRECTORY),
            mode: request.mode,
            close_on_exec: request.flags.contains(OFlags::CLOEXEC),
        });
        self.put(listener, call, (op, shown), asks, on_allow)
    }

    /// Judges a connection to a service that rules ask about.
    pub(super) fn connect_asked(&mut self, listener: &Listener, call: &Call, path: &Path) -> Judged {
        if !self.sockets.contains(path) {
            return Judged::Continues;
        }
        let policy = &self.spec.policy;
        let decision = if self.is_of_host(path) { policy.reaches(path) } else { policy.connects(path) };
        if decision.action != Action::Ask || self.asking.is_none() {
            return Judged::Continues;
        }
        let Some(socket) = copy_descriptor(call.tid, call.args[0] as i32) else { return Judged::Refused(super::EBADF) };
        let Some(target) = path.to_str().map(|path| format!("unix:{path}")) else { return Judged::Continues };
        let on_allow = OnAllow::Connect(socket, path.to_path_buf());
        self.put(listener, call, ("net.connect", target), decision, on_allow)
    }

    /// Puts a question, and lets the call wait for the answer.
    pub(super) fn put(
        &mut self,
        listener: &Listener,
        call: &Call,
        (op, target): (&'static str, String),
        decision: Decision,
        on_allow: OnAllow,
    ) -> Judged {
        let Some(asking) = &mut self.asking else {
            return self.judge(plain(op), &target, decision, call.tid).map_or(Judged::Continues, Judged::Refused);
        };
        let rule = decision.rule;
        let who = actor(call.tid);
        let question = Question { op, target: &target, rule: &rule, actor: who.clone() };
        let counted = self.waiting_calls.enter(WaitReason::Answer);
        let begun = match counted {
            Some(_) => asking.ask(question),
            None => Err(format!("{} system calls wait for answers already", WaitReason::Answer.limit())),
        };
        let waiting = match begun {
            Ok(AskResult::Known(true)) => None,
            Ok(AskResult::Waits { waiting, fresh }) => {
                if let Some(observer) = self.observer.as_mut().filter(|_| fresh) {
                    observer(Observed::Asked { op, target: &target, rule: &rule, actor: &who });
                }
                Some(waiting)
            }
            Ok(AskResult::Known(false)) => {
                return self.turned_down(call, plain(op), &target, &rule, "the person who was asked refused it".into());
            }
            Err(why) => return self.turned_down(call, plain(op), &target, &rule, why),
        };
        let job = self.flock.as_ref().and_then(|flock| flock.of(call.tid));
        if op == "exec" {
            self.awaiting_answer = job;
        }
        let subject = AskedOperation { op: plain(op), target, rule, actor: who, job };
        let Some(own) = listener.try_clone() else { return Judged::Refused(EACCES) };
        let (reports, freezing) = (self.reports.clone(), self.freezing.clone());
        let waiter = ApprovalWaiter {
            listener: own,
            call: *call,
            guest: self.guest,
            waiting,
            on_allow,
            subject,
            reports,
            freezing,
        };
        let begins = counted.is_some_and(|counted| waiter.begin(counted));
        if begins { Judged::Waits } else { Judged::Refused(EACCES) }
    }

    pub(super) fn turned_down(&mut self, call: &Call, op: &str, target: &str, rule: &str, why: String) -> Judged {
        self.note(op, target, rule, Action::Ask, Some(why), call.tid);
        Judged::Refused(EACCES)
    }

    /// Takes the reports of calls that have waited.
    pub fn hear_waiters(&mut self) {
        for report in self.reports.take() {
            match report {
                WaitEnd::Refused(AskedOperation { op, target, rule, actor, job }, why) => {
                    let hint = Some(why.to_owned());
                    let refusal =
                        RefusedOperation { op, target: &target, rule: &rule, action: Action::Ask, hint, quiet: false };
                    self.count(job, |list| list.add(refusal, || actor).cloned());
                }
                WaitEnd::Connected(AskedOperation { rule, actor, .. }, path) => {
                    self.observe(|| Observed::Socket { path, rule, action: Action::Allow, actor });
                }
                WaitEnd::Ready(listener, call, path) => self.start_again(&listener, &call, path),
            }
        }
    }

    fn open_request(&mut self, call: &Call, name: &str) -> Option<OpenRequest> {
        let a = &call.args;
        let creat = u64::from((OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC).bits());
        let (dirfd, address, flags, mode) = match name {
            "open" => (AT_FDCWD, a[0], a[1], a[2]),
            "openat" => (a[0] as i32, a[1], a[2], a[3]),
            "creat" => (AT_FDCWD, a[0], creat, a[1]),
            _ => return None,
        };
        let flags = OFlags::from_bits_retain(flags as u32);
        let odd = flags.contains(OFlags::PATH)
            || flags.contains(OFlags::TMPFILE)
            || flags & OFlags::ACCMODE == OFlags::ACCMODE;
        if odd {
            return None;
        }
        let text = read_string(call.tid, address, LONGEST_PATH).filter(|text| !text.is_empty())?;
        let follows = !flags.contains(OFlags::NOFOLLOW) && !flags.contains(OFlags::CREATE | OFlags::EXCL);
        let last = if follows { Last::Follow } else { Last::Name };
        let path = match self.below_handed(call.tid, dirfd, &text) {
            Some(path) => path,
            None => self.follow(call.tid, dirfd, &text, last)?,
        };
        let mask = if flags.contains(OFlags::CREATE) { umask_of(call.tid) } else { 0 };
        Some(OpenRequest { path, flags, mode: mode as u32 & 0o1777 & !mask })
    }

    /// Resolves a path of the guest. A symbolic link into a place dangles in the guest's own tree, so it is followed
    /// here.
    fn follow(&mut self, tid: i32, dirfd: i32, text: &[u8], last: Last) -> Option<PathBuf> {
        const MOST_LINKS: usize = 40;
        let mut path = self.resolver.resolve(tid, dirfd, text, last)?;
        for _ in 0..MOST_LINKS {
            if self.asked.iter().any(|held| path.starts_with(&held.place.path)) {
                return Some(path);
            }
            let Some(next) = self.resolver.beyond(&path, last) else { return Some(path) };
            path = self.resolver.resolve(tid, AT_FDCWD, next.as_os_str().as_bytes(), last)?;
        }
        None
    }

    /// Resolves a path relative to a directory that was handed in. That is on a detached mount, so only the supervisor
    /// knows its path.
    fn below_handed(&self, tid: i32, dirfd: i32, text: &[u8]) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(text));
        if !self.has_handed_dirs || path.is_absolute() {
            return None;
        }
        let link = if dirfd == AT_FDCWD { format!("/proc/{tid}/cwd") } else { format!("/proc/{tid}/fd/{dirfd}") };
        let handle = rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mount = mount_of(&handle)?;
        let is_its = |tree: &Option<AskedTree>| tree.as_ref().is_some_and(|tree| tree.mount == Some(mount));
        let held = self.asked.iter().find(|held| is_its(&held.reads) || is_its(&held.changes))?;
        let below = resolve::path_of(&handle)?;
        Some(resolve::normal(&held.place.path.join(below.strip_prefix("/").ok()?).join(path)))
    }
}

/// Flags that an open on the guest's behalf may have.
const KNOWN: OFlags = OFlags::ACCMODE
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::APPEND)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC)
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::DSYNC)
    .union(OFlags::SYNC)
    .union(OFlags::from_bits_retain(LARGE_FILE));
/// O_LARGEFILE of the kernel, which a 64-bit C library defines as 0.
const LARGE_FILE: u32 = 0o100_000;

/// Maps an operation of questions to one of refusals, which has no read_write.
fn plain(op: &'static str) -> &'static str {
    if op == "fs.read_write" { "fs.write" } else { op }
}

fn umask_of(tid: i32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}
