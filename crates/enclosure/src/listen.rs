//! Hearing of a guest's calls and telling refusals from failures. What is let go on is decided by the kernel's own
//! walls; a call that the policy denies is answered here with the plain "permission denied" that a program expects.

use crate::PRIVATE;
use crate::actors::actor;
use crate::connect::{self, Address};
use crate::denials::Denials;
use crate::guest::Guest;
use crate::launch::{Observed, Observer};
use crate::limits::Room;
use crate::network::NetReport;
use crate::resolve::{Last, Resolver};
use policy::{Decision, ExecPlan, NetAsk, Perm, Plan, Proto, Resolved};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::notify::{Call, Listener};
use sys::process::{copy_descriptor, read_memory, read_string};
use sys::seccomp::{self, Watch};
use terms::{Action, LimitHit};

const LONGEST_PATH: usize = 4096;
const EACCES: i32 = 13;
const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ENETUNREACH: i32 = 101;

/// Open flags that matter here, as the kernel numbers them.
const O_ACCMODE: u64 = 3;
const O_CREAT: u64 = 0o100;
const O_EXCL: u64 = 0o200;
const O_TRUNC: u64 = 0o1000;
const O_DIRECTORY: u64 = 0o200_000;
const O_NOFOLLOW: u64 = 0o400_000;
const O_PATH: u64 = 0o10_000_000;
const AT_REMOVEDIR: u64 = 0x200;
const AT_FDCWD: i32 = -100;

pub struct Judge<'a> {
    pub policy: &'a Resolved,
    pub watch: &'a Watch,
    pub denials: Denials,
    pub observer: Option<Observer<'a>>,
    pub max_open_files: Option<u64>,
    /// Connections go to doors, where somebody else decides about them and tells.
    pub has_network: bool,
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
    /// Grants of the host that lie where the guest's private places are.
    shown: Vec<PathBuf>,
    grants: Vec<PathBuf>,
    /// Sockets of the host that rules let it connect to.
    sockets: BTreeSet<PathBuf>,
    guest: Guest,
    /// Names of programs that may be started, as they were given.
    ordinary: HashSet<Vec<u8>>,
    /// Loaders of listed programs. They must be executable for the kernel's sake, but a guest that starts one itself
    /// could make it start anything.
    loaders: Vec<PathBuf>,
}

/// How the calls come. One thread that makes call after call waits half as long when it shares its processor with us;
/// threads that work beside each other are held up by that, because they are drawn to one processor.
#[derive(Default)]
struct Rhythm {
    last: Option<(i32, Instant)>,
    /// Calls of one thread in a row.
    row: u32,
    shares: bool,
}

impl Rhythm {
    fn heard(&mut self, listener: &Listener, tid: i32) {
        const CLOSE: Duration = Duration::from_micros(300);
        const MANY: u32 = 4;
        let now = Instant::now();
        let follows = self.last.is_some_and(|(who, at)| who == tid && now.duration_since(at) < CLOSE);
        self.row = if follows { self.row.saturating_add(1) } else { 0 };
        self.last = Some((tid, now));
        let share = self.row >= MANY;
        if share != self.shares {
            self.shares = share;
            listener.share_processor(share);
        }
    }
}

/// One thing a call wants to do to one path.
struct Act {
    op: &'static str,
    perm: Perm,
    path: PathBuf,
    /// It need not exist yet; what is created must not.
    fresh: bool,
    /// As the guest spelled it, where that is known and wanted.
    named: Option<PathBuf>,
    /// Whether it exists, where that was looked at already.
    there: Option<bool>,
}

impl Act {
    fn create(perm: Perm, path: PathBuf, fresh: bool) -> Act {
        Act { op: "fs.create", perm, path, fresh, named: None, there: None }
    }

    fn remove(path: &Path) -> Act {
        let is_dir = std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
        let perm = if is_dir { Perm::RemoveDir } else { Perm::RemoveFile };
        Act { op: "fs.remove", perm, path: path.to_path_buf(), fresh: false, named: None, there: None }
    }
}

/// The permission to make another of the kind that is at `path`.
fn make_perm(path: &Path) -> Perm {
    let mode = std::fs::symlink_metadata(path).map_or(0, |m| std::os::unix::fs::MetadataExt::mode(&m));
    node_perm(u64::from(mode))
}

/// Names that move or multiply between directories need a permission of their own.
fn refer(from: &Path, to: &Path) -> Option<Act> {
    (from.parent() != to.parent()).then(|| Act::create(Perm::Refer, to.to_path_buf(), false))
}

impl<'a> Judge<'a> {
    pub fn new(
        policy: &'a Resolved,
        plan: &Plan,
        guest: Guest,
        watch: &'a Watch,
        observer: Option<Observer<'a>>,
    ) -> Judge<'a> {
        let sockets: BTreeSet<PathBuf> = plan.sockets.iter().map(|s| s.path.clone()).collect();
        let grants: Vec<PathBuf> = plan.grants.iter().map(|g| &g.path).chain(&sockets).cloned().collect();
        let shown = grants.iter().filter(|p| is_private(p)).cloned().collect();
        let loaders = match &plan.exec {
            ExecPlan::Only { loaders, .. } => loaders.iter().filter_map(|l| std::fs::canonicalize(l).ok()).collect(),
            ExecPlan::AllowBut(_) => Vec::new(),
        };
        Judge {
            policy,
            watch,
            denials: Denials::default(),
            observer,
            max_open_files: None,
            has_network: false,
            descriptors_met: false,
            room: None,
            room_met: None,
            resolver: Resolver::default(),
            rhythm: Rhythm::default(),
            started: watch.start_mark.is_some(),
            last_named: None,
            shown,
            grants,
            sockets,
            guest,
            ordinary: HashSet::new(),
            loaders,
        }
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
        if seccomp::is_refused(call.nr, &call.args, self.watch) {
            self.refuse_call(call);
            return listener.refuse(call, EPERM);
        }
        self.count_descriptors(call);
        let name = seccomp::name(call.nr);
        let refused = match &*name {
            "execve" | "execveat" => self.exec(listener, call, &name),
            "fallocate" => {
                self.reserve(call);
                None
            }
            "connect" if self.watch.connects_for_guest => return self.connect_for(listener, call),
            "connect" => self.address(listener, call, 1, 2).and_then(|to| self.judge_address(call, &to)),
            "sendto" => self.address(listener, call, 4, 5).and_then(|to| self.judge_address(call, &to)),
            _ => self.files(listener, call, &name),
        };
        match refused {
            Some(errno) => listener.refuse(call, errno),
            None => listener.go_on(call),
        }
    }

    fn refuse_call(&mut self, call: &Call) {
        let name = seccomp::name(call.nr);
        let rule = if self.watch.deny.iter().any(|denied| *denied == name) { "syscalls.deny" } else { "syscalls" };
        let hint = seccomp::reason(call.nr).map(|why| format!("never allowed: {why}"));
        self.note("syscall", &name, rule, Action::Deny, hint, call.tid);
    }

    fn note(&mut self, op: &str, target: &str, rule: &str, action: Action, hint: Option<String>, tid: i32) {
        let new = self.denials.add(op, target, rule, action, hint, || actor(tid));
        if let (Some(denial), Some(observer)) = (new, self.observer.as_mut()) {
            observer(Observed::Denied(denial));
        }
    }

    /// A refusal or warning that the network tells of.
    pub fn tell(&mut self, report: NetReport) {
        let NetReport { op, target, rule, action, hint, actor } = report;
        let new = self.denials.add(op, &target, &rule, action, hint, || actor.unwrap_or_default());
        if let (Some(denial), Some(observer)) = (new, self.observer.as_mut()) {
            observer(Observed::Denied(denial));
        }
    }

    /// The kernel refuses what goes over; here it is only noticed, so that the outcome can say so.
    fn count_descriptors(&mut self, call: &Call) {
        let made = seccomp::descriptors_made(call.nr);
        let Some(limit) = self.max_open_files.filter(|_| self.started && made > 0) else { return };
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

    fn exec(&mut self, listener: &Listener, call: &Call, name: &str) -> Option<i32> {
        // Without a mark the first is our own pid 1 starting the command, which was judged before anything was made.
        if !std::mem::replace(&mut self.started, true) {
            return None;
        }
        let (dirfd, at) = if name == "execveat" { (call.args[0] as i32, 1) } else { (AT_FDCWD, 0) };
        let text = read_string(call.tid, call.args[at], LONGEST_PATH)?;
        if text.is_empty() || is_nowhere(&text) || self.ordinary.contains(&text) || !listener.is_live(call) {
            return None;
        }
        let path = self.resolver.resolve(call.tid, dirfd, &text, Last::Follow)?;
        let named = self.resolver.named(call.tid, dirfd, &text).unwrap_or_else(|| path.clone());
        if !exists(&path) {
            return None;
        }
        self.observe(|| Observed::Exec(named));
        if is_private(&path) {
            return None;
        }
        let mut decision = self.policy.exec(&path);
        if self.loaders.contains(&path) {
            decision.action = Action::Deny;
            decision.rule = "defaults.exec".into();
            decision.hint = Some("the loader would start programs that no rule names; start the program itself".into());
        }
        if decision.action == Action::Allow {
            self.remember(text, &path);
        }
        self.judge("exec", &path.to_string_lossy(), decision, call.tid)
    }

    /// Most programs are started more than once. What a name means cannot be changed by the guest where it can write
    /// neither at the name nor at what it leads to; and should it change, only a report is lost.
    fn remember(&mut self, name: Vec<u8>, path: &Path) {
        const MOST: usize = 256;
        let fixed = |p: &Path| p.is_absolute() && !is_private(p) && !self.policy.fs(p, Perm::WriteFile).allowed();
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
        let decision = self.policy.net(&ask);
        self.judge("net.connect", &target, decision, call.tid).map(|_| ENETUNREACH)
    }

    /// The guest's own sockets lie in its private places and where it may write; any other is a service of the host.
    fn judge_socket(&mut self, call: &Call, path: &Path) -> Option<i32> {
        if self.is_own_place(path) || !(exists(path) || self.sockets.contains(path)) {
            return None;
        }
        let decision = self.policy.connects(path);
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
                continue;
            }
            if is_own_failure(&act) {
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

    /// Making, removing and moving are asked of the directory, as the kernel does; a rule against the name itself
    /// still counts.
    fn decide(&self, act: &Act) -> Decision {
        let own = self.policy.fs(&act.path, act.perm);
        let parent = act.path.parent().filter(|_| matches!(act.op, "fs.create" | "fs.remove"));
        let forbidden = own.matches.iter().any(|m| matches!(m.action, Action::Deny | Action::Ask));
        match parent.map(|p| self.policy.fs(p, act.perm)) {
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
        is_private(path) && !self.granted_below_private(path)
    }

    /// A project may live below /tmp; the rules speak for it there.
    fn granted_below_private(&self, path: &Path) -> bool {
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

    fn observe(&mut self, what: impl FnOnce() -> Observed<'static>) {
        if let Some(observer) = self.observer.as_mut() {
            observer(what());
        }
    }

    /// What a call would do, to which paths.
    fn acts(&mut self, call: &Call, name: &str) -> Option<Vec<Act>> {
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
            "chmod" | "chown" | "lchown" | "utime" | "utimes" | "setxattr" | "lsetxattr" | "removexattr"
            | "lremovexattr" => one(self.metadata(call, here, a[0])),
            "fchmodat" | "fchmodat2" | "fchownat" | "futimesat" => one(self.metadata(call, a[0] as i32, a[1])),
            "utimensat" if a[1] != 0 => one(self.metadata(call, a[0] as i32, a[1])),
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
        let shown = !is_private(&path) || self.granted_below_private(&path);
        if !shown || !exists(&path) {
            return None;
        }
        if self.watch.looks {
            self.observe(|| Observed::Looked(named));
            return None;
        }
        let text = read_string(call.tid, address, LONGEST_PATH)?;
        if self.resolver.open(call.tid, dirfd, &text).is_ok() {
            return None;
        }
        let perm = if path.is_dir() { Perm::ReadDir } else { Perm::ReadFile };
        let decision = self.policy.fs(&path, perm);
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
        if self.watch.looks {
            self.last_named = self.resolver.named(call.tid, dirfd, text);
        }
        self.resolver.resolve(call.tid, dirfd, text, last)
    }

    fn act(&mut self, call: &Call, dirfd: i32, address: u64, op: &'static str, perm: Perm) -> Option<Act> {
        let path = self.path(call, dirfd, address, Last::Name)?;
        Some(Act { op, perm, path, fresh: op == "fs.create", named: self.last_named.take(), there: None })
    }

    /// Landlock has no right for it; a place that may be written may have its metadata changed.
    fn metadata(&mut self, call: &Call, dirfd: i32, address: u64) -> Option<Act> {
        let path = self.path(call, dirfd, address, Last::Follow)?;
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
        let from = self.path(call, from.0, from.1, Last::Name).filter(|p| exists(p) || is_private(p))?;
        let to = self.path(call, to.0, to.1, Last::Name)?;
        let mut acts = vec![Act::create(make_perm(&from), to.clone(), true)];
        acts.extend(refer(&from, &to));
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
        let from = self.path(call, from.0, from.1, Last::Name).filter(|p| exists(p) || is_private(p))?;
        let to = self.path(call, to.0, to.1, Last::Name)?;
        let mut acts = vec![Act::remove(&from), Act::create(make_perm(&from), to.clone(), false)];
        if flags & EXCHANGE != 0 {
            acts.extend([Act::remove(&to), Act::create(make_perm(&to), from.clone(), false)]);
        }
        acts.extend(refer(&from, &to));
        Some(acts)
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
            return None;
        }
        let found = std::fs::symlink_metadata(&path).ok();
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
            let is_dir = flags & O_DIRECTORY != 0 || found.is_some_and(|m| m.is_dir());
            add("fs.read", if is_dir { Perm::ReadDir } else { Perm::ReadFile });
        }
        Some(acts)
    }
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

/// Places that are the guest's own, or the kernel's for it.
pub fn is_private(path: &Path) -> bool {
    PRIVATE.iter().any(|own| path.starts_with(own))
}

/// Shells and compilers look for a program in every directory of PATH. A name that is nowhere on the host, and not in a
/// place of the guest's own, is no refusal. No link is followed here: the guest may have put it there, and where it leads is
/// a question for the guest's own root.
fn is_nowhere(name: &[u8]) -> bool {
    let path = Path::new(OsStr::from_bytes(name));
    let look = || openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    path.is_absolute() && !is_private(path) && matches!(look(), Err(Errno::NOENT))
}

fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Something that would fail outside just the same: a file that is not there, a place to put it that is not there.
fn is_own_failure(act: &Act) -> bool {
    let there = || act.there.unwrap_or_else(|| exists(&act.path));
    match act.op {
        // What exists already is told so, by the kernel; a rename may replace it.
        "fs.create" => (act.fresh && there()) || !act.path.parent().is_some_and(Path::is_dir),
        "fs.write" if act.fresh => !there() && !act.path.parent().is_some_and(Path::is_dir),
        _ => !there(),
    }
}
