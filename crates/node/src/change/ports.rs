//! Published ports of a sandbox: added and removed at any time, open as long as it is live. In a live sandbox they are opened and
//! closed first and recorded then; if either fails, neither takes effect.

use super::Widening;
use api::SandboxChange;
use runtime::Node;
use runtime::keeper::Keeper;
use runtime::publish::{self, PortForward};
use state::State;
use state::sandbox::Sandbox;
use state::sandbox::{Which, pick};
use state::{Caller, Reach};
use std::net::SocketAddr;
use store::Kept;
use terms::{ErrorKind, Fault, Phase};

/// The new list of a sandbox's published ports.
pub(super) struct Ports {
    id: String,
    version: u64,
    before: Vec<String>,
    then: Vec<String>,
}

/// Checks the request and returns the new ports, or none if it changes nothing.
pub(super) fn prepare(
    state: &State,
    which: &Which,
    (ask, widening): (&SandboxChange, Widening),
    caller: &Caller,
) -> Result<Option<Ports>, Fault> {
    let Some(change) = &ask.publish else { return Ok(None) };
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    let (added, removed) = (publish::read_all(&change.add)?, places(&change.remove)?);
    let has_host = widening == Widening::Allowed && caller.reach == Reach::All;
    if let Some(port) = added.first().filter(|_| !has_host) {
        let message = format!("publish: {port}: only an operator of the host may open its ports");
        let fault = Fault::new(ErrorKind::PolicyDenied, message).subject(&kept.id).phase(Phase::Admission);
        return Err(fault.hint("the daemon forwards requests at /v1/sandboxes/ID/ports/PORT/"));
    }
    let mut then = publish::read_all(&kept.record.publish)?;
    if let Some(unknown) = removed.iter().find(|at| !then.iter().any(|port| port.at == **at)) {
        let fault = Fault::new(ErrorKind::NotFound, format!("publish: {unknown} is not published"));
        let known: Vec<String> = then.iter().map(PortForward::to_string).collect();
        let hint = if known.is_empty() {
            "no port is published".to_owned()
        } else {
            format!("published: {}", known.join(", "))
        };
        return Err(fault.subject(&kept.id).hint(hint).phase(Phase::Admission));
    }
    then.retain(|port| !removed.contains(&port.at));
    then.extend(added.iter().filter(|port| !then.contains(port)).copied().collect::<Vec<_>>());
    let then: Vec<String> = then.iter().map(PortForward::to_string).collect();
    publish::read_all(&then)?;
    let ports = Ports { id: kept.id, version: kept.version, before: kept.record.publish, then };
    Ok((ports.before != ports.then).then_some(ports))
}

fn places(words: &[String]) -> Result<Vec<SocketAddr>, Fault> {
    words.iter().map(|word| publish::read_place(word)).collect()
}

impl Ports {
    /// Opens and closes the ports if the sandbox is live, and returns whether it is. If it is not, checks whether they could be
    /// opened.
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

    /// Restores the ports of the record after the new ones could not be written to it.
    pub(super) fn take_back(&self, node: &Node, state: &State) {
        if let Ok(Some(mut keeper)) = Keeper::heard(node, &state.path, &self.id) {
            // If this fails, the keeper has ended and its ports are closed, or it has just stopped answering.
            let _ = keeper.publish(self.before.clone());
        }
    }

    pub(super) fn put(&self, kept: &mut Kept<Sandbox>) -> Result<(), Fault> {
        if kept.version != self.version {
            let message = format!("{} has version {}, not {}", kept.id, kept.version, self.version);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&kept.id).phase(Phase::Admission);
            return Err(fault.hint("read it again, then repeat"));
        }
        kept.record.publish = self.then.clone();
        Ok(())
    }
}
