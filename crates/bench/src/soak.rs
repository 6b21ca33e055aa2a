//! Soak test: many runs, then a count of everything that they could have left behind. Only objects that our runs can
//! make are counted, so that other work on the machine does not show as a leak.

use super::work::WorkDir;
use super::{BenchConfig, LIMITED, Measurement, Progress, UNLIMITED, entries};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

#[derive(Clone, Debug, Serialize)]
pub struct SoakReport {
    pub protocol_version: u32,
    pub runs: u32,
    pub failed: u32,
    pub seconds: f64,
    /// The contender: with limits if this host supports them, so that groups are made and removed too.
    pub contender: &'static str,
    pub before: Census,
    pub after: Census,
    /// The counts before and after are equal.
    pub clean: bool,
    /// Highest peak resident size among the first and among the last `WINDOW` runs.
    pub peak_kb_first: u64,
    pub peak_kb_last: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Census {
    /// Mounts in our own mount namespace.
    pub mounts: usize,
    /// Control groups that the runs made; each is removed with its run.
    pub cgroups: usize,
    /// Descendants of this process, including orphans.
    pub processes: usize,
    pub descriptors: usize,
    /// Entries of /tmp that a run of ours could have made, by name or owner.
    pub tmp_files: usize,
    pub work_files: usize,
}

/// Number of runs in the "first" and "last" windows.
const WINDOW: usize = 100;
/// Longest wait for the kernel to clear ended processes, which takes longer on a busy machine.
const SETTLE: Duration = Duration::from_secs(30);

pub fn soak(config: &BenchConfig, runs: u32, progress: Progress<'_>) -> Result<SoakReport, Fault> {
    // As a subreaper this process adopts orphans, and counts them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| Fault::internal(format!("subreaper: {e}")).phase(Phase::Preparation))?;
    let place = WorkDir::make(config)?;
    let entry = pick(config, &place.root)?;
    let mut command = entry.command();
    let mut peaks = Vec::with_capacity(runs as usize);
    let mut failed = 0;
    let mut supervisors = BTreeSet::new();
    let before = census(&place.root, &supervisors);
    let started = Instant::now();
    for run in 0..runs {
        let child = command.spawn().map_err(|e| Fault::internal(e.to_string()).phase(Phase::Execution))?;
        supervisors.insert(child.id());
        let (status, peak) = sys::probe::wait_with_peak(child).map_err(|e| Fault::internal(e.to_string()))?;
        failed += u32::from(!status.success());
        peaks.push(peak);
        progress("soak", run + 1, runs);
    }
    let seconds = started.elapsed().as_secs_f64();
    let after = settled(&place.root, &supervisors, &before);
    let most = |list: &[u64]| list.iter().copied().max().unwrap_or(0);
    let window = WINDOW.min(peaks.len().div_ceil(2));
    Ok(SoakReport {
        protocol_version: PROTOCOL_VERSION,
        runs,
        failed,
        seconds,
        contender: entry.name,
        clean: before == after,
        before,
        after,
        peak_kb_first: most(&peaks[..window]),
        peak_kb_last: most(&peaks[peaks.len() - window..]),
    })
}

fn pick(config: &BenchConfig, directory: &Path) -> Result<Measurement, Fault> {
    let mut why = String::new();
    let ours = entries(config)?.into_iter().filter(|e| [LIMITED, UNLIMITED].contains(&e.name));
    for mut entry in ours {
        entry.directory = Some(directory.to_path_buf());
        entry.try_out();
        match &entry.absent {
            None => return Ok(entry),
            Some(reason) => why.clone_from(reason),
        }
    }
    Err(Fault::new(ErrorKind::UnsupportedHost, format!("no run starts here: {why}"))
        .hint("cofferdam doctor")
        .phase(Phase::Start))
}

fn settled(work: &Path, supervisors: &BTreeSet<u32>, before: &Census) -> Census {
    let deadline = Instant::now() + SETTLE;
    loop {
        let now = census(work, supervisors);
        if now == *before || Instant::now() >= deadline {
            return now;
        }
        sleep(Duration::from_millis(50));
    }
}

fn census(work: &Path, supervisors: &BTreeSet<u32>) -> Census {
    Census {
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().count(),
        cgroups: groups_of(supervisors),
        processes: descendants(std::process::id()).len(),
        descriptors: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
        tmp_files: fs::read_dir("/tmp").map_or(0, |list| list.flatten().filter(could_be_ours).count()),
        work_files: entries_below(work),
    }
}

/// First host uid of root's guests; no other user has such a uid.
const FIRST_GUEST_ID: u32 = 0x7000_0000;

fn could_be_ours(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy().into_owned();
    let named = name.trim_start_matches('.').starts_with("cofferdam") && !has_living_owner(&name);
    named || entry.metadata().is_ok_and(|m| m.uid() >= FIRST_GUEST_ID && m.uid() < u32::MAX - 1)
}

/// Returns true if the process that made the file is alive, so that the file is not a leftover. By
/// convention names contain the pid.
fn has_living_owner(name: &str) -> bool {
    let mut ids = name.split(['-', '.', '_']).filter_map(|part| part.parse::<u32>().ok());
    ids.any(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

fn entries_below(dir: &Path) -> usize {
    let list = fs::read_dir(dir).into_iter().flatten().flatten();
    list.map(|e| 1 + if e.file_type().is_ok_and(|t| t.is_dir()) { entries_below(&e.path()) } else { 0 }).sum()
}

/// Returns all descendants of a process.
pub fn descendants(of: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may contain any character; the fields after the last parenthesis are plain.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut next = vec![of];
    while let Some(pid) = next.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        next.extend(&below);
        found.extend(below);
    }
    found
}

/// Counts the control groups that these supervisors, alive or not, have made. Their names begin
/// with `cofferdam-<supervisor's pid>-`.
pub fn groups_of(supervisors: &BTreeSet<u32>) -> usize {
    let counts = |name: &str| supervisor_of(name).is_some_and(|pid| supervisors.contains(&pid));
    cgroup_mounts().iter().map(|mount| groups_below(mount, 0, &counts)).sum()
}

fn cgroup_mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup").then(|| left.split(' ').nth(4).map(PathBuf::from))?
    };
    table.lines().filter_map(mount).collect()
}

fn groups_below(dir: &Path, depth: usize, counts: &dyn Fn(&str) -> bool) -> usize {
    const DEEPEST: usize = 12;
    if depth > DEEPEST {
        return 0;
    }
    let list = fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let count = |name: &str| usize::from(counts(name));
    list.map(|e| count(&e.file_name().to_string_lossy()) + groups_below(&e.path(), depth + 1, counts)).sum()
}

fn supervisor_of(name: &str) -> Option<u32> {
    name.strip_prefix("cofferdam-").and_then(|rest| rest.split('-').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_named_after_its_supervisor() {
        for (name, expected) in [
            ("cofferdam-999999999-1-2-run_x", Some(999_999_999)),
            ("cofferdam-self", None),
            ("cofferdam", None),
            ("system.slice", None),
        ] {
            assert_eq!(supervisor_of(name), expected, "{name}");
        }
    }

    #[test]
    fn a_child_is_counted_and_gone_again() {
        let mut child = std::process::Command::new("/bin/sleep").arg("30").spawn().unwrap();
        assert!(descendants(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants(std::process::id()).contains(&child.id()));
    }
}
