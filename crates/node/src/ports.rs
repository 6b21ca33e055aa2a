//! Ports inside a live sandbox, for those who pass bytes on.

use crate::Caller;
use crate::state::State;
use std::os::fd::OwnedFd;
use terms::{Fault, Phase};

/// A stream to a port that something inside listens on, and the whole id of the sandbox. One that is not live becomes live: what
/// it was told to keep running may be what listens. Where that has only begun, the fault says to ask again at once.
pub fn connect(word: &str, port: u16, caller: &Caller) -> Result<(String, OwnedFd), Fault> {
    if port == 0 {
        return Err(Fault::invalid("port 0: there is none of that number").phase(Phase::Admission));
    }
    let state = State::open(caller)?;
    let sandbox = state.store.read(|tx| crate::sandbox::find(tx, Some(word), caller))?.id;
    drop(state);
    let dir = crate::state::prepare(caller)?.0;
    let stream = crate::keeper::Keeper::ensure(&dir, &sandbox, caller)?.connect(port)?;
    Ok((sandbox, stream))
}
