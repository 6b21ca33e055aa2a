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
    /// The sandbox that it was taken of; it may be gone.
    pub sandbox: String,
    /// ForkedSandbox on the way to something else, and collected when nothing needs it.
    pub automatic: bool,
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// Over the digests of all its layers.
    pub digest: String,
    pub layers: usize,
    /// Of files in all its layers.
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
    /// An earlier request under the same key made it.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxForked {
    pub protocol_version: u32,
    /// The snapshot that the forks begin from.
    pub snapshot: String,
    pub sandboxes: Vec<ForkedSandbox>,
    /// An earlier request under the same key made them.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

/// A sandbox that a fork made.
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
    /// Of the layer that was frozen now.
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
    /// The directory that the sandbox covers, by its whole path; an empty one of its own where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    /// A name for the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The built-in policies of its commands, with commas between [default]. What the file says of a policy is told and never obeyed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Policy documents beside them: a JSON list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<String>,
    /// Most bytes that may come out of the file, however small it is itself [default: 16 GiB].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1)]
    pub max_bytes: Option<u64>,
    /// Driver of the workspace; the best that works by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub driver: Option<Driver>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    pub protocol_version: u32,
    pub snapshots: Vec<SnapshotSummary>,
    /// The value of `after` for the next page; none on the last page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotTake {
    /// A name for the snapshot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Answer when it is on the disk, so that it outlives a power failure.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub sync: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxRestore {
    /// The snapshot: an id, its beginning, or a name.
    pub snapshot: String,
    /// Drop what changed since; else it is kept as a snapshot of its own.
    #[serde(default)]
    pub discard: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxFork {
    /// A snapshot of the sandbox to begin from; one is taken where none is named.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub snapshot: Option<String>,
    /// A name for the new sandbox; of several, each gets a number behind it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 256)]
    pub count: u32,
}

fn one() -> u32 {
    1
}
