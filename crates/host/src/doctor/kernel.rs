//! Kernel features, each tried rather than looked up.

use super::Check;
use super::blocker::{HostFacts, blocked};
use std::os::fd::AsFd;
use sys::probe::{self, Trial};
use sys::spawn::{NEW_CGROUP, NEW_IPC, NEW_MOUNT, NEW_NET, NEW_PID, NEW_TIME, NEW_USER, NEW_UTS};
use sys::{CallError, host};

pub fn version(facts: &HostFacts) -> Check {
    let arch = std::env::consts::ARCH;
    let known = matches!(arch, "x86_64" | "aarch64");
    Check::new("kernel", "everything", known, format!("Linux {} on {arch}", facts.release))
        .fix("use the build for x86_64 or aarch64; system call filters exist for these two")
}

pub fn namespaces(facts: &HostFacts) -> Vec<Check> {
    const USER: &str = "every run: the guest is nobody on the host";
    let mut checks = vec![tried("namespace.user", USER, facts, "user", probe::attempt(NEW_USER, Trial::Namespaces))];
    for (name, kind, flag, needed_for) in [
        ("namespace.mount", "mnt", NEW_MOUNT, "every run: a file tree of its own"),
        ("namespace.pid", "pid", NEW_PID, "every run: the guest sees and signals only its own processes"),
        ("namespace.net", "net", NEW_NET, "every run: no network but its own loopback"),
        ("namespace.ipc", "ipc", NEW_IPC, "every run: queues and shared memory of its own"),
        ("namespace.uts", "uts", NEW_UTS, "every run: a host name of its own"),
        ("namespace.cgroup", "cgroup", NEW_CGROUP as u64, "every run: the host's groups are not shown"),
        ("namespace.time", "time", NEW_TIME, "every run: the host's uptime is not shown"),
    ] {
        checks.push(tried(name, needed_for, facts, kind, probe::attempt(NEW_USER | flag, Trial::Namespaces)));
    }
    checks
}

/// Checks what a guest with network rules needs beyond a network namespace: packet rules that redirect all traffic to
/// our sockets.
pub fn doors(facts: &HostFacts) -> Check {
    const NAME: &str = "network.doors";
    const NEEDED_FOR: &str = "runs with network rules: connections are led to the broker (nf_tables with tproxy)";
    let ipv6 = sys::net::has_ipv6();
    let (routes, rules) = (sys::netlink::routes(ipv6), sys::netfilter::rules(ipv6, &[]));
    let filters = [false, true].map(|ipv6| sys::syn_capture::filter(ipv6, &[]));
    let filters = filters.each_ref().map(Vec::as_slice);
    let trial = Trial::Doors { routes: &routes, rules: &rules, filters, ipv6 };
    match probe::attempt(NEW_USER | NEW_NET, trial) {
        Err(error) if matches!(error.call, "routes" | "nf_tables with tproxy" | "transparent sockets") => {
            let fix = if facts.container.is_some() {
                "on the host, as root: modprobe nft_tproxy (kernel built with CONFIG_NF_TABLES, CONFIG_NFT_TPROXY, CONFIG_PACKET)"
            } else {
                "as root: modprobe nft_tproxy (kernel built with CONFIG_NF_TABLES, CONFIG_NFT_TPROXY, CONFIG_PACKET)"
            };
            plain(NAME, NEEDED_FOR, Err(error)).fix(fix)
        }
        result => tried(NAME, NEEDED_FOR, facts, "net", result),
    }
    .optional()
}

pub fn mounts(facts: &HostFacts) -> Vec<Check> {
    let inside = NEW_USER | NEW_MOUNT;
    let mut checks = Vec::new();
    for (name, namespaces, trial, needed_for) in [
        ("mount.tmpfs", inside, Trial::Tmpfs, "every run: a root directory of its own"),
        (
            "mount.tree",
            inside,
            Trial::Tree,
            "every run: granted paths are shown with open_tree, mount_setattr, move_mount",
        ),
        ("mount.proc", inside | NEW_PID, Trial::Proc, "every run: a /proc of its own"),
    ] {
        checks.push(tried(name, needed_for, facts, "mnt", probe::attempt(namespaces, trial)));
    }
    const OVERLAY: &str = "copy-on-write workspaces of ordinary users (overlayfs with userxattr)";
    let overlay = match probe::attempt(inside, Trial::Overlay { user: true }) {
        Err(error) if error.call != "mount overlay" => tried("mount.overlay_user", OVERLAY, facts, "mnt", Err(error)),
        result => plain("mount.overlay_user", OVERLAY, result).fix("use Linux 5.11 or newer with CONFIG_OVERLAY_FS=y"),
    };
    checks.push(overlay.optional());
    if facts.privileged {
        let overlay = probe::attempt(NEW_MOUNT, Trial::Overlay { user: false });
        checks.push(
            plain("mount.overlay_root", "copy-on-write workspaces of root", overlay)
                .optional()
                .fix("load overlayfs: modprobe overlay"),
        );
        checks.push(
            plain("mount.idmapped", "root's runs: the caller's files belong to the guest inside", id_mapped())
                .fix("use Linux 6.3 or newer, where tmpfs mounts can be id-mapped"),
        );
    }
    let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let detail = fuse.as_ref().map_or_else(|e| format!("/dev/fuse: {}", e.kind()), |_| "/dev/fuse opens".into());
    checks.push(
        Check::new("device.fuse", "nothing yet; file systems served by a program", fuse.is_ok(), detail).optional(),
    );
    checks
}

fn id_mapped() -> Result<(), CallError> {
    const GUEST_UID: u32 = 0x7000_0000;
    let ids = host::id_map(0, GUEST_UID, 0, GUEST_UID)?;
    probe::attempt(NEW_MOUNT, Trial::IdMapped { ids: ids.namespace.as_fd() })
}

/// Landlock rights that we rely on: the ABI and kernel that introduced each, and its purpose.
const LANDLOCK: [(&str, u32, &str, &str); 5] = [
    ("landlock", 1, "5.13", "every run: a second restriction on files besides mounts"),
    ("landlock.refer", 2, "5.19", "every run: renames between directories follow the rules"),
    ("landlock.truncate", 3, "6.2", "every run: emptying a file counts as writing it"),
    ("landlock.ioctl_dev", 5, "6.10", "every run: no device commands on granted devices"),
    ("landlock.scope", 6, "6.12", "every run: no signals and abstract sockets past the enclosure"),
];

pub fn landlock(facts: &HostFacts) -> Vec<Check> {
    let abi = sys::landlock::abi();
    let check = |(name, since, kernel, needed_for): (&'static str, u32, &str, &'static str)| {
        let ok = abi >= since;
        let detail = match (ok, abi) {
            (true, _) => format!("ABI {abi} (there since {since}, Linux {kernel})"),
            (false, 0) => landlock_absence(facts),
            (false, _) => format!("ABI {abi}; needs ABI {since}, Linux {kernel}"),
        };
        let fix = if abi == 0 {
            landlock_fix(facts)
        } else {
            format!("use Linux {kernel} or newer; or consent with \"degrade\": [\"{name}\"] in the policy")
        };
        Check::new(name, needed_for, ok, detail).fix(fix)
    };
    LANDLOCK.into_iter().map(check).collect()
}

fn landlock_absence(facts: &HostFacts) -> String {
    match &facts.lsms {
        Some(list) if list.split(',').any(|l| l == "landlock") => {
            "active, but its calls are refused to this process".into()
        }
        Some(list) => format!("not among the active security modules ({list})"),
        None => "its calls fail".into(),
    }
}

fn landlock_fix(facts: &HostFacts) -> String {
    match &facts.lsms {
        Some(list) if list.split(',').any(|l| l == "landlock") => {
            "let the container's seccomp profile pass landlock_create_ruleset, landlock_add_rule, landlock_restrict_self".into()
        }
        // The list replaces the default one, so the modules that are active now must stay in it.
        Some(list) => format!("boot with lsm=landlock,{list} (kernel built with CONFIG_SECURITY_LANDLOCK=y)"),
        None => "use a kernel built with CONFIG_SECURITY_LANDLOCK=y, with landlock in its lsm= list".into(),
    }
}

pub fn seccomp(facts: &HostFacts) -> Vec<Check> {
    const ERRNO: u32 = 0x0005_0000;
    const USER_NOTIF: u32 = 0x7fc0_0000;
    const KILL_PROCESS: u32 = 0x8000_0000;
    let answers = [ERRNO, KILL_PROCESS].into_iter().try_for_each(probe::seccomp_action);
    let filter = plain("seccomp.filter", "every run: only known system calls", answers)
        .fix("use a kernel built with CONFIG_SECCOMP_FILTER=y");
    let sizes = probe::seccomp_action(USER_NOTIF).and_then(|()| probe::notification_sizes());
    let listens = probe::attempt(0, Trial::Listener);
    let works = sizes.is_ok() && listens.is_ok();
    let detail = match (&sizes, &listens) {
        (Ok([call, answer, data]), Ok(())) => format!("sizes {call}, {answer}, {data} bytes"),
        (Err(e), _) | (_, Err(e)) => error_text(e),
    };
    const EBUSY: i32 = 16;
    let nested = matches!(&listens, Err(e) if e.errno == EBUSY);
    let fix = if nested {
        "a listener already watches this process: run outside the sandbox or container that installed it"
    } else {
        "use Linux 5.0 or newer; in a container, let its seccomp profile pass seccomp(2)"
    };
    let notify =
        Check::new("seccomp.notify", "every run: refusals are reported with their path", works, detail).fix(fix);
    let killable = Check::new(
        "seccomp.wait_killable",
        "every run: a waiting guest is not disturbed by signals",
        probe::supports_wait_killable(),
        "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 6.0",
    )
    .fix("use Linux 6.0 or newer");
    let outer = Check::new(
        "seccomp.outer",
        "nothing; reports a filter of the container",
        !facts.filtered,
        if facts.filtered {
            "a filter already applies to this process; calls that it refuses fail inside, too"
        } else {
            "no filter applies to this process"
        },
    )
    .optional();
    vec![filter, notify, killable, outer]
}

pub fn calls(facts: &HostFacts) -> Vec<Check> {
    let about = |call: &str| match call {
        "pidfd" => ("call.pidfd", "every run: processes are named by handle", "5.3"),
        "clone3" => ("call.clone3", "every run: all namespaces and the group in one step", "5.5"),
        "close_range" => ("call.close_range", "every run: no descriptor of the caller leaks", "5.9"),
        "openat2" => ("call.openat2", "every run: granted paths are opened without following links", "5.6"),
        _ => ("call.process_vm_readv", "every run: refusals are reported with their path", "3.2"),
    };
    let check = |(call, result): (&'static str, Result<(), CallError>)| {
        let (name, needed_for, kernel) = about(call);
        let fix = if facts.filtered {
            format!("let the container's seccomp profile pass {call}")
        } else {
            format!("use Linux {kernel} or newer")
        };
        plain(name, needed_for, result).fix(fix)
    };
    probe::calls().into_iter().map(check).collect()
}

/// Builds a check whose failure is explained by what blocks namespaces here.
fn tried(
    name: &'static str,
    needed_for: &'static str,
    facts: &HostFacts,
    kind: &str,
    result: Result<(), CallError>,
) -> Check {
    match result {
        Ok(()) => Check::new(name, needed_for, true, "works"),
        Err(error) => {
            let found = blocked(facts, kind, &error);
            Check::new(name, needed_for, false, format!("{}: {}", error_text(&error), found.why)).fix(found.fix)
        }
    }
}

fn plain(name: &'static str, needed_for: &'static str, result: Result<(), CallError>) -> Check {
    match result {
        Ok(()) => Check::new(name, needed_for, true, "works"),
        Err(error) => Check::new(name, needed_for, false, error_text(&error)),
    }
}

/// Formats an error such as `mount proc: Operation not permitted`, without the number.
fn error_text(error: &CallError) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
