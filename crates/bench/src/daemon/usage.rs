//! Resource usage of a daemon and its live sandboxes, and their leftovers: memory, descriptors, threads, mounts,
//! groups, files, records.

use super::super::soak::{descendants, groups_of};
use super::client::lost;
use node::sandbox::{Run, Sandbox, Tombstone};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use store::Store;
use terms::Fault;

/// Average cost of an idle live sandbox.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    pub sandboxes: u32,
    /// Live sandboxes started per second.
    pub per_second: f64,
    pub processes_each: f64,
    /// Threads of the keeper and of its guest.
    pub threads_each: f64,
    /// Proportional set size: shared pages count in parts.
    pub pss_kb_each: f64,
    /// Anonymous private pages.
    pub anon_kb_each: f64,
    pub keeper_descriptors_each: f64,
    /// Open descriptors of the daemon per sandbox.
    pub daemon_descriptors_each: f64,
    /// Growth of the daemon's own memory per sandbox.
    pub daemon_anon_kb_each: f64,
}

/// Counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub mounts: usize,
    /// Control groups that its keepers have made, including those of dead keepers.
    pub cgroups: usize,
    /// Processes below the daemon: keepers and their guests.
    pub processes: usize,
    pub daemon_descriptors: usize,
    pub keepers: usize,
    pub layers: usize,
    pub bases: usize,
    pub sandboxes: u64,
}

/// Quantities that may grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Weight {
    pub daemon_anon_kb: u64,
    pub daemon_threads: u64,
    pub runs: u64,
    pub tombstones: u64,
    pub journal_entries: u64,
    pub store_bytes: u64,
}

pub fn weight(daemon: u32, state: &Path) -> Result<Weight, Fault> {
    let store = Store::open(state)?;
    let (runs, tombstones, journal_entries) =
        store.read(|tx| Ok((tx.count::<Run>()?, tx.count::<Tombstone>()?, tx.last_noted()?)))?;
    let size = |name: &str| fs::metadata(state.join(name)).map_or(0, |meta| meta.len());
    Ok(Weight {
        daemon_anon_kb: field(daemon, "status", "RssAnon:"),
        daemon_threads: field(daemon, "status", "Threads:"),
        runs,
        tombstones,
        journal_entries,
        store_bytes: size("store.db") + size("store.db-wal"),
    })
}

pub fn count(daemon: u32, state: &Path) -> Result<Count, Fault> {
    let entries = |name: &str| fs::read_dir(state.join(name)).map_or(0, Iterator::count);
    let processes = descendants(daemon);
    let (sandboxes, runs) = Store::open(state)?.read(|tx| Ok((tx.count::<Sandbox>()?, tx.list::<Run>()?)))?;
    let supervisors = runs.iter().map(|run| run.record.pid).chain(processes.iter().copied()).collect();
    Ok(Count {
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().count(),
        cgroups: groups_of(&supervisors),
        processes: processes.len(),
        daemon_descriptors: descriptors(daemon),
        keepers: entries("keepers"),
        layers: entries("layers"),
        bases: entries(node::directory::BASES),
        sandboxes,
    })
}

/// Counts once no guest runs and the counts are stable: leftover connections are closed a little later.
pub fn at_rest(daemon: u32, state: &Path) -> Result<Count, Fault> {
    const LOOKS: u32 = 20;
    let (mut last, mut same) = (Count::default(), 0);
    settled(daemon, state, |now| {
        same = if *now == last && (now.processes, now.cgroups) == (0, 0) { same + 1 } else { 0 };
        last = now.clone();
        same >= LOOKS
    })
}

/// Counts once the condition holds, or on timeout; ended processes are cleared a little later.
pub fn settled(daemon: u32, state: &Path, mut wanted: impl FnMut(&Count) -> bool) -> Result<Count, Fault> {
    const SETTLE: Duration = Duration::from_secs(30);
    let end = Instant::now() + SETTLE;
    loop {
        let now = count(daemon, state)?;
        if wanted(&now) || Instant::now() >= end {
            return Ok(now);
        }
        sleep(Duration::from_millis(50));
    }
}

/// Computes the cost of idle sandboxes for a daemon that had `before` without them.
pub fn idle(daemon: u32, sandboxes: u32, before: (usize, u64), took: Duration) -> Result<Idle, Fault> {
    let all = descendants(daemon);
    let keepers: Vec<u32> = all.iter().copied().filter(|pid| parent_of(*pid) == Some(daemon)).collect();
    if keepers.len() != sandboxes as usize {
        return Err(lost(&format!("{} keepers hold {sandboxes} sandboxes", keepers.len())));
    }
    let each = |sum: u64| (sum as f64 / f64::from(sandboxes) * 10.0).round() / 10.0;
    let sum = |file: &str, name: &str| all.iter().map(|pid| field(*pid, file, name)).sum::<u64>();
    let (descriptors_before, anon_before) = before;
    let more = |now: u64, before: u64| now.saturating_sub(before);
    Ok(Idle {
        sandboxes,
        per_second: (f64::from(sandboxes) / took.as_secs_f64() * 10.0).round() / 10.0,
        processes_each: each(all.len() as u64),
        threads_each: each(sum("status", "Threads:")),
        pss_kb_each: each(sum("smaps_rollup", "Pss:")),
        anon_kb_each: each(sum("status", "RssAnon:")),
        keeper_descriptors_each: each(keepers.iter().map(|pid| descriptors(*pid) as u64).sum()),
        daemon_descriptors_each: each(more(descriptors(daemon) as u64, descriptors_before as u64)),
        daemon_anon_kb_each: each(more(field(daemon, "status", "RssAnon:"), anon_before)),
    })
}

/// Returns descriptors and memory of the daemon, for later comparison.
pub fn own(daemon: u32) -> (usize, u64) {
    (descriptors(daemon), field(daemon, "status", "RssAnon:"))
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn parent_of(pid: u32) -> Option<u32> {
    Some(field(pid, "status", "PPid:") as u32).filter(|parent| *parent > 0)
}

/// Reads a field of a process; 0 if it is gone.
fn field(pid: u32, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
