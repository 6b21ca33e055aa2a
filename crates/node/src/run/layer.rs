//! The workspace that one run writes to: made or taken up before it, held against all others while it lives, and dropped
//! again when nothing came of it. Records are kept elsewhere.

use super::place::Fresh;
use crate::lifecycle::meta::{Meta, drop_layer};
use crate::sandbox::Sandbox;
use crate::total::{self, Account};
use crate::{Caller, fresh, state};
use enclosure::Over;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use store::{Kept, Store};
use terms::{ErrorKind, Fault, Phase};
use workspace::{Dir, Driver, Layer, Layers, Lock, Stack, remove};

/// Whose workspace it is.
pub(crate) enum Owner {
    /// Nobody's yet: it was made for this run.
    Run(Fresh),
    Sandbox(Box<Kept<Sandbox>>),
}

/// A workspace while a run has it.
pub(crate) struct Held {
    pub owner: Owner,
    /// The state directory.
    pub state: PathBuf,
    pub layers: Layers,
    /// The directory that it covers.
    pub at: PathBuf,
    pub stack: Stack,
    /// Of what all layers take together, where that is bound.
    pub account: Option<Account>,
    /// Dropped last of all.
    _lock: Lock,
}

/// Makes a workspace over a directory.
pub(super) fn make(at: &Path, options: &Fresh, caller: &Caller) -> Result<Held, Fault> {
    let (state, dir) = state::prepare(caller)?;
    let unusable = |e: &io::Error| unusable(&state, e);
    let base = Dir::open(at).map_err(|e| no_base(at, &e))?;
    state::check_apart(&dir, &state, &base, at)?;
    state::check_space(&dir, &state)?;
    if let Some(name) = &options.name {
        check_name(&state, name)?;
    }
    let layers = Layers::open(&dir).map_err(|e| unusable(&e))?;
    let account = total::admit(&layers, &state, caller)?;
    let driver = workspace::driver::choose(&base, &layers.dir, options.driver).map_err(or_without)?;
    total::admit_copy(&layers, &state, caller, (&base, driver))?;
    let (layer, lock) = layers.make(&base, fresh::random()).map_err(|e| unusable(&e))?;
    let since = layer.made_at().map_err(|e| unusable(&e))?;
    if driver != Driver::Overlay
        && let Err(fault) = workspace::copy::into_layer(&base, &layer, driver, &mut |_| {})
    {
        let _collected_later = drop_layer(&layers, &layer.id);
        return Err(fault);
    }
    let stack = Stack { base, driver, layers: vec![layer], since };
    let owner = Owner::Run(options.clone());
    Ok(Held { owner, state, layers, at: at.to_path_buf(), stack, account, _lock: lock })
}

/// A run can also do without a workspace.
fn or_without(fault: Fault) -> Fault {
    let hint = fault.hint.clone().unwrap_or_default();
    fault.hint(format!("{hint}; --read-only, and --direct where the policy allows it, need no workspace"))
}

/// Takes up the workspace of a sandbox, with its record as it is then. None where another run has it.
pub(super) fn take(
    state: &state::State,
    sandbox: Kept<Sandbox>,
    caller: &Caller,
) -> Result<Option<(Held, Kept<Sandbox>)>, Fault> {
    let stack = crate::sandbox::stack(state, &sandbox)?;
    let broken = |e: io::Error| Fault::internal(format!("the workspace of {}: {e}", sandbox.id)).subject(&sandbox.id);
    state::check_apart(&state.dir, &state.path, &stack.base, &sandbox.record.base)?;
    state::check_space(&state.dir, &state.path)?;
    let account = total::admit(&state.layers, &state.path, caller)?;
    let empty = || Fault::internal(format!("{} has no layer", sandbox.id)).subject(&sandbox.id);
    let top = stack.layers.last().ok_or_else(empty)?;
    let Some(lock) = top.lock().map_err(broken)? else { return Ok(None) };
    // Until the lock was ours, a snapshot may have frozen this layer, and then it is not the one to write to; others may have
    // stopped or suspended it, or changed its rules, and then that is what holds.
    let now = state.store.read(|tx| crate::warm::sandbox_or_spare(tx, &sandbox.id))?;
    let Some(sandbox) = now.filter(|now| now.record.layers == sandbox.record.layers) else {
        let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", sandbox.id));
        return Err(fault.hint("try again").subject(&sandbox.id).phase(Phase::Admission));
    };
    if stack.driver == Driver::Overlay {
        // What the kernel left there is of no use to the next mount, and keeps it from being made.
        remove::tree(&top.dir, b"work").map_err(broken)?;
        rustix::fs::mkdirat(&top.dir, "work", Mode::from_raw_mode(0o700)).map_err(|e| broken(e.into()))?;
    }
    let layers = Layers { dir: state.layers.dir.try_clone().map_err(broken)? };
    let at = sandbox.record.base.clone();
    let owner = Owner::Sandbox(Box::new(sandbox.clone()));
    Ok(Some((Held { state: state.path.clone(), layers, at, stack, account, owner, _lock: lock }, sandbox)))
}

impl Held {
    /// What the enclosure lays over the directory.
    pub fn over(&self) -> Over {
        let place = |layer: &Layer| self.state.join("layers").join(&layer.id);
        match (self.stack.driver, self.stack.layers.last()) {
            (Driver::Reflink | Driver::Copy, Some(top)) => Over::Tree(place(top).join("up")),
            _ => Over::Layers(self.stack.layers.iter().map(place).collect()),
        }
    }

    /// The layer that the guest writes to.
    pub fn top(&self) -> Result<&Layer, Fault> {
        self.stack.layers.last().ok_or_else(|| Fault::internal("a workspace without layers"))
    }

    /// Says in the layer what it is, for the case that nobody is left to say it.
    pub fn describe(&self, meta: &Meta) -> Result<(), Fault> {
        meta.write(self.top()?).map_err(|e| unusable(&self.state, &e))
    }

    /// Takes the layer away, whatever is in it. What cannot be taken away now is collected later.
    pub fn drop_layer(&self) {
        if let Some(top) = self.stack.layers.last() {
            let _collected_later = drop_layer(&self.layers, &top.id);
        }
    }
}

/// A name that cannot be had is told before anything runs.
fn check_name(state: &Path, name: &str) -> Result<(), Fault> {
    crate::lifecycle::create::check_name(name)?;
    match Store::open(state)?.read(|tx| tx.get_named::<Sandbox>(name))? {
        None => Ok(()),
        Some(other) => {
            let message = format!("there is a sandbox named {name:?} already: {}", other.id);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&other.id).phase(Phase::Admission);
            Err(fault.hint("choose another name, or run in it with --sandbox"))
        }
    }
}

/// What the state directory cannot do, or the host.
fn unusable(state: &Path, error: &io::Error) -> Fault {
    let lacking = [Errno::NOSYS, Errno::PERM].map(Errno::raw_os_error);
    match error.raw_os_error().filter(|errno| lacking.contains(errno)) {
        Some(_) => {
            let message = format!("{}: this host does not let us work in it by handles: {error}", state.display());
            let hint = "`cofferdam doctor` shows what this host offers; --read-only needs no state directory";
            Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Preparation)
        }
        None => state::unusable(state, &error.to_string()),
    }
}

fn no_base(at: &Path, error: &io::Error) -> Fault {
    let message = format!("{}: no workspace can be laid over it: {error}", at.display());
    Fault::invalid(message).hint("it must be a directory that you may read").phase(Phase::Admission)
}
