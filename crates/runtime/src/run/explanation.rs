//! The explanation of a run: its policy, notes, secrets and the steps of its setup.

use super::RunPlan;
use api::RunExplained;
use terms::Fault;

impl RunPlan {
    /// Explains the run, and does nothing of it.
    pub fn explained(&self) -> Result<RunExplained, Fault> {
        Ok(RunExplained {
            policy: serde_json::from_str(&self.policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?,
            notes: self.warnings.iter().chain(&self.notes).cloned().collect(),
            secrets: self.secrets(),
            setup: Some(self.guest.explain()),
        })
    }
}
