//! Figures of live sandboxes at one moment.

use crate::SandboxState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Figures of one sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TopSandbox {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub state: SandboxState,
    /// True if a keeper holds it.
    pub live: bool,
    /// The keeper that did not respond, if its state is `silent`; the figures then come from the kernel only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
    pub runs: u64,
    pub processes: u64,
    /// Processor time since the previous measurement, in percent of one processor; absent at the first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_percent: Option<f64>,
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// Absent if it is not counted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub net_bytes: Option<u64>,
    /// Its contexts of code; absent without any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<CodeTraffic>,
    /// Bytes a second through the rings of its contexts since the previous measurement; absent at the first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code_bytes_per_s: Option<u64>,
    /// Messages a second through these rings.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code_messages_per_s: Option<u64>,
}

/// Contexts of a sandbox, and what has passed through the rings of their interpreters, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeTraffic {
    pub contexts: u64,
    /// Contexts in which a call is under way.
    pub busy: u64,
    /// Bytes that are written and not yet read.
    pub queued_bytes: u64,
    pub bytes: u64,
    pub messages: u64,
}

/// Figures of all sandboxes at one moment, the busiest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TopReport {
    pub at_ms: u64,
    pub sandboxes: Vec<TopSandbox>,
}
