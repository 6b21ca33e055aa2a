//! `cofferdam config`, and the configuration of whoever serves.

use crate::{args, render, surroundings};
use clap::ArgMatches;
use node::Caller;
use node::config::{Config, KEYS, Kind, Setting};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use terms::{Fault, PROTOCOL_VERSION};

/// Carries out one of the verbs of `args::operations`.
pub fn main(_verb: &str, matches: &ArgMatches) -> ExitCode {
    let (inner_verb, inner) = matches.subcommand().unwrap_or(("", matches));
    let json = inner.get_flag("json");
    let done = surroundings::caller().and_then(|caller| match inner_verb {
        "check" => check(inner, &caller, json),
        _ => show(inner, &caller, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

/// The configuration that a verb was given: its file, the environment, its flags.
pub fn load(m: &ArgMatches, caller: &Caller) -> Result<Config, Fault> {
    let file = m.get_one::<OsString>("config").map(PathBuf::from);
    Config::load(file.as_deref(), &args::operations::flagged(m), caller)
}

#[derive(Serialize)]
struct Shown<'a> {
    protocol_version: u32,
    file: &'a Option<PathBuf>,
    settings: &'a [Setting],
}

fn show(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let config = load(m, caller)?;
    if json {
        let (file, settings) = (&config.file, config.settings());
        render::print_json(&Shown { protocol_version: PROTOCOL_VERSION, file, settings });
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = crate::sandboxes::table::Table::new(&["KEY", "VALUE", "ORIGIN"]);
    for setting in config.settings() {
        let kind = node::config::keys::of(&setting.key).map_or(Kind::Text, |key| key.kind);
        table.row(vec![setting.key.clone(), kind.show(&setting.value), setting.origin.to_string()]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn check(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let config = load(m, caller)?;
    if json {
        let (file, settings) = (&config.file, config.settings());
        render::print_json(&Shown { protocol_version: PROTOCOL_VERSION, file, settings });
        return Ok(ExitCode::SUCCESS);
    }
    let source = config.file.as_ref().map_or("no file".into(), |file| file.display().to_string());
    let set = config.settings().iter().filter(|s| s.origin != node::config::Origin::Default).count();
    let line = format!("sound: {source}; {set} of {} values are set", KEYS.len());
    let _ = writeln!(std::io::stdout(), "{}", render::safe(&line));
    Ok(ExitCode::SUCCESS)
}
