//! Registration of a run that has a workspace of its own: the record of its sandbox, written while the command runs, so that other verbs
//! find it. A run that is kept in any case is registered before its start. Every other one is registered on a thread once it has lasted for
//! `DELAY`; a shorter one leaves a record only if it leaves changes, and opens no database otherwise.

use super::record::RunWriter;
use api::JournalStep;
use serde_json::json;
use state::conflicted::Conflicted;
use state::sandbox::{Anchored, Reviewed, Run, Sandbox, layers_in_use};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;
use store::{Store, Tx};
use terms::{ErrorKind, Fault};
use workspace::Layers;

/// Time after which a run is registered.
pub(super) const DELAY: Duration = Duration::from_millis(150);

/// Journal entries and records of a registration.
pub(super) struct RegistrationEntries {
    pub state: PathBuf,
    pub layers: Layers,
    /// Id of the sandbox.
    pub id: String,
    pub sandbox: Sandbox,
    pub run_id: String,
    pub command: Vec<String>,
    pub started_ms: u64,
    pub actor: String,
}

impl RegistrationEntries {
    /// Writes the records; returns the version of the sandbox's. Does not wait for the disk: the end of the run does, and a layer without
    /// a record is taken up by `gc`.
    pub fn write(self) -> Result<u64, Fault> {
        let unnamed = |e: std::io::Error| Fault::new(ErrorKind::Unavailable, format!("its layer: {e}"));
        for id in &self.sandbox.layers {
            self.layers.get(id).and_then(|layer| self.layers.settle_names(&layer)).map_err(unnamed)?;
        }
        let RegistrationEntries { state, id, sandbox, run_id, command, started_ms, actor, .. } = self;
        let written = RunWriter {
            sandbox: id.clone(),
            run: &run_id,
            command: &command,
            actor: &actor,
            started_ms,
            ended_ms: None,
            service: None,
            request: None,
            timer: None,
        };
        Store::open(&state)?.write_soon(|tx| {
            let created = json!({"base": sandbox.base, "name": sandbox.name, "run": run_id});
            let version = tx.add(&id, sandbox)?.version;
            written.note(tx, "create", JournalStep::Intent, created.clone())?;
            written.note(tx, "create", JournalStep::Done, created)?;
            written.begin(tx).map(|()| version)
        })
    }
}

/// The state of a registration.
#[derive(Default)]
pub(super) struct Registration {
    done: Option<u64>,
    writing: Rc<RefCell<Option<JoinHandle<Option<u64>>>>>,
}

impl Registration {
    /// Registers a run before its start.
    pub fn write(&mut self, entries: RegistrationEntries) -> Result<(), Fault> {
        self.done = Some(entries.write()?);
        Ok(())
    }

    /// Returns the call that registers the run on a thread. Without a thread, or where the state cannot be written, the run is recorded at
    /// its end.
    pub fn later(&self, entries: RegistrationEntries) -> impl FnOnce() + 'static {
        let writing = Rc::clone(&self.writing);
        move || {
            let thread = std::thread::Builder::new().name("register".into());
            *writing.borrow_mut() = thread.spawn(move || entries.write().ok()).ok();
        }
    }

    /// Returns the version of the sandbox's record, if the run is registered. Waits for a registration that is being written.
    pub fn version(&mut self) -> Option<u64> {
        if let Some(thread) = self.writing.borrow_mut().take() {
            self.done = thread.join().ok().flatten();
        }
        self.done
    }
}

/// Removes the records of a run that leaves nothing. Returns whether its layer belongs to no other record and may go, too.
pub(super) fn withdraw(tx: &Tx<'_>, written: &RunWriter<'_>, layer: &str) -> Result<bool, Fault> {
    let id = &written.sandbox;
    let Some(kept) = tx.get::<Sandbox>(id)? else { return Ok(false) };
    tx.remove::<Sandbox>(id)?;
    tx.remove::<Run>(written.run)?;
    tx.remove::<Anchored>(id)?;
    tx.remove::<Reviewed>(id)?;
    tx.remove::<Conflicted>(id)?;
    let is_alone = !layers_in_use(tx)?.contains_key(layer);
    let gone: &[&str] = if is_alone { &[layer] } else { &[] };
    let why = "its run left nothing to keep";
    written.note(tx, "rm", JournalStep::Intent, json!({"layers": gone, "why": why, "name": kept.record.name}))?;
    written.note(tx, "rm", JournalStep::Done, json!({"failed": []}))?;
    Ok(is_alone)
}
