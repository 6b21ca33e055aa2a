//! The hash chain of the journal: each entry's hash covers the entry and the hash before it. Verification reads rows through the
//! back end's interface and compares them with the chain heads that are remembered outside of the database.

use crate::backend::{ChainLink, EntryQuery, EntryRow, Transaction};
use api::{JournalBroken, JournalVerified};
use serde::{Deserialize, Serialize};
use sha2::Digest;
use sha2::Sha256;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use terms::Fault;

/// Stands in the place of the hash before the first entry.
pub const GENESIS: &str = "cofferdam journal 1";

/// Subject, verb and step of the entries that tell of an archived segment.
pub const SEAL_SUBJECT: &str = "journal";
pub const SEAL_VERB: &str = "archive";
pub const SEAL_STEP: &str = "done";

/// A run of entries that was moved out of the database, as the entry that seals it tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub first: u64,
    pub last: u64,
    /// Hash of the last entry.
    pub hash: String,
}

/// Computes the hash of an entry. Each text goes in with its length, so that no byte can move from one text to the next.
pub fn hash(before: &str, row: &EntryRow) -> String {
    let mut hasher = Sha256::new();
    hasher.update(before.as_bytes());
    hasher.update(row.seq.to_le_bytes());
    hasher.update(row.at_ms.to_le_bytes());
    for text in [&row.verb, &row.step, &row.subject, &row.actor, &row.body] {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    terms::hex::encode(hasher.finalize())
}

/// Checks that a row is the entry that follows upon `last`, as it was written; the reason where it is not.
pub fn check_next(
    last: &ChainLink,
    row: &Result<EntryRow, Fault>,
    anchors: &BTreeMap<u64, String>,
) -> Result<(), String> {
    let row = row.as_ref().map_err(|fault| format!("it cannot be read: {}", fault.message))?;
    if row.seq != last.seq + 1 {
        return Err("it is missing".into());
    }
    if hash(&last.hash, row) != row.hash {
        return Err("its hash does not match its content".into());
    }
    match anchors.get(&row.seq) {
        Some(known) if *known != row.hash => Err("journal.head has another entry with this number".into()),
        _ => Ok(()),
    }
}

/// Verifies the chain in the database, and compares it with the remembered heads where `anchors` are given.
pub fn verify(rows: &dyn Transaction, anchors: Option<&BTreeMap<u64, String>>) -> Result<JournalVerified, Fault> {
    let anchored = anchors.and_then(|anchors| anchors.keys().next_back().copied()).unwrap_or(0);
    let mut last = match start(rows)? {
        Ok(start) => start,
        Err(broken) => {
            let (head, broken) = (GENESIS.to_owned(), Some(broken));
            return Ok(JournalVerified { entries: 0, head, anchored, archived: 0, archived_here: 0, broken });
        }
    };
    let archived = last.seq;
    let (none, mut broken) = (BTreeMap::new(), None);
    rows.entries(&EntryQuery::default(), &mut |row| {
        if let Err(why) = check_next(&last, &row, anchors.unwrap_or(&none)) {
            broken = Some(JournalBroken { seq: last.seq + 1, why });
            return Ok(ControlFlow::Break(()));
        }
        let row = row?;
        last = ChainLink { seq: row.seq, hash: row.hash };
        Ok(ControlFlow::Continue(()))
    })?;
    let broken = broken.or_else(|| check_end(last.seq, anchors?));
    Ok(JournalVerified { entries: last.seq, head: last.hash, anchored, archived, archived_here: 0, broken })
}

/// Checks that a chain which is sound by itself has not lost its end.
fn check_end(entries: u64, anchors: &BTreeMap<u64, String>) -> Option<JournalBroken> {
    let why = match anchors.keys().next_back() {
        None => "journal.head is missing: entries may be missing at the end".to_owned(),
        Some(last) if *last > entries => format!("it is missing, with all entries up to {last}"),
        Some(_) => return None,
    };
    Some(JournalBroken { seq: entries + 1, why })
}

/// Returns the entry that the database's first one follows upon; the defect where no seal tells of it.
pub fn start(rows: &dyn Transaction) -> Result<Result<ChainLink, JournalBroken>, Fault> {
    let before = rows.entry_range()?.map_or(0, |(first, _)| first.saturating_sub(1));
    if before == 0 {
        return Ok(Ok(ChainLink { seq: 0, hash: GENESIS.to_owned() }));
    }
    let seal = seals(rows)?.remove(&before);
    Ok(seal
        .map(|hash| ChainLink { seq: before, hash })
        .ok_or_else(|| JournalBroken { seq: 1, why: "it is missing".into() }))
}

/// Returns the last entry of each sealed segment with its hash, as entries in the database tell.
pub fn seals(rows: &dyn Transaction) -> Result<BTreeMap<u64, String>, Fault> {
    let mut seals = BTreeMap::new();
    let query = EntryQuery {
        subject: Some(SEAL_SUBJECT),
        verb: Some(SEAL_VERB),
        step: Some(SEAL_STEP),
        ..EntryQuery::default()
    };
    rows.entries(&query, &mut |row| {
        // A damaged entry seals nothing.
        if let Some(segment) = row.ok().and_then(|row| serde_json::from_str::<Segment>(&row.body).ok()) {
            seals.insert(segment.last, segment.hash);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(seals)
}
