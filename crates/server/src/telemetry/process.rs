//! Metrics of the daemon's process, under the names that Prometheus clients use.

use super::metrics::{Family, MetricKind, family, gauge, sample};

/// USER_HZ: the unit of processor time in /proc.
const TICKS_PER_SECOND: f64 = 100.0;

pub fn families() -> Vec<Family> {
    let label = [("version", env!("CARGO_PKG_VERSION"))];
    let version = vec![sample(&label, 1.0)];
    let mut all =
        vec![family("cofferdam_build_info", "Always 1; the version is its label", MetricKind::Gauge, version)];
    if let Some(bytes) = resident() {
        all.push(gauge("process_resident_memory_bytes", "Resident memory of the daemon", bytes as f64));
    }
    if let Some(seconds) = processor() {
        let spent = vec![sample(&[], seconds)];
        all.push(family("process_cpu_seconds_total", "Processor time of the daemon", MetricKind::Counter, spent));
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        all.push(gauge("process_open_fds", "Open descriptors of the daemon", open.count() as f64));
    }
    if let Some(most) = node::bound(node::BoundedResource::OpenFiles).current {
        all.push(gauge("process_max_fds", "Limit of open descriptors of the daemon", most as f64));
    }
    all
}

fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

fn processor() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The process name, before the last bracket, may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS_PER_SECOND)
}
