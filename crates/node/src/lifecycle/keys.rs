//! Idempotency keys: the same request under the same key is answered with what came of the first; another request under it
//! is a conflict that names what differs.

use crate::state::State;
use crate::{Caller, fresh};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use store::{Key, Tx};
use terms::{ErrorKind, Fault, Phase, Retry};

/// How long a key is remembered.
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

/// The key as it is kept. Who has sandboxes of its own in a state of many has keys of its own, too: nobody is answered with what came of
/// another's request. No key that was sent has a space in it.
pub fn of(caller: &Caller, key: &str) -> String {
    caller.owner().map_or_else(|| key.to_owned(), |owner| format!("{owner} {key}"))
}

fn as_sent(key: &str) -> &str {
    key.rsplit(' ').next().unwrap_or(key)
}

/// Whether there was a request under this key.
pub fn is_known(caller: &Caller, key: &str) -> Result<bool, Fault> {
    check(key)?;
    let state = State::open(caller)?;
    Ok(state.store.read(|tx| tx.key(&of(caller, key), fresh::now_ms()))?.is_some())
}

/// What came of the first request under this key, if there was one, and what it was answered with, as far as that was kept.
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

/// Refuses another request than the first under a key.
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
            Err(fault.hint("repeat the request as it was, or take another key"))
        }
    }
}

/// A request field by field, also where it was kept as a whole: what stands in its path, and its body.
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
pub struct Once {
    pub key: String,
    /// What was asked for, its verb included.
    pub params: Map<String, Value>,
}

/// Where the answer stands among what is remembered, and what was asked for as a whole.
const ANSWER: &str = "answer";
const REQUEST: &str = "request";

impl Once {
    /// `asked` is the body of the request, or what stands in its path and the body.
    pub fn new(key: &str, verb: &str, asked: &impl Serialize, caller: &Caller) -> Result<Once, Fault> {
        check(key)?;
        let asked = serde_json::to_value(asked).map_err(|e| Fault::internal(e.to_string()))?;
        let params = Map::from_iter([(REQUEST.to_owned(), asked), ("verb".to_owned(), verb.into())]);
        Ok(Once { key: of(caller, key), params })
    }

    /// What the first request under the key was answered with.
    pub fn answer<T: DeserializeOwned>(&self, tx: &Tx<'_>, now_ms: u64) -> Result<Option<T>, Fault> {
        let Some((subject, answer)) = known(tx, &self.key, &self.params, now_ms)? else { return Ok(None) };
        answer.map(Some).ok_or_else(|| {
            let message = format!("the key {:?} was used for {subject}", as_sent(&self.key));
            Fault::new(ErrorKind::Conflict, message).hint("take another key").phase(Phase::Admission)
        })
    }

    /// Remembers the answer, in the transaction that makes it true. Somebody who was quicker under the same key is a conflict
    /// that passes: asked again, there is an answer.
    pub fn keep(&self, tx: &Tx<'_>, subject: &str, answer: &impl Serialize, now_ms: u64) -> Result<(), Fault> {
        if tx.key(&self.key, now_ms)?.is_some() {
            let message = format!("another request under the key {:?} was carried out meanwhile", as_sent(&self.key));
            let fault = Fault::new(ErrorKind::Conflict, message).hint("ask again for its answer");
            return Err(fault.retry(Retry::Now).phase(Phase::Admission));
        }
        keep(tx, &self.key, subject, answered(self.params.clone(), answer)?, now_ms)
    }
}

/// What is remembered, with what is told again.
pub fn answered(mut params: Map<String, Value>, answer: &impl Serialize) -> Result<Map<String, Value>, Fault> {
    let answer = serde_json::to_value(answer).map_err(|e| Fault::internal(e.to_string()))?;
    params.insert(ANSWER.to_owned(), answer);
    Ok(params)
}

/// Remembers the key in the transaction that makes what was asked for.
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
