//! States of a sandbox's services, as its keeper wrote them.

use super::place::Place;
use serde::{Deserialize, Serialize};
use state::sandbox::Sandbox;
use std::path::Path;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceNow {
    pub name: String,
    pub state: ServiceState,
    /// How often it was started again since the sandbox became live.
    pub restarts: u32,
    /// Its last run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run: Option<String>,
    /// How it last ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Running,
    /// It ended, and will be started again soon.
    Waiting,
    /// It ended too often in a row, and is not started again before the sandbox is made live anew.
    Failed,
    /// It ended and is not to be started again.
    Ended,
    /// The sandbox is not live.
    Stopped,
}

/// Returns the present states. A service that was given up stays listed so until the sandbox becomes live again.
pub fn now(state: &Path, id: &str, sandbox: &Sandbox, live: bool) -> Vec<ServiceNow> {
    let told = Place::of(state, id).services();
    let of = |name: &String| {
        let known = told.iter().find(|service| service.name == *name).cloned();
        let unknown =
            ServiceNow { name: name.clone(), state: ServiceState::Stopped, restarts: 0, run: None, last: None };
        known.map_or(unknown, |known| match known.state {
            ServiceState::Running | ServiceState::Waiting if !live => {
                ServiceNow { state: ServiceState::Stopped, ..known }
            }
            _ => known,
        })
    };
    sandbox.services.iter().map(|service| of(&service.name)).collect()
}
