//! Idempotency keys: the same request under the same key is answered with what came of the first; another request under it
//! is a conflict that names what differs.

use serde_json::{Map, Value};
use store::{Key, Tx};
use terms::{ErrorKind, Fault, Phase};

/// How long a key is remembered.
const KEPT_MS: u64 = 24 * 3_600_000;
const LONGEST: usize = 255;

pub fn check(key: &str) -> Result<(), Fault> {
    let plain = !key.is_empty() && key.len() <= LONGEST && key.bytes().all(|b| (0x21..0x7f).contains(&b));
    if plain {
        return Ok(());
    }
    let message = format!("--idempotency-key {key:?}: must be 1 to {LONGEST} visible ASCII characters");
    Err(Fault::invalid(message).hint("a UUID is a good key").phase(Phase::Admission))
}

/// What came of the first request under this key, if there was one.
pub fn known(tx: &Tx<'_>, key: &str, params: &Map<String, Value>, now_ms: u64) -> Result<Option<String>, Fault> {
    let Some(first) = tx.key(key, now_ms)? else { return Ok(None) };
    let none = Map::new();
    let before = first.params.as_object().unwrap_or(&none);
    let names = before.keys().chain(params.keys());
    match names.filter(|name| before.get(*name) != params.get(*name)).min() {
        None => Ok(Some(first.subject)),
        Some(field) => {
            let show = |v: Option<&Value>| v.map_or("nothing".to_owned(), Value::to_string);
            let (was, is) = (show(before.get(field)), show(params.get(field)));
            let message = format!("the key {key:?} was used with another {field}: {was}, now {is}");
            let fault = Fault::new(ErrorKind::Conflict, message).subject(first.subject).phase(Phase::Admission);
            Err(fault.hint("repeat the request as it was, or take another key"))
        }
    }
}

/// Remembers the key in the transaction that makes what was asked for.
pub fn keep(tx: &Tx<'_>, key: &str, subject: &str, params: Map<String, Value>, now_ms: u64) -> Result<(), Fault> {
    let (key, subject) = (key.to_owned(), subject.to_owned());
    tx.keep_key(&Key { key, subject, params: Value::Object(params), expires_ms: now_ms + KEPT_MS })
}
