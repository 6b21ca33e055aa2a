//! `cofferdam events`: the journal, read as it grows.

use crate::render::Document;
use crate::{render, surroundings};
use clap::ArgMatches;
use node::audit::{Noted, Tail, Wanted};
use node::fresh;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;
use terms::Fault;

/// How often somebody who follows looks for more.
const PAUSE: Duration = Duration::from_millis(250);
/// How many are read at once.
const AT_ONCE: u32 = 500;
/// Where one begins who does not say.
const LAST: u64 = 100;

pub fn main(_verb: &str, m: &ArgMatches) -> ExitCode {
    let json = m.get_flag("json");
    match tell(m, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => render::fault(&fault, json),
    }
}

fn tell(m: &ArgMatches, json: bool) -> Result<(), Fault> {
    let caller = surroundings::caller()?;
    let text = |name: &str| m.get_one::<String>(name).cloned();
    let wanted = Wanted { subject: text("sandbox"), verb: text("verb"), ..Wanted::default() };
    let from = match m.get_one::<u64>("from") {
        Some(from) => *from,
        None => Tail::open(&caller, None, Wanted::default())?.at().saturating_sub(LAST),
    };
    let mut tail = Tail::open(&caller, Some(from), wanted)?;
    loop {
        let entries = tail.next(AT_ONCE)?;
        if print(&entries, json).is_err() {
            // A reader that left early is no error of ours.
            return Ok(());
        }
        match (entries.is_empty(), m.get_flag("follow")) {
            (false, _) => {}
            (true, false) => return Ok(()),
            (true, true) => std::thread::sleep(PAUSE),
        }
    }
}

fn print(entries: &[Noted], json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for entry in entries {
        match json {
            true => writeln!(out, "{}", line(&Document::of(entry))?)?,
            false => writeln!(out, "{}", render::safe(&sentence(entry)))?,
        }
    }
    out.flush()
}

fn line(document: &Document<&Noted>) -> io::Result<String> {
    serde_json::to_string(document).map_err(io::Error::other)
}

/// An entry on one line, for people.
pub fn sentence(entry: &Noted) -> String {
    let body = if entry.body.is_null() { String::new() } else { format!(" {}", entry.body) };
    let (when, step) = (fresh::date(entry.at_ms / 1000), entry.step.name());
    format!("{} {when} {} {} {step} {}{body}", entry.seq, entry.actor, entry.verb, entry.subject)
}
