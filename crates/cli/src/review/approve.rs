//! `cofferdam approve`: sends the chosen and reviewed changes to the verb, and prints the receipt.

use super::interactive;
use super::lexer;
use super::miss;
use super::paint::{self, Brush};
use super::receipt;
use crate::connection;
use crate::render::fault;
use api::{CommitAuthor, Receipt, WorkspaceDiff};
use clap::ArgMatches;
use client::Engine;
use node::review::ReviewScope;
use node::review::approve::{ApproveChanges, ReviewedDiff, selected_changes};
use node::review::commit::CommitOptions;
use node::review::commits;
use node::review::diff::{self, DiffReader};
use node::sandbox::Which;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use terms::{Fault, Phase};

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let done = connection::open(matches).and_then(|engine| {
        if let Some(tip) = matches.get_one::<String>("commits") {
            let landed = engine.approve_commits(&of_commits(matches, tip));
            return landed.map(|receipt| ApproveEnd::Landed(Box::new(receipt)));
        }
        let ask = match matches.get_flag("interactive") {
            true => chosen_by_hand(matches, &engine)?,
            false => as_told(matches, &engine)?,
        };
        let Some(ask) = ask else { return Ok(ApproveEnd::Declined) };
        let landed = engine.approve(&ask).map(|receipt| ApproveEnd::Landed(Box::new(receipt)));
        landed.or_else(|fault| {
            let is_open = ask.hunks.is_empty() && ask.exact.is_empty() && !matches!(ask.seen, ReviewedDiff::Digest(_));
            match miss::nothing_left(&engine, &ask.of, &fault).filter(|_| is_open) {
                Some(answer) => Ok(ApproveEnd::NothingLeft(Box::new(answer))),
                None => Err(miss::explain(&engine, &ask.of, fault)),
            }
        })
    });
    match done {
        Ok(ApproveEnd::Landed(answer)) => receipt::show(&answer, json),
        Ok(ApproveEnd::NothingLeft(answer)) => nothing_left(&answer, json),
        Ok(ApproveEnd::Declined) => {
            crate::render::note("nothing was approved");
            ExitCode::SUCCESS
        }
        Err(error) => fault(&error, json),
    }
}

/// The end of an approval.
enum ApproveEnd {
    Landed(Box<Receipt>),
    NothingLeft(Box<WorkspaceDiff>),
    Declined,
}

fn nothing_left(answer: &WorkspaceDiff, json: bool) -> ExitCode {
    let name = answer.name.as_ref().unwrap_or(&answer.sandbox);
    let withheld: u64 = answer.diff.withheld.iter().map(|withheld| withheld.files).sum();
    let mut said = format!("nothing is left to approve in {name}");
    if withheld > 0 {
        said.push_str(&format!("; {withheld} files are withheld (`cofferdam diff --all`)"));
    }
    if json {
        let nothing: [(); 0] = [];
        return crate::render::print_document(serde_json::json!({
            "success": true, "sandbox": answer.sandbox, "landed": nothing, "left": nothing, "notes": [said],
        }));
    }
    crate::render::note(&said);
    ExitCode::SUCCESS
}

fn of_commits(matches: &ArgMatches, tip: &str) -> commits::ApproveCommits {
    commits::ApproveCommits {
        of: ReviewScope::Words(matches.get_many("words").unwrap_or_default().cloned().collect()),
        runs_on_host: matches.get_flag("runs-on-host"),
        seen: seen(matches),
        tip: Some(tip.to_owned()).filter(|tip| !tip.is_empty()),
    }
}

fn seen(matches: &ArgMatches) -> ReviewedDiff {
    match matches.get_one::<String>("digest") {
        Some(digest) => ReviewedDiff::Digest(digest.clone()),
        None if matches.get_flag("unseen") => ReviewedDiff::Unseen,
        None => ReviewedDiff::Last,
    }
}

fn as_told(matches: &ArgMatches, engine: &Engine) -> Result<Option<ApproveChanges>, Fault> {
    let words: Vec<OsString> = matches.get_many("words").unwrap_or_default().cloned().collect();
    let of = ReviewScope::Words(words);
    let hunks = matches.get_many("hunk").unwrap_or_default().cloned().collect();
    let seen = seen(matches);
    let (everything, runs_on_host) = (matches.get_flag("all"), matches.get_flag("runs-on-host"));
    let ask = ApproveChanges { of, everything, exact: Vec::new(), hunks, runs_on_host, seen, commit: commit(matches)? };
    if ask.seen != ReviewedDiff::Last || !has_terminal() || engine.was_shown(&ask.of)? {
        return Ok(Some(ask));
    }
    let digest = confirm_unreviewed(engine, &ask)?;
    Ok(digest.map(|digest| ApproveChanges { seen: ReviewedDiff::Digest(digest), ..ask }))
}

fn chosen_by_hand(matches: &ArgMatches, engine: &Engine) -> Result<Option<ApproveChanges>, Fault> {
    if !has_terminal() {
        let fault = Fault::invalid("approve -i asks questions, and there is no terminal to ask on");
        return Err(fault.hint("choose with paths, --hunk or --runs-on-host").phase(Phase::Admission));
    }
    let words = matches.get_many("words").unwrap_or_default().cloned().collect();
    // A reader who quits the pager early has not seen the whole diff.
    let ask =
        diff::ReadDiff { of: ReviewScope::Words(words), everything: false, reader: DiffReader::Program, page: None };
    let answer = engine.diff(&ask)?;
    let (paths, hunks) = interactive::ask(&answer.diff, brush()).map_err(|e| Fault::internal(e.to_string()))?;
    if paths.is_empty() && hunks.is_empty() {
        return Ok(None);
    }
    let of = ReviewScope::sandbox(Which { word: Some(answer.sandbox), version: None });
    let seen = ReviewedDiff::Digest(answer.diff.digest);
    let (everything, commit) = (false, commit(matches)?);
    Ok(Some(ApproveChanges { of, everything, exact: paths, hunks, runs_on_host: false, seen, commit }))
}

fn commit(matches: &ArgMatches) -> Result<Option<CommitOptions>, Fault> {
    if !matches.get_flag("commit") {
        return Ok(None);
    }
    let Some(message) = matches.get_one::<String>("message").cloned() else {
        let fault = Fault::invalid("a commit needs a message").hint("give it with -m TEXT");
        return Err(fault.phase(Phase::Admission));
    };
    let author = match matches.get_one::<String>("author").map(String::as_str) {
        Some("agent") => CommitAuthor::Agent,
        Some("coauthored") => CommitAuthor::Coauthored,
        _ => CommitAuthor::Reviewer,
    };
    Ok(Some(CommitOptions { message, author }))
}

fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn brush() -> Brush {
    Brush { colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
}

/// Changes listed at most before the question.
const MOST_LISTED: usize = 40;

/// Lists the chosen changes that would land and asks for confirmation, where no diff was reviewed before.
fn confirm_unreviewed(engine: &Engine, ask: &ApproveChanges) -> Result<Option<String>, Fault> {
    let (sandbox, paths) = engine.meant(&ask.of)?;
    // The digest covers the whole diff, whatever is chosen. A list of names is no review, so a no records nothing.
    let of = ReviewScope::sandbox(Which { word: Some(sandbox), version: None });
    let answer = engine.diff(&diff::ReadDiff { of, everything: false, reader: DiffReader::Program, page: None })?;
    let Some(chosen) = selected_changes(&answer.diff, paths, ask)? else { return Ok(Some(answer.diff.digest)) };
    let mut out = io::stderr().lock();
    for pick in chosen.picks.iter().take(MOST_LISTED) {
        let _ = writeln!(out, "  {}", paint::title(&pick.file.change, brush()));
        let language = lexer::of(&String::from_utf8_lossy(pick.file.change.path.as_bytes()));
        for hunk in pick.hunks.iter().flatten() {
            let _ = write!(out, "{}", paint::hunk(hunk, language, brush()));
        }
    }
    let count = chosen.picks.len();
    if count > MOST_LISTED {
        let _ = writeln!(out, "  … and {} more; `cofferdam diff --name-only` lists all", count - MOST_LISTED);
    }
    receipt::tell_left(&chosen.left, 0);
    let (these, them) = match count {
        1 => ("this change".to_owned(), "it"),
        _ => (format!("these {count} changes"), "them"),
    };
    let _ = write!(out, "{these} have not been shown by `cofferdam diff` yet; approve {them}? [y/N] ");
    let _ = out.flush();
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(|e| Fault::internal(e.to_string()))?;
    Ok(matches!(line.trim(), "y" | "yes").then_some(answer.diff.digest))
}
