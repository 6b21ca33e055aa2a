//! The journal: what was intended and what came of it, chained so that no entry can be changed, dropped or moved unseen.

use crate::{Store, Tx, inner, part};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use terms::Fault;
use utoipa::ToSchema;

/// How far what an entry tells of has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = JournalStep)]
pub enum Step {
    /// It is about to be done.
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

/// What shall be noted.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub at_ms: u64,
    /// `create`, `run`, `approve`, …
    pub verb: &'a str,
    pub step: Step,
    /// The sandbox, or whatever else it is about.
    pub subject: &'a str,
    /// Who asked: the user's name.
    pub actor: &'a str,
    pub body: Value,
}

/// What is noted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = JournalEntry)]
pub struct Noted {
    /// Its number; the next entry has the next.
    pub seq: u64,
    pub at_ms: u64,
    pub verb: String,
    pub step: Step,
    /// The sandbox, or whatever else it is about.
    pub subject: String,
    /// Who asked.
    pub actor: String,
    /// What there is to say of it; its form depends on the verb.
    #[schema(value_type = Option<Object>)]
    pub body: Value,
    /// Over all of it and the hash of the entry before.
    pub hash: String,
}

/// What a look at the whole chain found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = JournalVerified)]
pub struct Verified {
    /// How many entries are as they were written, from the first on, those that are archived included.
    pub entries: u64,
    /// The hash of the last of them.
    pub head: String,
    /// The last entry that `journal.head` remembers. It may lag behind; it never leads.
    pub anchored: u64,
    /// Of the entries, the first so many were moved to files of their own; they were as they were written then.
    #[serde(skip_serializing_if = "is_none", default)]
    pub archived: u64,
    /// So many of those are still in the state directory, as they were written.
    #[serde(skip_serializing_if = "is_none", default)]
    pub archived_here: u64,
    /// The first entry that is not as it was written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub broken: Option<Broken>,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = JournalBroken)]
pub struct Broken {
    pub seq: u64,
    pub why: String,
}

/// Which entries are meant; a field that is not given takes all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub subject: Option<String>,
    pub verb: Option<String>,
    pub actor: Option<String>,
    pub step: Option<Step>,
}

/// What the first entry follows upon.
pub(crate) const BEGINNING: &str = "cofferdam journal 1";

impl Tx<'_> {
    /// Adds an entry to the chain; its number.
    pub fn note(&self, entry: &Entry<'_>) -> Result<u64, Fault> {
        let query = "SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1";
        let last = self.db.query_row(query, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)));
        let (last, before) = last.optional().map_err(inner)?.unwrap_or((0, BEGINNING.to_owned()));
        let seq = last + 1;
        let body = entry.body.to_string();
        let row = [entry.verb, entry.step.name(), entry.subject, entry.actor, &body];
        let hash = chained(&before, seq, entry.at_ms as i64, row);
        let query = "INSERT INTO journal (seq, at_ms, verb, step, subject, actor, body, hash)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let [verb, step, subject, actor, body] = row;
        self.db
            .execute(query, params![seq, entry.at_ms as i64, verb, step, subject, actor, body, hash])
            .map_err(inner)?;
        *self.noted.borrow_mut() = Some((seq as u64, hash));
        Ok(seq as u64)
    }

    /// The last `most` entries before `below` (all where none is given), oldest first; of one subject, or of all.
    pub fn noted(&self, subject: Option<&str>, below: Option<u64>, most: u32) -> Result<Vec<Noted>, Fault> {
        let query = "SELECT seq, at_ms, verb, step, subject, actor, body, hash FROM journal
                     WHERE (?1 IS NULL OR subject = ?1) AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let below = below.and_then(|seq| i64::try_from(seq).ok()).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![subject, below, most], row).map_err(inner)?;
        let mut noted = rows.map(|row| row.map_err(inner).and_then(read)).collect::<Result<Vec<_>, _>>()?;
        noted.reverse();
        Ok(noted)
    }
}

impl Tx<'_> {
    /// The first `most` wanted entries after number `after`, oldest first.
    pub fn noted_after(&self, after: u64, wanted: &Wanted, most: u32) -> Result<Vec<Noted>, Fault> {
        let query = "SELECT seq, at_ms, verb, step, subject, actor, body, hash FROM journal
                     WHERE seq > ?1 AND (?2 IS NULL OR subject = ?2) AND (?3 IS NULL OR verb = ?3)
                     AND (?4 IS NULL OR actor = ?4) AND (?5 IS NULL OR step = ?5) ORDER BY seq LIMIT ?6";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let Wanted { subject, verb, actor, step } = wanted;
        let step = step.map(Step::name);
        let rows = statement.query_map(params![after, subject, verb, actor, step, most], row).map_err(inner)?;
        rows.map(|row| row.map_err(inner).and_then(read)).collect()
    }

    /// How many entries are no longer in the database: the number of the last that was archived.
    pub fn archived(&self) -> Result<u64, Fault> {
        let query = "SELECT coalesce(min(seq), 1) FROM journal";
        self.db.query_row(query, [], |row| row.get::<_, i64>(0)).map(|first| (first - 1).max(0) as u64).map_err(inner)
    }

    /// The number of the last entry; 0 where there is none.
    pub fn last_noted(&self) -> Result<u64, Fault> {
        let query = "SELECT coalesce(max(seq), 0) FROM journal";
        self.db.query_row(query, [], |row| row.get::<_, i64>(0)).map(|seq| seq as u64).map_err(inner)
    }
}

impl Store {
    /// Goes along the whole chain, and compares it with what is remembered outside.
    pub fn verify(&self) -> Result<Verified, Fault> {
        // Before the entries are read: what is added meanwhile is then behind what is remembered, never before it.
        let anchors = self.head.entries();
        let mut verified = self.read(|tx| chain(tx.db, Some(&anchors)))?;
        match self.verify_parts()? {
            Ok(here) => verified.archived_here = here,
            Err(broken) => verified.broken = verified.broken.or(Some(broken)),
        }
        Ok(verified)
    }
}

pub(crate) const QUERY: &str = "SELECT seq, at_ms, verb, step, subject, actor, body, hash FROM journal";

/// Goes along the chain; with what is remembered outside of it, where that is to be compared.
pub fn chain(db: &Connection, anchors: Option<&BTreeMap<u64, String>>) -> Result<Verified, Fault> {
    let anchored = anchors.and_then(|anchors| anchors.keys().next_back().copied()).unwrap_or(0);
    let (mut entries, mut head) = match part::beginning(db)? {
        Ok(begin) => begin,
        Err(broken) => {
            let (head, broken) = (BEGINNING.to_owned(), Some(broken));
            return Ok(Verified { entries: 0, head, anchored, archived: 0, archived_here: 0, broken });
        }
    };
    let archived = entries;
    let mut statement = db.prepare(&format!("{QUERY} ORDER BY seq")).map_err(inner)?;
    let mut rows = statement.query([]).map_err(inner)?;
    let (none, mut broken) = (BTreeMap::new(), None);
    while let Some(next) = rows.next().map_err(inner)? {
        match follow(&head, entries + 1, next, anchors.unwrap_or(&none)) {
            Ok(hash) => (entries, head) = (entries + 1, hash),
            Err(why) => {
                broken = Some(Broken { seq: entries + 1, why });
                break;
            }
        }
    }
    let broken = broken.or_else(|| at_end(entries, anchors?));
    Ok(Verified { entries, head, anchored, archived, archived_here: 0, broken })
}

/// The number and the hash of the entry that the first one follows upon.
pub(crate) fn start(db: &Connection) -> Result<(u64, String), Fault> {
    part::beginning(db)?.map_err(|broken| Fault::internal(format!("journal entry {}: {}", broken.seq, broken.why)))
}

/// The hash of the entry that is due, if the row is that entry as it was written.
pub(crate) fn follow(
    before: &str,
    due: u64,
    next: &rusqlite::Row<'_>,
    anchors: &BTreeMap<u64, String>,
) -> Result<String, String> {
    let (seq, at_ms, texts, hash) = row(next).map_err(|e| format!("it cannot be read: {e}"))?;
    if seq != due as i64 {
        return Err("it is missing".into());
    }
    let [verb, step, subject, actor, body] = &texts;
    if chained(before, seq, at_ms, [verb, step, subject, actor, body]) != hash {
        return Err("its hash does not cover what it says".into());
    }
    match anchors.get(&due) {
        Some(known) if *known != hash => Err("journal.head remembers another entry under this number".into()),
        _ => Ok(hash),
    }
}

/// What is wrong when the chain itself is sound: it may have lost its end.
fn at_end(entries: u64, anchors: &BTreeMap<u64, String>) -> Option<Broken> {
    let why = match anchors.keys().next_back() {
        None => "journal.head is gone: nobody can say whether entries are missing at the end".to_owned(),
        Some(last) if *last > entries => format!("it is missing, and so is what followed up to entry {last}"),
        Some(_) => return None,
    };
    Some(Broken { seq: entries + 1, why })
}

pub(crate) type Raw = (i64, i64, [String; 5], String);

pub(crate) fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Raw> {
    let texts = [row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?];
    Ok((row.get(0)?, row.get(1)?, texts, row.get(7)?))
}

fn read((seq, at_ms, [verb, step, subject, actor, body], hash): Raw) -> Result<Noted, Fault> {
    let broken =
        |what: &str| Fault::internal(format!("journal entry {seq}: {what}")).hint("see `cofferdam audit verify`");
    let step = Step::of_name(&step).ok_or_else(|| broken("no such step"))?;
    let body = serde_json::from_str(&body).map_err(|_| broken("its body is no JSON"))?;
    Ok(Noted { seq: seq as u64, at_ms: at_ms as u64, verb, step, subject, actor, body, hash })
}

/// Each text with its length, so that nothing can move from one to the next.
pub(crate) fn chained(before: &str, seq: i64, at_ms: i64, texts: [&str; 5]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(before.as_bytes());
    hasher.update(seq.to_le_bytes());
    hasher.update(at_ms.to_le_bytes());
    for text in texts {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
