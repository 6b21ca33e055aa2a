//! Ownership of sandboxes in a shared state. An agent's token sees the sandboxes that it was bound to and those that it made; others do not
//! exist for it, nor do their runs, snapshots and journal entries.

use crate::Caller;
use crate::reach::Reach;
use crate::sandbox::{Run, Sandbox, Tombstone};
use crate::snapshot::Snapshot;
use api::JournalEntry;
use std::collections::HashMap;
use store::{Kept, Tx};
use terms::Fault;

/// Sandboxes that a caller is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Id of the token, which is recorded as the owner of its sandboxes.
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

    /// Returns the owner to record in a sandbox that this caller makes.
    pub fn owner(&self) -> Option<String> {
        self.own().map(|own| own.token.clone())
    }

    /// Returns whether the caller sees only some sandboxes of the state.
    pub fn is_bound(&self) -> bool {
        self.own().is_some()
    }

    /// Returns whether a sandbox is visible to this caller.
    pub fn sees(&self, id: &str, sandbox: &Sandbox) -> bool {
        self.own().is_none_or(|own| {
            sandbox.owner.as_ref() == Some(&own.token) || own.sandboxes.iter().any(|bound| bound == id)
        })
    }

    pub fn sees_kept(&self, kept: &Kept<Sandbox>) -> bool {
        self.sees(&kept.id, &kept.record)
    }

    /// Returns whether an id is visible to this caller: of a sandbox, also a removed one, or of its run or snapshot. Ids that belong to no
    /// sandbox are invisible to a bound caller.
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

    /// Retains the items that are visible to this caller, by their ids.
    pub fn keep_own<T>(&self, tx: &Tx<'_>, all: &mut Vec<T>, id: impl Fn(&T) -> &str) -> Result<(), Fault> {
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

    /// Retains the journal entries whose subject is visible to this caller.
    pub fn keep_noted(&self, tx: &Tx<'_>, entries: &mut Vec<JournalEntry>) -> Result<(), Fault> {
        self.keep_own(tx, entries, |entry| &entry.subject)
    }
}
