//! Flags of the sandbox verbs, as requests.

use crate::{args, options, quantity};
use api::{Restart, Service, Sharing};
use clap::ArgMatches;
use node::create::CreateSandbox;
use node::policies::RequestedPolicy;
use node::sandbox::Which;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;
use terms::{Fault, Phase};

pub fn create(m: &ArgMatches) -> Result<CreateSandbox, Fault> {
    let mut policies: Vec<RequestedPolicy> = args::all(m, "policy").map(RequestedPolicy::of).collect();
    policies.extend(args::all(m, "settings").map(|file| RequestedPolicy::File(PathBuf::from(file))));
    let until_stop = text(m, "reserve-until").is_some_and(|when| when == "stop");
    Ok(CreateSandbox {
        dir: m.get_one::<OsString>("dir").map(PathBuf::from),
        own_base: m.get_flag("empty"),
        name: text(m, "name").cloned(),
        reserve: args::all(m, "reserve").map(OsStr::to_owned).collect(),
        sharing: Sharing { shared: m.get_flag("shared"), until_stop },
        template: text(m, "template").cloned(),
        policies,
        flags: options::flags(m),
        limits: options::limits(m)?,
        cpus: text(m, "cpus").map(|v| quantity::cpus(v).map_err(|e| bad("cpus", &e))).transpose()?,
        ttl_ms: time(m, "ttl")?,
        idle_ms: time(m, "idle")?,
        key: text(m, "idempotency-key").cloned(),
        driver: options::driver(m),
        services: services(m)?,
        report_reads: m.get_flag("report-reads"),
        ask_timeout_ms: options::ask_timeout(m)?.map(|time| time.as_millis() as u64),
        ..CreateSandbox::default()
    })
}

fn services(m: &ArgMatches) -> Result<Vec<Service>, Fault> {
    let given = m.get_many::<String>("service").unwrap_or_default();
    let restarts = restarts(m)?;
    let read = |word: &String| match word.split_once('=') {
        Some((name, command)) => {
            let restart = restarts.get(name).or(restarts.get("")).copied().unwrap_or_default();
            Ok(Service { name: name.into(), command: command.into(), env: Default::default(), cwd: None, restart })
        }
        None => Err(bad("service", &format!("{word:?}: no `=`")).hint("give NAME=COMMAND")),
    };
    let services: Vec<Service> = given.map(read).collect::<Result<_, _>>()?;
    match restarts.keys().find(|name| !name.is_empty() && !services.iter().any(|service| service.name == **name)) {
        Some(name) => {
            Err(bad("restart", &format!("{name}: no service has that name"))
                .hint("name one of those given with --service"))
        }
        None => Ok(services),
    }
}

/// Returns the restart policy of each service; under the empty name, of all others.
fn restarts(m: &ArgMatches) -> Result<BTreeMap<String, Restart>, Fault> {
    let read = |word: &String| {
        let (name, when) = word.split_once('=').unwrap_or(("", word));
        let when = match when {
            "always" => Restart::Always,
            "on-failure" => Restart::OnFailure,
            "never" => Restart::Never,
            _ => {
                return Err(
                    bad("restart", &format!("{word:?}: not a restart policy")).hint("always, on-failure or never")
                );
            }
        };
        Ok((name.to_owned(), when))
    };
    m.get_many::<String>("restart").unwrap_or_default().map(read).collect()
}

pub fn which(m: &ArgMatches) -> Which {
    let version = m.try_get_one::<u64>("if-version").ok().flatten().copied();
    Which { word: text(m, "sandbox").cloned(), version }
}

/// Returns the time that commands have to end.
pub fn patience(m: &ArgMatches) -> Result<Duration, Fault> {
    const LONGEST_MS: u64 = 24 * 3_600_000;
    let asked = text(m, "timeout").map(String::as_str).unwrap_or("10s");
    // Zero means at once.
    let ms =
        if asked.trim_end_matches('s') == "0" { 0 } else { quantity::time(asked).map_err(|e| bad("timeout", &e))? };
    Ok(Duration::from_millis(ms.min(LONGEST_MS)))
}

fn time(m: &ArgMatches, name: &str) -> Result<Option<u64>, Fault> {
    text(m, name).map(|amount| quantity::time(amount).map_err(|why| bad(name, &why))).transpose()
}

fn text<'a>(m: &'a ArgMatches, name: &str) -> Option<&'a String> {
    m.get_one::<String>(name)
}

fn bad(flag: &str, why: &str) -> Fault {
    Fault::invalid(format!("--{flag} {why}")).phase(Phase::Admission)
}

/// Returns the request for the sandbox in which a template is prepared.
pub fn prepare(m: &ArgMatches) -> Result<CreateSandbox, Fault> {
    let mut policies: Vec<RequestedPolicy> = args::all(m, "policy").map(RequestedPolicy::of).collect();
    policies.extend(args::all(m, "settings").map(|file| RequestedPolicy::File(PathBuf::from(file))));
    Ok(CreateSandbox {
        dir: m.try_get_one::<OsString>("dir").ok().flatten().map(PathBuf::from),
        policies,
        flags: options::flags(m),
        limits: options::limits(m)?,
        cpus: text(m, "cpus").map(|v| quantity::cpus(v).map_err(|e| bad("cpus", &e))).transpose()?,
        ..CreateSandbox::default()
    })
}
