//! The functions of the contract.

pub mod journal;
pub mod records;
pub mod transactions;

use store::backend::{EntryRow, Filter, RecordFields, RecordQuery, RecordRow, Transaction, WriteOutcome};

/// A record of kind `thing` with neither name nor scope.
fn thing<'a>(id: &'a str, body: &'a str) -> RecordFields<'a> {
    RecordFields { kind: "thing", id, name: None, scope: None, body }
}

#[track_caller]
fn insert(tx: &dyn Transaction, row: &RecordFields<'_>) {
    assert_eq!(tx.insert(row).unwrap(), WriteOutcome::Done, "{row:?}");
}

fn select(tx: &dyn Transaction, kind: &str, filter: Filter<'_>, limit: Option<u32>) -> Vec<RecordRow> {
    let mut found = Vec::new();
    let query = RecordQuery { kind, filter, limit };
    tx.select(&query, &mut |row| {
        found.push(row);
        Ok(())
    })
    .unwrap();
    found
}

fn ids(tx: &dyn Transaction, filter: Filter<'_>, limit: Option<u32>) -> Vec<String> {
    select(tx, "thing", filter, limit).into_iter().map(|row| row.id).collect()
}

fn get(tx: &dyn Transaction, id: &str) -> Option<RecordRow> {
    select(tx, "thing", Filter::Id(id), Some(1)).pop()
}

/// An entry with a hash of its own, which back ends do not look at.
fn entry(seq: u64) -> EntryRow {
    EntryRow {
        seq,
        at_ms: seq * 10,
        verb: if seq.is_multiple_of(2) { "create" } else { "run" }.to_owned(),
        step: if seq.is_multiple_of(3) { "intent" } else { "done" }.to_owned(),
        subject: format!("sbx_{}", seq % 4),
        actor: if seq.is_multiple_of(5) { "eve" } else { "ann" }.to_owned(),
        body: format!("{{\"n\":{seq}}}"),
        hash: format!("hash {seq}"),
    }
}
