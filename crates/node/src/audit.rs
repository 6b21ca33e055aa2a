//! Audit: what the journal says, and whether it is as it was written.

use crate::Caller;
use crate::sandbox;
use crate::state::State;
use store::{Noted, Verified};
use terms::Fault;

/// Entries that one call gives, at most.
pub const MOST: u32 = 10_000;

/// The last `most` entries, oldest first; of one sandbox, or of all.
pub fn log(word: Option<&str>, most: u32, caller: &Caller) -> Result<Vec<Noted>, Fault> {
    let state = State::open(caller)?;
    state.store.read(|tx| {
        let Some(word) = word else { return tx.noted(None, None, most.min(MOST)) };
        // Whatever has entries can be asked for by its whole id: what is removed, too, and what is no sandbox.
        let exact = tx.noted(Some(word), None, most.min(MOST))?;
        if !exact.is_empty() {
            return Ok(exact);
        }
        let id = sandbox::find(tx, Some(word), caller)?.id;
        tx.noted(Some(&id), None, most.min(MOST))
    })
}

/// Goes along the whole chain.
pub fn verify(caller: &Caller) -> Result<Verified, Fault> {
    State::open(caller)?.store.verify()
}
