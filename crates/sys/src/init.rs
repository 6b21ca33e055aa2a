//! Init for a command: starts it, reaps orphans, forwards signals, and ends with it. Used by the guest's pid 1, or by a
//! shepherd where there are many commands. Raw calls only, as in `child`.

use crate::command::Command;
use crate::control::{END_SIGNAL, KILL_SIGNAL, Message, Report, STOP_SIGNAL, send};
use crate::errno;
use crate::job::FIRST_INHERITED;
use crate::raw::{close, exit, rlimit};
use std::os::fd::RawFd;

/// Starts the command as a child that shares our memory until it executes (vfork); returns the stage and the error
/// number if it cannot.
pub(crate) fn start(command: &Command, slave: RawFd) -> Result<i32, (u32, i32)> {
    struct ChildArgs<'a> {
        command: &'a Command,
        slave: RawFd,
        failed: Option<(u32, i32)>,
    }
    extern "C" fn body(args: *mut libc::c_void) -> i32 {
        // SAFETY: the parent waits (CLONE_VFORK) and lends this structure while the child shares its memory.
        let args = unsafe { &mut *args.cast::<ChildArgs>() };
        args.failed = Some(become_command(args.command, args.slave));
        exit(127)
    }
    #[repr(C, align(16))]
    struct Stack([u8; 32 * 1024]);
    // Left uninitialised: every page of it that is touched must first be copied.
    let mut stack = std::mem::MaybeUninit::<Stack>::uninit();
    let mut args = ChildArgs { command, slave, failed: None };
    // SAFETY: the stack is large enough for `become_command`, lives until the child has executed or ended, and
    // CLONE_VFORK keeps us from touching it meanwhile.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(1).cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(body, top, flags, (&raw mut args).cast())
    };
    if pid < 0 {
        return Err((BEFORE_EXEC, errno()));
    }
    match args.failed {
        Some(failure) => Err(failure),
        None => Ok(pid),
    }
}

/// Stages at which the start of the command can fail.
pub(crate) const AT_EXEC: u32 = 0;
pub(crate) const BEFORE_EXEC: u32 = 1;
pub(crate) const AT_DIRECTORY: u32 = 2;

/// The processes that are killed when the command ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillScope {
    /// A pid namespace whose pid 1 is this process.
    Namespace,
    /// Our descendants, on the host itself.
    Descendants,
    /// Our descendants, in a pid namespace shared with other jobs.
    SharedNamespace,
}

fn check(result: libc::c_long) -> Result<(), i32> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Executes the command. Returns only on failure, with the stage and the error number.
fn become_command(command: &Command, slave: RawFd) -> (u32, i32) {
    let ready =
        ready_to_execute(command, slave).and_then(|()| report_start(command)).map_err(|errno| (BEFORE_EXEC, errno));
    match ready {
        Ok(status_pipe) => {
            let begun =
                limit_open_files(command).map_err(|errno| (BEFORE_EXEC, errno)).and_then(|()| change_dir(command));
            let failure = begun.err().unwrap_or_else(|| execute(command));
            status_pipe.iter().for_each(|status_pipe| report_failure(*status_pipe, failure));
            failure
        }
        Err(failure) => failure,
    }
}

/// Calls execve. Returns only on failure.
fn execute(command: &Command) -> (u32, i32) {
    // SAFETY: pointer arrays ended by null that the supervisor built before the clone and that live in our copy of its
    // memory.
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

/// Reports that the command starts, before the command could prevent that: it has the same user as its shepherd. The
/// attached pipe is closed by a successful exec, or carries the failure.
fn report_start(command: &Command) -> Result<Option<RawFd>, i32> {
    let Some((line, master)) = command.start_report else { return Ok(None) };
    let mut pair = [-1; 2];
    // SAFETY: the kernel fills both descriptors; a number.
    let pid = unsafe {
        check(libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC).into())?;
        libc::syscall(libc::SYS_getpid) as i32
    };
    let report = Report { message: Message::Started, status: pid, ..Report::default() };
    send(line, &report, &[pair[0], master])?;
    close(pair[0]);
    Ok(Some(pair[1]))
}

fn report_failure(status_pipe: RawFd, (step, errno): (u32, i32)) {
    let words = [step, errno as u32];
    // SAFETY: a buffer with its true length.
    unsafe { libc::write(status_pipe, words.as_ptr().cast(), size_of_val(&words)) };
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
        // Copies are not closed by exec. Their numbers are above all that this process has open.
        for (target, fd) in (FIRST_INHERITED..).zip(command.inherit).filter(|(_, fd)| *fd >= 0) {
            check(libc::dup2(fd, target).into())?;
        }
        reset_signals();
        libc::umask(command.umask);
    }
    Ok(())
}

/// Sets the limit on open files. Last, because earlier steps need descriptors of their own.
fn limit_open_files(command: &Command) -> Result<(), i32> {
    match command.open_files {
        Some(most) => rlimit(libc::RLIMIT_NOFILE, most),
        None => Ok(()),
    }
}

fn change_dir(command: &Command) -> Result<(), (u32, i32)> {
    let Some(cwd) = &command.cwd else { return Ok(()) };
    // SAFETY: a C string that outlives the call.
    check(unsafe { libc::chdir(cwd.as_ptr()) }.into()).map_err(|errno| (AT_DIRECTORY, errno))
}

/// Resets signals for the command. Exec resets handlers. Signals that the caller ignores stay ignored, as outside; only
/// SIGPIPE, which Rust's runtime set in the supervisor, is restored.
fn reset_signals() {
    // SAFETY: a default action and an empty mask.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Reaps orphans, forwards signals to the command, and ends with it. When pid 1 ends, the kernel kills all processes
/// left in the namespace.
pub(crate) fn reap(command: i32, realm: KillScope, control: RawFd) -> ! {
    loop {
        // SAFETY: a local set, filled before use.
        let signal = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigwaitinfo(&all, std::ptr::null_mut())
        };
        match signal {
            libc::SIGCHLD => collect(command, realm, control),
            END_SIGNAL if realm != KillScope::Namespace => finish(libc::SIGKILL, realm, control),
            KILL_SIGNAL if realm == KillScope::SharedNamespace => forward(command, libc::SIGKILL),
            STOP_SIGNAL if realm == KillScope::SharedNamespace => forward(command, libc::SIGSTOP),
            signal if signal > 0 => forward(command, signal),
            _ => {}
        }
    }
}

/// Kills children until there are none: orphans become our children, so the whole tree is reached.
fn kill_descendants(realm: KillScope) {
    /// A tree that survives so many rounds forks faster than it is killed.
    const STOP_AFTER_ROUNDS: u32 = 32;
    let mut all_stopped = false;
    for round in 1..=10_000u32 {
        // Stopped processes do not fork. Other jobs of the guest are stopped too, for a moment.
        if realm == KillScope::SharedNamespace && round.is_multiple_of(STOP_AFTER_ROUNDS) {
            signal_all(libc::SIGSTOP);
            all_stopped = true;
        }
        let found = for_each_child(|pid| {
            // SAFETY: our own child, not reaped yet, so the pid cannot be reused.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        });
        match found {
            Some(0) => break,
            // SAFETY: no status wanted. Waits for one of the killed children, then reaps those that are gone by then.
            Some(_) => unsafe {
                libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL);
                while libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) > 0 {}
            },
            // The parent then kills the tree.
            None if realm == KillScope::SharedNamespace => exit(1),
            None => return,
        }
    }
    if all_stopped {
        signal_all(libc::SIGCONT);
    }
}

/// Signals every process of the namespace except this one and pid 1.
pub(crate) fn signal_all(signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::kill(-1, signal) };
}

/// Calls `each` for our children, oldest first, as far as they fit in a page of text; returns their number, or `None`
/// if they cannot be listed.
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
    // The command leads its own session; a terminal would signal its process group.
    // SAFETY: numbers only.
    unsafe {
        if libc::kill(-command, signal) < 0 {
            libc::kill(command, signal);
        }
    }
}

fn collect(command: i32, realm: KillScope, control: RawFd) {
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

fn finish(status: i32, realm: KillScope, control: RawFd) -> ! {
    if realm != KillScope::Namespace {
        kill_descendants(realm);
    }
    // SAFETY: kills every process that this process may signal in its own pid namespace, then waits for all of them, so
    // that the usage below covers the whole tree.
    let usage = unsafe {
        if realm == KillScope::Namespace {
            libc::kill(-1, libc::SIGKILL);
        }
        while libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) > 0 || errno() == libc::EINTR {}
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let _ = send(control, &usage_report(Message::Ended, status, &usage), &[]);
    exit(0)
}

/// Builds a report with resource usage.
pub(crate) fn usage_report(message: Message, status: i32, usage: &libc::rusage) -> Report {
    let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    let cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    Report { message, status, cpu_us, max_rss_kb: usage.ru_maxrss as u64, ..Report::default() }
}
