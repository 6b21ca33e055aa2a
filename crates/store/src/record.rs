//! Documents with ids and versions.

use crate::{Tx, inner};
use rusqlite::{OptionalExtension, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use terms::{ErrorKind, Fault};

/// A kind of document that the store can keep.
pub trait Record: Serialize + DeserializeOwned {
    /// The name of the kind; it stands in the file.
    const KIND: &'static str;

    /// A name that no other record of the kind may have at the same time.
    fn name(&self) -> Option<&str> {
        None
    }

    /// What it belongs to, to be listed by.
    fn scope(&self) -> Option<&str> {
        None
    }
}

/// A record as it is kept.
#[derive(Clone, Debug)]
pub struct Kept<R> {
    pub id: String,
    pub version: u64,
    pub record: R,
}

/// A record by one of its times, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    pub id: String,
    pub scope: Option<String>,
    pub at_ms: u64,
}

impl Tx<'_> {
    pub fn get<R: Record>(&self, id: &str) -> Result<Option<Kept<R>>, Fault> {
        self.one("SELECT id, version, body FROM record WHERE kind = ?1 AND id = ?2", R::KIND, id)
    }

    pub fn get_named<R: Record>(&self, name: &str) -> Result<Option<Kept<R>>, Fault> {
        self.one("SELECT id, version, body FROM record WHERE kind = ?1 AND name = ?2", R::KIND, name)
    }

    fn one<R: Record>(&self, query: &str, kind: &str, key: &str) -> Result<Option<Kept<R>>, Fault> {
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let row = statement.query_row(params![kind, key], raw).optional().map_err(inner)?;
        row.map(kept).transpose()
    }

    /// All of a kind, in the order of their ids.
    pub fn list<R: Record>(&self) -> Result<Vec<Kept<R>>, Fault> {
        let query = "SELECT id, version, body FROM record WHERE kind = ?1 ORDER BY id";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![R::KIND], raw).map_err(inner)?;
        rows.map(|row| kept(row.map_err(inner)?)).collect()
    }

    /// Those of a kind that belong to `scope`.
    pub fn list_in<R: Record>(&self, scope: &str) -> Result<Vec<Kept<R>>, Fault> {
        let query = "SELECT id, version, body FROM record WHERE kind = ?1 AND scope = ?2 ORDER BY id";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![R::KIND, scope], raw).map_err(inner)?;
        rows.map(|row| kept(row.map_err(inner)?)).collect()
    }

    /// Those of a kind that belong to something below `scope`, as paths are below one another.
    pub fn list_below<R: Record>(&self, scope: &str) -> Result<Vec<Kept<R>>, Fault> {
        // '0' is what follows upon '/'.
        let (from, to) = (format!("{}/", scope.trim_end_matches('/')), format!("{}0", scope.trim_end_matches('/')));
        let query = "SELECT id, version, body FROM record WHERE kind = ?1 AND scope > ?2 AND scope < ?3 ORDER BY id";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![R::KIND, from, to], raw).map_err(inner)?;
        rows.map(|row| kept(row.map_err(inner)?)).collect()
    }

    /// Those of a kind whose ids begin so, at most `most`.
    pub fn list_from<R: Record>(&self, beginning: &str, most: u32) -> Result<Vec<Kept<R>>, Fault> {
        let query = "SELECT id, version, body FROM record
                     WHERE kind = ?1 AND id >= ?2 AND substr(id, 1, length(?2)) = ?2 ORDER BY id LIMIT ?3";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![R::KIND, beginning, most], raw).map_err(inner)?;
        rows.map(|row| kept(row.map_err(inner)?)).collect()
    }

    /// Those of a kind that have no `ended_ms`: what is still going on, as far as is known.
    pub fn list_open<R: Record>(&self) -> Result<Vec<Kept<R>>, Fault> {
        let query = "SELECT id, version, body FROM record
                     WHERE kind = ?1 AND json_extract(body, '$.ended_ms') IS NULL ORDER BY id";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![R::KIND], raw).map_err(inner)?;
        rows.map(|row| kept(row.map_err(inner)?)).collect()
    }

    /// Those of a kind that have a time in `field`, the oldest first.
    pub fn timed<R: Record>(&self, field: &str) -> Result<Vec<Timed>, Fault> {
        let query = "SELECT id, scope, json_extract(body, ?2) AS at FROM record
                     WHERE kind = ?1 AND at IS NOT NULL ORDER BY at, id";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let row = |row: &rusqlite::Row<'_>| {
            Ok(Timed { id: row.get(0)?, scope: row.get(1)?, at_ms: row.get::<_, i64>(2)? as u64 })
        };
        let rows = statement.query_map(params![R::KIND, format!("$.{field}")], row).map_err(inner)?;
        rows.map(|row| row.map_err(inner)).collect()
    }

    /// How many of a kind there are.
    pub fn count<R: Record>(&self) -> Result<u64, Fault> {
        let query = "SELECT count(*) FROM record WHERE kind = ?1";
        let count: i64 = self.db.query_row(query, params![R::KIND], |row| row.get(0)).map_err(inner)?;
        Ok(count as u64)
    }

    /// Every text in the list `field` at the top of any record, of whatever kind, with how many records have it there: what
    /// records refer to.
    pub fn referred(&self, field: &str) -> Result<BTreeMap<String, u64>, Fault> {
        self.referred_but(field, &[])
    }

    /// The same without looking at records of kinds that are known to have no such field. Those may be many.
    pub fn referred_but(&self, field: &str, without: &[&str]) -> Result<BTreeMap<String, u64>, Fault> {
        // Most records have no such field, which is cheaper to see than to read them.
        let query = "SELECT item.value, count(*) FROM record, json_each(record.body, ?1) AS item
                     WHERE record.kind = ?3 AND instr(record.body, ?2) AND item.type = 'text' GROUP BY item.value";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let (path, word) = (format!("$.{field}"), format!("\"{field}\""));
        let mut found = BTreeMap::new();
        for kind in self.kinds()?.iter().filter(|kind| !without.contains(&kind.as_str())) {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64));
            let rows = statement.query_map(params![path, word, kind], row).map_err(inner)?;
            for row in rows {
                let (text, count) = row.map_err(inner)?;
                *found.entry(text).or_default() += count;
            }
        }
        Ok(found)
    }

    /// The kinds that there are, found from one to the next without a look at the records of each.
    fn kinds(&self) -> Result<Vec<String>, Fault> {
        let mut statement = self.db.prepare("SELECT min(kind) FROM record WHERE kind > ?1").map_err(inner)?;
        let mut kinds: Vec<String> = Vec::new();
        loop {
            let last = kinds.last().map_or("", String::as_str);
            match statement.query_row(params![last], |row| row.get::<_, Option<String>>(0)).map_err(inner)? {
                Some(next) => kinds.push(next),
                None => return Ok(kinds),
            }
        }
    }

    /// Ids of at most `most` records that belong to `scope`, by kind.
    pub fn others_in(&self, scope: &str, most: u32) -> Result<BTreeMap<String, Vec<String>>, Fault> {
        let query = "SELECT kind, id FROM record WHERE scope = ?1 ORDER BY kind, id LIMIT ?2";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![scope, most], |row| Ok((row.get(0)?, row.get(1)?))).map_err(inner)?;
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in rows {
            let (kind, id): (String, String) = row.map_err(inner)?;
            found.entry(kind).or_default().push(id);
        }
        Ok(found)
    }

    /// Ids of a kind that begin so, at most `most`.
    pub fn ids_from<R: Record>(&self, beginning: &str, most: u32) -> Result<Vec<String>, Fault> {
        // No id has such a character: what is below begins so.
        let query =
            "SELECT id FROM record WHERE kind = ?1 AND id >= ?2 AND id < ?2 || char(1114111) ORDER BY id LIMIT ?3";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![R::KIND, beginning, most], |row| row.get(0)).map_err(inner)?;
        rows.map(|row| row.map_err(inner)).collect()
    }

    /// A new record. An id or a name that is taken is a conflict.
    pub fn add<R: Record>(&self, id: &str, record: R) -> Result<Kept<R>, Fault> {
        let body = text_of(&record)?;
        let query = "INSERT INTO record (kind, id, version, name, scope, body) VALUES (?1, ?2, 1, ?3, ?4, ?5)";
        let done = self.db.execute(query, params![R::KIND, id, record.name(), record.scope(), body]);
        taken::<R>(done, &record)?;
        Ok(Kept { id: id.to_owned(), version: 1, record })
    }

    /// Writes a record back, if nobody else has since it was read.
    pub fn change<R: Record>(&self, kept: Kept<R>) -> Result<Kept<R>, Fault> {
        let body = text_of(&kept.record)?;
        let Kept { id, version, record } = kept;
        // What it is found by is left alone where it is the same, as it is nearly always: less has to be written.
        let query = "UPDATE record SET version = version + 1, body = ?6
                     WHERE kind = ?1 AND id = ?2 AND version = ?3 AND name IS ?4 AND scope IS ?5";
        let params = params![R::KIND, id, version as i64, record.name(), record.scope(), body];
        if self.db.execute(query, params).map_err(inner)? > 0 {
            return Ok(Kept { id, version: version + 1, record });
        }
        let query = "UPDATE record SET version = version + 1, name = ?4, scope = ?5, body = ?6
                     WHERE kind = ?1 AND id = ?2 AND version = ?3";
        let done = self.db.execute(query, params![R::KIND, id, version as i64, record.name(), record.scope(), body]);
        if taken::<R>(done, &record)? == 0 {
            let message = format!("{} {id} was changed by somebody else since version {version}", R::KIND);
            return Err(Fault::new(ErrorKind::Conflict, message).hint("look at it again, then repeat"));
        }
        Ok(Kept { id, version: version + 1, record })
    }

    /// Whether there was one to remove.
    pub fn remove<R: Record>(&self, id: &str) -> Result<bool, Fault> {
        let query = "DELETE FROM record WHERE kind = ?1 AND id = ?2";
        Ok(self.db.execute(query, params![R::KIND, id]).map_err(inner)? > 0)
    }
}

type Raw = (String, i64, String);

fn raw(row: &rusqlite::Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

fn kept<R: Record>((id, version, body): Raw) -> Result<Kept<R>, Fault> {
    let record = serde_json::from_str(&body).map_err(|e| {
        let message = format!("{} {id} in the store cannot be read: {e}", R::KIND);
        Fault::internal(message).hint("the store may be from another version; restore it from a backup")
    })?;
    Ok(Kept { id, version: version as u64, record })
}

fn text_of(record: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(record).map_err(|e| Fault::internal(e.to_string()))
}

fn taken<R: Record>(done: rusqlite::Result<usize>, record: &R) -> Result<usize, Fault> {
    match done {
        Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == rusqlite::ErrorCode::ConstraintViolation => {
            let message = format!("there is a {} named {:?} already", R::KIND, record.name().unwrap_or_default());
            Err(Fault::new(ErrorKind::Conflict, message).hint("choose another name"))
        }
        other => other.map_err(inner),
    }
}
