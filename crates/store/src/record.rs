//! Records: JSON documents with an id, a version that grows with each change, perhaps a unique name and a scope to be listed by.

use crate::backend::{Filter, RecordFields, RecordQuery, RecordRow, Timed, WriteOutcome};
use crate::kind::Kind;
use crate::transaction::{Tx, check_texts};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use terms::{ErrorKind, Fault};

/// A type of document that the store can keep.
pub trait Record: Serialize + DeserializeOwned {
    /// Kind, from the program's table of kinds.
    const KIND: &'static Kind;

    /// Returns a name that no other record of the kind may have at the same time.
    fn name(&self) -> Option<&str> {
        None
    }

    /// Returns the scope that the record belongs to, to be listed by.
    fn scope(&self) -> Option<&str> {
        None
    }
}

/// A record with its id and version.
#[derive(Clone, Debug)]
pub struct Kept<R> {
    pub id: String,
    pub version: u64,
    pub record: R,
}

impl Tx<'_> {
    /// Returns the record with an id.
    pub fn get<R: Record>(&self, id: &str) -> Result<Option<Kept<R>>, Fault> {
        Ok(self.select(Filter::Id(id), Some(1))?.pop())
    }

    /// Returns the record with a name.
    pub fn get_named<R: Record>(&self, name: &str) -> Result<Option<Kept<R>>, Fault> {
        Ok(self.select(Filter::Name(name), Some(1))?.pop())
    }

    /// Returns all records of a kind, in the order of their ids.
    pub fn list<R: Record>(&self) -> Result<Vec<Kept<R>>, Fault> {
        self.select(Filter::All, None)
    }

    /// Returns the records of a kind that belong to `scope`.
    pub fn list_in<R: Record>(&self, scope: &str) -> Result<Vec<Kept<R>>, Fault> {
        self.select(Filter::Scope(scope), None)
    }

    /// Returns the records of a kind whose scope is a path below `scope`.
    pub fn list_below<R: Record>(&self, scope: &str) -> Result<Vec<Kept<R>>, Fault> {
        self.select(Filter::ScopeBelow(scope), None)
    }

    /// Returns the records of a kind whose ids begin with `prefix`, at most `limit`.
    pub fn list_from<R: Record>(&self, prefix: &str, limit: u32) -> Result<Vec<Kept<R>>, Fault> {
        self.select(Filter::IdPrefix(prefix), Some(limit))
    }

    /// Returns the records of a kind without `ended_ms`: those that are still going on, as far as is known.
    pub fn list_open<R: Record>(&self) -> Result<Vec<Kept<R>>, Fault> {
        self.select(Filter::Open, None)
    }

    fn select<R: Record>(&self, filter: Filter<'_>, limit: Option<u32>) -> Result<Vec<Kept<R>>, Fault> {
        let mut found = Vec::new();
        self.rows.select(&RecordQuery { kind: R::KIND.name, filter, limit }, &mut |row| {
            found.push(parse(row)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the records of a kind that have a time in `field`, the oldest first.
    pub fn timed<R: Record>(&self, field: &str) -> Result<Vec<Timed>, Fault> {
        self.rows.times(R::KIND.name, field)
    }

    /// Returns the number of records of a kind.
    pub fn count<R: Record>(&self) -> Result<u64, Fault> {
        self.rows.count(R::KIND.name)
    }

    /// Counts the texts in the top-level list `field` of all records, of whatever kind: what records refer to.
    pub fn referred(&self, field: &str) -> Result<BTreeMap<String, u64>, Fault> {
        self.referred_but(field, &[])
    }

    /// Counts references as `referred` does, and skips kinds that are known not to have the field. They may be many.
    pub fn referred_but(&self, field: &str, except: &[&str]) -> Result<BTreeMap<String, u64>, Fault> {
        self.rows.references(field, except)
    }

    /// Returns the ids of at most `limit` records that belong to `scope`, by kind.
    pub fn others_in(&self, scope: &str, limit: u32) -> Result<BTreeMap<String, Vec<String>>, Fault> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (kind, id) in self.rows.ids_in_scope(scope, limit)? {
            found.entry(kind).or_default().push(id);
        }
        Ok(found)
    }

    /// Returns the ids of a kind that begin with `prefix`, at most `limit`.
    pub fn ids_from<R: Record>(&self, prefix: &str, limit: u32) -> Result<Vec<String>, Fault> {
        self.rows.ids(R::KIND.name, prefix, limit)
    }

    /// Adds a record. An id or a name that is taken is a conflict.
    pub fn add<R: Record>(&self, id: &str, record: R) -> Result<Kept<R>, Fault> {
        R::KIND.check_id(id)?;
        let body = body_of(&record)?;
        match self.rows.insert(&fields(id, &record, &body)?)? {
            WriteOutcome::Done => Ok(Kept { id: id.to_owned(), version: 1, record }),
            WriteOutcome::Taken | WriteOutcome::Stale => Err(taken(&record)),
        }
    }

    /// Writes a record back, if it has not changed since it was read.
    pub fn change<R: Record>(&self, kept: Kept<R>) -> Result<Kept<R>, Fault> {
        let Kept { id, version, record } = kept;
        let body = body_of(&record)?;
        match self.rows.update(&fields(&id, &record, &body)?, version)? {
            WriteOutcome::Done => Ok(Kept { id, version: version + 1, record }),
            WriteOutcome::Taken => Err(taken(&record)),
            WriteOutcome::Stale => {
                let message = format!("{} {id} was changed by another request since version {version}", R::KIND.name);
                Err(Fault::new(ErrorKind::Conflict, message).hint("read it again, then repeat"))
            }
        }
    }

    /// Removes a record; tells whether there was one.
    pub fn remove<R: Record>(&self, id: &str) -> Result<bool, Fault> {
        self.rows.delete(R::KIND.name, id)
    }
}

fn parse<R: Record>(RecordRow { id, version, body }: RecordRow) -> Result<Kept<R>, Fault> {
    let record = serde_json::from_str(&body).map_err(|e| {
        let message = format!("{} {id} in the store cannot be read: {e}", R::KIND.name);
        Fault::internal(message).hint("the store may be from another version; restore it from a backup")
    })?;
    Ok(Kept { id, version, record })
}

fn body_of(record: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(record).map_err(|e| Fault::internal(e.to_string()))
}

fn fields<'a, R: Record>(id: &'a str, record: &'a R, body: &'a str) -> Result<RecordFields<'a>, Fault> {
    let fields = RecordFields { kind: R::KIND.name, id, name: record.name(), scope: record.scope(), body };
    check_texts([Some(id), fields.name, fields.scope].into_iter().flatten())?;
    Ok(fields)
}

fn taken<R: Record>(record: &R) -> Fault {
    let message = format!("a {} named {:?} exists already", R::KIND.name, record.name().unwrap_or_default());
    Fault::new(ErrorKind::Conflict, message).hint("choose another name")
}
