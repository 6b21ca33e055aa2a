//! Identity of processes: pid, start time and boot id together identify one process for ever. Asked of the kernel, never of a record alone.

use crate::sandbox::Run;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use store::{Kept, Tx};
use terms::Fault;

/// Returns the id of the present boot; cached, because every run and every access to a keeper needs it.
pub fn boot() -> String {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(known) = BOOT.get() {
        return known.clone();
    }
    match sys::host::kernel_file("/proc/sys/kernel/random/boot_id") {
        Some(read) => BOOT.get_or_init(|| read.trim().to_owned()).clone(),
        None => String::new(),
    }
}

/// Returns the start time of this process.
pub fn own_start() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    *OWN.get_or_init(|| start_of(std::process::id()).unwrap_or_default())
}

/// Returns the start time of a process, in ticks since the boot.
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name before the last bracket may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Opens the process that supervises a run, if it is still that process.
pub fn handle(run: &Run) -> Option<OwnedFd> {
    if run.ended_ms.is_some() || run.boot != boot() {
        return None;
    }
    let pid = Pid::from_raw(i32::try_from(run.pid).ok()?)?;
    let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Checked while the pidfd is held: the pid cannot have been reused since.
    let same = start_of(run.pid) == Some(run.pid_start);
    (same && !sys::process::has_ended(std::os::fd::AsFd::as_fd(&held))).then_some(held)
}

/// Lists the runs of a sandbox that have not ended.
pub fn runs(tx: &Tx<'_>, sandbox: &str) -> Result<Vec<Kept<Run>>, Fault> {
    let open = tx.list_open::<Run>()?;
    Ok(open.into_iter().filter(|run| run.record.sandbox == sandbox && handle(&run.record).is_some()).collect())
}
