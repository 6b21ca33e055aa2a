//! The directory that a command works on, and the destination of its changes there.

use super::RunRequest;
use super::layer::LockedWorkspace;
use super::repository;
use api::Driver;
use state::Caller;
use std::path::{Path, PathBuf};
use terms::{Fault, Phase};

/// Destination of changes to the directory that a command works in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChangeDestination {
    /// As the rules say.
    #[default]
    Plain,
    /// No changes, except where a flag names a path to write; such changes reach the host.
    ReadOnly,
    /// The host itself, where the policy allows it.
    Direct,
    /// A workspace over the directory, made for this run.
    Fresh(NewWorkspace),
    /// The workspace of a sandbox: its id, a prefix of it, or its name.
    Sandbox(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewWorkspace {
    /// Directory to cover; the current one where none is named.
    pub dir: Option<PathBuf>,
    pub keep: Keep,
    /// Name of the sandbox that is kept.
    pub name: Option<String>,
    /// Time to keep it, in milliseconds; `None` for the default.
    pub ttl_ms: Option<u64>,
    /// Storage of changes; the best that works, where none is named.
    pub driver: Option<Driver>,
}

impl NewWorkspace {
    /// Returns whether the workspace is kept even if nothing was changed in it.
    pub(super) fn keeps_anything(&self) -> bool {
        self.keep == Keep::Always || (self.keep == Keep::Changed && self.name.is_some())
    }
}

/// Retention of the workspace after the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Kept if it was changed.
    #[default]
    Changed,
    Always,
    Never,
}

/// Directories that every guest has privately. A caller in one of them without an explicit choice does not mean the whole directory:
/// nothing of the host's is visible there, and there is nothing to work on.
const OWN: [&str; 2] = ["/tmp", "/var/tmp"];

/// Location of a command, with all paths canonical.
pub(super) struct CommandLocation {
    /// The directory that `$WORKSPACE` stands for.
    pub dir: PathBuf,
    /// Working directory at the start.
    pub cwd: PathBuf,
    /// Home inside; none where it has the path of the caller's.
    pub home: Option<PathBuf>,
    /// Changes shall go to a workspace over `dir`.
    pub layered: bool,
    /// `dir` is the guest's private directory, and not the host's.
    pub private: bool,
    /// Notes for the caller about the choice.
    pub notes: Vec<String>,
    /// The sandbox's workspace, locked.
    pub held: Option<LockedWorkspace>,
}

/// Chooses the location of a run outside of a sandbox.
pub(super) fn choose(request: &RunRequest, caller: &Caller) -> Result<CommandLocation, Fault> {
    let named = match &request.place {
        ChangeDestination::Fresh(fresh) => fresh.dir.as_deref(),
        _ => None,
    };
    if named.is_some_and(|dir| dir.as_os_str().is_empty()) {
        return Err(Fault::invalid("--workspace is empty").hint("name a directory").phase(Phase::Admission));
    }
    let dir = match named {
        Some(dir) => real(&caller.cwd.join(dir), "workspace")?,
        None => real(&caller.cwd, "working directory")?,
    };
    let cwd = match &request.workdir {
        Some(to) if to.as_os_str().is_empty() => {
            return Err(Fault::invalid("--workdir is empty").hint("name a directory").phase(Phase::Admission));
        }
        Some(to) => real(&dir.join(to), "working directory")?,
        None => dir.clone(),
    };
    // With --workdir outside and no --workspace, the working directory becomes the workspace.
    let dir = if named.is_none() && !cwd.starts_with(&dir) { cwd.clone() } else { dir };
    let fresh = matches!(request.place, ChangeDestination::Fresh(_));
    let private = fresh && named.is_none() && OWN.iter().any(|own| dir == Path::new(own));
    let layered = fresh && !private;
    // A run that starts in a repository works on all of it.
    let top = if layered && named.is_none() { repository::top(&dir, caller) } else { None };
    let notes = top.iter().map(|top| repository::note(top, &dir)).collect();
    let dir = top.unwrap_or(dir);
    if layered && named.is_none() && caller.home.starts_with(&dir) {
        return Err(ask_for_choice(&dir, &caller.home));
    }
    Ok(CommandLocation { dir, cwd, home: None, layered, private, notes, held: None })
}

/// Builds the fault for a workspace over the home directory: it would show everything in it, and must be chosen explicitly.
fn ask_for_choice(dir: &Path, home: &Path) -> Fault {
    let which = if dir == home { "is the home directory" } else { "holds the home directory" };
    let message = format!("{} {which}; a run covers it only if it is named", dir.display());
    let hint = "change to a project; or choose: -w DIR works on DIR, --read-only changes nothing, --direct changes the host \
                where the policy allows it";
    Fault::invalid(message).hint(hint).phase(Phase::Admission)
}

/// Canonicalizes a directory.
pub(super) fn real(asked: &Path, what: &str) -> Result<PathBuf, Fault> {
    let refuse = |why: String| {
        let fault = Fault::invalid(format!("{what} {}: {why}", asked.display())).phase(Phase::Admission);
        fault.hint("name a directory that exists")
    };
    let real = std::fs::canonicalize(asked).map_err(|e| refuse(e.to_string()))?;
    if !real.is_dir() {
        return Err(refuse("not a directory".into()));
    }
    if ["/proc", "/dev", "/sys"].iter().any(|own| real.starts_with(own)) {
        return Err(refuse("belongs to the kernel, not to a project".into()));
    }
    Ok(real)
}
