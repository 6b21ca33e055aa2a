//! `cofferdam rebase`: the result for each file that the base had changed as well.

use crate::connection;
use crate::render::{fault, note, print_json, safe};
use api::{RebaseFate, RebasedFile, WorkspaceRebased};
use clap::ArgMatches;
use node::review::rebase::RebaseSandbox;
use node::sandbox::Which;
use std::io::Write;
use std::process::ExitCode;

/// Exit status when conflicts are left, as with `git merge`.
const CONFLICTS: u8 = 1;

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let which = Which { word: matches.get_one::<String>("sandbox").cloned(), version: None };
    let ask = RebaseSandbox { which, dry_run: matches.get_flag("dry-run") };
    let answer = match connection::open(matches).and_then(|engine| engine.rebase(&ask)) {
        Ok(answer) => answer,
        Err(error) => return fault(&error, json),
    };
    match json {
        true => print_json(&answer),
        false => tell(&answer),
    }
    if answer.conflicts > 0 { ExitCode::from(CONFLICTS) } else { ExitCode::SUCCESS }
}

fn tell(answer: &WorkspaceRebased) {
    let mut out = crate::stdout::lock();
    for RebasedFile { path, fate, .. } in &answer.files {
        let (word, why) = match fate {
            RebaseFate::Merged => ("merged", String::new()),
            RebaseFate::Kept => ("kept", String::new()),
            RebaseFate::Dropped => ("as in the base", String::new()),
            RebaseFate::Conflict { why, .. } => ("conflict", format!(": {}", safe(why))),
        };
        // A reader that left early is no error of ours.
        let _ = writeln!(out, "{word:<14} {}{why}", safe(&path.to_string()));
    }
    answer.notes.iter().for_each(|text| note(text));
    let would = if answer.dry_run { "would be rebased" } else { "was brought" };
    let files = |count: usize| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
    note(&match (answer.files.len(), answer.conflicts) {
        (0, _) => format!("{} {would} onto the current base; nothing had to be merged", answer.sandbox),
        (all, 0) => format!("{} {would} onto the current base: {}", answer.sandbox, files(all)),
        (_, open) => format!("{} {would} onto the current base; {} in conflict", answer.sandbox, files(open)),
    });
    if answer.conflicts > 0 && !answer.dry_run {
        note(&format!(
            "the workspace has conflict markers (<<<<<<<); resolve them there, e.g. `cofferdam shell {}`, or approve a file by its name",
            answer.sandbox
        ));
    }
}
