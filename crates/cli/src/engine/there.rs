//! A daemon as an engine: what every verb needs to ask it.

use client::{Ask, Client};
use node::lifecycle::list::Row;
use node::lifecycle::stop::Which;
use node::{Caller, sandbox};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase};

pub struct There {
    pub client: Client,
    pub caller: Caller,
}

/// Of a list that comes in parts, as many as a daemon gives.
const PART: &str = "1000";

impl There {
    /// The sandbox that is meant, as a daemon takes it: without a word it is the one of the directory where we are.
    pub fn word(&self, word: Option<&str>) -> Result<String, Fault> {
        match word {
            // No sandbox has such a name, and no daemon would take it for one.
            Some(word) if is_odd(word) => Err(sandbox::unknown(word)),
            Some(word) => Ok(word.to_owned()),
            None => {
                let ask = Ask::get(&["v1", "covering"]).query("dir", self.here()?);
                self.client.document(ask).map(|row: Row| row.id)
            }
        }
    }

    /// Where we are, which is then a directory of the daemon's host.
    pub fn here(&self) -> Result<String, Fault> {
        text(self.caller.cwd.as_os_str(), "the current directory")
    }

    /// A path of the daemon's host, seen from where we are.
    pub fn whole(&self, path: &Path) -> Result<String, Fault> {
        text(self.caller.cwd.join(path).as_os_str(), "a path")
    }

    pub fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Fault> {
        self.client.document(Ask::get(path))
    }

    pub fn post<T: DeserializeOwned>(&self, path: &[&str], document: &impl Serialize) -> Result<T, Fault> {
        self.client.document(Ask::post(path).document(document)?)
    }

    /// Something done to one sandbox.
    pub fn to<T: DeserializeOwned>(&self, which: &Which, verb: &[&str], document: &impl Serialize) -> Result<T, Fault> {
        let word = self.word(which.word.as_deref())?;
        let path: Vec<&str> = ["v1", "sandboxes", &word].into_iter().chain(verb.iter().copied()).collect();
        self.client.document(Ask::post(&path).if_version(which.version).document(document)?)
    }

    /// A whole list, part by part: `cut` gives what is in a part and where the next begins.
    pub fn list<P: DeserializeOwned, T>(
        &self,
        ask: impl Fn() -> Ask,
        cut: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Fault> {
        let (mut all, mut after, mut parts) = (Vec::new(), None, Parts::default());
        loop {
            let part = self.client.document(ask().query("limit", PART).query_if("after", after.as_ref()))?;
            let (more, next) = cut(part);
            all.extend(more);
            match next {
                None => return Ok(all),
                Some(_) => parts.go_on(after.as_ref(), next.as_ref())?,
            }
            after = next;
        }
    }
}

/// A daemon that went away in the middle is looked for again, for a while.
pub struct Again {
    patience: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Again {
    const PATIENCE: Duration = Duration::from_secs(30);
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(2);

    pub fn new(client: &Client) -> Again {
        Again { patience: client.server().patience(Self::PATIENCE), since: None, pause: Self::FIRST }
    }

    /// It is there, and goes on.
    pub fn is_well(&mut self) {
        (self.since, self.pause) = (None, Self::FIRST);
    }

    /// It is gone: after a pause, whether it is worth another look.
    pub fn look(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.patience {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Self::LONGEST);
        true
    }
}

/// Parts of a list that were asked for: there is an end to them, whatever a daemon says.
#[derive(Default)]
pub struct Parts(u32);

impl Parts {
    const MOST: u32 = 10_000;

    /// Whether the next may be asked for.
    pub fn go_on<T: PartialEq>(&mut self, after: Option<&T>, next: Option<&T>) -> Result<(), Fault> {
        self.0 += 1;
        if self.0 < Self::MOST && after != next {
            return Ok(());
        }
        let fault = Fault::new(ErrorKind::ProviderFailed, "the daemon gives a list that does not end");
        Err(fault.phase(Phase::Delivery).hint("see that --server names a daemon of the same version"))
    }
}

fn is_odd(word: &str) -> bool {
    matches!(word, "" | "." | "..") || word.contains(['/', '%', '\\']) || word.contains(char::is_control)
}

/// What a daemon of an older version was asked for, by the word that it does not know: it refused the whole request and did nothing, and
/// the flag is named to who gave it.
pub fn if_older(fault: Fault, unknown: &str, flag: &str) -> Fault {
    if fault.error_kind != ErrorKind::InvalidRequest || !fault.message.contains(unknown) {
        return fault;
    }
    let message = format!("{flag} is not known to the daemon, which is of an older version: {}", fault.message);
    let request_id = fault.request_id.clone();
    let fault = Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Admission);
    Fault { request_id, ..fault }.hint(format!("leave {flag} out, or bring the daemon to this version"))
}

/// As a daemon reads it.
pub fn time(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// Documents are text; what is none cannot be sent.
pub fn text(word: &OsStr, what: &str) -> Result<String, Fault> {
    let refuse = || {
        let fault = Fault::invalid(format!("{what} {word:?} is no text, and cannot be sent to a daemon"));
        fault.hint("do it on the daemon's host, without --server").phase(Phase::Admission)
    };
    word.to_str().map(str::to_owned).ok_or_else(refuse)
}
