//! The clone of a guest's first process, and the supervisor's handle on it.

use crate::CallError;
use crate::control::{Control, Handles, Report};
use crate::op::Op;
use crate::raw::{exit, kernel};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

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

/// The supervisor's handle on a guest's pid 1.
pub struct Spawned {
    pub pid: i32,
    pub pidfd: OwnedFd,
    control: Control,
}

/// A guest's whole list of setup steps. From index `first_of_pid1` on, pid 1 executes them; the steps before can be executed by
/// the setup helper where pid 1 was started early.
#[derive(Clone, Copy)]
pub struct SetupSteps<'a> {
    pub ops: &'a [Op],
    pub first_of_pid1: usize,
    /// Mounts for the `Attach` steps. A pid 1 that was not started early waits to receive them.
    pub mounts: &'a [OwnedFd],
}

impl<'a> SetupSteps<'a> {
    /// Steps that pid 1 executes alone, without a setup helper.
    pub fn without_helper(ops: &'a [Op]) -> SetupSteps<'a> {
        SetupSteps { ops, first_of_pid1: 0, mounts: &[] }
    }
}

/// Arguments and results of the `clone3` call that creates a guest's pid 1.
pub(crate) struct CloneRequest {
    pub(crate) flags: u64,
    pub(crate) group: Option<RawFd>,
    /// Filled in by the kernel before the process runs.
    pub(crate) pid: i32,
    pub(crate) pidfd: RawFd,
}

impl CloneRequest {
    /// Clones this process; the child runs `child_main` and exits. With `CLONE_PARENT` the child's parent is our parent, and
    /// the exit signal is inherited.
    pub(crate) fn clone_process(&mut self, parent: u64, child_main: impl FnOnce()) -> Result<(), CallError> {
        const REPORT_FLAGS: u64 = (libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID) as u64;
        let args = CloneArgs {
            flags: self.flags | parent | REPORT_FLAGS | if self.group.is_some() { INTO_CGROUP } else { 0 },
            pidfd: &raw mut self.pidfd as u64,
            parent_tid: &raw mut self.pid as u64,
            exit_signal: if parent == 0 { libc::SIGCHLD as u64 } else { 0 },
            cgroup: self.group.map_or(0, |fd| fd as u64),
            ..CloneArgs::default()
        };
        // SAFETY: no stack is given, so this is a fork. Other threads in our memory take no lock that the child needs:
        // the child allocates nothing. The kernel writes to fields that outlive the call.
        match unsafe { kernel!(SYS_clone3, &raw const args, size_of::<CloneArgs>()) } {
            Ok(0) => {
                child_main();
                exit(1)
            }
            Ok(_) => Ok(()),
            Err(errno) => Err(CallError { call: "clone3", errno }),
        }
    }

    /// Returns the handle on the new process; called once, after the clone.
    pub(crate) fn spawned(&self, control: OwnedFd) -> Spawned {
        // SAFETY: CLONE_PIDFD stored a fresh descriptor, and this is called once.
        let pidfd = unsafe { OwnedFd::from_raw_fd(self.pidfd) };
        Spawned { pid: self.pid, pidfd, control: Control(control) }
    }
}

impl Spawned {
    /// The control socket, for messages to pid 1.
    pub fn control_socket(&self) -> &Control {
        &self.control
    }

    /// The descriptor of the control socket; poll it for reading to learn of reports.
    pub fn control(&self) -> &OwnedFd {
        &self.control.0
    }

    pub fn receive(&self) -> Result<Option<(Report, Handles)>, CallError> {
        self.control.receive()
    }
}
