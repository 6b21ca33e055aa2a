//! Hearing of a guest's calls and telling refusals from failures. What is let go on is decided by the kernel's own
//! walls; a call that the policy denies is answered here with the plain "permission denied" that a program expects.

mod acts;
mod asked;
mod barred;
mod held;
mod locks;
mod rhythm;

use self::acts::Act;
use self::asked::Met;
pub(crate) use self::barred::Barred;
pub(crate) use self::held::Held;
use self::rhythm::Rhythm;
use crate::actors::actor;
use crate::asking::{Asking, Reports};
use crate::connect::{self, Address};
use crate::denials::Denials;
use crate::flock::Flock;
use crate::guest::Guest;
use crate::launch::{Observed, Observer, Request};
use crate::limits::Room;
use crate::network::NetReport;
use crate::publish::Helper;
use crate::residence::Job;
use crate::resolve::{Last, Resolver};
use crate::steps::Steps;
use policy::{Decision, ExecPlan, NetAsk, Perm, Proto};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use sys::notify::{Call, Listener};
use sys::process::{copy_descriptor, read_memory, read_string};
use sys::seccomp;
use terms::{Action, Denial, LimitHit};

const LONGEST_PATH: usize = 4096;
const EACCES: i32 = 13;
const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ENETUNREACH: i32 = 101;

const AT_FDCWD: i32 = -100;

pub struct Judge<'a> {
    request: Rc<Request>,
    steps: Rc<Steps>,
    pub denials: Denials,
    /// Those who tell whose a process is, where there are many commands.
    pub flock: Option<Flock>,
    pub observer: Option<Observer<'a>>,
    /// Whoever is asked, what of, and what came of it.
    pub asking: Option<Box<dyn Asking + 'a>>,
    pub asked: Vec<Held>,
    /// Programs that are asked about before they start, and who lets them.
    pub barred: Vec<Barred>,
    pub helper: Option<Helper>,
    /// What one of ours is about to become, whose memory we may not be able to read.
    pub starting: Option<PathBuf>,
    /// The last whose start waits for an answer.
    pub held_up: Option<Job>,
    pub reports: Arc<Reports>,
    /// Set while the guest is being made to stand still: who waits for an answer asks again afterwards.
    pub still: Arc<AtomicBool>,
    has_handed_dirs: bool,
    max_open_files: Option<u64>,
    /// Connections go to doors, where somebody else decides about them and tells.
    has_network: bool,
    /// Set once a process asked for more descriptors than it may have.
    pub descriptors_met: bool,
    /// The private space, where it is limited.
    pub room: Option<Room>,
    /// Set once a call wanted to reserve more of it than there is.
    pub room_met: Option<LimitHit>,
    resolver: Resolver,
    rhythm: Rhythm,
    started: bool,
    last_named: Option<PathBuf>,
    /// What lies where the guest's private places are and is the host's: grants, and directories that lead to them.
    shown: Vec<PathBuf>,
    grants: Vec<PathBuf>,
    /// Sockets of the host that rules let it connect to.
    sockets: BTreeSet<PathBuf>,
    guest: Guest,
    /// The directory of which the guest sees more, or less, than is on the host.
    workspace: Option<PathBuf>,
    /// Names of programs that may be started, as they were given.
    ordinary: HashSet<Vec<u8>>,
    /// Loaders of listed programs. They must be executable for the kernel's sake, but a guest that starts one itself
    /// could make it start anything.
    loaders: Vec<PathBuf>,
}

impl<'a> Judge<'a> {
    pub fn new(request: Rc<Request>, steps: Rc<Steps>, observer: Option<Observer<'a>>) -> Judge<'a> {
        let plan = &request.plan;
        let sockets: BTreeSet<PathBuf> = plan.sockets.iter().map(|s| s.path.clone()).collect();
        let grants: Vec<PathBuf> = plan.grants.iter().map(|g| &g.path).chain(&sockets).cloned().collect();
        let shown = grants.iter().filter(|p| is_private(p)).chain(&steps.skeleton).cloned().collect();
        let loaders = match &plan.exec {
            ExecPlan::Only { loaders, .. } => loaders.iter().filter_map(|l| std::fs::canonicalize(l).ok()).collect(),
            ExecPlan::AllowBut(_) => Vec::new(),
        };
        let heard = request.resident || request.asks_to_start();
        let (guest, started) = (steps.guest, steps.watch.start_mark.is_some() || heard);
        Judge {
            denials: Denials::default(),
            flock: None,
            observer,
            asking: None,
            asked: Vec::new(),
            barred: Vec::new(),
            helper: None,
            starting: (!request.resident).then(|| request.program.clone()),
            held_up: None,
            reports: Reports::new(),
            still: Arc::default(),
            has_handed_dirs: false,
            max_open_files: request.limits.max_open_files,
            has_network: request.network.is_some(),
            descriptors_met: false,
            room: None,
            room_met: None,
            resolver: Resolver::default(),
            rhythm: Rhythm::default(),
            started,
            last_named: None,
            shown,
            grants,
            sockets,
            guest,
            workspace: request.workspace.as_ref().map(|w| w.at.clone()),
            ordinary: HashSet::new(),
            loaders,
            request,
            steps,
        }
    }

    /// Paths are followed from here on in this tree; without, in that of the first who calls.
    pub fn look_from(&mut self, root: OwnedFd) {
        self.resolver = Resolver::of(root);
    }

    /// What the policy says of a program that somebody else wants to start inside, if that is no.
    pub fn forbids(&mut self, program: &Path) -> Option<Decision> {
        let path = self.resolver.resolve(0, AT_FDCWD, program.as_os_str().as_bytes(), Last::Follow)?;
        if is_private(&path) || !self.exists(&path) {
            return None;
        }
        let decision = self.decide_start(&path);
        match decision.action {
            Action::Allow | Action::Warn => None,
            // The start itself is heard, and waits.
            Action::Ask if self.can_ask_to_start(&path) => None,
            Action::Ask | Action::Deny => Some(decision),
        }
    }

    /// What the policy says of a program that somebody inside names to be started.
    fn decide_start(&self, path: &Path) -> Decision {
        let decision = self.request.policy.exec(path);
        if self.loaders.iter().any(|loader| loader == path) { no_loader(decision) } else { decision }
    }

    /// Takes one call from the listener and answers it. False when there is no guest left to hear.
    pub fn hear(&mut self, listener: &Listener) -> bool {
        match listener.receive() {
            Ok(Some(call)) => {
                self.rhythm.heard(listener, call.tid);
                self.answer(listener, &call);
            }
            Ok(None) => {}
            Err(_) => return false,
        }
        true
    }

    fn answer(&mut self, listener: &Listener, call: &Call) {
        if seccomp::is_refused(call.nr, &call.args, &self.steps.watch) {
            self.refuse_call(call);
            return listener.refuse(call, EPERM);
        }
        self.count_descriptors(call);
        let name = seccomp::name(call.nr);
        let refused = match &*name {
            "execve" | "execveat" => match self.exec(listener, call, &name) {
                Met::Waits => return,
                Met::Refused(errno) => Some(errno),
                Met::Nothing => None,
            },
            "fallocate" => {
                self.reserve(call);
                None
            }
            "flock" => return self.flock(listener, call),
            "fcntl" => match self.fcntl(listener, call) {
                Met::Waits => return,
                Met::Refused(errno) => Some(errno),
                Met::Nothing => None,
            },
            "connect" if self.steps.watch.connects_for_guest => return self.connect_for(listener, call),
            "connect" => self.address(listener, call, 1, 2).and_then(|to| self.judge_address(call, &to)),
            "sendto" => self.address(listener, call, 4, 5).and_then(|to| self.judge_address(call, &to)),
            "open" | "openat" | "creat" if !self.asked.is_empty() => match self.open_asked(listener, call, &name) {
                Met::Waits => return,
                Met::Refused(errno) => Some(errno),
                Met::Nothing => self.files(listener, call, &name),
            },
            _ => self.files(listener, call, &name),
        };
        match refused {
            Some(errno) => listener.refuse(call, errno),
            None => listener.go_on(call),
        }
    }

    fn refuse_call(&mut self, call: &Call) {
        let name = seccomp::name(call.nr);
        let rule =
            if self.steps.watch.deny.iter().any(|denied| *denied == name) { "syscalls.deny" } else { "syscalls" };
        let hint = seccomp::reason(call.nr).map(|why| format!("never allowed: {why}"));
        self.note("syscall", &name, rule, Action::Deny, hint, call.tid);
    }

    fn note(&mut self, op: &str, target: &str, rule: &str, action: Action, hint: Option<String>, tid: i32) {
        let job = self.flock.as_ref().and_then(|flock| flock.of(tid));
        self.count(job, |list| list.add(op, target, rule, action, hint, || actor(tid)).cloned());
    }

    /// Counts a refusal where it belongs, and tells of it if it is the first of its kind.
    fn count(&mut self, job: Option<Job>, add: impl FnOnce(&mut Denials) -> Option<Denial>) {
        let of_job = self.flock.as_mut().zip(job).and_then(|(flock, job)| flock.denials(job));
        let Some(denial) = add(of_job.unwrap_or(&mut self.denials)) else { return };
        if let Some(observer) = self.observer.as_mut() {
            observer(Observed::Denied(&denial));
        }
        if let Some(flock) = &mut self.flock {
            flock.tell(job, denial);
        }
    }

    /// A refusal or warning that the network tells of.
    pub fn tell(&mut self, report: NetReport) {
        let NetReport { op, target, rule, action, hint, actor, shepherd } = report;
        let inside = actor.as_ref().map(|actor| actor.pid);
        let job = self.flock.as_ref().and_then(|flock| {
            let tended = shepherd.and_then(|shepherd| flock.tended_by(shepherd));
            tended.or_else(|| flock.of_inside(inside?))
        });
        self.count(job, |list| list.add(op, &target, &rule, action, hint, || actor.unwrap_or_default()).cloned());
    }

    /// The kernel refuses what goes over; here it is only noticed, so that the outcome can say so.
    fn count_descriptors(&mut self, call: &Call) {
        let made = seccomp::descriptors_made(call.nr, &call.args);
        let Some(limit) = self.max_open_files.filter(|_| self.started && made > 0) else { return };
        if self.flock.as_ref().is_some_and(|flock| flock.is_ours(call.tid)) {
            return;
        }
        let open = std::fs::read_dir(format!("/proc/{}/fd", call.tid)).map_or(0, Iterator::count) as u64;
        self.descriptors_met |= open + made > limit;
    }

    /// Refused whole, such a call leaves nothing behind that would show. The kernel refuses it; here it is only noticed.
    fn reserve(&mut self, call: &Call) {
        const KEEP_SIZE: u64 = 1;
        let [fd, mode, offset, length, ..] = call.args;
        let sane = i64::try_from(offset).is_ok() && i64::try_from(length).is_ok();
        let Some(room) = self.room.as_ref().filter(|_| sane && mode as u32 as u64 & !KEEP_SIZE == 0) else { return };
        let file = copy_descriptor(call.tid, fd as i32);
        self.room_met = self.room_met.or_else(|| room.refuses(&file?, offset, length));
    }

    fn exec(&mut self, listener: &Listener, call: &Call, name: &str) -> Met {
        // Without a mark the first is our own pid 1 starting the command, which was judged before anything was made.
        if !std::mem::replace(&mut self.started, true) {
            return Met::Nothing;
        }
        let named = self.program_of(listener, call, name, None);
        if !self.request.resident {
            self.starting = None;
        }
        let Some((text, path)) = named else { return Met::Nothing };
        if !self.barred.is_empty() {
            return self.start(listener, call, path);
        }
        if is_private(&path) {
            return Met::Nothing;
        }
        let decision = self.decide_start(&path);
        if decision.action == Action::Allow {
            self.remember(text, &path);
        }
        self.judge("exec", &path.to_string_lossy(), decision, call.tid).map_or(Met::Nothing, Met::Refused)
    }

    /// The program that a call names, and its real path; `known` where it cannot be read. None where there is nothing to say
    /// about it.
    fn program_of(
        &mut self,
        listener: &Listener,
        call: &Call,
        name: &str,
        known: Option<&Path>,
    ) -> Option<(Vec<u8>, PathBuf)> {
        let (dirfd, at) = if name == "execveat" { (call.args[0] as i32, 1) } else { (AT_FDCWD, 0) };
        let text = match read_string(call.tid, call.args[at], LONGEST_PATH) {
            // A program by its descriptor.
            Some(text) if text.is_empty() && dirfd >= 0 && !self.barred.is_empty() => {
                self.resolver.base(call.tid, dirfd)?.into()
            }
            Some(text) => OsString::from_vec(text),
            None if self.barred.is_empty() => return None,
            None => known.map(Path::to_path_buf).or_else(|| self.starting.take())?.into(),
        };
        let text = text.into_vec();
        if text.is_empty() || self.is_nowhere(&text) || self.ordinary.contains(&text) || !listener.is_live(call) {
            return None;
        }
        let path = self.resolver.resolve(call.tid, dirfd, &text, Last::Follow)?;
        let named = self.resolver.named(call.tid, dirfd, &text).unwrap_or_else(|| path.clone());
        if !self.exists(&path) {
            return None;
        }
        self.observe(|| Observed::Exec(named));
        Some((text, path))
    }

    /// Most programs are started more than once. What a name means cannot be changed by the guest where it can write
    /// neither at the name nor at what it leads to; and should it change, only a report is lost.
    fn remember(&mut self, name: Vec<u8>, path: &Path) {
        const MOST: usize = 256;
        let fixed =
            |p: &Path| p.is_absolute() && !is_private(p) && !self.request.policy.fs(p, Perm::WriteFile).allowed();
        let plain = !name.windows(2).any(|pair| pair == b"..");
        // A loader is kept from being started by nobody but us; there every start is looked at.
        let known = plain && self.loaders.is_empty() && fixed(Path::new(OsStr::from_bytes(&name))) && fixed(path);
        if known && self.observer.is_none() && self.ordinary.len() < MOST {
            self.ordinary.insert(name);
        }
    }

    /// The address a call names, copied once.
    fn address(&mut self, listener: &Listener, call: &Call, at: usize, length: usize) -> Option<Address> {
        let len = (call.args[length] as usize).min(128);
        if len < 2 {
            return None;
        }
        let raw = read_memory(call.tid, call.args[at], len)?;
        if !listener.is_live(call) {
            return None;
        }
        let port = || u16::from_be_bytes([raw[2], raw[3]]);
        match u16::from_ne_bytes([raw[0], raw[1]]) {
            0 => Some(Address::Unspecified),
            1 if len > 2 && raw[2] == 0 => Some(Address::Abstract(raw[3..].to_vec())),
            1 => {
                let end = raw[2..].iter().position(|b| *b == 0).map_or(len, |n| n + 2);
                Some(match self.resolver.open(call.tid, AT_FDCWD, &raw[2..end]) {
                    Ok((handle, path)) => Address::Path(path, handle),
                    // A socket that is hidden from the guest is a refusal to tell of, not only a missing file.
                    Err(errno) => {
                        let path = self.resolver.resolve(call.tid, AT_FDCWD, &raw[2..end], Last::Follow)?;
                        self.judge_socket(call, &path);
                        Address::Missing(errno.raw_os_error())
                    }
                })
            }
            2 if len >= 8 => Some(Address::Inet(Ipv4Addr::new(raw[4], raw[5], raw[6], raw[7]).into(), port())),
            10 if len >= 24 => {
                let bytes: [u8; 16] = raw[8..24].try_into().ok()?;
                Some(Address::Inet(Ipv6Addr::from(bytes).into(), port()))
            }
            _ => None,
        }
    }

    /// Makes the connection here, with the address that was judged.
    fn connect_for(&mut self, listener: &Listener, call: &Call) {
        let Some(to) = self.address(listener, call, 1, 2) else { return listener.refuse(call, EINVAL) };
        if let Address::Path(path, _) = &to {
            match self.connect_asked(listener, call, path) {
                Met::Waits => return,
                Met::Refused(errno) => return listener.refuse(call, errno),
                Met::Nothing => {}
            }
        }
        if let Some(errno) = self.judge_address(call, &to) {
            return listener.refuse(call, errno);
        }
        let to = match self.at_host(to) {
            Ok(to) => to,
            Err(errno) => return listener.refuse(call, errno),
        };
        let Some(socket) = copy_descriptor(call.tid, call.args[0] as i32) else { return listener.refuse(call, EBADF) };
        connect::answer(listener, call, self.guest, socket, to);
    }

    /// What a rule lets through is looked up on the host again: a service that was started anew meanwhile is reached,
    /// too, and mounts that are shifted do not stand in the way.
    fn at_host(&self, to: Address) -> Result<Address, i32> {
        match &to {
            Address::Path(path, _) if self.sockets.contains(path) => connect::service(path),
            _ => Ok(to),
        }
    }

    fn judge_address(&mut self, call: &Call, to: &Address) -> Option<i32> {
        match to {
            Address::Inet(ip, port) => self.judge_inet(call, ip.to_canonical(), *port),
            Address::Path(path, _) => self.judge_socket(call, path),
            Address::Service(_) | Address::Missing(_) | Address::Abstract(_) | Address::Unspecified => None,
        }
    }

    /// Loopback inside is the guest's own; everything else leads to the doors or, where there are none, has no route,
    /// which is what it will be told.
    fn judge_inet(&mut self, call: &Call, ip: IpAddr, port: u16) -> Option<i32> {
        if ip.is_loopback() || ip.is_unspecified() {
            return None;
        }
        let target = std::net::SocketAddr::new(ip, port).to_string();
        self.observe(|| Observed::Connect(target.clone()));
        if self.has_network {
            return None;
        }
        let ask = NetAsk { proto: Proto::Tcp, host: None, addr: Some(ip), port, method: None, path: None, unix: None };
        let decision = self.request.policy.net(&ask);
        self.judge("net.connect", &target, decision, call.tid).map(|_| ENETUNREACH)
    }

    /// The guest's own sockets lie in its private places and where it may write; any other is a service of the host.
    fn judge_socket(&mut self, call: &Call, path: &Path) -> Option<i32> {
        if self.is_own_place(path) || !(self.exists(path) || self.sockets.contains(path)) {
            return None;
        }
        let decision =
            if self.is_of_host(path) { self.request.policy.reaches(path) } else { self.request.policy.connects(path) };
        self.observe(|| Observed::Socket {
            path: path.to_path_buf(),
            rule: decision.rule.clone(),
            action: decision.action,
            actor: actor(call.tid),
        });
        self.judge("net.connect", &format!("unix:{}", path.display()), decision, call.tid)
    }

    fn files(&mut self, listener: &Listener, call: &Call, name: &str) -> Option<i32> {
        let acts = self.acts(call, name)?;
        // What was read of one who is gone counts for nothing; what is allowed tells nothing.
        if self.observer.is_some() && !listener.is_live(call) {
            return None;
        }
        let mut refused = None;
        for act in acts {
            if self.is_own_place(&act.path) {
                self.note_unshown(&act, call.tid);
                continue;
            }
            if self.is_own_failure(&act) {
                continue;
            }
            let named = act.named.clone().unwrap_or_else(|| act.path.clone());
            self.observe(|| Observed::File { named, made: act.op == "fs.create", perm: act.perm });
            let decision = self.decide(&act);
            if act.perm == Perm::ReadDir && decision.matches.is_empty() && self.leads_to_grant(&act.path) {
                continue;
            }
            if decision.action != Action::Allow && !listener.is_live(call) {
                return None;
            }
            refused = self.judge(act.op, &act.path.to_string_lossy(), decision, call.tid);
            if refused.is_some() {
                break;
            }
        }
        refused
    }

    /// Notes a refusal where a call fails in a private directory because something of the host does not show there: a file next to a
    /// project right below /tmp, say. The call goes on and fails by itself, so a guest learns nothing of what the host has there.
    fn note_unshown(&mut self, act: &Act, tid: i32) {
        let Some(place) = policy::private_place(&act.path) else { return };
        let makes = act.fresh || act.op == "fs.create";
        let missing = if makes { act.path.parent() } else { Some(act.path.as_path()) };
        let of_host = missing.filter(|at| at.starts_with(place) && *at != place && at.symlink_metadata().is_ok());
        if of_host.is_none_or(|at| self.resolver.stat(at).is_some()) {
            return;
        }
        let decision = self.decide(act);
        if decision.action == Action::Deny {
            self.judge(act.op, &act.path.to_string_lossy(), decision, tid);
        }
    }

    /// Making, removing and moving are asked of the directory, as the kernel does; a rule against the name itself
    /// still counts.
    fn decide(&self, act: &Act) -> Decision {
        let own = self.request.policy.fs(&act.path, act.perm);
        let parent = act.path.parent().filter(|_| matches!(act.op, "fs.create" | "fs.remove"));
        let forbidden = own.matches.iter().any(|m| matches!(m.action, Action::Deny | Action::Ask));
        match parent.map(|p| self.request.policy.fs(p, act.perm)) {
            Some(above) if !forbidden && !above.allowed() => above,
            _ => own,
        }
    }

    /// Directories made to lead to a grant can be listed.
    fn leads_to_grant(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| grant.starts_with(path))
    }

    /// A place of the guest's own, of which no rule speaks.
    fn is_own_place(&self, path: &Path) -> bool {
        is_private(path) && !self.is_shown_in_private(path)
    }

    /// A project may live below /tmp; the rules speak for it there, and for what leads to it.
    fn is_shown_in_private(&self, path: &Path) -> bool {
        self.shown.iter().any(|grant| path.starts_with(grant))
    }

    fn judge(&mut self, op: &str, target: &str, decision: Decision, tid: i32) -> Option<i32> {
        match decision.action {
            Action::Allow => None,
            Action::Warn => {
                self.note(op, target, &decision.rule, Action::Warn, None, tid);
                None
            }
            action => {
                self.note(op, target, &decision.rule, action, decision.hint, tid);
                Some(EACCES)
            }
        }
    }

    /// Shells and compilers look for a program in every directory of PATH. A name that is nowhere on the host, and not in a
    /// place of the guest's own, is no refusal. No link is followed here: the guest may have put it there, and where it leads
    /// is a question for the guest's own root.
    fn is_nowhere(&self, name: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(name));
        let look = || openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let of_host = path.is_absolute() && !is_private(path) && !self.in_workspace(path);
        of_host && matches!(look(), Err(Errno::NOENT))
    }

    fn in_workspace(&self, path: &Path) -> bool {
        self.workspace.as_ref().is_some_and(|at| path.starts_with(at))
    }

    /// The mode of what is at a real path: in the workspace as the guest sees it, and what is hidden from it there, or
    /// anywhere else, as it is on the host.
    fn mode(&self, path: &Path) -> Option<u32> {
        let inside = self.in_workspace(path).then(|| self.resolver.stat(path)).flatten();
        inside.map(|s| s.st_mode).or_else(|| std::fs::symlink_metadata(path).ok().map(|m| m.mode()))
    }

    /// Whether a socket in the workspace is the host's and not one that the guest made there. The kernel leads nobody from
    /// one to the other, so this only decides what is told.
    fn is_of_host(&self, path: &Path) -> bool {
        let Some(inside) = self.resolver.stat(path).filter(|_| self.in_workspace(path)) else { return false };
        std::fs::symlink_metadata(path).is_ok_and(|m| {
            (m.ctime(), m.ctime_nsec()) == (inside.st_ctime, inside.st_ctime_nsec as i64) && m.mode() == inside.st_mode
        })
    }

    fn exists(&self, path: &Path) -> bool {
        self.mode(path).is_some()
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.mode(path).is_some_and(|mode| mode & 0o170_000 == 0o040_000)
    }

    fn observe(&mut self, what: impl FnOnce() -> Observed<'static>) {
        if let Some(observer) = self.observer.as_mut() {
            observer(what());
        }
    }
}

fn no_loader(decision: Decision) -> Decision {
    let hint = "the loader would start programs that no rule names; start the program itself";
    Decision { action: Action::Deny, rule: "defaults.exec".into(), hint: Some(hint.into()), ..decision }
}

/// Places that are the guest's own, or the kernel's for it.
pub fn is_private(path: &Path) -> bool {
    policy::private_place(path).is_some() || path.starts_with("/dev") || path.starts_with("/proc")
}
