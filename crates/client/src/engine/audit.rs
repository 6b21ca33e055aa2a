//! The journal: read, verified and followed.

use super::Engine;
use super::remote::{Pages, Reconnect, Remote};
use crate::transport::{Request, StreamControl};
use api::{JournalEntry, JournalPage, JournalVerified};
use node::audit::{self, JournalFilter, Tail};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// The interval between two looks at a local journal that is followed.
const POLL: Duration = Duration::from_millis(250);
/// Entries that are read at once.
const PAGE: u32 = 500;
/// Entries before the end, where no start is given.
const DEFAULT_LAST: u64 = 100;

/// Which entries of the journal to report.
pub struct EventQuery {
    pub wanted: JournalFilter,
    /// Entries after this number; the last hundred where none is given.
    pub from: Option<u64>,
    pub follow: bool,
}

impl Engine {
    pub fn audit_log(&self, word: Option<&str>, most: u32) -> Result<Vec<JournalEntry>, Fault> {
        match self {
            Engine::Local(node, caller) => audit::log(node, caller, word, most),
            Engine::Remote(remote) => {
                let request = Request::get(&["v1", "audit"]).query("last", "true").query("limit", most.to_string());
                remote.client.document(request.query_if("sandbox", word)).map(|page: JournalPage| page.entries)
            }
        }
    }

    pub fn audit_verify(&self) -> Result<JournalVerified, Fault> {
        match self {
            Engine::Local(node, caller) => audit::verify(node, caller),
            Engine::Remote(remote) => remote.get(&["v1", "audit", "verify"]),
        }
    }

    /// Reports entries of the journal until `each` returns false.
    pub fn events(&self, query: &EventQuery, each: &mut dyn FnMut(&[JournalEntry]) -> bool) -> Result<(), Fault> {
        match self {
            Engine::Local(node, caller) => {
                let mut tail = match query.from {
                    Some(from) => Tail::open(node, caller, Some(from), query.wanted.clone())?,
                    None => Tail::last(node, caller, DEFAULT_LAST, query.wanted.clone())?,
                };
                loop {
                    let entries = tail.next(PAGE)?;
                    match (each(&entries), entries.is_empty(), query.follow) {
                        (false, ..) | (_, true, false) => return Ok(()),
                        (_, true, true) => std::thread::sleep(POLL),
                        _ => {}
                    }
                }
            }
            Engine::Remote(remote) => remote.events(query, each),
        }
    }
}

impl Remote {
    fn journal_page(&self, query: &EventQuery, after: u64) -> Result<JournalPage, Fault> {
        let request = Request::get(&["v1", "audit"]).query("limit", PAGE.to_string()).query("after", after.to_string());
        let request =
            request.query_if("sandbox", query.wanted.subject.as_ref()).query_if("verb", query.wanted.verb.as_ref());
        self.client.document(request)
    }

    /// Reads existing entries in pages. New ones come as a stream, which continues after the last entry of the stream before it.
    fn events(&self, query: &EventQuery, each: &mut dyn FnMut(&[JournalEntry]) -> bool) -> Result<(), Fault> {
        let last: JournalPage =
            self.client.document(Request::get(&["v1", "audit"]).query("last", "true").query("limit", "1"))?;
        let archived = last.archived.unwrap_or(0);
        let last = last.entries.last().map_or(0, |entry| entry.seq);
        let mut at = query.from.unwrap_or(last.saturating_sub(DEFAULT_LAST).max(archived));
        if query.follow {
            return self.follow(query, &mut at, each);
        }
        if at > last {
            let fault = Fault::invalid(format!("event {at} does not exist yet; the last one is {last}"))
                .phase(Phase::Admission);
            return Err(fault.hint("start without a number, or with that of an event received before"));
        }
        let mut pages = Pages::default();
        loop {
            let JournalPage { entries, next, .. } = self.journal_page(query, at)?;
            match (each(&entries), next) {
                (true, Some(next)) => {
                    pages.advance(Some(&at), Some(&next.max(at)))?;
                    at = next;
                }
                _ => return Ok(()),
            }
        }
    }

    fn follow(
        &self,
        query: &EventQuery,
        at: &mut u64,
        each: &mut dyn FnMut(&[JournalEntry]) -> bool,
    ) -> Result<(), Fault> {
        let mut reconnect = Reconnect::new(&self.client);
        loop {
            let request = Request::get(&["v1", "events"]).query("from", at.to_string());
            let request =
                request.query_if("sandbox", query.wanted.subject.as_ref()).query_if("verb", query.wanted.verb.as_ref());
            let done = self.client.events(request, &mut |event| {
                if event.name != "entry" {
                    return Ok(StreamControl::Continue);
                }
                let entry: JournalEntry = serde_json::from_str(&event.data).map_err(|e| {
                    Fault::new(
                        ErrorKind::ProviderFailed,
                        format!("events: an entry of the journal cannot be read: {e}"),
                    )
                })?;
                if entry.seq <= *at {
                    let fault = Fault::new(ErrorKind::ProviderFailed, "the stream of events is out of order");
                    return Err(fault
                        .phase(Phase::Delivery)
                        .hint("check that --server names a daemon of the same version"));
                }
                *at = entry.seq;
                reconnect.reset();
                Ok(if each(&[entry]) { StreamControl::Continue } else { StreamControl::Stop })
            });
            match done {
                Ok(true) => return Ok(()),
                Err(fault) if fault.error_kind != ErrorKind::Unavailable => return Err(fault),
                _ if reconnect.wait() => {}
                done => return Err(done.err().unwrap_or_else(|| keeps_ending("events"))),
            }
        }
    }
}

/// A fault for a stream that ends without an event on every connection.
pub(super) fn keeps_ending(what: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{what}: the stream ends again and again"));
    fault.phase(Phase::Delivery).hint("check that the daemon runs, and try again")
}
