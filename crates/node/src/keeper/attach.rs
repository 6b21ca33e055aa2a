//! Attaching to a run: its output goes to our standard streams, and our input goes to it. Detaching does not end the run.

use super::runs::unread;
pub use enclosure::terminal;
use runtime::Node;
use runtime::keeper::client::{Follow, Keeper};
use runtime::keeper::lost;
use runtime::keeper::place::KeeperDir;
use runtime::keeper::spool::{RecordKind, SpoolPage, SpoolReader};
use runtime::keeper::wire::{self, Frame, KeeperRequest, ReadResult, Waited, WireConnection};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terms::{Fault, Outcome, Phase, Unread};

/// Options of an attachment.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachOptions {
    /// Our standard input goes to the command.
    pub input: bool,
    /// The run has a terminal: ours is put in raw mode, and its size follows ours.
    pub terminal: bool,
    /// Output is collected for the outcome instead of being passed on.
    pub capture: bool,
    /// Offset in the log of the first record to show.
    pub from: u64,
}

/// Result of an attachment.
#[derive(Debug)]
pub enum AttachOutcome {
    Ended(Box<Outcome>),
    /// The detach keys were keys_pressed; the run continues.
    Detached,
}

/// Signals that are forwarded to the command: HUP, INT, QUIT, USR1, USR2, TERM, CONT; WINCH is for us.
const PASSED: [i32; 8] = [1, 2, 3, 10, 12, 15, 18, WINCH];
const WINCH: i32 = 28;
/// Most bytes in one read.
const CHUNK: usize = 64 << 10;
const PAGE: usize = 256 << 10;
/// Most bytes of each stream in a captured outcome.
const MOST_KEPT: usize = 16 << 20;
/// The detach keys, Ctrl-P Ctrl-Q as in Docker.
const LEAVE: [u8; 2] = [16, 17];

/// Stays with a run until its end or until the detach keys.
pub fn attach(
    node: &Node,
    state: &Path,
    sandbox: &str,
    run: &str,
    options: AttachOptions,
) -> Result<AttachOutcome, Fault> {
    attachment(node, state, sandbox, run, options, ClientRole::Guest)
}

/// Stays with a run that was started for us: it gets a signal when its output has no reader, as it would in a pipe.
pub fn attach_owner(
    node: &Node,
    state: &Path,
    sandbox: &str,
    run: &str,
    options: AttachOptions,
) -> Result<AttachOutcome, Fault> {
    attachment(node, state, sandbox, run, options, ClientRole::Owner)
}

/// Relation of the attached client to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientRole {
    /// The run outlives the attachment.
    Guest,
    /// The run serves this client alone.
    Owner,
}

fn attachment(
    node: &Node,
    state: &Path,
    sandbox: &str,
    run: &str,
    options: AttachOptions,
    role: ClientRole,
) -> Result<AttachOutcome, Fault> {
    let find = || Keeper::heard(node, state, sandbox);
    let gone = || {
        let fault = Fault::new(terms::ErrorKind::NotFound, format!("{run} is not running")).subject(run);
        fault.phase(Phase::Admission).hint("`cofferdam logs` shows its output")
    };
    let mut keeper = find()?.ok_or_else(gone)?;
    if role == ClientRole::Guest {
        // A frozen run would give no output and take no input.
        keeper.thaw()?;
    }
    let follow = keeper.follow(Some(vec![run.to_owned()]))?.accepted()?;
    let reader = SpoolReader::open(&KeeperDir::of(state, sandbox).run(run)).map_err(|e| unread(run, e.into()))?;
    let input = match options.input {
        true => Some(find()?.ok_or_else(gone)?.into_line()),
        false => None,
    };
    let signals = sys::process::signal_handle(&PASSED).map_err(|e| Fault::internal(e.to_string()))?;
    let _raw = options.terminal.then(terminal::Raw::on_stdin);
    let attachment = Attachment {
        state: state.to_path_buf(),
        sandbox: sandbox.to_owned(),
        run: run.to_owned(),
        options,
        role,
        unread_since: None,
        unread: Unread::default(),
        follow,
        ended: false,
        reader,
        next: options.from,
        input,
        unacknowledged: false,
        input_ended: false,
        keys_pressed: 0,
        signals,
        output: OutputSink::new(options.capture),
    };
    attachment.follow_until_end(node)
}

struct Attachment {
    state: PathBuf,
    sandbox: String,
    run: String,
    options: AttachOptions,
    role: ClientRole,
    /// Time since when the output has no reader, and the signals sent because of that.
    unread_since: Option<Instant>,
    unread: Unread,
    follow: Follow,
    /// The keeper reported the end of the run.
    ended: bool,
    reader: SpoolReader,
    next: u64,
    /// Connection for our input; none once the input has ended or the command does not read it any more.
    input: Option<WireConnection>,
    /// The last input is not acknowledged yet.
    unacknowledged: bool,
    /// Our input has ended.
    input_ended: bool,
    /// Number of detach keys keys_pressed so far.
    keys_pressed: usize,
    signals: OwnedFd,
    output: OutputSink,
}

/// Sink for the output of a run: our own streams, or its outcome.
pub struct OutputSink {
    capture: bool,
    kept: [Vec<u8>; 2],
    unkept: [u64; 2],
    /// Bytes received, of both streams.
    seen: u64,
    /// Cause of the first failed write to our streams.
    lost: Option<String>,
}

impl OutputSink {
    pub fn new(capture: bool) -> OutputSink {
        OutputSink { capture, kept: [Vec::new(), Vec::new()], unkept: [0, 0], seen: 0, lost: None }
    }

    /// Writes bytes to a stream: 0 is standard output, 1 standard error. Returns false when the stream has no reader any more.
    pub fn write(&mut self, stream: usize, bytes: &[u8]) -> bool {
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

    /// Reports bytes that the log no longer holds.
    pub fn note_missed(&mut self, bytes: u64) {
        let line = format!("cofferdam: {bytes} bytes of the log are no longer kept\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    pub fn fill(&mut self, mut outcome: Outcome) -> Outcome {
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

/// Adds the bytes that were not seen to the outcome as truncated, and says so in its message. They count for the one stream that
/// has output, if there is only one, and else for standard output.
pub fn count_missing(outcome: &mut Outcome, seen: u64, speaks: [bool; 2]) {
    let missing = outcome.usage.output_bytes.saturating_sub(seen);
    if missing == 0 {
        return;
    }
    match speaks {
        [false, true] => outcome.truncated.stderr += missing,
        _ => outcome.truncated.stdout += missing,
    }
    outcome.message.get_or_insert(format!("the first {missing} bytes of its output are no longer kept"));
}

impl Attachment {
    fn follow_until_end(mut self, node: &Node) -> Result<AttachOutcome, Fault> {
        if self.options.terminal {
            self.resize(node);
        }
        loop {
            if let Some(outcome) = self.show(node)? {
                return Ok(AttachOutcome::Ended(Box::new(self.output.fill(outcome))));
            }
            if self.ended {
                return self.unwritten(node).map(|outcome| AttachOutcome::Ended(Box::new(self.output.fill(outcome))));
            }
            let [heard, answered, typed, signalled] = self.wait();
            if heard && self.hear().is_err() {
                return self.lost(node).map(|outcome| AttachOutcome::Ended(Box::new(self.output.fill(outcome))));
            }
            if answered {
                self.answered();
            }
            if signalled {
                self.pass_signals(node);
            }
            if typed && self.read() {
                return Ok(AttachOutcome::Detached);
            }
        }
    }

    fn wait(&self) -> [bool; 4] {
        let nothing = PollFlags::empty();
        let listens = self.input.as_ref().filter(|_| !self.unacknowledged && !self.input_ended);
        let stdin = listens.map(|_| rustix::stdio::stdin());
        let speak = self.input.as_ref().filter(|_| self.unacknowledged);
        let out = speak.map_or(nothing, |line| if line.waiting() > 0 { PollFlags::OUT } else { nothing });
        // A slot that is not in use polls a descriptor that is always there, for no event.
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

    /// Reads the pending notices; the log has the rest.
    fn hear(&mut self) -> Result<(), Fault> {
        while let Some(notice) = self.follow.heard()? {
            self.ended |= notice.ended;
        }
        Ok(())
    }

    /// Passes on new output; returns the outcome once the run has ended.
    fn show(&mut self, node: &Node) -> Result<Option<Outcome>, Fault> {
        loop {
            let SpoolPage { records, next, gap, ended } =
                self.reader.read(self.next, PAGE).map_err(|e| unread(&self.run, e))?;
            self.next = next;
            if let Some((from, to)) = gap {
                self.output.note_missed(to - from);
            }
            let nothing = records.is_empty();
            for record in records {
                match record.kind {
                    RecordKind::Stdout | RecordKind::Terminal => self.say(node, 0, &record.bytes),
                    RecordKind::Stderr => self.say(node, 1, &record.bytes),
                    RecordKind::Dropped => {}
                    RecordKind::End => {
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

    /// Returns the outcome when reading began behind the end: the run ended between our lookup and the first read.
    fn behind(&self) -> Result<Outcome, Fault> {
        let last = SpoolReader::last(&KeeperDir::of(&self.state, &self.sandbox).run(&self.run));
        let last = last.map_err(|e| unread(&self.run, e.into()))?.map(|record| record.bytes).unwrap_or_default();
        serde_json::from_slice(&last).map_err(|e| Fault::internal(format!("{}: {e}", self.run)))
    }

    /// Returns the outcome of a run whose log has no end record because the disk was full.
    fn unwritten(&mut self, node: &Node) -> Result<Outcome, Fault> {
        match self.again(node).map(|mut keeper| keeper.wait(&self.run, Duration::ZERO)).transpose()? {
            Some(Waited { outcome: Some(outcome), .. }) => Ok(outcome),
            _ => self.lost(node),
        }
    }

    /// Returns the outcome after the keeper died without reporting the end.
    fn lost(&mut self, node: &Node) -> Result<Outcome, Fault> {
        lost::settle(&self.state, &self.sandbox)?;
        match self.show(node)? {
            Some(outcome) => Ok(outcome),
            None => {
                let message =
                    format!("the keeper of {} is gone, and {} has no recorded outcome", self.sandbox, self.run);
                let fault = Fault::new(terms::ErrorKind::Unavailable, message).subject(&self.run);
                Err(fault.phase(Phase::Execution).hint("`cofferdam inspect` shows the state of the sandbox"))
            }
        }
    }

    /// Reads our input and forwards it; returns true when it held the detach keys.
    fn read(&mut self) -> bool {
        let mut bytes = vec![0; CHUNK];
        let got = match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => 0,
        };
        bytes.truncate(got);
        self.input_ended = got == 0;
        if self.options.terminal && self.leaves(&bytes) {
            return true;
        }
        let frame =
            Frame::of(&KeeperRequest::Input { run: self.run.clone(), eof: self.input_ended, by: None }).with(bytes);
        if let Some(line) = &mut self.input {
            self.unacknowledged = line.put(frame).and_then(|()| line.push()).is_ok();
        }
        false
    }

    fn leaves(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.keys_pressed = match LEAVE.get(self.keys_pressed) {
                Some(key) if key == byte => self.keys_pressed + 1,
                _ => usize::from(*byte == LEAVE[0]),
            };
            if self.keys_pressed == LEAVE.len() {
                return true;
            }
        }
        false
    }

    /// Handles the acknowledgement of input, or a connection that will never send one.
    fn answered(&mut self) {
        let Some(line) = &mut self.input else { return };
        let taken = match line.push().and_then(|()| line.pull()) {
            Ok(ReadResult::Later) => return,
            Ok(ReadResult::Frame(frame)) => wire::read_answer::<()>(&frame).is_ok(),
            Ok(ReadResult::Closed) | Err(_) => false,
        };
        self.unacknowledged = false;
        if !taken || self.input_ended {
            self.input = None;
        }
    }

    /// Passes output on. A reader that left is no fault of ours; the command then gets a signal.
    fn say(&mut self, node: &Node, stream: usize, bytes: &[u8]) {
        if self.output.write(stream, bytes) || self.role == ClientRole::Guest {
            return;
        }
        let since = self.unread_since.get_or_insert_with(Instant::now).elapsed();
        if let Some(signal) = self.unread.due(since) {
            self.signal(node, signal);
        }
    }

    /// Sent over a connection of its own: the input connection may wait for the command to read.
    fn signal(&self, node: &Node, signal: i32) {
        // A keeper that is gone has no command to signal.
        let _ = self.again(node).map(|mut keeper| keeper.signal(&self.run, signal));
    }

    fn pass_signals(&mut self, node: &Node) {
        while let Some((signal, _)) = sys::process::next_signal(self.signals.as_fd()) {
            match signal {
                WINCH if self.options.terminal => self.resize(node),
                WINCH => {}
                _ => self.signal(node, signal),
            }
        }
    }

    fn resize(&mut self, node: &Node) {
        let (rows, columns) = terminal::size(rustix::stdio::stdin());
        let _ = self.again(node).map(|mut keeper| keeper.resize(&self.run, rows, columns));
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
