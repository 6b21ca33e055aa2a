//! Receipts of an approval, a rejection or an undo, for people and programs.

use crate::connection;
use crate::render::{fault, note, print_json, safe};
use clap::ArgMatches;
use node::review::{LandedChange, Left, NEEDS_NAME, NOT_CHOSEN, Of, Receipt};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Changes left behind that are listed at most on a terminal.
const MOST_TOLD: usize = 20;

pub fn show(receipt: &Receipt, json: bool) -> ExitCode {
    if json {
        print_json(receipt);
        return ExitCode::SUCCESS;
    }
    list(&receipt.landed);
    tell_left(&receipt.left, receipt.left_more);
    receipt.notes.iter().for_each(|text| note(text));
    for inside in &receipt.inside {
        note(&format!("committed in {} as {} on {}", inside.path, inside.commit, inside.branch));
    }
    if let Some(commit) = &receipt.commit {
        note(&format!("committed as {commit}"));
    }
    let count = files(receipt.landed.len());
    note(&match &receipt.undoes {
        Some(undone) => format!("{undone} was taken back: {count} as before"),
        None => format!("{count} landed as {}; `cofferdam undo` takes it back", receipt.batch),
    });
    ExitCode::SUCCESS
}

pub fn undo(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let batch = matches.get_one::<String>("batch").map(String::as_str);
    match connection::open(matches).and_then(|engine| engine.undo(batch)) {
        Ok(receipt) => show(&receipt, json),
        Err(error) => fault(&error, json),
    }
}

pub fn reject(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let ask = node::review::reject::Ask {
        of: Of::Words(matches.get_many::<OsString>("words").unwrap_or_default().cloned().collect()),
        hunks: matches.get_many("hunk").unwrap_or_default().cloned().collect(),
        everything: matches.get_flag("all"),
        digest: matches.get_one("digest").cloned(),
    };
    let answer = match connection::open(matches).and_then(|engine| engine.reject(&ask)) {
        Ok(answer) => answer,
        Err(error) => return fault(&error, json),
    };
    if json {
        print_json(&answer);
        return ExitCode::SUCCESS;
    }
    list(&answer.rejected);
    note(&format!("{} thrown away in {}", files(answer.rejected.len()), answer.sandbox));
    ExitCode::SUCCESS
}

fn list(changes: &[LandedChange]) {
    let mut out = crate::stdout::lock();
    for change in changes {
        let from = change.from.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
        let part =
            change.hunks.as_ref().map(|hunks| safe(&format!(" (only {})", hunks.join(", ")))).unwrap_or_default();
        // A reader that left early is no error of ours.
        let _ = writeln!(
            out,
            "{:<9} {}{}{part}",
            safe(&change.kind.to_string()),
            safe(&change.path.to_string()),
            safe(&from)
        );
    }
}

/// Lists the changes left behind that were chosen, or may have been meant; the rest is counted.
pub fn tell_left(left: &[Left], more: u64) {
    let (others, told): (Vec<&Left>, Vec<&Left>) = left.iter().partition(|left| left.why == NOT_CHOSEN);
    for Left { path, why } in told.iter().take(MOST_TOLD) {
        note(&format!("left: {path}: {why}"));
    }
    if told.iter().any(|left| left.why.ends_with(NEEDS_NAME)) {
        note("to let such a file through, give its own path, or --runs-on-host for all of them");
    }
    let unsaid = told.len().saturating_sub(MOST_TOLD) as u64;
    match (unsaid, others.len() as u64 + more) {
        (0, 0) => {}
        (0, 1) => note("left: 1 that was not chosen; `cofferdam diff` shows it"),
        (0, rest) => note(&format!("left: {rest} that were not chosen; `cofferdam diff` shows them")),
        (unsaid, rest) => note(&format!("left: {} more; `cofferdam diff` shows them", unsaid + rest)),
    }
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}
