//! Answers the guest's seccomp notifications, and tells refusals from ordinary failures. A call that continues is still
//! subject to mounts and landlock; a call that the policy denies gets the plain EACCES that a program expects.

mod acts;
mod asked;
mod barred;
mod held;
mod locks;
mod wakeup;

use self::acts::RequiredPermission;
use self::asked::Judged;
pub(crate) use self::barred::NoexecMount;
pub(crate) use self::held::AskedTrees;
use self::wakeup::WakeupHint;
use crate::actors::actor;
use crate::approval::{Approvals, Reports};
use crate::connect::{self, Address};
use crate::denials::{Denials, RefusedOperation};
use crate::flock::{Flock, JobId};
use crate::guest::{Guest, is_private};
use crate::limits::ScratchSpace;
use crate::loopback;
use crate::network::NetReport;
use crate::publish::Helper;
use crate::resolve::{Last, Resolver};
use crate::spec::{GuestSpec, Observed, Observer};
use crate::steps::Steps;
use crate::waiting_calls::WaitingCalls;
use policy::{Decision, ExecPlan, NetRequest, Perm, Proto};
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
use sys::doors::RESOLVER;
use sys::notify::{Call, Listener};
use sys::process::{copy_descriptor, read_memory, read_string};
use sys::seccomp;
use terms::{Action, Denial, LimitHit};

/// Searches for listeners on loopback in one guest's life; each reads two lists of sockets.
const MAX_LISTENER_LOOKUPS: u32 = 64;
const LONGEST_PATH: usize = 4096;
const EACCES: i32 = 13;
const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ENETUNREACH: i32 = 101;
const DNS_PORT: u16 = 53;

const AT_FDCWD: i32 = -100;

pub struct Judge<'a> {
    spec: Rc<GuestSpec>,
    steps: Rc<Steps>,
    pub denials: Denials,
    /// Attribution of processes to commands, in a resident guest.
    pub flock: Option<Flock>,
    pub observer: Option<Observer<'a>>,
    /// The table of questions to a person.
    pub asking: Option<Box<dyn Approvals + 'a>>,
    pub asked: Vec<AskedTrees>,
    /// Noexec programs that a person is asked about before they start.
    pub barred: Vec<NoexecMount>,
    pub helper: Option<Helper>,
    /// Program that a process of the supervisor is about to exec; its memory may not be readable.
    pub starting: Option<PathBuf>,
    /// The last command whose start waits for an answer.
    pub awaiting_answer: Option<JobId>,
    pub reports: Arc<Reports>,
    waiting_calls: WaitingCalls,
    /// Set while the guest is being frozen: calls that wait for an answer are restarted and ask again after the thaw.
    pub freezing: Arc<AtomicBool>,
    has_handed_dirs: bool,
    max_open_files: Option<u64>,
    /// Connections lead to the doors, where the broker decides about them and reports.
    listener_lookups: u32,
    has_network: bool,
    /// The guest has a name server that refuses every name and reports it.
    pub has_resolver: bool,
    /// Set once a process asked for more descriptors than its limit.
    pub descriptors_met: bool,
    /// The private space, where it has a limit.
    pub scratch: Option<ScratchSpace>,
    /// Set once an fallocate(2) exceeded that limit.
    pub scratch_hit: Option<LimitHit>,
    resolver: Resolver,
    wakeup: WakeupHint,
    started: bool,
    last_named: Option<PathBuf>,
    /// Paths of the host that are shown inside the guest's private directories: grants, and directories that lead to
    /// them.
    host_in_private: Vec<PathBuf>,
    grants: Vec<PathBuf>,
    /// Sockets of the host that rules allow the guest to connect to.
    sockets: BTreeSet<PathBuf>,
    guest: Guest,
    /// Directory whose content differs between guest and host.
    workspace: Option<PathBuf>,
    /// Cache of program names that may be started, as the guest spelled them.
    allowed_names: HashSet<Vec<u8>>,
    /// Dynamic loaders of listed programs. The kernel needs them executable, but a guest that starts one itself could
    /// make it run any file.
    loaders: Vec<PathBuf>,
}

impl<'a> Judge<'a> {
    pub fn new(spec: Rc<GuestSpec>, steps: Rc<Steps>, observer: Option<Observer<'a>>) -> Judge<'a> {
        let plan = &spec.plan;
        let sockets: BTreeSet<PathBuf> = plan.sockets.iter().map(|s| s.path.clone()).collect();
        let grants: Vec<PathBuf> = plan.grants.iter().map(|g| &g.path).chain(&sockets).cloned().collect();
        let is_private = |p: &&PathBuf| is_private(p) || plan.private.is_in_home(p);
        let asked = plan.asked.iter().map(|place| &place.path);
        let shown = grants.iter().chain(asked).filter(is_private);
        let host_in_private = shown.chain(&steps.skeleton).cloned().collect();
        let loaders = match &plan.exec {
            ExecPlan::Only { loaders, .. } => loaders.iter().filter_map(|l| std::fs::canonicalize(l).ok()).collect(),
            ExecPlan::AllowBut(_) => Vec::new(),
        };
        let heard = spec.resident || spec.asks_to_start();
        let (guest, started) = (steps.guest, steps.watch.start_mark.is_some() || heard);
        Judge {
            denials: Denials::default(),
            flock: None,
            observer,
            asking: None,
            asked: Vec::new(),
            barred: Vec::new(),
            helper: None,
            starting: (!spec.resident).then(|| spec.program.clone()),
            awaiting_answer: None,
            reports: Reports::new(),
            waiting_calls: WaitingCalls::default(),
            freezing: Arc::default(),
            has_handed_dirs: false,
            max_open_files: spec.limits.max_open_files,
            has_network: spec.network.as_ref().is_some_and(|plan| !plan.names_only),
            has_resolver: false,
            listener_lookups: 0,
            descriptors_met: false,
            scratch: None,
            scratch_hit: None,
            resolver: Resolver::default(),
            wakeup: WakeupHint::default(),
            started,
            last_named: None,
            host_in_private,
            grants,
            sockets,
            guest,
            workspace: spec.workspace.as_ref().map(|w| w.at.clone()),
            allowed_names: HashSet::new(),
            loaders,
            spec,
            steps,
        }
    }

    /// Resolves paths in this root from here on; otherwise, in the root of the first calling process.
    pub fn look_from(&mut self, root: OwnedFd) {
        self.resolver = Resolver::of(root);
    }

    /// Returns the policy's decision on a program that the supervisor is asked to start inside, if it is refused.
    pub fn forbids(&mut self, program: &Path) -> Option<Decision> {
        let path = self.resolver.resolve(0, AT_FDCWD, program.as_os_str().as_bytes(), Last::Follow)?;
        if self.is_private(&path) || !self.exists(&path) {
            return None;
        }
        let decision = self.decide_start(&path);
        match decision.action {
            Action::Allow | Action::Warn => None,
            // The execve itself is notified, and waits for the answer.
            Action::Ask if self.can_ask_to_start(&path) => None,
            Action::Ask | Action::Deny => Some(decision),
        }
    }

    /// Returns the policy's decision on a program that a guest process names in execve(2).
    fn decide_start(&self, path: &Path) -> Decision {
        let decision = self.spec.policy.exec(path);
        if self.loaders.iter().any(|loader| loader == path) { no_loader(decision) } else { decision }
    }

    /// Takes one notification and answers it. False when no process of the guest is left.
    pub fn hear(&mut self, listener: &Listener) -> bool {
        match listener.receive() {
            Ok(Some(call)) => {
                self.wakeup.heard(listener, call.tid);
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
                Judged::Waits => return,
                Judged::Refused(errno) => Some(errno),
                Judged::Continues => None,
            },
            "fallocate" => {
                self.reserve(call);
                None
            }
            "flock" => return self.flock(listener, call),
            "fcntl" => match self.fcntl(listener, call) {
                Judged::Waits => return,
                Judged::Refused(errno) => Some(errno),
                Judged::Continues => None,
            },
            "connect" if self.steps.watch.connects_for_guest => return self.connect_for(listener, call),
            "connect" => self.address(listener, call, 1, 2).and_then(|to| self.judge_address(call, &to)),
            "sendto" => self.address(listener, call, 4, 5).and_then(|to| self.judge_address(call, &to)),
            "open" | "openat" | "creat" if !self.asked.is_empty() => match self.open_asked(listener, call, &name) {
                Judged::Waits => return,
                Judged::Refused(errno) => Some(errno),
                Judged::Continues => self.files(listener, call, &name),
            },
            _ => self.files(listener, call, &name),
        };
        match refused {
            Some(errno) => listener.refuse(call, errno),
            None => listener.continue_call(call),
        }
    }

    fn refuse_call(&mut self, call: &Call) {
        let name = seccomp::name(call.nr);
        let rule =
            if self.steps.watch.deny.iter().any(|denied| *denied == name) { "syscalls.deny" } else { "syscalls" };
        let hint = match &*name {
            "clone" | "clone3" | "unshare" => Some(NESTED.to_owned()),
            _ => seccomp::reason(call.nr).map(|why| format!("never allowed: {why}")),
        };
        self.note("syscall", &name, rule, Action::Deny, hint, call.tid);
    }

    fn note(&mut self, op: &str, target: &str, rule: &str, action: Action, hint: Option<String>, tid: i32) {
        let job = self.flock.as_ref().and_then(|flock| flock.of(tid));
        let refusal = RefusedOperation { op, target, rule, action, hint, quiet: false };
        self.count(job, |list| list.add(refusal, || actor(tid)).cloned());
    }

    /// Counts a refusal for its command, and reports it if it is the first of its kind.
    fn count(&mut self, job: Option<JobId>, add: impl FnOnce(&mut Denials) -> Option<Denial>) {
        let of_job = self.flock.as_mut().zip(job).and_then(|(flock, job)| flock.denials(job));
        let Some(denial) = add(of_job.unwrap_or(&mut self.denials)) else { return };
        if let Some(observer) = self.observer.as_mut() {
            observer(Observed::Denied(&denial));
        }
        if let Some(flock) = &mut self.flock {
            flock.tell(job, denial);
        }
    }

    /// Counts a refusal or warning of the broker.
    pub fn tell(&mut self, report: NetReport) {
        let NetReport { op, target, rule, action, hint, quiet, actor, shepherd } = report;
        let inside = actor.as_ref().map(|actor| actor.pid);
        let job = self.flock.as_ref().and_then(|flock| {
            let tended = shepherd.and_then(|shepherd| flock.tended_by(shepherd));
            tended.or_else(|| flock.of_inside(inside?))
        });
        let refusal = RefusedOperation { op, target: &target, rule: &rule, action, hint, quiet };
        self.count(job, |list| list.add(refusal, || actor.unwrap_or_default()).cloned());
    }

    /// Records that RLIMIT_NOFILE will refuse the call, for the outcome; the refusal itself is the kernel's.
    fn count_descriptors(&mut self, call: &Call) {
        let made = seccomp::descriptors_made(call.nr, &call.args);
        let Some(limit) = self.max_open_files.filter(|_| self.started && made > 0) else { return };
        if self.flock.as_ref().is_some_and(|flock| flock.is_ours(call.tid)) {
            return;
        }
        let open = std::fs::read_dir(format!("/proc/{}/fd", call.tid)).map_or(0, Iterator::count) as u64;
        self.descriptors_met |= open + made > limit;
    }

    /// Records that an fallocate(2) exceeds the space. The kernel refuses it as a whole, so no later measurement would
    /// show it.
    fn reserve(&mut self, call: &Call) {
        const KEEP_SIZE: u64 = 1;
        let [fd, mode, offset, length, ..] = call.args;
        let sane = i64::try_from(offset).is_ok() && i64::try_from(length).is_ok();
        let Some(scratch) = self.scratch.as_ref().filter(|_| sane && mode as u32 as u64 & !KEEP_SIZE == 0) else {
            return;
        };
        let file = copy_descriptor(call.tid, fd as i32);
        self.scratch_hit = self.scratch_hit.or_else(|| scratch.refuses(&file?, offset, length));
    }

    fn exec(&mut self, listener: &Listener, call: &Call, name: &str) -> Judged {
        // Without a start mark, the first execve is our own pid 1 starting the command, which was judged beforehand.
        if !std::mem::replace(&mut self.started, true) {
            return Judged::Continues;
        }
        let named = self.program_of(listener, call, name, None);
        if !self.spec.resident {
            self.starting = None;
        }
        let Some((text, path)) = named else { return Judged::Continues };
        if !self.barred.is_empty() {
            return self.start(listener, call, path);
        }
        if self.is_private(&path) {
            return Judged::Continues;
        }
        let decision = self.decide_start(&path);
        if decision.action == Action::Allow {
            self.remember(text, &path);
        }
        self.judge("exec", &path.to_string_lossy(), decision, call.tid).map_or(Judged::Continues, Judged::Refused)
    }

    /// Returns the program that a call names, as spelled and as a real path; `known` where the guest's memory cannot be
    /// read. `None` where no decision is needed.
    fn program_of(
        &mut self,
        listener: &Listener,
        call: &Call,
        name: &str,
        known: Option<&Path>,
    ) -> Option<(Vec<u8>, PathBuf)> {
        let (dirfd, at) = if name == "execveat" { (call.args[0] as i32, 1) } else { (AT_FDCWD, 0) };
        let text = match read_string(call.tid, call.args[at], LONGEST_PATH) {
            // execveat(2) with AT_EMPTY_PATH: the program is given by descriptor.
            Some(text) if text.is_empty() && dirfd >= 0 && !self.barred.is_empty() => {
                self.resolver.base(call.tid, dirfd)?.into()
            }
            Some(text) => OsString::from_vec(text),
            None if self.barred.is_empty() => return None,
            None => known.map(Path::to_path_buf).or_else(|| self.starting.take())?.into(),
        };
        let text = text.into_vec();
        if text.is_empty() || self.is_nowhere(&text) || self.allowed_names.contains(&text) || !listener.is_live(call) {
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

    /// Caches an allowed program name, since most programs are started more than once. The guest cannot change the
    /// meaning of a name where it can write neither to the name nor to its target; if it changes nevertheless, only a
    /// report is lost.
    fn remember(&mut self, name: Vec<u8>, path: &Path) {
        const MOST: usize = 256;
        let fixed =
            |p: &Path| p.is_absolute() && !self.is_private(p) && !self.spec.policy.fs(p, Perm::WriteFile).allowed();
        let plain = !name.windows(2).any(|pair| pair == b"..");
        // Starting a loader is refused only here and not by the kernel, so where there are loaders every start is
        // judged.
        let known = plain && self.loaders.is_empty() && fixed(Path::new(OsStr::from_bytes(&name))) && fixed(path);
        if known && self.observer.is_none() && self.allowed_names.len() < MOST {
            self.allowed_names.insert(name);
        }
    }

    /// Returns the address that a call names, copied once.
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
                    // A socket that is hidden from the guest is reported as a refusal, not only as a missing file.
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

    /// Connects on the guest's behalf, with the judged copy of the address.
    fn connect_for(&mut self, listener: &Listener, call: &Call) {
        let Some(to) = self.address(listener, call, 1, 2) else { return listener.refuse(call, EINVAL) };
        if let Address::Path(path, _) = &to {
            match self.connect_asked(listener, call, path) {
                Judged::Waits => return,
                Judged::Refused(errno) => return listener.refuse(call, errno),
                Judged::Continues => {}
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
        connect::answer(&self.waiting_calls, listener, call, self.guest, socket, to);
    }

    /// Looks up an allowed socket on the host again, so that a restarted service is reached and id-mapped mounts are
    /// bypassed.
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

    /// Judges an IP address. Loopback is the guest's own. Everything else leads to the doors or, without a network,
    /// gets ENETUNREACH.
    fn judge_inet(&mut self, call: &Call, ip: IpAddr, port: u16) -> Option<i32> {
        if ip.is_loopback() || ip.is_unspecified() {
            self.advise_on_loopback(call.tid, ip, port);
            return None;
        }
        if self.has_resolver && (ip, port) == (IpAddr::V4(RESOLVER), DNS_PORT) {
            return None;
        }
        let target = std::net::SocketAddr::new(ip, port).to_string();
        self.observe(|| Observed::Connect(target.clone()));
        if self.has_network {
            return None;
        }
        let ask =
            NetRequest { proto: Proto::Tcp, host: None, addr: Some(ip), port, method: None, path: None, unix: None };
        let decision = self.spec.policy.net(&ask);
        self.judge("net.connect", &target, decision, call.tid).map(|_| ENETUNREACH)
    }

    /// Notes a connection to a port of the guest's loopback where nothing listens, if a service of the host listens on
    /// the same port of the host's. Nothing is refused: the guest's loopback is its own.
    fn advise_on_loopback(&mut self, tid: i32, ip: IpAddr, port: u16) {
        if !ip.is_loopback() || port == DNS_PORT || self.listener_lookups >= MAX_LISTENER_LOOKUPS {
            return;
        }
        self.listener_lookups += 1;
        let target = std::net::SocketAddr::new(ip, port);
        let note = format!(
            "{target} is the sandbox's own loopback; the service of the host that listens there is reached with --net {target}"
        );
        let job = self.flock.as_ref().and_then(|flock| flock.of(tid));
        let missing = !loopback::listens(&tid.to_string(), ip, port);
        let ask =
            NetRequest { proto: Proto::Tcp, host: None, addr: Some(ip), port, method: None, path: None, unix: None };
        let is_barred = || self.spec.policy.net(&ask).matches.iter().any(|m| m.action == Action::Deny);
        let of_host = missing && loopback::listens("self", ip, port) && !is_barred();
        let of_job = self.flock.as_mut().zip(job).and_then(|(flock, job)| flock.denials(job));
        let list = of_job.unwrap_or(&mut self.denials);
        match (missing, of_host) {
            (_, true) => list.advise(&note),
            (false, _) => list.withdraw(&note),
            (true, false) => {}
        }
    }

    /// Judges a Unix socket. The guest's own are in its private directories and where it may write; every other is a
    /// service of the host.
    fn judge_socket(&mut self, call: &Call, path: &Path) -> Option<i32> {
        if self.is_own_place(path) || !(self.exists(path) || self.sockets.contains(path)) {
            return None;
        }
        let decision =
            if self.is_of_host(path) { self.spec.policy.reaches(path) } else { self.spec.policy.connects(path) };
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
        // Arguments read from a thread that is gone prove nothing. Without an observer only refusals are reported, and
        // those are checked for this below.
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

    /// Notes a refusal where a call fails in a private directory because a file of the host is not shown there: a file
    /// next to a project right below /tmp, say. The call continues and fails by itself, so the guest learns nothing
    /// about the host's directory.
    fn note_unshown(&mut self, act: &RequiredPermission, tid: i32) {
        let Some(place) = self.spec.plan.private.place_of(&act.path) else { return };
        // In the home programs make the hidden directories that they do not find, and every file.
        let own = self.spec.plan.private.is_in_home(place) && !matches!(act.perm, Perm::ReadFile | Perm::ReadDir);
        let below = act.path.strip_prefix(place).unwrap_or(&act.path);
        if own && below.iter().any(|name| name.as_bytes().starts_with(b".")) {
            return;
        }
        // Elsewhere they make each directory that they do not find, unless the project is there, which has neighbours that are meant.
        if act.perm == Perm::MakeDir && !self.spec.cwd.starts_with(place) {
            return;
        }
        let makes = own || act.fresh || act.op == "fs.create";
        let missing = if makes { act.path.parent() } else { Some(act.path.as_path()) };
        let of_host = missing.filter(|at| at.starts_with(place) && *at != place && at.symlink_metadata().is_ok());
        if of_host.is_none_or(|at| self.resolver.stat(at).is_some()) {
            return;
        }
        let (named, perm) = (act.named.clone().unwrap_or_else(|| act.path.clone()), act.perm);
        self.observe(|| Observed::File { named, made: false, perm });
        let decision = self.decide(act);
        if decision.action == Action::Deny {
            self.judge(act.op, &act.path.to_string_lossy(), decision, tid);
        }
    }

    /// Decides about one act. Creation, removal and renaming are rights on the directory, as in landlock; a rule
    /// against the name itself still counts.
    fn decide(&self, act: &RequiredPermission) -> Decision {
        let own = self.spec.policy.fs(&act.path, act.perm);
        let parent = act.path.parent().filter(|_| matches!(act.op, "fs.create" | "fs.remove"));
        let forbidden = own.matches.iter().any(|m| matches!(m.action, Action::Deny | Action::Ask));
        match parent.map(|p| self.spec.policy.fs(p, act.perm)) {
            // The host has a directory or file of this name, which is not shown: a right on it is the narrower one.
            Some(above) if !forbidden && !above.allowed() && !own.allowed() && act.fresh && self.exists(&act.path) => {
                Decision { rule: above.rule, ..own }
            }
            Some(above) if !forbidden && !above.allowed() => self.with_name_hint(above, act),
            _ => own,
        }
    }

    /// Replaces a hint that would have to offer too wide a directory.
    fn with_name_hint(&self, above: Decision, act: &RequiredPermission) -> Decision {
        let is_wide = act.path.parent().is_some_and(|parent| self.spec.policy.is_too_wide(parent));
        let is_denied = above.matches.iter().any(|m| m.action == Action::Deny);
        match is_wide && !is_denied && above.action == Action::Deny && act.op == "fs.create" {
            true => Decision { hint: self.spec.policy.name_hint(&act.path, act.perm), ..above },
            false => above,
        }
    }

    /// True for directories that lead to a grant, which can be listed.
    fn leads_to_grant(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| grant.starts_with(path))
    }

    /// True for paths in the guest's private directories, in its own /dev and /proc, and for what is its own in its home.
    fn is_private(&self, path: &Path) -> bool {
        is_private(path) || (self.spec.plan.private.is_in_home(path) && !self.is_shown_in_private(path))
    }

    /// True for the guest's private directories, about which there are no rules.
    fn is_own_place(&self, path: &Path) -> bool {
        self.is_private(path) && !self.is_shown_in_private(path)
    }

    /// True for host paths shown inside a private directory: a project may be below /tmp, and the rules apply to it and
    /// to the directories that lead to it.
    fn is_shown_in_private(&self, path: &Path) -> bool {
        let in_cache = |path: &Path| self.spec.own_home.caches().iter().any(|cache| path.starts_with(&cache.at));
        self.host_in_private.iter().any(|grant| path.starts_with(grant)) && !in_cache(path)
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

    /// True for a program that does not exist on the host: shells and compilers search every directory of PATH, and a
    /// missing name is no refusal. Symbolic links are not followed, because the guest may have created them and they
    /// resolve in the guest's root.
    fn is_nowhere(&self, name: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(name));
        let look = || openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let of_host = path.is_absolute() && !self.is_private(path) && !self.in_workspace(path);
        of_host && matches!(look(), Err(Errno::NOENT))
    }

    fn in_workspace(&self, path: &Path) -> bool {
        self.workspace.as_ref().is_some_and(|at| path.starts_with(at))
    }

    /// Returns the mode of the file at a real path: in the workspace as the guest sees it; hidden files, and files
    /// elsewhere, as on the host.
    fn mode(&self, path: &Path) -> Option<u32> {
        let inside = self.in_workspace(path).then(|| self.resolver.stat(path)).flatten();
        inside.map(|s| s.st_mode).or_else(|| std::fs::symlink_metadata(path).ok().map(|m| m.mode()))
    }

    /// True for a socket in the workspace that is the host's, not one that the guest created there. The kernel connects
    /// neither side to the other, so this decides only about reports.
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

/// Hint for a program that makes namespaces, nearly always for a sandbox of its own.
const NESTED: &str = "no namespaces can be made inside; if the program has a sandbox of its own, switch that off, because this \
     one is around it (codex: --sandbox danger-full-access; gemini: GEMINI_SANDBOX=false; claude: \"sandbox\" in its settings; \
     srt: leave it out)";

fn no_loader(decision: Decision) -> Decision {
    let hint = "the loader would start programs that no rule names; start the program itself";
    Decision { action: Action::Deny, rule: "defaults.exec".into(), hint: Some(hint.into()), ..decision }
}
