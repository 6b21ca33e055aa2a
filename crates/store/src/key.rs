//! Keys of requests that may be sent twice: what was asked for under a key, and what came of it.

use crate::{Tx, inner};
use rusqlite::{OptionalExtension, params};
use serde_json::Value;
use terms::Fault;

#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub key: String,
    /// What was made.
    pub subject: String,
    /// What was asked for.
    pub params: Value,
    pub expires_ms: u64,
}

impl Tx<'_> {
    /// What is known under a key at `now_ms`; one that has expired is not.
    pub fn key(&self, key: &str, now_ms: u64) -> Result<Option<Key>, Fault> {
        let query = "SELECT key, subject, params, expires_ms FROM key WHERE key = ?1 AND expires_ms > ?2";
        let found = self.db.query_row(query, params![key, now_ms as i64], row).optional().map_err(inner)?;
        found.map(read).transpose()
    }

    /// Remembers a key; an expired one under the same name is forgotten for it.
    pub fn keep_key(&self, key: &Key) -> Result<(), Fault> {
        let query = "INSERT OR REPLACE INTO key (key, subject, params, expires_ms) VALUES (?1, ?2, ?3, ?4)";
        let Key { key, subject, params, expires_ms } = key;
        self.db.execute(query, params![key, subject, params.to_string(), *expires_ms as i64]).map_err(inner)?;
        Ok(())
    }

    /// Names of at most `most` keys that have expired at `now_ms`.
    pub fn expired_keys(&self, now_ms: u64, most: u32) -> Result<Vec<String>, Fault> {
        let query = "SELECT key FROM key WHERE expires_ms <= ?1 ORDER BY expires_ms, key LIMIT ?2";
        let mut statement = self.db.prepare(query).map_err(inner)?;
        let rows = statement.query_map(params![now_ms as i64, most], |row| row.get(0)).map_err(inner)?;
        rows.map(|row| row.map_err(inner)).collect()
    }

    /// Forgets a key, if it has expired at `now_ms`; whether it had.
    pub fn forget_key(&self, key: &str, now_ms: u64) -> Result<bool, Fault> {
        let query = "DELETE FROM key WHERE key = ?1 AND expires_ms <= ?2";
        Ok(self.db.execute(query, params![key, now_ms as i64]).map_err(inner)? > 0)
    }
}

type Raw = (String, String, String, i64);

fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

fn read((key, subject, params, expires_ms): Raw) -> Result<Key, Fault> {
    let params =
        serde_json::from_str(&params).map_err(|e| Fault::internal(format!("key {key:?} in the store: {e}")))?;
    Ok(Key { key, subject, params, expires_ms: expires_ms as u64 })
}
