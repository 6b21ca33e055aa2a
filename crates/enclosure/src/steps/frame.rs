//! The steps that every guest has, whatever its plan.

use super::{MADE, OLD, QUIET, cpath, cstring, path};
use crate::guest::Guest;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use sys::arena;
use sys::op::{Attr, Op};
use terms::{ErrorKind, Fault};

pub(super) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of /proc that tell about the machine, not about the guest. Those that more than root may read are covered;
/// a guest is never root.
const HIDDEN_PROC: [&str; 15] = [
    "kcore",
    "kmsg",
    "kallsyms",
    "keys",
    "key-users",
    "timer_list",
    "interrupts",
    "sched_debug",
    "latency_stats",
    "sysrq-trigger",
    "slabinfo",
    "vmallocinfo",
    "modules",
    "iomem",
    "ioports",
];

/// Directories that the frame has.
pub(super) const FRAME_DIRS: [&str; 7] = ["/", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/proc", "/tmp"];

/// The first steps of every guest, whatever its plan: its ids, a new root, and the devices in it. They can be walked
/// before there is a plan, and before there is a first process.
pub fn frame(guest: &Guest) -> Result<Vec<Op>, Fault> {
    let mut ops = Vec::with_capacity(128);
    // What needs no ids is done while the supervisor writes their maps.
    ops.extend([Op::PrivateMounts, Op::Loopback, Op::AwaitSupervisor]);
    ops.push(Op::Identity { uid: guest.uid, gid: guest.gid, drop_groups: guest.privileged });
    // Any directory will do as the place to stand on; it is uncovered again by the pivot.
    let stand = ["/tmp", "/mnt", "/run", "/var", "/usr"].into_iter().find(|d| Path::new(d).is_dir());
    let stand = stand.ok_or_else(|| Fault::new(ErrorKind::UnsupportedHost, "no directory to build a root on"))?;
    ops.push(Op::Tmpfs { at: cstring(stand), options: c"mode=755", attr: QUIET });
    ops.push(Op::Pivot { root: cstring(stand), old: c".old" });
    ops.push(Op::Dir { at: cstring(MADE), mode: 0o700 });
    ops.push(Op::File { at: path(&[MADE, "/file"]), mode: 0, bytes: &[] });
    ops.push(Op::Dir { at: path(&[MADE, "/dir"]), mode: 0 });
    ops.extend(FRAME_DIRS.into_iter().skip(1).map(|at| Op::Dir { at: cstring(at), mode: 0o755 }));
    devices(&mut ops);
    ops.push(Op::BoundCapabilities);
    Ok(ops)
}

fn devices(ops: &mut Vec<Op>) {
    for name in DEVICES {
        let at = path(&["/dev/", name]);
        ops.push(Op::File { at, mode: 0o666, bytes: &[] });
        // A device is written to on a read-only mount as well; its node is the host's, and no lock on it may get there.
        let attr = Attr::NO_SUID.with(Attr::NO_EXEC).with(Attr::READ_ONLY);
        ops.push(Op::BindKnown { from: path(&[OLD, "/dev/", name]), at, attr });
    }
    ops.push(Op::Terminals { at: c"/dev/pts" });
    ops.push(Op::Queues { at: c"/dev/mqueue" });
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        ops.push(Op::Link { at: path(&["/dev/", name]), target: cstring(target) });
    }
}

/// The first steps of every guest's first process, whatever its plan: they need its pid namespace.
pub fn early() -> Vec<Op> {
    let mut ops = vec![Op::TieToSupervisor, Op::Proc { at: c"/proc" }];
    let attr = QUIET.with(Attr::READ_ONLY).with(Attr::NO_EXEC);
    for at in HIDDEN_PROC.iter().map(|name| Path::new("/proc").join(name)).filter(|at| is_open_to_all(at)) {
        ops.push(Op::BindKnown { from: path(&[MADE, "/file"]), at: cpath(&at), attr });
    }
    for (name, value) in crate::limits::shared_caps() {
        let bytes = arena::list(value.to_string().as_bytes());
        ops.push(Op::Put { at: path(&["/proc/sys/user/", name]), bytes });
    }
    ops.push(Op::BindKnown { from: c"/proc/sys", at: c"/proc/sys", attr });
    ops
}

fn is_open_to_all(at: &Path) -> bool {
    std::fs::symlink_metadata(at).is_ok_and(|m| m.mode() & 0o077 != 0)
}
