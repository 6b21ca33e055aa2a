//! Paths that a rebase left in conflict. They are recorded until the user resolves them, so that conflict markers do not land among other
//! changes.

use api::{ChangeBody, Diff, FileDiff, LineKind, Rel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use store::{Record, Tx};
use terms::Fault;
use workspace::merge;

/// Conflicts of a sandbox. The id is the sandbox's; keys are paths as `Rel` is displayed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Conflicted {
    pub paths: BTreeMap<String, Dispute>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispute {
    /// Digest of the file in the workspace after the rebase; `None` where the workspace had deleted it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Both sides are in the file, between conflict markers.
    pub marks: bool,
}

impl Record for Conflicted {
    const KIND: &'static store::Kind = crate::records::kind("conflicted");
}

impl Conflicted {
    /// Returns whether a change is unmodified since the rebase, or still has its conflict markers.
    pub fn is_conflicted(&self, file: &FileDiff) -> bool {
        let Some(dispute) = self.paths.get(&file.change.path.to_string()) else { return false };
        let now = file.change.after.as_ref().and_then(|after| after.digest.as_ref());
        now == dispute.digest.as_ref() || (dispute.marks && has_marks(&file.body))
    }
}

fn has_marks(body: &ChangeBody) -> bool {
    let ChangeBody::Text(hunks) = body else { return false };
    let mut lines = hunks.iter().flat_map(|hunk| &hunk.lines);
    lines.any(|line| line.kind == LineKind::Added && merge::is_mark(&line.text))
}

/// Returns the paths of a sandbox's diff that are unresolved since its rebase. They land only when they are named.
pub fn unresolved(tx: &Tx<'_>, sandbox: &str, diff: &Diff) -> Result<Vec<Rel>, Fault> {
    let Some(kept) = tx.get::<Conflicted>(sandbox)? else { return Ok(Vec::new()) };
    let left = diff.files.iter().filter(|file| kept.record.is_conflicted(file));
    Ok(left.map(|file| file.change.path.clone()).collect())
}
