//! Opens and connections that a person is asked about. Landlock and the mounts keep the guest from what is there; what
//! somebody allows is found once, shown by its real path, opened by its handle with the guest's own ids, and handed in.

use super::held::{Held, Target, Tree, Wish, find, mount_of};
use super::{AT_FDCWD, EACCES, Judge, LONGEST_PATH};
use crate::actors::actor;
use crate::asking::{Begun, Errand, MOST_WAITING, Matter, Opening, Question, Report, Waiter};
use crate::launch::Observed;
use crate::resolve::{self, Last};
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

/// What came of a call that may have to wait.
pub(super) enum Met {
    /// Nobody need be asked; it is dealt with as any other.
    Nothing,
    Waits,
    Refused(i32),
}

impl Judge<'_> {
    /// An open that may be one to ask about.
    pub(super) fn open_asked(&mut self, listener: &Listener, call: &Call, name: &str) -> Met {
        let Some(wish) = self.wish(call, name).filter(|_| listener.is_live(call)) else { return Met::Nothing };
        let inside = self.in_workspace(&wish.path);
        let holds = |held: &&Held| wish.path.starts_with(&held.place.path);
        // What is above a workspace shows its directory as it is on the host; no change goes there.
        let fits = |held: &&Held| !inside || self.in_workspace(&held.place.path);
        let Some(held) = self.asked.iter().filter(holds).filter(fits).max_by_key(|h| h.place.path.as_os_str().len())
        else {
            return Met::Nothing;
        };
        let target = match find(held, &wish) {
            Ok(Some(target)) => target,
            Ok(None) => return Met::Nothing,
            Err(errno) => return Met::Refused(errno),
        };
        let hides = target.kind == FileType::Directory && held.place.hidden.iter().any(|p| p.starts_with(&target.real));
        self.judge_open(listener, call, &wish, target, hides)
    }

    fn judge_open(&mut self, listener: &Listener, call: &Call, wish: &Wish, target: Target, hides: bool) -> Met {
        let made = target.name.is_some();
        let mut perms = Vec::new();
        if made {
            perms.push(Perm::MakeReg);
        }
        if wish.writes() {
            perms.push(Perm::WriteFile);
        }
        // A file that can be written can be cut short by its descriptor.
        if wish.changes() {
            perms.push(Perm::Truncate);
        }
        if wish.reads() && !made {
            perms.push(if target.kind == FileType::Directory { Perm::ReadDir } else { Perm::ReadFile });
        }
        let decisions: Vec<Decision> = perms.iter().map(|perm| self.request.policy.fs(&target.real, *perm)).collect();
        let Some(asks) = decisions.iter().find(|d| d.action == Action::Ask).cloned() else { return Met::Nothing };
        let op = match (made, wish.reads(), wish.changes()) {
            (true, _, _) => "fs.create",
            (_, true, true) => "fs.read_write",
            (_, _, true) => "fs.write",
            _ => "fs.read",
        };
        let Some(shown) = target.real.to_str().map(str::to_owned) else {
            let (name, why) = (target.real.to_string_lossy(), "its name is no UTF-8, and cannot be shown to anybody");
            return self.turned_down(call, plain(op), &name, &asks.rule, why.into());
        };
        if let Some(denies) = decisions.into_iter().find(|d| d.action == Action::Deny) {
            return self.judge(plain(op), &shown, denies, call.tid).map_or(Met::Nothing, Met::Refused);
        }
        let unfit = match target.kind {
            _ if hides => Some((EACCES, "it holds what a rule denies; open what is needed in it by name")),
            FileType::RegularFile => wish.flags.contains(OFlags::DIRECTORY).then_some((ENOTDIR, "")),
            FileType::Directory if wish.changes() || wish.flags.contains(OFlags::CREATE) => Some((EISDIR, "")),
            FileType::Directory => None,
            FileType::Symlink => Some((ELOOP, "")),
            _ => Some((EACCES, "only files and directories can be asked for")),
        };
        if let Some((errno, why)) = unfit {
            if !why.is_empty() {
                self.note(plain(op), &shown, &asks.rule, Action::Ask, Some(why.into()), call.tid);
            }
            return Met::Refused(errno);
        }
        if !KNOWN.contains(wish.flags) {
            return Met::Refused(EINVAL);
        }
        self.has_handed_dirs |= target.kind == FileType::Directory;
        let kept = OFlags::ACCMODE | OFlags::TRUNC | OFlags::APPEND | OFlags::NONBLOCK | OFlags::DSYNC | OFlags::SYNC;
        let errand = Errand::Open(Opening {
            handle: target.handle,
            name: target.name,
            flags: wish.flags & (kept | OFlags::DIRECTORY),
            mode: wish.mode,
            close_on_exec: wish.flags.contains(OFlags::CLOEXEC),
        });
        self.put(listener, call, (op, shown), asks, errand)
    }

    /// A connection to a service that rules ask about.
    pub(super) fn connect_asked(&mut self, listener: &Listener, call: &Call, path: &Path) -> Met {
        if !self.sockets.contains(path) {
            return Met::Nothing;
        }
        let policy = &self.request.policy;
        let decision = if self.is_of_host(path) { policy.reaches(path) } else { policy.connects(path) };
        if decision.action != Action::Ask || self.asking.is_none() {
            return Met::Nothing;
        }
        let Some(socket) = copy_descriptor(call.tid, call.args[0] as i32) else { return Met::Refused(super::EBADF) };
        let Some(target) = path.to_str().map(|path| format!("unix:{path}")) else { return Met::Nothing };
        let errand = Errand::Connect(socket, path.to_path_buf());
        self.put(listener, call, ("net.connect", target), decision, errand)
    }

    /// Puts the question, and has the call wait for the answer.
    pub(super) fn put(
        &mut self,
        listener: &Listener,
        call: &Call,
        (op, target): (&'static str, String),
        decision: Decision,
        errand: Errand,
    ) -> Met {
        let Some(asking) = &mut self.asking else {
            return self.judge(plain(op), &target, decision, call.tid).map_or(Met::Nothing, Met::Refused);
        };
        let rule = decision.rule;
        let who = actor(call.tid);
        let question = Question { op, target: &target, rule: &rule, actor: who.clone() };
        let begun = match Waiter::has_room() {
            true => asking.ask(question),
            false => Err(format!("{MOST_WAITING} calls wait for answers already")),
        };
        let waiting = match begun {
            Ok(Begun::Known(true)) => None,
            Ok(Begun::Waits { waiting, fresh }) => {
                if let Some(observer) = self.observer.as_mut().filter(|_| fresh) {
                    observer(Observed::Asked { op, target: &target, rule: &rule, actor: &who });
                }
                Some(waiting)
            }
            Ok(Begun::Known(false)) => {
                return self.turned_down(call, plain(op), &target, &rule, "a person refused it".into());
            }
            Err(why) => return self.turned_down(call, plain(op), &target, &rule, why),
        };
        let job = self.flock.as_ref().and_then(|flock| flock.of(call.tid));
        if op == "exec" {
            self.held_up = job;
        }
        let matter = Matter { op: plain(op), target, rule, actor: who, job };
        let Some(own) = listener.try_clone() else { return Met::Refused(EACCES) };
        let (reports, still) = (self.reports.clone(), self.still.clone());
        let waiter = Waiter { listener: own, call: *call, guest: self.guest, waiting, errand, matter, reports, still };
        if waiter.begin() { Met::Waits } else { Met::Refused(EACCES) }
    }

    pub(super) fn turned_down(&mut self, call: &Call, op: &str, target: &str, rule: &str, why: String) -> Met {
        self.note(op, target, rule, Action::Ask, Some(why), call.tid);
        Met::Refused(EACCES)
    }

    /// Takes what those who waited tell.
    pub fn hear_waiters(&mut self) {
        for report in self.reports.take() {
            match report {
                Report::Refused(Matter { op, target, rule, actor, job }, why) => {
                    let hint = Some(why.to_owned());
                    self.count(job, |list| list.add(op, &target, &rule, Action::Ask, hint, || actor).cloned());
                }
                Report::Connected(Matter { rule, actor, .. }, path) => {
                    self.observe(|| Observed::Socket { path, rule, action: Action::Allow, actor });
                }
                Report::Ready(listener, call, path) => self.start_again(&listener, &call, path),
            }
        }
    }

    fn wish(&mut self, call: &Call, name: &str) -> Option<Wish> {
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
        Some(Wish { path, flags, mode: mode as u32 & 0o1777 & !mask })
    }

    /// A path of the guest's. Links that lead into a place lead nowhere in the guest's own tree, and are followed here.
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

    /// A path from a directory that was handed in, which is in no tree: what it is in the guest's is known here alone.
    fn below_handed(&self, tid: i32, dirfd: i32, text: &[u8]) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(text));
        if !self.has_handed_dirs || path.is_absolute() {
            return None;
        }
        let link = if dirfd == AT_FDCWD { format!("/proc/{tid}/cwd") } else { format!("/proc/{tid}/fd/{dirfd}") };
        let handle = rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mount = mount_of(&handle)?;
        let is_its = |tree: &Option<Tree>| tree.as_ref().is_some_and(|tree| tree.mount == Some(mount));
        let held = self.asked.iter().find(|held| is_its(&held.reads) || is_its(&held.changes))?;
        let below = resolve::path_of(&handle)?;
        Some(resolve::normal(&held.place.path.join(below.strip_prefix("/").ok()?).join(path)))
    }
}

/// What may be said of an open that we do for somebody else.
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
/// The kernel's own number, which the C library of 64 bits has none for.
const LARGE_FILE: u32 = 0o100_000;

/// Refusals know reading, writing and making.
fn plain(op: &'static str) -> &'static str {
    if op == "fs.read_write" { "fs.write" } else { op }
}

fn umask_of(tid: i32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}
