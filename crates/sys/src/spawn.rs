//! Starting an enclosure: one clone into namespaces, new or made ahead, then messages over a socket until it ends.
//! The process that calls this must have one thread; the copy would otherwise hold locks that nobody releases.

use crate::ahead::Ahead;
pub use crate::child::MOST_HANDLES;
use crate::diag::Sockets;
use crate::net::Doors;
use crate::op::{Op, Place};
use crate::raw::kernel;
use crate::{CallError, arena, child, doors, errno};
use std::ffi::{CStr, c_char};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// What pid 1 tells the supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Message {
    #[default]
    Nothing = 0,
    /// A step of the setup failed: `step`, `errno`.
    StepFailed = 1,
    /// Setup is over; the handles come along.
    Ready = 2,
    /// The command could not be executed: `errno`.
    ExecFailed = 3,
    /// The command ended and the tree is gone: `status`, `cpu_us`, `max_rss_kb`.
    Ended = 4,
    /// Of one who stays: there is a shepherd, whose handle comes along.
    Born = 5,
    /// The command begins; `status` is its number inside. What tells whether it could comes along, and its terminal.
    Started = 6,
    /// The shepherd was killed, and what it watched over is gone, too: `cpu_us`, `max_rss_kb`.
    Lost = 7,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Report {
    pub message: Message,
    pub step: u32,
    pub errno: i32,
    pub status: i32,
    pub handles: u64,
    pub cpu_us: u64,
    pub max_rss_kb: u64,
}

/// What comes with `Message::Ready`, as far as the steps made it.
#[derive(Debug, Default)]
pub struct Handles {
    /// Where the seccomp filter asks.
    pub listener: Option<OwnedFd>,
    pub terminal: Option<OwnedFd>,
    /// Beside doors, where the kernel can be asked.
    pub sockets: Option<Sockets>,
    pub places: Places,
    pub doors: Option<Doors>,
}

/// Handles on places inside.
#[derive(Debug, Default)]
pub struct Places {
    pub scratch: Option<OwnedFd>,
    pub workspace: Option<OwnedFd>,
    pub tmp: Option<OwnedFd>,
    pub root: Option<OwnedFd>,
    /// Those of `Place::Asked`, by their numbers.
    pub asked: Vec<Option<OwnedFd>>,
}

impl Places {
    pub(crate) fn from(opened: [Option<OwnedFd>; Place::COUNT]) -> Places {
        let [scratch, workspace, tmp, root, asked @ ..] = opened;
        Places { scratch, workspace, tmp, root, asked: asked.into() }
    }

    /// Each from here, or else from there.
    pub fn or(self, other: Places) -> Places {
        Places {
            scratch: self.scratch.or(other.scratch),
            workspace: self.workspace.or(other.workspace),
            tmp: self.tmp.or(other.tmp),
            root: self.root.or(other.root),
            asked: if self.asked.iter().any(Option::is_some) { self.asked } else { other.asked },
        }
    }
}

/// Handles that a report names by a bit each: three, the places, and the doors that stand everywhere.
pub(crate) const NAMED: usize = 3 + Place::COUNT + 2 * doors::EACH;
/// The most that come with a report; those past the named ones are doors on loopback.
pub(crate) const MOST_KEPT: usize = NAMED + doors::MOST_LOOPBACK;

/// Room for one control message with all of them.
#[repr(C, align(8))]
pub(crate) struct KeptSpace(pub [u8; 16 + 4 * MOST_KEPT + 8]);

/// The program to run inside, with everything the kernel needs laid out where the first process sees it.
#[derive(Clone, Copy)]
pub struct Command {
    pub(crate) path: &'static CStr,
    argv: &'static [*const c_char],
    envp: &'static [*const c_char],
    pub(crate) stdio: [RawFd; 3],
    /// The caller's file creation mask, which the command gets back.
    pub umask: u32,
    /// Most descriptors in each of its processes.
    pub open_files: Option<u64>,
    /// The same as in the filter's `Watch`.
    pub start_mark: [u32; 2],
    /// The guest has a pid namespace, whose end is the end of all in it.
    pub own_pids: bool,
    /// Where it begins, unless where the first process stands.
    pub(crate) cwd: Option<&'static CStr>,
    /// The line to tell that it begins, and what of its terminal goes along; without, its parent tells.
    pub(crate) told: Option<(RawFd, RawFd)>,
    /// There is no command: the first process stays and starts what it is told to; see `job`.
    pub(crate) stays: bool,
}

/// Sent to the first process of a guest without a pid namespace, or to a shepherd: end the whole tree, then yourself.
pub const END_SIGNAL: i32 = 62;
/// Sent to a shepherd in place of the two signals that it cannot pass on because it would feel them itself.
pub(crate) const KILL_SIGNAL: i32 = 61;
pub(crate) const STOP_SIGNAL: i32 = 60;

impl Command {
    /// `stdio` are the descriptors the command gets as 0, 1 and 2 unless the steps open a terminal for it.
    pub fn new<T: AsRef<[u8]>>(path: &[u8], argv: &[T], envp: &[T], stdio: [RawFd; 3]) -> Command {
        let list = |strings: &[T]| {
            let pointers = strings.iter().map(|s| arena::text(s).as_ptr()).chain([std::ptr::null()]);
            arena::list(&pointers.collect::<Vec<_>>())
        };
        Command {
            path: arena::text(path),
            argv: list(argv),
            envp: list(envp),
            stdio,
            umask: 0o022,
            open_files: None,
            start_mark: [0; 2],
            own_pids: true,
            cwd: None,
            told: None,
            stays: false,
        }
    }

    /// None yet: the first process waits to be told of some.
    pub fn none() -> Command {
        Command { stays: true, ..Command::new::<&[u8]>(b"", &[], &[], [-1; 3]) }
    }

    /// A command whose texts and lists lie elsewhere; the lists end with null.
    pub(crate) fn at(
        path: &'static CStr,
        argv: &'static [*const c_char],
        envp: &'static [*const c_char],
        stdio: [RawFd; 3],
    ) -> Command {
        let (umask, open_files, start_mark) = (0o022, None, [0; 2]);
        let (cwd, told, stays) = (None, None, false);
        Command { path, argv, envp, stdio, umask, open_files, start_mark, own_pids: true, cwd, told, stays }
    }

    pub(crate) fn argv_pointers(&self) -> *const *const c_char {
        self.argv.as_ptr()
    }

    pub(crate) fn envp_pointers(&self) -> *const *const c_char {
        self.envp.as_ptr()
    }
}

/// Namespaces, as `clone3(2)` takes them.
pub const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
pub const NEW_MOUNT: u64 = libc::CLONE_NEWNS as u64;
pub const NEW_PID: u64 = libc::CLONE_NEWPID as u64;
pub const NEW_IPC: u64 = libc::CLONE_NEWIPC as u64;
pub const NEW_UTS: u64 = libc::CLONE_NEWUTS as u64;
pub const NEW_NET: u64 = libc::CLONE_NEWNET as u64;
pub const NEW_TIME: u64 = 0x80;
pub const NEW_CGROUP: i32 = libc::CLONE_NEWCGROUP;

const INTO_CGROUP: u64 = 0x2_0000_0000;

#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A guest's pid 1 as the supervisor sees it.
pub struct Spawned {
    pub pid: i32,
    pub pidfd: OwnedFd,
    control: Control,
}

/// A guest's whole list of steps. From `own` on they are the first process's own; those before can be walked by others
/// where it was born ahead.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    pub ops: &'a [Op],
    pub own: usize,
    /// What its `Attach` steps put in place. One that was not born ahead waits for these to be given.
    pub mounts: &'a [OwnedFd],
}

impl<'a> Walk<'a> {
    /// Steps for one who walks them all.
    pub fn alone(ops: &'a [Op]) -> Walk<'a> {
        Walk { ops, own: 0, mounts: &[] }
    }
}

/// Starts a guest: a first process that walks its steps and then starts `command`. One that was born `ahead` is given
/// them; otherwise one is cloned with `namespaces`, inside `group` where one is given. The answer says which it is:
/// whoever is born ahead has its ids mapped and its mounts.
pub fn spawn(
    namespaces: u64,
    ahead: Option<&mut Ahead>,
    group: Option<BorrowedFd<'_>>,
    walk: Walk<'_>,
    command: Command,
) -> Result<(Spawned, bool), CallError> {
    let ops = walk.ops;
    if let Some(spawned) = ahead.and_then(|ahead| ahead.give(walk, command)) {
        return Ok((spawned, true));
    }
    let (ours, theirs) = socket_pair()?;
    let mut birth = Birth { flags: namespaces, group: group.map(|fd| fd.as_raw_fd()), pid: 0, pidfd: -1 };
    let mask = block_signals();
    let born = birth.give(0, || {
        // The other end must be closed here, or the supervisor's death would go unnoticed.
        child::close(ours.as_raw_fd());
        child::run(ops, &command, theirs.as_raw_fd())
    });
    restore_signals(&mask);
    born?;
    Ok((birth.spawned(ours), false))
}

/// How the guest's first process is made.
pub(crate) struct Birth {
    pub(crate) flags: u64,
    pub(crate) group: Option<RawFd>,
    /// Filled in by the kernel before the process runs.
    pub(crate) pid: i32,
    pub(crate) pidfd: RawFd,
}

impl Birth {
    /// Makes a copy of this process that lives `life`. With `CLONE_PARENT` it is a child of our parent, whose exit
    /// signal it inherits.
    pub(crate) fn give(&mut self, parent: u64, life: impl FnOnce()) -> Result<(), CallError> {
        const TOLD: u64 = (libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID) as u64;
        let args = CloneArgs {
            flags: self.flags | parent | TOLD | if self.group.is_some() { INTO_CGROUP } else { 0 },
            pidfd: &raw mut self.pidfd as u64,
            parent_tid: &raw mut self.pid as u64,
            exit_signal: if parent == 0 { libc::SIGCHLD as u64 } else { 0 },
            cgroup: self.group.map_or(0, |fd| fd as u64),
            ..CloneArgs::default()
        };
        // SAFETY: no stack is given, so this is a fork; nobody else runs in our memory but those who take no lock that
        // the copy needs: it allocates nothing. What the kernel writes to outlives the call.
        match unsafe { kernel!(SYS_clone3, &raw const args, size_of::<CloneArgs>()) } {
            Ok(0) => {
                life();
                child::exit(1)
            }
            Ok(_) => Ok(()),
            Err(errno) => Err(CallError { call: "clone3", errno }),
        }
    }

    /// The newborn, once it was given.
    pub(crate) fn spawned(&self, control: OwnedFd) -> Spawned {
        // SAFETY: CLONE_PIDFD stored a fresh descriptor, and this is called once.
        let pidfd = unsafe { OwnedFd::from_raw_fd(self.pidfd) };
        Spawned { pid: self.pid, pidfd, control: Control(control) }
    }
}

/// What a first process that was born ahead is told: where its steps and its command are, and how many of the steps
/// are done.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Order {
    pub(crate) ops: *const Op,
    pub(crate) count: usize,
    pub(crate) done: usize,
    pub(crate) command: *const Command,
    /// The processors that it may use from now on, in bytes that count; none when unknown.
    pub(crate) mask: *const u64,
    pub(crate) mask_len: usize,
}

impl Spawned {
    /// What is sent to it.
    pub fn line(&self) -> &Control {
        &self.control
    }

    /// Where reports arrive; poll it for reading.
    pub fn control(&self) -> &OwnedFd {
        &self.control.0
    }

    pub fn receive(&self) -> Result<Option<(Report, Handles)>, CallError> {
        self.control.receive()
    }
}

/// The line between the supervisor and pid 1.
pub struct Control(pub(crate) OwnedFd);

impl Control {
    /// Tells a first process that was born ahead what it is for.
    pub(crate) fn order(&self, order: &Order) -> Result<(), CallError> {
        let (line, flags) = (self.0.as_raw_fd(), libc::MSG_NOSIGNAL);
        // SAFETY: a structure with its true length; no address.
        match unsafe { kernel!(SYS_sendto, line, &raw const *order, size_of::<Order>(), flags, 0, 0) } {
            // It failed at a step before; its report says at which. Or it was killed, which shows as well.
            Ok(_) | Err(libc::EPIPE | libc::ECONNRESET) => Ok(()),
            Err(errno) => Err(CallError { call: "sendto", errno }),
        }
    }

    /// Lets the copy go on past `AwaitSupervisor`.
    pub fn go(&self) -> Result<(), CallError> {
        let byte = 1u8;
        // SAFETY: one byte from a local.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL) };
        match errno() {
            _ if sent == 1 => Ok(()),
            // As above.
            libc::EPIPE | libc::ECONNRESET => Ok(()),
            errno => Err(CallError { call: "send", errno }),
        }
    }

    /// Hands descriptors to the copy, which waits for them; at most `MOST_HANDLES` in one message.
    pub fn give(&self, handles: &[BorrowedFd<'_>]) -> Result<(), CallError> {
        match self.tell(&[1u8], handles, 0) {
            // As above.
            Err(CallError { errno: libc::EPIPE | libc::ECONNRESET, .. }) => Ok(()),
            other => other,
        }
    }

    /// Sends bytes with descriptors.
    pub(crate) fn tell(&self, bytes: &[u8], handles: &[BorrowedFd<'_>], flags: i32) -> Result<(), CallError> {
        let raw: Vec<RawFd> = handles.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: the macro only computes a size.
        let size = unsafe { libc::CMSG_SPACE(std::mem::size_of_val(raw.as_slice()) as u32) } as usize;
        let mut space = vec![0u64; size.div_ceil(8)];
        // SAFETY: all buffers have their true lengths and outlive the call; `space` is aligned and large enough for one header
        // and all descriptors.
        unsafe {
            let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            if !raw.is_empty() {
                message.msg_control = space.as_mut_ptr().cast();
                message.msg_controllen = size as _;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(std::mem::size_of_val(raw.as_slice()) as u32) as _;
                std::ptr::copy_nonoverlapping(
                    raw.as_ptr().cast(),
                    libc::CMSG_DATA(header),
                    std::mem::size_of_val(raw.as_slice()),
                );
            }
            match libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL | flags) {
                sent if sent == bytes.len() as isize => Ok(()),
                _ => Err(CallError::last("sendmsg")),
            }
        }
    }

    fn receive(&self) -> Result<Option<(Report, Handles)>, CallError> {
        Ok(self.hear()?.map(|(report, received)| (report, sort(report.handles, received))))
    }

    /// The next report with its handles; `None` when the other side is gone.
    pub(crate) fn hear(&self) -> Result<Option<(Report, Vec<OwnedFd>)>, CallError> {
        let mut space = KeptSpace([0; _]);
        let mut report = Report::default();
        let mut raw = [0u8; size_of::<Report>()];
        let mut received = Vec::new();
        // SAFETY: all buffers are locals with their true lengths; the control messages are walked with the kernel's
        // own macros and every descriptor received is owned exactly once.
        unsafe {
            let mut part = libc::iovec { iov_base: raw.as_mut_ptr().cast(), iov_len: raw.len() };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = space.0.as_mut_ptr().cast();
            message.msg_controllen = space.0.len() as _;
            let mut resets = 0;
            let got = loop {
                let got = libc::recvmsg(self.0.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC);
                // An end with our own word unread is told once, before the reports that still wait.
                resets += i32::from(got < 0 && errno() == libc::ECONNRESET);
                if got >= 0 || (errno() != libc::EINTR && resets != 1) {
                    break got;
                }
            };
            if got < 0 {
                return match errno() {
                    libc::ECONNRESET => Ok(None),
                    errno => Err(CallError { call: "recvmsg", errno }),
                };
            }
            let header = libc::CMSG_FIRSTHDR(&message);
            if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let slots = libc::CMSG_DATA(header).cast::<RawFd>();
                received.extend((0..bytes / 4).map(|i| OwnedFd::from_raw_fd(slots.add(i).read_unaligned())));
            }
            if got as usize != raw.len() {
                return Ok(None);
            }
            parse(&raw, &mut report);
        }
        Ok(Some((report, received)))
    }
}

/// Which handle is which: a bit for each that came, in the order of the fields; then doors on loopback.
fn sort(which: u64, received: Vec<OwnedFd>) -> Handles {
    let mut received = received.into_iter();
    let named = |bit: usize| if which & (1 << bit) != 0 { received.next() } else { None };
    let mut slots: Vec<Option<OwnedFd>> = (0..NAMED).map(named).collect();
    let doors = slots.split_off(NAMED - 2 * doors::EACH);
    let mut slots = slots.into_iter();
    let mut next = || slots.next().flatten();
    let doors = Doors::new(doors.into_iter(), || received.collect());
    let (listener, terminal, sockets) = (next(), next(), next().map(Sockets::new));
    Handles { listener, terminal, sockets, places: Places::from(std::array::from_fn(|_| next())), doors }
}

/// Field by field, so that no byte pattern from the other side can make an invalid `Message`.
fn parse(raw: &[u8; size_of::<Report>()], report: &mut Report) {
    let word = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    report.message = match word(0) {
        1 => Message::StepFailed,
        2 => Message::Ready,
        3 => Message::ExecFailed,
        4 => Message::Ended,
        5 => Message::Born,
        6 => Message::Started,
        7 => Message::Lost,
        _ => Message::Nothing,
    };
    report.step = word(4);
    report.errno = word(8) as i32;
    report.status = word(12) as i32;
    report.handles = long(std::mem::offset_of!(Report, handles));
    report.cpu_us = long(std::mem::offset_of!(Report, cpu_us));
    report.max_rss_kb = long(std::mem::offset_of!(Report, max_rss_kb));
}

pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd), CallError> {
    let mut pair = [0; 2];
    // SAFETY: the kernel fills the two descriptors, which are then owned once each.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) < 0 {
            return Err(CallError::last("socketpair"));
        }
        Ok((OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])))
    }
}

/// Pid 1 takes its signals by waiting for them, so they must be blocked before it exists.
fn block_signals() -> libc::sigset_t {
    // SAFETY: local sets, filled before use.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: a mask the kernel gave us.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
