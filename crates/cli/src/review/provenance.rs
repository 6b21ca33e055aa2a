//! `cofferdam provenance`: the approvals that the file at a path came from.

use crate::connection;
use crate::render::{fault, note, print_json, safe};
use api::Provenance;
use clap::ArgMatches;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let path = matches.get_one::<OsString>("path").cloned().unwrap_or_default();
    match connection::open(matches).and_then(|engine| engine.provenance(&path)) {
        Ok(answer) if json => print_json(&answer),
        Ok(answer) => tell(&answer),
        Err(error) => return fault(&error, json),
    }
    ExitCode::SUCCESS
}

fn tell(answer: &Provenance) {
    let mut out = crate::stdout::lock();
    for landed in &answer.batches {
        let record = &landed.record;
        let verb = if landed.is_undo() { "undone" } else { "approved" };
        let sandbox = record.sandbox_name.as_deref().unwrap_or(&record.sandbox);
        let when = terms::clock::date(record.at_ms / 1000);
        let mut line = format!("{} {verb} by {} from {sandbox}, {when}", landed.batch, record.actor);
        if let Some(run) = record.runs.last() {
            line.push_str(&format!(", {run}"));
        }
        for inside in
            record.inside.iter().filter(|inside| landed.paths.iter().any(|at| at.is_at_or_below(&inside.path)))
        {
            line.push_str(&format!(", commit {} in {}", inside.commit, inside.path));
        }
        if let Some(commit) = &record.commit {
            line.push_str(&format!(", commit {commit}"));
        }
        if let Some(by) = &record.undone_by {
            line.push_str(&format!(", undone by {by}"));
        }
        // A reader that left early is no error of ours.
        let _ = writeln!(out, "{}", safe(&line));
        for path in &landed.paths {
            let _ = writeln!(out, "  {}", safe(&path.to_string()));
        }
        if landed.paths_more > 0 {
            let _ = writeln!(out, "  and {} more", landed.paths_more);
        }
    }
    if answer.more {
        note("older approvals are not listed");
    }
}
