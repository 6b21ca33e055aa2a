//! Limits on what a run may use. Every limit has a name, and usage exactly at the limit succeeds.

use crate::Fault;
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Display};
use std::ops::RangeInclusive;
use utoipa::ToSchema;

/// Range of counts: up to what every JSON reader keeps exact.
pub const COUNTS: RangeInclusive<u64> = 1..=9_007_199_254_740_991;
/// Range of megabytes: from about a byte to more than any machine has.
pub const MEGABYTES: RangeInclusive<f64> = 0.000_001..=1_000_000_000.0;
/// Range of processors.
pub const CPUS: RangeInclusive<f64> = 0.01..=4096.0;

/// The fields of `limits`. An absent field means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_wall_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_cpu_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(exclusive_minimum = 0, maximum = 1_000_000_000)]
    pub max_memory_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_output_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_processes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_open_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(exclusive_minimum = 0, maximum = 1_000_000_000)]
    pub max_disk_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_net_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub on_output_limit: Option<OnOutputLimit>,
}

/// Handling of output past `max_output_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnOutputLimit {
    End,
    Truncate,
}

/// A limit, by the name of its field without `max_`; the last ones are limits of the daemon and appear in no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    WallMs,
    CpuMs,
    MemoryMb,
    OutputBytes,
    Processes,
    OpenFiles,
    DiskMb,
    Files,
    NetBytes,
    Steps,
    /// Size of a request's body to the daemon.
    BodyBytes,
    /// Time that the body of a request takes to arrive.
    BodyMs,
    HeaderBytes,
    Connections,
    /// Concurrent event streams.
    Streams,
    /// Queued requests.
    Waiting,
    /// Sandboxes of a tenant or the whole node.
    Sandboxes,
    LiveSandboxes,
    Snapshots,
    Templates,
    Cpus,
    Runs,
    RequestsPerMinute,
    /// Disk space of all layers of a state directory.
    TotalDiskMb,
    TotalFiles,
}

impl LimitKind {
    /// Limits that a policy can set.
    pub const ALL: [LimitKind; 10] = [
        LimitKind::WallMs,
        LimitKind::CpuMs,
        LimitKind::MemoryMb,
        LimitKind::OutputBytes,
        LimitKind::Processes,
        LimitKind::OpenFiles,
        LimitKind::DiskMb,
        LimitKind::Files,
        LimitKind::NetBytes,
        LimitKind::Steps,
    ];

    pub fn name(self) -> &'static str {
        match self {
            LimitKind::WallMs => "wall_ms",
            LimitKind::CpuMs => "cpu_ms",
            LimitKind::MemoryMb => "memory_mb",
            LimitKind::OutputBytes => "output_bytes",
            LimitKind::Processes => "processes",
            LimitKind::OpenFiles => "open_files",
            LimitKind::DiskMb => "disk_mb",
            LimitKind::Files => "files",
            LimitKind::NetBytes => "net_bytes",
            LimitKind::Steps => "steps",
            LimitKind::BodyBytes => "body_bytes",
            LimitKind::BodyMs => "body_ms",
            LimitKind::HeaderBytes => "header_bytes",
            LimitKind::Connections => "connections",
            LimitKind::Streams => "streams",
            LimitKind::Waiting => "waiting",
            LimitKind::Sandboxes => "sandboxes",
            LimitKind::LiveSandboxes => "live_sandboxes",
            LimitKind::Snapshots => "snapshots",
            LimitKind::Templates => "templates",
            LimitKind::Cpus => "cpus",
            LimitKind::Runs => "runs",
            LimitKind::RequestsPerMinute => "requests_per_minute",
            LimitKind::TotalDiskMb => "total_disk_mb",
            LimitKind::TotalFiles => "total_files",
        }
    }
}

/// The value of a limit: whole numbers for counts, decimals for sizes in megabytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Limit {
    Count(u64),
    Megabytes(f64),
}

/// The phase of a verb; one list for the whole product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Admission,
    Planning,
    Preparation,
    Start,
    Execution,
    Serialization,
    Review,
    Application,
    Delivery,
    Close,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Admission => "admission",
            Phase::Planning => "planning",
            Phase::Preparation => "preparation",
            Phase::Start => "start",
            Phase::Execution => "execution",
            Phase::Serialization => "serialization",
            Phase::Review => "review",
            Phase::Application => "application",
            Phase::Delivery => "delivery",
            Phase::Close => "close",
        }
    }
}

/// Refuses values out of range, by the name of their field.
pub fn check_amounts(limits: &Limits, cpus: Option<f64>) -> Result<(), Fault> {
    for (name, count) in limits.counts() {
        if count.is_some_and(|count| !COUNTS.contains(&count)) {
            return Err(out_of_range(&format!("limits.{name}"), count.unwrap_or_default(), COUNTS));
        }
    }
    for (name, megabytes) in [("max_memory_mb", limits.max_memory_mb), ("max_disk_mb", limits.max_disk_mb)] {
        if megabytes.is_some_and(|megabytes| !MEGABYTES.contains(&megabytes)) {
            return Err(out_of_range(&format!("limits.{name}"), megabytes.unwrap_or_default(), MEGABYTES));
        }
    }
    match cpus.filter(|cpus| !CPUS.contains(cpus)) {
        Some(cpus) => Err(out_of_range("cpus", cpus, CPUS)),
        None => Ok(()),
    }
}

fn out_of_range<T: Display + Debug>(field: &str, amount: T, range: RangeInclusive<T>) -> Fault {
    let hint = format!("give {} to {}, or leave it out for no limit", range.start(), range.end());
    Fault::invalid(format!("{field}: {amount:?} is out of range")).hint(hint).phase(Phase::Admission)
}

impl Limits {
    /// Returns the value of a limit, by its kind; `None` for a kind that is no field of a policy.
    pub fn amount(&self, kind: LimitKind) -> Option<f64> {
        let count = |count: Option<u64>| count.map(|count| count as f64);
        match kind {
            LimitKind::WallMs => count(self.max_wall_ms),
            LimitKind::CpuMs => count(self.max_cpu_ms),
            LimitKind::MemoryMb => self.max_memory_mb,
            LimitKind::OutputBytes => count(self.max_output_bytes),
            LimitKind::Processes => count(self.max_processes),
            LimitKind::OpenFiles => count(self.max_open_files),
            LimitKind::DiskMb => self.max_disk_mb,
            LimitKind::Files => count(self.max_files),
            LimitKind::NetBytes => count(self.max_net_bytes),
            LimitKind::Steps => count(self.max_steps),
            _ => None,
        }
    }

    /// Sets a limit by its kind; a kind that is no field of a policy is ignored. Counts are exact: `COUNTS` ends where
    /// floating point does.
    pub fn set_amount(&mut self, kind: LimitKind, amount: f64) {
        let count = Some(amount as u64);
        match kind {
            LimitKind::WallMs => self.max_wall_ms = count,
            LimitKind::CpuMs => self.max_cpu_ms = count,
            LimitKind::MemoryMb => self.max_memory_mb = Some(amount),
            LimitKind::OutputBytes => self.max_output_bytes = count,
            LimitKind::Processes => self.max_processes = count,
            LimitKind::OpenFiles => self.max_open_files = count,
            LimitKind::DiskMb => self.max_disk_mb = Some(amount),
            LimitKind::Files => self.max_files = count,
            LimitKind::NetBytes => self.max_net_bytes = count,
            LimitKind::Steps => self.max_steps = count,
            _ => {}
        }
    }

    fn counts(&self) -> [(&'static str, Option<u64>); 8] {
        [
            ("max_wall_ms", self.max_wall_ms),
            ("max_cpu_ms", self.max_cpu_ms),
            ("max_output_bytes", self.max_output_bytes),
            ("max_processes", self.max_processes),
            ("max_open_files", self.max_open_files),
            ("max_files", self.max_files),
            ("max_net_bytes", self.max_net_bytes),
            ("max_steps", self.max_steps),
        ]
    }

    /// Returns the tighter of two sets, field by field: merging never widens.
    pub fn tightest(self, other: Limits) -> Limits {
        Limits {
            max_wall_ms: least(self.max_wall_ms, other.max_wall_ms),
            max_cpu_ms: least(self.max_cpu_ms, other.max_cpu_ms),
            max_memory_mb: least(self.max_memory_mb, other.max_memory_mb),
            max_output_bytes: least(self.max_output_bytes, other.max_output_bytes),
            max_processes: least(self.max_processes, other.max_processes),
            max_open_files: least(self.max_open_files, other.max_open_files),
            max_disk_mb: least(self.max_disk_mb, other.max_disk_mb),
            max_files: least(self.max_files, other.max_files),
            max_net_bytes: least(self.max_net_bytes, other.max_net_bytes),
            max_steps: least(self.max_steps, other.max_steps),
            on_output_limit: match (self.on_output_limit, other.on_output_limit) {
                (Some(OnOutputLimit::End), _) | (_, Some(OnOutputLimit::End)) => Some(OnOutputLimit::End),
                (a, b) => a.or(b),
            },
        }
    }
}

/// Returns the smaller of two bounds, where `None` is no bound.
pub fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b < a { b } else { a }),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_and_set_by_its_kind() {
        let mut limits = Limits::default();
        for (n, kind) in LimitKind::ALL.into_iter().enumerate() {
            assert_eq!(limits.amount(kind), None, "{kind:?}");
            limits.set_amount(kind, n as f64 + 1.0);
            assert_eq!(limits.amount(kind), Some(n as f64 + 1.0), "{kind:?}");
        }
        let before = limits;
        limits.set_amount(LimitKind::Sandboxes, 3.0);
        assert_eq!((limits, limits.amount(LimitKind::Cpus)), (before, None));
        assert_eq!((limits.max_memory_mb, limits.max_processes), (Some(3.0), Some(5)));
    }

    #[test]
    fn amounts_are_such_that_something_can_be_held_to_them() {
        let memory = |mb| check_amounts(&Limits { max_memory_mb: Some(mb), ..Limits::default() }, None);
        let processes = |count| check_amounts(&Limits { max_processes: Some(count), ..Limits::default() }, None);
        let cpus = |cpus| check_amounts(&Limits::default(), Some(cpus));
        for good in [check_amounts(&Limits::default(), None), memory(1e-6), memory(1e9), processes(1), cpus(0.01)] {
            assert_eq!(good, Ok(()));
        }
        for bad in [-5.0, 0.0, 1e-9, 1e300, f64::NAN, f64::INFINITY] {
            assert!(memory(bad).unwrap_err().message.starts_with("limits.max_memory_mb: "), "{bad}");
            assert!(cpus(bad).unwrap_err().message.starts_with("cpus: "), "{bad}");
        }
        let fault = processes(0).unwrap_err();
        assert_eq!(fault.message, "limits.max_processes: 0 is out of range");
        assert_eq!(fault.hint.unwrap(), "give 1 to 9007199254740991, or leave it out for no limit");
    }
}
