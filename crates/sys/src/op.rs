//! Setup as data: the ordered list of steps that turns a fresh clone into an enclosure.
//! The list is finished before it is walked; a step allocates nothing and decides nothing. Its texts are in the `arena`,
//! where a process sees them that was born before they were written.
//! Every path is opened without following symbolic links, so a tree that changes meanwhile makes a step fail
//! instead of leading it elsewhere.

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

/// Places inside that the supervisor gets a handle on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The private space, for his accounts.
    Scratch,
    Workspace,
    Tmp,
    /// The whole tree as the guest sees it.
    Root,
    /// A tree that the guest has no way to, by its number: a person is asked before anything in it is opened.
    Asked(u8),
}

/// Handles of the sort `Place::Asked`, at most.
pub const MOST_ASKED: usize = 32;

impl Place {
    pub(crate) const COUNT: usize = 4 + MOST_ASKED;

    /// Where its handle is among all.
    pub(crate) fn index(self) -> usize {
        match self {
            Place::Scratch => 0,
            Place::Workspace => 1,
            Place::Tmp => 2,
            Place::Root => 3,
            Place::Asked(number) => 4 + number as usize,
        }
    }

    fn step(self) -> &'static str {
        match self {
            Place::Asked(_) => "open-asked",
            Place::Scratch => "open-scratch",
            Place::Workspace => "open-workspace",
            Place::Tmp => "open-tmp",
            Place::Root => "open-root",
        }
    }
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Waits until the supervisor has written the id maps and joined the groups.
    AwaitSupervisor,
    /// Waits until the first process has walked its first steps, where somebody else walks these.
    AwaitEarly,
    /// Waits until all steps before are done, where somebody else walks them; the first that failed is told.
    AwaitPlaces,
    /// Waits for the entry files of the control groups and moves itself in. A process that moves itself takes no
    /// machine-wide lock; being moved by another costs milliseconds.
    JoinGroups,
    /// Waits for the mounts that the supervisor prepares meanwhile.
    ReceiveMounts,
    /// Takes on the guest's ids; `drop_groups` where the map allows it.
    Identity {
        uid: u32,
        gid: u32,
        drop_groups: bool,
    },
    /// Dies when the supervisor does, and can be neither dumped nor traced.
    TieToSupervisor,
    /// Takes in what its descendants leave behind, where there is no pid namespace to do it.
    TakeOrphans,
    /// Mounts made later reach nobody else, and nobody else's reach us.
    PrivateMounts,
    Tmpfs {
        at: &'static CStr,
        options: &'static CStr,
        attr: Attr,
    },
    /// Makes `root` the root directory, the former one appearing at `old` (relative to the new root).
    Pivot {
        root: &'static CStr,
        old: &'static CStr,
    },
    Dir {
        at: &'static CStr,
        mode: u32,
    },
    File {
        at: &'static CStr,
        mode: u32,
        bytes: &'static [u8],
    },
    Link {
        at: &'static CStr,
        target: &'static CStr,
    },
    /// Writes to a file that stands: a setting of one of the guest's own namespaces.
    Put {
        at: &'static CStr,
        bytes: &'static [u8],
    },
    /// POSIX message queues of the guest's ipc namespace.
    Queues {
        at: &'static CStr,
    },
    /// Binds `from` at `at` with attributes on the whole tree below.
    Bind {
        from: &'static CStr,
        at: &'static CStr,
        attr: Attr,
    },
    /// The same between paths that only we or the system's owner can have made: device nodes, our own files.
    BindKnown {
        from: &'static CStr,
        at: &'static CStr,
        attr: Attr,
    },
    /// Puts in place one of the mounts that were received, by its number.
    Attach {
        slot: usize,
        at: &'static CStr,
    },
    /// Layers directories over one another.
    Overlay {
        at: &'static CStr,
        options: &'static CStr,
        attr: Attr,
    },
    /// A mark that makes a name disappear from the layers below.
    StrikeOut {
        at: &'static CStr,
    },
    Proc {
        at: &'static CStr,
    },
    Terminals {
        at: &'static CStr,
    },
    /// Changes the attributes of the one mount at `at`.
    Seal {
        at: &'static CStr,
        attr: Attr,
    },
    Unmount {
        at: &'static CStr,
    },
    RemoveDir {
        at: &'static CStr,
    },
    RemoveFile {
        at: &'static CStr,
    },
    /// Brings the loopback interface of the new network namespace up.
    Loopback,
    /// Sends a finished batch to the new network namespace's kernel; `what` names it.
    Netlink {
        family: i32,
        batch: &'static [u8],
        what: &'static str,
    },
    /// Opens the sockets at which everything arrives that the guest sends anywhere but to itself. After the batches,
    /// and while there are still privileges. `loopback` are places on its own loopback that lead outside, too; at
    /// most `doors::MOST_LOOPBACK`. `filters` are those of `knock::filter` for both protocols.
    OpenDoors {
        ipv6: bool,
        loopback: &'static [SocketAddr],
        filters: [&'static [Insn]; 2],
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
    /// Stays on these processors, so that `nproc` tells the truth.
    Processors {
        mask: &'static [u64],
    },
    ChangeDir {
        at: &'static CStr,
    },
    /// Keeps a handle on a place for the supervisor.
    OpenPlace {
        at: &'static CStr,
        place: Place,
    },
    /// Makes the guest's own terminal and keeps both ends.
    OpenTerminal {
        at: &'static CStr,
        rows: u16,
        columns: u16,
    },
    NoNewPrivileges,
    DropCapabilities,
    /// Capabilities that no program may bring back.
    BoundCapabilities,
    LandlockRule {
        ruleset: RawFd,
        at: &'static CStr,
        rights: u64,
    },
    LandlockRestrict {
        ruleset: RawFd,
    },
    Seccomp {
        program: &'static [Insn],
        listener: bool,
    },
    /// Hands the kept handles to the supervisor: setup is over.
    Ready,
}

impl Op {
    /// A word for the kind of step, for error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::AwaitSupervisor => "await-supervisor",
            Op::AwaitEarly => "await-early",
            Op::AwaitPlaces => "await-places",
            Op::JoinGroups => "join-groups",
            Op::ReceiveMounts => "receive-mounts",
            Op::Identity { .. } => "identity",
            Op::TieToSupervisor => "tie-to-supervisor",
            Op::TakeOrphans => "take-orphans",
            Op::PrivateMounts => "private-mounts",
            Op::Tmpfs { .. } => "tmpfs",
            Op::Pivot { .. } => "pivot-root",
            Op::Dir { .. } => "dir",
            Op::File { .. } => "file",
            Op::Link { .. } => "symlink",
            Op::Put { .. } => "put",
            Op::Queues { .. } => "mqueue",
            Op::Bind { .. } | Op::BindKnown { .. } => "bind",
            Op::Attach { .. } => "attach",
            Op::Overlay { .. } => "overlay",
            Op::StrikeOut { .. } => "strike-out",
            Op::Proc { .. } => "proc",
            Op::Terminals { .. } => "devpts",
            Op::Seal { .. } => "seal",
            Op::Unmount { .. } => "unmount",
            Op::RemoveDir { .. } => "remove-dir",
            Op::RemoveFile { .. } => "remove-file",
            Op::Loopback => "loopback",
            Op::Netlink { .. } => "netlink",
            Op::OpenDoors { .. } => "open-doors",
            Op::NewNamespace { .. } => "namespace",
            Op::Rlimit { .. } => "rlimit",
            Op::Processors { .. } => "processors",
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
            Op::Put { at, bytes } => write!(f, " {} {}", show(at), String::from_utf8_lossy(bytes).trim_end()),
            Op::Bind { from, at, attr } | Op::BindKnown { from, at, attr } => {
                write!(f, " {} from {}{attr}", show(at), show(from))
            }
            Op::Attach { at, .. } => write!(f, " {}", show(at)),
            Op::Seal { at, attr } => write!(f, " {}{attr}", show(at)),
            Op::Overlay { at, options, attr } => write!(f, " {} {}{attr}", show(at), show(options)),
            Op::Proc { at }
            | Op::StrikeOut { at }
            | Op::Terminals { at }
            | Op::Queues { at }
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
            Op::Processors { mask } => write!(f, " {}", mask.iter().map(|m| m.count_ones()).sum::<u32>()),
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
