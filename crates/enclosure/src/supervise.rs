//! Supervises one run: relays streams, answers notifications, enforces limits, forwards signals. One thread with one
//! poll loop, so there are no locks and no races.

use crate::capture::Capture;
use crate::driver;
use crate::faults::{exec_failed, internal, start_refused, step_failed, vanished};
use crate::groundwork::PipeEnds;
use crate::publish::Publisher;
use crate::relay::{Allowance, Inlet, Outlet, Pumped, Sink};
use crate::running::RunningGuest;
use crate::spec::DelayedCall;
use crate::terminal;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use sys::process;
use sys::spawn::{self, Message, Report};
use terms::{Fault, Limit, LimitHit, LimitKind, OnOutputLimit, Phase, PolicyStamp};

const SIGWINCH: i32 = 28;
/// Time that a caller who does not read may delay the end after a limit ended the run.
const DRAIN: Duration = Duration::from_secs(5);

/// The supervisor of one run.
pub(crate) struct Supervisor<'a> {
    pub(crate) guest: RunningGuest<'a>,
    signals: OwnedFd,
    pub(crate) output: Outlet,
    pub(crate) error: Outlet,
    input: Inlet,
    master: Option<OwnedFd>,
    raw: Option<terminal::Raw>,
    pub(crate) allowance: Allowance,
    state: SupervisorState,
    pub(crate) ended: Option<Report>,
    pub(crate) hit: Option<LimitHit>,
    pub(crate) cancelled_by: Option<i32>,
    give_up_at: Option<Instant>,
    next_check: Option<Instant>,
    /// Taken when it is called.
    pub(crate) lasting: Option<DelayedCall<'a>>,
    lasting_at: Option<Instant>,
    pub(crate) stamp: PolicyStamp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SupervisorState {
    Setup,
    Running,
    /// The processes are gone or being killed; remaining output is passed on.
    Draining,
}

/// The meaning of a poll slot.
#[derive(Clone, Copy)]
enum PollSlot {
    Control,
    Listener,
    Network,
    Asked,
    Signals,
    Event,
    OutputRead,
    OutputWrite,
    ErrorRead,
    ErrorWrite,
    InputRead,
    InputWrite,
}

impl PollSlot {
    /// True for slots that write the guest's output to the terminal or read input from it.
    fn is_of_terminal(self) -> bool {
        use PollSlot::{ErrorRead, ErrorWrite, InputRead, OutputRead, OutputWrite};
        matches!(self, OutputRead | OutputWrite | ErrorRead | ErrorWrite | InputRead)
    }
}

struct Interests<'f> {
    slots: Vec<PollSlot>,
    fds: Vec<PollFd<'f>>,
}

impl<'f> Interests<'f> {
    fn add(&mut self, slot: PollSlot, fd: BorrowedFd<'f>, flags: PollFlags) {
        self.slots.push(slot);
        self.fds.push(PollFd::from_borrowed_fd(fd, flags));
    }
}

impl<'a> Supervisor<'a> {
    pub fn new(guest: RunningGuest<'a>, signals: OwnedFd, ours: PipeEnds) -> Supervisor<'a> {
        let spec = &*guest.spec;
        let sink = |normal: Sink| if spec.stdio.capture { Sink::Keep(Capture::default()) } else { normal };
        let allowance = Allowance {
            left: spec.limits.max_output_bytes,
            truncate: spec.limits.on_output_limit == Some(OnOutputLimit::Truncate),
            used: 0,
        };
        let output = sink(if spec.stdio.all_to_stderr { Sink::Stderr } else { Sink::Stdout });
        Supervisor {
            signals,
            output: Outlet::new(ours.output, output),
            error: Outlet::new(ours.error, sink(Sink::Stderr)),
            input: Inlet::new(ours.input, false),
            master: None,
            raw: None,
            allowance,
            state: SupervisorState::Setup,
            ended: None,
            hit: None,
            cancelled_by: None,
            give_up_at: None,
            next_check: None,
            lasting: None,
            lasting_at: None,
            stamp: (spec.stamp)(),
            guest,
        }
    }

    /// Supervises the run until its processes are gone and its output is passed on.
    pub fn supervise(mut self) -> Result<Supervisor<'a>, Fault> {
        let fault = loop {
            if self.is_over() {
                break None;
            }
            if let Err(fault) = self.turn() {
                break Some(fault);
            }
        };
        if fault.is_some() {
            self.guest.kill();
        }
        self.raw = None;
        match fault {
            Some(fault) => {
                self.guest.reap();
                self.guest.meter.close();
                Err(fault)
            }
            None => Ok(self),
        }
    }

    fn is_over(&self) -> bool {
        let drained = self.output.is_done() && self.error.is_done();
        let gave_up = self.give_up_at.is_some_and(|at| Instant::now() >= at);
        self.state == SupervisorState::Draining && (drained || gave_up)
    }

    /// Polls once and handles all events.
    fn turn(&mut self) -> Result<(), Fault> {
        for slot in self.wait()? {
            // A question put in this turn must not be overwritten.
            if slot.is_of_terminal() && self.asks_at().is_some() {
                continue;
            }
            match slot {
                PollSlot::Control => self.hear_control()?,
                PollSlot::Listener => self.hear_call(),
                PollSlot::Network => self.hear_network(),
                PollSlot::Asked => self.guest.hear_asked(),
                PollSlot::Signals => self.forward_signals(),
                PollSlot::Event => {
                    self.guest.meter.events.iter().for_each(sys::cgroup::EventFd::rearm);
                    self.guest.meter.note_event();
                    self.next_check = Some(Instant::now());
                }
                PollSlot::OutputRead => {
                    let pumped = self.output.pull(&mut self.allowance);
                    self.after_pull(pumped);
                }
                PollSlot::ErrorRead => {
                    let pumped = self.error.pull(&mut self.allowance);
                    self.after_pull(pumped);
                }
                PollSlot::OutputWrite => self.output.push(),
                PollSlot::ErrorWrite => self.error.push(),
                PollSlot::InputRead => self.input.pull(),
                PollSlot::InputWrite => self.input.push(),
            }
        }
        if self.state == SupervisorState::Running && self.next_check.is_some_and(|at| Instant::now() >= at) {
            self.check_limits();
            self.next_check = self.guest.meter.next_look();
        }
        if self.state == SupervisorState::Running && self.lasting_at.is_some_and(|at| Instant::now() >= at) {
            self.lasting_at = None;
            self.lasting.take().into_iter().for_each(|lasting| (lasting.call)());
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<PollSlot>, Fault> {
        let (slots, mut fds) = self.interests();
        let timeout = self.timeout();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(driver::lacks("poll")),
        }
        Ok(slots.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(slot, _)| slot).collect())
    }

    fn timeout(&self) -> Option<rustix::event::Timespec> {
        let while_running = |at: Option<Instant>| at.filter(|_| self.state == SupervisorState::Running);
        let at = [while_running(self.next_check), while_running(self.lasting_at), self.give_up_at]
            .into_iter()
            .flatten()
            .min()?;
        Some(sys::deadline::time_left(at))
    }

    fn interests(&self) -> (Vec<PollSlot>, Vec<PollFd<'_>>) {
        let mut found = Interests { slots: Vec::with_capacity(14), fds: Vec::with_capacity(14) };
        if self.state != SupervisorState::Draining {
            found.add(PollSlot::Control, self.guest.spawned.control().as_fd(), PollFlags::IN);
            if let Some(listener) = &self.guest.listener {
                found.add(PollSlot::Listener, listener.as_fd(), PollFlags::IN);
            }
            self.guest.asked_wakes().for_each(|fd| found.add(PollSlot::Asked, fd, PollFlags::IN));
        }
        let wakes =
            [self.guest.network.as_ref().and_then(|n| n.wake()), self.guest.publisher.as_ref().map(Publisher::wake)];
        wakes.into_iter().flatten().for_each(|fd| found.add(PollSlot::Network, fd, PollFlags::IN));
        found.add(PollSlot::Signals, self.signals.as_fd(), PollFlags::IN);
        let asked_at = self.asks_at();
        if let Some(fd) = asked_at {
            found.add(PollSlot::Asked, fd, PollFlags::IN);
        }
        if self.state == SupervisorState::Running {
            for event in &self.guest.meter.events {
                found.add(PollSlot::Event, event.as_fd(), PollFlags::from_bits_retain(event.poll_mask() as u16));
            }
            if let Some(fd) = self.input.wants_input().filter(|_| asked_at.is_none()) {
                found.add(PollSlot::InputRead, fd, PollFlags::IN);
            }
            match self.input.target() {
                Some((fd, true)) => found.add(PollSlot::InputWrite, fd, PollFlags::OUT),
                // Polled without events, to learn of POLLERR when the command closes its input.
                Some((fd, false)) if self.master.is_none() => found.add(PollSlot::InputWrite, fd, PollFlags::empty()),
                _ => {}
            }
        }
        if asked_at.is_some() {
            // The person must see the question, not text of the guest in its place.
            return (found.slots, found.fds);
        }
        for (outlet, read, write) in [
            (&self.output, PollSlot::OutputRead, PollSlot::OutputWrite),
            (&self.error, PollSlot::ErrorRead, PollSlot::ErrorWrite),
        ] {
            if let Some(fd) = outlet.wants_input() {
                found.add(read, fd, PollFlags::IN);
            }
            if let Some(fd) = outlet.wants_output() {
                found.add(write, fd, PollFlags::OUT);
            }
        }
        (found.slots, found.fds)
    }

    /// Returns the terminal's descriptor while a question is open there.
    fn asks_at(&self) -> Option<BorrowedFd<'_>> {
        let asking = self.guest.judge.asking.as_ref().filter(|_| self.state == SupervisorState::Running);
        asking.and_then(|asking| asking.asks_at())
    }

    fn hear_control(&mut self) -> Result<(), Fault> {
        let Some((report, handles)) = self.guest.spawned.receive().map_err(|e| internal(Phase::Start, e))? else {
            return self.guest_vanished();
        };
        match report.message {
            Message::Ready => self.begin(handles)?,
            Message::StepFailed => return Err(step_failed(&self.guest.steps, &report)),
            Message::ExecFailed => return Err(self.not_started(&report)),
            Message::Ended => {
                self.ended = Some(report);
                self.drain();
            }
            Message::Nothing | Message::ShepherdStarted | Message::Started | Message::Lost => {
                return self.guest_vanished();
            }
        }
        Ok(())
    }

    fn not_started(&mut self, report: &Report) -> Fault {
        // A waiting call reports its refusal before it is answered, so the report is there by now.
        self.guest.hear_asked();
        match self.guest.judge.denials.refused_program() {
            Some(denial) => start_refused(denial),
            None => exec_failed(&self.guest.spec.program, report),
        }
    }

    fn begin(&mut self, handles: spawn::Handles) -> Result<(), Fault> {
        if let Some(master) = self.guest.open(handles)? {
            let _ = rustix::fs::fcntl_setfl(&master, rustix::fs::OFlags::NONBLOCK);
            let copy = || master.try_clone().ok();
            let sink = std::mem::replace(&mut self.output.sink, Sink::Stdout);
            self.output = Outlet::new(copy(), sink);
            self.input = Inlet::new(self.guest.spec.stdio.input.then(copy).flatten(), true);
            self.master = Some(master);
            self.raw = Some(terminal::Raw::on_stdin());
        }
        self.state = SupervisorState::Running;
        self.lasting_at = self.lasting.as_ref().map(|lasting| Instant::now() + lasting.after);
        self.next_check = self.guest.meter.next_look();
        Ok(())
    }

    /// Handles the end of pid 1 without a report: it was killed from outside, or by the OOM killer.
    fn guest_vanished(&mut self) -> Result<(), Fault> {
        if let (SupervisorState::Setup, Some(hit)) = (self.state, self.guest.meter.exceeded()) {
            self.hit = Some(LimitHit { phase: Phase::Start, ..hit });
            self.drain();
            return Ok(());
        }
        // The caller asked for the end, however early.
        if self.state == SupervisorState::Setup && self.cancelled_by.is_some() {
            self.drain();
            return Ok(());
        }
        if self.state == SupervisorState::Setup {
            return Err(vanished());
        }
        self.hit = self.hit.or_else(|| self.guest.meter.exceeded());
        self.drain();
        Ok(())
    }

    fn hear_call(&mut self) {
        if let (Some(hit), None) = (self.guest.hear_call(), self.hit) {
            self.end_by(hit);
        }
    }

    fn hear_network(&mut self) {
        if let (Some(hit), SupervisorState::Running, None) = (self.guest.hear_network(), self.state, self.hit) {
            self.end_by(hit);
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
            if self.state == SupervisorState::Setup && matches!(signal, 1..=3 | 15) {
                // No process of the command runs yet that could handle the signal.
                self.guest.kill();
            } else {
                process::signal(self.guest.spawned.pidfd.as_fd(), signal);
            }
            if matches!(signal, 1..=3 | 15) {
                self.cancelled_by = Some(signal);
                if self.state == SupervisorState::Draining {
                    self.give_up_at = Some(Instant::now());
                }
            }
        }
    }

    fn after_pull(&mut self, pumped: Pumped) {
        if pumped == Pumped::OverLimit && self.hit.is_none() {
            let limit = self.guest.spec.limits.max_output_bytes.unwrap_or(0);
            self.end_by(LimitHit {
                kind: LimitKind::OutputBytes,
                phase: Phase::Execution,
                limit: Limit::Count(limit),
                used: Limit::Count(limit + 1),
            });
        }
    }

    fn check_limits(&mut self) {
        if let Some(hit) = self.guest.meter.exceeded() {
            self.end_by(hit);
        }
    }

    fn end_by(&mut self, hit: LimitHit) {
        self.hit = Some(hit);
        self.guest.kill();
        self.drain();
        self.give_up_at = Some(Instant::now() + DRAIN);
    }

    fn drain(&mut self) {
        self.state = SupervisorState::Draining;
        self.guest.listener = None;
        self.input.hang_up();
    }
}
