//! Reviews of a workspace: diff, approve, reject, undo, rebase, conflicts, provenance, prune.

use crate::{Diff, PathText, Rel};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceRebased {
    pub protocol_version: u32,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// True if nothing was changed.
    pub dry_run: bool,
    /// Result for each file whose base had changed; no other file was touched.
    pub files: Vec<RebasedFile>,
    /// Number of files in conflict with their base.
    pub conflicts: usize,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Provenance {
    pub protocol_version: u32,
    /// Absolute path of the request.
    pub path: PathText,
    /// Batches, the last one first.
    pub batches: Vec<LandedBatch>,
    /// True if older batches are not listed.
    pub more: bool,
}

/// An approval, or the undo of one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LandedBatch {
    /// Id for `undo`.
    pub batch: String,
    #[serde(flatten)]
    pub record: Batch,
    /// Paths of the batch at or below the requested one.
    pub paths: Vec<Rel>,
    /// Number of further items that are not listed.
    pub paths_more: u64,
}

impl LandedBatch {
    pub fn is_undo(&self) -> bool {
        self.record.verb == BatchVerb::Undo
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkspacePruned {
    pub protocol_version: u32,
    pub sandbox: String,
    /// Number of files that were removed from the workspace.
    pub files: u64,
    pub bytes: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Conflicts {
    pub protocol_version: u32,
    /// Directory that all listed paths are below.
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// Files that more than one sandbox changed.
    pub contested: Vec<ContestedFile>,
    /// Files that changed both in a sandbox and in its base.
    pub drifted: Vec<DisputedFile>,
    /// Conflicts of a rebase that are not resolved yet.
    pub unresolved: Vec<DisputedFile>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ContestedFile {
    /// Below `base`.
    pub path: Rel,
    /// Sandboxes that changed it, the earliest first as far as known.
    pub by: Vec<ContestedBy>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ContestedBy {
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// `added`, `modified`, `deleted` and so on.
    pub kind: String,
    /// Time at which the file first appeared in the sandbox's layers; absent for a deletion.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_ms: Option<u64>,
}

/// A file of a sandbox that is in dispute with its base.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DisputedFile {
    pub path: Rel,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceRejected {
    pub protocol_version: u32,
    pub success: bool,
    pub sandbox: String,
    pub rejected: Vec<LandedChange>,
    /// Changes that stay, with the reason.
    pub left: Vec<LeftChange>,
    /// Number of further changes that stay and are not listed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub left_more: Option<u64>,
}

/// A commit that was made inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommitMadeInside {
    pub commit: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub parents: Vec<String>,
    /// `NAME <EMAIL>` from the commit; a guest can choose it freely.
    pub author: String,
    /// First line of the message.
    pub subject: String,
    /// Paths that differ from the first parent.
    pub paths: Vec<Rel>,
    /// Number of further items that are not listed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub paths_more: u64,
}

/// Git history of a workspace, if it differs from that of the base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceHistory {
    /// Branch inside; absent if HEAD is detached.
    pub branch: String,
    /// The commit inside.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// Branch of the base; absent if its HEAD is detached.
    pub base_branch: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base_commit: Option<String>,
    /// The branch inside is not that of the base, so the diff includes the difference between the two.
    pub switched: bool,
    /// Commits that no branch or tag of the base has, parents first; the last ones where there are many.
    pub commits: Vec<CommitMadeInside>,
    /// Number of earlier commits that are not listed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub commits_more: u64,
}

/// A sandbox over the directory of another one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OtherSandbox {
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// A process uses it and may be changing it.
    pub running: bool,
}

/// Commits that were copied into the repository as a reference.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceFetched {
    pub protocol_version: u32,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub reference: String,
    pub commit: String,
    /// The commit that the reference named before.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<String>,
    /// Commits that no branch or tag has, parents first; the last ones where there are many.
    pub commits: Vec<CommitMadeInside>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceDiff {
    pub protocol_version: u32,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// A command is running in it and may change more.
    pub running: bool,
    #[serde(flatten)]
    pub diff: Diff,
    /// Git history inside, if it differs from that of the base.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git: Option<WorkspaceHistory>,
    /// Only these paths are in `files`; the digest covers all changes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub only: Vec<Rel>,
    /// Value of `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
    /// Sandboxes over the same directory besides this one, the last used first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub others: Vec<OtherSandbox>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    pub protocol_version: u32,
    pub success: bool,
    /// Id for `undo`.
    pub batch: String,
    pub sandbox: String,
    /// The digest of the diff that was reviewed.
    pub digest: String,
    pub landed: Vec<LandedChange>,
    /// Changes that stay in the workspace, with the reason.
    pub left: Vec<LeftChange>,
    /// Number of further changes that stay and are not listed.
    #[serde(skip_serializing_if = "crate::is_zero", default)]
    pub left_more: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Commit of the landed changes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// Commits in submodules, which the commit refers to.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inside: Vec<SubmoduleCommit>,
    /// The batch that was undone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undoes: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LandedChange {
    pub path: Rel,
    /// `added`, `modified`, `deleted`, `renamed`, `mode`, `xattr` or `type`.
    pub kind: String,
    /// Former path, if it was moved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<Rel>,
    /// Only these hunks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hunks: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceUndo {
    /// Batch to undo [default: the last one of the sandbox].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub batch: Option<String>,
}

/// Result of a rebase for one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "fate")]
pub enum RebaseFate {
    /// Merged: the file has the changes of both sides.
    Merged,
    /// Unchanged: the file has the base's changes already, or there were none.
    Kept,
    /// Dropped: the file equals the base and is no change any more.
    Dropped,
    /// Conflict. With `marks` the file has both sides between markers; otherwise it is unchanged.
    Conflict { why: String, marks: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebasedFile {
    pub path: Rel,
    #[serde(flatten)]
    pub fate: RebaseFate,
    /// Digest of the file in the workspace afterwards; absent if there is none.
    #[serde(skip)]
    pub digest: Option<String>,
}

/// A change that was not selected, with the reason why it stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftChange {
    pub path: Rel,
    pub why: String,
}

/// Author of a commit; its committer is always the reviewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitAuthor {
    Agent,
    #[default]
    Reviewer,
    /// The reviewer, with the agent named in a trailer.
    Coauthored,
}

/// A commit in a submodule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmoduleCommit {
    /// Path of the submodule in the base.
    pub path: Rel,
    pub commit: String,
    /// The branch; absent if HEAD is detached.
    pub branch: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchVerb {
    Approve,
    Undo,
}

impl BatchVerb {
    pub fn name(self) -> &'static str {
        match self {
            BatchVerb::Approve => "approve",
            BatchVerb::Undo => "undo",
        }
    }
}

/// The changes to land. At least one must be selected: all, paths or hunks, or those that run on the reviewer's machine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceApprove {
    /// Digest of the diff that was reviewed. If the workspace or its base changed since, nothing lands.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Evidence of the review, if no digest is given.
    #[serde(default)]
    pub seen: SeenBy,
    /// Selects every ordinary change; then no path or hunk may be given.
    #[serde(default)]
    pub all: bool,
    /// Files, directories with everything below them, or patterns.
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub paths: Vec<Rel>,
    /// Paths whose own change is selected, without those below. A change that would run on the reviewer's
    /// machine lands only when it is named here or in `paths`.
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub exact: Vec<Rel>,
    /// Ids of hunks, or unique prefixes of them.
    #[serde(default)]
    #[schema(max_items = 10000)]
    pub hunks: Vec<String>,
    /// Includes selected changes that would run on the reviewer's machine; if nothing else is selected, selects exactly those.
    #[serde(default)]
    pub runs_on_host: bool,
    /// Commit what lands, if the base is in a git repository.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<CommitRequest>,
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
pub struct CommitRequest {
    pub message: String,
    /// The author of the commit; its committer is always the reviewer.
    #[serde(default)]
    pub author: CommitAuthor,
}

/// The changes to discard. At least one must be selected.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceReject {
    /// Digest of the diff that was reviewed. If the workspace changed since, nothing is discarded.
    pub digest: String,
    #[serde(default)]
    pub all: bool,
    /// Files, directories with everything below them, or patterns.
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
    /// A batch; or a sandbox, for its last batch; or the absolute path of a directory, for the last batch that landed there.
    pub of: String,
}

/// Whether a person was shown the whole current diff.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceShown {
    pub protocol_version: u32,
    pub shown: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceRebase {
    /// Only report the result for each file.
    #[serde(default)]
    pub dry_run: bool,
}

/// An approval that landed, or the undo of one. Ids are `bat_…`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Batch {
    pub verb: BatchVerb,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox_name: Option<String>,
    /// The runs of the sandbox that were recorded when it landed; the last ones where there are many.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub runs: Vec<String>,
    #[schema(value_type = String)]
    pub base: PathBuf,
    #[schema(value_type = Vec<u64>)]
    pub base_id: (u64, u64),
    /// Name of the approver.
    pub actor: String,
    pub at_ms: u64,
    /// Digest of the diff that was reviewed.
    pub digest: String,
    pub files: u64,
    /// Batch that this one undid.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undoes: Option<String>,
    /// Batch that undid this one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undone_by: Option<String>,
    /// Commit of the landed changes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// Commits of the landed changes in submodules.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inside: Vec<SubmoduleCommit>,
}
