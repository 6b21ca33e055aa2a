//! Enforcement drivers: the mechanisms that this host offers, and the faults for those that it lacks.

use rustix::io::Errno;
use sys::core_dumps::{self, Exposed};
use sys::probe::{self, Trial};
use sys::{CallError, host, landlock, spawn};
use terms::{ErrorKind, Fault, Phase, Retry};

/// The set of mechanisms that encloses a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Namespaces, a root of its own, landlock, seccomp.
    Namespaces,
    /// Landlock and seccomp over the host's own tree; only with consent.
    Landlock,
}

/// The name under `degrade` that consents to running without namespaces.
pub const NAMESPACES: &str = "namespaces";

/// Mechanisms that a guest without namespaces lacks, as listed in its outcome.
const WITHOUT_NAMESPACES: [&str; 7] = [
    "namespaces.mount: names and sizes of hidden files can be seen; there is no private /tmp",
    "namespaces.pid: other processes can be seen",
    "namespaces.net: there are no sockets at all instead of an empty network",
    "namespaces.ipc: message queues and shared memory are refused instead of private",
    "namespaces.user: the command has the caller's own user id",
    "namespaces.uts",
    "namespaces.time",
];

/// The namespaces of a guest.
pub const GUEST_NAMESPACES: u64 = spawn::NEW_USER
    | spawn::NEW_MOUNT
    | spawn::NEW_PID
    | spawn::NEW_IPC
    | spawn::NEW_UTS
    | spawn::NEW_NET
    | spawn::NEW_TIME;

/// The chosen driver and the mechanisms that the run will lack, to which the policy consented.
#[derive(Clone, Debug)]
pub struct Found {
    pub driver: Driver,
    pub missing: Vec<String>,
}

/// Takes the strongest driver; a weaker one only where `degrade` names what is given up.
pub fn choose(degrade: &[String]) -> Result<Found, Fault> {
    let mut missing: Vec<String> = landlock::missing(landlock::abi()).into_iter().map(String::from).collect();
    for name in &missing {
        if !degrade.contains(name) {
            return Err(lacks_landlock(name));
        }
    }
    if let Some(exposed) = core_dumps::exposed() {
        if !degrade.iter().any(|name| name == core_dumps::NAME) {
            return Err(exposes_core_dumps(exposed));
        }
        missing.push(exposed.missing());
    }
    // The probe costs time, so it runs only where the policy consents to less; otherwise the clone itself reports the
    // failure.
    if degrade.iter().any(|name| name == NAMESPACES) && !namespaces_work() {
        missing.extend(WITHOUT_NAMESPACES.map(String::from));
        return Ok(Found { driver: Driver::Landlock, missing });
    }
    Ok(Found { driver: Driver::Namespaces, missing })
}

fn namespaces_work() -> bool {
    let mounts = spawn::NEW_USER | spawn::NEW_MOUNT | spawn::NEW_PID;
    probe::attempt(GUEST_NAMESPACES, Trial::Tmpfs).is_ok() && probe::attempt(mounts, Trial::Proc).is_ok()
}

fn exposes_core_dumps(exposed: Exposed) -> Fault {
    let message = format!("a crash inside would pass a core dump to a handler on the host: {}", exposed.cause());
    let hint = format!("{}; or accept this by naming {:?} under \"degrade\"", exposed.fix(), core_dumps::NAME);
    Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Admission)
}

fn lacks_landlock(name: &str) -> Fault {
    let message = format!("this kernel cannot enforce {name} (landlock ABI {})", landlock::abi());
    let hint = match name {
        "landlock" => "boot with `lsm=landlock,…` or use a kernel built with CONFIG_SECURITY_LANDLOCK=y".to_string(),
        _ => format!("use Linux 6.12 or newer, or accept weaker enforcement by naming {name:?} under \"degrade\""),
    };
    Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Admission)
}

pub const ASK_DOCTOR: &str = "`cofferdam doctor` shows what this host offers; `--explain` prints all steps";

/// Hint for hosts where no workspace can be mounted.
pub const INSTEAD: &str = "--read-only shows the directory as it is, --direct changes it at once, `cofferdam create --driver copy` works on a copy";

/// Returns the fault for an indispensable system call that is blocked, e.g. by a container's seccomp filter.
pub fn lacks(call: &str) -> Fault {
    let message = format!("this host does not allow {call}");
    Fault::new(ErrorKind::UnsupportedHost, message).hint(ASK_DOCTOR).phase(Phase::Start)
}

/// Explains why namespaces could not be created, with the smallest change that would help. Exhausted resources (memory,
/// pids, descriptors) are reported as such, not as blocked namespaces.
pub fn blocked(error: &CallError) -> Fault {
    if let Some(fault) = exhausted(&error.to_string(), error.errno) {
        return fault;
    }
    if let Some(place) = covered().filter(|_| error.call == "proc") {
        let message = format!("cannot mount /proc for the guest ({error}): {place} is covered by a mount here");
        let hint = "start it where /proc is complete: in a systemd unit without ProtectKernelLogs=, ProtectKernelTunables= and ProtectProc=, in a container with unmasked system paths";
        return Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Start);
    }
    let (what, fix) = blocker();
    let message = format!("user namespaces are blocked here ({error}): {what}");
    let hint = format!("{fix}; or accept a weaker enclosure by naming \"namespaces\" under \"degrade\"");
    Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Start)
}

/// Returns a mount over part of our /proc. The kernel then refuses a new proc mount in a user namespace
/// (`mount_too_revealing`).
fn covered() -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    // binfmt_misc is the kernel's own empty mount point and hides nothing.
    places.find(|at| at.starts_with("/proc/") && *at != "/proc/sys/fs/binfmt_misc").map(str::to_owned)
}

const KINDS: [&str; 8] = ["user", "mnt", "pid", "net", "ipc", "uts", "time", "cgroup"];

/// Returns the kind of namespace whose limit an administrator set to 0, as opposed to one that is used up.
fn forbidden() -> Option<&'static str> {
    let most = |kind: &str| host::kernel_file(&format!("/proc/sys/user/max_{kind}_namespaces"));
    KINDS.into_iter().find(|kind| most(kind).is_some_and(|most| most.trim() == "0"))
}

/// Returns the fault for a `step` that failed for want of a resource; `None` where it failed for another reason.
pub fn exhausted(step: &str, errno: i32) -> Option<Fault> {
    let errno = Errno::from_raw_os_error(errno);
    let (what, fix) = match errno {
        Errno::NOMEM => {
            ("the kernel is out of memory", "free some, or raise the limit of the control group of cofferdam")
        }
        Errno::AGAIN => {
            ("the limit on processes is reached", "see `ulimit -u`, and pids.max of the control group of cofferdam")
        }
        Errno::NFILE | Errno::MFILE => ("the limit on open files is reached", "see `ulimit -n` and fs.file-max"),
        Errno::NOSPC if forbidden().is_none() => (
            "the limit on namespaces or mounts is reached",
            "see user.max_user_namespaces, user.max_mnt_namespaces and fs.mount-max (sysctl)",
        ),
        _ => return None,
    };
    let fault = Fault::new(ErrorKind::Unavailable, format!("the enclosure could not be created: {what} ({step})"));
    Some(fault.hint(fix).retry(Retry::Later).phase(Phase::Start))
}

/// Returns the reason why user namespaces are blocked, and the smallest fix.
pub fn blocker() -> (String, String) {
    let read = |path: &str| std::fs::read_to_string(path).map(|s| s.trim().to_string()).ok();
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        let fix = "give this binary an AppArmor profile that allows `userns,` (see docs/guide/install.md)";
        return ("AppArmor restricts unprivileged user namespaces".into(), fix.into());
    }
    if read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        return ("kernel.unprivileged_userns_clone is 0".into(), "sysctl kernel.unprivileged_userns_clone=1".into());
    }
    if let Some(kind) = forbidden() {
        return (format!("user.max_{kind}_namespaces is 0"), format!("sudo sysctl -w user.max_{kind}_namespaces=1024"));
    }
    let status = read("/proc/self/status").unwrap_or_default();
    let filtered = status.lines().any(|l| l.strip_prefix("Seccomp:").is_some_and(|v| v.trim() == "2"));
    if filtered {
        let fix = "start the container with a seccomp profile that allows clone with namespaces (docker run --security-opt seccomp=…)";
        return ("a seccomp filter of the container forbids them".into(), fix.into());
    }
    ("the kernel refuses them without saying why".into(), "run `cofferdam doctor`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 10
    #[test]
    fn a_machine_at_its_end_blocks_nothing() {
        for (errno, says) in [
            (12, "out of memory"),
            (11, "limit on processes"),
            (24, "limit on open files"),
            (28, "limit on namespaces"),
        ] {
            let fault = blocked(&CallError { call: "mount(tmpfs)", errno });
            assert_eq!((fault.error_kind, fault.retry), (ErrorKind::Unavailable, Retry::Later), "{fault}");
            assert!(fault.message.contains(says) && fault.message.contains("mount(tmpfs)"), "{fault}");
            assert!(!fault.message.contains("blocked") && fault.hint.is_some(), "{fault}");
        }
        let fault = blocked(&CallError { call: "clone3", errno: 1 });
        assert!(
            fault.error_kind == ErrorKind::UnsupportedHost && fault.message.contains("blocked"),
            "control: {fault}"
        );
    }
}
