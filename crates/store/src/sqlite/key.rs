//! Rows of the table `key`.

use crate::backend::KeyRow;
use rusqlite::{Connection, OptionalExtension, Result, params};

pub fn get(db: &Connection, key: &str, now_ms: u64) -> Result<Option<KeyRow>> {
    let sql = "SELECT key, subject, params, expires_ms FROM key WHERE key = ?1 AND expires_ms > ?2";
    let row = |row: &rusqlite::Row<'_>| {
        let expires_ms = row.get::<_, i64>(3)? as u64;
        Ok(KeyRow { key: row.get(0)?, subject: row.get(1)?, params: row.get(2)?, expires_ms })
    };
    db.query_row(sql, params![key, now_ms as i64], row).optional()
}

pub fn put(db: &Connection, row: &KeyRow) -> Result<()> {
    let KeyRow { key, subject, params, expires_ms } = row;
    let sql = "INSERT OR REPLACE INTO key (key, subject, params, expires_ms) VALUES (?1, ?2, ?3, ?4)";
    db.execute(sql, params![key, subject, params, *expires_ms as i64]).map(drop)
}

pub fn expired(db: &Connection, now_ms: u64, limit: u32) -> Result<Vec<String>> {
    let mut statement = db.prepare("SELECT key FROM key WHERE expires_ms <= ?1 ORDER BY expires_ms, key LIMIT ?2")?;
    statement.query_map(params![now_ms as i64, limit], |row| row.get(0))?.collect()
}

pub fn delete_expired(db: &Connection, key: &str, now_ms: u64) -> Result<bool> {
    Ok(db.execute("DELETE FROM key WHERE key = ?1 AND expires_ms <= ?2", params![key, now_ms as i64])? > 0)
}
