//! The workspace that one run writes to: created or locked before it, held against all others during it, and deleted again when the run
//! changed nothing. Records are kept elsewhere.

use super::place::NewWorkspace;
use super::repository;
use api::Driver;
use enclosure::ChangeStorage;
use rustix::io::Errno;
use state::Caller;
use state::layer_meta::{Meta, drop_layer};
use state::sandbox::Sandbox;
use state::total::{self, Account};
use std::io;
use std::path::{Path, PathBuf};
use store::{Kept, Store};
use terms::{ErrorKind, Fault, Phase};
use workspace::{Dir, Layer, Layers, Lock, Stack};

/// The owner of a workspace.
pub(crate) enum Owner {
    /// No sandbox yet: the workspace was made for this run.
    Run(NewWorkspace),
    Sandbox(Box<Kept<Sandbox>>),
}

/// A locked workspace.
pub(crate) struct LockedWorkspace {
    pub owner: Owner,
    /// The state directory.
    pub state: PathBuf,
    pub layers: Layers,
    /// The directory that it covers.
    pub at: PathBuf,
    pub stack: Stack,
    /// Share in the total of all layers, where that total is bounded.
    pub account: Option<Account>,
    /// Note for the caller about a new layer.
    pub note: Option<String>,
    /// Dropped last of all.
    _lock: Lock,
}

/// Makes a workspace over a directory.
pub(super) fn make(at: &Path, options: &NewWorkspace, caller: &Caller) -> Result<LockedWorkspace, Fault> {
    let (state, dir) = state::directory::prepare(caller)?;
    let unusable = |e: &io::Error| unusable(&state, e);
    let base = Dir::open(at).map_err(|e| no_base(at, &e))?;
    state::directory::check_apart(&dir, &state, &base, at)?;
    state::directory::check_space(&dir, &state)?;
    if let Some(name) = &options.name {
        check_name(&state, name)?;
    }
    let layers = Layers::open(&dir).map_err(|e| unusable(&e))?;
    let account = total::admit(&layers, &state, caller)?;
    let driver = workspace::driver::choose(&base, &layers.dir, options.driver).map_err(or_without)?;
    total::admit_copy(&layers, &state, caller, (&base, driver))?;
    let (layer, lock) = layers.make(&base, sys::random::id_bytes()).map_err(|e| unusable(&e))?;
    let since = layer.made_at().map_err(|e| unusable(&e))?;
    if driver != Driver::Overlay
        && let Err(fault) = workspace::copy::into_layer(&base, &layer, driver, &mut |_| {})
    {
        let _ = drop_layer(&layers, &layer.id); // on failure the collector removes it later
        return Err(fault);
    }
    let note = repository::seed(at, &layer, caller);
    let stack = Stack { base, driver, layers: vec![layer], since };
    let owner = Owner::Run(options.clone());
    Ok(LockedWorkspace { owner, state, layers, at: at.to_path_buf(), stack, account, note, _lock: lock })
}

/// Adds the hint that a run can also do without a workspace.
fn or_without(fault: Fault) -> Fault {
    let hint = fault.hint.clone().unwrap_or_default();
    fault.hint(format!("{hint}; --read-only, and --direct where the policy allows it, need no workspace"))
}

/// Locks the workspace of a sandbox, and returns it with the record read under the lock. `None` where another run holds it.
pub(super) fn take(
    state: &state::State,
    sandbox: Kept<Sandbox>,
    caller: &Caller,
) -> Result<Option<(LockedWorkspace, Kept<Sandbox>)>, Fault> {
    let stack = state::sandbox::stack(state, &sandbox)?;
    let broken = |e: io::Error| Fault::internal(format!("the workspace of {}: {e}", sandbox.id)).subject(&sandbox.id);
    state::directory::check_apart(&state.dir, &state.path, &stack.base, &sandbox.record.base)?;
    state::directory::check_space(&state.dir, &state.path)?;
    let account = total::admit(&state.layers, &state.path, caller)?;
    let empty = || Fault::internal(format!("{} has no layer", sandbox.id)).subject(&sandbox.id);
    let top = stack.layers.last().ok_or_else(empty)?;
    let Some(lock) = top.lock().map_err(broken)? else { return Ok(None) };
    // Before the lock was taken, a snapshot may have frozen this layer, which then must not be written to; other verbs may have stopped or
    // suspended the sandbox or changed its rules, and then the new record holds.
    let now = state.store.read(|tx| state::pool::sandbox_or_spare(tx, &sandbox.id))?;
    let Some(sandbox) = now.filter(|now| now.record.layers == sandbox.record.layers) else {
        let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", sandbox.id));
        return Err(fault.hint("try again").subject(&sandbox.id).phase(Phase::Admission));
    };
    if stack.driver == Driver::Overlay {
        top.clear_work().map_err(broken)?;
    }
    let layers = Layers { dir: state.layers.dir.try_clone().map_err(broken)? };
    let at = sandbox.record.base.clone();
    let owner = Owner::Sandbox(Box::new(sandbox.clone()));
    Ok(Some((
        LockedWorkspace { state: state.path.clone(), layers, at, stack, account, owner, note: None, _lock: lock },
        sandbox,
    )))
}

impl LockedWorkspace {
    /// Returns the path of the directory inside.
    pub fn inside(&self) -> &Path {
        state::directory::path_inside(&self.at)
    }

    /// Returns true if the directory has another path inside than outside.
    pub fn is_moved(&self) -> bool {
        self.inside() != self.at
    }

    /// Returns the overlay or tree that the enclosure mounts over the directory.
    pub fn over(&self) -> ChangeStorage {
        let place = |layer: &Layer| self.state.join("layers").join(&layer.id);
        match (self.stack.driver, self.stack.layers.last()) {
            (Driver::Reflink | Driver::Copy, Some(top)) => ChangeStorage::Tree(place(top).join("up")),
            _ => ChangeStorage::Layers(self.stack.layers.iter().map(place).collect()),
        }
    }

    /// Returns the layer that the guest writes to.
    pub fn top(&self) -> Result<&Layer, Fault> {
        self.stack.layers.last().ok_or_else(|| Fault::internal("a workspace without layers"))
    }

    /// Writes the layer's metadata, for recovery after a crash.
    pub fn describe(&self, meta: &Meta) -> Result<(), Fault> {
        meta.write(self.top()?).map_err(|e| unusable(&self.state, &e))
    }

    /// Deletes the layer with its content. On failure the collector removes it later.
    pub fn drop_layer(&self) {
        if let Some(top) = self.stack.layers.last() {
            let _ = drop_layer(&self.layers, &top.id); // on failure the collector removes it later
        }
    }
}

/// Refuses a name that is taken, before anything runs.
fn check_name(state: &Path, name: &str) -> Result<(), Fault> {
    state::names::check_name(name)?;
    match Store::open(state)?.read(|tx| tx.get_named::<Sandbox>(name))? {
        None => Ok(()),
        Some(other) => {
            let message = format!("a sandbox named {name:?} exists already: {}", other.id);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&other.id).phase(Phase::Admission);
            Err(fault.hint("choose another name, or run in it with --sandbox"))
        }
    }
}

/// Returns the fault for a state directory that cannot be used, or a host that lacks something.
fn unusable(state: &Path, error: &io::Error) -> Fault {
    let lacking = [Errno::NOSYS, Errno::PERM].map(Errno::raw_os_error);
    match error.raw_os_error().filter(|errno| lacking.contains(errno)) {
        Some(_) => {
            let message = format!("{}: this host does not allow work on it by file handles: {error}", state.display());
            let hint = "`cofferdam doctor` shows what this host offers; --read-only needs no state directory";
            Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Preparation)
        }
        None => state::directory::unusable(state, &error.to_string()),
    }
}

fn no_base(at: &Path, error: &io::Error) -> Fault {
    let message = format!("{}: cannot lay a workspace over it: {error}", at.display());
    Fault::invalid(message).hint("it must be a directory that you may read").phase(Phase::Admission)
}
