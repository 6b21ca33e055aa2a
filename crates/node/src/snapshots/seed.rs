//! The layers of a new sandbox made from a template: the frozen ones with a fresh one on top.

use super::fork::grow;
use state::State;
use state::snapshot::{Ground, Template};
use std::path::Path;
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase};
use workspace::Lock;

/// Finds a template by name, by `name@sha256:…` (the whole digest or its beginning), or by id.
pub fn find_template(tx: &Tx<'_>, word: &str) -> Result<Kept<Template>, Fault> {
    let (name, digest) = match word.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (word, None),
    };
    let found = match tx.get_named::<Template>(name)? {
        Some(found) => Some(found),
        None => tx.get::<Template>(name)?,
    };
    let found = found.ok_or_else(|| {
        let fault = Fault::new(ErrorKind::NotFound, format!("there is no template {name:?}")).subject(name);
        fault.hint("`cofferdam template ls` lists them").phase(Phase::Admission)
    })?;
    let Some(digest) = digest else { return Ok(found) };
    let wanted = digest.strip_prefix("sha256:").filter(|d| d.len() >= 12);
    match wanted.is_some_and(|d| found.record.digest.starts_with(d)) {
        true => Ok(found),
        false => {
            let message = format!("the template {name:?} is not {digest} but sha256:{}", found.record.digest);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&found.id).phase(Phase::Admission);
            Err(fault.hint("leave the digest out to take it as it is now"))
        }
    }
}

/// The layers of a new sandbox.
#[derive(Debug)]
pub struct Seed {
    /// The address of the template, for the sandbox's record.
    pub template: String,
    pub ground: Ground,
    /// The whole stack with its fresh top, locked until the sandbox is recorded.
    pub layers: Vec<String>,
    pub lock: Lock,
}

/// Builds a stack over `base`, which must be the directory that the template was made of. A caller that records no sandbox with
/// it has to remove the last layer.
pub fn from_template(state: &State, word: &str, base: Option<&Path>) -> Result<Seed, Fault> {
    let kept = state.store.read(|tx| find_template(tx, word))?;
    let ground = kept.record.ground.clone();
    if let Some(other) = base.filter(|b| *b != ground.base) {
        let message =
            format!("the template {} is of {}, not of {}", kept.record.name, ground.base.display(), other.display());
        let fault = Fault::new(ErrorKind::Conflict, message).subject(&kept.id).phase(Phase::Admission);
        return Err(fault.hint("leave the directory out, or prepare a template of that one"));
    }
    let base = ground.base()?;
    let frozen = ground.verified(state)?;
    let (layers, lock) = grow(state, &ground, &frozen, &base)?;
    Ok(Seed { template: kept.record.address(), ground, layers, lock })
}
