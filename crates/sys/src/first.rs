//! Whoever watches over a command: starts it, reaps what is orphaned, passes signals on, and ends with it. That is the
//! guest's first process, or a shepherd where there are many commands. Raw calls only, as in `child`.

use crate::child::{exit, rlimit, send};
use crate::errno;
use crate::spawn::{Command, END_SIGNAL, KILL_SIGNAL, Message, Report, STOP_SIGNAL};
use std::os::fd::RawFd;

/// Starts the command as a child that shares our memory until it executes, and tells why if it cannot.
pub(crate) fn start(command: &Command, slave: RawFd) -> Result<i32, (u32, i32)> {
    struct Hand<'a> {
        command: &'a Command,
        slave: RawFd,
        failed: Option<(u32, i32)>,
    }
    extern "C" fn body(hand: *mut libc::c_void) -> i32 {
        // SAFETY: the parent waits (CLONE_VFORK) and lends this structure for as long as we share its memory.
        let hand = unsafe { &mut *hand.cast::<Hand>() };
        hand.failed = Some(become_command(hand.command, hand.slave));
        exit(127)
    }
    #[repr(C, align(16))]
    struct Stack([u8; 32 * 1024]);
    // Not filled with anything: every page of it that is touched must first be copied.
    let mut stack = std::mem::MaybeUninit::<Stack>::uninit();
    let mut hand = Hand { command, slave, failed: None };
    // SAFETY: the stack is large enough for `become_command`, lives until the child has executed or ended, and
    // CLONE_VFORK keeps us from touching it meanwhile.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(1).cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(body, top, flags, (&raw mut hand).cast())
    };
    if pid < 0 {
        return Err((BEFORE_EXEC, errno()));
    }
    match hand.failed {
        Some(failure) => Err(failure),
        None => Ok(pid),
    }
}

/// Where starting the command failed.
pub(crate) const AT_EXEC: u32 = 0;
pub(crate) const BEFORE_EXEC: u32 = 1;
pub(crate) const AT_DIRECTORY: u32 = 2;

/// What ends when the command does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Realm {
    /// A pid namespace, of which we are the first.
    Namespace,
    /// Our descendants, on the host itself.
    Descendants,
    /// Our descendants, in a pid namespace with those of others.
    Flock,
}

fn check(result: libc::c_long) -> Result<(), i32> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Returns only when it failed, with where and why.
fn become_command(command: &Command, slave: RawFd) -> (u32, i32) {
    let ready = ready_to_execute(command, slave).and_then(|()| tell(command)).map_err(|errno| (BEFORE_EXEC, errno));
    match ready {
        Ok(told) => {
            let begun = bound(command).map_err(|errno| (BEFORE_EXEC, errno)).and_then(|()| enter(command));
            let failure = begun.err().unwrap_or_else(|| execute(command));
            told.iter().for_each(|told| tell_failure(*told, failure));
            failure
        }
        Err(failure) => failure,
    }
}

/// Returns only when it failed.
fn execute(command: &Command) -> (u32, i32) {
    // SAFETY: pointer lists ended by null that the supervisor built before the clone and that live in our copy of
    // its memory.
    unsafe {
        let (path, [one, two]) = (command.path.as_ptr(), command.start_mark);
        libc::syscall(
            libc::SYS_execve,
            path,
            command.argv_pointers(),
            command.envp_pointers(),
            0usize,
            one as usize,
            two as usize,
        );
    }
    (AT_EXEC, errno())
}

/// Says that the command begins, before it can keep anybody from saying so: it has the same user as its shepherd. What comes
/// along ends when the program runs, or tells why it does not.
fn tell(command: &Command) -> Result<Option<RawFd>, i32> {
    let Some((line, master)) = command.told else { return Ok(None) };
    let mut pair = [-1; 2];
    // SAFETY: the kernel fills both descriptors; a number.
    let pid = unsafe {
        check(libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC).into())?;
        libc::syscall(libc::SYS_getpid) as i32
    };
    let report = Report { message: Message::Started, status: pid, ..Report::default() };
    send(line, &report, &[pair[0], master])?;
    crate::child::close(pair[0]);
    Ok(Some(pair[1]))
}

fn tell_failure(told: RawFd, (step, errno): (u32, i32)) {
    let words = [step, errno as u32];
    // SAFETY: a buffer with its true length.
    unsafe { libc::write(told, words.as_ptr().cast(), size_of_val(&words)) };
}

fn ready_to_execute(command: &Command, slave: RawFd) -> Result<(), i32> {
    // SAFETY: numbers, and descriptors that we own.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        let stdio = if slave >= 0 { [slave; 3] } else { command.stdio };
        for (target, fd) in stdio.iter().enumerate() {
            if *fd >= 0 {
                check(libc::dup2(*fd, target as i32).into())?;
            }
        }
        if slave >= 0 {
            check(libc::ioctl(0, libc::TIOCSCTTY, 0).into())?;
        }
        const CLOSE_ON_EXEC: u32 = 4;
        check(libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, CLOSE_ON_EXEC))?;
        reset_signals();
        libc::umask(command.umask);
    }
    Ok(())
}

/// Only now: what comes before needs descriptors of its own.
fn bound(command: &Command) -> Result<(), i32> {
    match command.open_files {
        Some(most) => rlimit(libc::RLIMIT_NOFILE, most),
        None => Ok(()),
    }
}

fn enter(command: &Command) -> Result<(), (u32, i32)> {
    let Some(cwd) = command.cwd else { return Ok(()) };
    // SAFETY: a C string that outlives the call.
    check(unsafe { libc::chdir(cwd.as_ptr()) }.into()).map_err(|errno| (AT_DIRECTORY, errno))
}

/// Handlers end with the exec. What the caller ignores stays ignored, as it would outside; only what Rust's runtime
/// set in the supervisor is put back.
fn reset_signals() {
    // SAFETY: a default action and an empty mask.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Reaps what is orphaned, passes signals on to the command, and ends with it. When pid 1 ends the kernel kills whatever is
/// left in the namespace.
pub(crate) fn reap(command: i32, realm: Realm, control: RawFd) -> ! {
    loop {
        // SAFETY: a local set, filled before use.
        let signal = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigwaitinfo(&all, std::ptr::null_mut())
        };
        match signal {
            libc::SIGCHLD => collect(command, realm, control),
            END_SIGNAL if realm != Realm::Namespace => finish(libc::SIGKILL, realm, control),
            KILL_SIGNAL if realm == Realm::Flock => forward(command, libc::SIGKILL),
            STOP_SIGNAL if realm == Realm::Flock => forward(command, libc::SIGSTOP),
            signal if signal > 0 => forward(command, signal),
            _ => {}
        }
    }
}

/// Kills children until there are none: orphans become our children, so the whole tree comes by.
fn kill_descendants(realm: Realm) {
    /// A tree that is still there after so many rounds forks faster than it is killed.
    const MANY: u32 = 32;
    let mut held = false;
    for round in 1..=10_000u32 {
        // What stands still does not fork. Others stand still with it, for a moment.
        if realm == Realm::Flock && round.is_multiple_of(MANY) {
            signal_all(libc::SIGSTOP);
            held = true;
        }
        let found = for_each_child(|pid| {
            // SAFETY: our own child, not reaped yet, so the number can mean nobody else.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        });
        match found {
            Some(0) => break,
            // SAFETY: no status wanted. One of those that were killed is waited for, and those that are gone by then.
            Some(_) => unsafe {
                libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL);
                while libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) > 0 {}
            },
            // Whoever is above us then takes our place.
            None if realm == Realm::Flock => exit(1),
            None => return,
        }
    }
    if held {
        signal_all(libc::SIGCONT);
    }
}

/// Every process of the namespace but us and the first.
pub(crate) fn signal_all(signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::kill(-1, signal) };
}

/// Our children as far as they fit in a page of text, the oldest first; how many, or none when they cannot be told.
pub(crate) fn for_each_child(mut each: impl FnMut(i32)) -> Option<usize> {
    let mut text = [0u8; 4096];
    // SAFETY: a C string, and a buffer with its true length.
    let got = unsafe {
        let fd = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let got = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        usize::try_from(got).ok()?
    };
    let (mut pid, mut count) = (0i32, 0);
    for byte in text.iter().take(got) {
        if byte.is_ascii_digit() {
            pid = pid.saturating_mul(10).saturating_add(i32::from(byte - b'0'));
        } else {
            if pid > 1 {
                each(pid);
                count += 1;
            }
            pid = 0;
        }
    }
    Some(count)
}

fn forward(command: i32, signal: i32) {
    // The command leads its own session; its group is what a terminal would signal.
    // SAFETY: numbers only.
    unsafe {
        if libc::kill(-command, signal) < 0 {
            libc::kill(command, signal);
        }
    }
}

fn collect(command: i32, realm: Realm, control: RawFd) {
    loop {
        let mut status = 0;
        // SAFETY: writes into a local.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) };
        if pid <= 0 {
            return;
        }
        if pid == command {
            finish(status, realm, control);
        }
    }
}

fn finish(status: i32, realm: Realm, control: RawFd) -> ! {
    if realm != Realm::Namespace {
        kill_descendants(realm);
    }
    // SAFETY: kills everything this process may signal in its own pid namespace but itself, then waits for all of it,
    // so that the figures below cover the whole tree.
    let usage = unsafe {
        if realm == Realm::Namespace {
            libc::kill(-1, libc::SIGKILL);
        }
        while libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) > 0 || errno() == libc::EINTR {}
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let _ = send(control, &account(Message::Ended, status, &usage), &[]);
    exit(0)
}

/// A report with what was used.
pub(crate) fn account(message: Message, status: i32, usage: &libc::rusage) -> Report {
    let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    let cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    Report { message, status, cpu_us, max_rss_kb: usage.ru_maxrss as u64, ..Report::default() }
}
