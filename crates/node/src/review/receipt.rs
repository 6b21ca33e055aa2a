//! The result of an approval or an undo, for people and programs.

use api::{FileDiff, Hunk, LandedChange, LeftChange, Receipt};
use terms::PROTOCOL_VERSION;
use workspace::select::Chosen;

/// Most remaining changes that are listed.
const MOST_LEFT: usize = 10_000;

fn landed_change(file: &FileDiff, hunks: Option<Vec<String>>) -> LandedChange {
    let change = &file.change;
    LandedChange {
        path: change.path.clone(),
        kind: change.kind.name().to_owned(),
        from: change.kind.from().cloned(),
        hunks,
    }
}

/// The changes that a choice takes.
pub fn landed_changes(chosen: &Chosen<'_>) -> Vec<LandedChange> {
    let ids = |hunks: &Vec<Hunk>| hunks.iter().map(|hunk| hunk.id.clone()).collect();
    chosen.picks.iter().map(|pick| landed_change(pick.file, pick.hunks.as_ref().map(ids))).collect()
}

/// Returns the first ones, and the number of the rest.
pub fn bounded(mut left: Vec<LeftChange>) -> (Vec<LeftChange>, u64) {
    let more = left.len().saturating_sub(MOST_LEFT) as u64;
    left.truncate(MOST_LEFT);
    (left, more)
}

/// Builds the receipt of a landing that committed nothing. `ids` are those of the batch and of its sandbox.
pub fn of_landing(ids: (String, &str), digest: &str, chosen: Chosen<'_>, notes: Vec<String>) -> Receipt {
    let landed = landed_changes(&chosen);
    let (left, left_more) = bounded(chosen.left);
    Receipt {
        protocol_version: PROTOCOL_VERSION,
        success: true,
        batch: ids.0,
        sandbox: ids.1.to_owned(),
        digest: digest.to_owned(),
        landed,
        left,
        left_more,
        notes,
        inside: Vec::new(),
        commit: None,
        undoes: None,
    }
}
