//! The journal: intents and results, chained by hashes so that no entry can be changed, dropped or moved unseen.

use crate::backend::{ChainLink, EntryQuery, EntryRow, Order};
use crate::chain::{self, GENESIS};
use crate::transaction::{Tx, check_texts};
use api::{JournalEntry, JournalStep};
use serde_json::Value;
use std::ops::ControlFlow;
use terms::Fault;

/// An entry to be appended.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub at_ms: u64,
    /// `create`, `run`, `approve`, …
    pub verb: &'a str,
    pub step: JournalStep,
    /// Id of the sandbox or other object.
    pub subject: &'a str,
    /// Name of the user who asked.
    pub actor: &'a str,
    pub body: Value,
}

/// Selection of entries; a field without a value accepts all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalFilter {
    pub subject: Option<String>,
    pub verb: Option<String>,
    pub actor: Option<String>,
    pub step: Option<JournalStep>,
}

impl Tx<'_> {
    /// Appends an entry to the chain; returns its number.
    pub fn note(&self, entry: &Entry<'_>) -> Result<u64, Fault> {
        check_texts([entry.verb, entry.subject, entry.actor])?;
        let last = self.rows.last_entry()?.unwrap_or_else(|| ChainLink { seq: 0, hash: GENESIS.to_owned() });
        let mut row = EntryRow {
            seq: last.seq + 1,
            at_ms: entry.at_ms,
            verb: entry.verb.to_owned(),
            step: entry.step.name().to_owned(),
            subject: entry.subject.to_owned(),
            actor: entry.actor.to_owned(),
            body: entry.body.to_string(),
            hash: String::new(),
        };
        row.hash = chain::hash(&last.hash, &row);
        self.rows.append(&row)?;
        let seq = row.seq;
        self.appended.replace(Some(ChainLink { seq, hash: row.hash }));
        Ok(seq)
    }

    /// Returns the last `limit` entries before number `below` (of all where none is given), oldest first; of one subject, or of all.
    pub fn noted(&self, subject: Option<&str>, below: Option<u64>, limit: u32) -> Result<Vec<JournalEntry>, Fault> {
        let (order, limit) = (Order::NewestFirst, Some(limit));
        let mut noted = self.entries(&EntryQuery { subject, below, order, limit, ..EntryQuery::default() })?;
        noted.reverse();
        Ok(noted)
    }

    /// Returns the first `limit` wanted entries after number `after`, oldest first.
    pub fn noted_after(&self, after: u64, wanted: &JournalFilter, limit: u32) -> Result<Vec<JournalEntry>, Fault> {
        self.entries(&EntryQuery {
            after,
            subject: wanted.subject.as_deref(),
            verb: wanted.verb.as_deref(),
            actor: wanted.actor.as_deref(),
            step: wanted.step.map(JournalStep::name),
            limit: Some(limit),
            ..EntryQuery::default()
        })
    }

    fn entries(&self, query: &EntryQuery<'_>) -> Result<Vec<JournalEntry>, Fault> {
        let mut noted = Vec::new();
        self.rows.entries(query, &mut |row| {
            noted.push(parse(row?)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(noted)
    }

    /// Returns how many entries are no longer in the database: the number of the last that was archived.
    pub fn archived(&self) -> Result<u64, Fault> {
        Ok(self.rows.entry_range()?.map_or(0, |(first, _)| first.saturating_sub(1)))
    }

    /// Returns the number of the last entry; 0 where there is none.
    pub fn last_noted(&self) -> Result<u64, Fault> {
        Ok(self.rows.entry_range()?.map_or(0, |(_, last)| last))
    }
}

fn parse(EntryRow { seq, at_ms, verb, step, subject, actor, body, hash }: EntryRow) -> Result<JournalEntry, Fault> {
    let broken =
        |what: &str| Fault::internal(format!("journal entry {seq}: {what}")).hint("see `cofferdam audit verify`");
    let step = JournalStep::of_name(&step).ok_or_else(|| broken("unknown step"))?;
    let body = serde_json::from_str(&body).map_err(|_| broken("its body is not JSON"))?;
    Ok(JournalEntry { seq, at_ms, verb, step, subject, actor, body, hash })
}
