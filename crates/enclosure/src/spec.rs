//! The specification of a guest: the command and all decisions about it, and the parts that run beside it. Decides
//! nothing.

use crate::approval::Approvals;
use crate::driver::{Driver, Found};
use crate::guest::Guest;
use crate::idmap::is_system;
use crate::limits::Cpus;
use crate::network::{NetPlan, Network};
use crate::publish::Published;
use crate::terminal;
use crate::workspace::{Gauge, OwnHome, Workspace};
use policy::{Cover, ExecPlan, Perm, Perms, Plan, Resolved};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sys::seccomp::NotifyOptions;
use terms::{Action, Actor, Denial, Limits, PolicyStamp, RunId};

/// Decisions about one guest; `GuestPlan::new` builds its setup steps from this.
pub struct GuestSpec {
    pub run_id: RunId,
    pub policy: Resolved,
    pub plan: Plan,
    /// Makes the policy's stamp for the outcome; called while the guest sets itself up.
    pub stamp: Box<dyn Fn() -> PolicyStamp>,
    pub enforced: Found,
    /// Absolute path of the program, the same inside and outside.
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub home: PathBuf,
    /// Directories of the caller's toolchains.
    pub toolchains: Vec<PathBuf>,
    pub user: String,
    pub limits: Limits,
    pub cpus: Cpus,
    pub stdio: Stdio,
    /// Report denied reads too, at the price of a notification for every open.
    pub watch_reads: bool,
    /// Observe every path that the command looks up, to learn what it needs.
    pub watch_looks: bool,
    pub deny_calls: Vec<String>,
    /// Resident guest: its first process waits for orders instead of starting one command. See `GuestPlan::reside`.
    pub resident: bool,
    /// The guest's network. Without one it has a loopback interface of its own only.
    pub network: Option<NetPlan>,
    /// The layer over a directory that takes the guest's changes.
    pub workspace: Option<Workspace>,
    /// Storage of the home that `plan.private` names; without one there, the home is the host's.
    pub own_home: OwnHome,
}

/// The parts that work beside a live guest.
#[derive(Default)]
pub struct GuestServices<'a> {
    pub observer: Option<Observer<'a>>,
    /// Answers at the guest's doors; there with `GuestSpec::network`.
    pub network: Option<Box<dyn Network + 'a>>,
    /// Ports of the guest that the host can reach.
    pub publish: Vec<Published>,
    /// Puts questions to a person; without it, operations that rules ask about are refused.
    pub asking: Option<Box<dyn Approvals + 'a>>,
    /// Measures the workspace.
    pub gauge: Option<Box<dyn Gauge + 'a>>,
    /// Called once, when the command of a run has gone on for a while. A residence ignores it.
    pub lasting: Option<DelayedCall<'a>>,
}

/// A call that is due when the command has run for `after`. It must not block: the supervisor waits for it.
pub struct DelayedCall<'a> {
    pub after: Duration,
    pub call: Box<dyn FnOnce() + 'a>,
}

/// Connections of the command's streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stdio {
    pub input: bool,
    /// Keep output for the document instead of passing it on.
    pub capture: bool,
    /// Give the command a terminal of its own.
    pub terminal: bool,
    /// Pass the command's standard output to our standard error, because our standard output carries another format.
    pub all_to_stderr: bool,
}

impl Stdio {
    pub(crate) fn terminal_size(&self) -> Option<(u16, u16)> {
        self.terminal.then(|| terminal::size(rustix::stdio::stdin()))
    }
}

impl GuestSpec {
    pub(crate) fn watch(&self, guest: &Guest) -> NotifyOptions {
        NotifyOptions {
            listener: true,
            reads: self.watch_reads,
            asks: self.plan.asked.iter().any(|place| place.reads) && self.enforced.driver == Driver::Namespaces,
            looks: self.watch_looks,
            descriptors: self.limits.max_open_files.is_some(),
            space: self.limits.max_disk_mb.is_some(),
            range_locks: self.shows_files_read_only(),
            deny: self.deny_calls.clone(),
            no_exec_memory_files: matches!(self.plan.exec, ExecPlan::Only { .. }),
            connects_for_guest: !guest.privileged || self.judges_sockets() || self.enforced.driver == Driver::Landlock,
            // No mark in a resident guest, whose commands could read it from one another; each of them is judged before
            // its start. None either where rules ask about programs, because the command may be one of those.
            start_mark: if self.resident || self.asks_to_start() { None } else { random_mark() },
            alone: self.enforced.driver == Driver::Landlock,
        }
    }
}

impl GuestSpec {
    /// Returns the limits on the guest as a whole. In a resident guest, wall time and output are limits of each
    /// command.
    pub(crate) fn guest_limits(&self) -> Limits {
        match self.resident {
            true => Limits { max_wall_ms: None, max_output_bytes: None, ..self.limits },
            false => self.limits,
        }
    }

    /// True when rules ask about the start of some program.
    pub(crate) fn asks_to_start(&self) -> bool {
        self.plan.exec.asked().next().is_some()
    }

    /// True when the guest can read files of the host that it cannot write, beyond the system's and toolchains':
    /// programs of the host may hold byte-range locks on them. In a workspace such locks are the guest's own.
    fn shows_files_read_only(&self) -> bool {
        let is_in_workspace = |path: &Path| self.workspace.as_ref().is_some_and(|w| path.starts_with(&w.at));
        let is_data = |path: &Path| {
            !is_system(path) && !self.toolchains.iter().any(|t| path.starts_with(t)) && !is_in_workspace(path)
        };
        let shown = self.plan.grants.iter().filter(|g| g.perms.and(Perms::CHANGES).is_empty()).map(|g| &g.path);
        let covered = self.plan.masks.iter().filter(|m| matches!(m.cover, Cover::ReadOnly | Cover::ReadOnlyNoExec));
        let asked = self.plan.asked.iter().filter(|place| place.reads).map(|place| &place.path);
        shown.chain(covered.map(|m| &m.path)).chain(asked).any(|path| is_data(path))
    }

    /// True when rules name single sockets; id-mapped mounts can only deny all of them.
    fn judges_sockets(&self) -> bool {
        !self.plan.sockets.is_empty() || !self.plan.kept.is_empty()
    }
}

fn random_mark() -> Option<[u32; 2]> {
    let mut bytes = [0u8; 8];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    let [a, b, c, d, e, f, g, h] = bytes;
    (got == Ok(8)).then(|| [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])])
}

/// An event of a run for its observer.
pub enum Observed<'a> {
    Denied(&'a Denial),
    /// A file or directory was used, under the name the guest gave it.
    File {
        named: PathBuf,
        made: bool,
        perm: Perm,
    },
    Looked(PathBuf),
    /// A rename or link between directories.
    Moved {
        from: PathBuf,
        to: PathBuf,
    },
    Exec(PathBuf),
    Connect(String),
    /// A question about a path or socket of the host was put.
    Asked {
        op: &'static str,
        target: &'a str,
        rule: &'a str,
        actor: &'a Actor,
    },
    /// A socket of the host was connected to, or was refused by the rule.
    Socket {
        path: PathBuf,
        rule: String,
        action: Action,
        actor: Actor,
    },
}

pub type Observer<'a> = Box<dyn FnMut(Observed<'_>) + 'a>;
