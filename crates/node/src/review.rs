//! Review: what changed in a sandbox, and what of it lands on its base. One file per verb; here is what they share.

pub mod approve;
pub mod commit;
pub mod conflicts;
pub mod diff;
pub(crate) mod merge_base;
pub mod provenance;
pub mod prune;
pub mod rebase;
mod receipt;
pub mod reject;
pub mod undo;

pub use receipt::{LandedChange, Receipt};
pub use workspace::hunks::split;
pub use workspace::name::is_invisible;
pub use workspace::select::{Left, NEEDS_NAME, NOT_CHOSEN};
pub use workspace::text::{Stretch, words};
pub use workspace::{Body, Change, ChangeKind, Class, Diff, Entry, FileDiff, FileKind, Flag, Hunk, Line, LineKind};
pub use workspace::{Rel, Target, Withheld};

use runtime::Node;
use serde::{Deserialize, Serialize};
use state::Caller;
use state::sandbox::Sandbox;
use state::sandbox::{self, Which};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use store::{Kept, Record, Tx};
use terms::{ErrorKind, Fault, Phase};

/// The diff that its user was last shown of a sandbox as a whole; the id is the sandbox's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reviewed {
    pub digest: String,
    /// Of the last one with nothing withheld.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub all: Option<String>,
    pub at_ms: u64,
}

impl Record for Reviewed {
    const KIND: &'static store::Kind = state::records::kind("reviewed");
}

/// Which sandbox is meant, and what in it.
#[derive(Clone, Debug)]
pub enum Of {
    /// `[ID] [PATH…]` as a person types them, seen from where they stand.
    Words(Vec<OsString>),
    /// One sandbox, and paths from its top. Nothing is guessed.
    Sandbox { which: Which, paths: Vec<Rel> },
}

impl Of {
    /// All of one sandbox.
    pub fn sandbox(which: Which) -> Of {
        Of::Sandbox { which, paths: Vec::new() }
    }

    /// Refuses where there is no such sandbox.
    pub fn is_there(&self, node: &Node, caller: &Caller) -> Result<(), Fault> {
        node.states.open(caller)?.store.read(|tx| self.find(tx, caller).map(drop))
    }

    /// The sandbox, with the paths as they are called in it.
    fn find(&self, tx: &Tx<'_>, caller: &Caller) -> Result<(Kept<Sandbox>, Vec<Rel>), Fault> {
        match self {
            Of::Words(words) => {
                let (found, words) = told_apart(words, |word| sandbox::find(tx, word, caller))?;
                let paths = words.iter().map(|word| rel_of(word, &found.record.base, &caller.cwd));
                let paths = paths.collect::<Result<_, _>>()?;
                Ok((found, paths))
            }
            Of::Sandbox { which, paths } => Ok((state::sandbox::pick(tx, which, caller)?, paths.clone())),
        }
    }
}

/// Refuses an empty path: it would be where one stands, and with it everything there, for a script whose variable is not set.
pub fn check_named(word: &OsStr) -> Result<(), Fault> {
    match word.is_empty() {
        true => Err(Fault::invalid("an empty path").hint("name one; `.` is where you stand").phase(Phase::Admission)),
        false => Ok(()),
    }
}

/// Tells `[ID] [PATH…]` apart: the first word is a sandbox if there is such a one, and else a path in the one that is meant
/// without a word.
pub fn told_apart<T>(
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

/// A path as a person types it, as one of the workspace: from where they stand, if that is inside it, and else from its top.
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
