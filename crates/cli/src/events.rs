//! `cofferdam events`: the journal, read as it grows.

use crate::engine::{Engine, Tell};
use crate::render;
use crate::render::Document;
use clap::ArgMatches;
use node::audit::{Noted, Wanted};
use node::fresh;
use std::io::{self, Write};
use std::process::ExitCode;
use terms::Fault;

pub fn main(_verb: &str, m: &ArgMatches) -> ExitCode {
    let json = m.get_flag("json");
    match tell(m, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => render::fault(&fault, json),
    }
}

fn tell(m: &ArgMatches, json: bool) -> Result<(), Fault> {
    let text = |name: &str| m.get_one::<String>(name).cloned();
    let wanted = Wanted { subject: text("sandbox"), verb: text("verb"), ..Wanted::default() };
    let tell = Tell { wanted, from: m.get_one::<u64>("from").copied(), follow: m.get_flag("follow") };
    // A reader that left early is no error of ours.
    Engine::open(m)?.events(&tell, &mut |entries| print(entries, json).is_ok())
}

fn print(entries: &[Noted], json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for entry in entries {
        match json {
            true => writeln!(out, "{}", render::json_line(&Document::of(entry)))?,
            false => writeln!(out, "{}", render::safe(&sentence(entry)))?,
        }
    }
    out.flush()
}

/// An entry on one line, for people.
pub fn sentence(entry: &Noted) -> String {
    let body = if entry.body.is_null() { String::new() } else { format!(" {}", entry.body) };
    let (when, step) = (fresh::date(entry.at_ms / 1000), entry.step.name());
    format!("{} {when} {} {} {step} {}{body}", entry.seq, entry.actor, entry.verb, entry.subject)
}
