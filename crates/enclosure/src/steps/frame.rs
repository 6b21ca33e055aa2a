//! Steps that are the same for every guest.

use super::{MADE, OLD, QUIET, empty};
use crate::guest::Guest;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use sys::arena::{Arena, Text};
use sys::op::{Attr, Op};
use terms::{ErrorKind, Fault};

pub(super) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of /proc about the machine rather than the guest. Those readable by others than root are covered; a guest is
/// never root.
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

/// Directories of the frame.
pub(super) const FRAME_DIRS: [&str; 7] = ["/", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/proc", "/tmp"];

/// Returns the first steps of every guest: its ids, a new root, and the devices in it. They can be carried out before
/// there is a plan, and before there is a first process.
pub fn frame(guest: &Guest, arena: &Arena) -> Result<Vec<Op>, Fault> {
    let mut ops = Vec::with_capacity(128);
    // Steps that need no ids overlap with the supervisor's writing of the id maps.
    ops.extend([Op::PrivateMounts, Op::Loopback, Op::AwaitSupervisor]);
    ops.push(Op::Identity { uid: guest.uid, gid: guest.gid, drop_groups: guest.privileged });
    // Any directory can be the mount point of the new root; pivot_root uncovers it again.
    let stand = ["/tmp", "/mnt", "/run", "/var", "/usr"].into_iter().find(|d| Path::new(d).is_dir());
    let stand = stand.ok_or_else(|| Fault::new(ErrorKind::UnsupportedHost, "no directory to build a root on"))?;
    ops.push(Op::Tmpfs { at: arena.text(stand), options: c"mode=755".into(), attr: QUIET });
    ops.push(Op::Pivot { root: arena.text(stand), old: c".old".into() });
    ops.push(Op::Dir { at: arena.text(MADE), mode: 0o700 });
    ops.push(Op::File { at: joined(arena, &[MADE, "/file"]), mode: 0, bytes: empty() });
    ops.push(Op::Dir { at: joined(arena, &[MADE, "/dir"]), mode: 0 });
    ops.extend(FRAME_DIRS.into_iter().skip(1).map(|at| Op::Dir { at: arena.text(at), mode: 0o755 }));
    devices(&mut ops, arena);
    ops.push(Op::BoundCapabilities);
    Ok(ops)
}

fn devices(ops: &mut Vec<Op>, arena: &Arena) {
    for name in DEVICES {
        let at = joined(arena, &["/dev/", name]);
        ops.push(Op::File { at: at.clone(), mode: 0o666, bytes: empty() });
        // Devices are writable on a read-only mount as well. The node is the host's, and a read-only mount keeps the
        // guest's file locks from it.
        let attr = Attr::NO_SUID.with(Attr::NO_EXEC).with(Attr::READ_ONLY);
        ops.push(Op::BindKnown { from: joined(arena, &[OLD, "/dev/", name]), at, attr });
    }
    ops.push(Op::Devpts { at: c"/dev/pts".into() });
    ops.push(Op::Mqueue { at: c"/dev/mqueue".into() });
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        ops.push(Op::Link { at: joined(arena, &["/dev/", name]), target: arena.text(target) });
    }
}

/// Returns the early steps of every guest's first process, which need its pid namespace.
pub fn early(arena: &Arena) -> Vec<Op> {
    let mut ops = vec![Op::TieToSupervisor, Op::Proc { at: c"/proc".into() }];
    let attr = QUIET.with(Attr::READ_ONLY).with(Attr::NO_EXEC);
    for at in HIDDEN_PROC.iter().map(|name| Path::new("/proc").join(name)).filter(|at| is_open_to_all(at)) {
        ops.push(Op::BindKnown {
            from: joined(arena, &[MADE, "/file"]),
            at: arena.text(at.as_os_str().as_bytes()),
            attr,
        });
    }
    for (name, value) in crate::limits::shared_caps() {
        let bytes = arena.list(value.to_string().as_bytes());
        ops.push(Op::WriteFile { at: joined(arena, &["/proc/sys/user/", name]), bytes });
    }
    ops.push(Op::BindKnown { from: c"/proc/sys".into(), at: c"/proc/sys".into(), attr });
    ops
}

fn is_open_to_all(at: &Path) -> bool {
    std::fs::symlink_metadata(at).is_ok_and(|m| m.mode() & 0o077 != 0)
}

fn joined(arena: &Arena, parts: &[&str]) -> Text {
    arena.text(parts.concat())
}
