//! A first process that stays: it starts what it is told to, for as long as its supervisor lives. Each command gets a shepherd,
//! a copy of us that starts it, takes in what it orphans, and ends when all of that is gone. The guest has the same user as
//! its shepherds and can kill them; whatever one leaves behind comes to us, and is killed. Raw calls only, as in `child`.

use crate::child::{self, close, exit, open_terminal, send};
use crate::first::{self, Realm, account, for_each_child, signal_all};
use crate::job::{HANDLES, MOST_JOBS, Packed, Told};
use crate::raw::kernel;
use crate::spawn::{Command, Message, Report};
use std::ffi::{CStr, c_char};
use std::os::fd::RawFd;

/// Takes the three standard descriptors, so that nothing that is handed to us gets their numbers; where signals are noted.
pub(crate) fn prepare() -> Result<RawFd, i32> {
    let all = u64::MAX;
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the address of a local with its true length, and numbers. All signals are blocked since before we were born.
    unsafe {
        let signals = kernel!(SYS_signalfd4, -1i32, &raw const all, 8, flags)?;
        for standard in 0..3 {
            kernel!(SYS_dup3, signals, standard, 0)?;
        }
        Ok(signals)
    }
}

/// Starts what it is told to, until the line to the supervisor ends; and with it everything inside.
pub(crate) fn serve(control: RawFd, signals: RawFd) -> ! {
    keep_only(control, signals);
    let mut flock = Flock { all: [Sheep::NONE; _], strays: false, rounds: 0, held: false };
    loop {
        let ask = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut asked = [ask(control), ask(signals)];
        // SAFETY: a list that outlives the call, with its true length; no time limit, no mask.
        let _ = unsafe { kernel!(SYS_ppoll, asked.as_mut_ptr(), asked.len(), 0, 0, 0) };
        if asked[1].revents != 0 {
            forget_signals(signals);
            flock.collect();
        }
        if asked[0].revents != 0 {
            hear(control, signals, &mut flock);
        }
    }
}

/// The numbers below three stay taken.
fn keep_only(control: RawFd, signals: RawFd) {
    let (low, high) = (control.min(signals), control.max(signals));
    for (from, to) in [(3, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
        if from <= to {
            // SAFETY: closes descriptors of this process alone.
            let _ = unsafe { kernel!(SYS_close_range, from, to, 0) };
        }
    }
}

/// What the guest sends us has no meaning, but it takes room until it is taken.
fn forget_signals(signals: RawFd) {
    let mut taken = std::mem::MaybeUninit::<[libc::signalfd_siginfo; 16]>::uninit();
    let size = size_of_val(&taken);
    // SAFETY: a buffer with its true length, which nobody reads.
    while unsafe { kernel!(SYS_read, signals, taken.as_mut_ptr(), size) } == Ok(size as i32) {}
}

/// Takes one order and has a shepherd carry it out.
fn hear(control: RawFd, signals: RawFd, flock: &mut Flock) {
    let Some((told, handles)) = receive(control) else { return };
    let [packed, line, stdio @ ..] = handles;
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    let born = match flock.has_room() {
        // SAFETY: no stack is given, so this is a fork; we have one thread. The kernel writes to a local.
        true => unsafe { kernel!(SYS_clone, flags, 0, &raw mut pidfd, 0, 0) },
        false => Err(libc::EAGAIN),
    };
    match born {
        Ok(0) => {
            close(control);
            close(signals);
            tend(&told, packed, stdio, line)
        }
        Ok(pid) => {
            let _ = send(line, &Report { message: Message::Born, ..Report::default() }, &[pidfd]);
            flock.add(pid, line);
        }
        Err(errno) => {
            let (message, step) = (Message::ExecFailed, first::BEFORE_EXEC);
            let _ = send(line, &Report { message, step, errno, ..Report::default() }, &[]);
            close(line);
        }
    }
    for fd in [packed, pidfd].into_iter().chain(stdio).filter(|fd| *fd >= 0) {
        close(fd);
    }
}

/// An order with its handles; none when it is not whole.
fn receive(control: RawFd) -> Option<(Told, [RawFd; HANDLES])> {
    #[repr(C, align(8))]
    struct Ancillary([u8; 16 + 4 * HANDLES + 16]);
    let mut space = Ancillary([0; _]);
    let mut told = std::mem::MaybeUninit::<Told>::zeroed();
    let mut handles = [-1; HANDLES];
    // SAFETY: all buffers are locals with their true lengths, and the control message is walked with the kernel's own macros.
    // Any bytes make an order, and zeroed is one.
    let (told, whole) = unsafe {
        let mut part = libc::iovec { iov_base: told.as_mut_ptr().cast(), iov_len: size_of::<Told>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.0.as_mut_ptr().cast();
        message.msg_controllen = space.0.len() as _;
        let got = match kernel!(SYS_recvmsg, control, &raw mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) {
            Err(libc::EAGAIN | libc::EINTR) => return None,
            // The supervisor is gone; so are we, and all that is ours.
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
        (told.assume_init(), got == size_of::<Told>() && message.msg_flags & libc::MSG_CTRUNC == 0)
    };
    if whole && handles[1] >= 0 {
        return Some((told, handles));
    }
    // Nobody answers; that its line ends is what the supervisor sees.
    handles.into_iter().filter(|fd| *fd >= 0).for_each(close);
    None
}

/// The life of a shepherd. The command itself says that it begins; from then on we can be killed.
fn tend(told: &Told, packed: RawFd, stdio: [RawFd; 3], line: RawFd) -> ! {
    match start(told, packed, stdio, line) {
        Ok(pid) => {
            child::close_all_but(line);
            first::reap(pid, Realm::Flock, line)
        }
        Err((step, errno)) => {
            let report = Report { message: Message::ExecFailed, step, errno, ..Report::default() };
            let _ = send(line, &report, &[]);
            exit(0)
        }
    }
}

fn start(told: &Told, packed: RawFd, stdio: [RawFd; 3], line: RawFd) -> Result<i32, (u32, i32)> {
    let before = |errno| (first::BEFORE_EXEC, errno);
    // SAFETY: numbers only.
    unsafe { kernel!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.map_err(before)?;
    let mut command = unpack(told, packed, stdio).map_err(before)?;
    let (master, slave) = match told.terminal {
        0 => (-1, -1),
        _ => open_terminal(c"/dev/pts/ptmx", told.rows, told.columns).map_err(before)?,
    };
    command.told = Some((line, master));
    first::start(&command, slave)
}

/// The command as it lies in the file: all of it, with offsets that become addresses here.
fn unpack(told: &Told, packed: RawFd, stdio: [RawFd; 3]) -> Result<Command, i32> {
    let (size, access) = (told.size as usize, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a private mapping of as much as the supervisor says there is, wherever the kernel likes; never unmapped. The
    // kernel's own answer is not an error number here, so it is looked at as it is.
    let base = unsafe {
        let words = [libc::SYS_mmap as usize, 0, size, access as usize, libc::MAP_PRIVATE as usize, packed as usize, 0];
        crate::raw::call(words)
    };
    if (-4095..0).contains(&base) {
        return Err(-base as i32);
    }
    let base = base as usize as *mut u8;
    // SAFETY: the supervisor wrote the file and sealed it; each offset is checked against its size before it is used, and all
    // texts end before its end, which is a zero.
    unsafe {
        let head = base.cast::<Packed>().read();
        let text =
            |offset: u64| (offset < told.size).then(|| CStr::from_ptr(base.add(offset as usize).cast::<c_char>()));
        let list = |offset: u64, count: u64| -> Option<&'static [*const c_char]> {
            let end = count.checked_add(1)?.checked_mul(8)?.checked_add(offset)?;
            (end <= told.size && offset.is_multiple_of(8)).then_some(())?;
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
        command.cwd = Some(text(head.cwd).ok_or(libc::EINVAL)?);
        command.umask = told.umask;
        command.open_files = (told.open_files != u64::MAX).then_some(told.open_files);
        command.start_mark = told.start_mark;
        Ok(command)
    }
}

/// One shepherd, and our end of its line: should it be killed, we speak for it.
#[derive(Clone, Copy)]
struct Sheep {
    pid: i32,
    line: RawFd,
    /// It was killed, and this is what it and those whom it collected used.
    lost: Option<(u64, u64)>,
}

impl Sheep {
    const NONE: Sheep = Sheep { pid: 0, line: -1, lost: None };
}

struct Flock {
    all: [Sheep; MOST_JOBS],
    /// There may be children of ours that are no shepherds.
    strays: bool,
    /// How often in a row there were.
    rounds: u32,
    /// Everybody was stopped, because they were too many; or may have been by one who is gone.
    held: bool,
}

impl Flock {
    fn has_room(&self) -> bool {
        self.all.iter().any(|sheep| sheep.pid == 0)
    }

    fn add(&mut self, pid: i32, line: RawFd) {
        match self.all.iter_mut().find(|sheep| sheep.pid == 0) {
            Some(free) => *free = Sheep { pid, line, lost: None },
            None => close(line),
        }
    }

    /// Collects whoever is gone, and ends what those leave behind who were killed.
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
            let shepherd = self.all.iter_mut().find(|sheep| sheep.pid == pid && sheep.lost.is_none());
            match shepherd {
                // It had its say.
                Some(sheep) if status == 0 => {
                    close(sheep.line);
                    *sheep = Sheep::NONE;
                }
                Some(sheep) => {
                    let used = account(Message::Lost, 0, &usage);
                    sheep.lost = Some((used.cpu_us, used.max_rss_kb));
                    self.strays = true;
                    // It may have stopped everybody to end a tree that forks, and can let nobody go on any more.
                    self.held = true;
                }
                None => self.strays = true,
            }
        }
        if self.strays {
            self.end_strays();
        }
    }

    /// Kills children that are no shepherds. The end of each calls us again, and what it leaves behind is ours by then.
    fn end_strays(&mut self) {
        /// Who is still there after so many rounds forks faster than it is killed.
        const MANY: u32 = 32;
        self.rounds += 1;
        if self.rounds.is_multiple_of(MANY) {
            signal_all(libc::SIGSTOP);
            self.held = true;
        }
        let mut strays = 0;
        let told = for_each_child(|pid| {
            if !self.all.iter().any(|sheep| sheep.pid == pid && sheep.lost.is_none()) {
                strays += 1;
                // SAFETY: our own child, not reaped yet, so the number can mean nobody else.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        });
        if told.is_none() {
            // Nobody can be told from anybody.
            signal_all(libc::SIGKILL);
        }
        if strays > 0 || told.is_none() {
            return;
        }
        (self.strays, self.rounds) = (false, 0);
        if std::mem::take(&mut self.held) {
            signal_all(libc::SIGCONT);
        }
        for sheep in self.all.iter_mut() {
            if let Some((cpu_us, max_rss_kb)) = sheep.lost {
                let report = Report { message: Message::Lost, cpu_us, max_rss_kb, ..Report::default() };
                let _ = send(sheep.line, &report, &[]);
                close(sheep.line);
                *sheep = Sheep::NONE;
            }
        }
    }
}
