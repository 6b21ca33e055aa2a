//! The live run of a sandbox: who holds its top layer, and how its guest is held still.

use crate::sandbox::{Run, Sandbox};
use crate::state::State;
use std::time::Duration;
use store::Kept;
use terms::{ErrorKind, Fault, Phase, Retry};

/// How long a guest may take to stand still.
const PATIENCE: Duration = Duration::from_secs(2);

/// The run that holds the sandbox, as far as the records say.
pub fn live(state: &State, sandbox: &str) -> Result<Option<Kept<Run>>, Fault> {
    let runs = state.store.read(|tx| tx.list_in::<Run>(sandbox))?;
    let open = runs.into_iter().filter(|run| run.record.ended_ms.is_none());
    Ok(open.max_by_key(|run| run.record.started_ms).filter(|run| is_alive(&run.record)))
}

/// The process is the one that was recorded, and not another with its number.
fn is_alive(run: &Run) -> bool {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", run.pid)).unwrap_or_default();
    let start = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19)?.parse::<u64>().ok());
    boot.trim() == run.boot.trim() && start == Some(run.pid_start)
}

/// Somebody works in the sandbox, and the verb cannot be done meanwhile.
pub fn busy(state: &State, sandbox: &Kept<Sandbox>, verb: &str) -> Fault {
    let who = live(state, &sandbox.id).ok().flatten();
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

/// Holds the guest of the live run still until the answer is dropped.
pub fn hold(state: &State, sandbox: &Kept<Sandbox>) -> Result<sys::freeze::Frozen, Fault> {
    let run = live(state, &sandbox.id)?.ok_or_else(|| busy(state, sandbox, "the snapshot"))?;
    sys::freeze::guest_of(run.record.pid, PATIENCE).map_err(|trouble| {
        let message = format!("{} could not be held still: {trouble}", run.id);
        let fault = Fault::new(ErrorKind::Unavailable, message).retry(Retry::Later).phase(Phase::Preparation);
        fault.hint("it goes on unharmed; try again, or take the snapshot when the run has ended").subject(&sandbox.id)
    })
}
