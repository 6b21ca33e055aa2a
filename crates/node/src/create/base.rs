//! The base directory of a new sandbox and the layers over it, empty ones or those of a template.

use super::CreateSandbox;
use crate::snapshots;
use api::{Driver, Rel};
use runtime::run::repository;
use rustix::time::{ClockId, clock_gettime};
use state::layer_meta::{Meta, drop_layer};
use state::reach::{BaseFault, Reach};
use state::sandbox::Sandbox;
use state::snapshot::Ground;
use state::{Caller, State};
use std::path::{Path, PathBuf};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use workspace::copy::CopyTotals;
use workspace::{Dir, Layer, Lock};

/// The directory that a sandbox covers.
pub struct Base {
    pub path: PathBuf,
    pub dir: Dir,
    pub id: (u64, u64),
}

impl Base {
    /// Opens the requested directory; without one the sandbox's own, else the template's, else the current directory.
    pub fn open(
        ask: &CreateSandbox,
        ground: Option<&Ground>,
        own: Option<&Path>,
        caller: &Caller,
    ) -> Result<Base, Fault> {
        let asked = match (&ask.dir, own, ground) {
            (_, Some(own), _) => own.to_owned(),
            (Some(dir), ..) => caller.cwd.join(dir),
            (None, None, Some(ground)) => ground.base.clone(),
            (None, None, None) => repository::top(&caller.cwd, caller).unwrap_or_else(|| caller.cwd.clone()),
        };
        let refuse = |why: &str| {
            let fault = Fault::invalid(format!("{}: {why}", asked.display())).phase(Phase::Admission);
            fault.hint("name a directory that exists and that you may read")
        };
        // The base of a template was granted to the caller who made it.
        let reach = match own.is_none() && (ask.dir.is_some() || ground.is_none()) {
            true => &caller.reach,
            false => &Reach::All,
        };
        let path = reach.base(&asked).map_err(|why| match why {
            BaseFault::Missing(e) => refuse(&e.to_string()),
            BaseFault::Refused(fault) => *fault,
        })?;
        if path.to_str().is_none() {
            return Err(refuse("its path is not UTF-8"));
        }
        let dir = Dir::open_canonical(&path).map_err(|e| refuse(&e.to_string()))?;
        let meta = dir.meta(&Rel::top()).map_err(|e| refuse(&e.to_string()))?;
        let id = meta.map(|meta| (meta.dev, meta.ino)).ok_or_else(|| refuse("it is gone"))?;
        Ok(Base { path, dir, id })
    }
}

/// The layers of a sandbox that has no record yet. The lock keeps other processes away from them.
pub struct NewLayers {
    /// The new layer.
    pub top: Layer,
    _lock: Lock,
}

impl NewLayers {
    /// Makes the layers that the sandbox needs, and enters them in its record.
    pub fn make(
        state: &State,
        caller: &Caller,
        base: &Base,
        ask: &CreateSandbox,
        id: &str,
        sandbox: &mut Sandbox,
        progress: &mut dyn FnMut(&CopyTotals),
    ) -> Result<NewLayers, Fault> {
        let unmade = |e: std::io::Error| {
            let fault =
                Fault::new(ErrorKind::Unavailable, format!("{}: cannot create a layer: {e}", state.path.display()));
            fault.phase(Phase::Preparation).hint("the state directory must be writable, with space left")
        };
        if let Some(template) = &ask.template {
            let seed = snapshots::from_template(state, template, Some(&base.path))?;
            (sandbox.layers, sandbox.since) = (seed.layers, seed.ground.since);
            sandbox.template = Some(seed.template);
            let top = sandbox.layers.last().ok_or_else(|| Fault::internal("a template without layers"))?;
            return Ok(NewLayers { top: state.layers.get(top).map_err(unmade)?, _lock: seed.lock });
        }
        sandbox.driver = workspace::driver::choose(&base.dir, &state.layers.dir, ask.driver)?;
        let (top, lock) = state.layers.make(&base.dir, sys::random::id_bytes()).map_err(unmade)?;
        let made = NewLayers { top, _lock: lock };
        match made.fill(state, caller, base, id, sandbox, progress) {
            Ok(()) => Ok(made),
            Err(fault) => {
                made.drop_layer(state);
                Err(fault)
            }
        }
    }

    fn fill(
        &self,
        state: &State,
        caller: &Caller,
        base: &Base,
        id: &str,
        sandbox: &mut Sandbox,
        progress: &mut dyn FnMut(&CopyTotals),
    ) -> Result<(), Fault> {
        let failed = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("cannot open layer {}: {e}", self.top.id));
            fault.phase(Phase::Preparation).hint("check the disk of the state directory, then repeat")
        };
        sandbox.layers = vec![self.top.id.clone()];
        sandbox.since = self.top.made_at().map_err(failed)?;
        if sandbox.driver != Driver::Overlay {
            let copied = workspace::copy::into_layer(&base.dir, &self.top, sandbox.driver, progress)?;
            sandbox.notes.extend(copied.left_out());
        }
        sandbox.notes.extend(repository::seed(&base.path, &self.top, caller));
        Meta::of(id, sandbox).write(&self.top).map_err(failed)?;
        // Synced before the record exists: a power failure must not leave a sandbox without a layer.
        state.layers.settle_names(&self.top).map_err(failed)
    }

    /// Removes the new layer after a failed request. If that fails, gc removes it.
    pub fn drop_layer(&self, state: &State) {
        let _ = drop_layer(&state.layers, &self.top.id);
    }
}

/// Waits for the next tick of the clock that stamps files, so that a change of the base after this is later than the layer.
pub fn wait_for_clock(layer: &Layer) {
    let Ok(made) = layer.made_at() else { return };
    // Ticks are 1 to 10 ms apart.
    for _ in 0..50 {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        if (now.tv_sec, now.tv_nsec as u32) > made {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Returns the ground of the requested template.
pub fn template_ground(state: &State, ask: &CreateSandbox) -> Result<Option<Ground>, Fault> {
    let Some(word) = &ask.template else { return Ok(None) };
    state.store.read(|tx| snapshots::find_template(tx, word)).map(|kept| Some(kept.record.ground))
}
