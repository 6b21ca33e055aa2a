//! Connections to ports inside a live sandbox.

use runtime::Node;
use state::Caller;
use std::os::fd::OwnedFd;
use terms::{Fault, Phase};

/// Connects to a port inside a sandbox; returns the stream and the whole id of the sandbox. A sandbox that is not live becomes
/// live, as the listener may be one of its services. If that service is still starting, the fault says to retry at once.
pub fn connect(node: &Node, caller: &Caller, word: &str, port: u16) -> Result<(String, OwnedFd), Fault> {
    if port == 0 {
        return Err(Fault::invalid("port 0: ports go from 1 to 65535").phase(Phase::Admission));
    }
    let state = node.states.open(caller)?;
    let sandbox = state.store.read(|tx| state::sandbox::find(tx, Some(word), caller))?.id;
    drop(state);
    let dir = state::directory::prepare(caller)?.0;
    let stream = runtime::keeper::Keeper::ensure(node, caller, &dir, &sandbox)?.connect(port)?;
    Ok((sandbox, stream))
}
