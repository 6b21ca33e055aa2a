//! Services of a sandbox, and their state.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceStatus {
    pub name: String,
    pub state: ServiceState,
    /// Number of restarts since the sandbox became live.
    pub restarts: u32,
    /// Id of its last run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run: Option<String>,
    /// End of its last run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Running,
    /// Ended, and will be restarted soon.
    Waiting,
    /// Ended too often in a row; it is restarted only when the sandbox is started again.
    Failed,
    /// Ended, and is not restarted.
    Ended,
    /// The sandbox is not live.
    Stopped,
}

/// A command that runs as long as its sandbox is live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub name: String,
    /// Text for a shell.
    pub command: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub env: BTreeMap<String, String>,
    /// Working directory, relative to the sandbox's directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cwd: Option<String>,
    /// Restart policy after an end that was not requested.
    #[serde(skip_serializing_if = "Restart::is_usual", default)]
    pub restart: Restart,
}

/// Condition for a restart after a growing pause, five times in a row at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    Always,
    /// Unless it ended well.
    #[default]
    OnFailure,
    Never,
}

impl Restart {
    pub fn is_usual(&self) -> bool {
        *self == Restart::default()
    }
}
