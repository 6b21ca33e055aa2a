//! Setup as data: the ordered list of steps that turns a fresh clone into an enclosure. The list is finished before it
//! is executed; a step allocates nothing and decides nothing. Its strings are in an `Arena`, where a process that was
//! cloned before they were written sees them. Every path is opened without following symbolic links, so a tree that
//! changes meanwhile makes a step fail instead of redirecting it.

use crate::arena::{Arena, ArenaRef, Text};
use crate::bpf::Insn;
use std::ffi::CStr;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Mount attributes, as `mount_setattr(2)` takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr(pub u64);

impl Attr {
    pub const READ_ONLY: Attr = Attr(1);
    pub const NO_SUID: Attr = Attr(2);
    pub const NO_DEV: Attr = Attr(4);
    pub const NO_EXEC: Attr = Attr(8);

    pub const fn with(self, other: Attr) -> Attr {
        Attr(self.0 | other.0)
    }

    pub fn has(self, other: Attr) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Directories inside to which the supervisor gets a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsideDir {
    /// The private space, whose usage the supervisor measures.
    Scratch,
    Workspace,
    Tmp,
    /// The whole tree as the guest sees it.
    Root,
    /// A tree that the guest cannot reach, by its number: a person is asked before a file in it is opened.
    Asked(u8),
}

/// Bound on descriptors of `InsideDir::Asked`.
pub const MOST_ASKED: usize = 32;

impl InsideDir {
    pub(crate) const COUNT: usize = 4 + MOST_ASKED;

    /// Index of its descriptor among all places.
    pub(crate) fn index(self) -> usize {
        match self {
            InsideDir::Scratch => 0,
            InsideDir::Workspace => 1,
            InsideDir::Tmp => 2,
            InsideDir::Root => 3,
            InsideDir::Asked(number) => 4 + number as usize,
        }
    }

    fn step(self) -> &'static str {
        match self {
            InsideDir::Asked(_) => "open-asked",
            InsideDir::Scratch => "open-scratch",
            InsideDir::Workspace => "open-workspace",
            InsideDir::Tmp => "open-tmp",
            InsideDir::Root => "open-root",
        }
    }
}

/// A step of the setup.
#[derive(Clone, Debug)]
pub enum Op {
    /// Waits until the supervisor has written the id maps and joined the groups.
    AwaitSupervisor,
    /// Waits until pid 1 has executed its first steps, where the setup helper executes this one.
    AwaitEarly,
    /// Waits until all earlier steps are done, where the setup helper executes them; fails with the first failure.
    AwaitPlaces,
    /// Receives the entry files of the control groups and joins them. A process that moves itself takes no machine-wide
    /// lock; being moved by another process costs milliseconds.
    JoinGroups,
    /// Receives the mounts that the supervisor prepares meanwhile.
    ReceiveMounts,
    /// Sets the guest's ids; `drop_groups` where the id map allows it.
    Identity {
        uid: u32,
        gid: u32,
        drop_groups: bool,
    },
    /// Sets PR_SET_PDEATHSIG, so that the guest dies with the supervisor, and forbids dumping and tracing.
    TieToSupervisor,
    /// Becomes a subreaper of its descendants, where there is no pid namespace.
    Subreaper,
    /// Makes mount propagation private, in both directions.
    PrivateMounts,
    Tmpfs {
        at: Text,
        options: Text,
        attr: Attr,
    },
    /// Makes `root` the root directory, the former one appearing at `old` (relative to the new root).
    Pivot {
        root: Text,
        old: Text,
    },
    Dir {
        at: Text,
        mode: u32,
    },
    File {
        at: Text,
        mode: u32,
        bytes: ArenaRef<[u8]>,
    },
    Link {
        at: Text,
        target: Text,
    },
    /// Writes to an existing file: a sysctl of one of the guest's own namespaces.
    WriteFile {
        at: Text,
        bytes: ArenaRef<[u8]>,
    },
    /// Mounts mqueue, the POSIX message queues of the guest's ipc namespace.
    Mqueue {
        at: Text,
    },
    /// Binds `from` at `at` with attributes on the whole tree below.
    Bind {
        from: Text,
        at: Text,
        attr: Attr,
    },
    /// Like `Bind`, between paths that only we or the system's owner can have made: device nodes, our own files.
    BindKnown {
        from: Text,
        at: Text,
        attr: Attr,
    },
    /// Attaches one of the received mounts, by its number.
    Attach {
        slot: usize,
        at: Text,
    },
    /// Mounts an overlay.
    Overlay {
        at: Text,
        options: Text,
        attr: Attr,
    },
    /// Creates a whiteout, which hides a name of the lower layers.
    Whiteout {
        at: Text,
    },
    Proc {
        at: Text,
    },
    Devpts {
        at: Text,
    },
    /// Changes the attributes of the one mount at `at`.
    SetMountAttr {
        at: Text,
        attr: Attr,
    },
    Unmount {
        at: Text,
    },
    RemoveDir {
        at: Text,
    },
    RemoveFile {
        at: Text,
    },
    /// Brings the loopback interface of the new network namespace up.
    Loopback,
    /// Sends a finished netlink batch in the new network namespace; `what` names it.
    Netlink {
        family: i32,
        batch: ArenaRef<[u8]>,
        what: &'static str,
    },
    /// Opens the doors, at which all traffic arrives that the guest sends anywhere but to itself. After the batches,
    /// and before privileges are dropped. `loopback` are addresses on its own loopback that lead outside, too; at most
    /// `doors::MOST_LOOPBACK`. `filters` are those of `syn_capture::filter` for both protocols.
    OpenDoors {
        ipv6: bool,
        loopback: ArenaRef<[SocketAddr]>,
        filters: [ArenaRef<[Insn]>; 2],
    },
    /// Opens the name server of a guest without doors, which refuses every name. It only explains what is refused
    /// anyway, so a kernel that cannot have it fails no setup. `batch` is `netlink::resolver_address`.
    OpenResolver {
        batch: ArenaRef<[u8]>,
    },
    NewNamespace {
        flags: i32,
        name: &'static str,
    },
    Rlimit {
        resource: u32,
        name: &'static str,
        value: u64,
    },
    /// Sets the cpu affinity, so that `nproc` is right.
    CpuAffinity {
        mask: ArenaRef<[u64]>,
    },
    ChangeDir {
        at: Text,
    },
    /// Opens a directory for the supervisor.
    OpenPlace {
        at: Text,
        place: InsideDir,
    },
    /// Opens the guest's own terminal and keeps both ends.
    OpenTerminal {
        at: Text,
        rows: u16,
        columns: u16,
    },
    NoNewPrivileges,
    DropCapabilities,
    /// Empties the capability bounding set, so that no exec gains capabilities.
    BoundCapabilities,
    LandlockRule {
        ruleset: RawFd,
        at: Text,
        rights: u64,
    },
    LandlockRestrict {
        ruleset: RawFd,
    },
    Seccomp {
        program: ArenaRef<[Insn]>,
        listener: bool,
    },
    /// Sends the collected descriptors to the supervisor: setup is over.
    Ready,
}

impl Op {
    /// Returns the name of the step, for error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::AwaitSupervisor => "await-supervisor",
            Op::AwaitEarly => "await-early",
            Op::AwaitPlaces => "await-places",
            Op::JoinGroups => "join-groups",
            Op::ReceiveMounts => "receive-mounts",
            Op::Identity { .. } => "identity",
            Op::TieToSupervisor => "tie-to-supervisor",
            Op::Subreaper => "take-orphans",
            Op::PrivateMounts => "private-mounts",
            Op::Tmpfs { .. } => "tmpfs",
            Op::Pivot { .. } => "pivot-root",
            Op::Dir { .. } => "dir",
            Op::File { .. } => "file",
            Op::Link { .. } => "symlink",
            Op::WriteFile { .. } => "put",
            Op::Mqueue { .. } => "mqueue",
            Op::Bind { .. } | Op::BindKnown { .. } => "bind",
            Op::Attach { .. } => "attach",
            Op::Overlay { .. } => "overlay",
            Op::Whiteout { .. } => "strike-out",
            Op::Proc { .. } => "proc",
            Op::Devpts { .. } => "devpts",
            Op::SetMountAttr { .. } => "seal",
            Op::Unmount { .. } => "unmount",
            Op::RemoveDir { .. } => "remove-dir",
            Op::RemoveFile { .. } => "remove-file",
            Op::Loopback => "loopback",
            Op::Netlink { .. } => "netlink",
            Op::OpenDoors { .. } => "open-doors",
            Op::OpenResolver { .. } => "open-resolver",
            Op::NewNamespace { .. } => "namespace",
            Op::Rlimit { .. } => "rlimit",
            Op::CpuAffinity { .. } => "processors",
            Op::ChangeDir { .. } => "chdir",
            Op::OpenPlace { place, .. } => place.step(),
            Op::OpenTerminal { .. } => "open-terminal",
            Op::NoNewPrivileges => "no-new-privileges",
            Op::DropCapabilities => "drop-capabilities",
            Op::BoundCapabilities => "bound-capabilities",
            Op::LandlockRule { .. } => "landlock-rule",
            Op::LandlockRestrict { .. } => "landlock",
            Op::Seccomp { .. } => "seccomp",
            Op::Ready => "ready",
        }
    }

    /// Returns true if a process that was cloned after `arena` was made sees everything that this step refers to.
    pub(crate) fn is_in(&self, arena: &Arena) -> bool {
        match self {
            Op::Tmpfs { at, options, .. } | Op::Overlay { at, options, .. } => at.is_in(arena) && options.is_in(arena),
            Op::Pivot { root, old } => root.is_in(arena) && old.is_in(arena),
            Op::File { at, bytes, .. } | Op::WriteFile { at, bytes } => at.is_in(arena) && bytes.is_in(arena),
            Op::Link { at, target } => at.is_in(arena) && target.is_in(arena),
            Op::Bind { from, at, .. } | Op::BindKnown { from, at, .. } => from.is_in(arena) && at.is_in(arena),
            Op::Dir { at, .. }
            | Op::Mqueue { at }
            | Op::Attach { at, .. }
            | Op::Whiteout { at }
            | Op::Proc { at }
            | Op::Devpts { at }
            | Op::SetMountAttr { at, .. }
            | Op::Unmount { at }
            | Op::RemoveDir { at }
            | Op::RemoveFile { at }
            | Op::ChangeDir { at }
            | Op::OpenPlace { at, .. }
            | Op::OpenTerminal { at, .. }
            | Op::LandlockRule { at, .. } => at.is_in(arena),
            Op::Netlink { batch, .. } | Op::OpenResolver { batch } => batch.is_in(arena),
            Op::OpenDoors { loopback, filters, .. } => {
                loopback.is_in(arena) && filters.iter().all(|filter| filter.is_in(arena))
            }
            Op::CpuAffinity { mask } => mask.is_in(arena),
            Op::Seccomp { program, .. } => program.is_in(arena),
            Op::AwaitSupervisor
            | Op::AwaitEarly
            | Op::AwaitPlaces
            | Op::JoinGroups
            | Op::ReceiveMounts
            | Op::Identity { .. }
            | Op::TieToSupervisor
            | Op::Subreaper
            | Op::PrivateMounts
            | Op::Loopback
            | Op::NewNamespace { .. }
            | Op::Rlimit { .. }
            | Op::NoNewPrivileges
            | Op::DropCapabilities
            | Op::BoundCapabilities
            | Op::LandlockRestrict { .. }
            | Op::Ready => true,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<18}", self.name())?;
        match self {
            Op::Identity { uid, gid, drop_groups } => {
                write!(f, " uid {uid} gid {gid}{}", if *drop_groups { ", no groups" } else { "" })
            }
            Op::Tmpfs { at, options, attr } => write!(f, " {} {}{}", show(at), show(options), attr),
            Op::Pivot { root, old } => write!(f, " {} (former root at {})", show(root), show(old)),
            Op::Dir { at, mode } => write!(f, " {} {mode:04o}", show(at)),
            Op::File { at, mode, bytes } => write!(f, " {} {mode:04o}, {} bytes", show(at), bytes.len()),
            Op::Link { at, target } => write!(f, " {} -> {}", show(at), show(target)),
            Op::WriteFile { at, bytes } => write!(f, " {} {}", show(at), String::from_utf8_lossy(bytes).trim_end()),
            Op::Bind { from, at, attr } | Op::BindKnown { from, at, attr } => {
                write!(f, " {} from {}{attr}", show(at), show(from))
            }
            Op::Attach { at, .. } => write!(f, " {}", show(at)),
            Op::SetMountAttr { at, attr } => write!(f, " {}{attr}", show(at)),
            Op::Overlay { at, options, attr } => write!(f, " {} {}{attr}", show(at), show(options)),
            Op::Proc { at }
            | Op::Whiteout { at }
            | Op::Devpts { at }
            | Op::Mqueue { at }
            | Op::Unmount { at }
            | Op::RemoveDir { at }
            | Op::RemoveFile { at }
            | Op::ChangeDir { at }
            | Op::OpenPlace { at, .. } => write!(f, " {}", show(at)),
            Op::Netlink { batch, what, .. } => write!(f, " {what}, {} bytes", batch.len()),
            Op::OpenDoors { ipv6, loopback, .. } => {
                f.write_str(if *ipv6 { " ipv4 ipv6" } else { " ipv4" })?;
                loopback.iter().try_for_each(|place| write!(f, " {place}"))
            }
            Op::NewNamespace { name, .. } => write!(f, " {name}"),
            Op::Rlimit { name, value, .. } => write!(f, " {name} {value}"),
            Op::CpuAffinity { mask } => write!(f, " {}", mask.iter().map(|m| m.count_ones()).sum::<u32>()),
            Op::OpenTerminal { rows, columns, .. } => write!(f, " {columns}x{rows}"),
            Op::LandlockRule { at, rights, .. } => write!(f, " {} {}", show(at), Rights(*rights)),
            Op::Seccomp { program, listener } => {
                write!(f, " {} instructions{}", program.len(), if *listener { ", refusals reported" } else { "" })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (attr, name) in
            [(Attr::READ_ONLY, "ro"), (Attr::NO_SUID, "nosuid"), (Attr::NO_DEV, "nodev"), (Attr::NO_EXEC, "noexec")]
        {
            if self.has(attr) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

struct Rights(u64);

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 16] = [
            "execute",
            "write_file",
            "read_file",
            "read_dir",
            "remove_dir",
            "remove_file",
            "make_char",
            "make_dir",
            "make_reg",
            "make_sock",
            "make_fifo",
            "make_block",
            "make_sym",
            "refer",
            "truncate",
            "ioctl_dev",
        ];
        let named: Vec<_> = (0..16).filter(|bit| self.0 & (1 << bit) != 0).map(|bit| NAMES[bit]).collect();
        f.write_str(&named.join(","))
    }
}

fn show(text: &CStr) -> String {
    text.to_string_lossy().escape_debug().to_string()
}
