//! Rows of the table `record`.

use super::fault;
use crate::backend::{Filter, RecordFields, RecordQuery, RecordRow, Timed, WriteOutcome};
use rusqlite::types::Value;
use rusqlite::{Connection, Result, params, params_from_iter};
use std::collections::BTreeMap;
use terms::Fault;

pub fn select(
    db: &Connection,
    query: &RecordQuery<'_>,
    visit: &mut dyn FnMut(RecordRow) -> std::result::Result<(), Fault>,
) -> std::result::Result<(), Fault> {
    let (condition, texts) = condition(query.filter);
    let limit = if query.limit.is_some() { " LIMIT ?" } else { "" };
    let sql = format!("SELECT id, version, body FROM record WHERE kind = ?{condition} ORDER BY id{limit}");
    let values = std::iter::once(Value::from(query.kind.to_owned()))
        .chain(texts.into_iter().map(Value::from))
        .chain(query.limit.map(Value::from));
    let mut statement = db.prepare(&sql).map_err(fault::inner)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(fault::inner)?;
    while let Some(row) = rows.next().map_err(fault::inner)? {
        visit(record(row).map_err(fault::inner)?)?;
    }
    Ok(())
}

/// Returns the SQL of a filter, with the texts that it compares.
fn condition(filter: Filter<'_>) -> (&'static str, Vec<String>) {
    match filter {
        Filter::All => ("", vec![]),
        Filter::Id(id) => (" AND id = ?", vec![id.to_owned()]),
        Filter::Name(name) => (" AND name = ?", vec![name.to_owned()]),
        Filter::IdPrefix(prefix) => match after_prefix(prefix) {
            Some(end) => (" AND id >= ? AND id < ?", vec![prefix.to_owned(), end]),
            None => (" AND id >= ?", vec![prefix.to_owned()]),
        },
        Filter::Scope(scope) => (" AND scope = ?", vec![scope.to_owned()]),
        Filter::ScopeBelow(scope) => {
            let scope = scope.trim_end_matches('/');
            // '0' is the character after '/'.
            (" AND scope > ? AND scope < ?", vec![format!("{scope}/"), format!("{scope}0")])
        }
        // The words of the partial index `record_open`.
        Filter::Open => (" AND json_extract(body, '$.ended_ms') IS NULL", vec![]),
    }
}

/// Returns the first text after all that begin with `prefix`; none where no text is. UTF-8 sorts as its characters do.
fn after_prefix(prefix: &str) -> Option<String> {
    let kept = prefix.trim_end_matches(char::MAX);
    let (at, last) = kept.char_indices().next_back()?;
    // Surrogates are no characters.
    let next = if last == '\u{d7ff}' { '\u{e000}' } else { char::from_u32(u32::from(last) + 1)? };
    Some(format!("{}{next}", &kept[..at]))
}

fn record(row: &rusqlite::Row<'_>) -> Result<RecordRow> {
    Ok(RecordRow { id: row.get(0)?, version: row.get::<_, i64>(1)? as u64, body: row.get(2)? })
}

pub fn ids(db: &Connection, kind: &str, prefix: &str, limit: u32) -> Result<Vec<String>> {
    let (condition, texts) = condition(Filter::IdPrefix(prefix));
    let mut statement = db.prepare(&format!("SELECT id FROM record WHERE kind = ?{condition} ORDER BY id LIMIT ?"))?;
    let values = std::iter::once(Value::from(kind.to_owned()))
        .chain(texts.into_iter().map(Value::from))
        .chain([Value::from(limit)]);
    statement.query_map(params_from_iter(values), |row| row.get(0))?.collect()
}

pub fn ids_in_scope(db: &Connection, scope: &str, limit: u32) -> Result<Vec<(String, String)>> {
    let mut statement = db.prepare("SELECT kind, id FROM record WHERE scope = ?1 ORDER BY kind, id LIMIT ?2")?;
    statement.query_map(params![scope, limit], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

pub fn count(db: &Connection, kind: &str) -> Result<u64> {
    let count: i64 = db.query_row("SELECT count(*) FROM record WHERE kind = ?1", [kind], |row| row.get(0))?;
    Ok(count as u64)
}

pub fn times(db: &Connection, kind: &str, field: &str) -> Result<Vec<Timed>> {
    let mut statement = db.prepare(
        "SELECT id, scope, json_extract(body, ?2) AS at FROM record WHERE kind = ?1 AND at IS NOT NULL ORDER BY at, id",
    )?;
    let timed = |row: &rusqlite::Row<'_>| {
        Ok(Timed { id: row.get(0)?, scope: row.get(1)?, at_ms: row.get::<_, i64>(2)? as u64 })
    };
    statement.query_map(params![kind, format!("$.{field}")], timed)?.collect()
}

pub fn references(db: &Connection, field: &str, except: &[&str]) -> Result<BTreeMap<String, u64>> {
    // Most records do not have the field, which `instr` finds faster than the JSON functions do.
    let mut statement = db.prepare(
        "SELECT item.value, count(*) FROM record, json_each(record.body, ?1) AS item
         WHERE record.kind = ?3 AND instr(record.body, ?2) AND item.type = 'text' GROUP BY item.value",
    )?;
    let (path, word) = (format!("$.{field}"), format!("\"{field}\""));
    let mut found = BTreeMap::new();
    for kind in kinds(db)?.iter().filter(|kind| !except.contains(&kind.as_str())) {
        let counted = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64));
        for row in statement.query_map(params![path, word, kind], counted)? {
            let (text, count) = row?;
            *found.entry(text).or_default() += count;
        }
    }
    Ok(found)
}

/// Returns the kinds in the table, each by one step in the index from the kind before.
fn kinds(db: &Connection) -> Result<Vec<String>> {
    let mut statement = db.prepare("SELECT min(kind) FROM record WHERE kind > ?1")?;
    let mut kinds: Vec<String> = Vec::new();
    loop {
        let last = kinds.last().map_or("", String::as_str);
        match statement.query_row([last], |row| row.get::<_, Option<String>>(0))? {
            Some(next) => kinds.push(next),
            None => return Ok(kinds),
        }
    }
}

pub fn insert(db: &Connection, row: &RecordFields<'_>) -> Result<WriteOutcome> {
    let RecordFields { kind, id, name, scope, body } = row;
    let sql = "INSERT INTO record (kind, id, version, name, scope, body) VALUES (?1, ?2, 1, ?3, ?4, ?5)";
    unless_taken(db.execute(sql, params![kind, id, name, scope, body]))
}

pub fn update(db: &Connection, row: &RecordFields<'_>, expected: u64) -> Result<WriteOutcome> {
    let RecordFields { kind, id, name, scope, body } = row;
    let params = params![kind, id, expected as i64, name, scope, body];
    // Indexed columns are nearly always unchanged; without them in the SET clause fewer pages are written.
    let sql = "UPDATE record SET version = version + 1, body = ?6
               WHERE kind = ?1 AND id = ?2 AND version = ?3 AND name IS ?4 AND scope IS ?5";
    if db.execute(sql, params)? > 0 {
        return Ok(WriteOutcome::Done);
    }
    let sql = "UPDATE record SET version = version + 1, name = ?4, scope = ?5, body = ?6
               WHERE kind = ?1 AND id = ?2 AND version = ?3";
    unless_taken(db.execute(sql, params))
}

fn unless_taken(done: Result<usize>) -> Result<WriteOutcome> {
    match done {
        Ok(0) => Ok(WriteOutcome::Stale),
        Ok(_) => Ok(WriteOutcome::Done),
        Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == rusqlite::ErrorCode::ConstraintViolation => {
            Ok(WriteOutcome::Taken)
        }
        Err(e) => Err(e),
    }
}

pub fn delete(db: &Connection, kind: &str, id: &str) -> Result<bool> {
    Ok(db.execute("DELETE FROM record WHERE kind = ?1 AND id = ?2", [kind, id])? > 0)
}
