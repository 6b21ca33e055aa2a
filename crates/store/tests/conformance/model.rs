//! A back end in memory: the contract in its plainest form, as a model for the others. A writer works on a copy of all rows, which takes the
//! place of the committed ones as a whole.

use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use store::backend::{
    Access, Backend, ChainLink, Durability, EntryQuery, EntryRow, EntryVisitor, Filter, KeyRow, Order, PendingSync,
    RecordFields, RecordQuery, RecordRow, Timed, Transaction, WriteOutcome,
};
use terms::{ErrorKind, Fault, Retry};

#[derive(Clone, Default)]
struct Rows {
    /// By kind and id.
    records: BTreeMap<(String, String), Row>,
    keys: BTreeMap<String, KeyRow>,
    journal: BTreeMap<u64, EntryRow>,
}

#[derive(Clone)]
struct Row {
    version: u64,
    name: Option<String>,
    scope: Option<String>,
    body: String,
}

/// Committed rows, and whether a writer is at work.
#[derive(Default)]
pub struct Database {
    committed: Mutex<Arc<Rows>>,
    writing: Mutex<bool>,
    written: Condvar,
}

pub struct Memory {
    database: Arc<Database>,
    busy_timeout: Duration,
    in_transaction: Cell<bool>,
    pending: Cell<bool>,
}

impl Memory {
    pub fn open(database: &Arc<Database>, busy_timeout: Duration) -> Memory {
        let (in_transaction, pending) = (Cell::new(false), Cell::new(false));
        Memory { database: database.clone(), busy_timeout, in_transaction, pending }
    }

    fn lock_writer(&self) -> Result<(), Fault> {
        let writing = self.database.writing.lock().unwrap();
        let waited = self.database.written.wait_timeout_while(writing, self.busy_timeout, |writing| *writing);
        let (mut writing, timeout) = waited.unwrap();
        if timeout.timed_out() {
            return Err(Fault::new(ErrorKind::Unavailable, "another handle writes").retry(Retry::Later));
        }
        *writing = true;
        Ok(())
    }
}

impl Backend for Memory {
    fn begin(&self, access: Access) -> Result<Box<dyn Transaction + '_>, Fault> {
        if self.in_transaction.get() {
            return Err(Fault::internal("a transaction is open on this handle already"));
        }
        if access != Access::Read {
            self.lock_writer()?;
        }
        self.in_transaction.set(true);
        let rows = RefCell::new(self.database.committed.lock().unwrap().clone());
        Ok(Box::new(MemoryTransaction { memory: self, access, rows }))
    }

    fn is_current(&self) -> bool {
        true
    }

    fn is_usable(&self) -> bool {
        true
    }

    fn is_in_doubt(&self) -> bool {
        false
    }

    fn is_sound(&self) -> bool {
        true
    }

    fn pending(&self) -> Option<Box<dyn PendingSync>> {
        self.pending.replace(false).then(|| Box::new(Nothing) as Box<dyn PendingSync>)
    }

    fn check(&self) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }

    /// Writes the rows to a new SQLite store through the same interface, as any back end can.
    fn copy_to(&self, file: &Path) -> Result<(), Fault> {
        let rows = self.database.committed.lock().unwrap().clone();
        let dir = file.with_extension("dir");
        std::fs::create_dir_all(&dir).unwrap();
        let copy = store::Sqlite::open(&dir, self.busy_timeout)?;
        let tx = copy.begin(Access::Write(Durability::Synced))?;
        for ((kind, id), Row { version, name, scope, body }) in &rows.records {
            let (name, scope) = (name.as_deref(), scope.as_deref());
            let fields = RecordFields { kind, id, name, scope, body };
            tx.insert(&fields)?;
            (1..*version).try_for_each(|version| tx.update(&fields, version).map(drop))?;
        }
        rows.keys.values().try_for_each(|key| tx.put_key(key))?;
        rows.journal.values().try_for_each(|entry| tx.append(entry))?;
        tx.commit()?;
        copy.copy_to(file)?;
        std::fs::remove_dir_all(&dir).unwrap();
        Ok(())
    }
}

#[derive(Debug)]
struct Nothing;

impl PendingSync for Nothing {
    fn sync(&self) -> Result<(), Fault> {
        Ok(())
    }
}

struct MemoryTransaction<'a> {
    memory: &'a Memory,
    access: Access,
    rows: RefCell<Arc<Rows>>,
}

impl MemoryTransaction<'_> {
    fn change<T>(&self, work: impl FnOnce(&mut Rows) -> T) -> Result<T, Fault> {
        if self.access == Access::Read {
            return Err(Fault::internal("a read transaction cannot write"));
        }
        Ok(work(Arc::make_mut(&mut self.rows.borrow_mut())))
    }

    /// Records of a kind, with the ids.
    fn of_kind<T>(&self, kind: &str, mut each: impl FnMut(&str, &Row) -> Option<T>) -> Vec<T> {
        let rows = self.rows.borrow();
        let of_kind = rows.records.iter().filter(|((of, _), _)| of == kind);
        of_kind.filter_map(|((_, id), row)| each(id, row)).collect()
    }
}

impl Drop for MemoryTransaction<'_> {
    fn drop(&mut self) {
        self.memory.in_transaction.set(false);
        if self.access != Access::Read {
            *self.memory.database.writing.lock().unwrap() = false;
            self.memory.database.written.notify_all();
        }
    }
}

fn field(row: &Row, field: &str) -> Option<Value> {
    let body: Value = serde_json::from_str(&row.body).unwrap();
    body.get(field).filter(|value| !value.is_null()).cloned()
}

fn matches(filter: Filter<'_>, id: &str, row: &Row) -> bool {
    match filter {
        Filter::All => true,
        Filter::Id(wanted) => id == wanted,
        Filter::Name(name) => row.name.as_deref() == Some(name),
        Filter::IdPrefix(prefix) => id.starts_with(prefix),
        Filter::Scope(scope) => row.scope.as_deref() == Some(scope),
        Filter::ScopeBelow(scope) => {
            let above = format!("{}/", scope.trim_end_matches('/'));
            row.scope.as_ref().is_some_and(|scope| scope.starts_with(&above) && scope.len() > above.len())
        }
        Filter::Open => field(row, "ended_ms").is_none(),
    }
}

fn is_taken(rows: &Rows, row: &RecordFields<'_>) -> bool {
    let named = |((kind, id), other): (&(String, String), &Row)| {
        kind == row.kind && id != row.id && other.name.is_some() && other.name.as_deref() == row.name
    };
    rows.records.iter().any(named)
}

fn stored(row: &RecordFields<'_>, version: u64) -> Row {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Row { version, name: owned(row.name), scope: owned(row.scope), body: row.body.to_owned() }
}

fn address(row: &RecordFields<'_>) -> (String, String) {
    (row.kind.to_owned(), row.id.to_owned())
}

fn bounded<T>(mut all: Vec<T>, limit: Option<u32>) -> Vec<T> {
    all.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
    all
}

impl Transaction for MemoryTransaction<'_> {
    fn select(
        &self,
        query: &RecordQuery<'_>,
        visit: &mut dyn FnMut(RecordRow) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let found = self.of_kind(query.kind, |id, row| {
            let found = || RecordRow { id: id.to_owned(), version: row.version, body: row.body.clone() };
            matches(query.filter, id, row).then(found)
        });
        bounded(found, query.limit).into_iter().try_for_each(visit)
    }

    fn ids(&self, kind: &str, prefix: &str, limit: u32) -> Result<Vec<String>, Fault> {
        let found = self.of_kind(kind, |id, _| id.starts_with(prefix).then(|| id.to_owned()));
        Ok(bounded(found, Some(limit)))
    }

    fn ids_in_scope(&self, scope: &str, limit: u32) -> Result<Vec<(String, String)>, Fault> {
        let rows = self.rows.borrow();
        let found = rows.records.iter().filter(|(_, row)| row.scope.as_deref() == Some(scope));
        Ok(bounded(found.map(|(address, _)| address.clone()).collect(), Some(limit)))
    }

    fn count(&self, kind: &str) -> Result<u64, Fault> {
        Ok(self.of_kind(kind, |_, _| Some(())).len() as u64)
    }

    fn times(&self, kind: &str, name: &str) -> Result<Vec<Timed>, Fault> {
        let mut found = self.of_kind(kind, |id, row| {
            let at_ms = field(row, name)?.as_u64().unwrap();
            Some(Timed { id: id.to_owned(), scope: row.scope.clone(), at_ms })
        });
        found.sort_by(|a, b| (a.at_ms, &a.id).cmp(&(b.at_ms, &b.id)));
        Ok(found)
    }

    fn references(&self, name: &str, except: &[&str]) -> Result<BTreeMap<String, u64>, Fault> {
        let mut counts = BTreeMap::new();
        let rows = self.rows.borrow();
        for ((kind, _), row) in &rows.records {
            let Some(Value::Array(items)) = field(row, name) else { continue };
            let texts = items.iter().filter_map(Value::as_str).filter(|_| !except.contains(&kind.as_str()));
            texts.for_each(|text| *counts.entry(text.to_owned()).or_default() += 1);
        }
        Ok(counts)
    }

    fn insert(&self, row: &RecordFields<'_>) -> Result<WriteOutcome, Fault> {
        self.change(|rows| {
            if rows.records.contains_key(&address(row)) || is_taken(rows, row) {
                return WriteOutcome::Taken;
            }
            rows.records.insert(address(row), stored(row, 1));
            WriteOutcome::Done
        })
    }

    fn update(&self, row: &RecordFields<'_>, expected: u64) -> Result<WriteOutcome, Fault> {
        self.change(|rows| {
            if rows.records.get(&address(row)).is_none_or(|known| known.version != expected) {
                return WriteOutcome::Stale;
            }
            if is_taken(rows, row) {
                return WriteOutcome::Taken;
            }
            rows.records.insert(address(row), stored(row, expected + 1));
            WriteOutcome::Done
        })
    }

    fn delete(&self, kind: &str, id: &str) -> Result<bool, Fault> {
        self.change(|rows| rows.records.remove(&(kind.to_owned(), id.to_owned())).is_some())
    }

    fn key(&self, key: &str, now_ms: u64) -> Result<Option<KeyRow>, Fault> {
        Ok(self.rows.borrow().keys.get(key).filter(|row| row.expires_ms > now_ms).cloned())
    }

    fn put_key(&self, row: &KeyRow) -> Result<(), Fault> {
        self.change(|rows| drop(rows.keys.insert(row.key.clone(), row.clone())))
    }

    fn expired_keys(&self, now_ms: u64, limit: u32) -> Result<Vec<String>, Fault> {
        let rows = self.rows.borrow();
        let mut found: Vec<_> = rows.keys.values().filter(|row| row.expires_ms <= now_ms).collect();
        found.sort_by_key(|row| (row.expires_ms, &row.key));
        Ok(bounded(found.into_iter().map(|row| row.key.clone()).collect(), Some(limit)))
    }

    fn delete_expired_key(&self, key: &str, now_ms: u64) -> Result<bool, Fault> {
        self.change(|rows| {
            let expired = rows.keys.get(key).is_some_and(|row| row.expires_ms <= now_ms);
            expired && rows.keys.remove(key).is_some()
        })
    }

    fn last_entry(&self) -> Result<Option<ChainLink>, Fault> {
        let rows = self.rows.borrow();
        Ok(rows.journal.values().next_back().map(|row| ChainLink { seq: row.seq, hash: row.hash.clone() }))
    }

    fn append(&self, row: &EntryRow) -> Result<(), Fault> {
        if self.last_entry()?.is_some_and(|last| row.seq != last.seq + 1) {
            return Err(Fault::internal("an entry that does not follow upon the last"));
        }
        self.change(|rows| drop(rows.journal.insert(row.seq, row.clone())))
    }

    fn entries(&self, query: &EntryQuery<'_>, visit: &mut EntryVisitor<'_>) -> Result<(), Fault> {
        let is = |wanted: Option<&str>, text: &str| wanted.is_none_or(|wanted| wanted == text);
        let rows = self.rows.borrow();
        let mut found: Vec<EntryRow> = rows.journal.values().cloned().collect();
        found.retain(|row| {
            (query.after == 0 || row.seq > query.after)
                && query.below.is_none_or(|below| row.seq < below)
                && is(query.subject, &row.subject)
                && is(query.verb, &row.verb)
                && is(query.actor, &row.actor)
                && is(query.step, &row.step)
        });
        if query.order == Order::NewestFirst {
            found.reverse();
        }
        for row in bounded(found, query.limit) {
            if visit(Ok(row))? == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn entry_range(&self) -> Result<Option<(u64, u64)>, Fault> {
        let rows = self.rows.borrow();
        Ok(rows.journal.keys().next().copied().zip(rows.journal.keys().next_back().copied()))
    }

    fn delete_entries(&self, last: u64) -> Result<(), Fault> {
        self.change(|rows| rows.journal.retain(|seq, _| *seq > last))
    }

    fn commit(self: Box<Self>) -> Result<(), Fault> {
        match self.access {
            Access::Read => return Ok(()),
            Access::Write(Durability::Relaxed) => self.memory.pending.set(true),
            Access::Write(Durability::Synced) => {}
        }
        *self.memory.database.committed.lock().unwrap() = self.rows.borrow().clone();
        Ok(())
    }
}
