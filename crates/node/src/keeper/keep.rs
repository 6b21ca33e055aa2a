//! `cofferdam keep`: the process that holds a live sandbox. One loop over its enclosure, its runs, those who ask, and the clock;
//! nothing in it waits for anything else.

mod clerk;
mod client;
mod work;

use self::clerk::{Clerk, Done, Note, Task};
use self::client::{Client, Following, Owed};
use self::work::{CHUNK, Feed, Stage, Stream, Work};
use super::place::{Card, Place};
use super::spool::{Kind, Reader, Writer};
use super::wire::{
    self, Ask, Frame, Froze, Hello, Left, Listed, Notice, Pulled, Rooted, Start, Started, Used, Waited, Word,
};
use crate::questions::Questions;
use crate::run::{Holding, Premises, Resident, Timer};
use crate::sandbox::{Lifecycle, Sandbox};
use crate::{Caller, fresh};
use enclosure::{Groundwork, Happened, Job, Residence, Streams};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Resource, Rlimit};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, LimitHit, Outcome, Phase, Retry, RunId};

/// Runs at once in one sandbox.
pub const MOST_RUNS: usize = 256;
/// Those who ask at once.
const MOST_CLIENTS: usize = 128;
/// Runs that have ended and are still known by heart.
const MOST_PAST: usize = 256;
/// Ended runs whose output stays on disk.
const MOST_KEPT: usize = 256;
/// Looked for when so many more have ended.
const PRUNED_EVERY: usize = 32;
/// How long one stays that was started on demand and has nothing to do.
pub const IDLE: Duration = Duration::from_secs(15);
/// And one that stands for the files of a stopped sandbox.
const IDLE_STOPPED: Duration = Duration::from_millis(200);
/// How long commands have to end when the keeper is told to.
const GRACE: Duration = Duration::from_secs(5);
/// Descriptors that it may want: a few for each run and one for each who asks.
const DESCRIPTORS: u64 = 4096;
const TERM: i32 = 15;
const KILL: i32 = 9;
/// Signals that tell it to end.
const ENDS: [i32; 3] = [1, 2, TERM];

/// Takes up a sandbox, makes its enclosure stand, says so by `ready`, and holds it until its end.
pub fn keep(
    sandbox: &str,
    caller: &mut Caller,
    ground: Groundwork,
    idle: Duration,
    ready: impl FnOnce(Result<(), Fault>),
) -> Result<(), Fault> {
    match Keep::begin(sandbox, caller, ground, idle) {
        Ok(keep) => {
            ready(Ok(()));
            keep.run()
        }
        Err(fault) => {
            ready(Err(fault.clone()));
            Err(fault)
        }
    }
}

struct Keep {
    place: Place,
    card: Card,
    listener: OwnedFd,
    signals: OwnedFd,
    residence: Residence<'static>,
    premises: Premises,
    clerk: Clerk,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    works: BTreeMap<String, Work>,
    past: VecDeque<Past>,
    /// Since when it stands still.
    frozen: Option<Instant>,
    stays: bool,
    /// The sandbox was stopped when it was taken up: it stands for its files alone, and no command is started.
    stopped: bool,
    state: PathBuf,
    idle: Duration,
    /// When somebody asked, or a run ended.
    stirred: Instant,
    ending: Option<End>,
    fell: Option<String>,
    buffer: Vec<u8>,
    /// Runs that have ended since old output was last looked for.
    unpruned: usize,
    /// Dropped last: from then on others can have the workspace.
    _holding: Holding,
}

/// A run that has ended.
struct Past {
    listed: Listed,
    /// Where its outcome is.
    end: Option<u64>,
}

struct End {
    kill_at: Instant,
    left: Left,
}

/// What one poll slot stands for.
#[derive(Clone, Debug)]
enum Slot {
    Listener,
    Signals,
    Clerk,
    Residence,
    Client(u64),
    Stream(String, Stream),
    Input(String),
}

impl Keep {
    fn begin(sandbox: &str, caller: &mut Caller, ground: Groundwork, idle: Duration) -> Result<Keep, Fault> {
        let state = crate::state::prepare(caller)?.0;
        let resident = Resident::prepare(sandbox, caller, ground).map_err(|refused| *refused.fault)?;
        resident.secret_variables().iter().for_each(|name| caller.forget(name));
        let id = resident.premises.sandbox.id.clone();
        let place = Place::of(&state, &id);
        let trouble = |what: &str, e: &dyn std::fmt::Display| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("the keeper of {id}: {what}: {e}"));
            fault.subject(&id).phase(Phase::Start).hint("look at the state directory; `cofferdam doctor` may help")
        };
        place.make().map_err(|e| trouble("its directory", &e))?;
        // From now on others who want to keep it see that somebody does.
        let card = Card::own();
        place.write_card(&card).map_err(|e| trouble("its card", &e))?;
        let stood = resident.stand().and_then(|(residence, premises, holding)| {
            // Not before it stands: its first process must not have them.
            let signals = sys::process::signal_handle(&ENDS).map_err(|e| trouble("signals", &e))?;
            let _as_many_as_there_are = more_descriptors();
            let listener = place.listen().map_err(|e| trouble("its socket", &e))?;
            let stack = holding.stack();
            let clerk = Clerk::start(state.clone(), id.clone(), stack, 3 * MOST_RUNS);
            let clerk = clerk.map_err(|e| trouble("its clerk", &e))?;
            Ok((residence, premises, holding, signals, listener, clerk))
        });
        let (residence, premises, holding, signals, listener, clerk) = stood.inspect_err(|_| place.clear())?;
        let stopped = premises.sandbox.record.state == Lifecycle::Stopped;
        let stays = premises.sandbox.record.stays && !stopped;
        let mut keep = Keep {
            place,
            card,
            listener,
            signals,
            residence,
            premises,
            clerk,
            clients: BTreeMap::new(),
            next_client: 0,
            works: BTreeMap::new(),
            past: VecDeque::new(),
            frozen: None,
            stays,
            stopped,
            state: state.clone(),
            idle: if stopped { idle.min(IDLE_STOPPED) } else { idle },
            stirred: Instant::now(),
            ending: None,
            fell: None,
            buffer: vec![0; CHUNK],
            unpruned: 0,
            _holding: holding,
        };
        keep.prune();
        if !stopped {
            keep.awake(&state, caller)?;
        }
        Ok(keep)
    }

    /// It is suspended no more, and its services run.
    fn awake(&mut self, state: &Path, caller: &Caller) -> Result<(), Fault> {
        let sandbox = self.premises.sandbox.clone();
        if sandbox.record.suspended.is_some() {
            super::suspend::woken(state, &sandbox.id, caller)?;
        }
        for service in &sandbox.record.services {
            let start = Start {
                shell: Some(Word::of(&service.command)),
                env: service.env.iter().map(|(name, value)| Word::of(format!("{name}={value}"))).collect(),
                around: caller.env.iter().map(|(name, value)| (Word::of(name), Word::of(value))).collect(),
                workdir: service.cwd.as_ref().map(Word::of),
                actor: caller.user.clone(),
                service: Some(service.name.clone()),
                ..Start::default()
            };
            self.begin_run(&start)?;
        }
        Ok(())
    }

    fn run(mut self) -> Result<(), Fault> {
        let outcome = loop {
            if self.is_over() {
                break Ok(());
            }
            if let Err(fault) = self.turn() {
                self.fell = Some(fault.message.clone());
                break Err(fault);
            }
        };
        self.leave();
        outcome
    }

    /// Nothing is left to do here: all has ended, or nobody wants anything.
    fn is_over(&self) -> bool {
        let unsent = self.clients.values().any(|client| client.line.waiting() > 0);
        match (&self.ending, &self.fell) {
            (Some(_), _) | (_, Some(_)) => self.works.is_empty() && !unsent,
            _ => self.is_idle() && self.stirred.elapsed() >= self.idle,
        }
    }

    fn is_idle(&self) -> bool {
        let owing = self.clients.values().any(|client| !matches!(client.owed, Owed::Nothing | Owed::Follow(_)));
        let owing = owing || self.clients.values().any(|client| client.holds_files);
        self.works.is_empty() && !self.stays && self.frozen.is_none() && !owing
    }

    fn leave(mut self) {
        match self.fell.take() {
            // The card stays, and says what happened.
            Some(reason) => {
                let _ = self.place.write_card(&Card { fell: Some(reason), ..self.card.clone() });
            }
            None => self.place.clear(),
        }
        self.residence.close();
    }

    fn turn(&mut self) -> Result<(), Fault> {
        let slots = self.wait()?;
        let mut residence = false;
        for slot in slots {
            match slot {
                Slot::Listener => self.welcome(),
                Slot::Signals => self.hear_signals(),
                Slot::Clerk => self.hear_clerk(),
                Slot::Residence => residence = true,
                Slot::Client(id) => self.hear_client(id),
                Slot::Stream(run, stream) => self.pull(&run, stream),
                Slot::Input(run) => self.feed(&run),
            }
        }
        let due = self.residence.waits().1.is_some_and(|at| Instant::now() >= at);
        if residence || due {
            self.hear_residence()?;
        }
        self.look_at_clock();
        self.tell_followers();
        self.send();
        Ok(())
    }

    fn wait(&self) -> Result<Vec<Slot>, Fault> {
        let (inner, at) = self.residence.waits();
        let mut slots: Vec<(Slot, BorrowedFd<'_>, PollFlags)> = vec![
            (Slot::Listener, self.listener.as_fd(), PollFlags::IN),
            (Slot::Signals, self.signals.as_fd(), PollFlags::IN),
            (Slot::Clerk, self.clerk.wake(), PollFlags::IN),
        ];
        slots.extend(inner.into_iter().map(|fd| (Slot::Residence, fd, PollFlags::IN)));
        for (id, client) in &self.clients {
            slots.push((Slot::Client(*id), client.line.as_fd(), client.flags()));
        }
        for (run, work) in &self.works {
            for (stream, fd) in [(Stream::Output, &work.output), (Stream::Error, &work.error)] {
                let slot = |fd| (Slot::Stream(run.clone(), stream), fd, PollFlags::IN);
                slots.extend(fd.as_ref().map(AsFd::as_fd).map(slot));
            }
            if let (Some(fd), false) = (&work.input, work.feeds.is_empty()) {
                slots.push((Slot::Input(run.clone()), fd.as_fd(), PollFlags::OUT));
            }
        }
        let mut fds: Vec<PollFd<'_>> =
            slots.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let timeout = self.timeout(at);
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Fault::internal(format!("poll: {e}")).phase(Phase::Execution)),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        Ok(slots.into_iter().zip(ready).filter(|(_, ready)| *ready).map(|((slot, ..), _)| slot).collect())
    }

    /// Until the next thing that happens by itself.
    fn timeout(&self, inner: Option<Instant>) -> Option<Timespec> {
        let frozen = self.frozen.is_some();
        let walls = self.works.values().filter(|w| !frozen && w.hit.is_none()).filter_map(|work| work.deadline);
        let waits = self.clients.values().filter_map(|client| match &client.owed {
            Owed::Wait { until, .. } => *until,
            _ => None,
        });
        let idle = self.is_idle().then(|| self.stirred + self.idle);
        let end = self.ending.as_ref().filter(|_| !self.works.is_empty()).map(|end| end.kill_at);
        let at = walls.chain(waits).chain(idle).chain(end).chain(inner).min()?;
        let left = at.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    // Those who ask.

    fn welcome(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { return };
            let mut client = Client::new(socket);
            if !is_ours(client.line.as_fd()) {
                continue;
            }
            if self.clients.len() >= MOST_CLIENTS {
                let fault = Fault::new(ErrorKind::Unavailable, format!("{MOST_CLIENTS} connections are open already"));
                client.answer(wire::refusal(&fault.retry(Retry::Later).hint("try again")));
                let _ = client.line.push();
                continue;
            }
            self.next_client += 1;
            self.clients.insert(self.next_client, client);
        }
    }

    fn hear_client(&mut self, id: u64) {
        loop {
            let Some(client) = self.clients.get_mut(&id) else { return };
            match client.next() {
                Pulled::Frame(frame) => self.deal(id, frame),
                Pulled::Later => return,
                Pulled::Closed => return self.dismiss(id),
            }
            self.send_to(id);
        }
    }

    fn dismiss(&mut self, id: u64) {
        if self.clients.remove(&id).is_some_and(|client| client.holds_files) {
            self.stirred = Instant::now();
        }
        self.works.values_mut().for_each(|work| work.feeds.retain(|feed| feed.client != id));
    }

    fn answer(&mut self, id: u64, frame: Frame) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.answer(frame);
        }
    }

    fn send(&mut self) {
        let waiting: Vec<u64> = self.clients.iter().filter(|(_, c)| c.line.waiting() > 0).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.send_to(id));
    }

    fn send_to(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.line.push().is_err() {
            self.dismiss(id);
        }
    }

    fn deal(&mut self, id: u64, frame: Frame) {
        let Frame { json, payload, .. } = frame;
        let answer = match serde_json::from_slice::<Ask>(&json) {
            Ok(ask) => {
                if !matches!(ask, Ask::Follow { .. } | Ask::List | Ask::Usage | Ask::Questions) {
                    self.stirred = Instant::now();
                }
                self.carry_out(id, ask, payload)
            }
            Err(e) => Err(Fault::invalid(format!("the keeper cannot read this: {e}")).phase(Phase::Admission)),
        };
        match answer {
            Ok(Some(frame)) => self.answer(id, frame),
            Ok(None) => {}
            Err(fault) => self.answer(id, wire::refusal(&fault)),
        }
    }

    /// An answer, or none yet.
    fn carry_out(&mut self, id: u64, ask: Ask, payload: Vec<u8>) -> Result<Option<Frame>, Fault> {
        Ok(Some(match ask {
            Ask::Hello => wire::value(&self.hello()),
            Ask::Start(start) => return self.start(id, &start),
            Ask::Input { run, eof } => return self.input(id, &run, payload, eof),
            Ask::Resize { run, rows, columns } => {
                let job = self.work(&run)?.job;
                self.residence.resize(job, rows, columns);
                wire::value(&())
            }
            Ask::Signal { run, signal } => wire::value(&self.signal(&run, signal)?),
            Ask::Kill { run } => wire::value(&self.kill(&run)?),
            Ask::List => wire::value(&self.list()),
            Ask::Wait { run, timeout_ms } => return self.wait_for(id, run, timeout_ms),
            Ask::Follow { runs } => return Ok(self.follow(id, runs)),
            Ask::Freeze => wire::value(&self.freeze()?),
            Ask::Thaw => wire::value(&self.thaw()?),
            Ask::Root { tmp } => {
                let frame = self.root(tmp)?;
                if let Some(client) = self.clients.get_mut(&id) {
                    client.holds_files = true;
                }
                frame
            }
            Ask::Connect { port } => {
                self.thaw()?;
                wire::value(&()).and(self.residence.connect(port)?)
            }
            Ask::Usage => wire::value(&self.used()),
            Ask::Revise(revision) => wire::value(&self.premises.revise(&revision, &mut self.residence)?),
            Ask::Questions => wire::value(&self.premises.questions.as_ref().map(Questions::open).unwrap_or_default()),
            Ask::Answer { number, answer, remember } => {
                let nobody_asks = || crate::questions::not_open(number);
                let questions = self.premises.questions.as_ref().ok_or_else(nobody_asks)?;
                wire::value(&questions.answer(number, answer, remember)?)
            }
            Ask::Stay => {
                self.stays = true;
                wire::value(&())
            }
            Ask::End { if_idle: true, .. } if !self.works.is_empty() => return Err(self.busy()),
            Ask::End { if_idle: true, .. } if self.has_files_open(id) => return Err(self.in_use()),
            Ask::End { grace_ms, .. } => return Ok(self.end(id, Duration::from_millis(grace_ms))),
        }))
    }

    fn hello(&self) -> Hello {
        Hello {
            protocol: wire::PROTOCOL,
            version: self.card.version.clone(),
            sandbox: self.premises.sandbox.id.clone(),
            pid: self.card.pid,
            since_ms: self.card.since_ms,
            running: self.works.len(),
            frozen: self.frozen.is_some(),
            stays: self.stays,
        }
    }

    fn busy(&self) -> Fault {
        let id = &self.premises.sandbox.id;
        let run = self.works.keys().next().cloned().unwrap_or_default();
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is busy: {run} is running in it"));
        fault.subject(id).phase(Phase::Admission).hint(format!("wait for it, or end it with `cofferdam stop {id}`"))
    }

    /// It may have been started since; then commands are welcome.
    fn is_still_stopped(&mut self) -> Result<bool, Fault> {
        let store = store::Store::open(&self.state)?;
        let now = store.read(|tx| tx.get::<Sandbox>(&self.premises.sandbox.id))?;
        self.stopped = now.is_none_or(|kept| kept.record.state == Lifecycle::Stopped);
        if !self.stopped {
            self.idle = IDLE;
        }
        Ok(self.stopped)
    }

    /// Whether somebody else works with its files.
    fn has_files_open(&self, but: u64) -> bool {
        self.clients.iter().any(|(id, client)| *id != but && client.holds_files)
    }

    fn in_use(&self) -> Fault {
        let id = &self.premises.sandbox.id;
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is busy: its files are being read or written"));
        let fault = fault.subject(id).phase(Phase::Admission).retry(Retry::Later);
        fault.hint(format!("wait for it, or end it with `cofferdam stop {id}`"))
    }

    fn work(&mut self, run: &str) -> Result<&mut Work, Fault> {
        let over = self.past.iter().any(|past| past.listed.run == run);
        match self.works.get_mut(run) {
            Some(work) if work.stage != Stage::Ending => Ok(work),
            Some(_) => Err(has_ended(run)),
            None if over => Err(has_ended(run)),
            None => Err(unknown(run)),
        }
    }

    // Runs.

    fn start(&mut self, id: u64, start: &Start) -> Result<Option<Frame>, Fault> {
        if let Some(run) = &start.run
            && let Some(pid) = self.known(run)
        {
            if self.works.get(run).is_some_and(|work| work.stage == Stage::Beginning) {
                self.owe(id, Owed::Begin { run: run.clone(), existed: true });
                return Ok(None);
            }
            return Ok(Some(wire::value(&Started { run: run.clone(), pid, existed: true })));
        }
        let run = self.begin_run(start)?;
        self.owe(id, Owed::Begin { run, existed: false });
        Ok(None)
    }

    fn known(&self, run: &str) -> Option<i32> {
        let past = self.past.iter().find(|past| past.listed.run == run).map(|past| past.listed.pid);
        self.works.get(run).map(|work| work.pid).or(past)
    }

    fn owe(&mut self, id: u64, owed: Owed) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.owed = owed;
        }
    }

    /// Starts a command and has it written down meanwhile.
    fn begin_run(&mut self, start: &Start) -> Result<String, Fault> {
        let sandbox = self.premises.sandbox.id.clone();
        if self.stopped && self.is_still_stopped()? {
            return Err(crate::run::is_stopped(&sandbox));
        }
        let mut timer = Timer::begin(Phase::Admission, start.variable("TRACEPARENT").as_deref());
        if self.ending.is_some() {
            let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} is being stopped")).retry(Retry::Later);
            return Err(fault.subject(sandbox).phase(Phase::Admission).hint("start it again when it has ended"));
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
            service: start.service.clone(),
            timer,
        };
        let streams = match start.terminal {
            Some((rows, columns)) => Streams::Terminal { rows, columns },
            None => Streams::Pipes { input: start.input },
        };
        let net = self.residence.usage().net_bytes;
        let crate::run::Command { run_id, program, argv, env, cwd, limits } = command;
        note.timer.enter(Phase::Start);
        let started = self.residence.start(enclosure::Start { program, argv, env, cwd, streams });
        let started = started.inspect_err(|_| {
            let _ = std::fs::remove_dir_all(self.place.run(&run));
        })?;
        note.timer.enter(Phase::Execution);
        let work = Work::new(started, run_id, note.clone(), spool, limits).since_net(net);
        let job = work.job;
        self.works.insert(run.clone(), work);
        if !self.clerk.give(Task::Begin(note)) {
            self.residence.end(job);
        }
        Ok(run)
    }

    fn input(&mut self, id: u64, run: &str, bytes: Vec<u8>, eof: bool) -> Result<Option<Frame>, Fault> {
        let work = self.work(run)?;
        if work.input.is_none() {
            return Err(work::unread(run));
        }
        work.feeds.push_back(Feed { client: id, bytes, at: 0, eof });
        self.owe(id, Owed::Input);
        self.feed(run);
        Ok(None)
    }

    fn feed(&mut self, run: &str) {
        let Some(work) = self.works.get_mut(run) else { return };
        for (client, fed) in work.feed() {
            let frame = fed.map_or_else(|fault| wire::refusal(&fault), |()| wire::value(&()));
            self.answer(client, frame);
        }
    }

    fn signal(&mut self, run: &str, signal: i32) -> Result<bool, Fault> {
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
        Ok(self.residence.signal(job, signal))
    }

    fn kill(&mut self, run: &str) -> Result<bool, Fault> {
        let Ok(work) = self.work(run) else { return self.known(run).map(|_| false).ok_or_else(|| unknown(run)) };
        work.cancelled_by = Some(KILL);
        let job = work.job;
        self.thaw()?;
        self.residence.end(job);
        Ok(true)
    }

    fn list(&self) -> Vec<Listed> {
        self.works.values().map(Work::listed).chain(self.past.iter().map(|past| past.listed.clone())).collect()
    }

    fn wait_for(&mut self, id: u64, run: String, timeout_ms: u64) -> Result<Option<Frame>, Fault> {
        if let Some(past) = self.past.iter().find(|past| past.listed.run == run) {
            return Ok(Some(wire::value(&self.waited(past))));
        }
        let Some(work) = self.works.get(&run) else { return Err(unknown(&run)) };
        if timeout_ms == 0 {
            return Ok(Some(wire::value(&Waited { outcome: None, offset: work.spool.next() })));
        }
        let until = Instant::now().checked_add(Duration::from_millis(timeout_ms));
        self.owe(id, Owed::Wait { run, until });
        Ok(None)
    }

    /// The outcome is in the run's log.
    fn waited(&self, past: &Past) -> Waited {
        let read = |end: u64| {
            let page = Reader::open(&self.place.run(&past.listed.run)).ok()?.read(end, 1).ok()?;
            let record = page.records.into_iter().find(|record| record.kind == Kind::End)?;
            serde_json::from_slice(&record.bytes).ok()
        };
        // What is no longer on disk is told as what we know: that it is over.
        let lost = || RunId::parse(&past.listed.run).map(|id| self.premises.outcome(id));
        Waited { outcome: past.end.and_then(read).or_else(lost), offset: past.listed.offset }
    }

    fn follow(&mut self, id: u64, runs: Option<Vec<String>>) -> Option<Frame> {
        self.answer(id, wire::value(&()));
        let named = runs.is_some();
        let mut following = Following::new(runs);
        if !named {
            self.past.iter().for_each(|past| following.skip(&past.listed));
        }
        self.owe(id, Owed::Follow(following));
        None
    }

    fn tell_followers(&mut self) {
        if !self.clients.values().any(|client| matches!(client.owed, Owed::Follow(_))) {
            return;
        }
        let now = self.works.values().map(|work| (&work.note.run, work.spool.next(), false));
        let past = self.past.iter().map(|past| (&past.listed.run, past.listed.offset, true));
        let news: Vec<Notice> =
            now.chain(past).map(|(run, offset, ended)| Notice { run: run.clone(), offset, ended }).collect();
        self.clients.values_mut().for_each(|client| client.tell(&news));
    }

    fn pull(&mut self, run: &str, stream: Stream) {
        let Some(work) = self.works.get_mut(run) else { return };
        if work.pull(stream, &mut self.buffer) {
            let job = work.job;
            self.residence.end(job);
        }
    }

    // What happens.

    fn hear_residence(&mut self) -> Result<(), Fault> {
        for happened in self.residence.turn()? {
            match happened {
                Happened::Ended { job, end } => self.ended(job, &end),
                // Told again with the end of the run.
                Happened::Denied { .. } => {}
                Happened::Limit(hit) => self.all_hit(hit),
                Happened::Fell { reason } => self.fall(reason),
            }
        }
        Ok(())
    }

    fn ended(&mut self, job: Job, end: &enclosure::End) {
        let Some(run) = self.works.iter().find(|(_, work)| work.job == job).map(|(run, _)| run.clone()) else { return };
        self.close(&run, Some(end), None);
    }

    /// The tree of a run is gone.
    fn close(&mut self, run: &str, end: Option<&enclosure::End>, reason: Option<&str>) {
        let used = self.residence.usage();
        let Some(work) = self.works.get_mut(run) else { return };
        let outcome = self.premises.outcome(work.run_id.clone());
        let mut outcome = work.close(end, outcome, used.net_bytes, used.disk_bytes, &mut self.buffer);
        if let Some(reason) = reason {
            outcome.message = Some(reason.to_owned());
        }
        let (mut note, waiting) = (work.note.clone(), std::mem::take(&mut work.feeds));
        note.timer.enter(Phase::Close);
        for feed in waiting {
            self.answer(feed.client, wire::refusal(&work::unread(run)));
        }
        if !self.clerk.give(Task::End(note, Box::new(outcome.clone()))) {
            outcome.message.get_or_insert("the run could not be written down".into());
            self.finish(run, &outcome);
        }
    }

    /// A limit of all was met: who runs is ended by it.
    fn all_hit(&mut self, hit: LimitHit) {
        for work in self.works.values_mut().filter(|work| work.stage != Stage::Ending) {
            work.hit.get_or_insert(hit);
            self.residence.end(work.job);
        }
    }

    fn fall(&mut self, reason: String) {
        let runs: Vec<String> =
            self.works.iter().filter(|(_, w)| w.stage != Stage::Ending).map(|(run, _)| run.clone()).collect();
        runs.iter().for_each(|run| self.close(run, None, Some(&reason)));
        self.fell = Some(reason);
    }

    fn hear_clerk(&mut self) {
        for done in self.clerk.done() {
            match done {
                Done::Begun(run, begun) => self.begun(&run, begun),
                Done::Ended(run, outcome) => self.finish(&run, &outcome),
            }
        }
    }

    fn begun(&mut self, run: &str, begun: Result<(), Fault>) {
        let Some(work) = self.works.get_mut(run) else { return };
        if work.stage == Stage::Beginning {
            work.stage = Stage::Running;
        }
        let (pid, job) = (work.pid, work.job);
        if begun.is_err() {
            work.cancelled_by = Some(KILL);
            self.residence.end(job);
        }
        for client in self.clients.values_mut() {
            let existed = match &client.owed {
                Owed::Begin { run: wanted, existed } if wanted == run => *existed,
                _ => continue,
            };
            client.answer(match &begun {
                Ok(()) => wire::value(&Started { run: run.to_owned(), pid, existed }),
                Err(fault) => wire::refusal(fault),
            });
        }
    }

    /// Its end is written down: now it is told.
    fn finish(&mut self, run: &str, outcome: &Outcome) {
        let Some(mut work) = self.works.remove(run) else { return };
        let end = work.finish(outcome);
        let past = Past { listed: Listed { input: false, ..work.listed() }, end };
        for client in self.clients.values_mut() {
            if matches!(&client.owed, Owed::Wait { run: wanted, .. } if wanted == run) {
                client.answer(wire::value(&Waited { outcome: Some(outcome.clone()), offset: past.listed.offset }));
            }
        }
        self.past.push_back(past);
        if self.past.len() > MOST_PAST {
            self.past.pop_front();
        }
        self.stirred = Instant::now();
        self.unpruned += 1;
        if self.unpruned >= PRUNED_EVERY {
            self.prune();
        }
        if self.works.is_empty() {
            self.farewell();
        }
    }

    /// Output of runs that ended long ago goes, so that a sandbox that lives for ever does not fill the disk.
    fn prune(&mut self) {
        self.unpruned = 0;
        let Ok(entries) = std::fs::read_dir(self.place.dir.join("runs")) else { return };
        let mut found: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| !self.works.contains_key(name)))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        if found.len() <= MOST_KEPT {
            return;
        }
        found.sort();
        for (_, path) in &found[..found.len() - MOST_KEPT] {
            let _ = std::fs::remove_dir_all(path);
        }
    }

    fn look_at_clock(&mut self) {
        let now = Instant::now();
        if self.frozen.is_none() {
            for work in self.works.values_mut() {
                if work.met_wall(now) {
                    self.residence.end(work.job);
                }
            }
        }
        for client in self.clients.values_mut() {
            let Owed::Wait { run, until: Some(until) } = &client.owed else { continue };
            if now >= *until {
                let offset = self.works.get(run).map_or(0, |work| work.spool.next());
                client.answer(wire::value(&Waited { outcome: None, offset }));
            }
        }
        if let Some(end) = self.ending.as_mut().filter(|end| now >= end.kill_at) {
            for (run, work) in self.works.iter_mut().filter(|(_, work)| work.stage != Stage::Ending) {
                end.left.ended.iter_mut().filter(|(ended, _)| ended == run).for_each(|(_, killed)| *killed = true);
                work.cancelled_by = Some(KILL);
                self.residence.end(work.job);
            }
            end.kill_at = now + GRACE;
        }
    }

    fn hear_signals(&mut self) {
        while sys::process::next_signal(self.signals.as_fd()).is_some() {
            self.begin_end(GRACE);
        }
    }

    // The end.

    fn end(&mut self, id: u64, grace: Duration) -> Option<Frame> {
        self.owe(id, Owed::End);
        self.begin_end(grace);
        if self.works.is_empty() {
            self.farewell();
        }
        None
    }

    fn begin_end(&mut self, grace: Duration) {
        if self.ending.is_some() {
            return;
        }
        let _they_are_killed_then = self.thaw();
        let mut left = Left::default();
        for (run, work) in self.works.iter_mut().filter(|(_, work)| work.stage != Stage::Ending) {
            work.cancelled_by.get_or_insert(TERM);
            self.residence.signal(work.job, TERM);
            left.ended.push((run.clone(), false));
        }
        let kill_at = Instant::now().checked_add(grace).unwrap_or_else(|| Instant::now() + GRACE);
        self.ending = Some(End { kill_at, left });
    }

    /// All who asked for the end hear that it has come.
    fn farewell(&mut self) {
        let Some(end) = &self.ending else { return };
        let frames = self.clients.values_mut().filter(|client| matches!(client.owed, Owed::End));
        frames.for_each(|client| client.answer(wire::value(&end.left)));
    }

    // The whole.

    fn freeze(&mut self) -> Result<Froze, Fault> {
        let enclosure::Frozen { with, paged_out } = self.residence.freeze()?;
        self.frozen.get_or_insert_with(Instant::now);
        Ok(Froze { with: with.to_owned(), paged_out })
    }

    fn thaw(&mut self) -> Result<(), Fault> {
        let Some(since) = self.frozen else { return Ok(()) };
        self.residence.thaw()?;
        self.frozen = None;
        self.works.values_mut().for_each(|work| work.stood_still(since.elapsed()));
        Ok(())
    }

    fn root(&mut self, tmp: bool) -> Result<Frame, Fault> {
        self.thaw()?;
        let none = || {
            let fault = Fault::new(ErrorKind::UnsupportedHost, "there is no handle on these files");
            fault.subject(&self.premises.sandbox.id).hint("stop it, and what is in its workspace can be reached")
        };
        let at = if tmp { Path::new("/tmp") } else { &self.premises.sandbox.record.base };
        let root = if tmp { self.residence.tmp() } else { self.residence.root() };
        let root = root.ok_or_else(none)?.try_clone_to_owned().map_err(|e| Fault::internal(e.to_string()))?;
        let (uid, gid) = self.residence.owner();
        Ok(wire::value(&Rooted { at: Word::of(at), uid, gid }).and(root))
    }

    fn used(&mut self) -> Used {
        let enclosure::Use { cpu_us, memory_bytes, memory_peak_bytes, processes, disk_bytes, net_bytes } =
            self.residence.usage();
        let running = self.works.len() as u64;
        Used { cpu_us, memory_bytes, memory_peak_bytes, processes, disk_bytes, net_bytes, running }
    }
}

/// Only the user whose sandbox it is, and root, may ask.
fn is_ours(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

fn more_descriptors() -> rustix::io::Result<()> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    match current {
        Some(now) if now < wanted => {
            rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        }
        _ => Ok(()),
    }
}

fn unknown(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("there is no run {run:?} here")).subject(run);
    fault.phase(Phase::Admission).hint("`cofferdam ps` lists those that go on")
}

fn has_ended(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{run} has ended")).subject(run);
    fault.phase(Phase::Admission).hint("`cofferdam logs` shows what it said")
}
