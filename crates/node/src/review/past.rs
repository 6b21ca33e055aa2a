//! What files of a base held when a sandbox last saw them: from the commit that the base stood on.

use crate::Caller;
use crate::sandbox::Sandbox;
use crate::state::State;
use store::Kept;
use terms::Fault;
use workspace::git::{Old, Surroundings, Was};
use workspace::{Anchors, ChangeKind, Diff, Rel, merge};

pub struct Past {
    commit: Option<Old>,
    /// Why less is known than could be.
    pub notes: Vec<String>,
}

impl Past {
    /// Looks up all that a rebase may ask for.
    pub fn of(
        _state: &State,
        caller: &Caller,
        sandbox: &Kept<Sandbox>,
        _anchors: &Anchors,
        diff: &Diff,
    ) -> Result<Past, Fault> {
        let asked: Vec<Rel> = asked(diff);
        let mut notes = Vec::new();
        let commit = match &sandbox.record.git_head {
            Some(commit) if !asked.is_empty() => {
                let surroundings = Surroundings { env: &caller.env };
                // Without git's word a rebase is poorer, not wrong.
                Old::look_up(&sandbox.record.base, &surroundings, commit, &asked).unwrap_or_else(|fault| {
                    notes.push(format!("git was not asked how files were before: {}", fault.message));
                    None
                })
            }
            _ => None,
        };
        Ok(Past { commit, notes })
    }

    pub fn of_file(&self, path: &Rel) -> Result<Was, Fault> {
        match &self.commit {
            Some(old) => old.contents(path, merge::LARGEST as u64),
            None => Ok(Was::Unknown),
        }
    }
}

/// Files whose base moved, and new ones, which the base may have had.
fn asked(diff: &Diff) -> Vec<Rel> {
    let changes = diff.files.iter().map(|file| &file.change);
    let moved = changes.filter(|change| change.drifted || change.kind == ChangeKind::Added);
    moved.map(|change| change.kind.from().unwrap_or(&change.path).clone()).collect()
}
