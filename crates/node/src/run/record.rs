//! What is written down about runs that work on a workspace: the sandbox that keeps its changes, the run, and the journal.

use super::layer::{Held, Owner};
use super::phases::Timer;
use super::place::{Fresh, Keep};
use super::survey;
use super::tally::{self, Found};
use crate::lifecycle::live;
use crate::sandbox::{Lifecycle, Run, Sandbox, TTL_MS};
use crate::state::State;
use crate::{Caller, fresh};
use enclosure::Gauge;
use serde_json::json;
use store::{Entry, Kept, Step, Store, Tx};
use terms::{ErrorKind, Fault, Outcome, Phase, Verdict};
use workspace::{Driver, sight};

/// A run and the workspace that it writes to, from its start to its end.
pub(super) struct Tracked {
    pub held: Held,
    /// The sandbox that would be made of it.
    record: Sandbox,
    run_id: String,
    command: Vec<String>,
    actor: String,
    /// What becomes of the workspace is settled.
    settled: bool,
    /// How long its phases took, once that is known.
    pub timer: Option<Timer>,
}

impl Tracked {
    pub fn new(held: Held, record: Sandbox, run_id: String, command: Vec<String>, caller: &Caller) -> Tracked {
        Tracked { held, record, run_id, command, actor: caller.user.clone(), settled: false, timer: None }
    }

    /// Before the command starts. A run in a sandbox is written down now, so that others see who has it.
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

    /// Who measures the workspace while the command runs.
    pub fn gauge(&self) -> Option<Box<dyn Gauge>> {
        let top = self.held.top().ok()?;
        let account = self.held.account.as_ref().and_then(|account| account.of_layer(&top.id).ok());
        let meter = survey::Meter::new(&top.up, &self.held.layers.dir, account).ok()?;
        let limited = self.record.limits.max_disk_mb.is_some() || self.record.limits.max_files.is_some();
        let is_copy = self.held.stack.driver != Driver::Overlay;
        let used_before = is_copy || matches!(self.held.owner, Owner::Sandbox(_));
        Some(Box::new(match (used_before, limited || meter.shares()) {
            (false, _) => meter.of_fresh_layer(),
            (true, true) => meter.settle(),
            (true, false) => meter,
        }))
    }

    /// After the end of the command: what it changed is counted, and kept or dropped.
    pub fn end(mut self, mut outcome: Outcome) -> Outcome {
        self.settled = true;
        let (found, met) = tally::count(&self.held.stack).unwrap_or_else(|fault| {
            outcome.message.get_or_insert(tally::uncounted(&fault));
            // What could not be looked at is kept.
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
            let _without_it_times_decide = sight::look(&self.held.stack, &met);
        }
        match kept {
            Some(Ok(id)) => outcome.sandbox = Some(id),
            // The changes are safe in their layer, and the outcome is the command's; what is missing is the record.
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

    /// The command did not start, or we lost it: nothing that it may have changed is thrown away.
    pub fn fail(mut self, fault: &Fault) {
        self.settled = true;
        match &self.held.owner {
            Owner::Sandbox(sandbox) => {
                let store = Store::open(&self.held.state);
                let _told_already = store.and_then(|store| store.write(|tx| self.written(&sandbox.id).fail(tx, fault)));
            }
            Owner::Run(_) => self.drop_if_unused(),
        }
    }

    fn drop_if_unused(&self) {
        if tally::count(&self.held.stack).is_ok_and(|(found, _)| found.is_nothing()) {
            self.held.drop_layer();
        }
    }

    /// Makes a sandbox of what the run left.
    fn keep(&self, options: &Fresh, outcome: &Outcome) -> Result<String, Fault> {
        let id = terms::id("sbx", fresh::random());
        let now = fresh::now_ms();
        let sandbox = Sandbox {
            name: options.name.clone(),
            layers: vec![self.held.top()?.id.clone()],
            used_ms: now,
            expires_ms: Some(now.saturating_add(options.ttl_ms.unwrap_or(TTL_MS))),
            ..self.record.clone()
        };
        // What it wrote is not forced to the disk, but where it is found there is.
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

/// A run in a sandbox, as it is written down: its record, and the journal.
pub(crate) struct Written<'a> {
    pub sandbox: String,
    pub run: &'a str,
    pub command: &'a [String],
    pub actor: &'a str,
    pub started_ms: u64,
    /// Where somebody has looked at the clock already.
    pub ended_ms: Option<u64>,
    pub service: Option<&'a str>,
    pub request: Option<&'a str>,
    /// How long its phases took, once it has ended.
    pub timer: Option<&'a Timer>,
}

impl Written<'_> {
    pub fn begin(&self, tx: &Tx<'_>) -> Result<(), Fault> {
        // Read anew under the lock: it may have been stopped or removed since it was found.
        let now: Kept<Sandbox> = tx.get(&self.sandbox)?.ok_or_else(|| crate::sandbox::unknown(&self.sandbox))?;
        check_active(&now)?;
        tx.add(self.run, self.record(None))?;
        self.note(tx, "run", Step::Intent, self.intent())
    }

    pub fn end(&self, tx: &Tx<'_>, outcome: &Outcome) -> Result<(), Fault> {
        // One whose beginning could not be written has no end either.
        if !self.close(tx, Some(outcome))? {
            return Ok(());
        }
        if let Some(mut kept) = tx.get::<Sandbox>(&self.sandbox)? {
            kept.record.used_ms = fresh::now_ms();
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
            pid_start: live::own_start(),
            boot: live::boot(),
            started_ms: self.started_ms,
            ended_ms: outcome.map(|_| fresh::now_ms()),
            verdict: outcome.map(|o| o.verdict),
            status: outcome.map(Outcome::status),
            service: self.service.map(str::to_owned),
            request: self.request.map(str::to_owned),
        }
    }

    fn close(&self, tx: &Tx<'_>, outcome: Option<&Outcome>) -> Result<bool, Fault> {
        let Some(mut run) = tx.get::<Run>(self.run)? else { return Ok(false) };
        run.record.ended_ms = Some(self.ended_ms.unwrap_or_else(fresh::now_ms));
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
        let entry = Entry { at_ms: fresh::now_ms(), verb, step, subject: &self.sandbox, actor: self.actor, body };
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

/// Commands run only in what was not stopped.
pub(super) fn check_active(sandbox: &Kept<Sandbox>) -> Result<(), Fault> {
    match sandbox.record.state {
        Lifecycle::Active => Ok(()),
        Lifecycle::Stopped => Err(is_stopped(&sandbox.id)),
    }
}

pub(crate) fn is_stopped(sandbox: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} is stopped")).phase(Phase::Admission);
    fault.hint(format!("`cofferdam start {sandbox}` first")).subject(sandbox)
}

/// Says who has a sandbox that cannot be had.
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
