//! Whose a sandbox is, among those who share a state. An agent's token has those that it was bound to and those that it made; for it
//! there are no others, nor anything of them: no runs, no snapshots, no entries of the journal.

use crate::Caller;
use crate::reach::Reach;
use crate::sandbox::{Run, Sandbox, Tombstone};
use crate::snapshots::Snapshot;
use std::collections::HashMap;
use store::{Kept, Noted, Tx};
use terms::Fault;

/// What a caller is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Its token; what it makes says so.
    pub token: String,
    /// Ids of further sandboxes that it may use.
    pub sandboxes: Vec<String>,
}

impl Caller {
    fn own(&self) -> Option<&Own> {
        match &self.reach {
            Reach::All => None,
            Reach::Only(grants) => grants.own.as_ref(),
        }
    }

    /// What is written into the record of a sandbox that this caller makes.
    pub fn owner(&self) -> Option<String> {
        self.own().map(|own| own.token.clone())
    }

    /// Whether there are sandboxes in the state that are not for this caller.
    pub fn is_bound(&self) -> bool {
        self.own().is_some()
    }

    /// Whether a sandbox is there for this caller.
    pub fn sees(&self, id: &str, sandbox: &Sandbox) -> bool {
        self.own().is_none_or(|own| {
            sandbox.owner.as_ref() == Some(&own.token) || own.sandboxes.iter().any(|bound| bound == id)
        })
    }

    pub(crate) fn sees_kept(&self, kept: &Kept<Sandbox>) -> bool {
        self.sees(&kept.id, &kept.record)
    }

    /// The same of what is known by its id alone: a sandbox, also one that was removed, or something of one. What is no sandbox's
    /// is nobody's who is bound.
    pub fn sees_id(&self, tx: &Tx<'_>, id: &str) -> Result<bool, Fault> {
        if !self.is_bound() {
            return Ok(true);
        }
        if let Some(kept) = tx.get::<Sandbox>(id)? {
            return Ok(self.sees_kept(&kept));
        }
        if let Some(gone) = tx.get::<Tombstone>(id)? {
            return Ok(self.sees(id, &gone.record.sandbox));
        }
        if let Some(run) = tx.get::<Run>(id)? {
            return Ok(run.record.sandbox != id && self.sees_id(tx, &run.record.sandbox)?);
        }
        match tx.get::<Snapshot>(id)? {
            Some(snapshot) => Ok(snapshot.record.sandbox != id && self.sees_id(tx, &snapshot.record.sandbox)?),
            None => Ok(false),
        }
    }

    /// Keeps of a list what is this caller's, by the ids that it is known under.
    pub(crate) fn keep_own<T>(&self, tx: &Tx<'_>, all: &mut Vec<T>, id: impl Fn(&T) -> &str) -> Result<(), Fault> {
        if !self.is_bound() {
            return Ok(());
        }
        let mut known: HashMap<String, bool> = HashMap::new();
        for one in all.iter() {
            if !known.contains_key(id(one)) {
                known.insert(id(one).to_owned(), self.sees_id(tx, id(one))?);
            }
        }
        all.retain(|one| known.get(id(one)) == Some(&true));
        Ok(())
    }

    /// Keeps of journal entries those that are about what is this caller's.
    pub(crate) fn keep_noted(&self, tx: &Tx<'_>, entries: &mut Vec<Noted>) -> Result<(), Fault> {
        self.keep_own(tx, entries, |entry| &entry.subject)
    }
}
