//! Secrets of a run that another node carries out: the words in a sandbox's record, and the values that are read here and sent along. No
//! value is ever part of a record.

use super::{OpenedSource, SecretSource, check, fault, kept_only, open_source, read_open, read_word};
use api::SecretValue;
use state::{Caller, Reach};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use terms::{ErrorKind, Fault, Phase};

/// Checks the sources in a record: only kept secrets and those that come with a command, each named by the policy. The policy decides where
/// a secret is sent, so a caller that does not decide about policies cannot substitute another one.
pub fn check_recorded(words: &[String], policy: &policy::Policy, reach: &Reach) -> Result<(), Fault> {
    for word in words {
        let (name, source) = read_word(word)?;
        if !matches!(source, SecretSource::Kept { .. } | SecretSource::Brought) {
            return Err(kept_only(name));
        }
        if !policy.secrets.iter().any(|secret| secret.rule.name == name) {
            let fault = Fault::invalid(format!("--secret {name}: no policy of this run has a secret of that name"));
            return Err(fault.hint("leave it out").phase(Phase::Admission));
        }
        match &source {
            SecretSource::Kept { name: kept, .. } if kept != name && !reach.decides() => {
                return Err(another(name, kept));
            }
            _ => {}
        }
    }
    Ok(())
}

fn another(name: &str, kept: &str) -> Fault {
    let message = format!("secrets: {name}=store:{kept}: this credential may not use another stored secret as {name}");
    let hint = format!("leave it out, or write {name}=store:{name}; an operator may name another");
    Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Admission)
}

/// Returns the word of a record for a secret that comes with a command.
pub fn brought(name: &str) -> String {
    format!("{name}=brought:run")
}

/// Refuses secrets that come with a command, for runs outside of a live sandbox.
pub fn refuse_brought(words: &[String]) -> Result<(), Fault> {
    match words.iter().map(|word| read_word(word)).find(|read| matches!(read, Ok((_, SecretSource::Brought)))) {
        Some(Ok((name, _))) => Err(fault(name, "no value was provided").hint("name its source")),
        _ => Ok(()),
    }
}

/// A secret for a run on another node.
pub enum RemoteSecret {
    /// Kept on that node; the word for its record.
    Kept(String),
    /// Name, and the value that was read here.
    Value(String, SecretValue),
}

/// Describes a `--secret` of a remote run that is only explained: the word of a record, and the source that would be read here. The source
/// is not read.
pub fn told(word: &str, caller: &Caller) -> Result<(String, Option<(String, String)>), Fault> {
    refuse_brought(&[word.to_owned()])?;
    let (name, source) = read_word(word)?;
    let line = |source: &SecretSource| (name.to_owned(), format!("{name}: {source}"));
    Ok(match named_here(source, caller) {
        SecretSource::Kept { .. } => (word.to_owned(), None),
        source => (brought(name), Some(line(&source))),
    })
}

/// Resolves a source relative to the caller.
fn named_here(source: SecretSource, caller: &Caller) -> SecretSource {
    let is_set = |variable: &str| caller.var(variable).is_some_and(|v| !v.is_empty());
    match source {
        SecretSource::Env { variable, .. } => SecretSource::Env { is_set: is_set(&variable), variable },
        SecretSource::File(path) => SecretSource::File(caller.cwd.join(path)),
        other => other,
    }
}

/// Reads a `--secret` here, for a run on another node.
pub fn carry(word: &str, caller: &Caller) -> Result<RemoteSecret, Fault> {
    refuse_brought(&[word.to_owned()])?;
    let (name, source) = read_word(word)?;
    let source = match named_here(source, caller) {
        SecretSource::Kept { .. } => return Ok(RemoteSecret::Kept(word.to_owned())),
        other => other,
    };
    let value = match open_source(name, &source, &caller.cwd)? {
        OpenedSource::Env(variable) => {
            (caller.read_late)(OsStr::new(&variable)).map(OsString::into_vec).unwrap_or_default()
        }
        OpenedSource::Open(source) => read_open(name, source)?,
        OpenedSource::Login(login, file) => login.token(file)?,
        OpenedSource::Later => Vec::new(),
    };
    check(name, &value)?;
    Ok(RemoteSecret::Value(name.to_owned(), SecretValue::of(&value)))
}
