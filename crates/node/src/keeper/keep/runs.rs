//! Runs: begun, fed, signalled, waited for, followed.

use super::clerk::{Note, Task};
use super::client::{Following, Owed};
use super::feeds::Feed;
use super::work::{Stage, Stream, Work};
use super::{KILL, Keep, MOST_FEEDS, MOST_RUNS, Past, TERM, unknown, work};
use crate::fresh;
use crate::keeper::begin;
use crate::keeper::lost;
use crate::keeper::spool::{Kind, Reader, Writer};
use crate::keeper::wire;
use crate::keeper::wire::{Frame, Listed, Notice, Start, Started, Waited};
use crate::run::{Timer, Written};
use enclosure::Streams;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry, RunId};

impl Keep {
    pub(super) fn start(&mut self, id: u64, start: &Start) -> Result<Option<Frame>, Fault> {
        if let Some(run) = start.run.as_ref().filter(|run| RunId::parse(run).is_none()) {
            // It becomes the name of a directory.
            return Err(Fault::invalid(format!("{run:?} is no id of a run")).phase(Phase::Admission));
        }
        if let Some(run) = &start.run
            && let Some(pid) = self.known(run)
        {
            let (before, now) =
                (self.works.get(run).map(|work| work.note.request.as_deref()), start.request.as_deref());
            if let Some(before) = before.filter(|before| !begin::is_same(*before, now)) {
                return Err(begin::other_request(run, before, now));
            }
            if self.works.get(run).is_some_and(|work| work.stage == Stage::Beginning) {
                self.owe(id, Owed::Begin { run: run.clone(), existed: true, waits: false });
                return Ok(None);
            }
            return Ok(Some(wire::value(&Started { run: run.clone(), pid, existed: true, ..Started::default() })));
        }
        if let Some(run) = start.run.as_ref().filter(|run| self.place.run(run).exists()) {
            return self.lost_before(run, start).map(Some);
        }
        let run = self.begin_run(start)?;
        self.owe(id, Owed::Begin { run, existed: false, waits: start.waits });
        Ok(None)
    }

    /// A keeper before this one had begun it, and was killed before it was written down. How far it came nobody knows, so it is not
    /// begun again under the same key.
    fn lost_before(&self, run: &str, start: &Start) -> Result<Frame, Fault> {
        let argv = self.premises.command(start)?.argv;
        let command: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let written = Written {
            sandbox: self.premises.sandbox.id.clone(),
            run,
            command: &command,
            actor: &start.actor,
            started_ms: fresh::now_ms(),
            ended_ms: None,
            service: None,
            request: start.request.as_deref(),
            timer: None,
        };
        lost::never_recorded(&self.state, &self.place, &written)?;
        Ok(wire::value(&Started { run: run.to_owned(), existed: true, ..Started::default() }))
    }

    pub(super) fn known(&self, run: &str) -> Option<i32> {
        let past = self.past.iter().find(|past| past.listed.run == run).map(|past| past.listed.pid);
        self.works.get(run).map(|work| work.pid).or(past)
    }

    pub(super) fn owe(&mut self, id: u64, owed: Owed) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.owed = owed;
        }
    }

    /// Starts a command and has it written down meanwhile.
    pub(super) fn begin_run(&mut self, start: &Start) -> Result<String, Fault> {
        let sandbox = self.premises.sandbox.id.clone();
        self.rise()?;
        if self.rests {
            return Err(crate::run::is_stopped(&sandbox));
        }
        let mut timer = Timer::begin(Phase::Admission, start.variable("TRACEPARENT").as_deref());
        if self.ending.is_some() {
            let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} is being stopped")).retry(Retry::Later);
            return Err(fault.subject(sandbox).phase(Phase::Admission).hint("start it again when it has ended"));
        }
        if let Some(reason) = &self.fell {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{sandbox} is lost: {reason}")).retry(Retry::Later);
            return Err(fault.subject(sandbox).phase(Phase::Admission).hint("try again: it starts anew"));
        }
        if self.works.len() >= MOST_RUNS {
            let message = format!("{sandbox}: {MOST_RUNS} commands run in it, and no more can");
            let fault = Fault::new(ErrorKind::LimitExceeded, message).retry(Retry::Later).subject(sandbox);
            return Err(fault.phase(Phase::Admission).hint("wait until some have ended"));
        }
        timer.enter(Phase::Planning);
        let command = self.premises.command(start)?;
        timer.enter(Phase::Preparation);
        self.thaw()?;
        let run = command.run_id.as_str().to_owned();
        let spool = Writer::create(&self.place.run(&run)).map_err(|e| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{run}: its output cannot be kept: {e}"));
            fault.subject(&sandbox).phase(Phase::Preparation).hint("free some space where the state directory is")
        })?;
        let mut note = Note {
            run: run.clone(),
            command: command.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            actor: start.actor.clone(),
            started_ms: fresh::now_ms(),
            ended_ms: None,
            service: start.service.clone(),
            request: start.request.clone(),
            timer,
        };
        let streams = match start.terminal {
            Some((rows, columns)) => Streams::Terminal { rows, columns },
            None => Streams::Pipes { input: start.input },
        };
        if !start.secrets.is_empty() {
            self.premises.bring(&start.secrets).inspect_err(|_| {
                let _ = std::fs::remove_dir_all(self.place.run(&run));
            })?;
        }
        let net = self.residence.net_bytes();
        let crate::run::Command { run_id, program, argv, env, cwd, limits } = command;
        note.timer.enter(Phase::Start);
        // What it does on the network may be heard of before its start is known.
        self.premises.roster.begins(&run);
        let started = self.residence.start(enclosure::Start { program, argv, env, cwd, streams });
        let started = started.inspect_err(|_| {
            self.premises.roster.ended(&run);
            let _ = std::fs::remove_dir_all(self.place.run(&run));
        })?;
        self.premises.roster.begun(&run, started.shepherd);
        note.timer.enter(Phase::Execution);
        let mut work = Work::new(started, run_id, note.clone(), spool, limits).since_net(net);
        let _it_has_said_nothing = work.revise(self.premises.limits());
        work.brings = !start.secrets.is_empty();
        let job = work.job;
        self.works.insert(run.clone(), work);
        if !self.clerk.give(Task::Begin(note)) {
            self.residence.end(job);
        }
        Ok(run)
    }

    pub(super) fn input(&mut self, id: u64, run: &str, feed: Feed) -> Result<Option<Frame>, Fault> {
        // What was taken may be sent again by whom it was, though nothing is read any more, or the run is over.
        let past = || self.past.iter().find(|past| past.listed.run == run).map(|past| &past.writers);
        let writers = self.works.get(run).map(|work| &work.writers).or_else(past);
        if let Some(writers) = writers.filter(|writers| writers.have_taken(&feed)) {
            return Ok(Some(fed(writers.taken(feed.by.as_ref()))));
        }
        if self.work(run)?.input.is_none() {
            return Err(work::unread(run));
        }
        if self.works.values().map(|work| work.feeds.len()).sum::<usize>() >= MOST_FEEDS {
            return Err(self.full(format!("{MOST_FEEDS} others wait to write to its runs")));
        }
        // What stands still reads nothing.
        self.thaw()?;
        self.work(run)?.feeds.push_back(feed);
        self.owe(id, Owed::Input);
        self.feed(run);
        Ok(None)
    }

    pub(super) fn feed(&mut self, run: &str) {
        let Some(work) = self.works.get_mut(run) else { return };
        for (client, taken) in work.feed() {
            self.answer(client, taken.map_or_else(|fault| wire::refusal(&fault), fed));
        }
    }

    pub(super) fn signal(&mut self, run: &str, signal: i32) -> Result<bool, Fault> {
        if !(1..=64).contains(&signal) {
            return Err(
                Fault::invalid(format!("signal {signal}: there is none of that number")).phase(Phase::Admission)
            );
        }
        if signal == KILL {
            return self.kill(run);
        }
        let Ok(work) = self.work(run) else { return self.known(run).map(|_| false).ok_or_else(|| unknown(run)) };
        if matches!(signal, 1..=3 | TERM) {
            work.cancelled_by = Some(signal);
        }
        let job = work.job;
        // A signal to what stands still would be taken whenever somebody wakes it.
        self.thaw()?;
        Ok(self.residence.signal(job, signal))
    }

    pub(super) fn kill(&mut self, run: &str) -> Result<bool, Fault> {
        let Ok(work) = self.work(run) else { return self.known(run).map(|_| false).ok_or_else(|| unknown(run)) };
        work.cancelled_by = Some(KILL);
        let job = work.job;
        self.thaw()?;
        self.residence.end(job);
        Ok(true)
    }

    /// All of them, in any case; what they were started with, where that fits.
    pub(super) fn list(&self) -> Frame {
        let past = self.past.iter().map(|past| past.listed.clone());
        let mut all: Vec<Listed> = self.works.values().map(Work::listed).chain(past).collect();
        let frame = wire::value(&all);
        if frame.fits() {
            return frame;
        }
        all.iter_mut().for_each(|listed| listed.command.clear());
        wire::value(&all)
    }

    pub(super) fn wait_for(&mut self, id: u64, run: String, timeout_ms: u64) -> Result<Option<Frame>, Fault> {
        if let Some(past) = self.past.iter().find(|past| past.listed.run == run) {
            return Ok(Some(wire::value(&self.waited(past))));
        }
        let Some(work) = self.works.get(&run) else { return Err(unknown(&run)) };
        if timeout_ms == 0 {
            return Ok(Some(wire::value(&Waited { offset: work.spool.next(), ..Waited::default() })));
        }
        let until = Instant::now().checked_add(Duration::from_millis(timeout_ms));
        self.owe(id, Owed::Wait { run, until, said: false });
        Ok(None)
    }

    /// The outcome is in the run's log, or with us where that could not be written.
    pub(super) fn waited(&self, past: &Past) -> Waited {
        let read = |end: u64| {
            let page = Reader::open(&self.place.run(&past.listed.run)).ok()?.read(end, 1).ok()?;
            let record = page.records.into_iter().find(|record| record.kind == Kind::End)?;
            serde_json::from_slice(&record.bytes).ok()
        };
        // What is no longer on disk is told as what we know: that it is over.
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
            self.past.iter().for_each(|past| following.skip(&past.listed));
        }
        self.owe(id, Owed::Follow(following));
        None
    }

    pub(super) fn tell_followers(&mut self) {
        if !self.clients.values().any(|client| matches!(client.owed, Owed::Follow(_))) {
            return;
        }
        let now = self.works.values().map(|work| (&work.note.run, work.spool.next(), false));
        let past = self.past.iter().map(|past| (&past.listed.run, past.listed.offset, true));
        let news: Vec<Notice> =
            now.chain(past).map(|(run, offset, ended)| Notice { run: run.clone(), offset, ended }).collect();
        self.clients.values_mut().for_each(|client| client.tell(&news));
    }

    pub(super) fn pull(&mut self, run: &str, stream: Stream) {
        let Some(work) = self.works.get_mut(run) else { return };
        if work.pull(stream, &mut self.buffer) {
            let job = work.job;
            self.residence.end(job);
        }
    }
}

/// Whoever counts is told how far it has come.
fn fed(taken: Option<u64>) -> Frame {
    match taken {
        Some(offset) => wire::value(&wire::Fed { offset }),
        None => wire::value(&()),
    }
}
