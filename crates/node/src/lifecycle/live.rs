//! Is somebody at work in a sandbox? A run is a process with a number, a start time and a boot: only all three together
//! mean the same process. Asked of the kernel, never of a record alone.

use super::admission::Standing;
use crate::sandbox::{Lifecycle, Run, Sandbox};
use crate::state::State;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use store::{Kept, Tx};
use terms::Fault;
use workspace::{Layer, Lock, Rel};

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

/// The files that somebody holds locks on, by inode number, as the kernel lists them. To try a lock instead would, for a
/// moment, keep out a run that wants it.
pub struct Locks(Option<BTreeSet<u64>>);

impl Locks {
    pub fn now() -> Locks {
        let Ok(text) = std::fs::read_to_string("/proc/locks") else { return Locks(None) };
        let inode = |line: &str| line.split_whitespace().find_map(|word| word.splitn(3, ':').nth(2)?.parse().ok());
        Locks(Some(text.lines().filter_map(inode).collect()))
    }

    /// Whether a layer is held. The list knows no file systems, so a number that stands in it is tried after all.
    pub fn holds(&self, layer: &Layer) -> bool {
        let listed = match (&self.0, layer.dir.meta(&Rel::top())) {
            (Some(inodes), Ok(Some(meta))) => inodes.contains(&meta.ino),
            _ => true,
        };
        listed && matches!(layer.lock(), Ok(None))
    }
}

fn top(state: &State, sandbox: &Sandbox) -> Option<Layer> {
    sandbox.layers.last().and_then(|id| state.layers.get(id).ok())
}

/// Whether the top layer is held by somebody.
pub fn is_held(state: &State, sandbox: &Sandbox, locks: &Locks) -> bool {
    top(state, sandbox).is_some_and(|layer| locks.holds(&layer))
}

/// An attempt to have a sandbox for oneself.
pub enum Hold {
    /// Nobody runs in it until this is let go. A sandbox whose top layer is gone needs no lock.
    Mine(Option<Lock>),
    /// Somebody else has it.
    Taken,
}

pub fn hold(state: &State, sandbox: &Sandbox) -> Hold {
    match top(state, sandbox).map(|layer| layer.lock()) {
        None => Hold::Mine(None),
        Some(Ok(Some(lock))) => Hold::Mine(Some(lock)),
        Some(_) => Hold::Taken,
    }
}

pub fn standing(state: &State, sandbox: &Sandbox, locks: &Locks) -> Standing {
    match (sandbox.state, is_held(state, sandbox, locks)) {
        (Lifecycle::Active, false) => Standing::Active,
        (Lifecycle::Active, true) => Standing::Running,
        (Lifecycle::Stopped, false) => Standing::Stopped,
        (Lifecycle::Stopped, true) => Standing::Stopping,
    }
}
