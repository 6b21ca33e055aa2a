//! `cofferdam fetch`: brings commits made in a sandbox into the repository of its directory, as a reference.

use super::paint::{BOLD, Brush};
use crate::connection;
use crate::render::{fault, note, print_json, safe};
use api::{CommitMadeInside, WorkspaceFetched};
use clap::ArgMatches;
use node::Node;
use node::review::fetch::{FetchCommits, fetch};
use node::sandbox::Which;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let which = Which { word: matches.get_one::<String>("sandbox").cloned(), version: None };
    let ask = FetchCommits { which, reference: matches.get_one::<String>("as").cloned() };
    let done = connection::local(matches, "fetch").and_then(|caller| fetch(&Node::for_command(), &caller, &ask));
    match done {
        Ok(answer) if json => print_json(&answer),
        Ok(answer) => tell(&answer),
        Err(error) => return fault(&error, json),
    }
    ExitCode::SUCCESS
}

fn tell(answer: &WorkspaceFetched) {
    let mut out = crate::stdout::lock();
    // A reader that left early is no error of ours.
    let _ = commits(&mut out, &answer.commits, Brush { colours: false });
    answer.notes.iter().for_each(|text| note(text));
    let short = |id: &str| id.chars().take(12).collect::<String>();
    let (reference, commit) = (safe(&answer.reference), short(&answer.commit));
    match &answer.before {
        Some(before) if *before == answer.commit => note(&format!("{reference} is at {commit} already")),
        Some(before) => note(&format!("{reference} is at {commit} now; it was at {}", short(before))),
        None => note(&format!("{reference} is at {commit}; look with `git log ..{reference}`")),
    }
}

/// Lists commits: id, author and subject, then the paths of each.
pub fn commits(out: &mut impl Write, all: &[CommitMadeInside], brush: Brush) -> io::Result<()> {
    for CommitMadeInside { commit, author, subject, paths, paths_more, .. } in all {
        let short: String = commit.chars().take(12).collect();
        writeln!(out, "{} {} ({})", brush.paint(BOLD, &short), safe(subject), safe(author))?;
        for path in paths.iter().take(MOST_PATHS) {
            writeln!(out, "    {}", safe(&path.to_string()))?;
        }
        let more = paths.len().saturating_sub(MOST_PATHS) as u64 + paths_more;
        if more > 0 {
            writeln!(out, "    and {more} more")?;
        }
    }
    Ok(())
}

/// Paths of a commit that are listed.
const MOST_PATHS: usize = 8;
