//! Watching over one run: relay, hear, limit, forward. Single-threaded: one loop over everything that can happen, so
//! there is nothing to lock and nothing to race.

use crate::actors::Actors;
use crate::capture::Capture;
use crate::driver::{self, Driver};
use crate::ground::Ours;
use crate::launch::{Beside, Request, internal};
use crate::limits::Meter;
use crate::listen::Judge;
use crate::network::{Network, Opening};
use crate::publish::{self, Published, Publisher};
use crate::relay::{Allowance, Inlet, Outlet, Pumped, Sink};
use crate::steps::Steps;
use crate::terminal;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use sys::notify::Listener;
use sys::op::{Attr, Op};
use sys::spawn::{self, Message, Report, Spawned};
use sys::{CallError, process};
use terms::{ErrorKind, Fault, Limit, LimitHit, LimitKind, OnOutputLimit, Outcome, Phase, PolicyStamp};

pub(crate) const SIGKILL: i32 = 9;
const SIGWINCH: i32 = 28;
/// How long a caller that does not read may keep us after a limit ended the run.
const DRAIN: Duration = Duration::from_secs(5);

/// A run in progress.
pub(crate) struct Run<'a> {
    pub(crate) request: &'a Request,
    steps: &'a Steps,
    spawned: Spawned,
    signals: OwnedFd,
    pub(crate) meter: Meter<'a>,
    pub(crate) judge: Judge<'a>,
    listener: Option<Listener>,
    pub(crate) network: Option<Box<dyn Network + 'a>>,
    /// What is to be published once the guest stands, and who makes sockets for it; then the one who does it.
    publish: Option<(Vec<Published>, sys::ahead::Ahead)>,
    pub(crate) publisher: Option<Publisher>,
    pub(crate) output: Outlet,
    pub(crate) error: Outlet,
    input: Inlet,
    scratch: Option<OwnedFd>,
    master: Option<OwnedFd>,
    raw: Option<terminal::Raw>,
    pub(crate) allowance: Allowance,
    state: State,
    pub(crate) ended: Option<Report>,
    pub(crate) hit: Option<LimitHit>,
    pub(crate) cancelled_by: Option<i32>,
    give_up_at: Option<Instant>,
    look_at: Option<Instant>,
    pub(crate) stamp: PolicyStamp,
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
    Network,
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
    pub fn new(
        request: &'a Request,
        steps: &'a Steps,
        spawned: Spawned,
        signals: OwnedFd,
        mut meter: Meter<'a>,
        ours: Ours,
        beside: Beside<'a>,
    ) -> Run<'a> {
        meter.watch(beside.gauge);
        let sink = |normal: Sink| if request.stdio.capture { Sink::Keep(Capture::default()) } else { normal };
        let mut judge = Judge::new(&request.policy, &request.plan, steps.guest, &steps.watch, beside.observer);
        judge.max_open_files = request.limits.max_open_files;
        judge.has_network = request.network.is_some();
        judge.workspace = request.workspace.as_ref().map(|w| w.at.clone());
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
            network: beside.network,
            publish: None,
            publisher: None,
            output: Outlet::new(
                ours.output,
                sink(if request.stdio.all_to_stderr { Sink::Stderr } else { Sink::Stdout }),
            ),
            error: Outlet::new(ours.error, sink(Sink::Stderr)),
            input: Inlet::new(ours.input, false),
            scratch: ours.scratch,
            master: None,
            raw: None,
            allowance,
            state: State::Setup,
            ended: None,
            hit: None,
            cancelled_by: None,
            give_up_at: None,
            look_at: None,
            stamp: (request.stamp)(),
        }
    }

    pub fn supervise(mut self, publish: Option<(Vec<Published>, sys::ahead::Ahead)>) -> Result<Outcome, Fault> {
        self.publish = publish;
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
        self.raw = None;
        match fault {
            Some(fault) => {
                self.reap();
                self.meter.close();
                Err(fault)
            }
            None => Ok(self.outcome()),
        }
    }

    /// Waits until pid 1, and with it everything in its namespaces, is gone.
    pub(crate) fn reap(&self) {
        process::reap(self.spawned.pidfd.as_fd());
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
                Slot::Network => self.hear_network(),
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
        let mut found = Interests { slots: Vec::with_capacity(14), fds: Vec::with_capacity(14) };
        if self.state != State::Draining {
            found.add(Slot::Control, self.spawned.control().as_fd(), PollFlags::IN);
            if let Some(listener) = &self.listener {
                found.add(Slot::Listener, listener.as_fd(), PollFlags::IN);
            }
        }
        let wakes = [self.network.as_ref().and_then(|n| n.wake()), self.publisher.as_ref().map(Publisher::wake)];
        wakes.into_iter().flatten().for_each(|fd| found.add(Slot::Network, fd, PollFlags::IN));
        found.add(Slot::Signals, self.signals.as_fd(), PollFlags::IN);
        let asked_at = self.network.as_ref().filter(|_| self.state == State::Running).and_then(|n| n.asks_at());
        if let Some(fd) = asked_at {
            found.add(Slot::Network, fd, PollFlags::IN);
        }
        if self.state == State::Running {
            for event in &self.meter.events {
                found.add(Slot::Event, event.as_fd(), PollFlags::from_bits_retain(event.poll_mask() as u16));
            }
            if let Some(fd) = self.input.wants_input().filter(|_| asked_at.is_none()) {
                found.add(Slot::InputRead, fd, PollFlags::IN);
            }
            match self.input.target() {
                Some((fd, true)) => found.add(Slot::InputWrite, fd, PollFlags::OUT),
                // Only to learn that the command no longer reads.
                Some((fd, false)) if self.master.is_none() => found.add(Slot::InputWrite, fd, PollFlags::empty()),
                _ => {}
            }
        }
        if asked_at.is_some() {
            // Whoever is asked something must see the question and nothing that the guest would put in its place.
            return (found.slots, found.fds);
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
            Message::Ready => self.begin(handles)?,
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

    fn begin(&mut self, handles: spawn::Handles) -> Result<(), Fault> {
        // Asked before anybody raises the limit that it depends on.
        let room = publish::room();
        if let Some(network) = &mut self.network {
            let lost = || Fault::internal("the guest's doors did not arrive").phase(Phase::Start);
            let published = self.publish.as_ref().map_or(0, |(ports, _)| publish::descriptors(ports.len(), room));
            let actors = Actors::of(self.spawned.pid, handles.sockets);
            network.open(Opening { doors: handles.doors.ok_or_else(lost)?, actors, published })?;
        }
        if let Some((published, helper)) = self.publish.take() {
            self.publisher = Some(Publisher::start(published, helper, self.request.limits.max_net_bytes, room)?);
        }
        self.listener = handles.listener.map(Listener::new);
        self.meter.start(handles.scratch.or_else(|| self.scratch.take()));
        self.judge.room = self.meter.room();
        if let Some(master) = handles.terminal {
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
        Ok(())
    }

    /// Pid 1 went without a word: something outside killed it, or the kernel did for want of memory.
    fn guest_vanished(&mut self) -> Result<(), Fault> {
        if let (State::Setup, Some(hit)) = (self.state, self.meter.exceeded()) {
            self.hit = Some(LimitHit { phase: Phase::Start, ..hit });
            self.drain();
            return Ok(());
        }
        if self.state == State::Setup {
            return Err(vanished());
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
        if let (Some(hit), None) = (self.judge.room_met, self.hit) {
            return self.end_by(hit);
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

    /// Refusals and warnings as they happen, and the limit on bytes.
    fn hear_network(&mut self) {
        if let Some(network) = &mut self.network {
            network.happened().into_iter().for_each(|report| self.judge.tell(report));
        }
        if let Some(publisher) = &self.publisher {
            publisher.heard();
        }
        if let (State::Running, None, Some(hit)) = (self.state, self.hit, self.net_hit()) {
            self.end_by(hit);
        }
    }

    /// Bytes over the network both ways, published ports included.
    pub(crate) fn net_bytes(&self) -> u64 {
        self.network.as_ref().map_or(0, |n| n.used()) + self.publisher.as_ref().map_or(0, Publisher::used)
    }

    /// The limit on them, where it was met.
    pub(crate) fn net_hit(&self) -> Option<LimitHit> {
        let limit = self.request.limits.max_net_bytes?;
        let used = self.net_bytes();
        let told = self.network.as_ref().is_some_and(|n| n.over_limit())
            || self.publisher.as_ref().is_some_and(Publisher::over_limit);
        (told || used > limit).then(|| LimitHit {
            kind: LimitKind::NetBytes,
            phase: Phase::Execution,
            limit: Limit::Count(limit),
            used: Limit::Count(used.max(limit + 1)),
        })
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
}

/// Somebody killed the first process before the command ran.
pub(crate) fn vanished() -> Fault {
    Fault::internal("the guest's first process ended during setup").phase(Phase::Start)
}

/// Says at which step the setup failed.
pub(crate) fn step_failed(steps: &Steps, report: &Report) -> Fault {
    let error = std::io::Error::from_raw_os_error(report.errno);
    let Some(op) = steps.ops.get(report.step as usize) else {
        return Fault::internal(format!("setup step {}: {error}", report.step)).phase(Phase::Start);
    };
    if matches!(op, Op::AwaitPlaces) {
        let message = format!("the process that makes the guest's places ended during setup: {error}");
        return Fault::internal(message).phase(Phase::Start);
    }
    let step = format!("setup step {} ({}): {error}", report.step + 1, op.to_string().trim_end());
    if matches!(op, Op::PrivateMounts | Op::Identity { .. } | Op::Proc { .. } | Op::Tmpfs { .. }) {
        return driver::blocked(&CallError { call: op.name(), errno: report.errno });
    }
    let hint = match op {
        Op::Overlay { attr, .. } if !attr.has(Attr::READ_ONLY) => driver::INSTEAD,
        _ => driver::ASK_DOCTOR,
    };
    Fault::new(ErrorKind::UnsupportedHost, step).hint(hint).phase(Phase::Start)
}
