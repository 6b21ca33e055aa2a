//! Pid 1 of a live sandbox: starts jobs for as long as its supervisor lives. Each job gets a shepherd, a fork of pid 1
//! that starts the command, reaps its orphans, and ends when the whole tree is gone. The guest has the same user as its
//! shepherds and can kill them; processes that a killed shepherd leaves behind are reparented to pid 1, which kills
//! them. Raw calls only, as in `child`.

use crate::command::Command;
use crate::control::{Message, Report, send};
use crate::init::{self, KillScope, for_each_child, signal_all, usage_report};
use crate::job::{CommandHeader, HANDLES, JobMessage, MOST_INHERITED, MOST_JOBS};
use crate::raw::{close, close_all_but, exit, kernel};
use crate::terminal::open_terminal;
use std::ffi::{CStr, c_char};
use std::os::fd::RawFd;

/// Occupies the three standard descriptors, so that no received descriptor gets their numbers; returns a signalfd.
pub(crate) fn prepare() -> Result<RawFd, i32> {
    let all = u64::MAX;
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the address of a local with its true length, and numbers. All signals were blocked before this process
    // was cloned.
    unsafe {
        let signals = kernel!(SYS_signalfd4, -1i32, &raw const all, 8, flags)?;
        for standard in 0..3 {
            kernel!(SYS_dup3, signals, standard, 0)?;
        }
        Ok(signals)
    }
}

/// Starts jobs until the control socket closes; pid 1 then exits, and every process inside with it.
pub(crate) fn serve(control: RawFd, signals: RawFd) -> ! {
    keep_only(control, signals);
    let mut shepherds = Shepherds { all: [Shepherd::NONE; _], has_strays: false, rounds: 0, all_stopped: false };
    loop {
        let ask = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut asked = [ask(control), ask(signals)];
        // SAFETY: a list that outlives the call, with its true length; no time limit, no mask.
        let _ = unsafe { kernel!(SYS_ppoll, asked.as_mut_ptr(), asked.len(), 0, 0, 0) };
        if asked[1].revents != 0 {
            drain_signals(signals);
            shepherds.collect();
        }
        if asked[0].revents != 0 {
            start_job(control, signals, &mut shepherds);
        }
    }
}

/// Closes all other descriptors; the numbers below three stay taken.
fn keep_only(control: RawFd, signals: RawFd) {
    let (low, high) = (control.min(signals), control.max(signals));
    for (from, to) in [(3, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
        if from <= to {
            // SAFETY: closes descriptors of this process alone.
            let _ = unsafe { kernel!(SYS_close_range, from, to, 0) };
        }
    }
}

/// Drains the signalfd. Signals from the guest have no meaning, but fill the queue until they are read.
fn drain_signals(signals: RawFd) {
    let mut taken = std::mem::MaybeUninit::<[libc::signalfd_siginfo; 16]>::uninit();
    let size = size_of_val(&taken);
    // SAFETY: a buffer with its true length, whose contents are ignored.
    while unsafe { kernel!(SYS_read, signals, taken.as_mut_ptr(), size) } == Ok(size as i32) {}
}

/// Receives one job and forks a shepherd for it.
fn start_job(control: RawFd, signals: RawFd, shepherds: &mut Shepherds) {
    let Some((job, handles)) = receive(control) else { return };
    let [packed, line, stdin, stdout, stderr, inherit @ ..] = handles;
    let stdio = [stdin, stdout, stderr];
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    let born = match shepherds.has_room() {
        // SAFETY: no stack is given, so this is a fork; we have one thread. The kernel writes to a local.
        true => unsafe { kernel!(SYS_clone, flags, 0, &raw mut pidfd, 0, 0) },
        false => Err(libc::EAGAIN),
    };
    match born {
        Ok(0) => {
            close(control);
            close(signals);
            run_shepherd(&job, packed, stdio, inherit, line)
        }
        Ok(pid) => {
            let _ = send(line, &Report { message: Message::ShepherdStarted, ..Report::default() }, &[pidfd]);
            shepherds.add(pid, line);
        }
        Err(errno) => {
            let (message, step) = (Message::ExecFailed, init::BEFORE_EXEC);
            let _ = send(line, &Report { message, step, errno, ..Report::default() }, &[]);
            close(line);
        }
    }
    for fd in [packed, pidfd].into_iter().chain(stdio).chain(inherit).filter(|fd| *fd >= 0) {
        close(fd);
    }
}

/// Receives a job with its descriptors; `None` if it is incomplete.
fn receive(control: RawFd) -> Option<(JobMessage, [RawFd; HANDLES])> {
    #[repr(C, align(8))]
    struct Ancillary([u8; 16 + 4 * HANDLES + 16]);
    let mut space = Ancillary([0; _]);
    let mut job = std::mem::MaybeUninit::<JobMessage>::zeroed();
    let mut handles = [-1; HANDLES];
    // SAFETY: all buffers are locals with their true lengths, and the control message is walked with the kernel's own macros.
    // Any bytes are a valid job message, also zeroes.
    let (job, whole) = unsafe {
        let mut part = libc::iovec { iov_base: job.as_mut_ptr().cast(), iov_len: size_of::<JobMessage>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.0.as_mut_ptr().cast();
        message.msg_controllen = space.0.len() as _;
        let got = match kernel!(SYS_recvmsg, control, &raw mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) {
            Err(libc::EAGAIN | libc::EINTR) => return None,
            // The supervisor is gone, so the whole guest ends.
            Ok(0) | Err(_) => exit(0),
            Ok(got) => got as usize,
        };
        let header = libc::CMSG_FIRSTHDR(&message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
            let slots = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, handle) in handles.iter_mut().enumerate().take(count) {
                *handle = slots.add(i).read_unaligned();
            }
        }
        (job.assume_init(), got == size_of::<JobMessage>() && message.msg_flags & libc::MSG_CTRUNC == 0)
    };
    if whole && handles[1] >= 0 {
        return Some((job, handles));
    }
    // No reply is sent; the supervisor sees that the job's socket closes.
    handles.into_iter().filter(|fd| *fd >= 0).for_each(close);
    None
}

/// Main function of a shepherd. The command itself reports that it starts; from then on the guest can kill the
/// shepherd.
fn run_shepherd(job: &JobMessage, packed: RawFd, stdio: [RawFd; 3], inherit: Inherited, line: RawFd) -> ! {
    match start(job, packed, stdio, inherit, line) {
        Ok(pid) => {
            close_all_but(line);
            init::reap(pid, KillScope::SharedNamespace, line)
        }
        Err((step, errno)) => {
            let report = Report { message: Message::ExecFailed, step, errno, ..Report::default() };
            let _ = send(line, &report, &[]);
            exit(0)
        }
    }
}

type Inherited = [RawFd; MOST_INHERITED];

fn start(
    job: &JobMessage,
    packed: RawFd,
    stdio: [RawFd; 3],
    inherit: Inherited,
    line: RawFd,
) -> Result<i32, (u32, i32)> {
    let before = |errno| (init::BEFORE_EXEC, errno);
    // SAFETY: numbers only.
    unsafe { kernel!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.map_err(before)?;
    let mut command = unpack(job, packed, stdio).map_err(before)?;
    let (master, slave) = match job.terminal {
        0 => (-1, -1),
        _ => open_terminal(c"/dev/pts/ptmx", job.rows, job.columns).map_err(before)?,
    };
    command.start_report = Some((line, master));
    command.inherit = inherit;
    init::start(&command, slave)
}

/// Maps the command file and converts its offsets to addresses.
fn unpack(job: &JobMessage, packed: RawFd, stdio: [RawFd; 3]) -> Result<Command, i32> {
    let (size, access) = (job.size as usize, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a private mapping of the size that the supervisor gives, at any address; never unmapped. The result is an
    // address rather than a number, so it is checked here.
    let base = unsafe {
        let words = [libc::SYS_mmap as usize, 0, size, access as usize, libc::MAP_PRIVATE as usize, packed as usize, 0];
        crate::raw::call(words)
    };
    if (-4095..0).contains(&base) {
        return Err(-base as i32);
    }
    let base = base as usize as *mut u8;
    // SAFETY: the supervisor wrote the file and sealed it; each offset is checked against its size before it is used,
    // and all strings end before its end, which is a zero.
    unsafe {
        let head = base.cast::<CommandHeader>().read();
        let text =
            |offset: u64| (offset < job.size).then(|| CStr::from_ptr(base.add(offset as usize).cast::<c_char>()));
        let list = |offset: u64, count: u64| -> Option<&'static [*const c_char]> {
            let end = count.checked_add(1)?.checked_mul(8)?.checked_add(offset)?;
            (end <= job.size && offset.is_multiple_of(8)).then_some(())?;
            let (first, count) = (base.add(offset as usize).cast::<usize>(), count as usize);
            for at in 0..count {
                let word = first.add(at);
                (*word < size).then_some(())?;
                *word += base as usize;
            }
            *first.add(count) = 0;
            Some(std::slice::from_raw_parts(first.cast(), count + 1))
        };
        let found = || Some((text(head.path)?, list(head.argv, head.arguments)?, list(head.envp, head.variables)?));
        let (path, argv, envp) = found().ok_or(libc::EINVAL)?;
        let mut command = Command::at(path, argv, envp, stdio);
        command.cwd = Some(text(head.cwd).ok_or(libc::EINVAL)?.into());
        command.umask = job.umask;
        command.open_files = (job.open_files != u64::MAX).then_some(job.open_files);
        command.start_mark = job.start_mark;
        Ok(command)
    }
}

/// A shepherd, and our copy of its control socket: if it is killed, pid 1 reports in its place.
#[derive(Clone, Copy)]
struct Shepherd {
    pid: i32,
    line: RawFd,
    /// Set if the shepherd was killed: the cpu time and peak memory of it and the processes that it reaped.
    lost: Option<(u64, u64)>,
}

impl Shepherd {
    const NONE: Shepherd = Shepherd { pid: 0, line: -1, lost: None };
}

struct Shepherds {
    all: [Shepherd; MOST_JOBS],
    /// Pid 1 may have children that are not shepherds.
    has_strays: bool,
    /// Consecutive rounds with such children.
    rounds: u32,
    /// Every process was stopped by SIGSTOP, because a tree forked faster than it was killed; or may have been by a
    /// shepherd that is gone.
    all_stopped: bool,
}

impl Shepherds {
    fn has_room(&self) -> bool {
        self.all.iter().any(|shepherd| shepherd.pid == 0)
    }

    fn add(&mut self, pid: i32, line: RawFd) {
        match self.all.iter_mut().find(|shepherd| shepherd.pid == 0) {
            Some(free) => *free = Shepherd { pid, line, lost: None },
            None => close(line),
        }
    }

    /// Reaps ended children, and kills processes that killed shepherds leave behind.
    fn collect(&mut self) {
        loop {
            let mut status = 0;
            let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
            let flags = libc::WNOHANG | libc::__WALL;
            // SAFETY: writes into locals; zeroed is a valid value of both.
            let (pid, usage) = unsafe {
                let pid = kernel!(SYS_wait4, -1i32, &raw mut status, flags, usage.as_mut_ptr());
                (pid, usage.assume_init())
            };
            let Ok(pid @ 1..) = pid else { break };
            let shepherd = self.all.iter_mut().find(|shepherd| shepherd.pid == pid && shepherd.lost.is_none());
            match shepherd {
                // The shepherd has sent its own report.
                Some(shepherd) if status == 0 => {
                    close(shepherd.line);
                    *shepherd = Shepherd::NONE;
                }
                Some(shepherd) => {
                    let used = usage_report(Message::Lost, 0, &usage);
                    shepherd.lost = Some((used.cpu_us, used.max_rss_kb));
                    self.has_strays = true;
                    // The shepherd may have stopped all processes to kill a tree that forks, and can no longer continue
                    // them.
                    self.all_stopped = true;
                }
                None => self.has_strays = true,
            }
        }
        if self.has_strays {
            self.end_strays();
        }
    }

    /// Kills children that are not shepherds. The end of each raises SIGCHLD, and its orphans are our children by then.
    fn end_strays(&mut self) {
        /// A process that survives so many rounds forks faster than it is killed.
        const STOP_AFTER_ROUNDS: u32 = 32;
        self.rounds += 1;
        if self.rounds.is_multiple_of(STOP_AFTER_ROUNDS) {
            signal_all(libc::SIGSTOP);
            self.all_stopped = true;
        }
        let mut strays = 0;
        let children = for_each_child(|pid| {
            if !self.all.iter().any(|shepherd| shepherd.pid == pid && shepherd.lost.is_none()) {
                strays += 1;
                // SAFETY: our own child, not reaped yet, so the pid cannot be reused.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        });
        if children.is_none() {
            // Shepherds cannot be distinguished from strays.
            signal_all(libc::SIGKILL);
        }
        if strays > 0 || children.is_none() {
            return;
        }
        (self.has_strays, self.rounds) = (false, 0);
        if std::mem::take(&mut self.all_stopped) {
            signal_all(libc::SIGCONT);
        }
        for shepherd in self.all.iter_mut() {
            if let Some((cpu_us, max_rss_kb)) = shepherd.lost {
                let report = Report { message: Message::Lost, cpu_us, max_rss_kb, ..Report::default() };
                let _ = send(shepherd.line, &report, &[]);
                close(shepherd.line);
                *shepherd = Shepherd::NONE;
            }
        }
    }
}
