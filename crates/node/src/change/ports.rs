//! Ports of the host that lead into a sandbox: added and removed while it is there, open as long as it is live. Where it is live they are
//! opened and closed first and written down then: if either fails, neither holds.

use super::Ask;
use runtime::Node;
use runtime::keeper::Keeper;
use runtime::publish::{self, Asked};
use state::State;
use state::sandbox::Sandbox;
use state::sandbox::{Which, pick};
use state::{Caller, Reach};
use std::net::SocketAddr;
use store::Kept;
use terms::{ErrorKind, Fault, Phase};

/// A sandbox's ports as they shall be.
pub(super) struct Ports {
    id: String,
    version: u64,
    before: Vec<String>,
    then: Vec<String>,
}

/// What is asked for, if it may be. Nothing where it is so already.
pub(super) fn prepare(state: &State, which: &Which, ask: &Ask, caller: &Caller) -> Result<Option<Ports>, Fault> {
    let Some(change) = &ask.publish else { return Ok(None) };
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    let (added, removed) = (publish::read_all(&change.add)?, places(&change.remove)?);
    let has_host = ask.may_widen && caller.reach == Reach::All;
    if let Some(port) = added.first().filter(|_| !has_host) {
        let message = format!("publish: {port}: a port of the host is opened by an operator of the host alone");
        let fault = Fault::new(ErrorKind::PolicyDenied, message).subject(&kept.id).phase(Phase::Admission);
        return Err(fault.hint("the daemon passes requests on at /v1/sandboxes/ID/ports/PORT/"));
    }
    let mut then = publish::read_all(&kept.record.publish)?;
    if let Some(unknown) = removed.iter().find(|at| !then.iter().any(|port| port.at == **at)) {
        let fault = Fault::new(ErrorKind::NotFound, format!("publish: nothing is published at {unknown}"));
        let known: Vec<String> = then.iter().map(Asked::to_string).collect();
        let hint =
            if known.is_empty() { "there is none".to_owned() } else { format!("there are {}", known.join(", ")) };
        return Err(fault.subject(&kept.id).hint(hint).phase(Phase::Admission));
    }
    then.retain(|port| !removed.contains(&port.at));
    then.extend(added.iter().filter(|port| !then.contains(port)).copied().collect::<Vec<_>>());
    let then: Vec<String> = then.iter().map(Asked::to_string).collect();
    publish::read_all(&then)?;
    let ports = Ports { id: kept.id, version: kept.version, before: kept.record.publish, then };
    Ok((ports.before != ports.then).then_some(ports))
}

fn places(words: &[String]) -> Result<Vec<SocketAddr>, Fault> {
    words.iter().map(|word| publish::read_place(word)).collect()
}

impl Ports {
    /// Opens and closes them where the sandbox is live; whether it is. Where it is not, whether they could be opened is tried.
    pub(super) fn put_in_force(&self, node: &Node, state: &State) -> Result<bool, Fault> {
        if let Some(mut keeper) = Keeper::heard(node, &state.path, &self.id)?
            && keeper.publish(self.then.clone())?
        {
            return Ok(true);
        }
        let (before, then) = (publish::read_all(&self.before)?, publish::read_all(&self.then)?);
        for port in then.iter().filter(|port| !before.iter().any(|known| known.at == port.at)) {
            publish::open(*port)?;
        }
        Ok(false)
    }

    /// It could not be written down: what is written holds again.
    pub(super) fn take_back(&self, node: &Node, state: &State) {
        if let Ok(Some(mut keeper)) = Keeper::heard(node, &state.path, &self.id) {
            // Where even this fails, the keeper is gone, and its ports with it; or it fell silent just now.
            let _ = keeper.publish(self.before.clone());
        }
    }

    pub(super) fn put(&self, kept: &mut Kept<Sandbox>) -> Result<(), Fault> {
        if kept.version != self.version {
            let message = format!("{} has version {}, not {}", kept.id, kept.version, self.version);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&kept.id).phase(Phase::Admission);
            return Err(fault.hint("look at it again, and repeat"));
        }
        kept.record.publish = self.then.clone();
        Ok(())
    }
}
