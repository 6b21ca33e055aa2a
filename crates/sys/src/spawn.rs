//! Start of an enclosure: one clone into namespaces, new or made early, then messages over a socket until it ends. The
//! calling process must have one thread; the copy would otherwise hold locks that no thread releases.

use crate::clone::CloneRequest;
pub use crate::clone::{SetupSteps, Spawned};
pub use crate::command::Command;
use crate::control::socket_pair;
pub use crate::control::{Control, END_SIGNAL, Handles, InsideHandles, MOST_HANDLES, Message, Report};
use crate::early_setup::EarlySetup;
pub use crate::namespaces::{NEW_CGROUP, NEW_IPC, NEW_MOUNT, NEW_NET, NEW_PID, NEW_TIME, NEW_USER, NEW_UTS};
use crate::raw::close;
use crate::{CallError, child};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Starts a guest: a pid 1 that executes its steps and then starts `command`. A pid 1 that was started `early` receives
/// them; otherwise one is cloned with `namespaces`, inside `group` if given. The returned flag is true for a pid 1 that
/// was started early: its ids are mapped and it has its mounts.
pub fn spawn(
    namespaces: u64,
    early: Option<&mut EarlySetup>,
    group: Option<BorrowedFd<'_>>,
    steps: SetupSteps<'_>,
    command: Command,
) -> Result<(Spawned, bool), CallError> {
    let ops = steps.ops;
    if let Some(spawned) = early.and_then(|early| early.start_pid1(steps, &command)) {
        return Ok((spawned, true));
    }
    let (ours, theirs) = socket_pair()?;
    let mut request = CloneRequest { flags: namespaces, group: group.map(|fd| fd.as_raw_fd()), pid: 0, pidfd: -1 };
    let mask = block_signals();
    let cloned = request.clone_process(0, || {
        // The other end must be closed here, or the supervisor's death would go unnoticed.
        close(ours.as_raw_fd());
        child::run(ops, &command, theirs.as_raw_fd())
    });
    restore_signals(&mask);
    cloned?;
    Ok((request.spawned(ours), false))
}

/// Blocks all signals. Pid 1 receives its signals by sigwaitinfo, so they must be blocked before it exists.
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
