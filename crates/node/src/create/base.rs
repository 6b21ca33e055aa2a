//! What a new sandbox stands on: the directory that it covers and the layers over it, from nothing or from a template.

use super::Ask;
use crate::snapshots;
use rustix::time::{ClockId, clock_gettime};
use state::layer_meta::{Meta, drop_layer};
use state::reach::{BaseFault, Reach};
use state::sandbox::Sandbox;
use state::snapshot::Ground;
use state::{Caller, State};
use std::path::{Path, PathBuf};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use workspace::copy::Copied;
use workspace::{Dir, Driver, Layer, Lock, Rel};

/// The directory that is covered.
pub struct Base {
    pub path: PathBuf,
    pub dir: Dir,
    pub id: (u64, u64),
}

impl Base {
    /// The one that was asked for; else its own, else the template's, else the current one.
    pub fn open(ask: &Ask, ground: Option<&Ground>, own: Option<&Path>, caller: &Caller) -> Result<Base, Fault> {
        let asked = match (&ask.dir, own, ground) {
            (_, Some(own), _) => own.to_owned(),
            (Some(dir), ..) => caller.cwd.join(dir),
            (None, None, Some(ground)) => ground.base.clone(),
            (None, None, None) => caller.cwd.clone(),
        };
        let refuse = |why: &str| {
            let fault = Fault::invalid(format!("{}: {why}", asked.display())).phase(Phase::Admission);
            fault.hint("name a directory that exists and that you may read")
        };
        // What a template stands on was granted to whoever made it.
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

/// The layers of a sandbox that has no record yet; nobody else touches them while the lock is held.
pub struct Stacked {
    /// The one that was made just now.
    pub top: Layer,
    _lock: Lock,
}

impl Stacked {
    /// Makes what the sandbox needs, and says so in the sandbox.
    pub fn make(
        state: &State,
        base: &Base,
        ask: &Ask,
        id: &str,
        sandbox: &mut Sandbox,
        progress: &mut dyn FnMut(&Copied),
    ) -> Result<Stacked, Fault> {
        let unmade = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{}: a new layer: {e}", state.path.display()));
            fault.phase(Phase::Preparation).hint("the state directory must be writable, with space left")
        };
        if let Some(template) = &ask.template {
            let seed = snapshots::from_template(state, template, Some(&base.path))?;
            (sandbox.layers, sandbox.since) = (seed.layers, seed.ground.since);
            sandbox.template = Some(seed.template);
            let top = sandbox.layers.last().ok_or_else(|| Fault::internal("a template without layers"))?;
            return Ok(Stacked { top: state.layers.get(top).map_err(unmade)?, _lock: seed.lock });
        }
        sandbox.driver = workspace::driver::choose(&base.dir, &state.layers.dir, ask.driver)?;
        let (top, lock) = state.layers.make(&base.dir, sys::random::id_bytes()).map_err(unmade)?;
        let made = Stacked { top, _lock: lock };
        match made.fill(state, base, id, sandbox, progress) {
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
        base: &Base,
        id: &str,
        sandbox: &mut Sandbox,
        progress: &mut dyn FnMut(&Copied),
    ) -> Result<(), Fault> {
        let failed = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("layer {}: {e}", self.top.id));
            fault.phase(Phase::Preparation).hint("look at the disk of the state directory, then ask again")
        };
        sandbox.layers = vec![self.top.id.clone()];
        sandbox.since = self.top.made_at().map_err(failed)?;
        if sandbox.driver != Driver::Overlay {
            let copied = workspace::copy::into_layer(&base.dir, &self.top, sandbox.driver, progress)?;
            sandbox.notes.extend(copied.left_out());
        }
        Meta::of(id, sandbox).write(&self.top).map_err(failed)?;
        // On the disk before there is a record of it: a power failure must not leave a sandbox without a layer.
        state.layers.settle_names(&self.top).map_err(failed)
    }

    /// What was made is not wanted after all. What cannot be taken away now is left for gc.
    pub fn drop_layer(&self, state: &State) {
        let _ = drop_layer(&state.layers, &self.top.id);
    }
}

/// Until the clock that files are stamped by has moved: a change of the base right after this is later than the layer.
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

/// What a template brings with it.
pub fn ground_of(state: &State, ask: &Ask) -> Result<Option<Ground>, Fault> {
    let Some(word) = &ask.template else { return Ok(None) };
    state.store.read(|tx| snapshots::find_template(tx, word)).map(|kept| Some(kept.record.ground))
}
