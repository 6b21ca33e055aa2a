//! The client side of a keeper's socket; starts a keeper where there is none. Every call has a deadline: a keeper that lives and does
//! not answer (stopped, swapped out, stuck in the kernel) is *silent*, which is neither absent nor gone.

mod pending;

use super::keepers::Keepers;
use super::starting::{KeeperPurpose, START_DEADLINE, start};
use super::wire::{
    self, AcceptedInput, ContextClosed, ContextOpened, ContextSignalled, EndedRuns, Frame, FreezeResult, Hello,
    InputWriter, KeeperRequest, OpenContext, ReadResult, ResourceUsage, Revision, Rooted, RunSummary, Start, Started,
    Waited, WireConnection, WireText,
};
use crate::Node;
use crate::keeper_dir::place::{Card, KeeperDir};
use crate::keeper_dir::spool::SpoolReader;
use api::{ContextRemoved, ContextStatus, Question, QuestionDecision, Remember};
use rustix::event::{PollFd, PollFlags, poll};
use serde::de::DeserializeOwned;
use state::Caller;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry};

pub use pending::{Follow, FromReply, Pending, RunEnd};

/// Deadline for a keeper that is asked with many others, for a listing.
pub const LISTING: Duration = Duration::from_millis(500);
/// Deadline for a single keeper, for an inspection.
pub const INSPECTION: Duration = Duration::from_secs(2);
/// Deadline for the greeting before a verb is sent: a verb refused by this deadline was never sent.
pub const GREETING: Duration = Duration::from_secs(5);
/// Deadline for a verb that a keeper carries out at once, after it has greeted.
const ANSWER: Duration = Duration::from_secs(20);
/// Retry interval for a connection while the listen backlog is full.
const PAUSE: Duration = Duration::from_millis(3);
/// Time to wait for another process that holds the sandbox's lock and has not written its card yet.
const GRACE: Duration = Duration::from_millis(300);

/// Result of an attempt to greet a sandbox's keeper.
#[derive(Debug)]
pub enum Contact {
    /// No keeper lives, or it exited while it was asked.
    Absent,
    /// The process on this card lives and did not answer before the deadline.
    Silent(Card),
    /// The keeper answered, and cannot be used (another sandbox or protocol).
    Refused(Fault),
    Answered(Box<Keeper>, Hello),
}

/// Result of an attempt to connect.
#[derive(Debug)]
pub(super) enum Connection {
    Absent,
    /// The listen backlog is full.
    Full(Card),
    Made(Keeper),
}

/// Reasons why a request has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The deadline passed; the keeper's process lives.
    Silent(Duration),
    /// The keeper is gone, for this reason.
    Gone(String),
    /// The keeper answered with a fault, or the request cannot be sent.
    Refused(Fault),
}

/// A connection to the keeper of a sandbox.
#[derive(Debug)]
pub struct Keeper {
    line: WireConnection,
    pub(super) place: KeeperDir,
    pub sandbox: String,
    pub card: Card,
    /// Announced in the keeper's greeting: it counts input by offset, and it refuses to start a command whose watch mode is not in force.
    counts_input: bool,
    heeds_watch: bool,
    takes_stdin: bool,
    has_contexts: bool,
    /// Deadline for each request that has none of its own.
    answer_within: Duration,
}

impl Keeper {
    /// Connects to a sandbox's keeper without a greeting, so the keeper may be silent.
    pub fn find(node: &Node, state: &Path, sandbox: &str) -> Option<Keeper> {
        match Keeper::connected(node, state, sandbox, Instant::now() + LISTING) {
            Connection::Made(keeper) => Some(keeper),
            Connection::Absent | Connection::Full(_) => None,
        }
    }

    fn connected(node: &Node, state: &Path, sandbox: &str, end: Instant) -> Connection {
        loop {
            match Keeper::try_connect(node, state, sandbox) {
                Connection::Full(_) if Instant::now() < end => std::thread::sleep(PAUSE),
                other => return other,
            }
        }
    }

    /// Connects without blocking.
    pub(super) fn try_connect(node: &Node, state: &Path, sandbox: &str) -> Connection {
        node.keepers.reap();
        let place = KeeperDir::of(state, sandbox);
        let Some(card) = place.card() else { return Connection::Absent };
        let Some(held) = card.handle() else { return Connection::Absent };
        match place.connect(&card) {
            // The pid cannot be reused while the pidfd shows it alive.
            Ok(_) if sys::process::has_ended(held.as_fd()) => Connection::Absent,
            Ok(socket) => Connection::Made(Keeper::on(WireConnection::new(socket), place, sandbox, card)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Connection::Full(card),
            Err(_) => Connection::Absent,
        }
    }

    fn on(line: WireConnection, place: KeeperDir, sandbox: &str, card: Card) -> Keeper {
        let (sandbox, answer_within) = (sandbox.to_owned(), ANSWER);
        let (counts_input, heeds_watch, takes_stdin, has_contexts) = (false, false, false, false);
        Keeper { line, place, sandbox, card, counts_input, heeds_watch, takes_stdin, has_contexts, answer_within }
    }

    /// Connects and greets, within a deadline for both.
    pub fn contact(node: &Node, state: &Path, sandbox: &str, deadline: Duration) -> Contact {
        let end = Instant::now() + deadline;
        let mut keeper = match Keeper::connected(node, state, sandbox, end) {
            Connection::Absent => return Contact::Absent,
            Connection::Full(card) => return Contact::Silent(card),
            Connection::Made(keeper) => keeper,
        };
        match keeper.greet(end.saturating_duration_since(Instant::now())) {
            Ok(hello) => Contact::Answered(Box::new(keeper), hello),
            Err(NoAnswer::Gone(_)) => Contact::Absent,
            Err(NoAnswer::Silent(_)) => Contact::Silent(keeper.card),
            Err(NoAnswer::Refused(fault)) => Contact::Refused(fault),
        }
    }

    /// Returns a keeper that has just answered, which resets its idle timeout before the next request; `None` where no keeper lives. A
    /// silent keeper is a fault: a change to a live sandbox must not be taken for applied.
    pub fn heard(node: &Node, state: &Path, sandbox: &str) -> Result<Option<Keeper>, Fault> {
        match Keeper::contact(node, state, sandbox, GREETING) {
            Contact::Absent => Ok(None),
            Contact::Silent(card) => Err(silent(sandbox, &card, GREETING)),
            Contact::Refused(fault) => Err(fault),
            Contact::Answered(keeper, _) => Ok(Some(*keeper)),
        }
    }

    /// Sets the deadline for the requests that follow.
    pub fn answering_within(self, deadline: Duration) -> Keeper {
        Keeper { answer_within: deadline, ..self }
    }

    /// Returns the keeper, and starts one where none lives. Of several concurrent callers one starts it, and all connect to it.
    pub fn ensure(node: &Node, caller: &Caller, state: &Path, sandbox: &str) -> Result<Keeper, Fault> {
        Keeper::ensure_told(node, caller, state, sandbox).map(|(keeper, _)| keeper)
    }

    /// Same as `ensure`, and returns the keeper's greeting.
    pub fn ensure_told(node: &Node, caller: &Caller, state: &Path, sandbox: &str) -> Result<(Keeper, Hello), Fault> {
        for _ in 0..ATTEMPTS {
            let (mut keeper, hello) = Keeper::ensure_for(node, caller, state, sandbox, KeeperPurpose::Commands)?;
            if !hello.rests {
                return Ok((keeper, hello));
            }
            match keeper.round_trip(Frame::of(&KeeperRequest::Rise), keeper.answer_within) {
                Ok(answer) => return wire::read_answer::<()>(&answer).map(|()| (keeper, hello)),
                // A keeper for files alone exited before the request; the next attempt starts another.
                Err(NoAnswer::Gone(_)) => {}
                Err(e) => return Err(keeper.fault(e)),
            }
        }
        Err(sent_away(sandbox))
    }

    /// Same as `ensure` for callers that want only the files: no service is started, and a hibernated sandbox is not resumed.
    pub fn ensure_for_files(node: &Node, caller: &Caller, state: &Path, sandbox: &str) -> Result<Keeper, Fault> {
        Keeper::ensure_for(node, caller, state, sandbox, KeeperPurpose::Files).map(|(keeper, _)| keeper)
    }

    fn ensure_for(
        node: &Node,
        caller: &Caller,
        state: &Path,
        sandbox: &str,
        wanted: KeeperPurpose,
    ) -> Result<(Keeper, Hello), Fault> {
        let begun = Instant::now();
        loop {
            match Keeper::contact(node, state, sandbox, GREETING) {
                Contact::Answered(found, hello) => return Ok((*found, hello)),
                // A second keeper could not take the lock that the silent one holds.
                Contact::Silent(card) => return Err(silent(sandbox, &card, GREETING)),
                Contact::Refused(fault) => return Err(fault),
                Contact::Absent => {}
            }
            if begun.elapsed() > START_DEADLINE {
                let fault = Fault::new(ErrorKind::Unavailable, format!("{sandbox} did not become live in time"));
                return Err(fault.subject(sandbox).retry(Retry::Later).hint("try again").phase(Phase::Start));
            }
            match start(node, caller, state, sandbox, wanted) {
                Ok(()) => {}
                // Another process took the lock first; its card appears soon if it becomes the keeper.
                Err(fault) if fault.error_kind == ErrorKind::Conflict => {
                    let coming = KeeperDir::of(state, sandbox).card().and_then(|card| card.handle()).is_some();
                    if !coming && begun.elapsed() > GRACE {
                        return Err(fault);
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    pub fn hello(&mut self) -> Result<Hello, Fault> {
        self.greet(GREETING).map_err(|e| self.fault(e))
    }

    fn greet(&mut self, deadline: Duration) -> Result<Hello, NoAnswer> {
        let frame = self.round_trip(Frame::of(&KeeperRequest::Hello), deadline)?;
        self.greeted(&frame).map_err(NoAnswer::Refused)
    }

    /// Reads the greeting; refuses a keeper of another sandbox or protocol.
    pub(super) fn greeted(&mut self, frame: &Frame) -> Result<Hello, Fault> {
        let hello: Hello = wire::read_answer(frame)?;
        if hello.sandbox != self.sandbox {
            let message = format!("the keeper of {} reports that it holds {}", self.sandbox, hello.sandbox);
            return Err(Fault::new(ErrorKind::Conflict, message)
                .subject(&self.sandbox)
                .hint("`cofferdam fsck` checks the state directory"));
        }
        if hello.protocol != wire::PROTOCOL {
            let message = format!("the keeper of {} speaks protocol {}", self.sandbox, hello.protocol);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&self.sandbox);
            return Err(fault.hint(format!("stop it with `cofferdam stop {}`, then repeat", self.sandbox)));
        }
        (self.counts_input, self.heeds_watch) = (hello.counts_input, hello.heeds_watch);
        self.takes_stdin = hello.takes_stdin;
        self.has_contexts = hello.has_contexts;
        Ok(hello)
    }

    /// Returns whether the keeper is known to support every feature that a command needs.
    pub fn is_known_to_do(&self, start: &Start) -> bool {
        (self.counts_input || !(start.input || start.terminal.is_some())) && (self.takes_stdin || !start.has_stdin)
    }

    /// Refuses a keeper of an older version that ignores the offset of an input piece, so that a piece that is sent again would arrive
    /// twice.
    pub fn check_counts(&self, hello: &Hello) -> Result<(), Fault> {
        if hello.counts_input {
            return Ok(());
        }
        let message = format!(
            "the keeper of {} has version {} and does not count its input: input that is sent again could arrive twice",
            self.sandbox, hello.version
        );
        let fault = Fault::new(ErrorKind::UnsupportedHost, message).subject(&self.sandbox).phase(Phase::Admission);
        let hint = format!("`cofferdam stop {0}` and `cofferdam start {0}` replace it; or send no input", self.sandbox);
        Err(fault.hint(hint))
    }

    /// Refuses a keeper of an older version that would ignore the requested watch mode and start the command without it.
    fn check_watch(&self, start: &Start) -> Result<(), Fault> {
        if self.heeds_watch || start.watch.is_usual() {
            return Ok(());
        }
        let message = format!(
            "the keeper of {} has version {} and does not know watch options of a command",
            self.sandbox, self.card.version
        );
        let fault = Fault::new(ErrorKind::UnsupportedHost, message).subject(&self.sandbox).phase(Phase::Admission);
        Err(fault.hint(format!("`cofferdam stop {0}` and `cofferdam start {0}` replace it", self.sandbox)))
    }

    /// Refuses a keeper of an older version that would ignore the input of a command and start it without.
    fn check_stdin(&self, start: &Start) -> Result<(), Fault> {
        if self.takes_stdin || !start.has_stdin {
            return Ok(());
        }
        let message = format!(
            "the keeper of {} is of version {} and takes no input with a command",
            self.sandbox, self.card.version
        );
        let fault = Fault::new(ErrorKind::UnsupportedHost, message).subject(&self.sandbox).phase(Phase::Admission);
        Err(fault.hint(format!("`cofferdam stop {0}` and `cofferdam start {0}` replace it", self.sandbox)))
    }

    pub fn start(&mut self, start: Start) -> Result<Started, Fault> {
        self.check_watch(&start)?;
        self.ask(&KeeperRequest::Start(Box::new(start)))
    }

    /// Starts a command over a pooled connection; `None` when the connection was closed meanwhile. A retry on another connection carries
    /// the same run id, so that the command is not started twice.
    pub fn start_if_there(&mut self, start: &Start) -> Result<Option<Started>, Fault> {
        self.check_watch(start)?;
        self.check_stdin(start)?;
        let frame = Frame::of(&KeeperRequest::Start(Box::new(start.clone()))).with(start.stdin.clone());
        match self.round_trip(frame, self.answer_within) {
            Ok(answer) => wire::read_answer(&answer).map(Some),
            Err(NoAnswer::Gone(_)) => Ok(None),
            Err(e) => Err(self.fault(e)),
        }
    }

    /// Writes bytes to a command's input, at most `wire::MOST`; blocks until the command takes them or `patience` has passed.
    pub fn input(&mut self, run: &str, bytes: Vec<u8>, eof: bool, patience: Duration) -> Result<(), Fault> {
        let frame = Frame::of(&KeeperRequest::Input { run: run.to_owned(), eof, by: None }).with(bytes);
        self.exchange(frame, patience).and_then(|answer| wire::read_answer(&answer))
    }

    /// Queues input without blocking; `Pending::step` sends it and reads the answer. With `by`, which names the writer and the offset in
    /// its stream, the answer tells how many bytes of that stream were taken.
    pub fn put_input(
        self,
        run: &str,
        bytes: Vec<u8>,
        eof: bool,
        by: Option<InputWriter>,
    ) -> Result<Pending<Option<AcceptedInput>>, Fault> {
        let frame = Frame::of(&KeeperRequest::Input { run: run.to_owned(), eof, by }).with(bytes);
        if !frame.fits() {
            return Err(Fault::invalid("more than fits one frame").hint("send less at a time").phase(Phase::Admission));
        }
        self.put(frame)
    }

    /// Queues a wait for the end of a run, without a timeout.
    pub fn put_wait(self, run: &str) -> Result<Pending<RunEnd>, Fault> {
        self.put(Frame::of(&KeeperRequest::Wait { run: run.to_owned(), timeout_ms: u64::MAX }))
    }

    /// Returns the pending end of a run where the start request asked for it already.
    pub fn waits(self) -> Pending<RunEnd> {
        Pending { keeper: self, answer: PhantomData }
    }

    fn put<T>(mut self, frame: Frame) -> Result<Pending<T>, Fault> {
        self.line.put(frame).map_err(|e| gone(&self.sandbox, &e.to_string()))?;
        Ok(Pending { keeper: self, answer: PhantomData })
    }

    pub fn resize(&mut self, run: &str, rows: u16, columns: u16) -> Result<(), Fault> {
        self.ask(&KeeperRequest::Resize { run: run.to_owned(), rows, columns })
    }

    /// Sends a signal to a run; false when the run has ended.
    pub fn signal(&mut self, run: &str, signal: i32) -> Result<bool, Fault> {
        self.ask(&KeeperRequest::Signal { run: run.to_owned(), signal })
    }

    /// Kills a run; false when it has ended.
    pub fn kill(&mut self, run: &str) -> Result<bool, Fault> {
        self.ask(&KeeperRequest::Kill { run: run.to_owned() })
    }

    /// Lists the runs that are running and the most recent ones that have ended.
    pub fn list(&mut self) -> Result<Vec<RunSummary>, Fault> {
        self.ask(&KeeperRequest::List)
    }

    pub fn wait(&mut self, run: &str, time: Duration) -> Result<Waited, Fault> {
        let timeout_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let frame = Frame::of(&KeeperRequest::Wait { run: run.to_owned(), timeout_ms });
        self.exchange(frame, time.saturating_add(self.answer_within)).and_then(|answer| wire::read_answer(&answer))
    }

    /// Subscribes to the progress of these runs, or of all. The first notices give the present offset of each. Does not block: a silent
    /// keeper sends its notices when it answers again.
    pub fn follow(mut self, runs: Option<Vec<String>>) -> Result<Follow, Fault> {
        let asked = self.line.put(Frame::of(&KeeperRequest::Follow { runs })).and_then(|()| self.line.push());
        asked.map_err(|e| gone(&self.sandbox, &e.to_string()))?;
        Ok(Follow { line: self.line, sandbox: self.sandbox, accepted: false })
    }

    /// Freezes the sandbox; returns the mechanism used.
    pub fn freeze(&mut self) -> Result<FreezeResult, Fault> {
        self.ask(&KeeperRequest::Freeze)
    }

    pub fn thaw(&mut self) -> Result<(), Fault> {
        self.ask(&KeeperRequest::Thaw)
    }

    /// Returns a handle on the directory of the guest's that holds an absolute path: the workspace, its own home or `/tmp`; the workspace
    /// for any other. As with `root`, and resolution must not cross mounts.
    pub fn root_of(&mut self, path: &Path) -> Result<(Rooted, OwnedFd), Fault> {
        self.ask_for_handle(&KeeperRequest::Root { tmp: false, path: Some(WireText::of(path)) })
    }

    /// Returns a handle on the workspace as the guest sees it. Paths must be resolved with `openat2`; files made there must belong to the
    /// returned ids.
    pub fn root(&mut self) -> Result<(Rooted, OwnedFd), Fault> {
        self.ask_for_handle(&KeeperRequest::Root { tmp: false, path: None })
    }

    /// Returns a handle on the guest's private `/tmp`. Mounts below it are the host's, so path resolution must not cross mounts.
    pub fn tmp(&mut self) -> Result<(Rooted, OwnedFd), Fault> {
        self.ask_for_handle(&KeeperRequest::Root { tmp: true, path: None })
    }

    /// Connects to a port that a process inside listens on.
    pub fn connect(&mut self, port: u16) -> Result<OwnedFd, Fault> {
        self.ask_for_handle::<()>(&KeeperRequest::Connect { port }).map(|(_, stream)| stream)
    }

    pub fn usage(&mut self) -> Result<ResourceUsage, Fault> {
        self.ask(&KeeperRequest::Usage)
    }

    /// Lists the questions that wait for a person's answer.
    pub fn questions(&mut self) -> Result<Vec<Question>, Fault> {
        self.ask(&KeeperRequest::Questions)
    }

    /// Answers a question, and returns it.
    pub fn answer(&mut self, number: u64, answer: QuestionDecision, remember: Remember) -> Result<Question, Fault> {
        self.ask(&KeeperRequest::Answer { number, answer, remember })
    }

    /// Replaces the network rules and limits, for running and future commands.
    pub fn revise(&mut self, revision: Revision) -> Result<(), Fault> {
        self.ask(&KeeperRequest::Revise(Box::new(revision)))
    }

    /// Replaces the published ports. False where the keeper runs for files only.
    pub fn publish(&mut self, ports: Vec<String>) -> Result<bool, Fault> {
        self.ask(&KeeperRequest::Publish { ports })
    }

    /// Hands a spare over to the caller; its record names the owner already.
    pub fn claim(&mut self, around: Vec<(WireText, WireText)>, actor: String) -> Result<(), Fault> {
        self.ask(&KeeperRequest::Claim { around, actor })
    }

    /// Refuses a keeper of an older version, which knows no contexts.
    pub fn check_contexts(&self) -> Result<(), Fault> {
        if self.has_contexts {
            return Ok(());
        }
        let message =
            format!("the keeper of {} has version {} and does not know contexts", self.sandbox, self.card.version);
        let fault = Fault::new(ErrorKind::UnsupportedHost, message).subject(&self.sandbox).phase(Phase::Admission);
        Err(fault.hint(format!("`cofferdam stop {0}` and `cofferdam start {0}` replace it", self.sandbox)))
    }

    /// Opens a context for a call; returns the supervisor's ends of its worker's channel. The context is this connection's until
    /// `close_context`, or until the connection ends. `None` when the keeper ended before it took the request.
    pub fn open_context(&mut self, ask: &OpenContext) -> Result<Option<(ContextOpened, Vec<OwnedFd>)>, Fault> {
        let patience = Duration::from_millis(ask.queue_ms).saturating_add(self.answer_within);
        let answer = self.ask_if_there(&KeeperRequest::OpenContext(Box::new(ask.clone())), patience)?;
        answer.map(|answer| Ok((wire::read_answer(&answer)?, answer.handles))).transpose()
    }

    /// Makes a context; `None` when the keeper ended before it took the request.
    pub fn create_context(&mut self, ask: &OpenContext) -> Result<Option<ContextStatus>, Fault> {
        let answer = self.ask_if_there(&KeeperRequest::CreateContext(Box::new(ask.clone())), self.answer_within)?;
        answer.map(|answer| wire::read_answer(&answer)).transpose()
    }

    fn ask_if_there(&mut self, request: &KeeperRequest, patience: Duration) -> Result<Option<Frame>, Fault> {
        match self.round_trip(Frame::of(request), patience) {
            Ok(answer) => Ok(Some(answer)),
            Err(NoAnswer::Gone(_)) => Ok(None),
            Err(e) => Err(self.fault(e)),
        }
    }

    /// Ends this connection's call. `finished`: its end was read, or none was made.
    pub fn close_context(&mut self, name: &str, finished: bool) -> Result<ContextClosed, Fault> {
        self.ask(&KeeperRequest::CloseContext { name: name.to_owned(), finished })
    }

    pub fn contexts(&mut self) -> Result<Vec<ContextStatus>, Fault> {
        self.ask(&KeeperRequest::Contexts)
    }

    /// Interrupts the call that is under way in a context; returns its request id.
    pub fn interrupt_context(&mut self, name: &str) -> Result<Option<u32>, Fault> {
        let signalled: ContextSignalled = self.ask(&KeeperRequest::InterruptContext { name: name.to_owned() })?;
        Ok(signalled.request)
    }

    /// Returns the request id of the call that is under way in a context.
    pub fn context_call(&mut self, name: &str) -> Result<Option<u32>, Fault> {
        let signalled: ContextSignalled = self.ask(&KeeperRequest::ContextCall { name: name.to_owned() })?;
        Ok(signalled.request)
    }

    /// Ends the worker of a context, so that the next call starts it anew; only if this call is still under way, where one is given.
    pub fn restart_context(&mut self, name: &str, request: Option<u32>) -> Result<bool, Fault> {
        self.ask(&KeeperRequest::RestartContext { name: name.to_owned(), request })
    }

    pub fn remove_context(&mut self, name: &str) -> Result<ContextRemoved, Fault> {
        self.ask(&KeeperRequest::RemoveContext { name: name.to_owned() })
    }

    /// Disables the keeper's idle timeout.
    pub fn stay(&mut self) -> Result<(), Fault> {
        self.ask(&KeeperRequest::Stay)
    }

    /// Ends everything: SIGTERM first, SIGKILL after `grace`; waits until the keeper has exited.
    pub fn end(mut self, keepers: &Keepers, grace: Duration) -> Result<EndedRuns, Fault> {
        self.request_end(keepers, grace, false).map_err(|e| self.fault(e))
    }

    /// Ends the keeper if nothing runs; a conflict where a command does.
    pub fn end_if_idle(mut self, keepers: &Keepers) -> Result<(), Fault> {
        self.request_end(keepers, Duration::ZERO, true).map(drop).map_err(|e| self.fault(e))
    }

    fn request_end(&mut self, keepers: &Keepers, grace: Duration, if_idle: bool) -> Result<EndedRuns, NoAnswer> {
        keepers.forget(&self.place);
        let handle = self.card.handle();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let ask = Frame::of(&KeeperRequest::End { grace_ms, if_idle });
        let answer = self.round_trip(ask, grace.saturating_add(self.answer_within))?;
        let left = wire::read_answer(&answer).map_err(NoAnswer::Refused)?;
        if let Some(handle) = handle {
            wait_for(handle.as_fd(), Instant::now() + self.answer_within);
        }
        keepers.reap();
        Ok(left)
    }

    /// Returns the bare connection.
    pub fn into_line(self) -> WireConnection {
        self.line
    }

    /// Opens the spooled output of a run.
    pub fn output(&self, run: &str) -> io::Result<SpoolReader> {
        SpoolReader::open(&self.place.run(run))
    }

    fn ask<T: DeserializeOwned>(&mut self, ask: &KeeperRequest) -> Result<T, Fault> {
        self.exchange(Frame::of(ask), self.answer_within).and_then(|answer| wire::read_answer(&answer))
    }

    fn ask_for_handle<T: DeserializeOwned>(&mut self, ask: &KeeperRequest) -> Result<(T, OwnedFd), Fault> {
        let mut answer = self.exchange(Frame::of(ask), self.answer_within)?;
        let value = wire::read_answer(&answer)?;
        let none = || Fault::internal("the keeper sent no handle").subject(&self.sandbox);
        Ok((value, answer.handles.pop().ok_or_else(none)?))
    }

    fn exchange(&mut self, frame: Frame, deadline: Duration) -> Result<Frame, Fault> {
        self.round_trip(frame, deadline).map_err(|e| self.fault(e))
    }

    fn round_trip(&mut self, frame: Frame, deadline: Duration) -> Result<Frame, NoAnswer> {
        let end = Instant::now().checked_add(deadline);
        if !frame.fits() {
            let message =
                format!("a request of {} bytes; at most {} fit", frame.json.len() + frame.payload.len(), wire::MOST);
            let fault = Fault::invalid(message).hint("send less at a time").phase(Phase::Admission);
            return Err(NoAnswer::Refused(fault));
        }
        self.put_frame(frame)?;
        loop {
            if let Some(answer) = self.take_frame()? {
                return Ok(answer);
            }
            let flags = if self.line.waiting() > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            if !ready(self.line.as_fd(), flags, end) {
                return Err(NoAnswer::Silent(deadline));
            }
        }
    }

    /// Queues a request; `take_frame` sends it.
    pub(super) fn put_frame(&mut self, frame: Frame) -> Result<(), NoAnswer> {
        self.line.put(frame).map_err(|e| NoAnswer::Gone(e.to_string()))
    }

    /// Returns whether part of a request is still unsent.
    pub(super) fn sends(&self) -> bool {
        self.line.waiting() > 0
    }

    /// Sends queued bytes and reads an answer, without blocking.
    pub(super) fn take_frame(&mut self) -> Result<Option<Frame>, NoAnswer> {
        match self.line.push().and_then(|()| self.line.pull()) {
            Ok(ReadResult::Frame(frame)) => Ok(Some(frame)),
            Ok(ReadResult::Later) => Ok(None),
            Ok(ReadResult::Closed) => Err(NoAnswer::Gone("it closed the connection".to_owned())),
            Err(e) => Err(NoAnswer::Gone(e.to_string())),
        }
    }

    fn fault(&self, no_answer: NoAnswer) -> Fault {
        match no_answer {
            NoAnswer::Silent(deadline) => silent(&self.sandbox, &self.card, deadline),
            NoAnswer::Gone(why) => gone(&self.sandbox, &why),
            NoAnswer::Refused(fault) => fault,
        }
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// Builds the fault of a verb whose keeper lives and does not answer.
pub fn silent(sandbox: &str, card: &Card, deadline: Duration) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, silence(sandbox, card, deadline));
    let hint = format!(
        "try again; if it still fails, `cofferdam stop {sandbox}` or `cofferdam rm --force {sandbox}` ends it with all its processes"
    );
    fault.subject(sandbox).retry(Retry::Later).hint(hint).phase(Phase::Execution)
}

/// Describes a silent keeper in one sentence.
pub fn silence(sandbox: &str, card: &Card, deadline: Duration) -> String {
    format!("the keeper of {sandbox} (pid {}) did not answer within {} ms", card.pid, deadline.as_millis())
}

/// Attempts to reach a keeper that exits before it reads the request: a restore, for example, ends an idle keeper.
pub const ATTEMPTS: u32 = 8;

/// Builds the fault of a command whose keeper was ended again and again before it could be asked.
pub fn sent_away(sandbox: &str) -> Fault {
    let message = format!("other verbs locked {sandbox} {ATTEMPTS} times before the command could start");
    let fault = Fault::new(ErrorKind::Conflict, message).subject(sandbox).retry(Retry::Later);
    fault.hint("try again").phase(Phase::Admission)
}

fn gone(sandbox: &str, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("the keeper of {sandbox} is gone: {why}"));
    fault.subject(sandbox).retry(Retry::Later).hint("`cofferdam inspect` shows its state").phase(Phase::Execution)
}

/// Waits until the descriptor is readable; false at the deadline.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, end: Instant) -> bool {
    ready(fd, PollFlags::IN, Some(end))
}

fn ready(fd: BorrowedFd<'_>, flags: PollFlags, end: Option<Instant>) -> bool {
    loop {
        let left = end.map(sys::deadline::time_left);
        match poll(&mut [PollFd::new(&fd, flags)], left.as_ref()) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::WatchOptions;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use serde_json::json;

    /// Greets a keeper that announces these features, and checks it like any other.
    fn heard(hello: serde_json::Value) -> Result<(), Fault> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let mut answers = WireConnection::new(theirs);
        answers.put(wire::value(&hello)).unwrap();
        answers.push().unwrap();
        let place = KeeperDir::of(Path::new("/nonexistent"), "sbx_1");
        let mut keeper = Keeper::on(WireConnection::new(ours), place, "sbx_1", Card::own());
        let hello = keeper.hello()?;
        let watch = WatchOptions { report_reads: true, ask_timeout_ms: None };
        keeper.check_watch(&Start::default()).and(keeper.check_counts(&hello))?;
        keeper.check_watch(&Start { watch, ..Start::default() })?;
        keeper.check_stdin(&Start { has_stdin: true, ..Start::default() })
    }

    // promise 25
    #[test]
    fn what_an_older_keeper_cannot_do_is_told_before_it_is_asked() {
        let hello = json!({"protocol": wire::PROTOCOL, "version": "0.0.9", "sandbox": "sbx_1", "pid": 1, "since_ms": 1,
                           "running": 0, "frozen": false, "stays": false});
        let with = |name: &str, value: serde_json::Value| {
            let mut hello = hello.clone();
            hello[name] = value;
            heard(hello)
        };
        let fault = heard(hello.clone()).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::UnsupportedHost);
        assert!(fault.message.contains("0.0.9") && fault.hint.is_some(), "{fault:?}");
        let counts = with("counts_input", true.into()).unwrap_err();
        assert_eq!(counts.error_kind, ErrorKind::UnsupportedHost);
        assert!(counts.message.contains("watch options") && counts.hint.is_some(), "{counts:?}");
        let mut today = hello.clone();
        (today["counts_input"], today["heeds_watch"]) = (true.into(), true.into());
        let takes = heard(today.clone()).unwrap_err();
        assert!(takes.message.contains("no input") && takes.hint.is_some(), "{takes:?}");
        today["takes_stdin"] = true.into();
        assert!(heard(today).is_ok(), "the control: one that counts and heeds");
        assert_eq!(with("protocol", 7.into()).unwrap_err().error_kind, ErrorKind::Conflict);
        assert_eq!(with("sandbox", "sbx_2".into()).unwrap_err().error_kind, ErrorKind::Conflict);
    }
}
