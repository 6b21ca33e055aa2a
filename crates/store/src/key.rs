//! Idempotency keys: a request that is sent twice under one key is done once.

use crate::backend::KeyRow;
use crate::transaction::{Tx, check_texts};
use serde_json::Value;
use terms::Fault;

/// An idempotency key with the request that was made under it.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub key: String,
    /// Id of the object that the request made.
    pub subject: String,
    /// Parameters of the request.
    pub params: Value,
    pub expires_ms: u64,
}

impl Tx<'_> {
    /// Returns a key, unless it has expired at `now_ms`.
    pub fn key(&self, key: &str, now_ms: u64) -> Result<Option<Key>, Fault> {
        self.rows.key(key, now_ms)?.map(parse).transpose()
    }

    /// Keeps a key, in the place of an expired one of the same name.
    pub fn keep_key(&self, key: &Key) -> Result<(), Fault> {
        check_texts([key.key.as_str(), &key.subject])?;
        let Key { key, subject, params, expires_ms } = key.clone();
        self.rows.put_key(&KeyRow { key, subject, params: params.to_string(), expires_ms })
    }

    /// Returns the names of at most `limit` keys that have expired at `now_ms`.
    pub fn expired_keys(&self, now_ms: u64, limit: u32) -> Result<Vec<String>, Fault> {
        self.rows.expired_keys(now_ms, limit)
    }

    /// Removes a key if it has expired at `now_ms`; tells whether it had.
    pub fn forget_key(&self, key: &str, now_ms: u64) -> Result<bool, Fault> {
        self.rows.delete_expired_key(key, now_ms)
    }
}

fn parse(KeyRow { key, subject, params, expires_ms }: KeyRow) -> Result<Key, Fault> {
    let params =
        serde_json::from_str(&params).map_err(|e| Fault::internal(format!("key {key:?} in the store: {e}")))?;
    Ok(Key { key, subject, params, expires_ms })
}
