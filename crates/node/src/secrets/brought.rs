//! Secrets of a run that is carried out elsewhere: what a sandbox's record says of them, and what is read here and sent along. No value
//! is ever part of a record.

use super::{Held, Source, check, fault, hold, not_here, read_open, read_word};
use crate::keeper::wire::Hidden;
use crate::{Caller, Reach};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use terms::{ErrorKind, Fault, Phase};

/// Whether a record may say so where its secrets come from: what is kept, or brought; each a secret of its policy. The policy says where
/// a secret goes, so who does not decide about policies cannot put another one in its place.
pub(crate) fn check_recorded(words: &[String], policy: &policy::Policy, reach: &Reach) -> Result<(), Fault> {
    for word in words {
        let (name, source) = read_word(word)?;
        if !matches!(source, Source::Kept { .. } | Source::Brought) {
            return Err(not_here(name));
        }
        if !policy.secrets.iter().any(|secret| secret.rule.name == name) {
            let fault = Fault::invalid(format!("--secret {name}: no policy of this run has a secret of that name"));
            return Err(fault.hint("leave it out").phase(Phase::Admission));
        }
        match &source {
            Source::Kept { name: kept, .. } if kept != name && !reach.decides() => return Err(another(name, kept)),
            _ => {}
        }
    }
    Ok(())
}

fn another(name: &str, kept: &str) -> Fault {
    let message =
        format!("secrets: {name}=store:{kept}: with this credential no other secret is sent in the place of {name}");
    let hint = format!("leave it out, or write {name}=store:{name}; an operator may name another");
    Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Admission)
}

/// A word of a record for a secret that is brought.
pub fn brought(name: &str) -> String {
    format!("{name}=brought:run")
}

/// Only a sandbox that stands can be brought something.
pub(crate) fn refuse_brought(words: &[String]) -> Result<(), Fault> {
    match words.iter().map(|word| read_word(word)).find(|read| matches!(read, Ok((_, Source::Brought)))) {
        Some(Ok((name, _))) => Err(fault(name, "nobody brings it here").hint("name where it comes from")),
        _ => Ok(()),
    }
}

/// Where a secret comes from that somebody elsewhere shall use.
pub enum Carried {
    /// It is kept there: as a record has it.
    Kept(String),
    /// Its name, and the value that was read here.
    Value(String, Hidden),
}

/// What a `--secret` says of a run elsewhere that is only explained: the word of a record, and where the value would be read here. It
/// is not read.
pub fn told(word: &str, caller: &Caller) -> Result<(String, Option<(String, String)>), Fault> {
    refuse_brought(&[word.to_owned()])?;
    let (name, source) = read_word(word)?;
    let line = |source: &Source| (name.to_owned(), format!("{name}: {source}"));
    Ok(match named_here(source, caller) {
        Source::Kept { .. } => (word.to_owned(), None),
        source => (brought(name), Some(line(&source))),
    })
}

/// A source as it is found from where the caller is.
fn named_here(source: Source, caller: &Caller) -> Source {
    let is_set = |variable: &str| caller.var(variable).is_some_and(|v| !v.is_empty());
    match source {
        Source::Env { variable, .. } => Source::Env { is_set: is_set(&variable), variable },
        Source::File(path) => Source::File(caller.cwd.join(path)),
        other => other,
    }
}

/// Reads what a `--secret` names here, for a run elsewhere.
pub fn carry(word: &str, caller: &Caller) -> Result<Carried, Fault> {
    refuse_brought(&[word.to_owned()])?;
    let (name, source) = read_word(word)?;
    let source = match named_here(source, caller) {
        Source::Kept { .. } => return Ok(Carried::Kept(word.to_owned())),
        other => other,
    };
    let value = match hold(name, &source, &caller.cwd)? {
        Held::Env(variable) => (caller.read_late)(OsStr::new(&variable)).map(OsString::into_vec).unwrap_or_default(),
        Held::Open(source) => read_open(name, source)?,
        Held::Later => Vec::new(),
    };
    check(name, &value)?;
    Ok(Carried::Value(name.to_owned(), Hidden::of(&value)))
}
