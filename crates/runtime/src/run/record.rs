//! Records of runs that work on a workspace: the sandbox that keeps the changes, the run, and the journal.

use super::disk_meter;
use super::layer::{LockedWorkspace, Owner};
use super::phases::Timer;
use super::place::{Keep, NewWorkspace};
use super::registration::{DELAY, Registration, RegistrationEntries, withdraw};
use api::{Driver, JournalStep, Lifecycle};
use enclosure::{DelayedCall, Gauge};
use serde_json::json;
use state::sandbox::{Run, Sandbox, TTL_MS};
use state::{Caller, State};
use store::{Entry, Kept, Store, Tx};
use terms::{ErrorKind, Fault, Outcome, Phase, Verdict};
use workspace::change_count::{self, Found};
use workspace::{Dir, HomePart, sight};

/// A run and the workspace that it writes to, from its start to its end.
pub(super) struct Tracked {
    pub held: LockedWorkspace,
    /// Record of the sandbox that would be made of the workspace.
    record: Sandbox,
    run_id: String,
    command: Vec<String>,
    actor: String,
    /// Retention of the workspace is decided.
    settled: bool,
    /// Id of the sandbox that is made for the run.
    id: String,
    registration: Registration,
    /// Durations of its phases, once they are known.
    pub timer: Option<Timer>,
}

impl Tracked {
    pub fn new(
        held: LockedWorkspace,
        record: Sandbox,
        run_id: String,
        command: Vec<String>,
        caller: &Caller,
    ) -> Tracked {
        let (actor, id) = (caller.user.clone(), terms::id("sbx", sys::random::id_bytes()));
        let registration = Registration::default();
        Tracked { held, record, run_id, command, actor, settled: false, id, registration, timer: None }
    }

    /// Records the start of a run, so that other processes see which run holds the sandbox. One that may leave nothing is recorded by the
    /// returned call, while its command runs.
    pub fn begin(&mut self) -> Result<Option<DelayedCall<'static>>, Fault> {
        match &self.held.owner {
            Owner::Sandbox(sandbox) => {
                Store::open(&self.held.state)?.write(|tx| self.written(&sandbox.id).begin(tx)).map(|()| None)
            }
            Owner::Run(options) if options.keeps_anything() => {
                let entries = self.entries(options)?;
                self.registration.write(entries).map(|()| None)
            }
            Owner::Run(options) => {
                let call = Box::new(self.registration.later(self.entries(options)?));
                Ok(Some(DelayedCall { after: DELAY, call }))
            }
        }
    }

    fn entries(&self, options: &NewWorkspace) -> Result<RegistrationEntries, Fault> {
        let fail = |e: std::io::Error| Fault::internal(e.to_string());
        Ok(RegistrationEntries {
            state: self.held.state.clone(),
            layers: workspace::Layers { dir: self.held.layers.dir.try_clone().map_err(fail)? },
            id: self.id.clone(),
            sandbox: self.sandbox(options)?,
            run_id: self.run_id.clone(),
            command: self.command.clone(),
            started_ms: self.record.created_ms,
            actor: self.actor.clone(),
        })
    }

    fn written(&self, sandbox: &str) -> RunWriter<'_> {
        RunWriter {
            sandbox: sandbox.to_owned(),
            run: &self.run_id,
            command: &self.command,
            actor: &self.actor,
            started_ms: self.record.created_ms,
            ended_ms: None,
            service: None,
            request: None,
            timer: self.timer.as_ref(),
        }
    }

    /// Returns the gauge that measures the workspace while the command runs.
    pub fn gauge(&self) -> Option<Box<dyn Gauge>> {
        let top = self.held.top().ok()?;
        let account = self.held.account.as_ref().and_then(|account| account.of_layer(&top.id).ok());
        let parts = [HomePart::Changes, HomePart::Caches].map(|part| top.home(part).ok().flatten());
        let trees: Vec<&Dir> = std::iter::once(&top.up).chain(parts.iter().flatten()).collect();
        let meter = disk_meter::Meter::new(&trees, &self.held.layers.dir, account).ok()?;
        let limited = self.record.limits.max_disk_mb.is_some() || self.record.limits.max_files.is_some();
        let is_copy = self.held.stack.driver != Driver::Overlay;
        let used_before = is_copy || matches!(self.held.owner, Owner::Sandbox(_));
        Some(Box::new(match (used_before, limited || meter.shares()) {
            (false, _) => meter.of_fresh_layer(),
            (true, true) => meter.settle(),
            (true, false) => meter,
        }))
    }

    /// Counts the changes of a command that has ended, and keeps or drops them.
    pub fn end(mut self, mut outcome: Outcome) -> Outcome {
        self.settled = true;
        let (found, met) = change_count::count(&self.held.stack).unwrap_or_else(|fault| {
            outcome.message.get_or_insert(change_count::uncounted(&fault));
            // Kept, because it could not be inspected.
            (Found { cut: true, ..Found::default() }, Vec::new())
        });
        outcome.changes = found.changes;
        let kept = match &self.held.owner {
            Owner::Sandbox(sandbox) => {
                let ended = Store::open(&self.held.state)
                    .and_then(|store| store.write(|tx| self.written(&sandbox.id).end(tx, &outcome)));
                Some(ended.map(|()| sandbox.id.clone()))
            }
            Owner::Run(options) => {
                let options = options.clone();
                match (self.registration.version(), is_kept(&options, &found)) {
                    (Some(version), keeps) => self.settle(&options, (version, keeps), |w, tx| w.end(tx, &outcome)),
                    (None, true) => Some(self.keep(&options, &outcome)),
                    (None, false) => {
                        self.held.drop_layer();
                        None
                    }
                }
            }
        };
        if kept.is_some() {
            let _ = sight::look(&self.held.stack, &met); // without it, drift is judged by times
        }
        match kept {
            Some(Ok(id)) => outcome.sandbox = Some(id),
            // The changes are safe in their layer, and the outcome is the command's; only the record is missing.
            Some(Err(fault)) => {
                let said = format!("the run could not be recorded: {fault}; `cofferdam gc` recovers its changes");
                outcome.message = Some(match outcome.message.take() {
                    Some(before) => format!("{before}; {said}"),
                    None => said,
                });
            }
            None => {}
        }
        outcome
    }

    /// Records that the command did not start, or was lost. Possible changes are kept.
    pub fn fail(mut self, fault: &Fault) {
        self.settled = true;
        match &self.held.owner {
            Owner::Sandbox(sandbox) => {
                let store = Store::open(&self.held.state);
                // The caller has the fault already.
                let _ = store.and_then(|store| store.write(|tx| self.written(&sandbox.id).fail(tx, fault)));
            }
            Owner::Run(options) => {
                let options = options.clone();
                match self.registration.version() {
                    // The caller has the fault already.
                    Some(version) => {
                        drop(self.settle(&options, (version, !self.is_unused()), |w, tx| w.fail(tx, fault)));
                    }
                    None => self.drop_if_unused(),
                }
            }
        }
    }

    fn is_unused(&self) -> bool {
        change_count::count(&self.held.stack).is_ok_and(|(found, _)| found.is_nothing())
    }

    fn drop_if_unused(&self) {
        if self.is_unused() {
            self.held.drop_layer();
        }
    }

    /// Records the end of a registered run, with `end`. Its sandbox stays if something is to be kept, or if another verb changed it
    /// meanwhile; else its records and its layer go.
    fn settle(
        &self,
        options: &NewWorkspace,
        (version, keeps): (u64, bool),
        end: impl FnOnce(&RunWriter<'_>, &Tx<'_>) -> Result<(), Fault>,
    ) -> Option<Result<String, Fault>> {
        let done = Store::open(&self.held.state).and_then(|store| {
            store.write(|tx| {
                let Some(mut kept) = tx.get::<Sandbox>(&self.id)? else { return Ok((false, false)) };
                let is_touched = kept.version != version;
                let stays = keeps || (is_touched && options.keep != Keep::Never);
                if stays && !is_touched {
                    kept.record.expires_ms = Some(expiry(options));
                    tx.change(kept)?;
                }
                end(&self.written(&self.id), tx)?;
                let goes = match stays {
                    true => false,
                    false => withdraw(tx, &self.written(&self.id), &self.held.top()?.id)?,
                };
                Ok((stays, goes))
            })
        });
        match done {
            Ok((true, _)) => Some(Ok(self.id.clone())),
            Ok((false, goes)) => {
                if goes {
                    self.held.drop_layer();
                }
                None
            }
            Err(fault) => Some(Err(fault)),
        }
    }

    /// Returns the record of the sandbox that holds the run's changes.
    fn sandbox(&self, options: &NewWorkspace) -> Result<Sandbox, Fault> {
        Ok(Sandbox {
            name: options.name.clone(),
            layers: vec![self.held.top()?.id.clone()],
            used_ms: terms::clock::now_ms(),
            expires_ms: Some(expiry(options)),
            ..self.record.clone()
        })
    }

    /// Makes a sandbox of the changes that the run left.
    fn keep(&self, options: &NewWorkspace, outcome: &Outcome) -> Result<String, Fault> {
        let (id, sandbox) = (self.id.clone(), self.sandbox(options)?);
        // File contents are not synced, but the layer's directory entry is.
        let unnamed = |e: std::io::Error| Fault::new(ErrorKind::Unavailable, format!("its layer: {e}"));
        self.held.layers.settle_names(self.held.top()?).map_err(unnamed)?;
        Store::open(&self.held.state)?.write(|tx| {
            let intent = json!({"base": sandbox.base, "name": sandbox.name, "run": self.run_id});
            let written = self.written(&id);
            tx.add(&id, sandbox)?;
            tx.add(&self.run_id, written.record(Some(outcome)))?;
            written.note(tx, "create", JournalStep::Intent, intent.clone())?;
            written.note(tx, "create", JournalStep::Done, intent)?;
            written.note(tx, "run", JournalStep::Intent, written.intent())?;
            written.note(tx, "run", JournalStep::Done, written.result(outcome))
        })?;
        Ok(id)
    }
}

/// Writer of a run's record (`Run`) and of its entries in the journal, within a transaction.
pub(crate) struct RunWriter<'a> {
    pub sandbox: String,
    pub run: &'a str,
    pub command: &'a [String],
    pub actor: &'a str,
    pub started_ms: u64,
    /// Time of the end, where it was taken already.
    pub ended_ms: Option<u64>,
    pub service: Option<&'a str>,
    pub request: Option<&'a str>,
    /// Durations of its phases, once the run has ended.
    pub timer: Option<&'a Timer>,
}

impl RunWriter<'_> {
    pub fn begin(&self, tx: &Tx<'_>) -> Result<(), Fault> {
        // Read again under the lock: the sandbox may have been stopped or removed since it was found.
        let now: Kept<Sandbox> = tx.get(&self.sandbox)?.ok_or_else(|| state::sandbox::unknown(&self.sandbox))?;
        check_active(&now)?;
        tx.add(self.run, self.record(None))?;
        self.note(tx, "run", JournalStep::Intent, self.intent())
    }

    pub fn end(&self, tx: &Tx<'_>, outcome: &Outcome) -> Result<(), Fault> {
        // A run whose start could not be recorded gets no end either.
        if !self.close(tx, Some(outcome))? {
            return Ok(());
        }
        if let Some(mut kept) = tx.get::<Sandbox>(&self.sandbox)? {
            kept.record.used_ms = terms::clock::now_ms();
            tx.change(kept)?;
        }
        self.note(tx, "run", JournalStep::Done, self.result(outcome))
    }

    pub fn fail(&self, tx: &Tx<'_>, fault: &Fault) -> Result<(), Fault> {
        self.close(tx, None)?;
        let mut body = json!({"run": self.run, "error_kind": fault.error_kind, "message": fault.message});
        self.time(&mut body);
        self.note(tx, "run", JournalStep::Failed, body)
    }

    fn record(&self, outcome: Option<&Outcome>) -> Run {
        Run {
            sandbox: self.sandbox.clone(),
            command: self.command.to_vec(),
            pid: std::process::id(),
            pid_start: state::process::own_start(),
            boot: state::process::boot(),
            started_ms: self.started_ms,
            ended_ms: outcome.map(|_| terms::clock::now_ms()),
            verdict: outcome.map(|o| o.verdict),
            status: outcome.map(Outcome::status),
            service: self.service.map(str::to_owned),
            request: self.request.map(str::to_owned),
        }
    }

    fn close(&self, tx: &Tx<'_>, outcome: Option<&Outcome>) -> Result<bool, Fault> {
        let Some(mut run) = tx.get::<Run>(self.run)? else { return Ok(false) };
        run.record.ended_ms = Some(self.ended_ms.unwrap_or_else(terms::clock::now_ms));
        run.record.verdict = Some(outcome.map_or(Verdict::Lost, |o| o.verdict));
        run.record.status = outcome.map(Outcome::status);
        tx.change(run).map(|_| true)
    }

    fn intent(&self) -> serde_json::Value {
        json!({"run": self.run, "command": self.command})
    }

    fn result(&self, outcome: &Outcome) -> serde_json::Value {
        let (verdict, status) = (outcome.verdict, outcome.status());
        let mut body = json!({"run": self.run, "verdict": verdict, "status": status, "changes": outcome.changes});
        if let Some(kind) = outcome.limit_kind {
            body["limit_kind"] = json!(kind);
        }
        self.time(&mut body);
        body
    }

    fn time(&self, body: &mut serde_json::Value) {
        if let Some(timer) = self.timer {
            body["phases"] = json!(timer.phases());
        }
    }

    pub(super) fn note(
        &self,
        tx: &Tx<'_>,
        verb: &str,
        step: JournalStep,
        body: serde_json::Value,
    ) -> Result<(), Fault> {
        let entry =
            Entry { at_ms: terms::clock::now_ms(), verb, step, subject: &self.sandbox, actor: self.actor, body };
        tx.note(&entry).map(drop)
    }
}

/// A run that was prepared and never started leaves nothing behind.
impl Drop for Tracked {
    fn drop(&mut self) {
        if !self.settled && matches!(self.held.owner, Owner::Run(_)) {
            self.drop_if_unused();
        }
    }
}

fn is_kept(options: &NewWorkspace, found: &Found) -> bool {
    options.keeps_anything() || (options.keep == Keep::Changed && !found.is_nothing())
}

fn expiry(options: &NewWorkspace) -> u64 {
    terms::clock::now_ms().saturating_add(options.ttl_ms.unwrap_or(TTL_MS))
}

/// Refuses a sandbox that is stopped.
pub fn check_active(sandbox: &Kept<Sandbox>) -> Result<(), Fault> {
    match sandbox.record.state {
        Lifecycle::Active => Ok(()),
        Lifecycle::Stopped => Err(is_stopped(&sandbox.id)),
    }
}

pub(crate) fn is_stopped(sandbox: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} is stopped")).phase(Phase::Admission);
    fault.hint(format!("`cofferdam start {sandbox}` first")).subject(sandbox)
}

/// Length of a prefix of an id that is unique in practice.
const SHORT: usize = 12;

/// Builds the fault for a sandbox that another run holds, and names that run.
pub(super) fn busy(state: &State, sandbox: &str) -> Fault {
    let runs = state.store.read(|tx| tx.list_in::<Run>(sandbox)).unwrap_or_default();
    let live = runs.into_iter().filter(|run| run.record.ended_ms.is_none()).max_by_key(|run| run.record.started_ms);
    let who = match &live {
        Some(run) => format!("{} (pid {}) is running in it", run.id, run.record.pid),
        None => "another process uses it".to_owned(),
    };
    let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} is busy: {who}")).phase(Phase::Admission);
    let named = state.store.read(|tx| tx.get::<Sandbox>(sandbox)).ok().flatten().and_then(|kept| kept.record.name);
    let word = named.as_deref().unwrap_or(sandbox.get(..SHORT).unwrap_or(sandbox));
    let hint = format!(
        "wait for it, end it with `cofferdam stop {word}`, or look on with `cofferdam diff {word}`; several commands at a time run in \
         a sandbox that is live: `cofferdam run --live`, or `cofferdam start --live` for this one, once it is free"
    );
    fault.hint(hint).subject(sandbox)
}
