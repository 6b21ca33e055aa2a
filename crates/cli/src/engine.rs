//! Who carries out a verb: we ourselves, or a daemon. One method for each verb, with the same answer either way; who renders it
//! does not know who gave it.

mod files;
mod make;
mod network;
mod others;
mod review;
mod runs;
mod sandboxes;
mod snapshots;
mod there;

pub use network::{Following, follow_network};
pub use others::Tell;
pub use runs::{Piece, Values, tell_left};
pub use there::There;

use crate::surroundings;
use clap::ArgMatches;
use client::{Address, Client, Server, Token};
use node::Caller;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

pub enum Engine {
    Here(Caller),
    There(There),
}

impl Engine {
    /// The daemon that flags or the environment name; else we ourselves.
    pub fn open(m: &ArgMatches) -> Result<Engine, Fault> {
        let caller = surroundings::caller()?;
        let Some(named) = named(m, &caller)? else { return Ok(Engine::Here(caller)) };
        let address = Address::parse(&named)?;
        if caller.var("COFFERDAM_TOKEN").is_some() {
            let fault =
                Fault::invalid("COFFERDAM_TOKEN: a token in the environment is seen by all that is started there");
            return Err(fault
                .hint("put it into a file of mode 600 and name that in COFFERDAM_TOKEN_FILE")
                .phase(Phase::Admission));
        }
        let token =
            file(m, "token-file", "COFFERDAM_TOKEN_FILE", &caller).map(|file| Token::read(&file)).transpose()?;
        // Of the environment it holds for daemons that are spoken to with TLS.
        let ca = match &address {
            Address::Https { .. } => file(m, "server-ca", "COFFERDAM_SERVER_CA", &caller),
            _ => m.get_one::<OsString>("server-ca").map(PathBuf::from),
        };
        let server = Server::new(address, token, ca.as_deref())?.within(patience(m, &caller)?);
        let client = Client::new(server)?;
        Ok(Engine::There(There { client, caller }))
    }

    /// Ourselves, for a verb that no daemon can carry out.
    pub fn here(m: &ArgMatches, verb: &str) -> Result<Caller, Fault> {
        let caller = surroundings::caller()?;
        match named(m, &caller)? {
            None => Ok(caller),
            Some(server) => {
                let message =
                    format!("`{verb}` is about this host and is not done by a daemon, and {server} was named");
                let hint = "leave --server out, or unset COFFERDAM_SERVER";
                Err(Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Admission))
            }
        }
    }

    /// Whoever asks, wherever it is carried out.
    pub fn caller(&self) -> &Caller {
        match self {
            Engine::Here(caller) => caller,
            Engine::There(there) => &there.caller,
        }
    }
}

/// How long a daemon may say nothing, where somebody says it.
fn patience(m: &ArgMatches, caller: &Caller) -> Result<Option<Duration>, Fault> {
    let flag = m.try_get_one::<String>("server-timeout").ok().flatten().cloned();
    let variable = || caller.var("COFFERDAM_SERVER_TIMEOUT").filter(|value| !value.is_empty());
    let Some(word) = flag.or_else(|| variable().map(|value| value.to_string_lossy().into_owned())) else {
        return Ok(None);
    };
    let wrong = |why: String| Fault::invalid(format!("--server-timeout {why}")).phase(Phase::Admission);
    let patience = Duration::from_millis(terms::quantity::time(&word).map_err(wrong)?);
    match patience.is_zero() {
        true => Err(wrong(format!("{word:?}: no time at all")).hint("give e.g. 30s")),
        false => Ok(Some(patience)),
    }
}

/// A verb that looks at documents alone: whoever names a daemon is told that it is not asked.
pub fn asks_nobody(m: &ArgMatches, verb: &str) {
    if m.try_get_one::<String>("server").ok().flatten().is_some() {
        crate::render::note(&format!("`{verb}` is done here, and the daemon is not asked"));
    }
}

/// What cannot be had of a daemon, and why.
pub fn not_there(what: &str, why: &str, hint: &str) -> Fault {
    let message = format!("{what} cannot be had over a daemon: {why}");
    Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Admission)
}

fn named(m: &ArgMatches, caller: &Caller) -> Result<Option<String>, Fault> {
    if let Some(given) = m.try_get_one::<String>("server").ok().flatten() {
        return Ok(Some(given.clone()));
    }
    match caller.var("COFFERDAM_SERVER").filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(Fault::invalid("COFFERDAM_SERVER is no text").phase(Phase::Admission)),
        },
    }
}

fn file(m: &ArgMatches, flag: &str, variable: &str, caller: &Caller) -> Option<PathBuf> {
    let given = m.try_get_one::<OsString>(flag).ok().flatten().cloned();
    let given = given.or_else(|| caller.var(variable).filter(|value| !value.is_empty()).map(OsString::from));
    given.map(|file| caller.cwd.join(file))
}
