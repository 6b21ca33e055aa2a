//! `cofferdam keep`: the process that holds a live sandbox. One poll loop over its enclosure, its runs, its clients and its timers; nothing
//! in the loop blocks on anything else.
//!
//! ```text
//! client    requests and answers of one connection         asked     a request carried out
//! runs      requests about runs                            work      one run: streams, limits, outcome
//! happened  ends, limits and timers                        clerk     the thread that writes records
//! feeds     input of runs                                  attend    services
//! claimed   a spare that gets its owner                    end       shutdown
//! contexts  interpreters that keep their state
//! ```

mod asked;
mod attend;
mod claimed;
mod clerk;
mod client;
mod contexts;
mod end;
mod feeds;
mod happened;
mod runs;
mod work;

use self::attend::SupervisedService;
use self::clerk::Clerk;
use self::client::{KeeperClient, OwedReply};
use self::contexts::HeldContext;
use self::feeds::Writers;
use self::work::{ActiveRun, CHUNK, OutputStream};
use super::starting::KeeperPurpose;
use super::wire::{
    self, EndedRuns, Frame, FreezeResult, OpenContext, ResourceUsage, Revision, Rooted, RunSummary, WireText,
};
use crate::Node;
use crate::events::DEFAULT_MAX;
use crate::keeper_dir::place::{Card, KeeperDir};
use crate::run::{Holding, ResidentContext, ResidentPlan};
use api::{JournalStep, Lifecycle};
use enclosure::{Groundwork, Residence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use state::sandbox::Sandbox;
use state::{Caller, SecretSources};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::host::{Bound, BoundedResource, bound};
use terms::{ErrorKind, Fault, Outcome, Phase};

/// Bound on concurrent runs in one sandbox.
pub const MOST_RUNS: usize = 256;
/// Bound on clients that wait at once: for a run's end, notices or free input space, or that hold file handles.
const MOST_WAITING: usize = 2 * MOST_RUNS;
/// Bound on open connections. Even with all waiting slots taken, each possible command has a connection, and short requests still get one:
/// a running command can always be ended.
const MOST_CLIENTS: usize = MOST_WAITING + MOST_RUNS + 128;
/// Bound on queued input pieces, over all runs.
const MOST_FEEDS: usize = 128;
/// Bound on ended runs that are kept in memory.
const MOST_ENDED: usize = 256;
/// Bound on ended runs whose output stays on disk.
const MOST_KEPT: usize = 256;
/// Bound on the bytes of that output, newest first; the newest run's output always stays.
const MOST_KEPT_BYTES: u64 = 256 << 20;
/// Retention runs after this many more runs have ended, or this much more output was written.
const PRUNED_EVERY: usize = 32;
const PRUNED_EVERY_BYTES: u64 = 32 << 20;
/// Idle timeout of a keeper that was started on demand.
const IDLE: Duration = Duration::from_secs(15);
/// Idle timeout of a keeper that runs for files only.
const IDLE_FILES_ONLY: Duration = Duration::from_millis(200);
/// Time to wait at the exit for clients that do not read their last answer.
const LINGER: Duration = Duration::from_secs(1);
/// Interval of the check that the keeper's directory still exists.
const DIR_CHECK_EVERY: Duration = Duration::from_secs(10);
/// Interval at which a spare checks its record, in case no client told it that it was claimed or is no longer wanted.
const RECORD_CHECK_EVERY: Duration = Duration::from_secs(30);
/// Time that commands get to end after SIGTERM when the keeper is told to end.
const GRACE: Duration = Duration::from_secs(5);
/// Wanted limit on open files: a few for each run and one for each client.
const DESCRIPTORS: u64 = 4096;
const TERM: i32 = 15;
const KILL: i32 = 9;
/// Signals that end the keeper.
const ENDS: [i32; 3] = [1, 2, TERM];

/// Arguments that a keeper is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    pub sandbox: String,
    pub wanted: KeeperPurpose,
    /// Idle timeout.
    pub idle: Duration,
    /// Open-file limit of the process that started the keeper, before it raised its own.
    pub descriptors: Option<u64>,
    /// Sources that the secrets of commands may come from.
    pub secret_sources: SecretSources,
}

impl Begin {
    /// Parses the arguments of `cofferdam keep`, which `starting` writes.
    pub fn of(words: &[String]) -> Begin {
        let sandbox = words.first().cloned().unwrap_or_default();
        let (descriptors, secret_sources) = (None, SecretSources::All);
        let mut begin = Begin { sandbox, wanted: KeeperPurpose::Commands, idle: IDLE, descriptors, secret_sources };
        for word in words.iter().skip(1) {
            match word.strip_prefix(super::DESCRIPTORS) {
                Some(count) => begin.descriptors = count.parse().ok(),
                None if word == super::FOR_FILES => begin.wanted = KeeperPurpose::Files,
                None if word == super::KEPT_SECRETS => begin.secret_sources = SecretSources::KeptOnly,
                None => begin.idle = word.parse().map_or(IDLE, Duration::from_millis),
            }
        }
        begin
    }

    /// Lowers the open-file limit to that of the parent before the parent raised it: guests inherit it. Must be called before anything is
    /// created.
    pub fn modest(&self) {
        if let Some(count) = self.descriptors {
            let _ = fewer_descriptors(count); // on failure the limit stays as it is
        }
    }
}

/// Locks a sandbox, builds its enclosure, reports that by `ready`, and holds it until the end.
pub fn keep(
    node: &Node,
    begin: &Begin,
    caller: &mut Caller,
    ground: Groundwork,
    ready: impl FnOnce(Result<(), Fault>),
) -> Result<(), Fault> {
    match Keep::begin(node, begin, caller, ground) {
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
    place: KeeperDir,
    card: Card,
    listener: OwnedFd,
    signals: OwnedFd,
    residence: Residence<'static>,
    premises: ResidentContext,
    clerk: Clerk,
    clients: BTreeMap<u64, KeeperClient>,
    next_client: u64,
    /// Runs that have not ended, by id.
    runs: BTreeMap<String, ActiveRun>,
    /// Interpreters that keep their state, by name.
    contexts: BTreeMap<String, HeldContext>,
    /// Contexts to make in the next turn, for the client that claimed this spare.
    ahead: Vec<OpenContext>,
    /// Services, in the order of the record.
    services: Vec<SupervisedService>,
    ended_runs: VecDeque<EndedRun>,
    /// Time of the freeze, while the sandbox is frozen.
    frozen: Option<Instant>,
    /// The idle timeout is disabled.
    keep_alive: bool,
    /// Keeper for files only: the sandbox was stopped when the keeper started, or no client has asked for more.
    files_only: bool,
    state: PathBuf,
    /// Caller whose environment services are started in.
    caller: Caller,
    /// Idle timeout once the keeper is no longer for files only.
    patience: Duration,
    idle: Duration,
    /// Time of the last request or the last end of a run.
    last_activity: Instant,
    ending: Option<PendingEnd>,
    /// Reason why the enclosure failed, once it has.
    failure: Option<String>,
    /// Time at which the last run ended, once the keeper is ending.
    drained_at: Option<Instant>,
    /// Time of the last check that the keeper's directory exists.
    dir_checked_at: Instant,
    buffer: Vec<u8>,
    /// Number of the last question that is in the journal.
    last_asked: u64,
    /// Runs that have ended since the last retention pass, and the bytes of their output.
    unpruned: (usize, u64),
    /// Time of a spare's next check of its record.
    record_check_at: Instant,
    /// Lock on the workspace. Dropped last: other verbs can take it from then on.
    _holding: Holding,
}

/// A run that has ended.
struct EndedRun {
    listed: RunSummary,
    /// Spool offset of the outcome.
    end: Option<u64>,
    /// The outcome itself, where it could not be written to the spool.
    unwritten: Option<Box<Outcome>>,
    ended_ms: Option<u64>,
    /// Input offsets of its writers, for retries.
    writers: Writers,
}

struct PendingEnd {
    kill_at: Instant,
    left: EndedRuns,
}

/// The source that a poll slot stands for.
#[derive(Clone, Debug)]
enum PollSource {
    Listener,
    Signals,
    Clerk,
    Residence,
    Client(u64),
    Stream(String, OutputStream),
    Input(String),
}

impl Keep {
    /// Locks the sandbox and plans its guest, writes the card, builds the enclosure, opens the socket, and starts services. A keeper for files
    /// alone starts none.
    fn begin(node: &Node, begin: &Begin, caller: &mut Caller, ground: Groundwork) -> Result<Keep, Fault> {
        caller.secret_sources = begin.secret_sources;
        let state = state::directory::prepare(caller)?.0;
        let resident = ResidentPlan::new(node, caller, &begin.sandbox, ground).map_err(|refused| *refused.fault)?;
        resident.secret_variables().iter().for_each(|name| caller.forget(name));
        let id = resident.premises.sandbox.id.clone();
        let place = KeeperDir::of(&state, &id);
        let trouble = |what: &str, e: &dyn std::fmt::Display| {
            let message = format!("the keeper of {id}: {what} below {}: {e}", state.display());
            let fault = Fault::new(ErrorKind::Unavailable, message).subject(&id).phase(Phase::Start);
            fault.hint("see that its file system has space and can be written; `cofferdam doctor` may help")
        };
        place.make().map_err(|e| trouble("its directory", &e))?;
        // From now on other processes see that the sandbox has a keeper.
        let card = Card::own();
        place.write_card(&card).map_err(|e| trouble("its card", &e))?;
        let max = resident.premises.sandbox.record.events_max.unwrap_or(DEFAULT_MAX);
        let events = resident.has_network().then(|| place.open_events(max)).transpose();
        let events = events.map_err(|e| trouble("its events", &e)).inspect_err(|_| place.clear())?;
        let stood = resident.stand(events).and_then(|(residence, premises, holding)| {
            // Not before the enclosure is built: its first process must not inherit the signal mask.
            let signals = sys::process::signal_handle(&ENDS).map_err(|e| trouble("signals", &e))?;
            let _ = more_descriptors(); // on failure the limit stays as it is
            let listener = place.listen().map_err(|e| trouble("its socket", &e))?;
            let stack = holding.stack();
            let clerk = Clerk::start(state.clone(), id.clone(), stack, 3 * MOST_RUNS);
            let clerk = clerk.map_err(|e| trouble("its clerk", &e))?;
            Ok((residence, premises, holding, signals, listener, clerk))
        });
        let (residence, premises, holding, signals, listener, clerk) = stood.inspect_err(|_| place.clear())?;
        let stopped = premises.sandbox.record.state == Lifecycle::Stopped;
        let files_only = stopped || begin.wanted == KeeperPurpose::Files;
        let keep_alive = premises.sandbox.record.stays && !files_only;
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
            runs: BTreeMap::new(),
            contexts: BTreeMap::new(),
            ahead: Vec::new(),
            services: Vec::new(),
            ended_runs: VecDeque::new(),
            frozen: None,
            keep_alive,
            files_only,
            state,
            caller: caller.clone(),
            patience: begin.idle,
            idle: if files_only { begin.idle.min(IDLE_FILES_ONLY) } else { begin.idle },
            last_activity: Instant::now(),
            ending: None,
            failure: None,
            drained_at: None,
            dir_checked_at: Instant::now(),
            buffer: vec![0; CHUNK],
            last_asked: 0,
            unpruned: (0, 0),
            record_check_at: Instant::now() + RECORD_CHECK_EVERY,
            _holding: holding,
        };
        keep.prune();
        keep.catch_up().inspect_err(|_| keep.place.clear())?;
        if !files_only && !keep.premises.ready {
            let resumed = keep.resume();
            // The keeper was never ready, so nothing is lost.
            resumed.inspect_err(|_| keep.place.clear())?;
        }
        Ok(keep)
    }

    /// Applies rules and limits that were changed while the enclosure was built. Later changes find the card and are sent to the keeper.
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

    /// Leaves files-only mode, because a command or port is wanted. The keeper of a stopped sandbox stays in it.
    fn leave_files_only(&mut self) -> Result<(), Fault> {
        if !self.files_only {
            return Ok(());
        }
        let store = store::Store::open(&self.state)?;
        let now = store.read(|tx| tx.get::<Sandbox>(&self.premises.sandbox.id))?;
        let Some(now) = now.filter(|kept| kept.record.state != Lifecycle::Stopped) else { return Ok(()) };
        (self.files_only, self.idle, self.keep_alive) = (false, self.patience, now.record.stays);
        self.premises.sandbox.record = now.record;
        self.resume()
    }

    /// Records the resume of a hibernated sandbox, opens its published ports and starts its services.
    fn resume(&mut self) -> Result<(), Fault> {
        let (sandbox, caller) = (self.premises.sandbox.clone(), self.caller.clone());
        if sandbox.record.suspended.is_some() {
            record_resumed(&self.state, &sandbox.id, &caller)?;
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
                self.failure = Some(fault.message.clone());
                break Err(fault);
            }
        };
        self.leave();
        outcome
    }

    /// Returns whether the keeper exits: everything has ended, or the idle timeout has passed.
    fn is_over(&self) -> bool {
        // Clients that do not read their last answer are waited for only for LINGER.
        let waits = || self.clients.values().any(|client| client.line.waiting() > 0);
        match (&self.ending, &self.failure) {
            (Some(_), _) | (_, Some(_)) => self.drained_at.is_some_and(|at| at.elapsed() >= LINGER || !waits()),
            _ => self.is_idle() && self.last_activity.elapsed() >= self.idle,
        }
    }

    fn is_idle(&self) -> bool {
        let owing =
            self.clients.values().any(|client| !matches!(client.owed, OwedReply::Nothing | OwedReply::Follow(_)));
        let owing = owing || self.clients.values().any(|client| client.holds_files) || self.next_service().is_some();
        self.runs.is_empty() && !self.keep_alive && !self.premises.ready && self.frozen.is_none() && !owing
    }

    fn leave(mut self) {
        match self.failure.take() {
            // The card stays, with the reason of the failure.
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
                PollSource::Listener => self.accept_clients(),
                PollSource::Signals => self.read_signals(),
                PollSource::Clerk => self.take_clerk_results(),
                PollSource::Residence => residence = true,
                PollSource::Client(id) => self.read_requests(id),
                PollSource::Stream(run, stream) => self.pull(&run, stream),
                PollSource::Input(run) => self.feed(&run),
            }
        }
        let due = self.residence.waits().1.is_some_and(|at| Instant::now() >= at);
        if residence || due {
            self.poll_residence()?;
        }
        self.check_timers();
        self.check_dir();
        self.check_spare_record();
        self.restart_services();
        self.notify_followers();
        self.send();
        self.prune_if_due();
        let ends = self.ending.is_some() || self.failure.is_some();
        if ends && self.runs.is_empty() {
            self.drained_at.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<PollSource>, Fault> {
        let (inner, at) = self.residence.waits();
        let mut slots: Vec<(PollSource, BorrowedFd<'_>, PollFlags)> = vec![
            (PollSource::Listener, self.listener.as_fd(), PollFlags::IN),
            (PollSource::Signals, self.signals.as_fd(), PollFlags::IN),
            (PollSource::Clerk, self.clerk.wake(), PollFlags::IN),
        ];
        slots.extend(inner.into_iter().map(|fd| (PollSource::Residence, fd, PollFlags::IN)));
        for (id, client) in &self.clients {
            slots.push((PollSource::Client(*id), client.line.as_fd(), client.flags()));
        }
        for (run, active) in &self.runs {
            for (stream, fd) in [(OutputStream::Output, &active.output), (OutputStream::Error, &active.error)] {
                let slot = |fd| (PollSource::Stream(run.clone(), stream), fd, PollFlags::IN);
                slots.extend(fd.as_ref().map(AsFd::as_fd).map(slot));
            }
            if let (Some(fd), false) = (&active.input, active.feeds.is_empty()) {
                slots.push((PollSource::Input(run.clone()), fd.as_fd(), PollFlags::OUT));
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

    /// Time until the next timer fires.
    fn timeout(&self, inner: Option<Instant>) -> Option<Timespec> {
        let frozen = self.frozen.is_some();
        let walls = self.runs.values().filter(|w| !frozen && w.hit.is_none()).filter_map(ActiveRun::deadline);
        let waits = self.clients.values().filter_map(|client| match &client.owed {
            OwedReply::Wait { until, .. } => *until,
            OwedReply::Context { until, .. } => Some(*until),
            _ => None,
        });
        let idle = self.is_idle().then(|| self.last_activity + self.idle);
        let record_check = self.premises.ready.then_some(self.record_check_at);
        let end = self.ending.as_ref().filter(|_| !self.runs.is_empty()).map(|end| end.kill_at);
        let linger = self.drained_at.map(|at| at + LINGER);
        let dir_check = Some(self.dir_checked_at + DIR_CHECK_EVERY);
        let contexts = self.next_context_check();
        let ours = record_check.into_iter().chain(self.next_service()).chain(linger).chain(dir_check).chain(contexts);
        let at = walls.chain(waits).chain(idle).chain(ours).chain(end).chain(inner).min()?;
        Some(sys::deadline::time_left(at))
    }

    fn freeze(&mut self) -> Result<FreezeResult, Fault> {
        let enclosure::FreezeResult { with, paged_out } = self.residence.freeze()?;
        self.frozen.get_or_insert_with(Instant::now);
        Ok(FreezeResult { with: with.to_owned(), paged_out })
    }

    fn thaw(&mut self) -> Result<(), Fault> {
        let Some(since) = self.frozen else { return Ok(()) };
        self.residence.thaw()?;
        self.frozen = None;
        self.runs.values_mut().for_each(|active| active.exclude_frozen(since.elapsed()));
        Ok(())
    }

    /// Returns a file handle. File access needs no process inside, so a frozen sandbox stays frozen.
    fn root(&mut self, tmp: bool, path: Option<&WireText>) -> Result<Frame, Fault> {
        let none = || {
            let fault = Fault::new(ErrorKind::UnsupportedHost, "no handle on these files is available");
            fault.subject(&self.premises.sandbox.id).hint("stop it to reach the files of its workspace")
        };
        let dir = state::directory::path_inside(&self.premises.sandbox.record.base);
        let path = path.and_then(WireText::text).map(PathBuf::from).filter(|path| !path.starts_with(dir));
        let is_below = |at: &Path| path.as_ref().is_some_and(|path| path.starts_with(at));
        let home = self.residence.home().filter(|(home, _)| is_below(home));
        let (at, root) = match home {
            Some((home, root)) => (home, Some(root)),
            None if tmp || is_below(Path::new("/tmp")) => (Path::new("/tmp"), self.residence.tmp()),
            None => (dir, self.residence.root()),
        };
        let root = root.ok_or_else(none)?.try_clone_to_owned().map_err(|e| Fault::internal(e.to_string()))?;
        let (uid, gid) = self.residence.owner();
        Ok(wire::value(&Rooted { at: WireText::of(at), uid, gid }).and(root))
    }

    fn used(&mut self) -> ResourceUsage {
        let enclosure::ResourceUsage { cpu_us, memory_bytes, memory_peak_bytes, processes, disk_bytes, net_bytes } =
            self.residence.usage();
        let running = self.runs.len() as u64;
        let code = self.code_traffic();
        ResourceUsage { cpu_us, memory_bytes, memory_peak_bytes, processes, disk_bytes, net_bytes, running, code }
    }
}

/// Returns whether the peer is the sandbox's user or root; only they may send requests.
fn is_ours(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

fn more_descriptors() -> rustix::io::Result<()> {
    let Bound { current, maximum } = bound(BoundedResource::OpenFiles);
    let wanted = maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    match current {
        Some(now) if now < wanted => {
            rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        }
        _ => Ok(()),
    }
}

/// Lowers the open-file limit to that of the process that started the keeper; never raises it.
fn fewer_descriptors(count: u64) -> rustix::io::Result<()> {
    let Bound { current, maximum } = bound(BoundedResource::OpenFiles);
    match current {
        Some(now) if now > count => {
            rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum })
        }
        _ => Ok(()),
    }
}

fn unknown(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("there is no run {run:?} here")).subject(run);
    fault.phase(Phase::Admission).hint("`cofferdam ps` lists running commands")
}

fn has_ended(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{run} has ended")).subject(run);
    fault.phase(Phase::Admission).hint("`cofferdam logs` shows its output")
}

/// Records that a hibernated sandbox has a keeper again.
fn record_resumed(state: &Path, sandbox: &str, caller: &Caller) -> Result<(), Fault> {
    store::Store::open(state)?.write(|tx| {
        let Some(mut kept) = tx.get::<Sandbox>(sandbox)? else { return Ok(()) };
        let was = kept.record.suspended.take();
        kept.record.used_ms = terms::clock::now_ms();
        tx.change(kept)?;
        state::journal::note(tx, "resume", JournalStep::Done, sandbox, caller, serde_json::json!({ "was": was }))
            .map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_is_told_where_secrets_may_come_from() {
        let sources = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Begin::of(&words).secret_sources
        };
        assert_eq!(sources(&["sbx_1", "kept-secrets", "descriptors=64"]), SecretSources::KeptOnly);
        assert_eq!(sources(&["sbx_1", "files"]), SecretSources::All, "the control");
    }
}
