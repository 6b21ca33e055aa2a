//! Limits, accounting, freezing and killing of one sandbox's process tree through cgroups.
//!
//! Works on pure v2, pure v1 and hybrid hosts (v1 controllers beside a v2 tree). This module never starts a process and
//! never waits for one: the caller clones, attaches and polls.
//!
//! ```text
//! Layout::detect ── Group::create ── child enters ── events()/usage() ── kill ── remove
//!                     (mkdir, limits)   │
//!                                       ├ v2: clone3(CLONE_INTO_CGROUP) with v2_dir_fd()
//!                                       └ v1: the child writes "0" to each of entry_files()
//! ```
//!
//! The way in which the child enters decides the cost. Writing a *pid* to any `cgroup.procs` takes a machine-wide lock
//! behind an RCU grace period: 4 to 20 ms on an idle host. A thread that writes "0" to a v1 `tasks` file moves only
//! itself and skips that lock, and so does `CLONE_INTO_CGROUP`: tens of microseconds. [`Group::attach`] is the slow
//! way, for processes that cannot do better.

mod delegate;
mod dir;
mod event;
mod group;
mod layout;
mod limit;
mod owner;
mod parent;
mod raw;
mod sweep;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::{fmt, io};

pub use delegate::{delegate, undelegate};
pub use event::{EventFd, EventKind};
pub use group::{ChildOrigin, Group, Usage};
pub use layout::{Capability, HierarchyKind, Layout};
pub use sweep::{orphans, sweep};

/// Name prefix of all our groups; no other group is ever removed or killed.
const PREFIX: &str = "cofferdam-";
/// The directory below a hierarchy's root that holds one delegated directory per user.
const DELEGATED: &str = "cofferdam";
/// The leaf group to which this process moves so that its former group can enable controllers (v2: no processes in
/// inner nodes).
const SELF_LEAF: &str = "cofferdam-self";
/// Directory for our groups below a parent whose controllers another manager (systemd) changes, too; it exists while it
/// holds groups.
const RUNS: &str = "cofferdam-runs";

/// The limits and capabilities that one sandbox needs. Only the hierarchies that serve them are touched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSpec {
    pub memory_bytes: Option<u64>,
    /// Limit on tasks, threads included. The sandbox's own init counts as one; the caller adds it.
    pub pids: Option<u64>,
    /// Processor time as a number of cpus, e.g. 0.5.
    pub cpu_quota: Option<f64>,
    /// The processor time of the whole tree must be readable.
    pub cpu_usage: bool,
    /// Best effort: see [`Group::pins_cpus`].
    pub cpus: Option<Vec<usize>>,
    /// The whole tree must be killable at once; uses v2 where possible, which also allows freezing.
    pub kill: bool,
    /// The OOM killer kills one process and spares the others.
    pub survives: bool,
}

/// A limit that this host cannot enforce for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// `memory_mb`, `processes`, `cpus`, `cpu_ms` or `kill`.
    pub limit: &'static str,
    pub reason: String,
    pub fix: Option<String>,
}

#[derive(Debug)]
pub enum CgroupError {
    Missing(Missing),
    /// An argument without a meaning: an invalid name, a quota of zero.
    Invalid(String),
    Io {
        path: PathBuf,
        source: io::Error,
    },
}

impl CgroupError {
    fn io(path: &Path, source: io::Error) -> CgroupError {
        CgroupError::Io { path: path.to_path_buf(), source }
    }
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CgroupError::Missing(m) => {
                write!(f, "{} cannot be enforced here: {}", m.limit, m.reason)
            }
            CgroupError::Invalid(what) => f.write_str(what),
            CgroupError::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for CgroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CgroupError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
