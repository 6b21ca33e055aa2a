//! States of a sandbox's services, as its keeper wrote them.

use super::place::KeeperDir;
use api::{ServiceState, ServiceStatus};
use state::sandbox::Sandbox;
use std::path::Path;

/// Returns the present states. A service that was given up stays listed so until the sandbox becomes live again.
pub fn now(state: &Path, id: &str, sandbox: &Sandbox, live: bool) -> Vec<ServiceStatus> {
    let told = KeeperDir::of(state, id).services();
    let of = |name: &String| {
        let known = told.iter().find(|service| service.name == *name).cloned();
        let unknown =
            ServiceStatus { name: name.clone(), state: ServiceState::Stopped, restarts: 0, run: None, last: None };
        known.map_or(unknown, |known| match known.state {
            ServiceState::Running | ServiceState::Waiting if !live => {
                ServiceStatus { state: ServiceState::Stopped, ..known }
            }
            _ => known,
        })
    };
    sandbox.services.iter().map(|service| of(&service.name)).collect()
}
