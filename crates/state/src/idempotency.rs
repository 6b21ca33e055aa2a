//! Idempotency keys: a repeated request under the same key gets the answer of the first; another request under it is a conflict that names
//! the differing field.

use crate::{Caller, StatePool};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use store::{Key, Tx};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Retention of a key.
pub const KEPT_MS: u64 = 24 * 3_600_000;
const LONGEST: usize = 255;

pub fn check(key: &str) -> Result<(), Fault> {
    let plain = !key.is_empty() && key.len() <= LONGEST && key.bytes().all(|b| (0x21..0x7f).contains(&b));
    if plain {
        return Ok(());
    }
    let message = format!("--idempotency-key {key:?}: must be 1 to {LONGEST} visible ASCII characters");
    Err(Fault::invalid(message).hint("a UUID is a good key").phase(Phase::Admission))
}

/// Returns the key in its stored form. A token with sandboxes of its own has keys of its own, too: no caller gets the answer to another's
/// request. A key as sent contains no space.
pub fn of(caller: &Caller, key: &str) -> String {
    caller.owner().map_or_else(|| key.to_owned(), |owner| format!("{owner} {key}"))
}

fn as_sent(key: &str) -> &str {
    key.rsplit(' ').next().unwrap_or(key)
}

/// Returns whether there was a request under this key.
pub fn is_known(states: &StatePool, caller: &Caller, key: &str) -> Result<bool, Fault> {
    check(key)?;
    let state = states.open(caller)?;
    Ok(state.store.read(|tx| tx.key(&of(caller, key), terms::clock::now_ms()))?.is_some())
}

/// Returns the subject of the first request under this key, if there was one, and its answer, as far as it was kept.
pub fn known<T: DeserializeOwned>(
    tx: &Tx<'_>,
    key: &str,
    params: &Map<String, Value>,
    now_ms: u64,
) -> Result<Option<(String, Option<T>)>, Fault> {
    let Some(mut first) = tx.key(key, now_ms)? else { return Ok(None) };
    let answer = first.params.as_object_mut().and_then(|params| params.remove(ANSWER));
    same(key, &first, params)?;
    Ok(Some((first.subject, answer.and_then(|answer| serde_json::from_value(answer).ok()))))
}

/// Refuses a request that differs from the first under a key.
fn same(key: &str, first: &Key, params: &Map<String, Value>) -> Result<(), Fault> {
    let before = fields(first.params.as_object().unwrap_or(&Map::new()));
    let params = fields(params);
    let names = before.keys().chain(params.keys());
    match names.filter(|name| before.get(*name) != params.get(*name)).min() {
        None => Ok(()),
        Some(field) => {
            let show = |v: Option<&Value>| v.map_or("nothing".to_owned(), Value::to_string);
            let (was, is) = (show(before.get(field)), show(params.get(field)));
            let message = format!("the key {:?} was used with another {field}: {was}, now {is}", as_sent(key));
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&first.subject).phase(Phase::Admission);
            Err(fault.hint("repeat the request as it was, or use another key"))
        }
    }
}

/// Splits a request into fields, also where it was stored as a whole: the parameters of its path, and its body.
fn fields(params: &Map<String, Value>) -> Map<String, Value> {
    let mut all = params.clone();
    let parts = match all.remove(REQUEST) {
        Some(Value::Array(parts)) => parts,
        whole => Vec::from_iter(whole),
    };
    for part in parts {
        match part {
            Value::Object(body) => all.extend(body),
            subject => drop(all.insert("id".to_owned(), subject)),
        }
    }
    all
}

/// A request that is carried out once, under a key.
#[derive(Clone, Debug)]
pub struct KeyedRequest {
    pub key: String,
    /// Parameters of the request, including its verb.
    pub params: Map<String, Value>,
}

/// Names under which the answer and the whole request are stored.
const ANSWER: &str = "answer";
const REQUEST: &str = "request";

impl KeyedRequest {
    /// Builds the key record. `asked` is the body of the request, or the parameters of its path and the body.
    pub fn new(key: &str, verb: &str, asked: &impl Serialize, caller: &Caller) -> Result<KeyedRequest, Fault> {
        check(key)?;
        let asked = serde_json::to_value(asked).map_err(|e| Fault::internal(e.to_string()))?;
        let params = Map::from_iter([(REQUEST.to_owned(), asked), ("verb".to_owned(), verb.into())]);
        Ok(KeyedRequest { key: of(caller, key), params })
    }

    /// Returns the answer to the first request under the key.
    pub fn answer<T: DeserializeOwned>(&self, tx: &Tx<'_>, now_ms: u64) -> Result<Option<T>, Fault> {
        let Some((subject, answer)) = known(tx, &self.key, &self.params, now_ms)? else { return Ok(None) };
        answer.map(Some).ok_or_else(|| {
            let message = format!("the key {:?} was used for {subject}", as_sent(&self.key));
            Fault::new(ErrorKind::Conflict, message).hint("use another key").phase(Phase::Admission)
        })
    }

    /// Stores the answer, in the transaction that carries out the request. A concurrent request that was faster under the same key is a
    /// transient conflict: a retry gets its answer.
    pub fn keep(&self, tx: &Tx<'_>, subject: &str, answer: &impl Serialize, now_ms: u64) -> Result<(), Fault> {
        if tx.key(&self.key, now_ms)?.is_some() {
            let message = format!("another request under the key {:?} was carried out meanwhile", as_sent(&self.key));
            let fault = Fault::new(ErrorKind::Conflict, message).hint("repeat the request to get its response");
            return Err(fault.retry(Retry::Now).phase(Phase::Admission));
        }
        keep(tx, &self.key, subject, answered(self.params.clone(), answer)?, now_ms)
    }
}

/// Returns the stored parameters, with the answer to repeat.
pub fn answered(mut params: Map<String, Value>, answer: &impl Serialize) -> Result<Map<String, Value>, Fault> {
    let answer = serde_json::to_value(answer).map_err(|e| Fault::internal(e.to_string()))?;
    params.insert(ANSWER.to_owned(), answer);
    Ok(params)
}

/// Stores the key in the transaction that carries out the request.
pub fn keep(tx: &Tx<'_>, key: &str, subject: &str, params: Map<String, Value>, now_ms: u64) -> Result<(), Fault> {
    let (key, subject) = (key.to_owned(), subject.to_owned());
    tx.keep_key(&Key { key, subject, params: Value::Object(params), expires_ms: now_ms + KEPT_MS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn another_request_is_told_by_the_field_that_differs() {
        let kept = |params: Value| Key { key: "k".into(), subject: "s".into(), params, expires_ms: 0 };
        let whole =
            |id: &str, name: &str| json!({ "request": [id, { "name": name, "sync": true }], "verb": "snapshot" });
        let first = kept(whole("agent", "one"));
        let told = |now: Value| same("k", &first, now.as_object().unwrap()).map_err(|fault| fault.message);
        assert_eq!(told(whole("agent", "one")), Ok(()), "the control");
        for (now, field) in [(whole("agent", "two"), "name"), (whole("other", "one"), "id")] {
            assert!(told(now).unwrap_err().contains(&format!("another {field}: ")));
        }
    }
}
