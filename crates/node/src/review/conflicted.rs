//! Files that a rebase could not bring together. They are remembered until somebody has dealt with them, so that marks of a
//! conflict do not land among everything else.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use store::{Record, Tx};
use terms::Fault;
use workspace::{Body, Diff, FileDiff, LineKind, Rel, merge};

/// The id is the sandbox's; keys are paths as `Rel` is displayed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Conflicted {
    pub paths: BTreeMap<String, Dispute>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispute {
    /// What the workspace held when the rebase was done; none where it had deleted the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Both sides stand in the file, between marks.
    pub marks: bool,
}

impl Record for Conflicted {
    const KIND: &'static str = "conflicted";
}

impl Conflicted {
    /// Whether a change is still what the rebase left, or still has its marks.
    pub fn is_conflicted(&self, file: &FileDiff) -> bool {
        let Some(dispute) = self.paths.get(&file.change.path.to_string()) else { return false };
        let now = file.change.after.as_ref().and_then(|after| after.digest.as_ref());
        now == dispute.digest.as_ref() || (dispute.marks && has_marks(&file.body))
    }
}

fn has_marks(body: &Body) -> bool {
    let Body::Text(hunks) = body else { return false };
    let mut lines = hunks.iter().flat_map(|hunk| &hunk.lines);
    lines.any(|line| line.kind == LineKind::Added && merge::is_mark(&line.text))
}

/// What of a sandbox's diff nobody has dealt with since its rebase. It lands only when it is named.
pub fn unresolved(tx: &Tx<'_>, sandbox: &str, diff: &Diff) -> Result<Vec<Rel>, Fault> {
    let Some(kept) = tx.get::<Conflicted>(sandbox)? else { return Ok(Vec::new()) };
    let left = diff.files.iter().filter(|file| kept.record.is_conflicted(file));
    Ok(left.map(|file| file.change.path.clone()).collect())
}
