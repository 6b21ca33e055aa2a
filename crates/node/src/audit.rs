//! Audit: what the journal says, as it grows, and whether it is as it was written.

use runtime::Node;
use serde::{Deserialize, Serialize};
use state::Caller;
use state::sandbox;
pub use store::{Noted, Step, Verified, Wanted};
use store::{Store, Tx};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;

/// Entries that one call gives, at most.
pub const MOST: u32 = 10_000;

/// The last `most` entries, oldest first; of one sandbox, or of all.
pub fn log(node: &Node, caller: &Caller, word: Option<&str>, most: u32) -> Result<Vec<Noted>, Fault> {
    let state = node.states.open(caller)?;
    state.store.read(|tx| {
        let subject = subject(tx, word, caller)?;
        let mut entries = tx.noted(subject.as_deref(), None, most.min(MOST))?;
        caller.keep_noted(tx, &mut entries)?;
        Ok(entries)
    })
}

/// Some entries, and how to ask for those that follow.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = JournalPage)]
pub struct Page {
    pub protocol_version: u32,
    /// Oldest first.
    pub entries: Vec<Noted>,
    /// There may be more: what `after` takes for them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<u64>,
    /// Entries up to this number are no longer in the store, but in files of their own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub archived: Option<u64>,
}

/// The first `most` wanted entries after number `after`.
pub fn page(node: &Node, caller: &Caller, after: u64, wanted: Wanted, most: u32) -> Result<Page, Fault> {
    check_most(most)?;
    let state = node.states.open(caller)?;
    state.store.read(|tx| {
        let wanted = Wanted { subject: subject(tx, wanted.subject.as_deref(), caller)?, ..wanted };
        let mut entries = tx.noted_after(after, &wanted, most)?;
        let next = entries.last().filter(|_| entries.len() == most as usize).map(|entry| entry.seq);
        caller.keep_noted(tx, &mut entries)?;
        let archived = Some(tx.archived()?).filter(|archived| *archived > after);
        Ok(Page { protocol_version: PROTOCOL_VERSION, entries, next, archived })
    })
}

/// The last `most` wanted entries.
pub fn last(node: &Node, caller: &Caller, subject: Option<&str>, most: u32) -> Result<Page, Fault> {
    check_most(most)?;
    let entries = log(node, caller, subject, most)?;
    let archived = node.states.open(caller)?.store.read(|tx| tx.archived())?;
    let archived = Some(archived).filter(|archived| *archived > 0);
    Ok(Page { protocol_version: PROTOCOL_VERSION, entries, next: None, archived })
}

fn check_most(most: u32) -> Result<(), Fault> {
    if (1..=MOST).contains(&most) {
        return Ok(());
    }
    let fault = Fault::invalid(format!("limit: {most} entries in one answer")).phase(Phase::Admission);
    Err(fault.hint(format!("from 1 to {MOST}")))
}

/// What entries are about. Whatever has entries can be asked for by its whole id: what is removed, too, and what is no sandbox.
fn subject(tx: &Tx<'_>, word: Option<&str>, caller: &Caller) -> Result<Option<String>, Fault> {
    let Some(word) = word else { return Ok(None) };
    if !tx.noted(Some(word), None, 1)?.is_empty() && caller.sees_id(tx, word)? {
        return Ok(Some(word.to_owned()));
    }
    Ok(Some(sandbox::find(tx, Some(word), caller)?.id))
}

/// Goes along the whole chain.
pub fn verify(node: &Node, caller: &Caller) -> Result<Verified, Fault> {
    node.states.open(caller)?.store.verify()
}

/// The journal as it grows: every entry is an event, and its number tells where a reader was.
pub struct Tail {
    caller: Caller,
    store: Store,
    wanted: Wanted,
    /// The last entry that was given or passed over.
    at: u64,
}

/// More entries than these are not told again to one who was away.
pub const MOST_REPLAYED: u64 = 100_000;

impl Tail {
    /// From after number `from` on; without one, from now on.
    pub fn open(node: &Node, caller: &Caller, from: Option<u64>, wanted: Wanted) -> Result<Tail, Fault> {
        let store = node.states.open(caller)?.store;
        let (at, wanted) = store.read(|tx| {
            let wanted = Wanted { subject: subject(tx, wanted.subject.as_deref(), caller)?, ..wanted };
            Ok((begin(from, tx.archived()?, tx.last_noted()?)?, wanted))
        })?;
        Ok(Tail { caller: caller.clone(), store, wanted, at })
    }

    /// What follows, at most `most`; nothing where nothing does yet.
    pub fn next(&mut self, most: u32) -> Result<Vec<Noted>, Fault> {
        loop {
            let (mut entries, last) =
                self.store.read(|tx| Ok((tx.noted_after(self.at, &self.wanted, most)?, tx.last_noted()?)))?;
            // All that there is was looked at, whatever of it was wanted.
            let all = (entries.len() as u32) < most;
            self.at = if all { last.max(self.at) } else { entries.last().map_or(self.at, |entry| entry.seq) };
            self.store.read(|tx| self.caller.keep_noted(tx, &mut entries))?;
            if all || !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// One that begins with the last `most` entries.
    pub fn last(node: &Node, caller: &Caller, most: u64, wanted: Wanted) -> Result<Tail, Fault> {
        let (archived, last) = node.states.open(caller)?.store.read(|tx| Ok((tx.archived()?, tx.last_noted()?)))?;
        Tail::open(node, caller, Some(last.saturating_sub(most).max(archived)), wanted)
    }

    /// Passes over all that there is; the number of the last.
    pub fn skip(&mut self) -> Result<u64, Fault> {
        self.at = self.store.read(|tx| tx.last_noted())?;
        Ok(self.at)
    }

    pub fn at(&self) -> u64 {
        self.at
    }
}

fn begin(from: Option<u64>, archived: u64, last: u64) -> Result<u64, Fault> {
    let Some(from) = from else { return Ok(last) };
    if from < archived {
        let message = format!("events up to {archived} are archived, and are not told again");
        let fault = Fault::new(ErrorKind::NotFound, message).phase(Phase::Admission);
        return Err(
            fault.hint(format!("begin after {archived}; what came before is in journal/ of the state directory"))
        );
    }
    if from > last {
        let fault = Fault::invalid(format!("there is no event {from} yet; the last is {last}")).phase(Phase::Admission);
        return Err(fault.hint("begin without a number, or with one that was told"));
    }
    if last - from > MOST_REPLAYED {
        let message = format!("{} events came since {from}; at most {MOST_REPLAYED} are told again", last - from);
        let fault = Fault::new(ErrorKind::LimitExceeded, message).phase(Phase::Admission);
        return Err(fault.hint("read the journal in pages (`cofferdam audit`, /v1/audit), then begin without a number"));
    }
    Ok(from)
}
