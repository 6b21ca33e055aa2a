//! `cofferdam approve`: sends the chosen and reviewed changes to the verb, and prints the receipt.

use super::interactive;
use super::lexer;
use super::paint::{self, Brush};
use super::receipt;
use crate::connection;
use crate::render::fault;
use clap::ArgMatches;
use client::Engine;
use node::review::Of;
use node::review::approve::{Ask, Seen, covered};
use node::review::commit::{Author, Wish};
use node::review::diff::{self, Reader};
use node::sandbox::Which;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use terms::{Fault, Phase};

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let done = connection::open(matches).and_then(|engine| {
        let ask = match matches.get_flag("interactive") {
            true => chosen_by_hand(matches, &engine)?,
            false => as_told(matches, &engine)?,
        };
        ask.map(|ask| engine.approve(&ask)).transpose()
    });
    match done {
        Ok(Some(answer)) => receipt::show(&answer, json),
        Ok(None) => {
            crate::render::note("nothing was approved");
            ExitCode::SUCCESS
        }
        Err(error) => fault(&error, json),
    }
}

fn as_told(matches: &ArgMatches, engine: &Engine) -> Result<Option<Ask>, Fault> {
    let words: Vec<OsString> = matches.get_many("words").unwrap_or_default().cloned().collect();
    let of = Of::Words(words);
    let hunks = matches.get_many("hunk").unwrap_or_default().cloned().collect();
    let seen = match matches.get_one::<String>("digest") {
        Some(digest) => Seen::Digest(digest.clone()),
        None if matches.get_flag("unseen") => Seen::Unseen,
        None => Seen::Last,
    };
    let (everything, runs_on_host) = (matches.get_flag("all"), matches.get_flag("runs-on-host"));
    let ask = Ask { of, everything, exact: Vec::new(), hunks, runs_on_host, seen, commit: commit(matches)? };
    if ask.seen != Seen::Last || !has_terminal() || engine.was_shown(&ask.of)? {
        return Ok(Some(ask));
    }
    let digest = confirm_unreviewed(engine, &ask)?;
    Ok(digest.map(|digest| Ask { seen: Seen::Digest(digest), ..ask }))
}

fn chosen_by_hand(matches: &ArgMatches, engine: &Engine) -> Result<Option<Ask>, Fault> {
    if !has_terminal() {
        let fault = Fault::invalid("approve -i asks questions, and there is no terminal to ask on");
        return Err(fault.hint("choose with paths, --hunk or --runs-on-host").phase(Phase::Admission));
    }
    let words = matches.get_many("words").unwrap_or_default().cloned().collect();
    // A reader who quits the pager early has not seen the whole diff.
    let ask = diff::Ask { of: Of::Words(words), everything: false, reader: Reader::Program, page: None };
    let answer = engine.diff(&ask)?;
    let (paths, hunks) = interactive::ask(&answer.diff, brush()).map_err(|e| Fault::internal(e.to_string()))?;
    if paths.is_empty() && hunks.is_empty() {
        return Ok(None);
    }
    let of = Of::sandbox(Which { word: Some(answer.sandbox), version: None });
    let seen = Seen::Digest(answer.diff.digest);
    let (everything, commit) = (false, commit(matches)?);
    Ok(Some(Ask { of, everything, exact: paths, hunks, runs_on_host: false, seen, commit }))
}

fn commit(matches: &ArgMatches) -> Result<Option<Wish>, Fault> {
    if !matches.get_flag("commit") {
        return Ok(None);
    }
    let Some(message) = matches.get_one::<String>("message").cloned() else {
        let fault = Fault::invalid("a commit needs a message").hint("give it with -m TEXT");
        return Err(fault.phase(Phase::Admission));
    };
    let author = match matches.get_one::<String>("author").map(String::as_str) {
        Some("agent") => Author::Agent,
        Some("coauthored") => Author::Coauthored,
        _ => Author::Reviewer,
    };
    Ok(Some(Wish { message, author }))
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
fn confirm_unreviewed(engine: &Engine, ask: &Ask) -> Result<Option<String>, Fault> {
    let (sandbox, paths) = engine.meant(&ask.of)?;
    // The digest covers the whole diff, whatever is chosen. A list of names is no review, so a no records nothing.
    let of = Of::sandbox(Which { word: Some(sandbox), version: None });
    let answer = engine.diff(&diff::Ask { of, everything: false, reader: Reader::Program, page: None })?;
    let Some(chosen) = covered(&answer.diff, paths, ask)? else { return Ok(Some(answer.diff.digest)) };
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
    let _ = write!(out, "nobody has looked at {these} with `cofferdam diff` yet; approve {them}? [y/N] ");
    let _ = out.flush();
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(|e| Fault::internal(e.to_string()))?;
    Ok(matches!(line.trim(), "y" | "yes").then_some(answer.diff.digest))
}
