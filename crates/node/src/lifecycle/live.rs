//! Is somebody at work in a sandbox? A run is a process with a number, a start time and a boot: only all three together
//! mean the same process. Asked of the kernel, never of a record alone.

use super::admission::Standing;
use crate::sandbox::{Lifecycle, Run, Sandbox};
use crate::state::State;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use store::{Kept, Tx};
use terms::Fault;
use workspace::Lock;

/// Which boot this is.
pub fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// When a process was started, in ticks since the boot.
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last bracket may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// A handle on the process that supervises a run, if it is still that process.
pub fn handle(run: &Run) -> Option<OwnedFd> {
    if run.ended_ms.is_some() || run.boot != boot() {
        return None;
    }
    let pid = Pid::from_raw(i32::try_from(run.pid).ok()?)?;
    let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Looked at once it is held: the number cannot have changed hands since.
    let same = start_of(run.pid) == Some(run.pid_start);
    (same && !sys::process::has_ended(std::os::fd::AsFd::as_fd(&held))).then_some(held)
}

/// Runs that go on in a sandbox.
pub fn runs(tx: &Tx<'_>, sandbox: &str) -> Result<Vec<Kept<Run>>, Fault> {
    let open = tx.list_open::<Run>()?;
    Ok(open.into_iter().filter(|run| run.record.sandbox == sandbox && handle(&run.record).is_some()).collect())
}

/// Whether the top layer is held by somebody.
pub fn is_held(state: &State, sandbox: &Sandbox) -> bool {
    let top = sandbox.layers.last().and_then(|id| state.layers.get(id).ok());
    top.is_some_and(|layer| matches!(layer.lock(), Ok(None)))
}

/// Holds the top layer: nobody runs in it from now on until it is let go. `Err(())` where somebody does.
pub fn hold(state: &State, sandbox: &Sandbox) -> Result<Option<Lock>, ()> {
    let Some(top) = sandbox.layers.last().and_then(|id| state.layers.get(id).ok()) else { return Ok(None) };
    match top.lock() {
        Ok(Some(lock)) => Ok(Some(lock)),
        _ => Err(()),
    }
}

pub fn standing(state: &State, sandbox: &Sandbox) -> Standing {
    match (sandbox.state, is_held(state, sandbox)) {
        (Lifecycle::Active, false) => Standing::Active,
        (Lifecycle::Active, true) => Standing::Running,
        (Lifecycle::Stopped, false) => Standing::Stopped,
        (Lifecycle::Stopped, true) => Standing::Stopping,
    }
}
