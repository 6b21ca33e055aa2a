//! Writes the limits of a [`GroupSpec`] into a fresh group. Usage exactly at the limit succeeds, so sizes round up.

use std::io;

use super::dir::Dir;
use super::layout::Version;
use super::{GroupSpec, raw};

/// The kernel's bounds on a quota and its period, in microseconds.
const MIN_QUOTA: u64 = 1_000;
const PERIOD: u64 = 100_000;
const LONG_PERIOD: u64 = 1_000_000;

/// Writes the limits that `controllers` serve.
pub fn apply(version: Version, controllers: &[&str], want: &GroupSpec, parent: &Dir, dir: &Dir) -> io::Result<()> {
    for controller in controllers {
        match (*controller, version) {
            ("memory", _) => want.memory_bytes.map_or(Ok(()), |bytes| memory(version, bytes, want.survives, dir))?,
            ("pids", _) => want.pids.map_or(Ok(()), |most| dir.write("pids.max", &most.to_string()))?,
            ("cpu", Version::V1) => want.cpu_quota.map_or(Ok(()), |cpus| cpu_v1(cpus, parent, dir))?,
            ("cpu", Version::V2) => want.cpu_quota.map_or(Ok(()), |cpus| {
                let (quota, period) = quota(cpus);
                dir.write("cpu.max", &format!("{quota} {period}"))
            })?,
            _ => {}
        }
    }
    Ok(())
}

/// Replaces the limits of a group that already has some.
pub fn change(version: Version, controller: &str, want: &GroupSpec, parent: &Dir, dir: &Dir) -> io::Result<()> {
    if let ("memory", Version::V1, Some(bytes)) = (controller, version, want.memory_bytes) {
        // The limit on memory plus swap must not be below the limit on memory. If both grow, it has to grow first. If
        // both shrink this write is refused, and `apply` writes it again.
        let _ = dir.write_if_there("memory.memsw.limit_in_bytes", &whole_pages(bytes).to_string());
    }
    apply(version, &[controller], want, parent, dir)
}

fn memory(version: Version, bytes: u64, survives: bool, dir: &Dir) -> io::Result<()> {
    let bytes = whole_pages(bytes).to_string();
    match version {
        Version::V1 => {
            dir.write("memory.limit_in_bytes", &bytes)?;
            // Limit on memory plus swap; the file is absent where the kernel does not count swap.
            dir.write_if_there("memory.memsw.limit_in_bytes", &bytes)?;
            dir.write_if_there("memory.swappiness", "0")?;
            // Buffers of TCP connections are a separate account, kept only where a limit is set.
            dir.write_if_there("memory.kmem.tcp.limit_in_bytes", &bytes)?;
        }
        Version::V2 => {
            dir.write("memory.max", &bytes)?;
            dir.write_if_there("memory.swap.max", "0")?;
            // The OOM killer kills the whole sandbox instead of one process.
            dir.write_if_there("memory.oom.group", if survives { "0" } else { "1" })?;
        }
    }
    Ok(())
}

/// Rounds up to whole pages. The kernel rounds down, which would refuse the last bytes of an odd size.
fn whole_pages(bytes: u64) -> u64 {
    let page = raw::page_size();
    let most = (i64::MAX as u64) / page * page;
    bytes.checked_next_multiple_of(page).map_or(most, |b| b.min(most))
}

fn cpu_v1(cpus: f64, parent: &Dir, dir: &Dir) -> io::Result<()> {
    let (quota, period) = quota(cpus);
    dir.write("cpu.cfs_period_us", &period.to_string())?;
    match dir.write("cpu.cfs_quota_us", &quota.to_string()) {
        // A v1 group cannot get more than its parent has; the parent's lower quota applies to us anyway.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput && parent.number("cpu.cfs_quota_us").is_some() => Ok(()),
        other => other,
    }
}

/// Returns quota and period in microseconds.
fn quota(cpus: f64) -> (u64, u64) {
    let period = if cpus * (PERIOD as f64) < MIN_QUOTA as f64 { LONG_PERIOD } else { PERIOD };
    let quota = (cpus * period as f64).ceil() as u64;
    (quota.clamp(MIN_QUOTA, 1 << 40), period)
}

/// Copies cpus and memory nodes from the parent into a fresh v1 cpuset: it is empty, and no process can run in it
/// before it has both.
pub fn inherit_cpuset(parent: &Dir, child: &Dir) -> io::Result<()> {
    for (file, source) in [("cpuset.mems", "cpuset.effective_mems"), ("cpuset.cpus", "cpuset.effective_cpus")] {
        if child.read(file)?.trim().is_empty() {
            let inherited = parent.read(source).or_else(|_| parent.read(file))?;
            child.write(file, inherited.trim())?;
        }
    }
    Ok(())
}

pub fn pin(cpus: &[usize], dir: &Dir) -> io::Result<()> {
    let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
    dir.write("cpuset.cpus", &list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_stay_within_what_the_kernel_takes() {
        for (cpus, expected) in [
            (1.0, (100_000, 100_000)),
            (0.5, (50_000, 100_000)),
            (2.5, (250_000, 100_000)),
            (0.01, (1_000, 100_000)),
            (0.005, (5_000, 1_000_000)),
            (1e-9, (1_000, 1_000_000)),
            (f64::MAX, (1 << 40, 100_000)),
        ] {
            assert_eq!(quota(cpus), expected, "{cpus}");
        }
    }

    #[test]
    fn sizes_round_up_to_pages() {
        let page = raw::page_size();
        for (bytes, expected) in [(0, 0), (1, page), (page, page), (page + 1, 2 * page)] {
            assert_eq!(whole_pages(bytes), expected, "{bytes}");
        }
        assert!(whole_pages(u64::MAX) <= i64::MAX as u64);
    }
}
