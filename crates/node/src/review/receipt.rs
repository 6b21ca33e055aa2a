//! What came of an approval or an undo, for people and programs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use workspace::git::Inside;
use workspace::select::{Chosen, Left};
use workspace::{FileDiff, Rel};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    pub protocol_version: u32,
    pub success: bool,
    /// What `undo` takes.
    pub batch: String,
    pub sandbox: String,
    /// The digest of the diff that was reviewed.
    pub digest: String,
    pub landed: Vec<LandedChange>,
    /// What stays in the workspace, and why.
    pub left: Vec<Left>,
    /// Further ones that stay and are not listed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub left_more: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// The commit that it was recorded as.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// Commits in submodules, which the commit leads to.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inside: Vec<Inside>,
    /// The batch that was taken back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undoes: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LandedChange {
    pub path: Rel,
    /// `added`, `modified`, `deleted`, `renamed`, `mode`, `xattr` or `type`.
    pub kind: String,
    /// Where it was, if it was moved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<Rel>,
    /// Only these hunks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hunks: Option<Vec<String>>,
}

/// So many of those that stay are listed.
const MOST_LEFT: usize = 10_000;

impl LandedChange {
    fn of(file: &FileDiff, hunks: Option<Vec<String>>) -> LandedChange {
        let change = &file.change;
        LandedChange {
            path: change.path.clone(),
            kind: change.kind.name().to_owned(),
            from: change.kind.from().cloned(),
            hunks,
        }
    }

    pub fn all(chosen: &Chosen<'_>) -> Vec<LandedChange> {
        let ids = |hunks: &Vec<workspace::Hunk>| hunks.iter().map(|hunk| hunk.id.clone()).collect();
        chosen.picks.iter().map(|pick| LandedChange::of(pick.file, pick.hunks.as_ref().map(ids))).collect()
    }
}

/// The first ones, and how many more there are.
pub fn bounded(mut left: Vec<Left>) -> (Vec<Left>, u64) {
    let more = left.len().saturating_sub(MOST_LEFT) as u64;
    left.truncate(MOST_LEFT);
    (left, more)
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
