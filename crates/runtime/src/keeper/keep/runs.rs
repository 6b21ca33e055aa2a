//! Requests about runs: start, input, signal, wait, follow.

use super::clerk::{Note, Task};
use super::client::{Following, OwedReply};
use super::contexts::WorkerStart;
use super::feeds::Feed;
use super::work::{ActiveRun, OutputStream, RunStage};
use super::{EndedRun, KILL, Keep, MOST_FEEDS, MOST_RUNS, TERM, unknown, work};
use crate::keeper::request_digest;
use crate::keeper::wire::{self, Frame, Notice, RunSummary, Start, Started, Waited, WireText};
use crate::keeper_dir::lost;
use crate::keeper_dir::spool::{RecordKind, SpoolReader, SpoolWriter};
use crate::run::{RunWriter, Timer};
use enclosure::PlannedCommand;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry, RunId};

/// Client of input that came with its command, which nobody waits for. Numbers of clients begin at 1.
const NO_CLIENT: u64 = 0;

impl Keep {
    pub(super) fn start(&mut self, id: u64, start: &Start, stdin: Vec<u8>) -> Result<Option<Frame>, Fault> {
        if let Some(run) = start.run.as_ref().filter(|run| RunId::parse(run).is_none()) {
            // The id becomes the name of a directory.
            return Err(Fault::invalid(format!("{run:?} is not a run id")).phase(Phase::Admission));
        }
        if let Some(run) = &start.run
            && let Some(pid) = self.known(run)
        {
            let (before, now) =
                (self.runs.get(run).map(|active| active.note.request.as_deref()), start.request.as_deref());
            if let Some(before) = before.filter(|before| !request_digest::is_same(*before, now)) {
                return Err(request_digest::other_request(run, before, now));
            }
            if self.runs.get(run).is_some_and(|active| active.stage == RunStage::Beginning) {
                self.owe(id, OwedReply::Begin { run: run.clone(), existed: true, waits: false });
                return Ok(None);
            }
            return Ok(Some(wire::value(&Started { run: run.clone(), pid, existed: true, ..Started::default() })));
        }
        if let Some(run) = start.run.as_ref().filter(|run| self.place.run(run).exists()) {
            return self.lost_before(run, start).map(Some);
        }
        let run = self.begin_run(start)?;
        if start.has_stdin {
            if let Ok(active) = self.active_run(&run) {
                active.feeds.push_back(Feed::new(NO_CLIENT, stdin, !start.input, None));
            }
            self.feed(&run);
        }
        self.owe(id, OwedReply::Begin { run, existed: false, waits: start.waits });
        Ok(None)
    }

    /// Records a run that an earlier keeper started and did not record before it was killed. Its progress is unknown, so it is not started
    /// again under the same key.
    fn lost_before(&self, run: &str, start: &Start) -> Result<Frame, Fault> {
        let (_, PlannedCommand { argv, .. }) = self.premises.plan(start)?;
        let command: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let written = RunWriter {
            sandbox: self.premises.sandbox.id.clone(),
            run,
            command: &command,
            actor: &start.actor,
            started_ms: terms::clock::now_ms(),
            ended_ms: None,
            service: None,
            request: start.request.as_deref(),
            timer: None,
        };
        never_recorded(&self.state, &self.place, &written)?;
        Ok(wire::value(&Started { run: run.to_owned(), existed: true, ..Started::default() }))
    }

    pub(super) fn known(&self, run: &str) -> Option<i32> {
        let past = self.ended_runs.iter().find(|past| past.listed.run == run).map(|past| past.listed.pid);
        self.runs.get(run).map(|active| active.pid).or(past)
    }

    pub(super) fn owe(&mut self, id: u64, owed: OwedReply) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.owed = owed;
        }
    }

    /// Starts a command while the clerk records it.
    pub(super) fn begin_run(&mut self, start: &Start) -> Result<String, Fault> {
        self.begin_run_with(start, None)
    }

    /// Starts a command or, with what it is given beside its streams, an interpreter.
    pub(super) fn begin_run_with(&mut self, start: &Start, worker: Option<WorkerStart>) -> Result<String, Fault> {
        let sandbox = self.premises.sandbox.id.clone();
        self.leave_files_only()?;
        if self.files_only {
            return Err(crate::run::is_stopped(&sandbox));
        }
        let trace = start.trace_parent.as_ref().and_then(WireText::text);
        let mut timer = Timer::begin(Phase::Admission, trace.as_deref());
        if self.ending.is_some() {
            let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} is being stopped")).retry(Retry::Later);
            return Err(fault.subject(sandbox).phase(Phase::Admission).hint("start it again when it has ended"));
        }
        if let Some(reason) = &self.failure {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{sandbox} is lost: {reason}")).retry(Retry::Later);
            return Err(fault.subject(sandbox).phase(Phase::Admission).hint("try again: it starts a new keeper"));
        }
        if self.runs.len() >= MOST_RUNS {
            let message = format!("{sandbox}: {MOST_RUNS} commands run in it, and no more can");
            let fault = Fault::new(ErrorKind::LimitExceeded, message).retry(Retry::Later).subject(sandbox);
            return Err(fault.phase(Phase::Admission).hint("wait until some have ended"));
        }
        timer.enter(Phase::Planning);
        let (run_id, mut command) = self.premises.plan(start)?;
        let (is_worker, shown) = (worker.is_some(), worker.as_ref().map(|worker| worker.shown.clone()));
        command.inherit = worker.map(|worker| worker.inherit).unwrap_or_default();
        timer.enter(Phase::Preparation);
        self.thaw()?;
        let run = run_id.as_str().to_owned();
        let spool = SpoolWriter::create(&self.place.run(&run)).map_err(|e| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{run}: its output cannot be kept: {e}"));
            fault.subject(&sandbox).phase(Phase::Preparation).hint("free some space where the state directory is")
        })?;
        let mut note = Note {
            run: run.clone(),
            command: shown.unwrap_or_else(|| command.argv.iter().map(|w| w.to_string_lossy().into_owned()).collect()),
            actor: start.actor.clone(),
            started_ms: terms::clock::now_ms(),
            ended_ms: None,
            service: start.service.clone(),
            request: start.request.clone(),
            timer,
        };
        if !start.secrets.is_empty() {
            self.premises.bring(&start.secrets).inspect_err(|_| {
                let _ = std::fs::remove_dir_all(self.place.run(&run));
            })?;
        }
        let net = self.residence.net_bytes();
        note.timer.enter(Phase::Start);
        // Network events of the run may arrive before its start is known.
        self.premises.roster.begins(&run);
        let started = self.residence.start(command);
        let started = started.inspect_err(|_| {
            self.premises.roster.ended(&run);
            let _ = std::fs::remove_dir_all(self.place.run(&run));
        })?;
        self.premises.roster.begun(&run, started.shepherd);
        note.timer.enter(Phase::Execution);
        let mut active = ActiveRun::new(started, run_id, note.clone(), spool, start.limits).since_net(net);
        active.is_worker = is_worker;
        let _ = active.revise(self.premises.limits()); // no output yet, so no limit is exceeded
        active.has_secrets = !start.secrets.is_empty();
        let job = active.job;
        self.runs.insert(run.clone(), active);
        if !self.clerk.give(Task::Begin(note)) {
            self.residence.end(job);
        }
        Ok(run)
    }

    pub(super) fn input(&mut self, id: u64, run: &str, feed: Feed) -> Result<Option<Frame>, Fault> {
        // A writer may repeat bytes that were taken even after the input was closed or the run has ended.
        let past = || self.ended_runs.iter().find(|past| past.listed.run == run).map(|past| &past.writers);
        let writers = self.runs.get(run).map(|active| &active.writers).or_else(past);
        if let Some(writers) = writers.filter(|writers| writers.have_taken(&feed)) {
            return Ok(Some(fed(writers.taken(feed.by.as_ref()))));
        }
        if self.active_run(run)?.input.is_none() {
            return Err(work::unread(run));
        }
        if self.runs.values().map(|active| active.feeds.len()).sum::<usize>() >= MOST_FEEDS {
            return Err(self.full(format!("{MOST_FEEDS} others wait to write to its runs")));
        }
        // Frozen processes read nothing.
        self.thaw()?;
        self.active_run(run)?.feeds.push_back(feed);
        self.owe(id, OwedReply::Input);
        self.feed(run);
        Ok(None)
    }

    pub(super) fn feed(&mut self, run: &str) {
        let Some(active) = self.runs.get_mut(run) else { return };
        for (client, taken) in active.feed() {
            self.answer(client, taken.map_or_else(|fault| wire::refusal(&fault), fed));
        }
    }

    pub(super) fn signal(&mut self, run: &str, signal: i32) -> Result<bool, Fault> {
        if !(1..=64).contains(&signal) {
            return Err(Fault::invalid(format!("signal {signal}: not a signal number")).phase(Phase::Admission));
        }
        if signal == KILL {
            return self.kill(run);
        }
        let Ok(active) = self.active_run(run) else {
            return self.known(run).map(|_| false).ok_or_else(|| unknown(run));
        };
        if matches!(signal, 1..=3 | TERM) {
            active.cancelled_by = Some(signal);
        }
        let job = active.job;
        // A signal to a frozen process would be delivered only at the next thaw.
        self.thaw()?;
        Ok(self.residence.signal(job, signal))
    }

    pub(super) fn kill(&mut self, run: &str) -> Result<bool, Fault> {
        let Ok(active) = self.active_run(run) else {
            return self.known(run).map(|_| false).ok_or_else(|| unknown(run));
        };
        active.cancelled_by = Some(KILL);
        let job = active.job;
        self.thaw()?;
        self.residence.end(job);
        Ok(true)
    }

    /// Lists all runs; their commands only where everything fits a frame.
    pub(super) fn list(&self) -> Frame {
        let past = self.ended_runs.iter().map(|past| past.listed.clone());
        let mut all: Vec<RunSummary> = self.runs.values().map(ActiveRun::listed).chain(past).collect();
        let frame = wire::value(&all);
        if frame.fits() {
            return frame;
        }
        all.iter_mut().for_each(|listed| listed.command.clear());
        wire::value(&all)
    }

    pub(super) fn wait_for(&mut self, id: u64, run: String, timeout_ms: u64) -> Result<Option<Frame>, Fault> {
        if let Some(past) = self.ended_runs.iter().find(|past| past.listed.run == run) {
            return Ok(Some(wire::value(&self.waited(past))));
        }
        let Some(active) = self.runs.get(&run) else { return Err(unknown(&run)) };
        if timeout_ms == 0 {
            return Ok(Some(wire::value(&Waited { offset: active.spool.next(), ..Waited::default() })));
        }
        let until = Instant::now().checked_add(Duration::from_millis(timeout_ms));
        self.owe(id, OwedReply::Wait { run, until, said: false });
        Ok(None)
    }

    /// Reads the outcome from the run's log, or from memory where the log could not be written.
    pub(super) fn waited(&self, past: &EndedRun) -> Waited {
        let read = |end: u64| {
            let page = SpoolReader::open(&self.place.run(&past.listed.run)).ok()?.read(end, 1).ok()?;
            let record = page.records.into_iter().find(|record| record.kind == RecordKind::End)?;
            serde_json::from_slice(&record.bytes).ok()
        };
        // Where the log was deleted, the outcome tells only that the run has ended.
        let lost = || RunId::parse(&past.listed.run).map(|id| self.premises.outcome(id));
        let kept = || past.unwritten.as_deref().cloned();
        let outcome = past.end.and_then(read).or_else(kept).or_else(lost);
        Waited { outcome, offset: past.listed.offset, ended_ms: past.ended_ms, whole: false }
    }

    pub(super) fn follow(&mut self, id: u64, runs: Option<Vec<String>>) -> Option<Frame> {
        self.answer(id, wire::value(&()));
        let named = runs.is_some();
        let mut following = Following::new(runs);
        if !named {
            self.ended_runs.iter().for_each(|past| following.skip(&past.listed));
        }
        self.owe(id, OwedReply::Follow(following));
        None
    }

    pub(super) fn notify_followers(&mut self) {
        if !self.clients.values().any(|client| matches!(client.owed, OwedReply::Follow(_))) {
            return;
        }
        let now = self.runs.values().map(|active| (&active.note.run, active.spool.next(), false));
        let past = self.ended_runs.iter().map(|past| (&past.listed.run, past.listed.offset, true));
        let news: Vec<Notice> =
            now.chain(past).map(|(run, offset, ended)| Notice { run: run.clone(), offset, ended }).collect();
        self.clients.values_mut().for_each(|client| client.tell(&news));
    }

    pub(super) fn pull(&mut self, run: &str, stream: OutputStream) {
        let Some(active) = self.runs.get_mut(run) else { return };
        if active.pull(stream, &mut self.buffer) {
            let job = active.job;
            self.residence.end(job);
        }
    }
}

/// Builds the answer to an input piece; writers with offsets get the offset taken.
fn fed(taken: Option<u64>) -> Frame {
    match taken {
        Some(offset) => wire::value(&wire::AcceptedInput { offset }),
        None => wire::value(&()),
    }
}

/// Records a run that was started and never recorded.
fn never_recorded(
    state: &std::path::Path,
    place: &crate::keeper_dir::place::KeeperDir,
    written: &RunWriter<'_>,
) -> Result<(), Fault> {
    let why = "its keeper was killed while it started";
    store::Store::open(state)?.write(|tx| {
        if tx.get::<state::sandbox::Run>(written.run)?.is_some() {
            return Ok(());
        }
        written.begin(tx)?;
        written.fail(tx, &Fault::new(ErrorKind::Unavailable, why))
    })?;
    lost::close(place, written.run, &written.sandbox, why);
    Ok(())
}
