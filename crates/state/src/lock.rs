//! The lock of a sandbox: that of its top layer. A process that runs in a sandbox or changes its layers holds it.

use crate::State;
use crate::sandbox::{self, Sandbox};
use store::Kept;
use terms::{ErrorKind, Fault, Phase, Retry};
use workspace::{Layer, Lock};

fn top(state: &State, sandbox: &Sandbox) -> Option<Layer> {
    sandbox.layers.last().and_then(|id| state.layers.get(id).ok())
}

/// Tells whether the top layer of a sandbox is locked.
pub fn is_held(state: &State, sandbox: &Sandbox) -> bool {
    top(state, sandbox).is_some_and(|layer| holds(&layer))
}

/// Tells whether a layer is locked; on an error it counts as locked.
pub fn holds(layer: &Layer) -> bool {
    layer.is_held().unwrap_or(true)
}

/// The result of trying to lock a sandbox, with its record as read under the lock.
#[derive(Debug)]
pub struct LockAttempt {
    pub sandbox: Kept<Sandbox>,
    pub result: LockResult,
}

#[derive(Debug)]
pub enum LockResult {
    /// No other process runs in the sandbox or changes its layers until the lock is dropped. A sandbox whose top layer is gone
    /// needs no lock.
    Locked(Option<Lock>),
    /// Another process holds the lock.
    Busy,
}

/// Attempts at locking a sandbox whose layers are replaced meanwhile.
const REPLACED: u32 = 64;

/// Tries once to lock a sandbox. The record is read again under the lock: a snapshot or a restore may have replaced the layers that
/// were seen, and then the wrong one was locked.
pub fn try_lock(state: &State, id: &str) -> Result<LockAttempt, Fault> {
    let get = || state.store.read(|tx| tx.get::<Sandbox>(id))?.ok_or_else(|| sandbox::unknown(id));
    let mut seen = get()?;
    for _ in 0..REPLACED {
        let result = match top(state, &seen.record).map(|layer| layer.lock()) {
            None => LockResult::Locked(None),
            Some(Ok(Some(lock))) => LockResult::Locked(Some(lock)),
            Some(_) => LockResult::Busy,
        };
        let now = get()?;
        if now.record.layers == seen.record.layers {
            return Ok(LockAttempt { sandbox: now, result });
        }
        seen = now;
    }
    let fault = Fault::new(
        ErrorKind::Conflict,
        format!("{id}: its layers were replaced {REPLACED} times while it was being locked"),
    )
    .retry(Retry::Later);
    Err(fault.hint("try again").subject(id).phase(Phase::Admission))
}
