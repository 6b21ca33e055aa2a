//! Words of a review verb that meet nothing: a mistyped name of a sandbox, a path without a change, or a review with nothing left. Looks
//! only after a verb was refused, and changes nothing.

use api::{Rel, WorkspaceDiff};
use client::Engine;
use node::policies::nearest;
use node::review::ReviewScope;
use node::review::diff::{DiffReader, ReadDiff};
use node::sandbox::Which;
use std::ffi::OsString;
use terms::{ErrorKind, Fault, Phase};

/// Replaces a fault by one that names the word which meets neither a sandbox nor a change.
pub fn explain(engine: &Engine, of: &ReviewScope, fault: Fault) -> Fault {
    let ReviewScope::Words(words) = of else { return fault };
    let is_about_them = matches!(fault.error_kind, ErrorKind::NotFound | ErrorKind::Conflict);
    if words.is_empty() || !is_about_them {
        return fault;
    }
    let Some((answer, paths)) = look(engine, of) else { return unknown(engine, words).unwrap_or(fault) };
    let meets = |path: &Rel| {
        let text = path.to_string();
        path.is_top()
            || text.contains(['*', '?', '[', '{'])
            || answer.diff.files.iter().any(|file| {
                file.change.path.is_at_or_below(path)
                    || file.change.kind.from().is_some_and(|from| from.is_at_or_below(path))
            })
    };
    let Some(missed) = paths.iter().position(|path| !meets(path)) else { return fault };
    // Where the first word names a sandbox, there is one path less than words.
    let could_be_sandbox = missed == 0 && paths.len() == words.len();
    let word = words[words.len() - paths.len() + missed].to_string_lossy().into_owned();
    let changed: Vec<String> = answer.diff.files.iter().map(|file| file.change.path.to_string()).collect();
    let message = match could_be_sandbox {
        true => format!("no sandbox {word:?} exists, and no change is at that path"),
        false => format!("no changes at {}", paths[missed]),
    };
    let names = if could_be_sandbox { names(engine) } else { Vec::new() };
    missing(message, &word, names.iter().chain(&changed)).subject(answer.sandbox)
}

fn unknown(engine: &Engine, words: &[OsString]) -> Option<Fault> {
    let word = words.first()?.to_str()?;
    let names = names(engine);
    // Only a name that is near is worth another message.
    nearest(word, names.iter().map(String::as_str))?;
    Some(missing(format!("there is no sandbox {word:?}"), word, names.iter()))
}

fn missing<'a>(message: String, word: &str, known: impl Iterator<Item = &'a String>) -> Fault {
    let hint = match nearest(word, known.map(String::as_str)) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "`cofferdam ls` lists sandboxes, `cofferdam diff --name-only` the changed files".to_owned(),
    };
    Fault::new(ErrorKind::NotFound, message).hint(hint).phase(Phase::Admission)
}

fn names(engine: &Engine) -> Vec<String> {
    engine.list(false).unwrap_or_default().into_iter().filter_map(|row| row.name).collect()
}

fn look(engine: &Engine, of: &ReviewScope) -> Option<(WorkspaceDiff, Vec<Rel>)> {
    let (id, paths) = engine.meant(of).ok()?;
    let of = ReviewScope::sandbox(Which { word: Some(id), version: None });
    let answer = engine.diff(&ReadDiff { of, everything: true, reader: DiffReader::Program, page: None }).ok()?;
    Some((answer, paths))
}

/// Returns the sandbox in which nothing is left to review, where that is why a verb was refused.
pub fn nothing_left(engine: &Engine, of: &ReviewScope, fault: &Fault) -> Option<WorkspaceDiff> {
    if !matches!(fault.error_kind, ErrorKind::NotFound | ErrorKind::Conflict) {
        return None;
    }
    let (id, paths) = engine.meant(of).ok()?;
    let of = ReviewScope::sandbox(Which { word: Some(id), version: None });
    let answer = engine.diff(&ReadDiff { of, everything: false, reader: DiffReader::Program, page: None }).ok()?;
    (paths.iter().all(Rel::is_top) && answer.diff.files.is_empty()).then_some(answer)
}
