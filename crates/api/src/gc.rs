//! Disk usage, and what garbage collection found and took.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GcItemKind {
    /// A sandbox whose time is over; with all it changed.
    Expired,
    /// A layer that nothing refers to.
    DeadLayer,
    /// A layer of a crashed run that changed nothing.
    EmptyLayer,
    /// A layer of a crashed run with changes: it becomes a sandbox, to be looked at.
    Adopted,
    /// A snapshot that was made on the way to something that is gone.
    Snapshot,
    /// A stack of layers that is so deep that it should be merged. Takes nothing away.
    DeepStack,
    /// A run whose supervisor is gone without a word.
    LostRun,
    /// Copies that a batch kept which cannot be undone any more, or landed long ago.
    BatchCopies,
    /// Copies of a batch that never came to be.
    OrphanBatch,
    /// A directory that was made for a sandbox, on which nothing stands any more.
    OwnBase,
    /// Output of commands in a sandbox that is removed.
    Output,
    /// A warm spare that can no longer be used.
    Spare,
    /// A key of a request that is too old to be repeated.
    Key,
    /// The record of a run that ended long ago, or before many others.
    PastRun,
    /// The same of a sandbox that was removed.
    Tombstone,
    /// Entries of the journal, which go to a file of their own.
    Journal,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GcItem {
    pub sort: GcItemKind,
    pub id: String,
    pub why: String,
    pub bytes: u64,
    pub files: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct GcCollected {
    pub items: Vec<GcItem>,
    /// Disk space that is freed, in bytes.
    pub bytes: u64,
    pub files: u64,
    /// Items that could not be removed, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskUsage {
    pub bytes: u64,
    pub files: u64,
    /// Incomplete: some files could not be read, or there were too many.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub partial: bool,
}

impl std::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, other: DiskUsage) {
        self.bytes += other.bytes;
        self.files += other.files;
        self.partial |= other.partial;
    }
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct GcReport {
    pub dry_run: bool,
    #[serde(flatten)]
    pub collected: GcCollected,
}
