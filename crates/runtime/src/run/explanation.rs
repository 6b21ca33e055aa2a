//! The explanation of a run: its policy, notes, secrets and the steps of its setup.

use super::RunPlan;
use serde::{Deserialize, Serialize};
use terms::Fault;
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RunExplained)]
pub struct Explained {
    /// The whole policy that the command would run under.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
    pub notes: Vec<String>,
    /// Where each secret would come from.
    pub secrets: Vec<String>,
    /// The steps of the setup, in order. They name places of the host: none where whoever asks does not have it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setup: Option<Vec<String>>,
}

impl RunPlan {
    /// Explains the run, and does nothing of it.
    pub fn explained(&self) -> Result<Explained, Fault> {
        Ok(Explained {
            policy: serde_json::from_str(&self.policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?,
            notes: self.warnings.iter().chain(&self.notes).cloned().collect(),
            secrets: self.secrets(),
            setup: Some(self.guest.explain()),
        })
    }
}
