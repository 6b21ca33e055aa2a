//! Documents about a review: approve, reject, undo, rebase.

use node::review::{Rel, commit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The changes to land. At least one must be chosen: all, paths or hunks, or those that run on the reviewer's machine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceApprove {
    /// The digest of the diff that was reviewed. If the workspace or its base moved since, nothing lands.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// The evidence of the review, where no digest is given.
    #[serde(default)]
    pub seen: SeenBy,
    /// Chooses every ordinary change; no path or hunk is then given.
    #[serde(default)]
    pub all: bool,
    /// Each a file, a directory with all below it, or a pattern.
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub paths: Vec<Rel>,
    /// Each the change at that path alone. What would run on the reviewer's machine lands when it is named so, or in `paths`.
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub exact: Vec<Rel>,
    /// Ids of hunks, or beginnings of ids that no other hunk has.
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub hunks: Vec<String>,
    /// Among what is chosen, also what would run on the reviewer's machine; with nothing else chosen, all of that.
    #[serde(default)]
    pub runs_on_host: bool,
    /// Commit what lands, if the base is in a git repository.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<CommitWish>,
}

/// The evidence that a diff was reviewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SeenBy {
    /// By its digest, which is given.
    #[default]
    Digest,
    /// The last diff that a person was shown as a whole.
    Last,
    /// No review: the changes land as they are now.
    Unseen,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitWish {
    pub message: String,
    /// The author of the commit; its committer is always the reviewer.
    #[serde(default)]
    pub author: commit::Author,
}

/// The changes to discard. At least one must be chosen.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceReject {
    /// The digest of the diff that was reviewed: if the workspace moved since, nothing is thrown away.
    pub digest: String,
    #[serde(default)]
    pub all: bool,
    /// Each a file, a directory with all below it, or a pattern.
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub paths: Vec<Rel>,
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub hunks: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchUndo {
    /// A batch; or the sandbox whose last one is meant; or the directory, by its whole path, in which the last one landed.
    pub of: String,
}

/// Answer of `shown`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceShown {
    pub protocol_version: u32,
    pub shown: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceRebase {
    /// Only tell what would become of each file.
    #[serde(default)]
    pub dry_run: bool,
}
