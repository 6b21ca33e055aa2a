//! `cofferdam approve`: what was chosen and reviewed goes to the verb; the receipt comes back.

use super::interactive;
use super::paint::{self, Brush};
use super::receipt;
use crate::engine::Engine;
use crate::render::fault;
use clap::ArgMatches;
use node::lifecycle::stop::Which;
use node::review::Of;
use node::review::approve::{Ask, Seen};
use node::review::commit::{Author, Wish};
use node::review::diff::{self, Answer, Reader};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use terms::{ErrorKind, Fault, Phase};

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let done = Engine::open(matches).and_then(|engine| {
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
    let of = Of::Words(words.clone());
    let hunks = matches.get_many("hunk").unwrap_or_default().cloned().collect();
    let mut seen = match matches.get_one::<String>("digest") {
        Some(digest) => Seen::Digest(digest.clone()),
        None if matches.get_flag("unseen") => Seen::Unseen,
        None => Seen::Last,
    };
    if seen == Seen::Last && has_terminal() && !engine.was_shown(&of)? {
        let Some(digest) = shown_now(engine, &words)? else { return Ok(None) };
        seen = Seen::Digest(digest);
    }
    let (everything, runs_on_host) = (matches.get_flag("all"), matches.get_flag("runs-on-host"));
    Ok(Some(Ask { of, everything, exact: Vec::new(), hunks, runs_on_host, seen, commit: commit(matches)? }))
}

fn chosen_by_hand(matches: &ArgMatches, engine: &Engine) -> Result<Option<Ask>, Fault> {
    if !has_terminal() {
        let fault = Fault::invalid("approve -i asks questions, and there is no terminal to ask on");
        return Err(fault.hint("choose with paths, --hunk or --runs-on-host").phase(Phase::Admission));
    }
    let words = matches.get_many("words").unwrap_or_default().cloned().collect();
    let answer = look(engine, words)?;
    let (paths, hunks) = interactive::ask(&answer.diff, brush()).map_err(|e| Fault::internal(e.to_string()))?;
    if paths.is_empty() && hunks.is_empty() {
        return Ok(None);
    }
    let of = Of::sandbox(Which { word: Some(answer.sandbox), version: None });
    let seen = Seen::Digest(answer.diff.digest);
    let (everything, commit) = (false, commit(matches)?);
    Ok(Some(Ask { of, everything, exact: paths, hunks, runs_on_host: false, seen, commit }))
}

fn look(engine: &Engine, words: Vec<OsString>) -> Result<Answer, Fault> {
    let ask = diff::Ask { of: Of::Words(words), everything: false, reader: Reader::Person, page: None };
    engine.diff(&ask)
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

/// Nobody looked yet: what would land is listed, and somebody says yes or no.
fn shown_now(engine: &Engine, words: &[OsString]) -> Result<Option<String>, Fault> {
    let first = words.first().cloned();
    // The sandbox alone: the digest is over all of it, whatever is chosen.
    let answer = match look(engine, first.into_iter().collect()) {
        Err(fault) if fault.error_kind == ErrorKind::NotFound => look(engine, Vec::new())?,
        other => other?,
    };
    let mut out = io::stderr().lock();
    for file in &answer.diff.files {
        let _ = writeln!(out, "  {}", paint::title(&file.change, brush()));
    }
    let _ = write!(out, "nobody has looked at these changes with `cofferdam diff` yet; approve them? [y/N] ");
    let _ = out.flush();
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(|e| Fault::internal(e.to_string()))?;
    Ok(matches!(line.trim(), "y" | "yes").then_some(answer.diff.digest))
}
