//! The second driver: landlock and seccomp over the host's own tree, for hosts that allow no namespaces. Weaker, and
//! only with consent; what it cannot hold it refuses. No network, no sockets, no queues, no private /tmp; names and
//! sizes of hidden files can still be seen, and so can other processes.

use crate::ground::Groundwork;
use crate::launch::Request;
use crate::steps::{Steps, of_kind};
use policy::{ExecPlan, Grant, Kind, Perm, Perms};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use sys::op::Op;
use sys::{arena, landlock, seccomp};
use terms::{ErrorKind, Fault, Phase};

/// What the outcome says is missing.
pub const MISSING: [&str; 7] = [
    "namespaces.mount: names and sizes of hidden files can be seen; there is no private /tmp",
    "namespaces.pid: other processes can be seen",
    "namespaces.net: there are no sockets at all instead of an empty network",
    "namespaces.ipc: message queues and shared memory are refused instead of private",
    "namespaces.user: the command has the caller's own user id",
    "namespaces.uts",
    "namespaces.time",
];

const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

pub fn build(request: &Request, ground: &mut Groundwork) -> Result<Steps, Fault> {
    let guest = ground.guest;
    check(request)?;
    let mut ops = Vec::new();
    if guest.privileged {
        // Root's guest is nobody; without shifted mounts it reads what everybody may read.
        ops.push(Op::Identity { uid: guest.host_uid, gid: guest.host_gid, drop_groups: true });
    }
    ops.extend([Op::TieToSupervisor, Op::TakeOrphans]);
    ops.push(Op::ChangeDir { at: arena::text(request.cwd.as_os_str().as_bytes()) });
    if let Some((rows, columns)) = request.stdio.terminal_size() {
        ops.push(Op::OpenTerminal { at: c"/dev/ptmx", rows, columns });
    }
    if crate::limits::wants_group(&request.limits, &request.cpus) {
        ops.push(Op::JoinGroups);
    }
    ops.extend(crate::limits::ops(&request.cpus));
    ops.push(Op::NoNewPrivileges);
    let abi = landlock::abi();
    let ruleset = ground.ruleset()?;
    let fd = ruleset.as_raw_fd();
    let mut rule = |at: &Path, rights: u64| {
        let rights = rights & landlock::rights(abi);
        if rights != 0 && at.exists() {
            ops.push(Op::LandlockRule { ruleset: fd, at: arena::text(at.as_os_str().as_bytes()), rights });
        }
    };
    let device = Perms::of(&[Perm::ReadFile, Perm::WriteFile, Perm::IoctlDev]).bits();
    DEVICES.iter().for_each(|at| rule(Path::new(at), device));
    rule(Path::new("/dev/pts"), device | Perms::of(&[Perm::ReadDir]).bits());
    rule(Path::new("/proc"), Perms::READ.bits());
    let mut grants = Vec::new();
    for grant in &request.plan.grants {
        beside_private(grant.clone(), &mut grants)?;
    }
    for grant in &grants {
        rule(&grant.path, of_kind(grant.perms.bits(), grant.kind));
    }
    ops.push(Op::LandlockRestrict { ruleset: fd });
    ops.extend([Op::BoundCapabilities, Op::DropCapabilities]);
    let watch = request.watch(&guest);
    ops.push(Op::Seccomp { program: arena::list(&seccomp::program(&watch)), listener: watch.listener });
    ops.push(Op::Ready);
    Ok(Steps::of(ops, ruleset, watch, guest))
}

/// A grant from above /tmp or /var/tmp does not reach into it, but landlock's rules reach everything below: so it becomes grants of what
/// is beside.
fn beside_private(grant: Grant, all: &mut Vec<Grant>) -> Result<(), Fault> {
    let ends_at = |place: &Path| place.starts_with(&grant.path) && !grant.covers(place);
    if grant.kind != Kind::Dir || !policy::PRIVATE.iter().any(|place| ends_at(Path::new(place))) {
        all.push(grant);
        return Ok(());
    }
    let unseen = |e: std::io::Error| {
        let message = format!("{}: {}: {e}", grant.rule, grant.path.display());
        Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Planning)
    };
    for entry in std::fs::read_dir(&grant.path).map_err(unseen)? {
        let entry = entry.map_err(unseen)?;
        let kind = entry.file_type().map_err(unseen)?;
        let path = entry.path();
        // What a link leads to has a grant of its own, or none.
        if kind.is_symlink() || !grant.covers(&path) {
            continue;
        }
        let kind = if kind.is_dir() { Kind::Dir } else { Kind::File };
        beside_private(Grant { path, kind, ..grant.clone() }, all)?;
    }
    Ok(())
}

/// What only mounts could hold is refused by name.
fn check(request: &Request) -> Result<(), Fault> {
    let refuse = |rule: &str, what: &str| {
        let message = format!("{rule}: {what}, which needs namespaces");
        let hint = "leave the rule out, or run where user namespaces are allowed (`cofferdam doctor`)";
        Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
    };
    if let Some(mask) = request.plan.masks.first() {
        return refuse(&mask.rule, &format!("{} is denied inside what is allowed", mask.path.display()));
    }
    match &request.plan.exec {
        ExecPlan::AllowBut(denied) => {
            if let Some(program) = denied.first() {
                let what = if program.asked { "is asked about before it starts" } else { "must not be executed" };
                return refuse(&program.rule, &format!("{} {what}", program.path.display()));
            }
        }
        ExecPlan::Only { .. } => return refuse("defaults.exec", "only listed programs may start"),
    }
    for (kind, set) in
        [("disk_mb", request.limits.max_disk_mb.is_some()), ("files", request.limits.max_files.is_some())]
    {
        if set {
            return refuse(&format!("limits.max_{kind}"), "there is no private space to limit");
        }
    }
    Ok(())
}
