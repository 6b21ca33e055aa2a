//! Watching over one run: relay, hear, limit, forward. Single-threaded: one loop over everything that can happen, so
//! there is nothing to lock and nothing to race.

use crate::capture::Capture;
use crate::driver;
use crate::ground::Ours;
use crate::launch::internal;
use crate::publish::Publisher;
use crate::relay::{Allowance, Inlet, Outlet, Pumped, Sink};
use crate::standing::{Standing, exec_failed, start_refused, step_failed, vanished};
use crate::terminal;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use sys::process;
use sys::spawn::{self, Message, Report};
use terms::{Fault, Limit, LimitHit, LimitKind, OnOutputLimit, Outcome, Phase, PolicyStamp};

const SIGWINCH: i32 = 28;
/// How long a caller that does not read may keep us after a limit ended the run.
const DRAIN: Duration = Duration::from_secs(5);

/// A run in progress.
pub(crate) struct Run<'a> {
    pub(crate) guest: Standing<'a>,
    signals: OwnedFd,
    pub(crate) output: Outlet,
    pub(crate) error: Outlet,
    input: Inlet,
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

impl Slot {
    /// Whether it brings the terminal something of the guest's, or takes from it what is typed.
    fn is_of_terminal(self) -> bool {
        use Slot::{ErrorRead, ErrorWrite, InputRead, OutputRead, OutputWrite};
        matches!(self, OutputRead | OutputWrite | ErrorRead | ErrorWrite | InputRead)
    }
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
    pub fn new(guest: Standing<'a>, signals: OwnedFd, ours: Ours) -> Run<'a> {
        let request = &*guest.request;
        let sink = |normal: Sink| if request.stdio.capture { Sink::Keep(Capture::default()) } else { normal };
        let allowance = Allowance {
            left: request.limits.max_output_bytes,
            truncate: request.limits.on_output_limit == Some(OnOutputLimit::Truncate),
            used: 0,
        };
        let output = sink(if request.stdio.all_to_stderr { Sink::Stderr } else { Sink::Stdout });
        Run {
            signals,
            output: Outlet::new(ours.output, output),
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
            stamp: (request.stamp)(),
            guest,
        }
    }

    pub fn supervise(mut self) -> Result<Outcome, Fault> {
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
            // A question that was put in this very turn is not written over.
            if slot.is_of_terminal() && self.asks_at().is_some() {
                continue;
            }
            match slot {
                Slot::Control => self.hear_control()?,
                Slot::Listener => self.hear_call(),
                Slot::Network => self.hear_network(),
                Slot::Asked => self.guest.hear_asked(),
                Slot::Signals => self.forward_signals(),
                Slot::Event => {
                    self.guest.meter.events.iter().for_each(sys::cgroup::EventFd::rearm);
                    self.guest.meter.note_event();
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
            self.look_at = self.guest.meter.next_look();
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
            found.add(Slot::Control, self.guest.spawned.control().as_fd(), PollFlags::IN);
            if let Some(listener) = &self.guest.listener {
                found.add(Slot::Listener, listener.as_fd(), PollFlags::IN);
            }
            self.guest.asked_wakes().for_each(|fd| found.add(Slot::Asked, fd, PollFlags::IN));
        }
        let wakes =
            [self.guest.network.as_ref().and_then(|n| n.wake()), self.guest.publisher.as_ref().map(Publisher::wake)];
        wakes.into_iter().flatten().for_each(|fd| found.add(Slot::Network, fd, PollFlags::IN));
        found.add(Slot::Signals, self.signals.as_fd(), PollFlags::IN);
        let asked_at = self.asks_at();
        if let Some(fd) = asked_at {
            found.add(Slot::Asked, fd, PollFlags::IN);
        }
        if self.state == State::Running {
            for event in &self.guest.meter.events {
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

    /// Where somebody is being asked something, if that is so.
    fn asks_at(&self) -> Option<BorrowedFd<'_>> {
        let asking = self.guest.judge.asking.as_ref().filter(|_| self.state == State::Running);
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
            Message::Nothing | Message::Born | Message::Started | Message::Lost => return self.guest_vanished(),
        }
        Ok(())
    }

    fn not_started(&mut self, report: &Report) -> Fault {
        // Whoever waited for an answer told of it before the call was answered.
        self.guest.hear_asked();
        match self.guest.judge.denials.refused_program() {
            Some(denial) => start_refused(denial),
            None => exec_failed(&self.guest.request.program, report),
        }
    }

    fn begin(&mut self, handles: spawn::Handles) -> Result<(), Fault> {
        if let Some(master) = self.guest.open(handles)? {
            let _ = rustix::fs::fcntl_setfl(&master, rustix::fs::OFlags::NONBLOCK);
            let copy = || master.try_clone().ok();
            let sink = std::mem::replace(&mut self.output.sink, Sink::Stdout);
            self.output = Outlet::new(copy(), sink);
            self.input = Inlet::new(self.guest.request.stdio.input.then(copy).flatten(), true);
            self.master = Some(master);
            self.raw = Some(terminal::Raw::on_stdin());
        }
        self.state = State::Running;
        self.look_at = self.guest.meter.next_look();
        Ok(())
    }

    /// Pid 1 went without a word: something outside killed it, or the kernel did for want of memory.
    fn guest_vanished(&mut self) -> Result<(), Fault> {
        if let (State::Setup, Some(hit)) = (self.state, self.guest.meter.exceeded()) {
            self.hit = Some(LimitHit { phase: Phase::Start, ..hit });
            self.drain();
            return Ok(());
        }
        // Whoever asked for the end has it, however early.
        if self.state == State::Setup && self.cancelled_by.is_some() {
            self.drain();
            return Ok(());
        }
        if self.state == State::Setup {
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
        if let (Some(hit), State::Running, None) = (self.guest.hear_network(), self.state, self.hit) {
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
            if self.state == State::Setup && matches!(signal, 1..=3 | 15) {
                // Nothing of the command's has run yet: there is nobody to ask.
                self.guest.kill();
            } else {
                process::signal(self.guest.spawned.pidfd.as_fd(), signal);
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
            let limit = self.guest.request.limits.max_output_bytes.unwrap_or(0);
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
        self.state = State::Draining;
        self.guest.listener = None;
        self.input.hang_up();
    }
}
