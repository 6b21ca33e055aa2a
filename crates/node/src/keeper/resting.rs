//! Connections to keepers that rest between two questions: a daemon that starts one command after another in a sandbox need not look for
//! its keeper each time, nor ask it who it is. A connection leads to the process that it was made to, and ends with it. Few are kept, and
//! not for long.

use super::client::Keeper;
use super::place::Place;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// In all, and of one keeper.
const MOST: usize = 64;
const EACH: usize = 4;
/// How long one rests at most.
const LONGEST: Duration = Duration::from_millis(400);

static RESTING: Mutex<Vec<(Instant, Keeper)>> = Mutex::new(Vec::new());

fn with<T>(work: impl FnOnce(&mut Vec<(Instant, Keeper)>) -> T) -> T {
    work(&mut RESTING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Keeps a connection whose last question is answered for the next one.
pub fn rest(keeper: Keeper) {
    with(|all| {
        let same = |(_, other): &&(Instant, Keeper)| other.place.dir == keeper.place.dir;
        if all.iter().filter(same).count() >= EACH {
            return;
        }
        if all.len() >= MOST {
            all.remove(0);
        }
        all.push((Instant::now(), keeper));
    });
}

/// The one that was used last, if it leads to the process that is on the card now.
pub(super) fn take(state: &Path, sandbox: &str) -> Option<Keeper> {
    let place = Place::of(state, sandbox);
    let rested = with(|all| {
        let at = all.iter().rposition(|(_, keeper)| keeper.place.dir == place.dir)?;
        Some(all.remove(at).1)
    });
    rested.filter(|keeper| place.card().as_ref() == Some(&keeper.card))
}

/// The keeper ends: nobody is to find it so.
pub(super) fn forget(place: &Place) {
    with(|all| all.retain(|(_, keeper)| keeper.place.dir != place.dir));
}

/// Closes what has rested too long; how many rest on.
pub fn sweep() -> usize {
    with(|all| {
        all.retain(|(since, _)| since.elapsed() < LONGEST);
        all.len()
    })
}
