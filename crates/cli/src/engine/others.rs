//! The journal, events, tokens, secrets, questions, policies, and what sandboxes use.

use super::Engine;
use super::make::policies_of;
use super::there::{Again, Parts, text};
use client::{Ask, Heard};
use node::audit::{self, Noted, Page, Tail, Verified, Wanted};
use node::policies::{self, Explained, Flag, Source};
use node::questions::{self, Answer, Open, Remember};
use node::secrets::kept::{self, Changed, Names};
use node::tokens::{self, Minted, Revoked, Shown};
use node::top::{Look, Top};
use serde_json::json;
use server::wire::{Checked, Explain, Questions, Said, Tokens};
use std::ffi::OsStr;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// How often somebody who follows looks for more.
const PAUSE: Duration = Duration::from_millis(250);
/// How many are read at once.
const AT_ONCE: u32 = 500;
/// Where one begins who does not say.
const LAST: u64 = 100;

/// Which events, and how many.
pub struct Tell {
    pub wanted: Wanted,
    /// After this number; with the last hundred where none is given.
    pub from: Option<u64>,
    pub follow: bool,
}

impl Engine {
    pub fn audit_log(&self, word: Option<&str>, most: u32) -> Result<Vec<Noted>, Fault> {
        match self {
            Engine::Here(caller) => audit::log(word, most, caller),
            Engine::There(there) => {
                let ask = Ask::get(&["v1", "audit"]).query("last", "true").query("limit", most.to_string());
                there.client.document(ask.query_if("sandbox", word)).map(|page: Page| page.entries)
            }
        }
    }

    pub fn audit_verify(&self) -> Result<Verified, Fault> {
        match self {
            Engine::Here(caller) => audit::verify(caller),
            Engine::There(there) => there.get(&["v1", "audit", "verify"]),
        }
    }

    /// Hands out entries of the journal as they come, as long as `each` wants them.
    pub fn events(&self, tell: &Tell, each: &mut dyn FnMut(&[Noted]) -> bool) -> Result<(), Fault> {
        match self {
            Engine::Here(caller) => {
                let mut tail = match tell.from {
                    Some(from) => Tail::open(caller, Some(from), tell.wanted.clone())?,
                    None => Tail::last(caller, LAST, tell.wanted.clone())?,
                };
                loop {
                    let entries = tail.next(AT_ONCE)?;
                    match (each(&entries), entries.is_empty(), tell.follow) {
                        (false, ..) | (_, true, false) => return Ok(()),
                        (_, true, true) => std::thread::sleep(PAUSE),
                        _ => {}
                    }
                }
            }
            Engine::There(there) => there.events(tell, each),
        }
    }

    /// What sandboxes use now, and since the look before.
    pub fn top(&self, top: &mut Top) -> Result<Look, Fault> {
        match self {
            Engine::Here(caller) => top.look(caller),
            Engine::There(there) => there.get(&["v1", "top"]).map(|look| top.compare(look)),
        }
    }

    /// What policies and rules decide about something, on the host where commands would run.
    pub fn explain(&self, what: &OsStr, sources: &[Source], flags: &[Flag]) -> Result<Explained, Fault> {
        let there = match self {
            Engine::Here(caller) => return policies::explain(what, sources, flags, caller),
            Engine::There(there) => there,
        };
        let (policies, _) = policies_of(sources, flags, false, there)?;
        let wish = Explain {
            what: text(what, "what is to be explained:")?,
            sandbox: None,
            preset: None,
            policy: None,
            policies,
            dir: Some(there.here()?),
        };
        there.post(&["v1", "policies", "explain"], &wish)
    }

    /// Whether a policy can be enforced there: its digest, and what is to be known of it.
    pub fn policy_check(&self, document: &policies::Document) -> Result<(String, Vec<String>), Fault> {
        match self {
            Engine::Here(caller) => policies::check(document, caller).map(|checked| (checked.digest, checked.notes)),
            Engine::There(there) => {
                let document: serde_json::Value =
                    serde_json::from_str(&document.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
                let checked: Checked = there.post(&["v1", "policies", "check"], &document)?;
                Ok((checked.digest, checked.notes))
            }
        }
    }

    pub fn token_create(&self, ask: &tokens::Ask) -> Result<Minted, Fault> {
        match self {
            Engine::Here(caller) => tokens::create(ask, caller),
            Engine::There(there) => there.post(&["v1", "tokens"], ask),
        }
    }

    pub fn token_list(&self) -> Result<Vec<Shown>, Fault> {
        match self {
            Engine::Here(caller) => tokens::list(caller),
            Engine::There(there) => there.list(|| Ask::get(&["v1", "tokens"]), |part: Tokens| (part.tokens, part.next)),
        }
    }

    pub fn token_revoke(&self, id: &str) -> Result<Revoked, Fault> {
        match self {
            Engine::Here(caller) => tokens::revoke(id, caller),
            Engine::There(there) => there.client.document(Ask::delete(&["v1", "tokens", id])),
        }
    }

    /// What waits for an answer, in one sandbox or in all.
    pub fn questions(&self, word: Option<&str>) -> Result<Vec<Open>, Fault> {
        let there = match (self, word) {
            (Engine::Here(caller), Some(word)) => return questions::open(word, caller),
            (Engine::Here(caller), None) => return questions::open_everywhere(caller),
            (Engine::There(there), _) => there,
        };
        // Only where something runs can something ask.
        let words = match word {
            Some(word) => vec![there.word(Some(word))?],
            None => self.list(false)?.into_iter().filter(|row| row.live).map(|row| row.id).collect(),
        };
        let of = |word: &String| there.get(&["v1", "sandboxes", word, "questions"]).map(|all: Questions| all.questions);
        words.iter().map(of).collect::<Result<Vec<_>, _>>().map(|all| all.into_iter().flatten().collect())
    }

    pub fn answer(&self, question: &str, answer: Answer, remember: Remember) -> Result<Open, Fault> {
        match self {
            Engine::Here(caller) => questions::answer(question, answer, remember, caller),
            Engine::There(there) => there.post(&["v1", "questions", question], &Said { answer, remember }),
        }
    }

    pub fn secret_set(&self, name: &str, value: Vec<u8>) -> Result<Changed, Fault> {
        let there = match self {
            Engine::Here(caller) => return kept::set(caller, name, value),
            Engine::There(there) => there,
        };
        // The value itself is not told.
        let value =
            String::from_utf8(value).map_err(|_| Fault::invalid("the value is no text").phase(Phase::Admission))?;
        there.client.document(Ask::put(&["v1", "secrets", name]).document(&json!({ "value": value }))?)
    }

    pub fn secret_remove(&self, name: &str) -> Result<Changed, Fault> {
        match self {
            Engine::Here(caller) => kept::remove(caller, name),
            Engine::There(there) => there.client.document(Ask::delete(&["v1", "secrets", name])),
        }
    }

    pub fn secret_list(&self) -> Result<Names, Fault> {
        match self {
            Engine::Here(caller) => kept::list(caller),
            Engine::There(there) => there.get(&["v1", "secrets"]),
        }
    }
}

impl super::There {
    fn noted(&self, tell: &Tell, after: u64) -> Result<Page, Fault> {
        let ask = Ask::get(&["v1", "audit"]).query("limit", AT_ONCE.to_string()).query("after", after.to_string());
        let ask = ask.query_if("sandbox", tell.wanted.subject.as_ref()).query_if("verb", tell.wanted.verb.as_ref());
        self.client.document(ask)
    }

    /// What there is comes in pages; what follows, as a stream that goes on where the last page, or the stream before, was.
    fn events(&self, tell: &Tell, each: &mut dyn FnMut(&[Noted]) -> bool) -> Result<(), Fault> {
        let last: Page = self.client.document(Ask::get(&["v1", "audit"]).query("last", "true").query("limit", "1"))?;
        let archived = last.archived.unwrap_or(0);
        let last = last.entries.last().map_or(0, |entry| entry.seq);
        let mut at = tell.from.unwrap_or(last.saturating_sub(LAST).max(archived));
        if tell.follow {
            return self.follow(tell, &mut at, each);
        }
        if at > last {
            let fault =
                Fault::invalid(format!("there is no event {at} yet; the last is {last}")).phase(Phase::Admission);
            return Err(fault.hint("begin without a number, or with one that was told"));
        }
        let mut parts = Parts::default();
        loop {
            let Page { entries, next, .. } = self.noted(tell, at)?;
            match (each(&entries), next) {
                (true, Some(next)) => {
                    parts.go_on(Some(&at), Some(&next.max(at)))?;
                    at = next;
                }
                _ => return Ok(()),
            }
        }
    }

    fn follow(&self, tell: &Tell, at: &mut u64, each: &mut dyn FnMut(&[Noted]) -> bool) -> Result<(), Fault> {
        let mut again = Again::new(&self.client);
        loop {
            let ask = Ask::get(&["v1", "events"]).query("from", at.to_string());
            let ask = ask.query_if("sandbox", tell.wanted.subject.as_ref()).query_if("verb", tell.wanted.verb.as_ref());
            let heard = self.client.events(ask, &mut |event| {
                if event.name != "entry" {
                    return Ok(Heard::More);
                }
                let entry: Noted = serde_json::from_str(&event.data)
                    .map_err(|e| Fault::new(ErrorKind::ProviderFailed, format!("an event cannot be read: {e}")))?;
                if entry.seq <= *at {
                    let fault = Fault::new(ErrorKind::ProviderFailed, "the stream of events goes backwards");
                    return Err(fault
                        .phase(Phase::Delivery)
                        .hint("see that --server names a daemon of the same version"));
                }
                *at = entry.seq;
                again.is_well();
                Ok(if each(&[entry]) { Heard::More } else { Heard::Enough })
            });
            match heard {
                Ok(true) => return Ok(()),
                Err(fault) if fault.error_kind != ErrorKind::Unavailable => return Err(fault),
                _ if again.look() => {}
                heard => return Err(heard.err().unwrap_or_else(|| ends_again("events"))),
            }
        }
    }
}

/// A stream that is opened and says nothing, again and again.
pub(super) fn ends_again(what: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{what}: the stream ends again and again"));
    fault.phase(Phase::Delivery).hint("see whether the daemon runs, and try again")
}
