//! The part of a run that needs no plan: the guest's ids, the first steps of its setup, the pipes to it, an empty
//! landlock ruleset. Created as early as possible, most of it by a helper process in parallel with planning.

use crate::driver::Driver;
use crate::guest::Guest;
use crate::steps::{self, StepInputs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use sys::arena::Arena;
use sys::early_setup::EarlySetup;
use sys::op::Op;
use sys::{CallError, early_setup, landlock};
use terms::{ErrorKind, Fault, Phase};

/// The part of a run that is prepared before its plan.
pub struct Groundwork {
    pub(crate) guest: Guest,
    /// Memory of all plan data, released with the last reference to it.
    pub(crate) arena: Arena,
    frame: Result<Vec<Op>, Fault>,
    early: Vec<Op>,
    ruleset: Option<Result<OwnedFd, CallError>>,
    pipes: Option<Result<Pipes, Fault>>,
    pub(crate) helper: Option<EarlySetup>,
    settled: bool,
    /// Deadline of a plan that is only explained; `None` for a plan that will run.
    pub(crate) explained_by: Option<Instant>,
}

/// Prepares a run. Dropping the result ends the helper.
pub fn begin() -> Groundwork {
    let arena = Arena::new();
    let helper = early_setup::start(&arena);
    // Overlaps with the helper's longest step, after which it needs these values.
    let guest = Guest::of_caller();
    let mut ground = Groundwork {
        guest,
        frame: steps::frame(&guest, &arena),
        early: steps::early(&arena),
        arena,
        ruleset: Some(landlock::ruleset(landlock::abi())),
        pipes: Some(Pipes::new(&guest)),
        helper,
        settled: false,
        explained_by: None,
    };
    // A helper that was started with the program waits for this already; another is not there yet, and we do not wait
    // for it.
    if ground.helper.as_ref().is_some_and(EarlySetup::is_waiting) {
        ground.settle();
    }
    ground
}

/// Prepares a plan that is explained and never run, by a process that outlives it: no helper is started, and its memory
/// is freed with it. Planning is given up after `limit`.
pub fn begin_explained(limit: Duration) -> Groundwork {
    let (arena, guest) = (Arena::new(), Guest::of_caller());
    Groundwork {
        guest,
        frame: steps::frame(&guest, &arena),
        early: steps::early(&arena),
        arena,
        ruleset: None,
        pipes: None,
        helper: None,
        settled: false,
        explained_by: Some(Instant::now() + limit),
    }
}

/// Ends an early helper, for a command that runs nothing on this host.
pub fn forgo() {
    early_setup::forgo();
}

impl Groundwork {
    /// Lets the helper clone the guest's first process from here on. The clone is a copy of this process.
    pub fn release(&mut self) {
        self.settle();
        self.helper.iter().for_each(EarlySetup::release);
    }

    /// Sends the helper the ids and the first steps.
    fn settle(&mut self) {
        let g = self.guest;
        let (Some(helper), Ok(frame), false) = (&self.helper, &self.frame, self.settled) else { return };
        self.settled = true;
        helper.settle((g.uid, g.host_uid), (g.gid, g.host_gid), !g.privileged, frame, &self.early);
    }

    /// Returns the inputs from which the steps of a plan are built. Without namespaces there is no frame.
    pub(crate) fn basis(&mut self, driver: Driver) -> Result<StepInputs, Fault> {
        let mut ops = Vec::new();
        if driver == Driver::Namespaces {
            ops.reserve(160);
            ops.extend_from_slice(self.frame.as_ref().map_err(Fault::clone)?);
            ops.extend_from_slice(&self.early);
        }
        let ruleset = self.ruleset.take().unwrap_or_else(|| landlock::ruleset(landlock::abi()));
        let ruleset =
            ruleset.map_err(|e| Fault::new(ErrorKind::UnsupportedHost, e.to_string()).phase(Phase::Preparation))?;
        let (arena, explained_by) = (self.arena.clone(), self.explained_by);
        Ok(StepInputs { guest: self.guest, arena, ops, ruleset, explained_by })
    }

    pub(crate) fn pipes(&mut self) -> Result<Pipes, Fault> {
        self.pipes.take().unwrap_or_else(|| Pipes::new(&self.guest))
    }
}

/// The pipes between the supervisor and the command.
pub(crate) struct Pipes {
    ours: PipeEnds,
    command_ends: [OwnedFd; 3],
}

/// The supervisor's ends of the pipes.
#[derive(Default)]
pub(crate) struct PipeEnds {
    pub input: Option<OwnedFd>,
    pub output: Option<OwnedFd>,
    pub error: Option<OwnedFd>,
}

impl Pipes {
    pub(crate) fn new(guest: &Guest) -> Result<Pipes, Fault> {
        let pipe = || {
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                .map_err(|e| Fault::internal(format!("pipe: {e}")).phase(Phase::Preparation))
        };
        let (read_in, write_in) = pipe()?;
        let (read_out, write_out) = pipe()?;
        let (read_err, write_err) = pipe()?;
        // The supervisor's ends are non-blocking; the command's ends are ordinary.
        for end in [&write_in, &read_out, &read_err] {
            let _ = rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::NONBLOCK);
        }
        if guest.privileged {
            // Opening /dev/stdout opens the pipe anew, which needs the guest to own it.
            let ids = (rustix::fs::Uid::from_raw(guest.host_uid), rustix::fs::Gid::from_raw(guest.host_gid));
            for end in [&read_in, &write_out, &write_err] {
                let _ = rustix::fs::fchown(end, Some(ids.0), Some(ids.1));
            }
        }
        let ours = PipeEnds { input: Some(write_in), output: Some(read_out), error: Some(read_err) };
        Ok(Pipes { ours, command_ends: [read_in, write_out, write_err] })
    }

    pub(crate) fn command_ends(&self) -> [BorrowedFd<'_>; 3] {
        self.command_ends.each_ref().map(AsFd::as_fd)
    }

    /// Closes the command's ends, so that end of file arrives, and returns the supervisor's.
    pub(crate) fn supervisor_ends(self, input: bool) -> PipeEnds {
        PipeEnds { input: self.ours.input.filter(|_| input), ..self.ours }
    }
}
