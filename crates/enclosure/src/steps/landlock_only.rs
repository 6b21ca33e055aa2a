//! Steps of the second driver: landlock and seccomp over the host's own tree, for hosts without user namespaces.
//! Weaker, and only with consent; rules that it cannot enforce are refused. No network, no sockets, no queues, no
//! private /tmp; names and sizes of hidden files are visible, and so are other processes.

use super::{StepInputs, Steps, of_kind};
use crate::spec::GuestSpec;
use policy::{ExecPlan, Grant, HostFileType, Perm, Perms};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use sys::op::Op;
use sys::{landlock, seccomp};
use terms::{ErrorKind, Fault, Phase};

const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

pub(super) fn build(spec: &GuestSpec, basis: StepInputs) -> Result<Steps, Fault> {
    let StepInputs { guest, arena, ruleset, .. } = basis;
    check(spec)?;
    let mut ops = Vec::new();
    if guest.privileged {
        // Root's guest has ids without any files; without id-mapped mounts it can read what is world-readable.
        ops.push(Op::Identity { uid: guest.host_uid, gid: guest.host_gid, drop_groups: true });
    }
    ops.extend([Op::TieToSupervisor, Op::Subreaper]);
    ops.push(Op::ChangeDir { at: arena.text(spec.cwd.as_os_str().as_bytes()) });
    if let Some((rows, columns)) = spec.stdio.terminal_size() {
        ops.push(Op::OpenTerminal { at: c"/dev/ptmx".into(), rows, columns });
    }
    if crate::limits::wants_group(&spec.limits, &spec.cpus) {
        ops.push(Op::JoinGroups);
    }
    ops.extend(crate::limits::ops(&spec.cpus, &arena));
    ops.push(Op::NoNewPrivileges);
    let abi = landlock::abi();
    let fd = ruleset.as_raw_fd();
    let mut rule = |at: &Path, rights: u64| {
        let rights = rights & landlock::rights(abi);
        if rights != 0 && at.exists() {
            ops.push(Op::LandlockRule { ruleset: fd, at: arena.text(at.as_os_str().as_bytes()), rights });
        }
    };
    let device = Perms::of(&[Perm::ReadFile, Perm::WriteFile, Perm::IoctlDev]).bits();
    DEVICES.iter().for_each(|at| rule(Path::new(at), device));
    rule(Path::new("/dev/pts"), device | Perms::of(&[Perm::ReadDir]).bits());
    rule(Path::new("/proc"), Perms::READ.bits());
    let mut grants = Vec::new();
    for grant in &spec.plan.grants {
        beside_private(grant.clone(), &mut grants)?;
    }
    for grant in &grants {
        rule(&grant.path, of_kind(grant.perms.bits(), grant.kind));
    }
    ops.push(Op::LandlockRestrict { ruleset: fd });
    ops.extend([Op::BoundCapabilities, Op::DropCapabilities]);
    let watch = spec.watch(&guest);
    ops.push(Op::Seccomp { program: arena.list(&seccomp::program(&watch)), listener: watch.listener });
    ops.push(Op::Ready);
    let (mounts, skeleton) = (Vec::new(), Vec::new());
    Ok(Steps { ops, own: 0, _ruleset: ruleset, mounts, watch, guest, skeleton, top_layer: None, home: None })
}

/// Splits a grant above /tmp or /var/tmp into grants of the entries beside it: the grant does not include the private
/// directory, but a landlock rule would apply to everything below.
fn beside_private(grant: Grant, all: &mut Vec<Grant>) -> Result<(), Fault> {
    let ends_at = |place: &Path| place.starts_with(&grant.path) && !grant.covers(place);
    if grant.kind != HostFileType::Dir || !policy::PRIVATE.iter().any(|place| ends_at(Path::new(place))) {
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
        // The target of a symbolic link has a grant of its own, or none.
        if kind.is_symlink() || !grant.covers(&path) {
            continue;
        }
        let kind = if kind.is_dir() { HostFileType::Dir } else { HostFileType::File };
        beside_private(Grant { path, kind, ..grant.clone() }, all)?;
    }
    Ok(())
}

/// Refuses rules that only mounts could enforce.
fn check(spec: &GuestSpec) -> Result<(), Fault> {
    let refuse = |rule: &str, what: &str| {
        let message = format!("{rule}: {what}, which needs namespaces");
        let hint = "leave the rule out, or run where user namespaces are allowed (`cofferdam doctor`)";
        Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
    };
    if let Some(mask) = spec.plan.masks.first() {
        return refuse(&mask.rule, &format!("{} is denied inside what is allowed", mask.path.display()));
    }
    match &spec.plan.exec {
        ExecPlan::AllowBut(denied) => {
            if let Some(program) = denied.first() {
                let what = if program.asked { "needs a question before it starts" } else { "must not be executed" };
                return refuse(&program.rule, &format!("{} {what}", program.path.display()));
            }
        }
        ExecPlan::Only { .. } => return refuse("defaults.exec", "only listed programs may start"),
    }
    for (kind, set) in [("disk_mb", spec.limits.max_disk_mb.is_some()), ("files", spec.limits.max_files.is_some())] {
        if set {
            return refuse(&format!("limits.max_{kind}"), "there is no private space to limit");
        }
    }
    Ok(())
}
