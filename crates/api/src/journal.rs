//! Entries of the journal, pages of it, and the result of verifying its chain.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A page of journal entries, with the cursor of the next one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JournalPage {
    pub protocol_version: u32,
    /// Oldest first.
    pub entries: Vec<JournalEntry>,
    /// Value of `after` for the next page, if there may be one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<u64>,
    /// Entries up to this number are in segment files, not in the store.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub archived: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JournalChecked {
    pub protocol_version: u32,
    /// No entry was changed, and none is missing up to the one that `journal.head` records.
    pub sound: bool,
    #[serde(flatten)]
    pub verified: JournalVerified,
}

/// Result of verifying the whole chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JournalVerified {
    /// Number of unchanged entries from the first on, including archived ones.
    pub entries: u64,
    /// Hash of the last of these entries.
    pub head: String,
    /// Last entry recorded in `journal.head`, which may lag behind the journal.
    pub anchored: u64,
    /// Number of entries at the beginning that were moved to segment files; they were verified before.
    #[serde(skip_serializing_if = "crate::is_zero", default)]
    pub archived: u64,
    /// Number of archived entries that are still in the state directory, unchanged.
    #[serde(skip_serializing_if = "crate::is_zero", default)]
    pub archived_here: u64,
    /// First entry that was changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub broken: Option<JournalBroken>,
}

/// An entry that is missing or was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JournalBroken {
    pub seq: u64,
    pub why: String,
}

/// Progress of the operation that an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JournalStep {
    /// The operation is about to begin.
    Intent,
    Done,
    Failed,
}

impl JournalStep {
    pub fn name(self) -> &'static str {
        match self {
            JournalStep::Intent => "intent",
            JournalStep::Done => "done",
            JournalStep::Failed => "failed",
        }
    }

    pub fn of_name(name: &str) -> Option<JournalStep> {
        [JournalStep::Intent, JournalStep::Done, JournalStep::Failed].into_iter().find(|step| step.name() == name)
    }
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JournalEntry {
    /// Number; entries are numbered without a gap.
    pub seq: u64,
    pub at_ms: u64,
    pub verb: String,
    pub step: JournalStep,
    /// Id of the sandbox or other object.
    pub subject: String,
    /// Name of the user who asked.
    pub actor: String,
    /// Details; the form depends on the verb.
    #[schema(value_type = Option<Object>)]
    pub body: Value,
    /// Hash of the entry and of the hash before it.
    pub hash: String,
}
