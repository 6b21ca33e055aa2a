//! One run from start to end: clone, watch, relay, limit, account. Single-threaded: one loop over everything that
//! can happen, so there is nothing to lock and nothing to race.

use crate::alone;
use crate::capture::Capture;
use crate::driver::{self, Driver, Found};
use crate::guest::Guest;
use crate::limits::{self, Cpus, Meter};
use crate::listen::Judge;
use crate::relay::{Allowance, Inlet, Outlet, Pumped, Sink};
use crate::steps::{self, Shifter, Steps};
use crate::terminal;
use policy::{ExecPlan, Perm, Perms, Plan, Resolved};
use rustix::event::{PollFd, PollFlags, poll};
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use sys::cgroup::{Born, Group, Layout};
use sys::janitor::{self, Janitor};
use sys::notify::Listener;
use sys::op::Op;
use sys::seccomp::Watch;
use sys::spawn::{self, Command, Message, Report, Spawned};
use sys::{CallError, cstring, host, process};
use terms::{
    Denial, Enforcement, ErrorKind, Exit, Fault, Level, Limit, LimitHit, LimitKind, Limits, OnOutputLimit, Outcome,
    Phase, PolicyStamp, RunId, Verdict,
};

/// What to run and under what.
pub struct Request {
    pub run_id: RunId,
    pub policy: Resolved,
    pub plan: Plan,
    pub stamp: PolicyStamp,
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
            looks: self.watch_looks,
            descriptors: self.limits.max_open_files.is_some(),
            deny: self.deny_calls.clone(),
            no_exec_memory_files: matches!(self.plan.exec, ExecPlan::Only { .. }),
            connects_for_guest: !guest.privileged || self.enforced.driver == Driver::Landlock,
            start_mark: random_mark(),
            alone: self.enforced.driver == Driver::Landlock,
        }
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
    Exec(PathBuf),
    Connect(String),
}

pub type Observer<'a> = Box<dyn FnMut(Observed<'_>) + 'a>;

/// Everything decided, nothing started.
pub struct Prepared {
    request: Request,
    guest: Guest,
    steps: Steps,
}

pub fn prepare(request: Request) -> Result<Prepared, Fault> {
    limits::check(&request.limits, &request.plan)?;
    check_guards(&request.plan)?;
    check_calls(&request.deny_calls)?;
    let guest = Guest::of_caller();
    let steps = match request.enforced.driver {
        Driver::Namespaces => steps::build(&request, guest)?,
        Driver::Landlock => alone::build(&request, guest)?,
    };
    Ok(Prepared { request, guest, steps })
}

/// A denied path that does not exist is safe where the guest can make nothing. Elsewhere the run is refused: no wall
/// of the kernel's can keep one name from being made in a directory.
fn check_guards(plan: &Plan) -> Result<(), Fault> {
    let makes = |g: &&policy::Grant| !g.perms.and(Perms::MAKING).is_empty();
    for guard in &plan.guards {
        let literal: PathBuf = guard
            .pattern
            .split('/')
            .take_while(|part| !part.contains(['*', '?', '[']))
            .collect::<Vec<_>>()
            .join("/")
            .into();
        let near = |g: &policy::Grant| literal.starts_with(&g.path) || g.path.starts_with(&literal);
        if let Some(grant) = plan.grants.iter().filter(makes).find(|g| near(g)) {
            let (rule, pattern) = (&guard.rule, &guard.pattern);
            let message =
                format!("{rule}: {pattern} does not exist, and the guest may make things in {}", grant.path.display());
            let hint = "create it first, deny its directory, or narrow the write grant";
            return Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning));
        }
    }
    Ok(())
}

/// A denied call must exist, and must not be one that starting and ending the command needs.
fn check_calls(names: &[String]) -> Result<(), Fault> {
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
    }
    Ok(())
}

impl Prepared {
    /// The setup, one line a step.
    pub fn explain(&self) -> Vec<String> {
        self.steps.ops.iter().enumerate().map(|(i, op)| format!("{:>3}  {op}", i + 1)).collect()
    }

    /// Runs the command to its end. Faults are ours; whatever the command did is in the outcome.
    pub fn run(self, observer: Option<Observer<'_>>) -> Result<Outcome, Fault> {
        let signals = process::signal_handle(&FORWARDED).map_err(|e| driver::lacks(e.call))?;
        let layout = limits::wants_group(&self.request.limits, &self.request.cpus).then(limits::layout);
        // On version 2 a process is best born in its group; otherwise the group is made while the guest sets up.
        let mut group = match &layout {
            Some(layout) if layout.kind == sys::cgroup::Kind::V2 => Some(self.make_group(layout)?),
            _ => None,
        };
        let (pipes, command) = self.connect()?;
        let spawned = self.clone_guest(group.as_ref(), &command)?;
        drop(command);
        if !process::signal(spawned.pidfd.as_fd(), 0) {
            // Nothing could end this guest later.
            process::kill_child(spawned.pid);
            return Err(driver::lacks("pidfd_send_signal"));
        }
        let ours = pipes.keep_ours();
        let mut shifter = Shifter::new(self.guest);
        let mut janitor = None;
        if let Err(fault) = self.admit(&spawned, &mut shifter, layout.as_ref(), &mut group, &mut janitor) {
            process::signal(spawned.pidfd.as_fd(), SIGKILL);
            process::reap(spawned.pidfd.as_fd());
            drop(group);
            // A guest that failed first makes our own calls fail, too; its report names the true cause.
            let fault = match spawned.receive() {
                Ok(Some((report, _))) if report.message == Message::StepFailed => step_failed(&self.steps, &report),
                _ => fault,
            };
            let _collected_last = janitor.map(Janitor::dismiss);
            return Err(fault);
        }
        let meter = Meter::new(self.request.limits, group);
        let run = Run::new(&self.request, &self.steps, spawned, signals, meter, ours, observer);
        let outcome = run.supervise();
        let _collected_last = janitor.map(Janitor::dismiss);
        outcome
    }

    fn make_group(&self, layout: &Layout) -> Result<Group, Fault> {
        limits::make_group(layout, self.request.run_id.as_str(), &self.request.limits, &self.request.cpus)
    }

    fn connect(&self) -> Result<(Pipes, Command), Fault> {
        let pipes = Pipes::new(&self.request.stdio, &self.guest)?;
        let strings = |list: &[OsString]| list.iter().map(|s| cstring(s.as_bytes())).collect::<Vec<CString>>();
        let env = self.request.env.iter().map(|(name, value)| {
            let mut text = name.clone();
            text.push("=");
            text.push(value);
            cstring(text.as_bytes())
        });
        let program = cstring(self.request.program.as_os_str().as_bytes());
        let mut command = Command::new(program, strings(&self.request.argv), env.collect(), pipes.theirs());
        command.umask = process::umask();
        command.start_mark = self.steps.watch.start_mark.unwrap_or_default();
        command.own_pids = self.request.enforced.driver == Driver::Namespaces;
        command.open_files = self.request.limits.max_open_files.map(limits::open_files);
        Ok((pipes, command))
    }

    fn clone_guest(&self, group: Option<&Group>, command: &Command) -> Result<Spawned, Fault> {
        let namespaces = match self.request.enforced.driver {
            Driver::Namespaces => NAMESPACES,
            Driver::Landlock => 0,
        };
        let group = group.and_then(Group::v2_dir_fd);
        spawn::spawn(namespaces, group, &self.steps.ops, command).map_err(|e| driver::blocked(&e))
    }

    /// Our part of the setup, done while the guest does its own: id maps, mounts that only we can make, groups.
    fn admit(
        &self,
        spawned: &Spawned,
        shifter: &mut Shifter,
        layout: Option<&Layout>,
        group: &mut Option<Group>,
        janitor: &mut Option<Janitor>,
    ) -> Result<(), Fault> {
        let g = self.guest;
        if self.request.enforced.driver == Driver::Namespaces {
            host::write_id_maps(spawned.pid, (g.uid, g.host_uid), (g.gid, g.host_gid), !g.privileged)
                .map_err(|e| driver::blocked(&e))?;
            spawned.go().map_err(|e| internal(Phase::Start, e))?;
        }
        for chunk in self.steps.mounts.chunks(spawn::MOST_HANDLES) {
            let made = chunk.iter().map(|wanted| shifter.prepare(wanted)).collect::<Result<Vec<_>, _>>()?;
            let handles: Vec<BorrowedFd<'_>> = made.iter().map(AsFd::as_fd).collect();
            spawned.give(&handles).map_err(|e| internal(Phase::Start, e))?;
        }
        let Some(layout) = layout else { return Ok(()) };
        if group.is_none() {
            *group = Some(self.make_group(layout)?);
        }
        let Some(group) = group else { return Ok(()) };
        *janitor = Some(start_janitor(group)?);
        let born = if layout.kind == sys::cgroup::Kind::V2 { Born::InV2 } else { Born::Outside };
        let entries = group.entry_files(born).map_err(|e| Fault::internal(e.to_string()).phase(Phase::Preparation))?;
        let handles: Vec<BorrowedFd<'_>> = entries.iter().map(AsFd::as_fd).collect();
        spawned.give(&handles).map_err(|e| internal(Phase::Start, e))
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
const SIGKILL: i32 = 9;
const SIGWINCH: i32 = 28;
/// How long a caller that does not read may keep us after a limit ended the run.
const DRAIN: Duration = Duration::from_secs(5);

fn internal(phase: Phase, error: CallError) -> Fault {
    Fault::internal(error.to_string()).phase(phase)
}

fn start_janitor(group: &Group) -> Result<Janitor, Fault> {
    let paths: Vec<CString> = group.paths().iter().map(|p| cstring(p.as_os_str().as_bytes())).collect();
    let kill = group.paths().iter().map(|p| cstring(p.join("cgroup.kill").as_os_str().as_bytes())).collect();
    janitor::start(kill, paths).map_err(|e| internal(Phase::Preparation, e))
}

/// The pipes between us and the command.
struct Pipes {
    ours: Ours,
    theirs: [Option<OwnedFd>; 3],
}

#[derive(Default)]
struct Ours {
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    error: Option<OwnedFd>,
}

impl Pipes {
    fn new(stdio: &Stdio, guest: &Guest) -> Result<Pipes, Fault> {
        if stdio.terminal {
            return Ok(Pipes { ours: Ours::default(), theirs: [None, None, None] });
        }
        let pipe = || {
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                .map_err(|e| Fault::internal(format!("pipe: {e}")).phase(Phase::Preparation))
        };
        let (read_in, write_in) = pipe()?;
        let (read_out, write_out) = pipe()?;
        let (read_err, write_err) = pipe()?;
        // Our ends never make us wait; the command's ends are ordinary.
        for end in [&write_in, &read_out, &read_err] {
            let _ = rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::NONBLOCK);
        }
        if guest.privileged {
            // Or /dev/stdout and its kin, which open the pipe anew, would be somebody else's file.
            let ids = (rustix::fs::Uid::from_raw(guest.host_uid), rustix::fs::Gid::from_raw(guest.host_gid));
            for end in [&read_in, &write_out, &write_err] {
                let _ = rustix::fs::fchown(end, Some(ids.0), Some(ids.1));
            }
        }
        let ours = Ours { input: stdio.input.then_some(write_in), output: Some(read_out), error: Some(read_err) };
        Ok(Pipes { ours, theirs: [Some(read_in), Some(write_out), Some(write_err)] })
    }

    fn theirs(&self) -> [RawFd; 3] {
        self.theirs.each_ref().map(|fd| fd.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }

    /// Closes the command's ends here, so that their end shows.
    fn keep_ours(self) -> Ours {
        self.ours
    }
}

/// A run in progress.
struct Run<'a> {
    request: &'a Request,
    steps: &'a Steps,
    spawned: Spawned,
    signals: OwnedFd,
    meter: Meter,
    judge: Judge<'a>,
    listener: Option<Listener>,
    output: Outlet,
    error: Outlet,
    input: Inlet,
    master: Option<OwnedFd>,
    raw: Option<terminal::Raw>,
    allowance: Allowance,
    state: State,
    ended: Option<Report>,
    hit: Option<LimitHit>,
    cancelled_by: Option<i32>,
    give_up_at: Option<Instant>,
    look_at: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Setup,
    Running,
    /// The tree is gone or going; only output is left to pass on.
    Draining,
}

/// What one poll slot stands for.
#[derive(Clone, Copy)]
enum Slot {
    Control,
    Listener,
    Signals,
    Event,
    OutputRead,
    OutputWrite,
    ErrorRead,
    ErrorWrite,
    InputRead,
    InputWrite,
}

struct Interests<'f> {
    slots: Vec<Slot>,
    fds: Vec<PollFd<'f>>,
}

impl<'f> Interests<'f> {
    fn add(&mut self, slot: Slot, fd: BorrowedFd<'f>, flags: PollFlags) {
        self.slots.push(slot);
        self.fds.push(PollFd::from_borrowed_fd(fd, flags));
    }
}

impl<'a> Run<'a> {
    fn new(
        request: &'a Request,
        steps: &'a Steps,
        spawned: Spawned,
        signals: OwnedFd,
        meter: Meter,
        ours: Ours,
        observer: Option<Observer<'a>>,
    ) -> Run<'a> {
        let sink = |normal: Sink| if request.stdio.capture { Sink::Keep(Capture::default()) } else { normal };
        let mut judge = Judge::new(&request.policy, &request.plan, &steps.watch, observer);
        judge.max_open_files = request.limits.max_open_files;
        let allowance = Allowance {
            left: request.limits.max_output_bytes,
            truncate: request.limits.on_output_limit == Some(OnOutputLimit::Truncate),
            used: 0,
        };
        Run {
            request,
            steps,
            spawned,
            signals,
            meter,
            judge,
            listener: None,
            output: Outlet::new(
                ours.output,
                sink(if request.stdio.all_to_stderr { Sink::Stderr } else { Sink::Stdout }),
            ),
            error: Outlet::new(ours.error, sink(Sink::Stderr)),
            input: Inlet::new(ours.input, false),
            master: None,
            raw: None,
            allowance,
            state: State::Setup,
            ended: None,
            hit: None,
            cancelled_by: None,
            give_up_at: None,
            look_at: None,
        }
    }

    fn supervise(mut self) -> Result<Outcome, Fault> {
        let fault = loop {
            if self.is_over() {
                break None;
            }
            if let Err(fault) = self.turn() {
                break Some(fault);
            }
        };
        if fault.is_some() {
            self.kill();
        }
        process::reap(self.spawned.pidfd.as_fd());
        self.raw = None;
        match fault {
            Some(fault) => {
                self.meter.close();
                Err(fault)
            }
            None => Ok(self.outcome()),
        }
    }

    fn is_over(&self) -> bool {
        let drained = self.output.is_done() && self.error.is_done();
        let gave_up = self.give_up_at.is_some_and(|at| Instant::now() >= at);
        self.state == State::Draining && (drained || gave_up)
    }

    /// Waits for the next thing to happen and deals with all that did.
    fn turn(&mut self) -> Result<(), Fault> {
        for slot in self.wait()? {
            match slot {
                Slot::Control => self.hear_control()?,
                Slot::Listener => self.hear_call(),
                Slot::Signals => self.forward_signals(),
                Slot::Event => {
                    self.meter.events.iter().for_each(sys::cgroup::EventFd::rearm);
                    self.meter.note_event();
                    self.look_at = Some(Instant::now());
                }
                Slot::OutputRead => {
                    let pumped = self.output.pull(&mut self.allowance);
                    self.after_pull(pumped);
                }
                Slot::ErrorRead => {
                    let pumped = self.error.pull(&mut self.allowance);
                    self.after_pull(pumped);
                }
                Slot::OutputWrite => self.output.push(),
                Slot::ErrorWrite => self.error.push(),
                Slot::InputRead => self.input.pull(),
                Slot::InputWrite => self.input.push(),
            }
        }
        if self.state == State::Running && self.look_at.is_some_and(|at| Instant::now() >= at) {
            self.check_limits();
            self.look_at = self.meter.next_look();
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<Slot>, Fault> {
        let (slots, mut fds) = self.interests();
        let timeout = self.timeout();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(driver::lacks("poll")),
        }
        Ok(slots.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(slot, _)| slot).collect())
    }

    fn timeout(&self) -> Option<rustix::event::Timespec> {
        let look = if self.state == State::Running { self.look_at } else { None };
        let at = [look, self.give_up_at].into_iter().flatten().min()?;
        let left = at.saturating_duration_since(Instant::now());
        Some(rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    fn interests(&self) -> (Vec<Slot>, Vec<PollFd<'_>>) {
        let mut found = Interests { slots: Vec::with_capacity(12), fds: Vec::with_capacity(12) };
        if self.state != State::Draining {
            found.add(Slot::Control, self.spawned.control().as_fd(), PollFlags::IN);
            if let Some(listener) = &self.listener {
                found.add(Slot::Listener, listener.as_fd(), PollFlags::IN);
            }
        }
        found.add(Slot::Signals, self.signals.as_fd(), PollFlags::IN);
        if self.state == State::Running {
            for event in &self.meter.events {
                found.add(Slot::Event, event.as_fd(), PollFlags::from_bits_retain(event.poll_mask() as u16));
            }
            if let Some(fd) = self.input.wants_input() {
                found.add(Slot::InputRead, fd, PollFlags::IN);
            }
            match self.input.target() {
                Some((fd, true)) => found.add(Slot::InputWrite, fd, PollFlags::OUT),
                // Only to learn that the command no longer reads.
                Some((fd, false)) if self.master.is_none() => found.add(Slot::InputWrite, fd, PollFlags::empty()),
                _ => {}
            }
        }
        for (outlet, read, write) in
            [(&self.output, Slot::OutputRead, Slot::OutputWrite), (&self.error, Slot::ErrorRead, Slot::ErrorWrite)]
        {
            if let Some(fd) = outlet.wants_input() {
                found.add(read, fd, PollFlags::IN);
            }
            if let Some(fd) = outlet.wants_output() {
                found.add(write, fd, PollFlags::OUT);
            }
        }
        (found.slots, found.fds)
    }

    fn hear_control(&mut self) -> Result<(), Fault> {
        let Some((report, handles)) = self.spawned.receive().map_err(|e| internal(Phase::Start, e))? else {
            return self.guest_vanished();
        };
        match report.message {
            Message::Ready => self.begin(handles),
            Message::StepFailed => return Err(step_failed(self.steps, &report)),
            Message::ExecFailed => return Err(self.exec_failed(&report)),
            Message::Ended => {
                self.ended = Some(report);
                self.drain();
            }
            Message::Nothing => return self.guest_vanished(),
        }
        Ok(())
    }

    fn begin(&mut self, [listener, scratch, master]: spawn::Handles) {
        self.listener = listener.map(Listener::new);
        self.meter.start(scratch);
        if let Some(master) = master {
            let _ = rustix::fs::fcntl_setfl(&master, rustix::fs::OFlags::NONBLOCK);
            let copy = || master.try_clone().ok();
            let sink = std::mem::replace(&mut self.output.sink, Sink::Stdout);
            self.output = Outlet::new(copy(), sink);
            self.input = Inlet::new(self.request.stdio.input.then(copy).flatten(), true);
            self.master = Some(master);
            self.raw = Some(terminal::Raw::on_stdin());
        }
        self.state = State::Running;
        self.look_at = self.meter.next_look();
    }

    /// Pid 1 went without a word: something outside killed it, or the kernel did for want of memory.
    fn guest_vanished(&mut self) -> Result<(), Fault> {
        if let (State::Setup, Some(hit)) = (self.state, self.meter.exceeded()) {
            self.hit = Some(LimitHit { phase: Phase::Start, ..hit });
            self.drain();
            return Ok(());
        }
        if self.state == State::Setup {
            return Err(Fault::internal("the guest's first process ended during setup").phase(Phase::Start));
        }
        self.hit = self.hit.or_else(|| self.meter.exceeded());
        self.drain();
        Ok(())
    }

    fn exec_failed(&self, report: &Report) -> Fault {
        const ENOENT: i32 = 2;
        const EACCES: i32 = 13;
        const EPERM: i32 = 1;
        let error = std::io::Error::from_raw_os_error(report.errno);
        let program = self.request.program.display();
        let fault = match report.errno {
            _ if report.step != 0 => {
                let message = format!("the command could not be started: {error}");
                Fault::new(ErrorKind::UnsupportedHost, message).hint(driver::ASK_DOCTOR)
            }
            ENOENT => {
                let message = format!("{program}: cannot be started: it or its interpreter is not there inside");
                Fault::new(ErrorKind::NotFound, message).exit(127)
            }
            // The caller could run it, so it is the enclosure that could not.
            EACCES | EPERM if rustix::fs::access(&self.request.program, rustix::fs::Access::EXEC_OK).is_ok() => {
                Fault::new(ErrorKind::PolicyDenied, format!("{program}: cannot be executed: {error}")).exit(126)
            }
            _ => Fault::invalid(format!("{program}: cannot be executed: {error}")).exit(126),
        };
        fault.phase(Phase::Start)
    }

    fn hear_call(&mut self) {
        let Some(listener) = &self.listener else { return };
        if !self.judge.hear(listener) {
            self.listener = None;
        }
        if self.judge.descriptors_met && self.hit.is_none() {
            let limit = self.request.limits.max_open_files.unwrap_or(0);
            self.end_by(LimitHit {
                kind: LimitKind::OpenFiles,
                phase: Phase::Execution,
                limit: Limit::Count(limit),
                used: Limit::Count(limit + 1),
            });
        }
    }

    fn forward_signals(&mut self) {
        while let Some((signal, _)) = process::next_signal(self.signals.as_fd()) {
            if signal == SIGWINCH {
                if let Some(master) = &self.master {
                    terminal::resize(master.as_fd(), terminal::size(rustix::stdio::stdin()));
                }
                continue;
            }
            if self.state == State::Setup && matches!(signal, 1..=3 | 15) {
                // Nothing of the command's has run yet: there is nobody to ask.
                self.kill();
            } else {
                process::signal(self.spawned.pidfd.as_fd(), signal);
            }
            if matches!(signal, 1..=3 | 15) {
                self.cancelled_by = Some(signal);
                if self.state == State::Draining {
                    self.give_up_at = Some(Instant::now());
                }
            }
        }
    }

    fn after_pull(&mut self, pumped: Pumped) {
        if pumped == Pumped::OverLimit && self.hit.is_none() {
            let limit = self.request.limits.max_output_bytes.unwrap_or(0);
            self.end_by(LimitHit {
                kind: LimitKind::OutputBytes,
                phase: Phase::Execution,
                limit: Limit::Count(limit),
                used: Limit::Count(limit + 1),
            });
        }
    }

    fn check_limits(&mut self) {
        if let Some(hit) = self.meter.exceeded() {
            self.end_by(hit);
        }
    }

    fn end_by(&mut self, hit: LimitHit) {
        self.hit = Some(hit);
        self.kill();
        self.drain();
        self.give_up_at = Some(Instant::now() + DRAIN);
    }

    /// Pid 1's end is the end of every process in its namespace.
    fn kill(&mut self) {
        let signal = match self.request.enforced.driver {
            Driver::Namespaces => SIGKILL,
            // Without a pid namespace somebody must go through the tree; the group's kill is the quicker where there
            // is a group.
            Driver::Landlock => spawn::END_SIGNAL,
        };
        process::signal(self.spawned.pidfd.as_fd(), signal);
        self.meter.kill();
    }

    fn drain(&mut self) {
        self.state = State::Draining;
        self.listener = None;
        self.input.hang_up();
    }

    fn outcome(mut self) -> Outcome {
        let missing = self.request.enforced.missing.clone();
        let level = if missing.is_empty() { Level::Full } else { Level::Partial };
        let enforcement = Enforcement { level, missing };
        let mut outcome = Outcome::new(self.request.run_id.clone(), self.request.stamp.clone(), enforcement);
        if self.hit.is_none() {
            // What went over between two looks still went over.
            self.hit = self.meter.exceeded().filter(|hit| hit.kind != LimitKind::WallMs);
        }
        self.account(&mut outcome);
        self.judge_end(&mut outcome);
        let (denials, dropped) = std::mem::take(&mut self.judge.denials).into_parts();
        (outcome.denials, outcome.denials_dropped) = (denials, dropped);
        self.meter.close();
        outcome
    }

    fn account(&self, outcome: &mut Outcome) {
        let report = self.ended.unwrap_or_default();
        outcome.usage = self.meter.usage(report.cpu_us, report.max_rss_kb);
        outcome.usage.output_bytes = self.allowance.used;
        outcome.truncated = terms::Truncated { stdout: self.output.dropped(), stderr: self.error.dropped() };
        if let Sink::Keep(kept) = &self.output.sink {
            outcome.stdout = Some(kept.text());
        }
        if let Sink::Keep(kept) = &self.error.sink {
            outcome.stderr = Some(kept.text());
        }
    }

    fn judge_end(&self, outcome: &mut Outcome) {
        outcome.exit = match (&self.hit, self.ended) {
            (_, Some(report)) => Some(exit_of(report.status)),
            (Some(_), None) => Some(Exit::Signal { signal: SIGKILL, name: signal_name(SIGKILL) }),
            (None, None) => None,
        };
        outcome.success = self.hit.is_none() && outcome.exit == Some(Exit::Code { code: 0 });
        outcome.verdict = match (&self.hit, &outcome.exit) {
            (Some(_), _) => Verdict::LimitExceeded,
            (None, None) if self.cancelled_by.is_some() => Verdict::Cancelled,
            (None, None) => Verdict::Lost,
            _ if outcome.success => Verdict::Ok,
            (None, Some(Exit::Signal { signal, .. })) if Some(*signal) == self.cancelled_by => Verdict::Cancelled,
            _ if self.judge.denials.any_refused() => Verdict::Denied,
            _ => Verdict::Failed,
        };
        if let Some(hit) = self.hit {
            outcome.error_kind = Some(ErrorKind::LimitExceeded);
            outcome.limit_kind = Some(hit.kind);
            outcome.phase = Some(hit.phase);
            outcome.limit = Some(hit.limit);
            outcome.used = Some(hit.used);
            outcome.message = Some(format!("the run met its limit of {}", describe(hit)));
        } else if outcome.verdict == Verdict::Denied {
            outcome.error_kind = Some(ErrorKind::PolicyDenied);
            outcome.phase = Some(Phase::Execution);
            outcome.message = Some("the command failed and at least one operation was refused".into());
        } else if outcome.verdict == Verdict::Lost {
            outcome.message = Some("the guest's first process was killed from outside".into());
        }
    }
}

/// Says at which step the setup failed.
fn step_failed(steps: &Steps, report: &Report) -> Fault {
    let error = std::io::Error::from_raw_os_error(report.errno);
    let Some(op) = steps.ops.get(report.step as usize) else {
        return Fault::internal(format!("setup step {}: {error}", report.step)).phase(Phase::Start);
    };
    let step = format!("setup step {} ({}): {error}", report.step + 1, op.to_string().trim_end());
    if matches!(op, Op::PrivateMounts | Op::Identity { .. } | Op::Proc { .. } | Op::Tmpfs { .. }) {
        return driver::blocked(&CallError { call: op.name(), errno: report.errno });
    }
    Fault::new(ErrorKind::UnsupportedHost, step).hint(driver::ASK_DOCTOR).phase(Phase::Start)
}

fn describe(hit: LimitHit) -> String {
    let amount = match hit.limit {
        Limit::Count(n) => n.to_string(),
        Limit::Megabytes(mb) => mb.to_string(),
    };
    format!("max_{} = {amount}", hit.kind.name())
}

fn exit_of(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code { code: (status >> 8) & 0xff },
        signal => Exit::Signal { signal, name: signal_name(signal) },
    }
}

fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(signal - 1).ok().and_then(|i| NAMES.get(i)) {
        Some(name) => format!("SIG{name}"),
        None => format!("SIG{signal}"),
    }
}
