//! The live run of a sandbox: who holds its top layer, and how its guest is held still.

use crate::lifecycle::live;
use crate::sandbox::{Run, Sandbox};
use crate::state::State;
use std::time::{Duration, Instant};
use store::Kept;
use sys::freeze::{Frozen, Trouble};
use terms::{ErrorKind, Fault, Phase, Retry};
use workspace::{Layer, Lock};

/// How long a guest may take to stand still.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often, and how long apart, a lock is tried that no run holds.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// The run that holds the sandbox, as far as the records say.
pub fn of(state: &State, sandbox: &str) -> Result<Option<Kept<Run>>, Fault> {
    let open = state.store.read(|tx| live::runs(tx, sandbox))?.into_iter();
    Ok(open.filter(|run| live::handle(&run.record).is_some()).max_by_key(|run| run.record.started_ms))
}

/// The top layer for oneself; none where a run has it. Whoever only looks whether it is held has it for a moment, too.
pub fn lock(state: &State, sandbox: &Kept<Sandbox>, top: &Layer) -> Result<Option<Lock>, Fault> {
    for _ in 0..TRIES {
        if let Some(lock) = top.lock().map_err(|e| super::lost(&top.id, &e))? {
            return Ok(Some(lock));
        }
        if of(state, &sandbox.id)?.is_some() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

/// Somebody works in the sandbox, and the verb cannot be done meanwhile.
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

/// Holds the guest of the live run still until the answer is dropped. One that is only being made is waited for a while.
pub fn hold(state: &State, sandbox: &Kept<Sandbox>) -> Result<Frozen, Fault> {
    let begun = Instant::now();
    loop {
        let run = of(state, &sandbox.id)?.ok_or_else(|| busy(state, sandbox, "the snapshot"))?;
        match sys::freeze::guest_of(run.record.pid, PATIENCE) {
            Ok(frozen) => return Ok(frozen),
            Err(Trouble::NoGuest) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(trouble) => {
                let message = format!("{} could not be held still: {trouble}", run.id);
                let fault = Fault::new(ErrorKind::Unavailable, message).retry(Retry::Later).phase(Phase::Preparation);
                let hint = "it goes on unharmed; try again, or take the snapshot when the run has ended";
                return Err(fault.hint(hint).subject(&sandbox.id));
            }
        }
    }
}
