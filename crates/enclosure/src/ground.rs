//! What every run needs whatever its plan: who the guest is, the first steps of its setup, the pipes to it, an empty
//! ruleset. Laid as early as can be, most of it by a helper while the plan is still being made.

use crate::guest::Guest;
use crate::steps;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::ahead::Ahead;
use sys::op::Op;
use sys::{CallError, ahead, arena, landlock};
use terms::{ErrorKind, Fault, Phase};

pub struct Groundwork {
    pub(crate) guest: Guest,
    frame: Result<&'static [Op], Fault>,
    early: &'static [Op],
    ruleset: Option<Result<OwnedFd, CallError>>,
    pipes: Option<Result<Pipes, Fault>>,
    pub(crate) helper: Option<Ahead>,
    settled: bool,
}

/// Begins a run. Dropping what this gives ends it again.
pub fn begin() -> Groundwork {
    let helper = ahead::start();
    // The rest while the helper is at work; it needs all of this only after its longest step.
    arena::open();
    let guest = Guest::of_caller();
    let mut ground = Groundwork {
        guest,
        frame: steps::frame(&guest).map(|ops| arena::list(&ops)),
        early: arena::list(&steps::early()),
        ruleset: Some(landlock::ruleset(landlock::abi())),
        pipes: Some(Pipes::new(&guest)),
        helper,
        settled: false,
    };
    // One that was begun with the program has been waiting for this; for another we would have to wait.
    if ground.helper.as_ref().is_some_and(Ahead::waits) {
        ground.settle();
    }
    ground
}

/// For a call that turns out to run nothing here.
pub fn forgo() {
    ahead::forgo();
}

impl Groundwork {
    /// From here on the guest's first process may be made at any time, in the midst of other work. It is a copy of us.
    pub fn release(&mut self) {
        self.settle();
        self.helper.iter().for_each(Ahead::release);
    }

    /// Our own part of what the helper makes.
    fn settle(&mut self) {
        let g = self.guest;
        let (Some(helper), Ok(frame), false) = (&self.helper, &self.frame, self.settled) else { return };
        self.settled = true;
        helper.settle((g.uid, g.host_uid), (g.gid, g.host_gid), !g.privileged, frame, self.early);
    }

    /// The steps that are the same for every plan.
    pub(crate) fn ops(&self) -> Result<Vec<Op>, Fault> {
        let frame = self.frame.clone()?;
        let mut ops = Vec::with_capacity(160);
        ops.extend_from_slice(frame);
        ops.extend_from_slice(self.early);
        Ok(ops)
    }

    pub(crate) fn ruleset(&mut self) -> Result<OwnedFd, Fault> {
        let made = self.ruleset.take().unwrap_or_else(|| landlock::ruleset(landlock::abi()));
        made.map_err(|e| Fault::new(ErrorKind::UnsupportedHost, e.to_string()).phase(Phase::Preparation))
    }

    pub(crate) fn pipes(&mut self) -> Result<Pipes, Fault> {
        self.pipes.take().unwrap_or_else(|| Pipes::new(&self.guest))
    }
}

/// The pipes between us and the command.
pub(crate) struct Pipes {
    ours: Ours,
    theirs: [OwnedFd; 3],
}

/// Our ends of the pipes.
#[derive(Default)]
pub(crate) struct Ours {
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
        let ours = Ours { input: Some(write_in), output: Some(read_out), error: Some(read_err) };
        Ok(Pipes { ours, theirs: [read_in, write_out, write_err] })
    }

    pub(crate) fn theirs(&self) -> [BorrowedFd<'_>; 3] {
        self.theirs.each_ref().map(AsFd::as_fd)
    }

    /// Closes the command's ends here, so that their end shows.
    pub(crate) fn keep_ours(self) -> Ours {
        self.ours
    }
}
