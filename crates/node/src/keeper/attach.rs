//! Being at a run: what it says goes to our standard streams, and what we are given goes to it. Who leaves does not end it.

use super::runs::unread;
pub use enclosure::terminal;
use runtime::Node;
use runtime::keeper::client::{Follow, Keeper};
use runtime::keeper::lost;
use runtime::keeper::place::Place;
use runtime::keeper::spool::{Kind, Page, Reader};
use runtime::keeper::wire::{self, Frame, Line, Pulled, Request, Waited};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terms::{Fault, Outcome, Phase, Unread};

/// How to be there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Our standard input goes to the command's.
    pub input: bool,
    /// It has a terminal: ours is made raw, and its size follows.
    pub terminal: bool,
    /// Output is kept for the outcome instead of being passed on.
    pub capture: bool,
    /// From this offset on.
    pub from: u64,
}

/// How it went.
#[derive(Debug)]
pub enum Left {
    Ended(Box<Outcome>),
    /// The keys for it were pressed: the run goes on.
    Detached,
}

/// Signals that are passed to the command: HUP, INT, QUIT, USR1, USR2, TERM, CONT; and WINCH, which is for us.
const PASSED: [i32; 8] = [1, 2, 3, 10, 12, 15, 18, WINCH];
const WINCH: i32 = 28;
/// Read at once.
const CHUNK: usize = 64 << 10;
const PAGE: usize = 256 << 10;
/// What is kept of each stream for a document.
const MOST_KEPT: usize = 16 << 20;
/// Ctrl-P Ctrl-Q, as people know it.
const LEAVE: [u8; 2] = [16, 17];

/// Stays with a run until its end, or until we are told to leave.
pub fn attach(node: &Node, state: &Path, sandbox: &str, run: &str, manner: Manner) -> Result<Left, Fault> {
    visit(node, state, sandbox, run, manner, Bond::Guest)
}

/// The same with a run that was begun for us: it is told when nobody reads what it says, as it would be in a pipe.
pub fn attend(node: &Node, state: &Path, sandbox: &str, run: &str, manner: Manner) -> Result<Left, Fault> {
    visit(node, state, sandbox, run, manner, Bond::Owner)
}

/// What a run is to whoever is at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bond {
    /// It goes on whoever leaves.
    Guest,
    /// It is there for us alone.
    Owner,
}

fn visit(node: &Node, state: &Path, sandbox: &str, run: &str, manner: Manner, bond: Bond) -> Result<Left, Fault> {
    let find = || Keeper::heard(node, state, sandbox);
    let gone = || {
        let fault = Fault::new(terms::ErrorKind::NotFound, format!("{run} does not go on")).subject(run);
        fault.phase(Phase::Admission).hint("`cofferdam logs` shows what it said")
    };
    let mut keeper = find()?.ok_or_else(gone)?;
    if bond == Bond::Guest {
        // What stands still would say nothing, and hear nothing.
        keeper.thaw()?;
    }
    let follow = keeper.follow(Some(vec![run.to_owned()]))?.accepted()?;
    let reader = Reader::open(&Place::of(state, sandbox).run(run)).map_err(|e| unread(run, e.into()))?;
    let speak = match manner.input {
        true => Some(find()?.ok_or_else(gone)?.into_line()),
        false => None,
    };
    let signals = sys::process::signal_handle(&PASSED).map_err(|e| Fault::internal(e.to_string()))?;
    let _raw = manner.terminal.then(terminal::Raw::on_stdin);
    let visit = Visit {
        state: state.to_path_buf(),
        sandbox: sandbox.to_owned(),
        run: run.to_owned(),
        manner,
        bond,
        since: None,
        unread: Unread::default(),
        follow,
        ended: false,
        reader,
        next: manner.from,
        speak,
        asked: false,
        over: false,
        pressed: 0,
        signals,
        voice: Voice::new(manner.capture),
    };
    visit.stay(node)
}

struct Visit {
    state: PathBuf,
    sandbox: String,
    run: String,
    manner: Manner,
    bond: Bond,
    /// Since when nobody reads what it says, and what it was told.
    since: Option<Instant>,
    unread: Unread,
    follow: Follow,
    /// Its keeper said that it has ended.
    ended: bool,
    reader: Reader,
    next: u64,
    /// Where our input goes; none once it has ended or is not read any more.
    speak: Option<Line>,
    /// What was given last is not taken yet.
    asked: bool,
    /// Our input has ended.
    over: bool,
    /// So many of the keys to leave were pressed.
    pressed: usize,
    signals: OwnedFd,
    voice: Voice,
}

/// Where what a run says goes: to our own streams, or into its outcome.
pub struct Voice {
    capture: bool,
    kept: [Vec<u8>; 2],
    unkept: [u64; 2],
    /// Bytes that came, of both.
    seen: u64,
    /// Why some of them were lost that somebody wanted.
    lost: Option<String>,
}

impl Voice {
    pub fn new(capture: bool) -> Voice {
        Voice { capture, kept: [Vec::new(), Vec::new()], unkept: [0, 0], seen: 0, lost: None }
    }

    /// Stream 0 is standard output, 1 standard error. False when nobody reads it any more.
    pub fn say(&mut self, stream: usize, bytes: &[u8]) -> bool {
        self.seen += bytes.len() as u64;
        if self.capture {
            let room = MOST_KEPT - self.kept[stream].len();
            let taken = bytes.len().min(room);
            self.kept[stream].extend_from_slice(&bytes[..taken]);
            self.unkept[stream] += (bytes.len() - taken) as u64;
            return true;
        }
        let (name, written) = match stream {
            0 => ("standard output", put(rustix::stdio::stdout(), bytes)),
            _ => ("standard error", put(rustix::stdio::stderr(), bytes)),
        };
        if let Err(e) = written
            && e != Errno::PIPE
        {
            self.lost.get_or_insert_with(|| format!("{name}: {}", std::io::Error::from(e)));
        }
        written.is_ok()
    }

    /// So many bytes were not kept for us.
    pub fn missed(&mut self, bytes: u64) {
        let line = format!("cofferdam: {bytes} bytes of the log are no longer kept\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    pub fn told(&mut self, mut outcome: Outcome) -> Outcome {
        if self.capture {
            let [stdout, stderr] = std::mem::take(&mut self.kept);
            count_missing(&mut outcome, self.seen, [!stdout.is_empty(), !stderr.is_empty()]);
            outcome.set_output(stdout, stderr);
            outcome.truncated.stdout += self.unkept[0];
            outcome.truncated.stderr += self.unkept[1];
        }
        outcome.output_lost = self.lost.take().or(outcome.output_lost);
        outcome
    }
}

/// Of what a run said, so many bytes were seen; the rest is kept no more. It is counted, for the stream that `speaks` if that is one
/// alone and else for standard output, and it is said.
pub fn count_missing(outcome: &mut Outcome, seen: u64, speaks: [bool; 2]) {
    let missing = outcome.usage.output_bytes.saturating_sub(seen);
    if missing == 0 {
        return;
    }
    match speaks {
        [false, true] => outcome.truncated.stderr += missing,
        _ => outcome.truncated.stdout += missing,
    }
    outcome.message.get_or_insert(format!("{missing} bytes of what it said first are no longer kept"));
}

impl Visit {
    fn stay(mut self, node: &Node) -> Result<Left, Fault> {
        if self.manner.terminal {
            self.resize(node);
        }
        loop {
            if let Some(outcome) = self.show(node)? {
                return Ok(Left::Ended(Box::new(self.voice.told(outcome))));
            }
            if self.ended {
                return self.unwritten(node).map(|outcome| Left::Ended(Box::new(self.voice.told(outcome))));
            }
            let [heard, answered, typed, signalled] = self.wait();
            if heard && self.hear().is_err() {
                return self.lost(node).map(|outcome| Left::Ended(Box::new(self.voice.told(outcome))));
            }
            if answered {
                self.answered();
            }
            if signalled {
                self.pass_signals(node);
            }
            if typed && self.read() {
                return Ok(Left::Detached);
            }
        }
    }

    fn wait(&self) -> [bool; 4] {
        let nothing = PollFlags::empty();
        let listens = self.speak.as_ref().filter(|_| !self.asked && !self.over);
        let stdin = listens.map(|_| rustix::stdio::stdin());
        let speak = self.speak.as_ref().filter(|_| self.asked);
        let out = speak.map_or(nothing, |line| if line.waiting() > 0 { PollFlags::OUT } else { nothing });
        // A slot that is not wanted stands on a descriptor that is, and asks for nothing.
        let own = self.follow.as_fd();
        let flags = |wanted: bool, flags| if wanted { flags } else { nothing };
        let mut fds = [
            PollFd::from_borrowed_fd(own, PollFlags::IN),
            PollFd::from_borrowed_fd(speak.map_or(own, AsFd::as_fd), flags(speak.is_some(), PollFlags::IN | out)),
            PollFd::from_borrowed_fd(stdin.unwrap_or(own), flags(stdin.is_some(), PollFlags::IN)),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(_) => return [false; 4],
        }
        let ready = fds.map(|fd| !fd.revents().is_empty());
        [ready[0], ready[1] && speak.is_some(), ready[2] && stdin.is_some(), ready[3]]
    }

    /// Takes the notices that are there; the log tells the rest.
    fn hear(&mut self) -> Result<(), Fault> {
        while let Some(notice) = self.follow.heard()? {
            self.ended |= notice.ended;
        }
        Ok(())
    }

    /// Passes on what it said; the outcome, once it has ended.
    fn show(&mut self, node: &Node) -> Result<Option<Outcome>, Fault> {
        loop {
            let Page { records, next, gap, ended } =
                self.reader.read(self.next, PAGE).map_err(|e| unread(&self.run, e))?;
            self.next = next;
            if let Some((from, to)) = gap {
                self.voice.missed(to - from);
            }
            let nothing = records.is_empty();
            for record in records {
                match record.kind {
                    Kind::Stdout | Kind::Terminal => self.say(node, 0, &record.bytes),
                    Kind::Stderr => self.say(node, 1, &record.bytes),
                    Kind::Dropped => {}
                    Kind::End => {
                        let read = serde_json::from_slice(&record.bytes);
                        return read.map(Some).map_err(|e| Fault::internal(format!("{}: {e}", self.run)));
                    }
                }
            }
            if ended {
                return self.behind().map(Some);
            }
            if nothing {
                return Ok(None);
            }
        }
    }

    /// We came behind the end: it ended between our look at it and our coming.
    fn behind(&self) -> Result<Outcome, Fault> {
        let last = Reader::last(&Place::of(&self.state, &self.sandbox).run(&self.run));
        let last = last.map_err(|e| unread(&self.run, e.into()))?.map(|record| record.bytes).unwrap_or_default();
        serde_json::from_slice(&last).map_err(|e| Fault::internal(format!("{}: {e}", self.run)))
    }

    /// It has ended, and its log does not say so: there was no room for that on the disk.
    fn unwritten(&mut self, node: &Node) -> Result<Outcome, Fault> {
        match self.again(node).map(|mut keeper| keeper.wait(&self.run, Duration::ZERO)).transpose()? {
            Some(Waited { outcome: Some(outcome), .. }) => Ok(outcome),
            _ => self.lost(node),
        }
    }

    /// The keeper is gone without a word of the run's end.
    fn lost(&mut self, node: &Node) -> Result<Outcome, Fault> {
        lost::settle(&self.state, &self.sandbox)?;
        match self.show(node)? {
            Some(outcome) => Ok(outcome),
            None => {
                let message =
                    format!("the keeper of {} is gone, and nobody knows how {} ended", self.sandbox, self.run);
                let fault = Fault::new(terms::ErrorKind::Unavailable, message).subject(&self.run);
                Err(fault.phase(Phase::Execution).hint("`cofferdam inspect` says what became of the sandbox"))
            }
        }
    }

    /// Takes what was typed; true when that was to leave.
    fn read(&mut self) -> bool {
        let mut bytes = vec![0; CHUNK];
        let got = match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => 0,
        };
        bytes.truncate(got);
        self.over = got == 0;
        if self.manner.terminal && self.leaves(&bytes) {
            return true;
        }
        let frame = Frame::of(&Request::Input { run: self.run.clone(), eof: self.over, by: None }).with(bytes);
        if let Some(line) = &mut self.speak {
            self.asked = line.put(frame).and_then(|()| line.push()).is_ok();
        }
        false
    }

    fn leaves(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.pressed = match LEAVE.get(self.pressed) {
                Some(key) if key == byte => self.pressed + 1,
                _ => usize::from(*byte == LEAVE[0]),
            };
            if self.pressed == LEAVE.len() {
                return true;
            }
        }
        false
    }

    /// What was given is taken, or never will be.
    fn answered(&mut self) {
        let Some(line) = &mut self.speak else { return };
        let taken = match line.push().and_then(|()| line.pull()) {
            Ok(Pulled::Later) => return,
            Ok(Pulled::Frame(frame)) => wire::read_answer::<()>(&frame).is_ok(),
            Ok(Pulled::Closed) | Err(_) => false,
        };
        self.asked = false;
        if !taken || self.over {
            self.speak = None;
        }
    }

    /// A reader that left early is no error of ours. What is said after that is told to whoever says it.
    fn say(&mut self, node: &Node, stream: usize, bytes: &[u8]) {
        if self.voice.say(stream, bytes) || self.bond == Bond::Guest {
            return;
        }
        let since = self.since.get_or_insert_with(Instant::now).elapsed();
        if let Some(signal) = self.unread.due(since) {
            self.signal(node, signal);
        }
    }

    /// Asked on a line of its own: the other may wait for the command to read.
    fn signal(&self, node: &Node, signal: i32) {
        let _it_is_gone = self.again(node).map(|mut keeper| keeper.signal(&self.run, signal));
    }

    fn pass_signals(&mut self, node: &Node) {
        while let Some((signal, _)) = sys::process::next_signal(self.signals.as_fd()) {
            match signal {
                WINCH if self.manner.terminal => self.resize(node),
                WINCH => {}
                _ => self.signal(node, signal),
            }
        }
    }

    fn resize(&mut self, node: &Node) {
        let (rows, columns) = terminal::size(rustix::stdio::stdin());
        let _it_is_gone = self.again(node).map(|mut keeper| keeper.resize(&self.run, rows, columns));
    }

    fn again(&self, node: &Node) -> Option<Keeper> {
        Keeper::heard(node, &self.state, &self.sandbox).ok().flatten()
    }
}

fn put(to: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
