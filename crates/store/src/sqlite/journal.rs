//! Rows of the table `journal`.

use super::fault;
use crate::backend::{ChainLink, EntryQuery, EntryRow, EntryVisitor, Order};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Result, params, params_from_iter};
use std::ops::ControlFlow;
use terms::Fault;

pub fn last(db: &Connection) -> Result<Option<ChainLink>> {
    let sql = "SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1";
    db.query_row(sql, [], |row| Ok(ChainLink { seq: row.get::<_, i64>(0)? as u64, hash: row.get(1)? })).optional()
}

pub fn append(db: &Connection, row: &EntryRow) -> std::result::Result<(), Fault> {
    let EntryRow { seq, at_ms, verb, step, subject, actor, body, hash } = row;
    let sql = "INSERT INTO journal (seq, at_ms, verb, step, subject, actor, body, hash)
               SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE ?1 = (SELECT coalesce(max(seq) + 1, ?1) FROM journal)";
    let params = params![*seq as i64, *at_ms as i64, verb, step, subject, actor, body, hash];
    match db.execute(sql, params).map_err(fault::inner)? {
        0 => Err(Fault::internal(format!("entry {seq} does not follow upon the journal's last one"))),
        _ => Ok(()),
    }
}

pub fn select(db: &Connection, query: &EntryQuery<'_>, visit: &mut EntryVisitor<'_>) -> std::result::Result<(), Fault> {
    let (sql, values) = statement(query);
    let mut statement = db.prepare(&sql).map_err(fault::inner)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(fault::inner)?;
    while let Some(row) = rows.next().map_err(fault::inner)? {
        if visit(entry(row).map_err(fault::inner))? == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

/// Builds the statement of a query. Conditions stand in it only where they are asked for: an entry with a number below 1, which the
/// store never writes, is then found by who verifies all, and the index on subjects serves who asks for one.
fn statement(query: &EntryQuery<'_>) -> (String, Vec<Value>) {
    let EntryQuery { after, below, subject, verb, actor, step, order, limit } = *query;
    let number = |seq: u64| Value::from(i64::try_from(seq).unwrap_or(i64::MAX));
    let text = |text: &str| Value::from(text.to_owned());
    let conditions = [
        (after > 0).then(|| ("seq > ?", number(after))),
        below.map(|below| ("seq < ?", number(below))),
        subject.map(|subject| ("subject = ?", text(subject))),
        verb.map(|verb| ("verb = ?", text(verb))),
        actor.map(|actor| ("actor = ?", text(actor))),
        step.map(|step| ("step = ?", text(step))),
    ];
    let (conditions, mut values): (Vec<_>, Vec<_>) = conditions.into_iter().flatten().unzip();
    let mut sql = "SELECT seq, at_ms, verb, step, subject, actor, body, hash FROM journal".to_owned();
    if !conditions.is_empty() {
        sql = format!("{sql} WHERE {}", conditions.join(" AND "));
    }
    sql.push_str(match order {
        Order::OldestFirst => " ORDER BY seq",
        Order::NewestFirst => " ORDER BY seq DESC",
    });
    if let Some(limit) = limit {
        sql.push_str(" LIMIT ?");
        values.push(Value::from(limit));
    }
    (sql, values)
}

fn entry(row: &rusqlite::Row<'_>) -> Result<EntryRow> {
    Ok(EntryRow {
        seq: row.get::<_, i64>(0)? as u64,
        at_ms: row.get::<_, i64>(1)? as u64,
        verb: row.get(2)?,
        step: row.get(3)?,
        subject: row.get(4)?,
        actor: row.get(5)?,
        body: row.get(6)?,
        hash: row.get(7)?,
    })
}

pub fn range(db: &Connection) -> Result<Option<(u64, u64)>> {
    // Two lookups at the ends of the table; `min` and `max` in one SELECT would scan it.
    let sql = "SELECT (SELECT min(seq) FROM journal), (SELECT max(seq) FROM journal)";
    let (first, last): (Option<i64>, Option<i64>) = db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(first.zip(last).map(|(first, last)| (first.max(0) as u64, last.max(0) as u64)))
}

pub fn delete(db: &Connection, last: u64) -> Result<()> {
    db.execute("DELETE FROM journal WHERE seq <= ?1", [last as i64]).map(drop)
}
