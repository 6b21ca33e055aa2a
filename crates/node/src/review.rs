//! Review: the changes in a sandbox, and which of them land on its base. One file per verb; shared parts are here.

pub mod approve;
pub mod commit;
pub mod commits;
pub mod conflicts;
pub mod diff;
pub mod fetch;
pub mod history;
pub mod home;
pub(crate) mod merge_base;
pub mod provenance;
pub mod prune;
pub mod rebase;
mod receipt;
pub mod reject;
pub mod undo;

use api::Rel;
pub use workspace::hunks::split;
pub use workspace::select::{NEEDS_NAME, NOT_CHOSEN};
pub use workspace::text::{LineRange, words};

use runtime::Node;
use state::Caller;
use state::sandbox::{self, Sandbox, Which};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase};

/// The sandbox and the paths in it that a request is about.
#[derive(Clone, Debug)]
pub enum ReviewScope {
    /// `[ID] [PATH…]` as a person types them, relative to the current directory.
    Words(Vec<OsString>),
    /// A sandbox, and paths from its top; resolved without guessing.
    Sandbox { which: Which, paths: Vec<Rel> },
}

impl ReviewScope {
    /// Selects the whole of a sandbox.
    pub fn sandbox(which: Which) -> ReviewScope {
        ReviewScope::Sandbox { which, paths: Vec::new() }
    }

    /// Fails if there is no such sandbox.
    pub fn is_there(&self, node: &Node, caller: &Caller) -> Result<(), Fault> {
        node.states.open(caller)?.store.read(|tx| self.find(tx, caller).map(drop))
    }

    /// Finds the sandbox, and turns the paths into paths from its top.
    fn find(&self, tx: &Tx<'_>, caller: &Caller) -> Result<(Kept<Sandbox>, Vec<Rel>), Fault> {
        match self {
            ReviewScope::Words(words) => {
                let (found, words) = split_sandbox_and_paths(words, |word| sandbox::find(tx, word, caller))?;
                let paths = words.iter().map(|word| rel_of(word, &found.record.base, &caller.cwd));
                let paths = paths.collect::<Result<_, _>>()?;
                Ok((found, paths))
            }
            ReviewScope::Sandbox { which, paths } => Ok((state::sandbox::pick(tx, which, caller)?, paths.clone())),
        }
    }
}

/// Refuses an empty path: from a script whose variable is not set it would mean the whole current directory.
pub fn check_named(word: &OsStr) -> Result<(), Fault> {
    match word.is_empty() {
        true => {
            Err(Fault::invalid("an empty path").hint("name one; `.` is the current directory").phase(Phase::Admission))
        }
        false => Ok(()),
    }
}

/// Separates `[ID] [PATH…]`: the first word is a sandbox if one matches, and else a path in the sandbox that covers the current
/// directory.
pub fn split_sandbox_and_paths<T>(
    words: &[OsString],
    find: impl Fn(Option<&str>) -> Result<T, Fault>,
) -> Result<(T, &[OsString]), Fault> {
    let Some((first, rest)) = words.split_first() else { return Ok((find(None)?, words)) };
    check_named(first)?;
    let word = first.to_str();
    let unknown = match word.map(|word| find(Some(word))) {
        Some(Ok(found)) => return Ok((found, rest)),
        Some(Err(fault)) if fault.error_kind != ErrorKind::NotFound => return Err(fault),
        Some(Err(fault)) => fault,
        None => sandbox::unknown(&first.to_string_lossy()),
    };
    match find(None) {
        Ok(found) if !first.as_bytes().starts_with(b"sbx_") => Ok((found, words)),
        _ => Err(unknown),
    }
}

/// Turns a path as a person types it into one from the top of the workspace: relative to the current directory if that is inside
/// it, and else to its top.
pub fn rel_of(word: &OsStr, base: &Path, cwd: &Path) -> Result<Rel, Fault> {
    check_named(word)?;
    let outside = || {
        let message = format!("{}: not below {}", word.to_string_lossy(), base.display());
        Fault::invalid(message).hint("give a path of the workspace").phase(Phase::Admission)
    };
    let from = if cwd.starts_with(base) { cwd } else { base };
    let mut parts: Vec<&OsStr> = Vec::new();
    let whole = from.join(word);
    for component in whole.components() {
        match component {
            Component::Normal(part) => parts.push(part),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    let absolute: std::path::PathBuf = std::iter::once(OsStr::new("/")).chain(parts).collect();
    let below = absolute.strip_prefix(base).map_err(|_| outside())?;
    Rel::parse(below.as_os_str().as_bytes()).ok_or_else(outside)
}
