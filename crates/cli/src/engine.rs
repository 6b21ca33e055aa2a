//! Who carries out a verb: we ourselves, or a daemon. One method for each verb, with the same answer either way; who renders it
//! does not know who gave it.

mod files;
mod make;
mod others;
mod review;
mod runs;
mod sandboxes;
mod snapshots;
mod there;

pub use others::Tell;
pub use runs::{Piece, tell_left};
pub use there::There;

use crate::surroundings;
use clap::ArgMatches;
use client::{Address, Client, Server, Token};
use node::Caller;
use std::ffi::OsString;
use std::path::PathBuf;
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
        let client = Client::new(Server::new(address, token, ca.as_deref())?)?;
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

/// What cannot be had of a daemon.
pub fn not_there(what: &str, hint: &str) -> Fault {
    let message = format!("{what} cannot be had over a daemon");
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
