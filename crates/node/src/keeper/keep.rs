//! `cofferdam keep`: the process that holds a live sandbox. One loop over its enclosure, its runs, those who ask, and the clock;
//! nothing in it waits for anything else.

mod asked;
mod attend;
mod claimed;
mod clerk;
mod client;
mod end;
mod feeds;
mod happened;
mod runs;
mod work;

use self::attend::Attended;
use self::clerk::Clerk;
use self::client::{Client, Owed};
use self::feeds::Writers;
use self::work::{CHUNK, Stream, Work};
use super::place::{Card, Place};
use super::starting::Wanted;
use super::wire::{self, Frame, Froze, Left, Listed, Revision, Rooted, Used, Word};
use crate::Caller;
use crate::events::DEFAULT_MAX;
use crate::run::{Holding, Premises, Resident};
use crate::sandbox::{Lifecycle, Sandbox};
use enclosure::{Groundwork, Residence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::host::{Bound, Bounded, bound};
use terms::{ErrorKind, Fault, Outcome, Phase};

/// Runs at once in one sandbox.
pub const MOST_RUNS: usize = 256;
/// Those at once who wait for something: a run's end, news of it, that it takes their input; or who work with files.
const MOST_WAITING: usize = 2 * MOST_RUNS;
/// Connections at once. However many wait, each command that may begin has one, and there is room for those who ask and go: what
/// runs can always be ended.
const MOST_CLIENTS: usize = MOST_WAITING + MOST_RUNS + 128;
/// Pieces of input that wait to be taken, of all runs.
const MOST_FEEDS: usize = 128;
/// Runs that have ended and are still known by heart.
const MOST_PAST: usize = 256;
/// Ended runs whose output stays on disk.
const MOST_KEPT: usize = 256;
/// And what it may take, the newest first; that of the last one stays in any case.
const MOST_KEPT_BYTES: u64 = 256 << 20;
/// Looked for when so many more have ended, or have said so much.
const PRUNED_EVERY: usize = 32;
const PRUNED_EVERY_BYTES: u64 = 32 << 20;
/// How long one stays that was started on demand and has nothing to do.
const IDLE: Duration = Duration::from_secs(15);
/// And one that stands for the files alone.
const IDLE_AT_REST: Duration = Duration::from_millis(200);
/// How long it stays for those who do not take its last words.
const LINGER: Duration = Duration::from_secs(1);
/// How often it looks whether its place is still there.
const SEEN_EVERY: Duration = Duration::from_secs(10);
/// How often one that stands ready looks whether it is still wanted, where nobody told it.
const LOOK: Duration = Duration::from_secs(30);
/// How long commands have to end when the keeper is told to.
const GRACE: Duration = Duration::from_secs(5);
/// Descriptors that it may want: a few for each run and one for each who asks.
const DESCRIPTORS: u64 = 4096;
const TERM: i32 = 15;
const KILL: i32 = 9;
/// Signals that tell it to end.
const ENDS: [i32; 3] = [1, 2, TERM];

/// What a keeper is started for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    pub sandbox: String,
    pub wanted: Wanted,
    /// How long it stays when it has nothing to do.
    pub idle: Duration,
    /// The bound on open files of whoever wanted it, before they raised their own.
    pub descriptors: Option<u64>,
}

impl Begin {
    /// As it stands on the command line that we start ourselves with.
    pub fn of(words: &[String]) -> Begin {
        let sandbox = words.first().cloned().unwrap_or_default();
        let mut begin = Begin { sandbox, wanted: Wanted::Commands, idle: IDLE, descriptors: None };
        for word in words.iter().skip(1) {
            match word.strip_prefix(super::DESCRIPTORS) {
                Some(count) => begin.descriptors = count.parse().ok(),
                None if word == super::FOR_FILES => begin.wanted = Wanted::Files,
                None => begin.idle = word.parse().map_or(IDLE, Duration::from_millis),
            }
        }
        begin
    }

    /// Lets go of what whoever started us has allowed himself: it is not for guests. To be called before anything is made.
    pub fn modest(&self) {
        if let Some(count) = self.descriptors {
            let _as_it_is = fewer_descriptors(count);
        }
    }
}

/// Takes up a sandbox, makes its enclosure stand, says so by `ready`, and holds it until its end.
pub fn keep(
    begin: &Begin,
    caller: &mut Caller,
    ground: Groundwork,
    ready: impl FnOnce(Result<(), Fault>),
) -> Result<(), Fault> {
    match Keep::begin(begin, caller, ground) {
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
    /// Services, in the order of the record.
    attended: Vec<Attended>,
    past: VecDeque<Past>,
    /// Since when it stands still.
    frozen: Option<Instant>,
    stays: bool,
    /// It stands for its files alone: the sandbox was stopped when it was taken up, or nobody has asked for more.
    rests: bool,
    state: PathBuf,
    /// The surroundings that services are started in.
    caller: Caller,
    /// How long it stays with nothing to do, once it rests no more.
    patience: Duration,
    idle: Duration,
    /// When somebody asked, or a run ended.
    stirred: Instant,
    ending: Option<End>,
    fell: Option<String>,
    /// Since when all has ended, once it is to end.
    over: Option<Instant>,
    /// When it was last seen that its place is still there.
    seen: Instant,
    buffer: Vec<u8>,
    /// The last question that is in the journal, by its number.
    last_asked: u64,
    /// Runs that have ended since old output was last looked for, and what they said.
    unpruned: (usize, u64),
    /// When it looks next whether it is still wanted, while it stands ready.
    look_at: Instant,
    /// Dropped last: from then on others can have the workspace.
    _holding: Holding,
}

/// A run that has ended.
struct Past {
    listed: Listed,
    /// Where its outcome is.
    end: Option<u64>,
    /// The outcome itself, where the disk did not take it.
    unwritten: Option<Box<Outcome>>,
    ended_ms: Option<u64>,
    /// What it took of whom, for those who send it again.
    writers: Writers,
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
    fn begin(begin: &Begin, caller: &mut Caller, ground: Groundwork) -> Result<Keep, Fault> {
        let state = crate::state::prepare(caller)?.0;
        let resident = Resident::prepare(&begin.sandbox, caller, ground).map_err(|refused| *refused.fault)?;
        resident.secret_variables().iter().for_each(|name| caller.forget(name));
        let id = resident.premises.sandbox.id.clone();
        let place = Place::of(&state, &id);
        let trouble = |what: &str, e: &dyn std::fmt::Display| {
            let message = format!("the keeper of {id}: {what} below {}: {e}", state.display());
            let fault = Fault::new(ErrorKind::Unavailable, message).subject(&id).phase(Phase::Start);
            fault.hint("see that its file system has space and can be written; `cofferdam doctor` may help")
        };
        place.make().map_err(|e| trouble("its directory", &e))?;
        // From now on others who want to keep it see that somebody does.
        let card = Card::own();
        place.write_card(&card).map_err(|e| trouble("its card", &e))?;
        let max = resident.premises.sandbox.record.events_max.unwrap_or(DEFAULT_MAX);
        let events = resident.has_network().then(|| place.open_events(max)).transpose();
        let events = events.map_err(|e| trouble("its events", &e)).inspect_err(|_| place.clear())?;
        let stood = resident.stand(events).and_then(|(residence, premises, holding)| {
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
        let rests = stopped || begin.wanted == Wanted::Files;
        let stays = premises.sandbox.record.stays && !rests;
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
            attended: Vec::new(),
            past: VecDeque::new(),
            frozen: None,
            stays,
            rests,
            state,
            caller: caller.clone(),
            patience: begin.idle,
            idle: if rests { begin.idle.min(IDLE_AT_REST) } else { begin.idle },
            stirred: Instant::now(),
            ending: None,
            fell: None,
            over: None,
            seen: Instant::now(),
            buffer: vec![0; CHUNK],
            last_asked: 0,
            unpruned: (0, 0),
            look_at: Instant::now() + LOOK,
            _holding: holding,
        };
        keep.prune();
        keep.catch_up().inspect_err(|_| keep.place.clear())?;
        if !rests && !keep.premises.ready {
            let awake = keep.awake();
            // It never stood, so that nothing is lost.
            awake.inspect_err(|_| keep.place.clear())?;
        }
        Ok(keep)
    }

    /// Rules and limits that were changed while it was built. Who changes them later finds our card, and tells us.
    fn catch_up(&mut self) -> Result<(), Fault> {
        let known = &self.premises.sandbox;
        let now = store::Store::open(&self.state)?.read(|tx| tx.get::<Sandbox>(&known.id))?;
        let Some(now) = now.filter(|now| now.record.revision != known.record.revision) else { return Ok(()) };
        let Sandbox { revision, policy, limits, cpus, .. } = now.record;
        let revised = self.premises.revise(&Revision { revision, policy, limits, cpus }, &mut self.residence);
        revised.map_err(|_| {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", now.id)).subject(now.id);
            fault.hint("try again").phase(Phase::Start)
        })
    }

    /// It is wanted for more than its files. One that is stopped goes on resting.
    fn rise(&mut self) -> Result<(), Fault> {
        if !self.rests {
            return Ok(());
        }
        let store = store::Store::open(&self.state)?;
        let now = store.read(|tx| tx.get::<Sandbox>(&self.premises.sandbox.id))?;
        let Some(now) = now.filter(|kept| kept.record.state != Lifecycle::Stopped) else { return Ok(()) };
        (self.rests, self.idle, self.stays) = (false, self.patience, now.record.stays);
        self.premises.sandbox.record = now.record;
        self.awake()
    }

    /// It is suspended no more, its ports are open, and its services run.
    fn awake(&mut self) -> Result<(), Fault> {
        let (sandbox, caller) = (self.premises.sandbox.clone(), self.caller.clone());
        if sandbox.record.suspended.is_some() {
            super::suspend::woken(&self.state, &sandbox.id, &caller)?;
        }
        self.premises.publish(sandbox.record.publish, &mut self.residence)?;
        self.begin_services(&wire::words_of(&caller), &caller.user)
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
        // Who does not take what is meant for him is not waited for.
        let waits = || self.clients.values().any(|client| client.line.waiting() > 0);
        match (&self.ending, &self.fell) {
            (Some(_), _) | (_, Some(_)) => self.over.is_some_and(|over| over.elapsed() >= LINGER || !waits()),
            _ => self.is_idle() && self.stirred.elapsed() >= self.idle,
        }
    }

    fn is_idle(&self) -> bool {
        let owing = self.clients.values().any(|client| !matches!(client.owed, Owed::Nothing | Owed::Follow(_)));
        let owing = owing || self.clients.values().any(|client| client.holds_files) || self.next_service().is_some();
        self.works.is_empty() && !self.stays && !self.premises.ready && self.frozen.is_none() && !owing
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
        self.premises.close_events();
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
        self.look_at_place();
        self.look_whether_wanted();
        self.look_after_services();
        self.tell_followers();
        self.send();
        self.look_at_output();
        let ends = self.ending.is_some() || self.fell.is_some();
        if ends && self.works.is_empty() {
            self.over.get_or_insert_with(Instant::now);
        }
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
        let walls = self.works.values().filter(|w| !frozen && w.hit.is_none()).filter_map(Work::deadline);
        let waits = self.clients.values().filter_map(|client| match &client.owed {
            Owed::Wait { until, .. } => *until,
            _ => None,
        });
        let idle = self.is_idle().then(|| self.stirred + self.idle);
        let look = self.premises.ready.then_some(self.look_at);
        let end = self.ending.as_ref().filter(|_| !self.works.is_empty()).map(|end| end.kill_at);
        let over = self.over.map(|over| over + LINGER);
        let seen = Some(self.seen + SEEN_EVERY);
        let ours = look.into_iter().chain(self.next_service()).chain(over).chain(seen);
        let at = walls.chain(waits).chain(idle).chain(ours).chain(end).chain(inner).min()?;
        let left = at.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

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

    /// Whoever has a handle needs nobody inside for it: what stands still goes on doing so.
    fn root(&mut self, tmp: bool) -> Result<Frame, Fault> {
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
    let Bound { current, maximum } = bound(Bounded::OpenFiles);
    let wanted = maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    match current {
        Some(now) if now < wanted => {
            rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        }
        _ => Ok(()),
    }
}

/// As few as whoever wanted the sandbox has; never more than there may be.
fn fewer_descriptors(count: u64) -> rustix::io::Result<()> {
    let Bound { current, maximum } = bound(Bounded::OpenFiles);
    match current {
        Some(now) if now > count => {
            rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum })
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
