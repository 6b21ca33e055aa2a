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
    /// The whole path that was asked for.
    pub path: PathText,
    /// The last first.
    pub batches: Vec<LandedBatch>,
    /// There are more, which are older.
    pub more: bool,
}

/// An approval, or one that was taken back.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LandedBatch {
    /// Id for `undo`.
    pub batch: String,
    #[serde(flatten)]
    pub record: Batch,
    /// Paths of the batch at or below the requested one.
    pub paths: Vec<Rel>,
    /// Further ones that are not listed.
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
    /// The directory that all of them are in.
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// Files that more than one sandbox changed.
    pub contested: Vec<ContestedFile>,
    /// Files that a sandbox changed and its base did, too.
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
    /// Sandboxes that changed it, the earliest first as far as the layers tell.
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
    /// Further ones that stay and are not listed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub left_more: Option<u64>,
}

/// A commit that was made inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommitMadeInside {
    pub commit: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub parents: Vec<String>,
    /// `NAME <EMAIL>`, as the commit says; a guest may write any.
    pub author: String,
    /// First line of the message.
    pub subject: String,
    /// Paths that differ from the first parent.
    pub paths: Vec<Rel>,
    /// Further ones that are not listed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub paths_more: u64,
}

/// Git history of a workspace, if it differs from that of the base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceHistory {
    /// The branch inside, or that HEAD is on none.
    pub branch: String,
    /// The commit inside.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// The branch of the base, or that HEAD is on none.
    pub base_branch: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base_commit: Option<String>,
    /// Another branch is checked out inside than in the base: the diff has what the two differ in as well.
    pub switched: bool,
    /// Commits that no branch or tag of the base has, parents first; the last ones where there are many.
    pub commits: Vec<CommitMadeInside>,
    /// Earlier ones that are not listed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub commits_more: u64,
}

/// A sandbox over the directory of another one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OtherSandbox {
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// A process holds it, and may be changing it.
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
    /// A command is running in it, and may be changing more.
    pub running: bool,
    #[serde(flatten)]
    pub diff: Diff,
    /// Git history inside, if it differs from that of the base.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git: Option<WorkspaceHistory>,
    /// Only these paths are in `files`; the digest is over all.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub only: Vec<Rel>,
    /// There are further files: what `after` takes for them.
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
    /// Further ones that stay and are not listed.
    #[serde(skip_serializing_if = "crate::is_zero", default)]
    pub left_more: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// The commit that it was recorded as.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// Commits in submodules, which the commit leads to.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inside: Vec<SubmoduleCommit>,
    /// The batch that was taken back.
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
    /// The batch to take back; the last one of the sandbox where none is named.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub batch: Option<String>,
}

/// Result of a rebase for one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "fate")]
pub enum RebaseFate {
    /// Merged: the file has the changes of both sides.
    Merged,
    /// Unchanged: the base's changes are in it already, or there were none.
    Kept,
    /// Dropped: the file equals the base and is no change any more.
    Dropped,
    /// The sides do not go together. With `marks` both stand in the file; otherwise it stays as it is.
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

/// A change that is not meant, and why it stays.
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
    /// The submodule, as a path of the base.
    pub path: Rel,
    pub commit: String,
    /// The branch, or that HEAD is on none.
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

/// Answer to whether a person was shown the present diff as a whole.
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

/// An approval that landed, or one that was taken back. Ids are `bat_…`.
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
    /// Of the diff that was reviewed.
    pub digest: String,
    pub files: u64,
    /// The batch that this one took back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undoes: Option<String>,
    /// The batch that took this one back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undone_by: Option<String>,
    /// The commit that it was recorded as.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// The commits in submodules that it was recorded as.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inside: Vec<SubmoduleCommit>,
}
