//! Diagnosis of refused user namespaces and mounts, with the narrowest change that would allow them to this program
//! only.

use super::Env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use sys::CallError;

/// Facts about the host from files and variables; read once, so that the reasoning below is a pure function.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    pub release: String,
    pub privileged: bool,
    pub exe: PathBuf,
    pub container: Option<&'static str>,
    /// A seccomp filter already applies to this process.
    pub filtered: bool,
    pub lsms: Option<String>,
    /// `kernel.apparmor_restrict_unprivileged_userns`
    pub apparmor_restricts: bool,
    /// The AppArmor profile of this process.
    pub apparmor_profile: Option<String>,
    /// `kernel.unprivileged_userns_clone` is 0.
    pub clone_sysctl_off: bool,
    /// Kinds whose `user.max_*_namespaces` is 0.
    pub zero_limits: Vec<String>,
    pub selinux: Option<&'static str>,
    pub yama: Option<u32>,
    pub lockdown: Option<String>,
}

const KINDS: [&str; 8] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];

impl HostFacts {
    pub fn read(env: &Env, exe: &Path) -> HostFacts {
        let zero = |kind: &&str| read(&format!("/proc/sys/user/max_{kind}_namespaces")).as_deref() == Some("0");
        let selinux = match read("/sys/fs/selinux/enforce").as_deref() {
            Some("1") => Some("enforcing"),
            Some(_) => Some("permissive"),
            None => None,
        };
        HostFacts {
            release: read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
            privileged: sys::host::is_privileged(),
            exe: std::fs::canonicalize(exe).unwrap_or_else(|_| exe.to_path_buf()),
            container: container(env),
            filtered: status_field("Seccomp:").as_deref() == Some("2"),
            lsms: read("/sys/kernel/security/lsm"),
            apparmor_restricts: read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1"),
            apparmor_profile: apparmor_profile(),
            clone_sysctl_off: read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0"),
            zero_limits: KINDS.iter().filter(|k| zero(k)).map(|k| (*k).to_owned()).collect(),
            selinux,
            yama: read("/proc/sys/kernel/yama/ptrace_scope").and_then(|v| v.parse().ok()),
            lockdown: read("/sys/kernel/security/lockdown").and_then(|v| chosen(&v)),
        }
    }
}

pub fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn status_field(name: &str) -> Option<String> {
    let status = read("/proc/self/status")?;
    status.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned())
}

/// Returns the selected word of a list: `none [integrity] confidentiality` means integrity.
fn chosen(list: &str) -> Option<String> {
    list.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']')).map(str::to_owned)
}

fn apparmor_profile() -> Option<String> {
    if read("/sys/module/apparmor/parameters/enabled").as_deref() != Some("Y") {
        return None;
    }
    let current = read("/proc/self/attr/apparmor/current").or_else(|| read("/proc/self/attr/current"))?;
    Some(current.trim_end_matches('\0').to_owned())
}

fn variable<'a>(env: &'a Env, name: &str) -> Option<&'a OsStr> {
    env.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_os_str())
}

/// Detects the container runtime of this process, by the marks that each leaves.
fn container(env: &Env) -> Option<&'static str> {
    let exists = |path: &str| Path::new(path).exists();
    if variable(env, "KUBERNETES_SERVICE_HOST").is_some() || exists("/var/run/secrets/kubernetes.io") {
        return Some("kubernetes");
    }
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let marks = [
        ("kubepods", "kubernetes"),
        ("libpod", "podman"),
        ("docker", "docker"),
        ("/lxc", "lxc"),
        ("machine.slice", "nspawn"),
    ];
    if let Some((_, kind)) = marks.into_iter().find(|(mark, _)| groups.contains(mark)) {
        return Some(kind);
    }
    if exists("/run/.containerenv") {
        return Some("podman");
    }
    if exists("/.dockerenv") {
        return Some("docker");
    }
    // Only root may read the environment of pid 1; systemd writes the same word to a file for all.
    let said =
        variable(env, "container").map(OsStr::to_owned).or_else(|| read("/run/systemd/container").map(Into::into));
    match said?.to_str() {
        Some("podman" | "oci") => Some("podman"),
        Some("docker") => Some("docker"),
        Some("lxc" | "lxc-libvirt") => Some("lxc"),
        Some("systemd-nspawn") => Some("nspawn"),
        _ => Some("other"),
    }
}

/// The reason for a refusal, and a fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub why: String,
    pub fix: String,
}

/// Explains why a namespace of this kind (`user`, `mnt`, …), or a mount in one, was refused.
pub fn blocked(facts: &HostFacts, kind: &str, error: &CallError) -> Blocked {
    const ENOSPC: i32 = 28;
    const ENOSYS: i32 = 38;
    const EINVAL: i32 = 22;
    // Namespaces of other kinds are made inside a user namespace, so a limit on those counts for all.
    let zero = facts.zero_limits.iter().find(|k| *k == kind || *k == "user");
    if let (ENOSPC, Some(kind)) = (error.errno, zero) {
        return Blocked {
            why: format!("user.max_{kind}_namespaces is 0"),
            fix: format!(
                "sudo sysctl -w user.max_{kind}_namespaces=1024 (a bound per user; enough for {} runs at a time)",
                1024
            ),
        };
    }
    if error.errno == ENOSPC {
        return Blocked {
            why: format!("no more {kind} namespaces: too many are in use or they are nested too deep"),
            fix: format!("raise user.max_{kind}_namespaces, or end what holds them (lsns -t {kind})"),
        };
    }
    if facts.apparmor_restricts && !facts.privileged {
        return Blocked {
            why:
                "AppArmor restricts user namespaces of ordinary users (kernel.apparmor_restrict_unprivileged_userns=1)"
                    .into(),
            fix: apparmor_fix(&facts.exe),
        };
    }
    if facts.clone_sysctl_off && !facts.privileged {
        return Blocked {
            why: "kernel.unprivileged_userns_clone is 0: only root may create user namespaces".into(),
            fix: "run it as root (guests still run as nobody): sudo cofferdam …; where that is no option, \
                  sudo sysctl -w kernel.unprivileged_userns_clone=1"
                .into(),
        };
    }
    if matches!(error.errno, ENOSYS | EINVAL) && !facts.filtered {
        return Blocked {
            why: format!("this kernel ({}) has no {kind} namespaces, or not the call for them", facts.release),
            fix: "use a kernel of 6.12 or newer with CONFIG_NAMESPACES=y and CONFIG_USER_NS=y".into(),
        };
    }
    if facts.filtered || facts.container.is_some() {
        return Blocked { why: container_why(facts), fix: container_fix(facts.container) };
    }
    Blocked {
        why: "the kernel refuses without a visible reason: a security module, or a chroot we run in".into(),
        fix: "see `dmesg` and `journalctl -k` for a denial; outside a chroot, run the binary directly".into(),
    }
}

fn container_why(facts: &HostFacts) -> String {
    let whose = facts.container.map_or(String::new(), |kind| format!(" of this container ({kind})"));
    match &facts.apparmor_profile {
        Some(profile) if !profile.starts_with("unconfined") => {
            format!("the seccomp filter{whose} or its AppArmor profile {profile} forbids it")
        }
        _ if facts.filtered => format!("the seccomp filter{whose} forbids it"),
        _ => format!("the runtime{whose} forbids it"),
    }
}

/// System calls that a container's own filter must allow, beside its defaults.
const CALLS: &str =
    "clone, clone3, unshare, mount, umount2, pivot_root, open_tree, move_mount, mount_setattr, sethostname";

fn container_fix(kind: Option<&str>) -> String {
    match kind {
        Some("kubernetes") => format!(
            "in the pod: securityContext.seccompProfile {{type: Localhost, localhostProfile: cofferdam.json}}, the runtime's default \
             profile plus {CALLS}; and procMount: Unmasked with hostUsers: false"
        ),
        Some("podman") => format!(
            "podman run --security-opt seccomp=cofferdam.json --security-opt unmask=/proc/* …, where cofferdam.json is \
             /usr/share/containers/seccomp.json plus {CALLS}"
        ),
        Some("lxc") => "lxc config set NAME security.nesting true".into(),
        Some("nspawn") => "systemd-nspawn --system-call-filter='@mount' --private-users=pick …".into(),
        _ => format!(
            "docker run --security-opt seccomp=cofferdam.json --security-opt systempaths=unconfined …, where cofferdam.json is docker's \
             default profile plus {CALLS}; where AppArmor is on, also --security-opt apparmor=PROFILE with `userns,` and `mount,` allowed"
        ),
    }
}

/// Returns an AppArmor profile that permits user namespaces to this one binary and confines nothing else of it.
pub fn apparmor_profile_text(exe: &Path) -> String {
    format!(
        "abi <abi/4.0>,\ninclude <tunables/global>\nprofile cofferdam \"{}\" flags=(unconfined) {{\n  userns,\n}}\n",
        exe.display()
    )
}

fn apparmor_fix(exe: &Path) -> String {
    let profile = apparmor_profile_text(exe);
    format!(
        "install the binary where only root may write, then give it a profile:\n\
         sudo tee /etc/apparmor.d/cofferdam >/dev/null <<'END'\n{profile}END\n\
         sudo apparmor_parser -r /etc/apparmor.d/cofferdam"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: i32) -> CallError {
        CallError { call: "clone3", errno }
    }

    // promise 10
    #[test]
    fn each_blocker_has_its_own_narrow_fix() {
        const EPERM: i32 = 1;
        let plain = || HostFacts { exe: "/usr/bin/cofferdam".into(), release: "6.8".into(), ..HostFacts::default() };
        let cases = [
            (
                HostFacts { zero_limits: vec!["user".into()], ..plain() },
                "user",
                28,
                "max_user_namespaces is 0",
                "user.max_user_namespaces=1024",
            ),
            (
                HostFacts { zero_limits: vec!["user".into()], ..plain() },
                "net",
                28,
                "max_user_namespaces is 0",
                "user.max_user_namespaces=1024",
            ),
            (
                HostFacts { zero_limits: vec!["net".into()], ..plain() },
                "net",
                28,
                "max_net_namespaces is 0",
                "user.max_net_namespaces=1024",
            ),
            (plain(), "user", 28, "too many are in use", "lsns -t user"),
            (
                HostFacts { apparmor_restricts: true, ..plain() },
                "mnt",
                EPERM,
                "AppArmor",
                "profile cofferdam \"/usr/bin/cofferdam\"",
            ),
            (
                HostFacts { clone_sysctl_off: true, ..plain() },
                "user",
                EPERM,
                "unprivileged_userns_clone is 0",
                "sudo cofferdam",
            ),
            (
                HostFacts { filtered: true, container: Some("docker"), ..plain() },
                "user",
                EPERM,
                "(docker)",
                "--security-opt seccomp=",
            ),
            (
                HostFacts { filtered: true, container: Some("podman"), ..plain() },
                "user",
                EPERM,
                "(podman)",
                "podman run",
            ),
            (
                HostFacts { filtered: true, container: Some("kubernetes"), ..plain() },
                "user",
                38,
                "(kubernetes)",
                "seccompProfile",
            ),
            (HostFacts { filtered: true, ..plain() }, "user", EPERM, "seccomp filter forbids", "seccomp="),
            (plain(), "time", 22, "has no time namespaces", "6.12"),
            (plain(), "user", EPERM, "without a visible reason", "dmesg"),
        ];
        for (facts, kind, errno, why, fix) in cases {
            let found = blocked(&facts, kind, &error(errno));
            assert!(found.why.contains(why), "{kind} {errno}: {found:?}");
            assert!(found.fix.contains(fix), "{kind} {errno}: {found:?}");
            // No fix may remove a protection from every program where a fix for this program would do.
            assert!(!found.fix.contains("restrict_unprivileged_userns=0"), "{found:?}");
        }
    }

    #[test]
    fn root_is_not_told_about_restrictions_on_others() {
        let facts =
            HostFacts { privileged: true, apparmor_restricts: true, clone_sysctl_off: true, ..HostFacts::default() };
        let found = blocked(&facts, "user", &error(1));
        assert!(!found.why.contains("AppArmor restricts") && !found.why.contains("userns_clone"), "{found:?}");
    }

    #[test]
    fn the_chosen_word_is_the_bracketed_one() {
        assert_eq!(chosen("none [integrity] confidentiality").as_deref(), Some("integrity"));
        assert_eq!(chosen(""), None);
    }
}
