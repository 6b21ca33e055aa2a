//! Ports inside a live sandbox, for those who pass bytes on.

use runtime::Node;
use state::Caller;
use std::os::fd::OwnedFd;
use terms::{Fault, Phase};

/// A stream to a port that something inside listens on, and the whole id of the sandbox. One that is not live becomes live: what
/// it was told to keep running may be what listens. Where that has only begun, the fault says to ask again at once.
pub fn connect(node: &Node, caller: &Caller, word: &str, port: u16) -> Result<(String, OwnedFd), Fault> {
    if port == 0 {
        return Err(Fault::invalid("port 0: there is none of that number").phase(Phase::Admission));
    }
    let state = node.states.open(caller)?;
    let sandbox = state.store.read(|tx| state::sandbox::find(tx, Some(word), caller))?.id;
    drop(state);
    let dir = state::directory::prepare(caller)?.0;
    let stream = runtime::keeper::Keeper::ensure(node, caller, &dir, &sandbox)?.connect(port)?;
    Ok((sandbox, stream))
}
