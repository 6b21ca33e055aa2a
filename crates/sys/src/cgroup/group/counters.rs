//! Counters of a group, and descriptors that signal their changes.

use super::super::event::{EventFd, EventKind};
use super::super::layout::Version;
use super::Group;

/// Resource usage of the process tree so far. `None` where no group of ours counts the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_us: Option<u64>,
    pub memory_peak: Option<u64>,
    pub memory_now: Option<u64>,
    pub pids_now: Option<u64>,
    pub pids_peak: Option<u64>,
}

impl Group {
    /// Returns descriptors that signal memory and process limits. A limit without a descriptor has to be polled by its
    /// counter: v1 kernels since 6.11 do not announce refused forks. Out of memory, v2 kills the whole tree and v1 only
    /// one process, so the caller kills the rest.
    pub fn events(&self) -> Vec<EventFd> {
        let oom = self.serving("memory").map(|p| EventFd::oom(p.version, &p.dir));
        let announced = self.serving("pids").filter(|p| p.version == Version::V2);
        let pids = announced.map(|p| EventFd::changes(EventKind::Pids, &p.dir, "pids.events"));
        [oom, pids].into_iter().flatten().flatten().collect()
    }

    /// Returns the descriptor that signals when the tree is gone and when it is frozen; needs v2.
    pub fn populated_event(&self) -> Option<EventFd> {
        let v2 = self.v2()?;
        EventFd::changes(EventKind::Populated, &v2.dir, "cgroup.events").ok()
    }

    /// Processes that the kernel killed for memory.
    pub fn oom_kills(&self) -> u64 {
        let count = self.serving("memory").and_then(|p| match p.version {
            Version::V1 => p.dir.keyed("memory.oom_control", "oom_kill"),
            Version::V2 => p.dir.keyed("memory.events", "oom_kill"),
        });
        count.unwrap_or(0)
    }

    /// Forks and threads that were refused.
    pub fn pids_denied(&self) -> u64 {
        self.serving("pids").and_then(|p| p.dir.keyed("pids.events", "max")).unwrap_or(0)
    }

    pub fn usage(&self) -> Usage {
        let memory = |v1, v2| self.counter("memory", v1, v2);
        Usage {
            cpu_us: self.cpu_us(),
            memory_peak: memory("memory.max_usage_in_bytes", "memory.peak"),
            memory_now: memory("memory.usage_in_bytes", "memory.current"),
            pids_now: self.counter("pids", "pids.current", "pids.current"),
            pids_peak: self.counter("pids", "pids.peak", "pids.peak"),
        }
    }

    fn counter(&self, controller: &str, v1: &str, v2: &str) -> Option<u64> {
        let part = self.serving(controller)?;
        part.dir.number(if part.version == Version::V1 { v1 } else { v2 })
    }

    /// Returns the tree's processor time so far. Cheaper than [`Group::usage`], for polling a limit on it.
    ///
    /// v2 counts processor time in every group, so a group that was made for killing also measures it.
    pub fn cpu_us(&self) -> Option<u64> {
        let part = self.serving("cpuacct")?;
        match part.version {
            Version::V1 => part.dir.number("cpuacct.usage").map(|ns| ns / 1000),
            Version::V2 => part.dir.keyed("cpu.stat", "usage_usec"),
        }
    }
}
