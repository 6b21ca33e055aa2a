//! Records of runs that work on a workspace: the sandbox that keeps the changes, the run, and the journal.

use super::disk_meter;
use super::layer::{Held, Owner};
use super::phases::Timer;
use super::place::{Fresh, Keep};
use enclosure::Gauge;
use serde_json::json;
use state::sandbox::{Lifecycle, Run, Sandbox, TTL_MS};
use state::{Caller, State};
use store::{Entry, Kept, Step, Store, Tx};
use terms::{ErrorKind, Fault, Outcome, Phase, Verdict};
use workspace::change_count::{self, Found};
use workspace::{Driver, sight};

/// A run and the workspace that it writes to, from its start to its end.
pub(super) struct Tracked {
    pub held: Held,
    /// Record of the sandbox that would be made of the workspace.
    record: Sandbox,
    run_id: String,
    command: Vec<String>,
    actor: String,
    /// Retention of the workspace is decided.
    settled: bool,
    /// Durations of its phases, once they are known.
    pub timer: Option<Timer>,
}

impl Tracked {
    pub fn new(held: Held, record: Sandbox, run_id: String, command: Vec<String>, caller: &Caller) -> Tracked {
        Tracked { held, record, run_id, command, actor: caller.user.clone(), settled: false, timer: None }
    }

    /// Records the start of a run in a sandbox, so that other processes see which run holds it.
    pub fn begin(&self) -> Result<(), Fault> {
        match &self.held.owner {
            Owner::Sandbox(sandbox) => Store::open(&self.held.state)?.write(|tx| self.written(&sandbox.id).begin(tx)),
            Owner::Run(_) => Ok(()),
        }
    }

    fn written(&self, sandbox: &str) -> Written<'_> {
        Written {
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
        let meter = disk_meter::Meter::new(&top.up, &self.held.layers.dir, account).ok()?;
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
            Owner::Run(options) if is_kept(options, &found) => Some(self.keep(options, &outcome)),
            Owner::Run(_) => {
                self.held.drop_layer();
                None
            }
        };
        if kept.is_some() {
            let _ = sight::look(&self.held.stack, &met); // without it, drift is judged by times
        }
        match kept {
            Some(Ok(id)) => outcome.sandbox = Some(id),
            // The changes are safe in their layer, and the outcome is the command's; only the record is missing.
            Some(Err(fault)) => {
                let said = format!("the run could not be written down: {fault}; `cofferdam gc` takes its changes up");
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
            Owner::Run(_) => self.drop_if_unused(),
        }
    }

    fn drop_if_unused(&self) {
        if change_count::count(&self.held.stack).is_ok_and(|(found, _)| found.is_nothing()) {
            self.held.drop_layer();
        }
    }

    /// Makes a sandbox of the changes that the run left.
    fn keep(&self, options: &Fresh, outcome: &Outcome) -> Result<String, Fault> {
        let id = terms::id("sbx", sys::random::id_bytes());
        let now = terms::clock::now_ms();
        let sandbox = Sandbox {
            name: options.name.clone(),
            layers: vec![self.held.top()?.id.clone()],
            used_ms: now,
            expires_ms: Some(now.saturating_add(options.ttl_ms.unwrap_or(TTL_MS))),
            ..self.record.clone()
        };
        // File contents are not synced, but the layer's directory entry is.
        let unnamed = |e: std::io::Error| Fault::new(ErrorKind::Unavailable, format!("its layer: {e}"));
        self.held.layers.settle_names(self.held.top()?).map_err(unnamed)?;
        Store::open(&self.held.state)?.write(|tx| {
            let intent = json!({"base": sandbox.base, "name": sandbox.name, "run": self.run_id});
            let written = self.written(&id);
            tx.add(&id, sandbox)?;
            tx.add(&self.run_id, written.record(Some(outcome)))?;
            written.note(tx, "create", Step::Intent, intent.clone())?;
            written.note(tx, "create", Step::Done, intent)?;
            written.note(tx, "run", Step::Intent, written.intent())?;
            written.note(tx, "run", Step::Done, written.result(outcome))
        })?;
        Ok(id)
    }
}

/// The record of a run in a sandbox, and its entries in the journal.
pub(crate) struct Written<'a> {
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

impl Written<'_> {
    pub fn begin(&self, tx: &Tx<'_>) -> Result<(), Fault> {
        // Read again under the lock: the sandbox may have been stopped or removed since it was found.
        let now: Kept<Sandbox> = tx.get(&self.sandbox)?.ok_or_else(|| state::sandbox::unknown(&self.sandbox))?;
        check_active(&now)?;
        tx.add(self.run, self.record(None))?;
        self.note(tx, "run", Step::Intent, self.intent())
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
        self.note(tx, "run", Step::Done, self.result(outcome))
    }

    pub fn fail(&self, tx: &Tx<'_>, fault: &Fault) -> Result<(), Fault> {
        self.close(tx, None)?;
        let mut body = json!({"run": self.run, "error_kind": fault.error_kind, "message": fault.message});
        self.time(&mut body);
        self.note(tx, "run", Step::Failed, body)
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

    fn note(&self, tx: &Tx<'_>, verb: &str, step: Step, body: serde_json::Value) -> Result<(), Fault> {
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

fn is_kept(options: &Fresh, found: &Found) -> bool {
    match options.keep {
        Keep::Always => true,
        Keep::Never => false,
        Keep::Changed => options.name.is_some() || !found.is_nothing(),
    }
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

/// Builds the fault for a sandbox that another run holds, and names that run.
pub(super) fn busy(state: &State, sandbox: &str) -> Fault {
    let runs = state.store.read(|tx| tx.list_in::<Run>(sandbox)).unwrap_or_default();
    let live = runs.into_iter().filter(|run| run.record.ended_ms.is_none()).max_by_key(|run| run.record.started_ms);
    let who = match &live {
        Some(run) => format!("{} (pid {}) is running in it", run.id, run.record.pid),
        None => "another process has it".to_owned(),
    };
    let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} is busy: {who}")).phase(Phase::Admission);
    fault.hint(format!("wait for it, or end it with `cofferdam stop {sandbox}`")).subject(sandbox)
}
