//! The live run of a sandbox: finds the holder of its top layer, and freezes its guest.

use super::take::top_of;
use runtime::Node;
use runtime::liveness;
use state::State;
use state::lock::{LockAttempt, LockResult};
use state::sandbox::{Run, Sandbox};
use std::time::{Duration, Instant};
use store::Kept;
use sys::freeze::{FreezeError, Frozen};
use terms::{ErrorKind, Fault, Phase, Retry};
use workspace::{Layer, Lock};

/// Most time for a guest to freeze.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between attempts at a guest that is still being made.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns the recorded run that holds the sandbox.
pub fn of(state: &State, sandbox: &str) -> Result<Option<Kept<Run>>, Fault> {
    let open = state.store.read(|tx| state::process::runs(tx, sandbox))?.into_iter();
    Ok(open.filter(|run| state::process::handle(&run.record).is_some()).max_by_key(|run| run.record.started_ms))
}

/// Locks a sandbox; returns its record and top layer, without a lock if a run holds it.
pub fn lock(node: &Node, state: &State, id: &str) -> Result<(Kept<Sandbox>, Layer, Option<Lock>), Fault> {
    let LockAttempt { sandbox, result } = liveness::lock_patiently(node, state, id)?;
    let top = top_of(state, &sandbox)?;
    match result {
        LockResult::Locked(lock) => Ok((sandbox, top, lock)),
        LockResult::Busy => Ok((sandbox, top, None)),
    }
}

/// The conflict of a verb with a run in the sandbox.
pub fn busy(state: &State, sandbox: &Kept<Sandbox>, verb: &str) -> Fault {
    let who = of(state, &sandbox.id).ok().flatten();
    let message = match &who {
        Some(run) => format!("{} has a live run, {} (pid {}); {verb} must wait", sandbox.id, run.id, run.record.pid),
        None => format!("{} is in use by another command; {verb} must wait", sandbox.id),
    };
    let hint = match who {
        Some(_) => format!("wait for it, or end it with `cofferdam stop {}`", sandbox.id),
        None => "try again in a moment".to_owned(),
    };
    let fault = Fault::new(ErrorKind::Conflict, message).hint(hint).retry(Retry::Later);
    fault.subject(&sandbox.id).phase(Phase::Admission)
}

/// Freezes the guest of the live run until the result is dropped. Waits a while for a guest that is still being made.
pub fn hold(state: &State, sandbox: &Kept<Sandbox>) -> Result<Frozen, Fault> {
    let begun = Instant::now();
    loop {
        let run = of(state, &sandbox.id)?.ok_or_else(|| busy(state, sandbox, "the snapshot"))?;
        match sys::freeze::freeze_guest(run.record.pid, PATIENCE) {
            Ok(frozen) => return Ok(frozen),
            Err(FreezeError::NoGuest) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(trouble) => {
                let message = format!("{} could not be paused: {trouble}", run.id);
                let fault = Fault::new(ErrorKind::Unavailable, message).retry(Retry::Later).phase(Phase::Preparation);
                let hint = "it keeps running; try again, or take the snapshot when the run has ended";
                return Err(fault.hint(hint).subject(&sandbox.id));
            }
        }
    }
}
