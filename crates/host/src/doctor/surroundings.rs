//! Environment of this process: container, security modules, control group layout.

use super::Check;
use super::blocker::HostFacts;
use std::path::Path;
use sys::cgroup::{HierarchyKind, Layout};

pub fn checks(facts: &HostFacts) -> Vec<Check> {
    vec![
        container(facts),
        modules(facts),
        apparmor(facts),
        selinux(facts),
        yama(facts),
        lockdown(facts),
        core_dumps(),
        cgroups(),
    ]
}

fn fact(name: &'static str, needed_for: &'static str, detail: impl Into<String>) -> Check {
    Check::new(name, needed_for, true, detail).optional()
}

fn container(facts: &HostFacts) -> Check {
    let detail = facts.container.map_or("none".to_owned(), |kind| format!("this process runs in one ({kind})"));
    fact("host.container", "nothing; its runtime may block namespaces", detail)
}

fn modules(facts: &HostFacts) -> Check {
    let list = facts.lsms.clone().unwrap_or_else(|| "unknown: securityfs is not mounted".into());
    fact("host.lsm", "landlock must be among them", list)
}

fn apparmor(facts: &HostFacts) -> Check {
    let detail = match (&facts.apparmor_profile, facts.apparmor_restricts) {
        (None, _) => "not active".to_owned(),
        (Some(profile), true) => format!("profile {profile}; restricts user namespaces of ordinary users"),
        (Some(profile), false) => format!("profile {profile}"),
    };
    fact("host.apparmor", "nothing; may block user namespaces", detail)
}

fn selinux(facts: &HostFacts) -> Check {
    fact("host.selinux", "nothing; may block mounts", facts.selinux.unwrap_or("not active"))
}

/// Checks Yama's ptrace_scope: 0 to 2 permit a supervisor to read its own guest's memory; 3 forbids ptrace altogether.
fn yama(facts: &HostFacts) -> Check {
    let detail = facts.yama.map_or("not active".to_owned(), |scope| format!("ptrace_scope {scope}"));
    Check::new("host.yama", "refusals are reported with their path", facts.yama != Some(3), detail)
        .optional()
        .fix("kernel.yama.ptrace_scope=3 lasts until reboot; set 2 in /etc/sysctl.d and reboot. Walls hold meanwhile; reports lack paths")
}

fn lockdown(facts: &HostFacts) -> Check {
    let detail = facts.lockdown.clone().unwrap_or_else(|| "not active".into());
    fact("host.lockdown", "nothing; all we need works under it", detail)
}

fn core_dumps() -> Check {
    let exposed = sys::core_dumps::exposed();
    let detail = exposed.map_or("core dumps of guests are not delivered", |exposed| exposed.cause());
    let check =
        Check::new("host.core_dumps", "every run: a crash inside starts no handler outside", exposed.is_none(), detail);
    check.fix(exposed.map_or("", |exposed| exposed.fix()))
}

fn cgroups() -> Check {
    let layout = Layout::detect(Path::new("/"));
    let (ok, detail) = match layout.kind {
        HierarchyKind::V2 => (true, "v2"),
        HierarchyKind::V1 => (true, "v1"),
        HierarchyKind::Hybrid => (true, "v1 with a v2 tree beside it"),
        HierarchyKind::None => (false, "no cgroup filesystem is mounted"),
    };
    Check::new("host.cgroup", "limits on memory, processes and processor time", ok, detail)
        .optional()
        .fix("mount -t cgroup2 cgroup2 /sys/fs/cgroup (as root)")
}
