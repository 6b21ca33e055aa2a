//! Receipts of an approval, a rejection or an undo, for people and programs.

use crate::connection;
use crate::render::{fault, note, print_json, safe};
use api::{LandedChange, LeftChange, Receipt, Rel};
use clap::ArgMatches;
use node::review::{NEEDS_NAME, NOT_CHOSEN, ReviewScope};
use std::collections::BTreeMap;
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
        Some(undone) => format!("{undone} was undone: {count} restored"),
        None => format!("{count} landed as {}; `cofferdam undo` reverts it", receipt.batch),
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
    if matches.get_flag("home") {
        return reject_home(matches, json);
    }
    let ask = node::review::reject::RejectChanges {
        of: ReviewScope::Words(matches.get_many::<OsString>("words").unwrap_or_default().cloned().collect()),
        hunks: matches.get_many("hunk").unwrap_or_default().cloned().collect(),
        everything: matches.get_flag("all"),
        digest: matches.get_one("digest").cloned(),
    };
    let done = connection::open(matches)
        .and_then(|engine| engine.reject(&ask).map_err(|fault| super::miss::explain(&engine, &ask.of, fault)));
    let answer = match done {
        Ok(answer) => answer,
        Err(error) => return fault(&error, json),
    };
    if json {
        print_json(&answer);
        return ExitCode::SUCCESS;
    }
    list(&answer.rejected);
    note(&format!("{} discarded in {}", files(answer.rejected.len()), answer.sandbox));
    ExitCode::SUCCESS
}

/// Changes of one top directory beyond which it is told as a whole.
const MOST_IN_DIR: usize = 50;

/// Lists changes, and directories with many of them by one line for each kind.
fn reject_home(matches: &ArgMatches, json: bool) -> ExitCode {
    let of = ReviewScope::Words(matches.get_many::<OsString>("words").unwrap_or_default().cloned().collect());
    match connection::open(matches).and_then(|engine| engine.reject_home(&of)) {
        Ok(sandbox) if json => {
            print_json(&serde_json::json!({"protocol_version": terms::PROTOCOL_VERSION, "sandbox": sandbox}));
            ExitCode::SUCCESS
        }
        Ok(sandbox) => {
            note(&format!("the home of {sandbox} was reset to its state at creation"));
            ExitCode::SUCCESS
        }
        Err(error) => fault(&error, json),
    }
}

fn list(changes: &[LandedChange]) {
    let mut out = crate::stdout::lock();
    let mut by_dir: BTreeMap<Rel, BTreeMap<String, usize>> = BTreeMap::new();
    for change in changes {
        if let Some(dir) = top_dir(&change.path) {
            *by_dir.entry(dir).or_default().entry(change.kind.to_string()).or_default() += 1;
        }
    }
    by_dir.retain(|_, kinds| kinds.values().sum::<usize>() > MOST_IN_DIR);
    for (dir, kinds) in &by_dir {
        for (kind, count) in kinds {
            // A reader that left early is no error of ours.
            let _ = writeln!(out, "{:<9} {}/ ({count} files)", safe(kind), safe(&dir.to_string()));
        }
    }
    for change in changes {
        if top_dir(&change.path).is_some_and(|dir| by_dir.contains_key(&dir)) {
            continue;
        }
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
pub fn tell_left(left: &[LeftChange], more: u64) {
    let (others, told): (Vec<&LeftChange>, Vec<&LeftChange>) = left.iter().partition(|left| left.why == NOT_CHOSEN);
    for LeftChange { path, why } in told.iter().take(MOST_TOLD) {
        note(&format!("left: {path}: {why}"));
    }
    if told.iter().any(|left| left.why.ends_with(NEEDS_NAME)) {
        note("to approve such a file, give its own path, or --runs-on-host for all of them");
    }
    let unsaid = told.len().saturating_sub(MOST_TOLD) as u64;
    match (unsaid, others.len() as u64 + more) {
        (0, 0) => {}
        (0, 1) => note("left: 1 that was not selected; `cofferdam diff` shows it"),
        (0, rest) => note(&format!("left: {rest} that were not selected; `cofferdam diff` shows them")),
        (unsaid, rest) => note(&format!("left: {} more; `cofferdam diff` shows them", unsaid + rest)),
    }
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

/// Returns the directory at the top of the tree that a path is in.
fn top_dir(path: &Rel) -> Option<Rel> {
    let mut dirs = std::iter::successors(path.split().map(|(above, _)| above), |at| at.split().map(|(above, _)| above));
    let mut top = None;
    while let Some(dir) = dirs.next().filter(|dir| !dir.is_top()) {
        top = Some(dir);
    }
    top
}
