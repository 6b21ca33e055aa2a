//! Digests of the request that started a command: they decide whether a repeated idempotency key stands for the same request.

use std::collections::{BTreeMap, BTreeSet};
use terms::{ErrorKind, Fault, Phase};

/// Compares two requests by their digests. Earlier versions had no digests of single fields.
pub fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    let whole = |digest: Option<&str>| digest.and_then(|text| text.split(' ').next()).map(str::to_owned);
    whole(one) == whole(other)
}

/// Returns the fields in which two requests differ, as far as their digests tell.
fn differing<'a>(one: &'a str, other: &'a str) -> Vec<&'a str> {
    let fields = |digest: &'a str| -> BTreeMap<&str, &str> {
        digest.split(' ').skip(1).filter_map(|field| field.split_once('=')).collect()
    };
    let (one, other) = (fields(one), fields(other));
    if one.is_empty() || other.is_empty() {
        return Vec::new();
    }
    let names: BTreeSet<&str> = one.keys().chain(other.keys()).copied().collect();
    names.into_iter().filter(|name| one.get(name) != other.get(name)).collect()
}

/// Builds the fault of a key that was used for another request.
pub fn other_request(run: &str, before: Option<&str>, now: Option<&str>) -> Fault {
    let fields = differing(before.unwrap_or_default(), now.unwrap_or_default()).join(", ");
    let what = if fields.is_empty() { "request".to_owned() } else { fields };
    let message = format!("the key was used with another {what}, for the request that started {run}");
    let fault = Fault::new(ErrorKind::Conflict, message).subject(run).phase(Phase::Admission);
    fault.hint("repeat the request as it was, or use another key")
}
