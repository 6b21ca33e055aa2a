//! A daemon that carries out verbs: requests that every verb needs, capabilities, pages of lists, reconnecting.

use crate::transport::{Client, Request};
use api::{Capability, Health, SandboxSummary};
use node::sandbox::Which;
use node::{Caller, sandbox};
use serde::Serialize;
use serde::de::DeserializeOwned;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase};

/// A daemon, and the caller on whose behalf it is asked.
pub struct Remote {
    pub client: Client,
    pub caller: Caller,
    /// Asked for once, and only where a request needs to know.
    capabilities: OnceLock<Vec<Capability>>,
}

/// The page size of lists: the most that a daemon gives at once.
const PAGE: &str = "1000";

impl Remote {
    pub fn new(client: Client, caller: Caller) -> Remote {
        Remote { client, caller, capabilities: OnceLock::new() }
    }

    /// Refuses `flag` where the daemon lacks the capability that it needs. A daemon of an older version announces fewer, or none.
    pub(super) fn require(&self, capability: Capability, flag: &str) -> Result<(), Fault> {
        let announced = match self.capabilities.get() {
            Some(announced) => announced,
            None => {
                let health: Health = self.get(&["v1", "health"])?;
                self.capabilities.get_or_init(|| health.known_capabilities())
            }
        };
        if announced.contains(&capability) {
            return Ok(());
        }
        let message = format!("{flag} is not known to the daemon, which is of an older version");
        let fault = Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Admission);
        Err(fault.hint(format!("leave {flag} out, or update the daemon to this version")))
    }

    /// Returns the sandbox as a daemon takes it: without a word, the one that covers the current directory.
    pub fn word(&self, word: Option<&str>) -> Result<String, Fault> {
        match word {
            // No sandbox can have such a name, and in a path it would mean something else.
            Some(word) if is_impossible(word) => Err(sandbox::unknown(word)),
            Some(word) => Ok(word.to_owned()),
            None => {
                let request = Request::get(&["v1", "covering"]).query("dir", self.current_dir()?);
                self.client.document(request).map(|row: SandboxSummary| row.id)
            }
        }
    }

    /// Returns the caller's current directory, which is taken for one of the daemon's host.
    pub fn current_dir(&self) -> Result<String, Fault> {
        text(self.caller.cwd.as_os_str(), "the current directory")
    }

    /// Returns the absolute form of a path of the daemon's host.
    pub fn absolute(&self, path: &Path) -> Result<String, Fault> {
        text(self.caller.cwd.join(path).as_os_str(), "a path")
    }

    pub fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Fault> {
        self.client.document(Request::get(path))
    }

    pub fn post<T: DeserializeOwned>(&self, path: &[&str], document: &impl Serialize) -> Result<T, Fault> {
        self.client.document(Request::post(path).document(document)?)
    }

    /// Posts a document to a verb of one sandbox.
    pub fn post_to<T: DeserializeOwned>(
        &self,
        which: &Which,
        verb: &[&str],
        document: &impl Serialize,
    ) -> Result<T, Fault> {
        let word = self.word(which.word.as_deref())?;
        let path: Vec<&str> = ["v1", "sandboxes", &word].into_iter().chain(verb.iter().copied()).collect();
        self.client.document(Request::post(&path).if_version(which.version).document(document)?)
    }

    /// Reads a whole list page by page. `split` returns the items of a page and the cursor of the next.
    pub fn list<P: DeserializeOwned, T>(
        &self,
        request: impl Fn() -> Request,
        split: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Fault> {
        let (mut all, mut after, mut pages) = (Vec::new(), None, Pages::default());
        loop {
            let page = self.client.document(request().query("limit", PAGE).query_if("after", after.as_ref()))?;
            let (items, next) = split(page);
            all.extend(items);
            match next {
                None => return Ok(all),
                Some(_) => pages.advance(after.as_ref(), next.as_ref())?,
            }
            after = next;
        }
    }
}

/// Attempts to reach a daemon again that went away in the middle of a verb; bounded in time.
pub struct Reconnect {
    timeout: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Reconnect {
    const TIMEOUT: Duration = Duration::from_secs(30);
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_secs(2);

    pub fn new(client: &Client) -> Reconnect {
        Reconnect { timeout: client.server().timeout(Self::TIMEOUT), since: None, pause: Self::FIRST_PAUSE }
    }

    /// Starts anew, after the daemon made progress.
    pub fn reset(&mut self) {
        (self.since, self.pause) = (None, Self::FIRST_PAUSE);
    }

    /// Sleeps before the next attempt. False when there was no progress for too long.
    pub fn wait(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.timeout {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Self::LONGEST_PAUSE);
        true
    }
}

/// A bound on the pages of a list, whatever a daemon sends.
#[derive(Default)]
pub struct Pages(u32);

impl Pages {
    const MAX: u32 = 10_000;

    /// Refuses the next page where its cursor does not move, or where there were too many.
    pub fn advance<T: PartialEq>(&mut self, after: Option<&T>, next: Option<&T>) -> Result<(), Fault> {
        self.0 += 1;
        if self.0 < Self::MAX && after != next {
            return Ok(());
        }
        let fault = Fault::new(ErrorKind::ProviderFailed, "the daemon sends a list that does not end");
        Err(fault.phase(Phase::Delivery).hint("check that --server names a daemon of the same version"))
    }
}

fn is_impossible(word: &str) -> bool {
    matches!(word, "" | "." | "..") || word.contains(['/', '%', '\\']) || word.contains(char::is_control)
}

/// True for a lost connection, as opposed to a refusal: a fault of the daemon itself names the request that it answers.
pub fn is_disconnect(fault: &Fault) -> bool {
    fault.error_kind == ErrorKind::Unavailable && fault.request_id.is_none()
}

/// Formats a time as a daemon reads it.
pub fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// Returns a word as text, which documents are made of.
pub fn text(word: &OsStr, what: &str) -> Result<String, Fault> {
    let refuse = || {
        let fault = Fault::invalid(format!("{what} {word:?} is not UTF-8, and cannot be sent to a daemon"));
        fault.hint("run it on the daemon's host, without --server").phase(Phase::Admission)
    };
    word.to_str().map(str::to_owned).ok_or_else(refuse)
}
