//! Limits that can be enforced for this caller. Some need control groups; the others work everywhere.

use super::Check;
use std::path::Path;
use sys::cgroup::{Capability, Layout};

pub fn checks() -> Vec<Check> {
    let capabilities = Layout::detect(Path::new("/")).capabilities();
    let group = |name: &'static str, what: &str, needed_for: &'static str| {
        let found = capabilities.iter().find(|c| c.what == what);
        match found {
            Some(Capability { usable: true, .. }) => limit(name, needed_for, true, "held by control groups"),
            Some(Capability { reason, fix, .. }) => {
                let check = limit(name, needed_for, false, reason.clone().unwrap_or_else(|| "unavailable".into()));
                fix.clone().into_iter().fold(check, Check::fix)
            }
            None => limit(name, needed_for, false, "unknown to this build"),
        }
    };
    vec![
        group("memory_mb", "memory", "-m, --memory; what agents' tokens may have of it"),
        group("processes", "pids", "--pids; what agents' tokens may have of them"),
        group("cpu_ms", "cpuacct", "--limit cpu=TIME"),
        group("cpus", "cpu", "--cpus with a fraction"),
        limit("wall_ms", "-t, --timeout", true, "held by the supervisor's clock"),
        limit("output_bytes", "--output", true, "held by the supervisor, byte by byte"),
        limit("open_files", "--limit open_files=N", true, "held by RLIMIT_NOFILE"),
        limit("disk_mb", "--disk", true, "held by the size of the guest's private /tmp; a workspace is measured"),
        limit(
            "files",
            "--limit files=N",
            true,
            "held by the inodes of the guest's private /tmp; those of a workspace are counted",
        ),
    ]
}

fn limit(name: &'static str, needed_for: &'static str, ok: bool, detail: impl Into<String>) -> Check {
    Check::new(name, needed_for, ok, detail).optional()
}
