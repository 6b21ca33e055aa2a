//! Health of a daemon, and the capabilities that it announces.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A capability that daemons of this protocol may lack. Clients look for it before they rely on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// `report_reads` of sandboxes and of runs.
    ReportReads,
    /// `ask_timeout_ms` of sandboxes and of runs.
    AskTimeout,
    /// `POST /v1/runs/explain`.
    ExplainRun,
    /// `details` of `GET /v1/sandboxes`.
    SandboxDetails,
    /// `POST /v1/sandboxes/{id}/code`, and contexts.
    Code,
    /// `POST /v1/run`, and `stdin` of runs.
    RunOnce,
    /// `metadata`, `env`, `timeout_ms` and `on_timeout` of sandboxes.
    SandboxTimeout,
}

impl Capability {
    /// The capabilities of this version.
    pub const ALL: [Capability; 7] = [
        Capability::ReportReads,
        Capability::AskTimeout,
        Capability::ExplainRun,
        Capability::SandboxDetails,
        Capability::Code,
        Capability::RunOnce,
        Capability::SandboxTimeout,
    ];
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`: a daemon that is not ready responds with a fault, or not at all.
    pub status: String,
    pub version: String,
    /// Capabilities of this daemon. Clients ignore unknown ones.
    #[serde(default)]
    #[schema(value_type = Vec<Capability>)]
    pub capabilities: Vec<String>,
}

impl Health {
    /// Describes a daemon of this version that is well.
    pub fn ok() -> Health {
        let words = Capability::ALL.iter().filter_map(|capability| serde_json::to_value(capability).ok());
        Health {
            status: "ok".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            capabilities: words.filter_map(|word| word.as_str().map(str::to_owned)).collect(),
        }
    }

    /// Returns the announced capabilities that this version knows.
    pub fn known_capabilities(&self) -> Vec<Capability> {
        let words = self.capabilities.iter().map(|word| serde_json::Value::from(word.as_str()));
        words.filter_map(|word| serde_json::from_value(word).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_capabilities_are_announced_and_words_of_others_are_skipped() {
        let mut health = Health::ok();
        assert_eq!(health.known_capabilities(), Capability::ALL);
        health.capabilities = vec!["explain_run".into(), "from_a_later_version".into()];
        assert_eq!(health.known_capabilities(), [Capability::ExplainRun]);
        let older: Health = serde_json::from_str(r#"{"status":"ok","version":"0.1.0"}"#).unwrap();
        assert!(older.known_capabilities().is_empty());
    }
}
