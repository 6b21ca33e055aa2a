//! Empty base directories of sandboxes that cover no directory of the caller: `bases/ID` in the state directory. Approved changes
//! land there. Forks and templates may use one after its sandbox is gone, so it is removed with the last of them.

use api::Rel;
use rustix::fs::Mode;
use state::State;
use state::directory::BASES;
use state::pool::Spare;
use state::sandbox::Sandbox;
use state::snapshot::{Snapshot, Template};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};
use workspace::Dir;

/// A new directory, removed on drop unless it is kept.
pub struct OwnBase {
    path: PathBuf,
    kept: bool,
}

impl OwnBase {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for OwnBase {
    fn drop(&mut self) {
        if !self.kept {
            // Still empty, so `rmdir` is enough.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

pub fn make(state: &State, id: &str) -> Result<OwnBase, Fault> {
    let failed = |e: io::Error| {
        // A full disk is reported as such, as it is for other sandboxes.
        if let Err(full) = state::directory::check_space(&state.dir, &state.path) {
            return full;
        }
        let fault = Fault::new(
            ErrorKind::Unavailable,
            format!("{}: cannot create a directory for {id}: {e}", state.path.display()),
        );
        fault.phase(Phase::Preparation).hint("the state directory must be writable, with space left")
    };
    let mode = Mode::from_raw_mode(0o700);
    match rustix::fs::mkdirat(&state.dir, BASES, mode) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(failed(e.into())),
    }
    let all = state.dir.dir(&Rel::top().join(BASES.as_bytes())).map_err(failed)?;
    rustix::fs::mkdirat(&all, id, mode).map_err(|e| failed(e.into()))?;
    Ok(OwnBase { path: state.path.join(BASES).join(id), kept: false })
}

/// Lists the directories that no record refers to.
pub fn unused(state: &State) -> Result<Vec<String>, Fault> {
    let Ok(all) = state.dir.dir(&Rel::top().join(BASES.as_bytes())) else { return Ok(Vec::new()) };
    let mut names: Vec<String> = names(&all);
    if names.is_empty() {
        return Ok(names);
    }
    let used = state.store.read(|tx| {
        let sandboxes = tx.list::<Sandbox>()?.into_iter().map(|kept| kept.record.base);
        let snapshots = tx.list::<Snapshot>()?.into_iter().map(|kept| kept.record.ground.base);
        let templates = tx.list::<Template>()?.into_iter().map(|kept| kept.record.ground.base);
        let spares = tx.list::<Spare>()?.into_iter().map(|kept| kept.record.sandbox.base);
        Ok(sandboxes.chain(snapshots).chain(templates).chain(spares).collect::<HashSet<PathBuf>>())
    })?;
    names.retain(|name| !used.contains(&state.path.join(BASES).join(name)));
    Ok(names)
}

/// Lists the unused directories that are too old to be in the making.
pub fn left(state: &State) -> Result<Vec<String>, Fault> {
    const MAKING_MS: u64 = 600_000;
    let mut names = unused(state)?;
    let Ok(all) = state.dir.dir(&Rel::top().join(BASES.as_bytes())) else { return Ok(Vec::new()) };
    let changed_ms = |name: &String| all.meta_of(name.as_bytes()).ok().flatten().map(|meta| meta.ctime.0 as u64 * 1000);
    names.retain(|name| changed_ms(name).is_some_and(|at| at.saturating_add(MAKING_MS) < terms::clock::now_ms()));
    Ok(names)
}

fn names(all: &Dir) -> Vec<String> {
    let names = all.names().unwrap_or_default();
    let mut names: Vec<String> = names.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect();
    names.retain(|name| name.starts_with("sbx_"));
    names
}

/// Removes a base directory whose sandbox is gone, if it is one of these and no other record refers to it.
pub fn leave(state: &State, base: &Path) -> Result<bool, Fault> {
    let own = base.strip_prefix(state.path.join(BASES)).ok().and_then(Path::to_str);
    own.map_or(Ok(false), |id| drop_unused(state, id))
}

/// Removes the base directory of a sandbox that is gone, unless another record refers to it.
pub fn drop_unused(state: &State, id: &str) -> Result<bool, Fault> {
    if !unused(state)?.iter().any(|name| name == id) {
        return Ok(false);
    }
    let Ok(all) = state.dir.dir(&Rel::top().join(BASES.as_bytes())) else { return Ok(false) };
    let done = workspace::remove::tree(&all, id.as_bytes());
    done.map(|_| true).map_err(|e| {
        let fault =
            Fault::new(ErrorKind::Unavailable, format!("cannot remove the directory of {id}: {e}")).phase(Phase::Close);
        fault.hint("`cofferdam gc` removes it once that is fixed")
    })
}
