//! Documents about snapshots: list, take, restore, fork.

use node::snapshots::Listed;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    pub protocol_version: u32,
    pub snapshots: Vec<Listed>,
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
