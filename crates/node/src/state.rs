//! Where sandboxes live: the state directory with its layers and its store. Belongs to one user, open to nobody else.

use crate::Caller;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use store::Store;
use terms::{ErrorKind, Fault, Phase};
use workspace::{Dir, Layers};

pub struct State {
    pub path: PathBuf,
    pub dir: Dir,
    pub layers: Layers,
    pub store: Store,
}

impl State {
    /// Opens it, and makes it where there is none.
    pub fn open(caller: &Caller) -> Result<State, Fault> {
        let (path, dir) = prepare(caller)?;
        let layers = Layers::open(&dir).map_err(|e| unusable(&path, &e.to_string()))?;
        let store = Store::open(&path)?;
        let state = State { path, dir, layers, store };
        crate::review::recover(&state)?;
        Ok(state)
    }
}

/// The state directory: `COFFERDAM_STATE`, else where the caller's system keeps such things.
pub fn place(caller: &Caller) -> Result<PathBuf, Fault> {
    let set = |name: &str| caller.var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(own) = set("COFFERDAM_STATE") {
        if !own.is_absolute() {
            let message = format!("COFFERDAM_STATE is {own:?}, which is not absolute");
            return Err(Fault::invalid(message).hint("give the whole path").phase(Phase::Admission));
        }
        return Ok(own);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/cofferdam".into());
    }
    let state = set("XDG_STATE_HOME").filter(|p| p.is_absolute());
    Ok(state.unwrap_or_else(|| caller.home.join(".local/state")).join("cofferdam"))
}

/// The directory, made with its parents, without the store: the way of runs that leave nothing behind.
pub fn prepare(caller: &Caller) -> Result<(PathBuf, Dir), Fault> {
    let path = place(caller)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|e| unusable(&path, &e.to_string()))?;
    let path = std::fs::canonicalize(&path).map_err(|e| unusable(&path, &e.to_string()))?;
    let dir = Dir::open(&path).map_err(|e| unusable(&path, &e.to_string()))?;
    check_owner(&path)?;
    Ok((path, dir))
}

/// What others could change would not be ours to trust.
fn check_owner(path: &Path) -> Result<(), Fault> {
    let meta = std::fs::metadata(path).map_err(|e| unusable(path, &e.to_string()))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(unusable(path, "belongs to another user"));
    }
    match meta.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(unusable(path, "others may look into it; `chmod 700` it")),
    }
}

fn unusable(path: &Path, why: &str) -> Fault {
    let message = format!("the state directory {}: {why}", path.display());
    let hint = "set COFFERDAM_STATE to a directory of your own, or run with --read-only";
    Fault::new(ErrorKind::Unavailable, message).hint(hint).phase(Phase::Admission)
}
