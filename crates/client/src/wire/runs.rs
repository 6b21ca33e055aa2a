//! Documents about runs that no verb of the node has.

use super::SandboxCreate;
use node::keeper::begin::RunCreate;
use node::list::Live;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RunningList {
    pub runs: Vec<Live>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RunSignalled {
    pub run: String,
    /// False when it was gone already.
    pub changed: bool,
}

/// A command, and the sandbox that it would run in: an existing one, or one that would be created for it.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunExplain {
    /// An existing sandbox. Nothing may run in it meanwhile.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    /// A sandbox that would be created for the command; instead of `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub create: Option<SandboxCreate>,
    pub run: RunCreate,
}
