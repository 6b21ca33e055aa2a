//! Where a command works: over which directory, and what becomes of its changes there.

use super::Ask;
use crate::Caller;
use std::path::{Path, PathBuf};
use terms::{Fault, Phase};

/// What becomes of changes to the directory that a command works in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Whatever the rules say, and nothing else.
    Plain,
    /// There are none, but where a flag names a place to write; such changes reach the host.
    ReadOnly,
    /// They reach the host, where the policy allows them.
    Direct,
    /// They go to a workspace over the directory that is made for this run.
    Fresh(Fresh),
    /// They go to the workspace of a sandbox: its id, the beginning of it, or its name.
    Sandbox(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fresh {
    /// The directory; the current one where none is named.
    pub dir: Option<PathBuf>,
    pub keep: Keep,
    /// The name of the sandbox that is kept.
    pub name: Option<String>,
    /// For how long it is kept, in milliseconds, if not for the usual time.
    pub ttl_ms: Option<u64>,
    /// How changes are kept apart; the best that works, where none is named.
    pub driver: Option<workspace::Driver>,
}

/// Whether the workspace outlives the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// If anything was changed in it.
    #[default]
    Changed,
    Always,
    Never,
}

/// Directories that every guest has of its own. Who is in one of them and says no more does not mean all that lies there: nothing of
/// the host's shows, and there is nothing to work on.
const OWN: [&str; 2] = ["/tmp", "/var/tmp"];

/// Where a command works, with all paths real.
pub(super) struct Spot {
    /// The directory that `$WORKSPACE` stands for.
    pub dir: PathBuf,
    /// Where the command starts.
    pub cwd: PathBuf,
    /// Whether changes shall go to a workspace over `dir`.
    pub layered: bool,
    /// `dir` is the guest's own, and not the host's.
    pub private: bool,
}

/// For a run that is not in a sandbox.
pub(super) fn choose(ask: &Ask, caller: &Caller) -> Result<Spot, Fault> {
    let named = match &ask.place {
        Place::Fresh(fresh) => fresh.dir.as_deref(),
        _ => None,
    };
    if named.is_some_and(|dir| dir.as_os_str().is_empty()) {
        return Err(Fault::invalid("--workspace is empty").hint("name a directory").phase(Phase::Admission));
    }
    let dir = match named {
        Some(dir) => real(&caller.cwd.join(dir), "workspace")?,
        None => real(&caller.cwd, "working directory")?,
    };
    let cwd = match &ask.workdir {
        Some(to) if to.as_os_str().is_empty() => {
            return Err(Fault::invalid("--workdir is empty").hint("name a directory").phase(Phase::Admission));
        }
        Some(to) => real(&dir.join(to), "working directory")?,
        None => dir.clone(),
    };
    // Who is sent elsewhere without a word about the workspace works there.
    let dir = if named.is_none() && !cwd.starts_with(&dir) { cwd.clone() } else { dir };
    let fresh = matches!(ask.place, Place::Fresh(_));
    let private = fresh && named.is_none() && OWN.iter().any(|own| dir == Path::new(own));
    let layered = fresh && !private;
    if layered && named.is_none() && caller.home.starts_with(&dir) {
        return Err(ask_for_choice(&dir, &caller.home));
    }
    Ok(Spot { dir, cwd, layered, private })
}

/// A workspace over everything that somebody has would show all of it, and nobody means that without saying so.
fn ask_for_choice(dir: &Path, home: &Path) -> Fault {
    let which = if dir == home { "is the home directory" } else { "holds the home directory" };
    let message = format!("{} {which}; a run does not work on all of it unasked", dir.display());
    let hint = "change to a project; or choose: -w DIR works on DIR, --read-only changes nothing, --direct changes the host \
                where the policy allows it";
    Fault::invalid(message).hint(hint).phase(Phase::Admission)
}

/// A directory by its real path.
pub(super) fn real(asked: &Path, what: &str) -> Result<PathBuf, Fault> {
    let refuse = |why: String| Fault::invalid(format!("{what} {}: {why}", asked.display())).phase(Phase::Admission);
    let real = std::fs::canonicalize(asked).map_err(|e| refuse(e.to_string()))?;
    if !real.is_dir() {
        return Err(refuse("not a directory".into()));
    }
    if ["/proc", "/dev", "/sys"].iter().any(|own| real.starts_with(own)) {
        return Err(refuse("belongs to the kernel, not to a project".into()));
    }
    Ok(real)
}
