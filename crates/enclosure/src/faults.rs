//! Faults of a guest's setup and start: which step failed, why a program could not be executed, and what to do about it.

use crate::driver;
use crate::steps::Steps;
use std::path::Path;
use sys::CallError;
use sys::op::{Attr, Op};
use sys::spawn::Report;
use terms::{Denial, ErrorKind, Fault, Phase, Retry};

/// The fault of a program that was refused when it was about to start.
pub(crate) fn start_refused(denial: &Denial) -> Fault {
    let fault = Fault::new(ErrorKind::PolicyDenied, format!("{}: refused by {}", denial.target, denial.rule));
    let fault = fault.exit(126).phase(Phase::Start);
    denial.hint.iter().fold(fault, |fault, hint| fault.hint(hint.clone()))
}

/// The fault of a program that could not be executed.
pub(crate) fn exec_failed(program: &Path, report: &Report) -> Fault {
    const EACCES: i32 = 13;
    const EPERM: i32 = 1;
    let error = std::io::Error::from_raw_os_error(report.errno);
    let name = program.display();
    let fault = match report.errno {
        _ if report.step != 0 => {
            let message = format!("the command could not be started: {error}");
            Fault::new(ErrorKind::UnsupportedHost, message).hint(driver::ASK_DOCTOR)
        }
        ENOENT => {
            let message = format!("{name}: cannot be started: it or its interpreter does not exist inside");
            Fault::new(ErrorKind::NotFound, message).exit(127)
        }
        // The caller may execute it on the host, so the enclosure is the cause.
        EACCES | EPERM if rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok() => {
            Fault::new(ErrorKind::PolicyDenied, format!("{name}: cannot be executed: {error}")).exit(126)
        }
        _ => Fault::invalid(format!("{name}: cannot be executed: {error}")).exit(126),
    };
    fault.phase(Phase::Start)
}

/// The fault of a first process that was killed before exec.
pub(crate) fn vanished() -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, "the guest's first process was killed during setup");
    fault.hint("another process ended it, or memory ran out; try again").phase(Phase::Start)
}

const ENOENT: i32 = 2;
const ENOTDIR: i32 = 20;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;
/// Free bytes below which a file system may have no room for a directory.
const LITTLE_SPACE: u64 = 1 << 20;
const FEW_FILES: u64 = 16;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// The fault of a workspace that cannot be mounted because the file system of its layers is full or read-only. Space
/// comes back, so the same start works later.
fn full_disk(layer: &Path, errno: i32) -> Option<Fault> {
    let disk = rustix::fs::statvfs(layer).ok()?;
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    let has_no_files = disk.f_files > 0 && disk.f_favail < FEW_FILES;
    // The kernel also returns ENOSPC for too many mounts.
    if errno == ENOSPC && free_bytes >= LITTLE_SPACE && !has_no_files {
        return None;
    }
    if !matches!(errno, EROFS | ENOSPC | EDQUOT) {
        return None;
    }
    let is_read_only = disk.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    let state = if is_read_only { " and is read-only" } else { "" };
    let files = if disk.f_files > 0 { format!(" and {} files", disk.f_favail) } else { String::new() };
    let message = format!(
        "the workspace cannot take changes: the file system with its layers ({}) has {} KiB{files} free{state}",
        layer.display(),
        free_bytes >> 10
    );
    let hint = if is_read_only { "mount it writable, then try again" } else { "free some space there, then try again" };
    Some(Fault::new(ErrorKind::Unavailable, message).hint(hint).retry(Retry::Later).phase(Phase::Start))
}

/// The fault of a setup that failed at a step.
pub(crate) fn step_failed(steps: &Steps, report: &Report) -> Fault {
    let error = std::io::Error::from_raw_os_error(report.errno);
    let Some(op) = steps.ops.get(report.step as usize) else {
        return Fault::internal(format!("setup step {}: {error}", report.step)).phase(Phase::Start);
    };
    if matches!(op, Op::AwaitPlaces) {
        let message = format!("the process that prepares the guest's mounts ended during setup: {error}");
        return Fault::internal(message).phase(Phase::Start);
    }
    let said = op.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let step = format!("setup step {} ({said}): {error}", report.step + 1);
    if matches!(report.errno, ENOMEM | EMFILE | ENFILE)
        && let Some(fault) = driver::exhausted(&step, report.errno)
    {
        return fault;
    }
    if let Some(fault) = in_the_way(steps, op, report.errno) {
        return fault;
    }
    if matches!(op, Op::Overlay { attr, .. } if !attr.has(Attr::READ_ONLY))
        && let Some(fault) = steps.top_layer.as_deref().and_then(|layer| full_disk(layer, report.errno))
    {
        return fault;
    }
    if matches!(op, Op::PrivateMounts | Op::Identity { .. } | Op::Proc { .. } | Op::Tmpfs { .. }) {
        return driver::blocked(&CallError { call: op.name(), errno: report.errno });
    }
    let hint = match op {
        Op::Overlay { attr, .. } if !attr.has(Attr::READ_ONLY) => driver::INSTEAD,
        _ => driver::ASK_DOCTOR,
    };
    Fault::new(ErrorKind::UnsupportedHost, step).hint(hint).phase(Phase::Start)
}

/// The fault of a mount below the sandbox's own home, where an earlier run left something else at the mount point.
fn in_the_way(steps: &Steps, op: &Op, errno: i32) -> Option<Fault> {
    const ELOOP: i32 = 40;
    let (Op::Bind { at, .. } | Op::Attach { at, .. }) = op else { return None };
    let blocks = matches!(errno, ENOENT | ENOTDIR | EINVAL | ELOOP);
    if !blocks || !crate::steps::is_below(steps.home.as_deref(), at.to_bytes()) {
        return None;
    }
    let at = String::from_utf8_lossy(at.to_bytes());
    let message = format!(
        "{at}: the sandbox's own home has something else there, so the host's cannot be mounted: {}",
        std::io::Error::from_raw_os_error(errno)
    );
    let hint = "`cofferdam reject --home` empties the home of the sandbox; or leave out the rule that shows the path";
    Some(Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Start))
}

/// The fault of a system call of the supervisor that should not fail.
pub(crate) fn internal(phase: Phase, error: CallError) -> Fault {
    Fault::internal(error.to_string()).phase(phase)
}
