//! The client side of a keeper's socket; starts a keeper where there is none. Every call has a deadline: a keeper that lives and does
//! not answer (stopped, swapped out, stuck in the kernel) is *silent*, which is neither absent nor gone.

mod pending;

use super::place::{Card, Place};
use super::resting;
use super::spool::Reader;
use super::starting::{BIRTH, Wanted, bury_children, start};
use super::wire::{
    self, Ask, By, Fed, Frame, Froze, Hello, Left, Line, Listed, Pulled, Revision, Rooted, Start, Started, Used,
    Waited, Word,
};
use crate::Caller;
use crate::questions::{Answer, Question, Remember};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry};

pub use pending::{Come, Follow, Pending, Said};

/// Deadline for a keeper that is asked with many others, for a listing.
pub const LISTING: Duration = Duration::from_millis(500);
/// Deadline for a keeper that is looked at alone.
pub const INSPECTION: Duration = Duration::from_secs(2);
/// Deadline for its greeting, before a verb is asked of it: what was refused so was never sent.
pub const GREETING: Duration = Duration::from_secs(5);
/// Deadline for a verb that it does at once, of a keeper that has greeted.
const ANSWER: Duration = Duration::from_secs(20);
/// How often a connection is tried again while too many wait to be accepted.
const PAUSE: Duration = Duration::from_millis(3);
/// How long somebody is waited for who holds a sandbox and has not said yet whether he keeps it.
const GRACE: Duration = Duration::from_millis(300);

/// What became of an attempt to greet a sandbox's keeper.
#[derive(Debug)]
pub enum Contact {
    /// No keeper lives, or it left while it was asked.
    Absent,
    /// The process on this card lives, and did not answer in time.
    Silent(Card),
    /// It answered, and cannot be asked.
    Refused(Fault),
    Answered(Box<Keeper>, Hello),
}

/// What became of an attempt to connect.
#[derive(Debug)]
pub(super) enum Connection {
    Absent,
    /// Too many connections wait to be accepted.
    Full(Card),
    Made(Keeper),
}

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The deadline passed; the keeper's process lives.
    Silent(Duration),
    /// The keeper is gone, for this reason.
    Gone(String),
    /// It was answered with a fault, or cannot be asked.
    Refused(Fault),
}

/// A connection to the keeper of a sandbox.
#[derive(Debug)]
pub struct Keeper {
    line: Line,
    pub(super) place: Place,
    pub sandbox: String,
    pub card: Card,
    /// It has said that it counts what it is given, and that it refuses to start what is to be watched otherwise.
    counts: bool,
    heeds: bool,
    /// Deadline for each question that is asked without one of its own.
    answer_within: Duration,
}

impl Keeper {
    /// Connects to a sandbox's keeper. It may be silent: this asks nothing.
    pub fn find(state: &Path, sandbox: &str) -> Option<Keeper> {
        match Keeper::connected(state, sandbox, Instant::now() + LISTING) {
            Connection::Made(keeper) => Some(keeper),
            Connection::Absent | Connection::Full(_) => None,
        }
    }

    fn connected(state: &Path, sandbox: &str, end: Instant) -> Connection {
        loop {
            match Keeper::try_connect(state, sandbox) {
                Connection::Full(_) if Instant::now() < end => std::thread::sleep(PAUSE),
                other => return other,
            }
        }
    }

    /// Connects without waiting.
    pub(super) fn try_connect(state: &Path, sandbox: &str) -> Connection {
        bury_children();
        let place = Place::of(state, sandbox);
        let Some(card) = place.card() else { return Connection::Absent };
        let Some(held) = card.handle() else { return Connection::Absent };
        match place.connect(&card) {
            // Its number is nobody else's as long as it lives.
            Ok(_) if sys::process::has_ended(held.as_fd()) => Connection::Absent,
            Ok(socket) => Connection::Made(Keeper::on(Line::new(socket), place, sandbox, card)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Connection::Full(card),
            Err(_) => Connection::Absent,
        }
    }

    fn on(line: Line, place: Place, sandbox: &str, card: Card) -> Keeper {
        let (sandbox, answer_within) = (sandbox.to_owned(), ANSWER);
        Keeper { line, place, sandbox, card, counts: false, heeds: false, answer_within }
    }

    /// Connects and greets, within a deadline for both.
    pub fn contact(state: &Path, sandbox: &str, deadline: Duration) -> Contact {
        let end = Instant::now() + deadline;
        let mut keeper = match Keeper::connected(state, sandbox, end) {
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

    /// A keeper that has just answered, so that one which was about to leave for want of work stays for the next question; none where
    /// no keeper lives. A silent one is a fault: what shall hold in a live sandbox must not be taken for done.
    pub fn heard(state: &Path, sandbox: &str) -> Result<Option<Keeper>, Fault> {
        match Keeper::contact(state, sandbox, GREETING) {
            Contact::Absent => Ok(None),
            Contact::Silent(card) => Err(silent(sandbox, &card, GREETING)),
            Contact::Refused(fault) => Err(fault),
            Contact::Answered(keeper, _) => Ok(Some(*keeper)),
        }
    }

    /// Another deadline for the questions that follow.
    pub fn answering_within(self, deadline: Duration) -> Keeper {
        Keeper { answer_within: deadline, ..self }
    }

    /// The same, and one is started where none lives. Of several who ask at once one starts it, and all have it.
    pub fn ensure(state: &Path, sandbox: &str, caller: &Caller) -> Result<Keeper, Fault> {
        Keeper::ensure_told(state, sandbox, caller).map(|(keeper, _)| keeper)
    }

    /// The same, with what it says of itself.
    pub fn ensure_told(state: &Path, sandbox: &str, caller: &Caller) -> Result<(Keeper, Hello), Fault> {
        for _ in 0..ATTEMPTS {
            let (mut keeper, hello) = Keeper::ensure_for(state, sandbox, Wanted::Commands, caller)?;
            if !hello.rests {
                return Ok((keeper, hello));
            }
            match keeper.put_and_hear(Frame::of(&Ask::Rise), keeper.answer_within) {
                Ok(answer) => return wire::read_answer::<()>(&answer).map(|()| (keeper, hello)),
                // A keeper for files alone left before it was asked; the next attempt starts another.
                Err(NoAnswer::Gone(_)) => {}
                Err(e) => return Err(keeper.fault(e)),
            }
        }
        Err(sent_away(sandbox))
    }

    /// The same for who wants its files and nothing else: neither a service is started for that nor is it woken.
    pub fn ensure_for_files(state: &Path, sandbox: &str, caller: &Caller) -> Result<Keeper, Fault> {
        Keeper::ensure_for(state, sandbox, Wanted::Files, caller).map(|(keeper, _)| keeper)
    }

    fn ensure_for(state: &Path, sandbox: &str, wanted: Wanted, caller: &Caller) -> Result<(Keeper, Hello), Fault> {
        let begun = Instant::now();
        loop {
            match Keeper::contact(state, sandbox, GREETING) {
                Contact::Answered(found, hello) => return Ok((*found, hello)),
                // It has the sandbox: another would not get it either.
                Contact::Silent(card) => return Err(silent(sandbox, &card, GREETING)),
                Contact::Refused(fault) => return Err(fault),
                Contact::Absent => {}
            }
            if begun.elapsed() > BIRTH {
                let fault = Fault::new(ErrorKind::Unavailable, format!("{sandbox} did not become live in time"));
                return Err(fault.subject(sandbox).retry(Retry::Later).hint("try again").phase(Phase::Start));
            }
            match start(state, sandbox, wanted, caller) {
                Ok(()) => {}
                // Somebody else was quicker; whether he keeps it, he says soon.
                Err(fault) if fault.error_kind == ErrorKind::Conflict => {
                    let coming = Place::of(state, sandbox).card().and_then(|card| card.handle()).is_some();
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
        let frame = self.put_and_hear(Frame::of(&Ask::Hello), deadline)?;
        self.greeted(&frame).map_err(NoAnswer::Refused)
    }

    /// Reads its greeting; refuses one that keeps something else or speaks otherwise.
    pub(super) fn greeted(&mut self, frame: &Frame) -> Result<Hello, Fault> {
        let hello: Hello = wire::read_answer(frame)?;
        if hello.sandbox != self.sandbox {
            let message = format!("the keeper of {} says that it keeps {}", self.sandbox, hello.sandbox);
            return Err(Fault::new(ErrorKind::Conflict, message)
                .subject(&self.sandbox)
                .hint("`cofferdam fsck` looks for what is wrong"));
        }
        if hello.protocol != wire::PROTOCOL {
            let message = format!("the keeper of {} speaks protocol {}", self.sandbox, hello.protocol);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&self.sandbox);
            return Err(fault.hint(format!("stop it with `cofferdam stop {}`, then repeat", self.sandbox)));
        }
        (self.counts, self.heeds) = (hello.counts_input, hello.heeds_watch);
        Ok(hello)
    }

    /// Whether it is known to do all that a command needs of it.
    pub(super) fn is_known_to_do(&self, start: &Start) -> bool {
        self.counts || !(start.input || start.terminal.is_some())
    }

    /// Refuses what a keeper of an older version would not do: it takes no note of a piece's offset, so that one which is sent again
    /// would arrive twice.
    pub fn check_counts(&self, hello: &Hello) -> Result<(), Fault> {
        if hello.counts_input {
            return Ok(());
        }
        let message = format!(
            "the keeper of {} is of version {} and does not count what it is given: input that is sent again could arrive twice",
            self.sandbox, hello.version
        );
        let fault = Fault::new(ErrorKind::UnsupportedHost, message).subject(&self.sandbox).phase(Phase::Admission);
        let hint =
            format!("`cofferdam stop {0}` and `cofferdam start {0}` give it a new one; or send no input", self.sandbox);
        Err(fault.hint(hint))
    }

    /// Refuses what a keeper of an older version would start as if it had not been asked for: it would not be watched as it counts on.
    fn check_heeds(&self, start: &Start) -> Result<(), Fault> {
        if self.heeds || start.watch.is_usual() {
            return Ok(());
        }
        let message = format!(
            "the keeper of {} is of version {} and takes no note of how a command is to be watched",
            self.sandbox, self.card.version
        );
        let fault = Fault::new(ErrorKind::UnsupportedHost, message).subject(&self.sandbox).phase(Phase::Admission);
        Err(fault.hint(format!("`cofferdam stop {0}` and `cofferdam start {0}` give it a new one", self.sandbox)))
    }

    pub fn start(&mut self, start: Start) -> Result<Started, Fault> {
        self.check_heeds(&start)?;
        self.ask(&Ask::Start(Box::new(start)))
    }

    /// The same for a connection that has rested; none when it was closed meanwhile. What is asked again elsewhere then has the same
    /// id, so that it is not begun twice.
    pub(super) fn start_if_there(&mut self, start: &Start) -> Result<Option<Started>, Fault> {
        self.check_heeds(start)?;
        match self.put_and_hear(Frame::of(&Ask::Start(Box::new(start.clone()))), self.answer_within) {
            Ok(answer) => wire::read_answer(&answer).map(Some),
            Err(NoAnswer::Gone(_)) => Ok(None),
            Err(e) => Err(self.fault(e)),
        }
    }

    /// Gives bytes to a command's input, at most `wire::MOST`; waits while it takes none.
    pub fn input(&mut self, run: &str, bytes: Vec<u8>, eof: bool, patience: Duration) -> Result<(), Fault> {
        let frame = Frame::of(&Ask::Input { run: run.to_owned(), eof, by: None }).with(bytes);
        self.exchange(frame, patience).and_then(|answer| wire::read_answer(&answer))
    }

    /// The same for those who cannot wait on a thread: the question is put, and goes out and is answered by steps.
    /// Who says by whom it is, and where it stands in all of theirs, is answered how much of that was taken.
    pub fn put_input(
        self,
        run: &str,
        bytes: Vec<u8>,
        eof: bool,
        by: Option<By>,
    ) -> Result<Pending<Option<Fed>>, Fault> {
        let frame = Frame::of(&Ask::Input { run: run.to_owned(), eof, by }).with(bytes);
        if !frame.fits() {
            return Err(Fault::invalid("more than fits one frame").hint("give less at once").phase(Phase::Admission));
        }
        self.put(frame)
    }

    /// The same for the end of a run, whenever that comes.
    pub fn put_wait(self, run: &str) -> Result<Pending<Said>, Fault> {
        self.put(Frame::of(&Ask::Wait { run: run.to_owned(), timeout_ms: u64::MAX }))
    }

    /// The same where it was asked for with the start.
    pub fn waits(self) -> Pending<Said> {
        Pending { keeper: self, answer: PhantomData }
    }

    fn put<T>(mut self, frame: Frame) -> Result<Pending<T>, Fault> {
        self.line.put(frame).map_err(|e| gone(&self.sandbox, &e.to_string()))?;
        Ok(Pending { keeper: self, answer: PhantomData })
    }

    pub fn resize(&mut self, run: &str, rows: u16, columns: u16) -> Result<(), Fault> {
        self.ask(&Ask::Resize { run: run.to_owned(), rows, columns })
    }

    /// False when it is gone already.
    pub fn signal(&mut self, run: &str, signal: i32) -> Result<bool, Fault> {
        self.ask(&Ask::Signal { run: run.to_owned(), signal })
    }

    /// False when it is gone already.
    pub fn kill(&mut self, run: &str) -> Result<bool, Fault> {
        self.ask(&Ask::Kill { run: run.to_owned() })
    }

    /// Runs that it started: those that go on, and the last of those that have ended.
    pub fn list(&mut self) -> Result<Vec<Listed>, Fault> {
        self.ask(&Ask::List)
    }

    pub fn wait(&mut self, run: &str, time: Duration) -> Result<Waited, Fault> {
        let timeout_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let frame = Frame::of(&Ask::Wait { run: run.to_owned(), timeout_ms });
        self.exchange(frame, time.saturating_add(self.answer_within)).and_then(|answer| wire::read_answer(&answer))
    }

    /// Hears from now on how far these runs have come, or all. Where each stands is told first. Waits for nothing: a silent keeper
    /// tells when it answers again.
    pub fn follow(mut self, runs: Option<Vec<String>>) -> Result<Follow, Fault> {
        let asked = self.line.put(Frame::of(&Ask::Follow { runs })).and_then(|()| self.line.push());
        asked.map_err(|e| gone(&self.sandbox, &e.to_string()))?;
        Ok(Follow { line: self.line, sandbox: self.sandbox, accepted: false })
    }

    /// Says what it was done with.
    pub fn freeze(&mut self) -> Result<Froze, Fault> {
        self.ask(&Ask::Freeze)
    }

    pub fn thaw(&mut self) -> Result<(), Fault> {
        self.ask(&Ask::Thaw)
    }

    /// The workspace as the guest has it. To be gone through with `openat2`; what is made there must belong to the ids told.
    pub fn root(&mut self) -> Result<(Rooted, OwnedFd), Fault> {
        self.ask_for_handle(&Ask::Root { tmp: false })
    }

    /// The same with the guest's private `/tmp`; what is mounted below it is the host's, so that no way may lead across mounts.
    pub fn tmp(&mut self) -> Result<(Rooted, OwnedFd), Fault> {
        self.ask_for_handle(&Ask::Root { tmp: true })
    }

    /// A stream to a port that something inside listens on.
    pub fn connect(&mut self, port: u16) -> Result<OwnedFd, Fault> {
        self.ask_for_handle::<()>(&Ask::Connect { port }).map(|(_, stream)| stream)
    }

    pub fn usage(&mut self) -> Result<Used, Fault> {
        self.ask(&Ask::Usage)
    }

    /// What waits for a person's answer.
    pub fn questions(&mut self) -> Result<Vec<Question>, Fault> {
        self.ask(&Ask::Questions)
    }

    /// Answers one of them; what was asked.
    pub fn answer(&mut self, number: u64, answer: Answer, remember: Remember) -> Result<Question, Fault> {
        self.ask(&Ask::Answer { number, answer, remember })
    }

    /// Other network rules and limits, for all that runs and will run.
    pub fn revise(&mut self, revision: Revision) -> Result<(), Fault> {
        self.ask(&Ask::Revise(Box::new(revision)))
    }

    /// Ports of the host that lead inside from now on, in place of all that did. False where it stands for its files alone.
    pub fn publish(&mut self, ports: Vec<String>) -> Result<bool, Fault> {
        self.ask(&Ask::Publish { ports })
    }

    /// It stood ready, and is the caller's now; its record says so already.
    pub fn claim(&mut self, around: Vec<(Word, Word)>, actor: String) -> Result<(), Fault> {
        self.ask(&Ask::Claim { around, actor })
    }

    /// It no longer ends by itself.
    pub fn stay(&mut self) -> Result<(), Fault> {
        self.ask(&Ask::Stay)
    }

    /// Ends everything, first by asking and after `grace` by force, and waits until the keeper is gone.
    pub fn end(mut self, grace: Duration) -> Result<Left, Fault> {
        self.leave(grace, false).map_err(|e| self.fault(e))
    }

    /// Ends it if nothing runs; a conflict where something does.
    pub fn end_if_idle(mut self) -> Result<(), Fault> {
        self.leave(Duration::ZERO, true).map(drop).map_err(|e| self.fault(e))
    }

    fn leave(&mut self, grace: Duration, if_idle: bool) -> Result<Left, NoAnswer> {
        resting::forget(&self.place);
        let handle = self.card.handle();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let ask = Frame::of(&Ask::End { grace_ms, if_idle });
        let answer = self.put_and_hear(ask, grace.saturating_add(self.answer_within))?;
        let left = wire::read_answer(&answer).map_err(NoAnswer::Refused)?;
        if let Some(handle) = handle {
            wait_for(handle.as_fd(), Instant::now() + self.answer_within);
        }
        bury_children();
        Ok(left)
    }

    /// The bare connection.
    pub(super) fn into_line(self) -> Line {
        self.line
    }

    /// What a run has said.
    pub fn output(&self, run: &str) -> io::Result<Reader> {
        Reader::open(&self.place.run(run))
    }

    fn ask<T: DeserializeOwned>(&mut self, ask: &Ask) -> Result<T, Fault> {
        self.exchange(Frame::of(ask), self.answer_within).and_then(|answer| wire::read_answer(&answer))
    }

    fn ask_for_handle<T: DeserializeOwned>(&mut self, ask: &Ask) -> Result<(T, OwnedFd), Fault> {
        let mut answer = self.exchange(Frame::of(ask), self.answer_within)?;
        let value = wire::read_answer(&answer)?;
        let none = || Fault::internal("the keeper gave no handle").subject(&self.sandbox);
        Ok((value, answer.handles.pop().ok_or_else(none)?))
    }

    fn exchange(&mut self, frame: Frame, deadline: Duration) -> Result<Frame, Fault> {
        self.put_and_hear(frame, deadline).map_err(|e| self.fault(e))
    }

    fn put_and_hear(&mut self, frame: Frame, deadline: Duration) -> Result<Frame, NoAnswer> {
        let end = Instant::now().checked_add(deadline);
        if !frame.fits() {
            let message =
                format!("a request of {} bytes; at most {} fit", frame.json.len() + frame.payload.len(), wire::MOST);
            let fault = Fault::invalid(message).hint("give less at once").phase(Phase::Admission);
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

    /// Puts a question on the line; `take_frame` sends it.
    pub(super) fn put_frame(&mut self, frame: Frame) -> Result<(), NoAnswer> {
        self.line.put(frame).map_err(|e| NoAnswer::Gone(e.to_string()))
    }

    /// Whether something of a question waits to be sent.
    pub(super) fn sends(&self) -> bool {
        self.line.waiting() > 0
    }

    /// Sends what waits and takes an answer, as far as that goes without waiting.
    pub(super) fn take_frame(&mut self) -> Result<Option<Frame>, NoAnswer> {
        match self.line.push().and_then(|()| self.line.pull()) {
            Ok(Pulled::Frame(frame)) => Ok(Some(frame)),
            Ok(Pulled::Later) => Ok(None),
            Ok(Pulled::Closed) => Err(NoAnswer::Gone("it closed the connection".to_owned())),
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

/// The fault of a verb whose keeper lives and does not answer.
pub fn silent(sandbox: &str, card: &Card, deadline: Duration) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, silence(sandbox, card, deadline));
    let hint = format!(
        "try again; if it stays so, `cofferdam stop {sandbox}` or `cofferdam rm --force {sandbox}` ends it and all that runs in it"
    );
    fault.subject(sandbox).retry(Retry::Later).hint(hint).phase(Phase::Execution)
}

/// What is said of a silent keeper.
pub fn silence(sandbox: &str, card: &Card, deadline: Duration) -> String {
    format!("the keeper of {sandbox} (pid {}) did not answer within {} ms", card.pid, deadline.as_millis())
}

/// Attempts to ask a keeper that leaves before it hears the question: a restore, for one, sends an idle keeper away.
pub(super) const ATTEMPTS: u32 = 8;

/// The fault of a command whose keeper was sent away again and again before it could be asked.
pub(super) fn sent_away(sandbox: &str) -> Fault {
    let message = format!("other verbs took {sandbox} for themselves {ATTEMPTS} times before the command could begin");
    let fault = Fault::new(ErrorKind::Conflict, message).subject(sandbox).retry(Retry::Later);
    fault.hint("try again").phase(Phase::Admission)
}

fn gone(sandbox: &str, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("the keeper of {sandbox} is gone: {why}"));
    fault
        .subject(sandbox)
        .retry(Retry::Later)
        .hint("`cofferdam inspect` says what became of it")
        .phase(Phase::Execution)
}

/// Whether something came before the end.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, end: Instant) -> bool {
    ready(fd, PollFlags::IN, Some(end))
}

fn ready(fd: BorrowedFd<'_>, flags: PollFlags, end: Option<Instant>) -> bool {
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
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
    use crate::keeper::watch::Watch;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use serde_json::json;

    /// A keeper that says this of itself, asked as any other.
    fn heard(hello: serde_json::Value) -> Result<(), Fault> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let mut answers = Line::new(theirs);
        answers.put(wire::value(&hello)).unwrap();
        answers.push().unwrap();
        let place = Place::of(Path::new("/nonexistent"), "sbx_1");
        let mut keeper = Keeper::on(Line::new(ours), place, "sbx_1", Card::own());
        let hello = keeper.hello()?;
        let watch = Watch { report_reads: true, ask_timeout_ms: None };
        keeper.check_heeds(&Start::default()).and(keeper.check_counts(&hello))?;
        keeper.check_heeds(&Start { watch, ..Start::default() })
    }

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
        assert!(counts.message.contains("watched") && counts.hint.is_some(), "{counts:?}");
        let mut today = hello.clone();
        (today["counts_input"], today["heeds_watch"]) = (true.into(), true.into());
        assert!(heard(today).is_ok(), "the control: one that counts and heeds");
        assert_eq!(with("protocol", 7.into()).unwrap_err().error_kind, ErrorKind::Conflict);
        assert_eq!(with("sandbox", "sbx_2".into()).unwrap_err().error_kind, ErrorKind::Conflict);
    }
}
