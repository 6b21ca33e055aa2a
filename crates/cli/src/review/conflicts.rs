//! `cofferdam conflicts`: files that several sandboxes changed, and files that a sandbox and its base changed.

use crate::connection;
use crate::render::{fault, note, print_json, safe};
use api::{Conflicts, ContestedBy, DisputedFile};
use clap::ArgMatches;
use node::review::conflicts::FindConflicts;
use std::io::Write;
use std::process::ExitCode;

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let ask = FindConflicts { sandbox: matches.get_one::<String>("sandbox").cloned() };
    match connection::open(matches).and_then(|engine| engine.conflicts(&ask)) {
        Ok(answer) if json => print_json(&answer),
        Ok(answer) => tell(&answer),
        Err(error) => return fault(&error, json),
    }
    ExitCode::SUCCESS
}

fn tell(answer: &Conflicts) {
    let mut out = crate::stdout::lock();
    for contested in &answer.contested {
        let by: Vec<String> = contested.by.iter().map(writer).collect();
        let _ = writeln!(out, "{}: {}", safe(&contested.path.to_string()), by.join(", then "));
    }
    let lists =
        [(&answer.drifted, "changed or touched in the base"), (&answer.unresolved, "left in conflict by a rebase")];
    for (list, what) in lists {
        for DisputedFile { path, sandbox, name } in list {
            let who = safe(name.as_deref().unwrap_or(sandbox));
            let _ = writeln!(out, "{}: {who}: {what}", safe(&path.to_string()));
        }
    }
    answer.notes.iter().for_each(|text| note(text));
    if answer.contested.is_empty() && answer.drifted.is_empty() && answer.unresolved.is_empty() {
        note(&format!("no conflicts at {}", answer.base.display()));
    }
    if !answer.drifted.is_empty() {
        note("`cofferdam rebase` merges the changes of the base");
    }
}

fn writer(writer: &ContestedBy) -> String {
    format!("{} by {}", writer.kind, safe(writer.name.as_deref().unwrap_or(&writer.sandbox)))
}
