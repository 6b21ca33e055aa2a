//! Sandboxes as records: what a user made, which layers hold its changes, what it may do and until when.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use store::Record;
use terms::Limits;
use workspace::{Driver, Rel};

/// Ids are `sbx_…`; times are milliseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sandbox {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// The directory it covers: canonical, UTF-8.
    pub base: PathBuf,
    /// Device and inode of the base, so that another directory under its name is noticed.
    pub base_id: (u64, u64),
    pub driver: Driver,
    /// Ids of layers from the bottom up; the last is written to by runs.
    pub layers: Vec<String>,
    /// See `workspace::Stack::since`.
    pub since: (i64, u32),
    pub state: Lifecycle,
    /// The whole policy document that its runs are made under, as JSON.
    pub policy: serde_json::Value,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
    #[serde(default)]
    pub reserve: Vec<Rel>,
    #[serde(default)]
    pub sharing: Sharing,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub template: Option<String>,
    pub created_ms: u64,
    /// When it was last used by a run or changed by a verb.
    pub used_ms: u64,
    /// When it may be collected; none means never.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    /// Collected when unused for so long.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_ms: Option<u64>,
    /// What a reviewer should know: "found after a crash", "the machine went down while it ran".
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Commands can be run in it.
    Active,
    /// Only looked at and reviewed until it is started again.
    Stopped,
}

/// Who else may reserve the same paths, and until when they are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Sharing {
    /// Others that say so, too, may hold the same paths.
    pub shared: bool,
    /// Let go by `stop` already, not only by `rm`.
    pub until_stop: bool,
}

impl Record for Sandbox {
    const KIND: &'static str = "sandbox";

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn scope(&self) -> Option<&str> {
        self.base.to_str()
    }
}

/// A command that was run in a sandbox; ids are `run_…`. While it lives, its supervisor holds the lock of the top layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub sandbox: String,
    pub command: Vec<String>,
    /// The process that supervises it, with its start time in ticks since boot, and which boot that was.
    pub pid: u32,
    pub pid_start: u64,
    pub boot: String,
    pub started_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_ms: Option<u64>,
    /// `verdict` and exit status, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<terms::Verdict>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u8>,
}

impl Record for Run {
    const KIND: &'static str = "run";

    fn scope(&self) -> Option<&str> {
        Some(&self.sandbox)
    }
}
