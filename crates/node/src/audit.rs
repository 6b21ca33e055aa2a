//! Audit: reads the journal, follows it as it grows, and verifies its hash chain.

use api::{JournalEntry, JournalPage, JournalVerified};
use runtime::Node;
use state::Caller;
use state::sandbox;
pub use store::JournalFilter;
use store::{Store, Tx};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

/// Most entries that one call returns.
pub const MOST: u32 = 10_000;

/// Returns the last `most` entries, oldest first, of one sandbox or of all.
pub fn log(node: &Node, caller: &Caller, word: Option<&str>, most: u32) -> Result<Vec<JournalEntry>, Fault> {
    let state = node.states.open(caller)?;
    state.store.read(|tx| {
        let subject = subject(tx, word, caller)?;
        let mut entries = tx.noted(subject.as_deref(), None, most.min(MOST))?;
        caller.keep_noted(tx, &mut entries)?;
        Ok(entries)
    })
}

/// The first `most` wanted entries after number `after`.
pub fn page(node: &Node, caller: &Caller, after: u64, wanted: JournalFilter, most: u32) -> Result<JournalPage, Fault> {
    check_most(most)?;
    let state = node.states.open(caller)?;
    state.store.read(|tx| {
        let wanted = JournalFilter { subject: subject(tx, wanted.subject.as_deref(), caller)?, ..wanted };
        let mut entries = tx.noted_after(after, &wanted, most)?;
        let next = entries.last().filter(|_| entries.len() == most as usize).map(|entry| entry.seq);
        caller.keep_noted(tx, &mut entries)?;
        let archived = Some(tx.archived()?).filter(|archived| *archived > after);
        Ok(JournalPage { protocol_version: PROTOCOL_VERSION, entries, next, archived })
    })
}

/// Returns the last `most` wanted entries.
pub fn last(node: &Node, caller: &Caller, subject: Option<&str>, most: u32) -> Result<JournalPage, Fault> {
    check_most(most)?;
    let entries = log(node, caller, subject, most)?;
    let archived = node.states.open(caller)?.store.read(|tx| tx.archived())?;
    let archived = Some(archived).filter(|archived| *archived > 0);
    Ok(JournalPage { protocol_version: PROTOCOL_VERSION, entries, next: None, archived })
}

fn check_most(most: u32) -> Result<(), Fault> {
    if (1..=MOST).contains(&most) {
        return Ok(());
    }
    let fault = Fault::invalid(format!("limit: {most} entries in one answer")).phase(Phase::Admission);
    Err(fault.hint(format!("from 1 to {MOST}")))
}

/// Resolves a word to the subject of entries. Any subject with entries is found by its whole id, also a removed sandbox or an
/// object that is no sandbox.
fn subject(tx: &Tx<'_>, word: Option<&str>, caller: &Caller) -> Result<Option<String>, Fault> {
    let Some(word) = word else { return Ok(None) };
    if !tx.noted(Some(word), None, 1)?.is_empty() && caller.sees_id(tx, word)? {
        return Ok(Some(word.to_owned()));
    }
    Ok(Some(sandbox::find(tx, Some(word), caller)?.id))
}

/// Verifies the whole chain.
pub fn verify(node: &Node, caller: &Caller) -> Result<JournalVerified, Fault> {
    node.states.open(caller)?.store.verify()
}

/// Follows the journal: each entry is an event, and its number is the reader's position.
pub struct Tail {
    caller: Caller,
    store: Store,
    wanted: JournalFilter,
    /// The number of the last entry that was returned or skipped.
    at: u64,
}

/// Most entries that are replayed to a reader that reconnects.
pub const MOST_REPLAYED: u64 = 100_000;

impl Tail {
    /// Opens a tail that begins after entry `from`, or at the end of the journal without it.
    pub fn open(node: &Node, caller: &Caller, from: Option<u64>, wanted: JournalFilter) -> Result<Tail, Fault> {
        let store = node.states.open(caller)?.store;
        let (at, wanted) = store.read(|tx| {
            let wanted = JournalFilter { subject: subject(tx, wanted.subject.as_deref(), caller)?, ..wanted };
            Ok((begin(from, tx.archived()?, tx.last_noted()?)?, wanted))
        })?;
        Ok(Tail { caller: caller.clone(), store, wanted, at })
    }

    /// Returns the next entries, at most `most`; an empty list if there are none yet.
    pub fn next(&mut self, most: u32) -> Result<Vec<JournalEntry>, Fault> {
        loop {
            let (mut entries, last) =
                self.store.read(|tx| Ok((tx.noted_after(self.at, &self.wanted, most)?, tx.last_noted()?)))?;
            // Every entry of the page was examined, so the position may pass the unwanted ones, too.
            let all = (entries.len() as u32) < most;
            self.at = if all { last.max(self.at) } else { entries.last().map_or(self.at, |entry| entry.seq) };
            self.store.read(|tx| self.caller.keep_noted(tx, &mut entries))?;
            if all || !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// Opens a tail that begins with the last `most` entries.
    pub fn last(node: &Node, caller: &Caller, most: u64, wanted: JournalFilter) -> Result<Tail, Fault> {
        let (archived, last) = node.states.open(caller)?.store.read(|tx| Ok((tx.archived()?, tx.last_noted()?)))?;
        Tail::open(node, caller, Some(last.saturating_sub(most).max(archived)), wanted)
    }

    /// Skips all entries that exist and returns the number of the last.
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
        let message = format!("events up to {archived} are archived and are not replayed");
        let fault = Fault::new(ErrorKind::NotFound, message).phase(Phase::Admission);
        return Err(fault.hint(format!("start after {archived}; older entries are in journal/ of the state directory")));
    }
    if from > last {
        let fault =
            Fault::invalid(format!("event {from} does not exist yet; the last one is {last}")).phase(Phase::Admission);
        return Err(fault.hint("start without a number, or with that of an event received before"));
    }
    if last - from > MOST_REPLAYED {
        let message = format!("{} events happened since {from}; at most {MOST_REPLAYED} are replayed", last - from);
        let fault = Fault::new(ErrorKind::LimitExceeded, message).phase(Phase::Admission);
        return Err(fault.hint("read the journal in pages (`cofferdam audit`, /v1/audit), then start without a number"));
    }
    Ok(from)
}
