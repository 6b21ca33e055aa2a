//! Snapshots: take, list, restore, fork, export and import.

use crate::Driver;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::{IntoParams, ToSchema};

/// A snapshot at a glance.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSummary {
    pub id: String,
    pub name: Option<String>,
    /// Sandbox that it was taken of, which may no longer exist.
    pub sandbox: String,
    /// Taken by another verb on the way, and collected when no record needs it.
    pub automatic: bool,
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// Digest over the digests of all its layers.
    pub digest: String,
    pub layers: usize,
    /// Size of the files in all its layers.
    pub bytes: u64,
    pub created_ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Exported {
    pub protocol_version: u32,
    /// Id of the exported sandbox or snapshot.
    pub id: String,
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxImported {
    pub protocol_version: u32,
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
    /// Description of its origin, from the file. A repeated request under the same key returns it only if it is short.
    #[schema(value_type = Object)]
    pub about: serde_json::Value,
    /// An earlier request under the same key created it.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxForked {
    pub protocol_version: u32,
    /// Snapshot that was forked.
    pub snapshot: String,
    pub sandboxes: Vec<ForkedSandbox>,
    /// An earlier request under the same key made them.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

/// A sandbox that a fork created.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ForkedSandbox {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxRestored {
    pub protocol_version: u32,
    pub sandbox: String,
    pub snapshot: String,
    /// Snapshot of the previous content; absent if it was dropped or there was none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept: Option<String>,
    /// True if the sandbox was at this snapshot already.
    pub unchanged: bool,
}

/// A snapshot that was taken.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotTaken {
    pub protocol_version: u32,
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub sandbox: String,
    pub digest: String,
    pub layers: usize,
    /// Number of entries of the layer that was frozen.
    pub entries: u64,
    pub bytes: u64,
    /// Time for which the guest was frozen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub held_ms: Option<u64>,
    /// An earlier request under the same key took it.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub protocol_version: u32,
    #[serde(flatten)]
    pub snapshot: SnapshotSummary,
}

#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportQuery {
    /// Absolute path of the directory that the sandbox covers; without one, the sandbox gets an empty directory of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    /// Name of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Built-in policies of its commands, separated by commas [default]. The policy in the file is returned, but not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Policy documents to merge with them: a JSON list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<String>,
    /// Maximum unpacked size in bytes [default: 16 GiB].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1)]
    pub max_bytes: Option<u64>,
    /// Storage driver of the workspace [default: the best available].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub driver: Option<Driver>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    pub protocol_version: u32,
    pub snapshots: Vec<SnapshotSummary>,
    /// Value of `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotTake {
    /// Name of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Wait until it is on disk, so that it survives a power failure.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub sync: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxRestore {
    /// Snapshot, by id, id prefix or name.
    pub snapshot: String,
    /// Discards later changes; otherwise they are kept as a snapshot.
    #[serde(default)]
    pub discard: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxFork {
    /// Snapshot of the sandbox to fork; by default, a new one is taken.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub snapshot: Option<String>,
    /// Name of the new sandbox; with several, each gets a number appended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 256)]
    pub count: u32,
}

fn one() -> u32 {
    1
}
