//! Asking a keeper; one is started where there is none. Every call waits no longer than it says.

use super::place::{Card, Place};
use super::resting;
use super::spool::Reader;
use super::starting::{BIRTH, Wanted, bury_children, start};
use super::wire::{
    self, Ask, By, Fed, Frame, Froze, Hello, Left, Line, Listed, Notice, Pulled, Revision, Rooted, Start, Started,
    Used, Waited, Word,
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

/// How long a keeper may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(3);
/// How long somebody is waited for who holds a sandbox and has not said yet whether he keeps it.
const GRACE: Duration = Duration::from_millis(300);

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
}

impl Keeper {
    /// The keeper of a sandbox, if one lives.
    pub fn find(state: &Path, sandbox: &str) -> Option<Keeper> {
        bury_children();
        let place = Place::of(state, sandbox);
        let card = place.card()?;
        let held = card.handle()?;
        let end = Instant::now() + PATIENCE;
        loop {
            match place.connect(&card) {
                // Its number is nobody else's as long as it lives.
                Ok(_) if sys::process::has_ended(held.as_fd()) => return None,
                Ok(socket) => {
                    let (line, sandbox) = (Line::new(socket), sandbox.to_owned());
                    return Some(Keeper { line, place, sandbox, card, counts: false, heeds: false });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => std::thread::sleep(PAUSE),
                Err(_) => return None,
            }
        }
    }

    /// The same, and it has answered: one that was about to leave for want of work stays for the next question.
    pub fn heard(state: &Path, sandbox: &str) -> Option<Keeper> {
        Keeper::find(state, sandbox).and_then(|mut keeper| keeper.hello().is_ok().then_some(keeper))
    }

    /// The same, and one is started where none lives. Of several who ask at once one starts it, and all have it.
    pub fn ensure(state: &Path, sandbox: &str, caller: &Caller) -> Result<Keeper, Fault> {
        Keeper::ensure_told(state, sandbox, caller).map(|(keeper, _)| keeper)
    }

    /// The same, with what it says of itself.
    pub fn ensure_told(state: &Path, sandbox: &str, caller: &Caller) -> Result<(Keeper, Hello), Fault> {
        let (mut keeper, hello) = Keeper::ensure_for(state, sandbox, Wanted::Commands, caller)?;
        if hello.rests {
            keeper.ask::<()>(&Ask::Rise)?;
        }
        Ok((keeper, hello))
    }

    /// The same for who wants its files and nothing else: neither a service is started for that nor is it woken.
    pub fn ensure_for_files(state: &Path, sandbox: &str, caller: &Caller) -> Result<Keeper, Fault> {
        Keeper::ensure_for(state, sandbox, Wanted::Files, caller).map(|(keeper, _)| keeper)
    }

    fn ensure_for(state: &Path, sandbox: &str, wanted: Wanted, caller: &Caller) -> Result<(Keeper, Hello), Fault> {
        let begun = Instant::now();
        loop {
            if let Some(mut found) = Keeper::find(state, sandbox) {
                match found.hello() {
                    Ok(hello) => return Ok((found, hello)),
                    // It is there, and has no room: another would not get it either.
                    Err(fault) if fault.error_kind == ErrorKind::LimitExceeded => return Err(fault),
                    Err(_) => {}
                }
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
        let hello: Hello = self.ask(&Ask::Hello)?;
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
        let answer = self.put_and_hear(Frame::of(&Ask::Start(Box::new(start.clone()))), PATIENCE)?;
        answer.ok().map(|answer| wire::read_answer(&answer)).transpose()
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
        self.exchange(frame, time.saturating_add(PATIENCE)).and_then(|answer| wire::read_answer(&answer))
    }

    /// Hears from now on how far these runs have come, or all. Where each stands is told first.
    pub fn follow(mut self, runs: Option<Vec<String>>) -> Result<Follow, Fault> {
        self.ask::<()>(&Ask::Follow { runs })?;
        Ok(Follow { line: self.line, sandbox: self.sandbox })
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
        self.leave(grace, false)
    }

    /// Ends it if nothing runs; a conflict where something does.
    pub fn end_if_idle(mut self) -> Result<(), Fault> {
        self.leave(Duration::ZERO, true).map(drop)
    }

    fn leave(&mut self, grace: Duration, if_idle: bool) -> Result<Left, Fault> {
        resting::forget(&self.place);
        let handle = self.card.handle();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let answer = self.exchange(Frame::of(&Ask::End { grace_ms, if_idle }), grace.saturating_add(PATIENCE))?;
        let left = wire::read_answer(&answer)?;
        if let Some(handle) = handle {
            wait_for(handle.as_fd(), Instant::now() + PATIENCE);
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
        self.exchange(Frame::of(ask), PATIENCE).and_then(|answer| wire::read_answer(&answer))
    }

    fn ask_for_handle<T: DeserializeOwned>(&mut self, ask: &Ask) -> Result<(T, OwnedFd), Fault> {
        let mut answer = self.exchange(Frame::of(ask), PATIENCE)?;
        let value = wire::read_answer(&answer)?;
        let none = || Fault::internal("the keeper gave no handle").subject(&self.sandbox);
        Ok((value, answer.handles.pop().ok_or_else(none)?))
    }

    fn exchange(&mut self, frame: Frame, patience: Duration) -> Result<Frame, Fault> {
        self.put_and_hear(frame, patience)?.map_err(|why| gone(&self.sandbox, &why))
    }

    /// The answer, or why there is nobody any more who could give one.
    fn put_and_hear(&mut self, frame: Frame, patience: Duration) -> Result<Result<Frame, String>, Fault> {
        let end = Instant::now().checked_add(patience);
        if !frame.fits() {
            let message =
                format!("a request of {} bytes; at most {} fit", frame.json.len() + frame.payload.len(), wire::MOST);
            return Err(Fault::invalid(message).hint("give less at once").phase(Phase::Admission));
        }
        match self.line.put(frame) {
            Ok(()) => answer(&mut self.line, end, &self.sandbox),
            Err(e) => Ok(Err(e.to_string())),
        }
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// What can come as an answer.
pub trait Come: Sized {
    fn read(frame: Frame) -> Result<Self, Fault>;
}

impl Come for Option<Fed> {
    fn read(frame: Frame) -> Result<Self, Fault> {
        wire::read_answer(&frame)
    }
}

/// The end of a run, and its log where that came along.
#[derive(Debug)]
pub struct Said {
    pub waited: Waited,
    pub log: Option<Vec<u8>>,
}

impl Come for Said {
    fn read(frame: Frame) -> Result<Said, Fault> {
        let waited: Waited = wire::read_answer(&frame)?;
        let log = waited.whole.then_some(frame.payload);
        Ok(Said { waited, log })
    }
}

/// A question that was put and is not answered yet.
#[derive(Debug)]
pub struct Pending<T> {
    keeper: Keeper,
    answer: PhantomData<fn() -> T>,
}

impl<T: Come> Pending<T> {
    /// Goes on as far as the connection lets it; the answer, once it is there.
    pub fn step(&mut self) -> Result<Option<T>, Fault> {
        let lost = |e: io::Error| gone(&self.keeper.sandbox, &e.to_string());
        self.keeper.line.push().map_err(lost)?;
        match self.keeper.line.pull().map_err(lost)? {
            Pulled::Frame(frame) => T::read(frame).map(Some),
            Pulled::Closed => Err(gone(&self.keeper.sandbox, "it closed the connection")),
            Pulled::Later => Ok(None),
        }
    }

    /// Whether something waits to be sent; else an answer is waited for.
    pub fn sends(&self) -> bool {
        self.keeper.line.waiting() > 0
    }

    /// For the next question, once this one is answered.
    pub fn done(self) -> Keeper {
        self.keeper
    }
}

impl<T> AsFd for Pending<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.keeper.line.as_fd()
    }
}

/// A connection that hears how far runs have come. One who reads slowly hears of fewer steps, and misses no end.
#[derive(Debug)]
pub struct Follow {
    line: Line,
    sandbox: String,
}

impl Follow {
    /// The next notice; none when the time was over first.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Notice>, Fault> {
        let end = Instant::now() + patience;
        loop {
            if let Some(notice) = self.heard()? {
                return Ok(Some(notice));
            }
            if !wait_for(self.line.as_fd(), end) {
                return Ok(None);
            }
        }
    }

    /// One that is there already.
    pub fn heard(&mut self) -> Result<Option<Notice>, Fault> {
        match self.line.pull() {
            Ok(Pulled::Frame(frame)) => wire::read_answer(&frame).map(Some),
            Ok(Pulled::Later) => Ok(None),
            Ok(Pulled::Closed) => Err(gone(&self.sandbox, "it closed the connection")),
            Err(e) => Err(gone(&self.sandbox, &e.to_string())),
        }
    }
}

impl AsFd for Follow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// Sends what waits and takes one answer; or why there will be none.
fn answer(line: &mut Line, end: Option<Instant>, sandbox: &str) -> Result<Result<Frame, String>, Fault> {
    loop {
        match line.push().and_then(|()| line.pull()) {
            Ok(Pulled::Frame(frame)) => return Ok(Ok(frame)),
            Ok(Pulled::Closed) => return Ok(Err("it closed the connection".to_owned())),
            Err(e) => return Ok(Err(e.to_string())),
            Ok(Pulled::Later) => {}
        }
        let flags = if line.waiting() > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        if !ready(line.as_fd(), flags, end) {
            let fault = Fault::new(ErrorKind::Unavailable, format!("the keeper of {sandbox} did not answer in time"));
            return Err(fault.subject(sandbox).retry(Retry::Later).hint("try again").phase(Phase::Execution));
        }
    }
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
        let (line, sandbox, card) = (Line::new(ours), "sbx_1".into(), Card::own());
        let mut keeper = Keeper { line, place, sandbox, card, counts: false, heeds: false };
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
