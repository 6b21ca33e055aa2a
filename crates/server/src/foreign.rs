//! Who names what belongs to another is told that there is no such thing; and the operator finds it in the journal. Before the answer
//! goes out it is known whether there is something to note: whoever asks for more than can be looked for is told to wait, and hides
//! nothing by it.

use crate::admission::Fair;
use crate::refuse::Refusal;
use crate::{Shared, Who};
use http::StatusCode;
use node::Caller;
use node::tokens::{self, DEFAULT_TENANT};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::LimitKind;

/// The same try is noted so often.
const EVERY: Duration = Duration::from_secs(60);
/// So many tries of one credential are noted one by one in that time; that there were more is one entry: nobody floods the journal.
const EACH: usize = 64;
/// Looks at a time; of one tenant one.
const AT_A_TIME: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(15);
/// States that are looked through.
const MOST_TENANTS: usize = 1000;
/// So many digits of an id are no guess.
const LEAST_DIGITS: usize = 8;
const DIGITS: usize = 32;

pub struct Tries {
    looks: Arc<Fair>,
    /// What each credential tried since.
    noted: Mutex<HashMap<String, (Instant, HashSet<String>)>>,
}

impl Default for Tries {
    fn default() -> Tries {
        Tries { looks: Fair::new(Some(AT_A_TIME)), noted: Mutex::default() }
    }
}

/// What is to be written of a try.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Try,
    /// The last one for a while.
    AndMore,
    None,
}

/// Looks whether what was not found is another's. `words` are those of the request that could name something.
pub async fn look(shared: &Shared, who: &Who, path: &str, words: Vec<String>) -> Result<(), Refusal> {
    let ids: Vec<String> = words.iter().flat_map(|word| ids(word)).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let turn = shared.tries().looks.turn(&who.tenant, Some(1), PATIENCE).await;
    let _turn = turn.map_err(|_| {
        let message = "too many requests for what is not there";
        Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, "try again")
    })?;
    let (all, own, tenant) = (states(shared), shared.caller(who), who.tenant.clone());
    let found = shared.blocking_for(who, move || Ok(foreign(&all, &own, &tenant, &ids))).await?;
    let of = who.token.clone().unwrap_or_else(|| who.name.clone());
    let Some(id) = found else { return Ok(()) };
    let entry = shared.tries().entry(&of, &id, Instant::now());
    if entry != Entry::None {
        let (credentials, who, path) = (shared.credentials().clone(), who.clone(), path.to_owned());
        // Behind the answer's back: how long it took tells nothing.
        tokio::spawn(async move { credentials.note_foreign(who, id, path, entry == Entry::AndMore).await });
    }
    Ok(())
}

/// The first of the ids that somebody else has. All are looked for in all states, so that time tells nothing; but for those that are
/// there for who asks, which are nobody else's.
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

/// The ids that a word may stand for: whole, or as much of one as nobody guesses.
fn ids(word: &str) -> Vec<String> {
    let is_digits =
        |text: &str| (LEAST_DIGITS..=DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if is_digits(word) {
        return ["sbx", "run", "snp"].iter().map(|kind| format!("{kind}_{word}")).collect();
    }
    match word.split_once('_') {
        // The id of a question is made of its sandbox's and a number.
        Some(("qst", rest)) => {
            let whose = rest.split('_').next().filter(|whose| is_digits(whose));
            whose.map(|whose| format!("sbx_{whose}")).into_iter().collect()
        }
        Some((kind, rest)) if kind.len() == 3 && is_digits(rest) => vec![word.to_owned()],
        _ => Vec::new(),
    }
}

impl Tries {
    fn entry(&self, of: &str, id: &str, now: Instant) -> Entry {
        let mut all = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (since, _)| now.duration_since(*since) < EVERY);
        let (_, seen) = all.entry(of.to_owned()).or_insert_with(|| (now, HashSet::new()));
        match seen.len() {
            EACH.. => Entry::None,
            _ if !seen.insert(id.to_owned()) => Entry::None,
            last if last + 1 == EACH => Entry::AndMore,
            _ => Entry::Try,
        }
    }
}

/// The callers that stand for every tenant there is.
fn states(shared: &Shared) -> Vec<(String, Caller)> {
    let dirs = std::fs::read_dir(shared.state().join("tenants")).into_iter().flatten().flatten();
    let names = dirs.filter_map(|dir| dir.file_name().into_string().ok()).take(MOST_TENANTS);
    let of = |name: String| {
        let who = Who { tenant: name.clone(), ..crate::shared::owner("daemon") };
        (name, shared.caller(&who))
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
        let (tries, now) = (Tries::default(), Instant::now());
        let told = |of: &str, id: usize, at: Instant| tries.entry(of, &format!("sbx_{id:032x}"), at);
        assert_eq!((told("a", 0, now), told("a", 0, now)), (Entry::Try, Entry::None));
        let rest: Vec<Entry> = (1..EACH * 2).map(|id| told("a", id, now)).collect();
        assert_eq!(rest.iter().filter(|entry| **entry == Entry::Try).count(), EACH - 2);
        assert_eq!(rest.iter().filter(|entry| **entry == Entry::AndMore).count(), 1);
        assert_eq!(told("b", 0, now), Entry::Try, "another's tries are his own");
        assert_eq!(told("a", 0, now + EVERY), Entry::Try);
    }
}
