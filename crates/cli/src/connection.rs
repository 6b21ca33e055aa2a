//! The engine of a verb: the daemon that flags or the environment name, else this process.

use crate::surroundings;
use clap::ArgMatches;
use client::transport::{Address, BearerToken, Client, Server};
use client::{Engine, Remote};
use node::{Caller, Node};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// Opens the daemon that flags or the environment name; without one, verbs are carried out in this process.
pub fn open(m: &ArgMatches) -> Result<Engine, Fault> {
    let caller = surroundings::caller()?;
    let Some(named) = named(m, &caller)? else { return Ok(Engine::Local(Node::for_command(), caller)) };
    let address = Address::parse(&named)?;
    if caller.var("COFFERDAM_TOKEN").is_some() {
        let fault = Fault::invalid("COFFERDAM_TOKEN: every program started there can read a token in the environment");
        return Err(fault
            .hint("put it into a file of mode 600 and name the file in COFFERDAM_TOKEN_FILE")
            .phase(Phase::Admission));
    }
    let token =
        file(m, "token-file", "COFFERDAM_TOKEN_FILE", &caller).map(|file| BearerToken::read(&file)).transpose()?;
    // The variable is ignored for addresses without TLS; the flag is an error there.
    let ca = match &address {
        Address::Https { .. } => file(m, "server-ca", "COFFERDAM_SERVER_CA", &caller),
        _ => m.get_one::<OsString>("server-ca").map(PathBuf::from),
    };
    let server = Server::new(address, token, ca.as_deref())?.with_max_timeout(timeout(m, &caller)?);
    let client = Client::new(server)?;
    Ok(Engine::Remote(Remote::new(client, caller)))
}

/// Returns the caller for `serve`. A flag that names a daemon is a fault; the variable is for the clients of this one, and ignored.
pub fn daemon(m: &ArgMatches, verb: &str) -> Result<Caller, Fault> {
    match m.try_get_one::<String>("server").ok().flatten() {
        None => surroundings::caller(),
        Some(_) => local(m, verb),
    }
}

/// Returns the caller for a verb that no daemon can carry out; a daemon that is named is a fault.
pub fn local(m: &ArgMatches, verb: &str) -> Result<Caller, Fault> {
    let caller = surroundings::caller()?;
    match named(m, &caller)? {
        None => Ok(caller),
        Some(server) => {
            let message = format!("`{verb}` works on this host only and cannot run at the daemon {server}");
            let hint = "leave --server out, or unset COFFERDAM_SERVER";
            Err(Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Admission))
        }
    }
}

/// Returns the upper bound on timeouts that a flag or the environment sets.
fn timeout(m: &ArgMatches, caller: &Caller) -> Result<Option<Duration>, Fault> {
    let flag = m.try_get_one::<String>("server-timeout").ok().flatten().cloned();
    let variable = || caller.var("COFFERDAM_SERVER_TIMEOUT").filter(|value| !value.is_empty());
    let Some(word) = flag.or_else(|| variable().map(|value| value.to_string_lossy().into_owned())) else {
        return Ok(None);
    };
    let wrong = |why: String| Fault::invalid(format!("--server-timeout {why}")).phase(Phase::Admission);
    let timeout = Duration::from_millis(terms::quantity::time(&word).map_err(wrong)?);
    match timeout.is_zero() {
        true => Err(wrong(format!("{word:?}: the time is zero")).hint("give e.g. 30s")),
        false => Ok(Some(timeout)),
    }
}

/// Prints a note where a daemon is named for a verb that only reads documents, and does not ask one.
pub fn note_local(m: &ArgMatches, verb: &str) {
    if m.try_get_one::<String>("server").ok().flatten().is_some() {
        crate::render::note(&format!("`{verb}` runs here, not at the daemon"));
    }
}

/// Returns the daemon that flags or the environment name.
fn named(m: &ArgMatches, caller: &Caller) -> Result<Option<String>, Fault> {
    if let Some(given) = m.try_get_one::<String>("server").ok().flatten() {
        return Ok(Some(given.clone()));
    }
    match caller.var("COFFERDAM_SERVER").filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(Fault::invalid("COFFERDAM_SERVER is not UTF-8").phase(Phase::Admission)),
        },
    }
}

fn file(m: &ArgMatches, flag: &str, variable: &str, caller: &Caller) -> Option<PathBuf> {
    let given = m.try_get_one::<OsString>(flag).ok().flatten().cloned();
    let given = given.or_else(|| caller.var(variable).filter(|value| !value.is_empty()).map(OsString::from));
    given.map(|file| caller.cwd.join(file))
}
