//! Detects requests for ids of other tenants. The client gets the same 404 as for an id that does not exist, and the operator's journal
//! gets an entry. The lookup happens before the response: a client with too many lookups is refused with 429, so that flooding does not
//! hide an attempt.

use crate::admission::FairSemaphore;
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::DEFAULT_TENANT;
use http::StatusCode;
use node::Caller;
use node::tokens;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::LimitKind;

/// Interval after which the same attempt is recorded again.
const INTERVAL: Duration = Duration::from_secs(60);
/// Attempts of one credential recorded per interval. The last entry says that there were more, so that the journal cannot be flooded.
const MAX_RECORDED: usize = 64;
/// Concurrent lookups in all; one per tenant.
const MAX_CONCURRENT: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(15);
/// Maximum number of tenants that are searched.
const MAX_TENANTS: usize = 1000;
/// Digits of an id prefix from which a match is not taken for a guess.
const MIN_DIGITS: usize = 8;
const DIGITS: usize = 32;

pub struct ForeignAttempts {
    lookups: Arc<FairSemaphore>,
    /// Ids that each credential tried in the current interval.
    noted: Mutex<HashMap<String, (Instant, HashSet<String>)>>,
}

impl Default for ForeignAttempts {
    fn default() -> ForeignAttempts {
        ForeignAttempts { lookups: FairSemaphore::new(Some(MAX_CONCURRENT)), noted: Mutex::default() }
    }
}

/// The journal entry for an attempt.
#[derive(Debug, PartialEq, Eq)]
enum AttemptEntry {
    Try,
    /// The last entry of this interval.
    AndMore,
    None,
}

/// Searches other tenants for the ids of a request that was answered with 404. `texts` are its texts that may be ids.
pub async fn record_foreign(
    shared: &Shared,
    principal: &Principal,
    path: &str,
    texts: Vec<String>,
) -> Result<(), Refusal> {
    let ids: Vec<String> = texts.iter().flat_map(|text| ids(text)).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let permit = shared.foreign_attempts().lookups.acquire(&principal.tenant, Some(1), PATIENCE).await;
    let _permit = permit.map_err(|_| {
        let message = "too many requests for ids that were not found";
        Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, "try again in a moment")
    })?;
    let (all, own, tenant) = (tenant_callers(shared), shared.caller(principal), principal.tenant.clone());
    let found = shared.blocking_for(principal, move || Ok(foreign(&all, &own, &tenant, &ids))).await?;
    let of = principal.token.clone().unwrap_or_else(|| principal.name.clone());
    let Some(id) = found else { return Ok(()) };
    let entry = shared.foreign_attempts().entry(&of, &id, Instant::now());
    if entry != AttemptEntry::None {
        let (credentials, principal, path) = (shared.credentials().clone(), principal.clone(), path.to_owned());
        // Not awaited, so that the response time reveals nothing.
        tokio::spawn(
            async move { credentials.note_foreign(principal, id, path, entry == AttemptEntry::AndMore).await },
        );
    }
    Ok(())
}

/// Returns the first id that another tenant has. Every id is looked up in every state, so that timing reveals nothing, except ids that the
/// client can see itself, which no other tenant has.
fn foreign(all: &[(String, Caller)], own: &Caller, tenant: &str, ids: &[String]) -> Option<String> {
    let is_own = |id: &&String| tokens::shows(own, id).unwrap_or(false);
    let ids: Vec<&String> = ids.iter().filter(|id| !is_own(id)).collect();
    let mut found = None;
    for (name, caller) in all {
        for id in &ids {
            let is_there = match name == tenant {
                true => tokens::hides(own, id),
                false => tokens::knows(caller, id),
            };
            if is_there.unwrap_or(false) && found.is_none() {
                found = Some((*id).clone());
            }
        }
    }
    found
}

/// Returns the ids that a word may stand for: a whole id, or a prefix too long to be guessed.
fn ids(text: &str) -> Vec<String> {
    let is_digits =
        |text: &str| (MIN_DIGITS..=DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if is_digits(text) {
        return ["sbx", "run", "snp"].iter().map(|kind| format!("{kind}_{text}")).collect();
    }
    match text.split_once('_') {
        // The id of a question contains that of its sandbox.
        Some(("qst", rest)) => {
            let whose = rest.split('_').next().filter(|whose| is_digits(whose));
            whose.map(|whose| format!("sbx_{whose}")).into_iter().collect()
        }
        Some((kind, rest)) if kind.len() == 3 && is_digits(rest) => vec![text.to_owned()],
        _ => Vec::new(),
    }
}

impl ForeignAttempts {
    fn entry(&self, of: &str, id: &str, now: Instant) -> AttemptEntry {
        let mut all = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (since, _)| now.duration_since(*since) < INTERVAL);
        let (_, seen) = all.entry(of.to_owned()).or_insert_with(|| (now, HashSet::new()));
        match seen.len() {
            MAX_RECORDED.. => AttemptEntry::None,
            _ if !seen.insert(id.to_owned()) => AttemptEntry::None,
            last if last + 1 == MAX_RECORDED => AttemptEntry::AndMore,
            _ => AttemptEntry::Try,
        }
    }
}

/// Returns a caller for each tenant.
fn tenant_callers(shared: &Shared) -> Vec<(String, Caller)> {
    let dirs = std::fs::read_dir(shared.state().join("tenants")).into_iter().flatten().flatten();
    let names = dirs.filter_map(|dir| dir.file_name().into_string().ok()).take(MAX_TENANTS);
    let of = |name: String| {
        let principal = Principal { tenant: name.clone(), ..crate::shared::owner("daemon") };
        (name, shared.caller(&principal))
    };
    std::iter::once(DEFAULT_TENANT.to_owned()).chain(names).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_an_id_is_looked_for() {
        let whole = "a".repeat(DIGITS);
        assert_eq!(ids(&format!("sbx_{whole}")), [format!("sbx_{whole}")]);
        assert_eq!(ids("run_0123abcd"), ["run_0123abcd"]);
        assert_eq!(ids(&format!("qst_{whole}_7")), [format!("sbx_{whole}")]);
        assert_eq!(ids("0123abcd").len(), 3);
        for none in ["", "mine", "sbx_0123", "sbx_../../x", "v1", "sandboxes", &format!("sbx_{whole}0")] {
            assert!(ids(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn nobody_hides_a_try_behind_others_and_nobody_floods() {
        let (foreign_attempts, now) = (ForeignAttempts::default(), Instant::now());
        let told = |of: &str, id: usize, at: Instant| foreign_attempts.entry(of, &format!("sbx_{id:032x}"), at);
        assert_eq!((told("a", 0, now), told("a", 0, now)), (AttemptEntry::Try, AttemptEntry::None));
        let rest: Vec<AttemptEntry> = (1..MAX_RECORDED * 2).map(|id| told("a", id, now)).collect();
        assert_eq!(rest.iter().filter(|entry| **entry == AttemptEntry::Try).count(), MAX_RECORDED - 2);
        assert_eq!(rest.iter().filter(|entry| **entry == AttemptEntry::AndMore).count(), 1);
        assert_eq!(told("b", 0, now), AttemptEntry::Try, "another's tries are his own");
        assert_eq!(told("a", 0, now + INTERVAL), AttemptEntry::Try);
    }
}
