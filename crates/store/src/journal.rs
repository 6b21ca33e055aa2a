//! The journal: intents and results, chained by hashes so that no entry can be changed, dropped or moved unseen.

use crate::backend::{EntryQuery, EntryRow, Link, Order};
use crate::chain::{self, GENESIS};
use crate::transaction::{Tx, check_texts};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::ControlFlow;
use terms::Fault;
use utoipa::ToSchema;

/// Progress of the operation that an entry tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = JournalStep)]
pub enum Step {
    /// The operation is about to begin.
    Intent,
    Done,
    Failed,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Step::Intent => "intent",
            Step::Done => "done",
            Step::Failed => "failed",
        }
    }

    pub fn of_name(name: &str) -> Option<Step> {
        [Step::Intent, Step::Done, Step::Failed].into_iter().find(|step| step.name() == name)
    }
}

/// An entry to be appended.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub at_ms: u64,
    /// `create`, `run`, `approve`, …
    pub verb: &'a str,
    pub step: Step,
    /// Id of the sandbox or other object.
    pub subject: &'a str,
    /// Name of the user who asked.
    pub actor: &'a str,
    pub body: Value,
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = JournalEntry)]
pub struct Noted {
    /// Number; entries are numbered without a gap.
    pub seq: u64,
    pub at_ms: u64,
    pub verb: String,
    pub step: Step,
    /// Id of the sandbox or other object.
    pub subject: String,
    /// Name of the user who asked.
    pub actor: String,
    /// Details; the form depends on the verb.
    #[schema(value_type = Option<Object>)]
    pub body: Value,
    /// Hash of the entry and of the hash before it.
    pub hash: String,
}

/// Selection of entries; a field without a value accepts all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub subject: Option<String>,
    pub verb: Option<String>,
    pub actor: Option<String>,
    pub step: Option<Step>,
}

impl Tx<'_> {
    /// Appends an entry to the chain; returns its number.
    pub fn note(&self, entry: &Entry<'_>) -> Result<u64, Fault> {
        check_texts([entry.verb, entry.subject, entry.actor])?;
        let last = self.rows.last_entry()?.unwrap_or_else(|| Link { seq: 0, hash: GENESIS.to_owned() });
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
        self.appended.replace(Some(Link { seq, hash: row.hash }));
        Ok(seq)
    }

    /// Returns the last `limit` entries before number `below` (of all where none is given), oldest first; of one subject, or of all.
    pub fn noted(&self, subject: Option<&str>, below: Option<u64>, limit: u32) -> Result<Vec<Noted>, Fault> {
        let (order, limit) = (Order::NewestFirst, Some(limit));
        let mut noted = self.entries(&EntryQuery { subject, below, order, limit, ..EntryQuery::default() })?;
        noted.reverse();
        Ok(noted)
    }

    /// Returns the first `limit` wanted entries after number `after`, oldest first.
    pub fn noted_after(&self, after: u64, wanted: &Wanted, limit: u32) -> Result<Vec<Noted>, Fault> {
        self.entries(&EntryQuery {
            after,
            subject: wanted.subject.as_deref(),
            verb: wanted.verb.as_deref(),
            actor: wanted.actor.as_deref(),
            step: wanted.step.map(Step::name),
            limit: Some(limit),
            ..EntryQuery::default()
        })
    }

    fn entries(&self, query: &EntryQuery<'_>) -> Result<Vec<Noted>, Fault> {
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

fn parse(EntryRow { seq, at_ms, verb, step, subject, actor, body, hash }: EntryRow) -> Result<Noted, Fault> {
    let broken =
        |what: &str| Fault::internal(format!("journal entry {seq}: {what}")).hint("see `cofferdam audit verify`");
    let step = Step::of_name(&step).ok_or_else(|| broken("no such step"))?;
    let body = serde_json::from_str(&body).map_err(|_| broken("its body is no JSON"))?;
    Ok(Noted { seq, at_ms, verb, step, subject, actor, body, hash })
}
