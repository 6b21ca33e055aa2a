//! Pool of open states of one node: each verb borrows one and returns it. In a daemon a state stays open for a moment after a verb, because
//! opening one takes longer than most verbs; in a command none does.

use crate::directory::{self, State, check_owner, place};
use crate::{Caller, boot_check, landing_recovery};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::Fault;

/// Bound on idle states, and the time after which one expires.
const MOST_RESTING: usize = 8;
const LONGEST_REST: Duration = Duration::from_millis(400);

/// A pool of open states. Two pools share nothing.
#[derive(Debug, Default)]
pub struct StatePool {
    /// Returned states stay open for the next verb.
    keeps_open: bool,
    resting: Mutex<Vec<Resting>>,
}

/// An idle state.
struct Resting {
    since: Instant,
    /// The state directory as the caller named it.
    place: PathBuf,
    state: State,
}

impl std::fmt::Debug for Resting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resting").field("place", &self.place).finish_non_exhaustive()
    }
}

impl StatePool {
    /// Creates a pool that closes each state when its verb is done.
    pub fn closing() -> StatePool {
        StatePool::default()
    }

    /// Creates a pool that keeps idle states. Its owner calls `sweep` until none is left.
    pub fn resting() -> StatePool {
        StatePool { keeps_open: true, ..StatePool::default() }
    }

    /// Opens the state for a verb, and completes what a crash or a reboot interrupted. The state is not pooled afterwards.
    pub fn open(&self, caller: &Caller) -> Result<State, Fault> {
        let state = State::open(caller)?;
        landing_recovery::recover(&state)?;
        boot_check::restore_layers(&state)?;
        Ok(state)
    }

    /// Like `open`, with an idle state where there is one; it returns to the pool when it is dropped.
    pub fn lend(&self, caller: &Caller) -> Result<Lent<'_>, Fault> {
        match self.take_resting(caller)? {
            Some(lent) => {
                landing_recovery::recover(&lent)?;
                Ok(lent)
            }
            None => Ok(self.lent(directory::place(caller)?, self.open(caller)?)),
        }
    }

    /// Closes idle states that have expired, and returns how many remain.
    pub fn sweep(&self) -> usize {
        self.with(|all| {
            all.retain(|resting| resting.since.elapsed() < LONGEST_REST);
            all.len()
        })
    }

    /// Takes an idle state for the caller's state directory, where there is one and it is still valid.
    fn take_resting(&self, caller: &Caller) -> Result<Option<Lent<'_>>, Fault> {
        let place = place(caller)?;
        let rested = self.with(|all| {
            let at = all.iter().rposition(|resting| resting.place == place)?;
            Some(all.remove(at).state)
        });
        // A state that was moved away, replaced or migrated to another version is no longer valid.
        let same = |state: &State| {
            state.store.is_usable() && std::fs::canonicalize(&place).is_ok_and(|path| path == state.path)
        };
        let Some(state) = rested.filter(same) else { return Ok(None) };
        check_owner(&state.path)?;
        Ok(Some(self.lent(place, state)))
    }

    fn lent(&self, place: PathBuf, state: State) -> Lent<'_> {
        Lent { pool: self, place, state: Some(state) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<Resting>) -> T) -> T {
        work(&mut self.resting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A borrowed state.
pub struct Lent<'p> {
    pool: &'p StatePool,
    place: PathBuf,
    state: Option<State>,
}

impl Deref for Lent<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        // Taken only by `drop`.
        self.state.as_ref().unwrap_or_else(|| unreachable!("a state that was given back"))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(state) = self.state.take().filter(|state| state.store.is_sound()) else { return };
        if self.pool.keeps_open && !std::thread::panicking() {
            let place = std::mem::take(&mut self.place);
            self.pool.with(|all| {
                if all.len() < MOST_RESTING {
                    all.push(Resting { since: Instant::now(), place, state });
                }
            });
        }
    }
}
