//! Runs one planned command to its outcome: launch, supervise, report.

use crate::driver;
use crate::groundwork::PipeEnds;
use crate::plan::GuestPlan;
use crate::spec::GuestServices;
use crate::supervise::Supervisor;
use sys::process;
use terms::{Fault, Outcome};

/// Signals forwarded to the command: HUP, INT, QUIT, USR1, USR2, TERM, CONT, WINCH.
const FORWARDED: [i32; 8] = [1, 2, 3, 10, 12, 15, 18, 28];

impl GuestPlan {
    /// Runs the command to its end. Faults are the supervisor's; the command's own failures are in the outcome.
    pub fn run(mut self, mut beside: GuestServices<'_>) -> Result<Outcome, Fault> {
        let signals = process::signal_handle(&FORWARDED).map_err(|e| driver::lacks(e.call))?;
        let pipes = self.ground.pipes()?;
        let command = self.command(&pipes);
        let lasting = beside.lasting.take();
        let guest = self.launch(command, beside)?;
        let stdio = guest.spec.stdio;
        // A terminal replaces the pipes, which are closed then.
        let pipes = Some(pipes).filter(|_| !stdio.terminal);
        let ours = pipes.map_or_else(PipeEnds::default, |pipes| pipes.supervisor_ends(stdio.input));
        let mut supervisor = Supervisor::new(guest, signals, ours);
        supervisor.lasting = lasting;
        supervisor.supervise().map(Supervisor::outcome)
    }
}
