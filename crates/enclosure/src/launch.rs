//! From a request to a guest that is about to run: what is checked, what is made before the clone, and our own part
//! of the setup beside the guest's.

use crate::alone;
use crate::asking::Asking;
use crate::driver::{self, Driver, Found};
use crate::ground::{Groundwork, Ours, Pipes};
use crate::guest::Guest;
use crate::limits::{self, Cpus};
use crate::network::{NetPlan, Network};
use crate::publish::Published;
use crate::shift::Shifter;
use crate::standing::{Standing, step_failed, vanished};
use crate::steps::{self, Steps};
use crate::supervise::Run;
use crate::terminal;
use crate::workspace::{Gauge, Workspace};
use policy::{Cover, ExecPlan, Perm, Perms, Plan, Resolved};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use sys::ahead::Ahead;
use sys::cgroup::{Born, Group, Layout};
use sys::janitor::{self, Janitor};
use sys::seccomp::Watch;
use sys::spawn::{self, Command, Message, Places, Spawned, Walk};
use sys::{CallError, ahead, cstring, host, process};
use terms::{Action, Actor, Denial, ErrorKind, Fault, Limits, Outcome, Phase, PolicyStamp, RunId};

/// What to run and under what.
pub struct Request {
    pub run_id: RunId,
    pub policy: Resolved,
    pub plan: Plan,
    /// Made while the guest sets itself up.
    pub stamp: Box<dyn Fn() -> PolicyStamp>,
    pub enforced: Found,
    /// Absolute path of the program, as it is inside and outside.
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub home: PathBuf,
    /// Where the caller's toolchains are installed.
    pub toolchains: Vec<PathBuf>,
    pub user: String,
    pub limits: Limits,
    pub cpus: Cpus,
    pub stdio: Stdio,
    /// Report denied reads too, at the price of a notification for every open.
    pub watch_reads: bool,
    /// Observe everything that the command looks at, to learn what it needs.
    pub watch_looks: bool,
    pub deny_calls: Vec<String>,
    /// It stays: its first process starts no command of its own, but those that it is told of. See `Prepared::reside`.
    pub resident: bool,
    /// What its network must be like; without, it has a loopback of its own and nothing else.
    pub network: Option<NetPlan>,
    /// Where the guest changes files, and the host does not see it.
    pub workspace: Option<Workspace>,
}

/// Those who stand beside a run while it runs.
#[derive(Default)]
pub struct Beside<'a> {
    pub observer: Option<Observer<'a>>,
    /// Answers at the guest's doors; there with `Request::network`.
    pub network: Option<Box<dyn Network + 'a>>,
    /// Ports of the guest that the host can reach.
    pub publish: Vec<Published>,
    /// Puts what rules ask to a person; without, that is refused.
    pub asking: Option<Box<dyn Asking + 'a>>,
    /// Knows how much a workspace takes.
    pub gauge: Option<Box<dyn Gauge + 'a>>,
}

/// How the command's streams are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stdio {
    pub input: bool,
    /// Keep output for the document instead of passing it on.
    pub capture: bool,
    /// Give the command a terminal of its own.
    pub terminal: bool,
    /// Pass its standard output to our standard error, because ours carries something else.
    pub all_to_stderr: bool,
}

impl Stdio {
    pub(crate) fn terminal_size(&self) -> Option<(u16, u16)> {
        self.terminal.then(|| terminal::size(rustix::stdio::stdin()))
    }
}

impl Request {
    pub(crate) fn watch(&self, guest: &Guest) -> Watch {
        Watch {
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
            // Commands of a residence can look at one another, and would see it; each of them is judged before it is started.
            // Where somebody is asked about programs, the command may be one of them.
            start_mark: if self.resident || self.asks_to_start() { None } else { random_mark() },
            alone: self.enforced.driver == Driver::Landlock,
        }
    }
}

impl Request {
    /// Whether somebody is asked before some program starts.
    pub(crate) fn asks_to_start(&self) -> bool {
        self.plan.exec.asked().next().is_some()
    }

    /// Whether the guest can read files of the host, beyond those of the system and of toolchains, that it cannot write: data that programs of
    /// the host may lock by ranges of bytes. In a workspace such locks are its own.
    fn shows_files_read_only(&self) -> bool {
        let is_in_workspace = |path: &Path| self.workspace.as_ref().is_some_and(|w| path.starts_with(&w.at));
        let is_data = |path: &Path| {
            !steps::is_system(path) && !self.toolchains.iter().any(|t| path.starts_with(t)) && !is_in_workspace(path)
        };
        let shown = self.plan.grants.iter().filter(|g| g.perms.and(Perms::CHANGES).is_empty()).map(|g| &g.path);
        let covered = self.plan.masks.iter().filter(|m| matches!(m.cover, Cover::ReadOnly | Cover::ReadOnlyNoExec));
        let asked = self.plan.asked.iter().filter(|place| place.reads).map(|place| &place.path);
        shown.chain(covered.map(|m| &m.path)).chain(asked).any(|path| is_data(path))
    }

    /// Whether rules say of single sockets who may connect to them; shifted mounts know only of all.
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

/// What a run tells of while it runs.
pub enum Observed<'a> {
    Denied(&'a Denial),
    /// A file or directory was used, under the name the guest gave it.
    File {
        named: PathBuf,
        made: bool,
        perm: Perm,
    },
    Looked(PathBuf),
    /// A name left its directory for another, or has one more there.
    Moved {
        from: PathBuf,
        to: PathBuf,
    },
    Exec(PathBuf),
    Connect(String),
    /// A person is asked about something of the host's.
    Asked {
        op: &'static str,
        target: &'a str,
        rule: &'a str,
        actor: &'a Actor,
    },
    /// A socket of the host was connected to, or would have been but for the rule.
    Socket {
        path: PathBuf,
        rule: String,
        action: Action,
        actor: Actor,
    },
}

pub type Observer<'a> = Box<dyn FnMut(Observed<'_>) + 'a>;

/// Everything decided, nothing started.
pub struct Prepared {
    pub(crate) request: Rc<Request>,
    pub(crate) ground: Groundwork,
    pub(crate) steps: Rc<Steps>,
}

/// A guest that sets itself up, with all that was made for it.
pub(crate) struct Raised {
    pub spawned: Spawned,
    pub group: Option<Group>,
    /// Makes sockets in its network, and changes its mounts.
    pub helper: Option<Ahead>,
    /// Handles that are at hand already.
    pub places: Places,
    pub janitor: Option<Janitor>,
}

impl Raised {
    /// Takes everything down again. A guest that failed first makes our own calls fail, too; its report names the true cause,
    /// or its silence does.
    pub fn abandon(self, fault: Fault, steps: &Steps) -> Fault {
        let gone = process::has_ended(self.spawned.pidfd.as_fd());
        process::kill_child(self.spawned.pid);
        drop(self.group);
        let fault = match self.spawned.receive() {
            Ok(Some((report, _))) if report.message == Message::StepFailed => step_failed(steps, &report),
            _ if gone => vanished(),
            _ => fault,
        };
        let _collected_last = self.janitor.map(Janitor::dismiss);
        fault
    }
}

pub fn prepare(request: Request, mut ground: Groundwork) -> Result<Prepared, Fault> {
    check_guards(&request.plan, request.workspace.as_ref())?;
    check_calls(&request.deny_calls, request.resident)?;
    let steps = match request.enforced.driver {
        Driver::Namespaces => steps::build(&request, &mut ground)?,
        Driver::Landlock => alone::build(&request, &mut ground)?,
    };
    Ok(Prepared { request: Rc::new(request), ground, steps: Rc::new(steps) })
}

/// A denied path that does not exist is safe where the guest can make nothing. Elsewhere the run is refused: no wall
/// of the kernel's can keep one name from being made in a directory. What is hidden, or only must not be changed, may be made in a
/// workspace, where it is the guest's own: what the host has or gets under that name stays hidden, and what is made never lands.
fn check_guards(plan: &Plan, workspace: Option<&Workspace>) -> Result<(), Fault> {
    for guard in &plan.guards {
        let harmless = guard.hides || !guard.bars;
        let own = |g: &policy::Grant| harmless && workspace.is_some_and(|w| g.path.starts_with(&w.at));
        let makes = |g: &&policy::Grant| !g.perms.and(Perms::MAKING).is_empty() && !own(g);
        let literal: PathBuf = guard
            .pattern
            .split('/')
            .take_while(|part| !part.contains(['*', '?', '[']))
            .collect::<Vec<_>>()
            .join("/")
            .into();
        let near = |g: &policy::Grant| g.covers(&literal) || g.path.starts_with(&literal);
        if let Some(grant) = plan.grants.iter().filter(makes).find(|g| near(g)) {
            let (rule, pattern) = (&guard.rule, &guard.pattern);
            let at = grant.path.display();
            let message = format!(
                "{rule}: {pattern} does not exist, and {} lets {at} be written on the host: no wall could keep that one name away",
                grant.rule
            );
            let hint = "leave --direct or the write grant out (in a workspace it is hidden, and never lands); or create it first, \
                        deny its whole directory, or grant only the places in it that must be written";
            return Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning));
        }
    }
    Ok(())
}

/// A denied call must exist, and must not be one that starting and ending the command needs.
pub fn check_calls(names: &[String], resident: bool) -> Result<(), Fault> {
    let refuse = |name: &str, why: &str| {
        let message = format!("syscalls.deny names {name:?}, {why}");
        Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint("leave it out").phase(Phase::Planning))
    };
    for name in names {
        if sys::seccomp::number(name).is_none() {
            return refuse(name, "which is no system call that a guest could make here");
        }
        if sys::seccomp::INDISPENSABLE.contains(&name.as_str()) {
            return refuse(name, "without which no command can be started");
        }
        if resident && sys::seccomp::INDISPENSABLE_TO_STAY.contains(&name.as_str()) {
            return refuse(name, "without which a sandbox cannot stay to start commands");
        }
    }
    Ok(())
}

impl Prepared {
    /// The setup, one line a step.
    pub fn explain(&self) -> Vec<String> {
        self.steps.ops.iter().enumerate().map(|(i, op)| format!("{:>3}  {op}", i + 1)).collect()
    }

    /// Runs the command to its end. Faults are ours; whatever the command did is in the outcome.
    pub fn run(mut self, beside: Beside<'_>) -> Result<Outcome, Fault> {
        let signals = process::signal_handle(&FORWARDED).map_err(|e| driver::lacks(e.call))?;
        let pipes = self.ground.pipes()?;
        let command = self.command(&pipes);
        let mut raised = self.raise(command, beside.publish.len())?;
        let ours = self.ours(pipes);
        let janitor = raised.janitor.take();
        let guest = Standing::new(self.request, self.steps, raised, beside);
        let outcome = Run::new(guest, signals, ours).supervise();
        let _collected_last = janitor.map(Janitor::dismiss);
        outcome
    }

    /// Makes everything that the guest needs, and has it set itself up.
    pub(crate) fn raise(&mut self, command: Command, published: usize) -> Result<Raised, Fault> {
        let layout = limits::wants_group(&self.request.limits, &self.request.cpus).then(limits::layout);
        // Before there is a group: whatever ends us from now on, somebody removes it. And before the helper has files open
        // for a moment, copies of which would keep it from sealing the root.
        let janitor = layout.as_ref().map(|layout| self.start_janitor(layout)).transpose()?;
        // On version 2 a process must be born in its group, because moving there later is slow; elsewhere it joins by
        // itself, and the group is made while it sets up.
        let mut group = match &layout {
            Some(layout) if layout.kind == sys::cgroup::Kind::V2 => {
                self.ground.helper = None;
                Some(self.make_group(layout)?)
            }
            _ => None,
        };
        // Without namespaces there is nothing for a helper to do, and the first process must be a whole copy of us.
        if self.request.enforced.driver == Driver::Landlock {
            self.ground.helper = None;
        }
        self.ground.release();
        let mut shifter = Shifter::new(self.ground.guest);
        let mounts = self.steps.mounts.iter().map(|wanted| shifter.prepare(wanted)).collect::<Result<Vec<_>, _>>()?;
        let (spawned, settled) = self.clone_guest(group.as_ref(), &mounts, command)?;
        // Whoever stays may be connected to at any time; others need somebody inside only for ports that are published, and
        // for programs that are asked about.
        let needed = published > 0 || self.request.asks_to_start();
        let wanted = needed || self.request.resident;
        // While it still waits for us.
        let visitor = self.visitor(&spawned, settled, wanted);
        let admitted = self.admit(&spawned, settled, &mounts, layout.as_ref(), &mut group);
        let helper = self.ground.helper.take().filter(|_| settled);
        let places = helper.as_ref().map(|helper| helper.finish(spawned.pidfd.as_fd())).unwrap_or_default();
        drop((mounts, shifter));
        let helper = helper.filter(|_| wanted).or(visitor);
        let admitted = admitted.and_then(|()| match helper.is_some() || !needed {
            true => Ok(()),
            false => Err(unreachable(published)),
        });
        let admitted = admitted.and_then(|()| match process::signal(spawned.pidfd.as_fd(), 0) {
            true => Ok(()),
            // Nothing could end this guest later.
            false => Err(driver::lacks("pidfd_send_signal")),
        });
        let raised = Raised { spawned, group, helper, places, janitor };
        match admitted {
            Ok(()) => Ok(raised),
            Err(fault) => Err(raised.abandon(fault, &self.steps)),
        }
    }

    fn start_janitor(&self, layout: &Layout) -> Result<Janitor, Fault> {
        let Request { run_id, limits, cpus, .. } = &*self.request;
        let groups = limits::group_paths(layout, run_id.as_str(), limits, cpus)?;
        let kill = groups.iter().map(|at| cstring(at.join("cgroup.kill").as_os_str().as_bytes())).collect();
        let paths = Group::to_be_removed(&groups);
        let paths = paths.iter().map(|at| cstring(at.as_os_str().as_bytes())).collect();
        janitor::start(kill, paths).map_err(|e| internal(Phase::Preparation, e))
    }

    fn make_group(&self, layout: &Layout) -> Result<Group, Fault> {
        let Request { run_id, limits, cpus, resident, .. } = &*self.request;
        limits::make_group(layout, run_id.as_str(), limits, cpus, *resident)
    }

    fn command(&self, pipes: &Pipes) -> Command {
        let argv: Vec<&[u8]> = self.request.argv.iter().map(|s| s.as_bytes()).collect();
        let env = self.request.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        let env: Vec<Vec<u8>> = env.collect();
        let env: Vec<&[u8]> = env.iter().map(Vec::as_slice).collect();
        let stdio = if self.request.stdio.terminal { [-1; 3] } else { pipes.theirs().map(|fd| fd.as_raw_fd()) };
        let mut command = Command::new(self.request.program.as_os_str().as_bytes(), &argv, &env, stdio);
        command.umask = process::umask();
        command.start_mark = self.steps.watch.start_mark.unwrap_or_default();
        command.own_pids = self.request.enforced.driver == Driver::Namespaces;
        command.open_files = self.request.limits.max_open_files.map(limits::open_files);
        command
    }

    /// Our ends of the pipes, as many as are wanted.
    fn ours(&self, pipes: Pipes) -> Ours {
        let stdio = &self.request.stdio;
        let ours = pipes.keep_ours();
        match stdio.terminal {
            true => Ours::default(),
            false => Ours { input: ours.input.filter(|_| stdio.input), ..ours },
        }
    }

    fn clone_guest(
        &mut self,
        group: Option<&Group>,
        mounts: &[OwnedFd],
        command: Command,
    ) -> Result<(Spawned, bool), Fault> {
        let namespaces = match self.request.enforced.driver {
            Driver::Namespaces => NAMESPACES,
            Driver::Landlock => 0,
        };
        let helper = self.ground.helper.as_mut();
        let group = group.and_then(Group::v2_dir_fd);
        let walk = Walk { ops: &self.steps.ops, own: self.steps.own, mounts };
        spawn::spawn(namespaces, helper, group, walk, command).map_err(|e| driver::blocked(&e))
    }

    /// Who makes sockets for published ports and lets programs run, where no helper made the guest's namespaces.
    fn visitor(&self, spawned: &Spawned, settled: bool, wanted: bool) -> Option<Ahead> {
        let wanted = !settled && wanted && self.request.enforced.driver == Driver::Namespaces;
        wanted.then(|| ahead::visit(spawned.pidfd.as_fd())).flatten()
    }

    /// Our part of the setup, done while the guest does its own: id maps and mounts where it has none yet, groups.
    fn admit(
        &self,
        spawned: &Spawned,
        settled: bool,
        mounts: &[OwnedFd],
        layout: Option<&Layout>,
        group: &mut Option<Group>,
    ) -> Result<(), Fault> {
        let g = self.ground.guest;
        let control = spawned.line();
        if self.request.enforced.driver == Driver::Namespaces && !settled {
            host::write_id_maps(spawned.pid, (g.uid, g.host_uid), (g.gid, g.host_gid), !g.privileged)
                .map_err(|e| driver::blocked(&e))?;
            control.go().map_err(|e| internal(Phase::Start, e))?;
            for chunk in mounts.chunks(spawn::MOST_HANDLES) {
                let handles: Vec<BorrowedFd<'_>> = chunk.iter().map(AsFd::as_fd).collect();
                control.give(&handles).map_err(|e| internal(Phase::Start, e))?;
            }
        }
        let Some(layout) = layout else { return Ok(()) };
        if group.is_none() {
            *group = Some(self.make_group(layout)?);
        }
        let Some(group) = group else { return Ok(()) };
        let born = if layout.kind == sys::cgroup::Kind::V2 { Born::InV2 } else { Born::Outside };
        let entries = group.entry_files(born).map_err(|e| Fault::internal(e.to_string()).phase(Phase::Preparation))?;
        let handles: Vec<BorrowedFd<'_>> = entries.iter().map(AsFd::as_fd).collect();
        control.give(&handles).map_err(|e| internal(Phase::Start, e))
    }
}

pub(crate) const NAMESPACES: u64 = spawn::NEW_USER
    | spawn::NEW_MOUNT
    | spawn::NEW_PID
    | spawn::NEW_IPC
    | spawn::NEW_UTS
    | spawn::NEW_NET
    | spawn::NEW_TIME;

/// Signals that a caller sends to the command by sending them to us: HUP, INT, QUIT, USR1, USR2, TERM, CONT, WINCH.
const FORWARDED: [i32; 8] = [1, 2, 3, 10, 12, 15, 18, 28];

/// Nobody can make a socket in the guest's network, or change its mounts.
fn unreachable(published: usize) -> Fault {
    let message = match published {
        0 => "nobody can be asked about programs here: the guest's mounts can be neither made ahead nor entered",
        _ => "ports cannot be published here: the guest's network can be neither made ahead nor entered",
    };
    Fault::new(ErrorKind::UnsupportedHost, message).hint(driver::ASK_DOCTOR).phase(Phase::Start)
}

pub(crate) fn internal(phase: Phase, error: CallError) -> Fault {
    Fault::internal(error.to_string()).phase(phase)
}
