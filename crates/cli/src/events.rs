//! `cofferdam events`: the journal, read as it grows.

use crate::connection;
use crate::render;
use crate::render::Document;
use api::JournalEntry;
use clap::ArgMatches;
use client::EventQuery;
use node::audit::JournalFilter;
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
    if let (true, Some(sandbox)) = (m.get_flag("network"), text("sandbox")) {
        let from = m.get_one::<u64>("from").copied().unwrap_or(0);
        let follow = m.get_flag("follow");
        return connection::open(m)?
            .network(&sandbox, from, follow, &mut |behind, line| print_line(behind, line, json).is_ok());
    }
    let wanted = JournalFilter { subject: text("sandbox"), verb: text("verb"), ..JournalFilter::default() };
    let tell = EventQuery { wanted, from: m.get_one::<u64>("from").copied(), follow: m.get_flag("follow") };
    // A reader that left early is no error of ours.
    connection::open(m)?.events(&tell, &mut |entries| print(entries, json).is_ok())
}

fn print(entries: &[JournalEntry], json: bool) -> io::Result<()> {
    let mut out = crate::stdout::lock();
    for entry in entries {
        match json {
            true => writeln!(out, "{}", render::json_line(&Document::of(entry)))?,
            false => writeln!(out, "{}", render::safe(&sentence(entry)))?,
        }
    }
    out.flush()
}

fn print_line(behind: u64, line: &str, json: bool) -> io::Result<()> {
    let mut out = crate::stdout::lock();
    match json {
        true => writeln!(out, "{line}")?,
        false => writeln!(out, "{behind} {}", render::safe(&network_line(line)))?,
    }
    out.flush()
}

/// Formats a network event for people: time, run, operation, target, decision and bytes.
fn network_line(line: &str) -> String {
    let Ok(event) = serde_json::from_str::<serde_json::Value>(line) else { return line.to_owned() };
    let word = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
    if event["op"] == "net.lost" {
        let reason = event["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
        return format!("{} net.lost {} events are missing{reason}", word("time"), event["count"]);
    }
    let name =
        [word("name"), word("address"), word("path")].into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    let port = event["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    let request =
        if event["method"].is_null() { String::new() } else { format!(" {} {}", word("method"), word("path")) };
    let bytes = format!("{} in, {} out", event["bytes_in"], event["bytes_out"]);
    let (when, run, op, stage) = (word("time"), word("run"), word("op"), word("stage"));
    let (action, rule, revision) = (word("action"), word("rule"), &event["revision"]);
    format!("{when} {run} {op} {stage} {name}{port}{request}: {action} by {rule}, revision {revision}; {bytes}")
}

/// Formats an entry of the journal on one line, for people.
pub fn sentence(entry: &JournalEntry) -> String {
    let body = if entry.body.is_null() { String::new() } else { format!(" {}", entry.body) };
    let (when, step) = (terms::clock::date(entry.at_ms / 1000), entry.step.name());
    format!("{} {when} {} {} {step} {}{body}", entry.seq, entry.actor, entry.verb, entry.subject)
}
