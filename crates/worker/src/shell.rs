//! The channel to a Bash. A shell maps no memory, so its commands go over a socket and its output comes over two pipes. Code is in a memory
//! file that the shell reads; the end of a command is a mark on both pipes, with a number that no earlier output can hold.
//!
//! ```text
//!   socket   ───▶  . /dev/fd/103 </dev/null        one line runs the code
//!                  printf mark and status          the next one tells its end, also after an interruption
//!   pipes    ◀───  output … mark:status            errors … mark
//! ```

use crate::message::{EndStatus, Event, Received};
use crate::{Broken, channel};
use api::{CodeChecked, CodeError, Completeness};
use rustix::fs::ftruncate;
use rustix::io::{Errno, pwrite};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// First line that a shell reads: output goes to the pipes, and nothing prompts. Marks go to the pipes' own descriptors, so that code can
/// redirect its output for good.
const GREETING: &str = "PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +o history; exec 1>&101 2>&102\n";
/// Status of a command that a SIGINT ended.
const INTERRUPTED: u32 = 130;
const READ_AT_ONCE: usize = 256 << 10;
/// Bound on what is kept of the errors of a check, whose end says what is wrong.
const MOST_CHECK_ERRORS: usize = 64 << 10;
/// Steps in which output is still read after the shell is gone: what it started may write for ever.
const LAST_STEPS: u32 = 64;

pub struct ShellChannel {
    commands: OwnedFd,
    code: OwnedFd,
    output: MarkedStream,
    errors: MarkedStream,
    /// What was sent and has not ended.
    asked: Option<Asked>,
    /// Code that waits for the end of an earlier request, whose client is gone.
    next: Option<(u32, String)>,
    executed: u64,
    hung_up: bool,
    steps_after_end: u32,
}

struct Asked {
    request: u32,
    kind: AskedFor,
    /// Status of the shell, from the mark in its output.
    status: Option<u32>,
    /// The mark in its errors has come.
    errors_ended: bool,
}

enum AskedFor {
    Run,
    Check { errors: Vec<u8> },
}

/// Sends the first line of a shell that has not started yet.
pub fn greet(supervisor: &[OwnedFd]) -> io::Result<()> {
    let commands = supervisor.first().ok_or(io::ErrorKind::InvalidInput)?;
    match send(commands, GREETING.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
        sent if sent == GREETING.len() => Ok(()),
        _ => Err(io::Error::other("a socket that takes no line")),
    }
}

impl ShellChannel {
    pub fn open(ends: [OwnedFd; 4]) -> ShellChannel {
        let [commands, output, errors, code] = ends;
        let (output, errors) = (MarkedStream::new(output), MarkedStream::new(errors));
        let (asked, next) = (None, None);
        ShellChannel { commands, code, output, errors, asked, next, executed: 0, hung_up: false, steps_after_end: 0 }
    }

    /// Runs code, once a request that was resumed has ended: it shares the file of the code.
    pub fn execute(&mut self, request: u32, code: &str) -> Result<(), Broken> {
        if self.asked.is_some() {
            self.next = Some((request, code.to_owned()));
            return Ok(());
        }
        self.put_code(code)?;
        self.begin(request, AskedFor::Run);
        self.say(&format!(". /dev/fd/103 </dev/null\n{}", mark_line(&mark(request))))
    }

    /// The interpreter itself parses the code, in a shell of its own that runs nothing.
    pub fn check(&mut self, request: u32, code: &str) -> Result<(), Broken> {
        self.put_code(code)?;
        self.begin(request, AskedFor::Check { errors: Vec::new() });
        let parse = "(LC_ALL=C builtin exec bash --noprofile --norc -n /dev/fd/103 </dev/null)";
        self.say(&format!("{parse}\n{}", mark_line(&mark(request))))
    }

    pub fn resume(&mut self, request: u32) {
        self.begin(request, AskedFor::Run);
    }

    fn begin(&mut self, request: u32, kind: AskedFor) {
        self.asked = Some(Asked { request, kind, status: None, errors_ended: false });
        (self.output.expected, self.errors.expected) = (request, request);
    }

    fn put_code(&mut self, code: &str) -> Result<(), Broken> {
        let failed = |e: Errno| Broken::rule(format!("the file of a shell's code: {e}"));
        ftruncate(&self.code, 0).map_err(failed)?;
        let (mut bytes, mut at) = (code.as_bytes(), 0);
        while !bytes.is_empty() {
            let count = pwrite(&self.code, bytes, at).map_err(failed)?;
            (bytes, at) = (&bytes[count..], at + count as u64);
        }
        // A last line without a newline would take the next command with it where it ends in a backslash.
        pwrite(&self.code, b"\n", at).map_err(failed).map(drop)
    }

    fn say(&mut self, line: &str) -> Result<(), Broken> {
        match send(&self.commands, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == line.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(Broken::rule("a shell that reads no commands")),
            Err(_) => Err(Broken::Gone),
        }
    }

    pub fn step(&mut self) -> Result<Vec<Received>, Broken> {
        let mut events = Vec::new();
        self.hear();
        let Some(asked) = &mut self.asked else { return self.step_idle() };
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        if asked.status.is_none() {
            let found = self.output.read(&mut output)?;
            asked.status = found.map(|status| status.parse().unwrap_or(0));
        }
        if !asked.errors_ended {
            asked.errors_ended = self.errors.read(&mut errors)?.is_some();
        }
        let request = asked.request;
        match &mut asked.kind {
            AskedFor::Check { errors: all } => {
                all.extend(errors);
                all.drain(..all.len().saturating_sub(MOST_CHECK_ERRORS));
            }
            AskedFor::Run => {
                let made = [(output, Event::Stdout as fn(_) -> _), (errors, Event::Stderr as fn(_) -> _)];
                let made = made.into_iter().filter(|(bytes, _)| !bytes.is_empty());
                events.extend(made.map(|(bytes, event)| {
                    let size = bytes.len() as u64;
                    Received { request, event: event(bytes), size }
                }));
            }
        }
        if let (Some(status), true) = (asked.status, asked.errors_ended) {
            events.extend(self.end(status));
            if let Some((request, code)) = self.next.take() {
                self.execute(request, &code)?;
            }
        } else if self.is_gone(events.is_empty()) {
            return Err(Broken::Gone);
        }
        Ok(events)
    }

    /// True once a shell that ended has no more to say, or a stream ended before its mark.
    fn is_gone(&mut self, is_silent: bool) -> bool {
        self.steps_after_end += u32::from(self.hung_up);
        let is_over = self.hung_up || self.output.ended || self.errors.ended;
        is_over && (is_silent || self.steps_after_end > LAST_STEPS)
    }

    /// Looks for the end of the shell at its socket, which nothing else has. What is written there is no message.
    fn hear(&mut self) {
        let mut bytes = [0u8; 4096];
        match recv(&self.commands, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => self.hung_up = true,
        }
    }

    /// What comes without a request is left for the next one; only the end is looked for.
    fn step_idle(&mut self) -> Result<Vec<Received>, Broken> {
        if self.hung_up { Err(Broken::Gone) } else { Ok(Vec::new()) }
    }

    fn end(&mut self, status: u32) -> Vec<Received> {
        let Some(Asked { request, kind, .. }) = self.asked.take() else { return Vec::new() };
        let received = |event| Received { request, event, size: 0 };
        if let AskedFor::Check { errors } = kind {
            return vec![received(Event::Checked(completeness(status, &errors)))];
        }
        self.executed += 1;
        let end = match status {
            0 => EndStatus::Ok,
            INTERRUPTED => EndStatus::Interrupted,
            _ => EndStatus::Error,
        };
        let error = CodeError { name: "ExitStatus".into(), value: status.to_string(), traceback: String::new() };
        let error = (end == EndStatus::Error).then(|| received(Event::Error(error)));
        let end = received(Event::End { status: end, execution_count: self.executed });
        error.into_iter().chain([end]).collect()
    }

    pub fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        // A stream whose mark has come is not read, and would be ready all the time.
        let waits = |is_open: fn(&Asked) -> bool| self.asked.as_ref().is_some_and(is_open);
        let output = (waits(|asked| asked.status.is_none()) && !self.output.ended).then_some(&self.output);
        let errors = (waits(|asked| !asked.errors_ended) && !self.errors.ended).then_some(&self.errors);
        let streams = output.into_iter().chain(errors).map(|stream| stream.pipe.as_fd());
        let commands = (!self.hung_up).then(|| self.commands.as_fd());
        streams.chain(commands).collect()
    }
}

fn completeness(status: u32, errors: &[u8]) -> CodeChecked {
    // The shell tells it in no other way than in words; LC_ALL=C keeps them in one language.
    let says = |text: &str| errors.windows(text.len()).any(|part| part == text.as_bytes());
    let open = ["unexpected end of file", "unexpected EOF", "here-document at line"].into_iter().any(says);
    let status = match (open, status) {
        (true, _) => Completeness::Incomplete,
        (false, 0) => Completeness::Complete,
        (false, _) => Completeness::Invalid,
    };
    CodeChecked { status, indent: String::new() }
}

/// A mark for one request, which output before it can hold only if a guest copies it on purpose: that gains it nothing.
fn mark(request: u32) -> String {
    format!("\u{1}cofferdam:{request:08x}:")
}

/// The line that prints a mark with the status of the line before. It says nothing of itself where commands are traced.
fn mark_line(mark: &str) -> String {
    let mark = mark.replace('\u{1}', "\\001");
    format!("{{ \\builtin printf '{mark}%s\\001' \"$?\" >&101; \\builtin printf '{mark}\\001' >&102; }} 2>/dev/null\n")
}

/// Has a shell tell the end of a request once more: an interruption may have taken the line that tells it. Marks of requests that have
/// ended are left out of the output.
pub fn repeat_end(supervisor: &[OwnedFd], request: u32) {
    if let Some(commands) = supervisor.first() {
        let line = mark_line(&mark(request));
        let _ = send(commands, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL); // a shell that is gone is found by its call
    }
}

/// A pipe on which a mark ends what belongs to a request.
struct MarkedStream {
    pipe: OwnedFd,
    /// Request whose mark is awaited.
    expected: u32,
    /// Bytes that may be the beginning of a mark.
    held: Vec<u8>,
    ended: bool,
}

/// Beginning of every mark.
const MARK: &[u8] = b"\x01cofferdam:";
/// Hexadecimal digits of the request in a mark.
const DIGITS: usize = 8;
/// Digits of a status.
const MOST_STATUS: usize = 3;

enum MarkRead {
    /// The request and the text of a mark, and its length.
    Mark(u32, String, usize),
    /// More bytes decide.
    Partial,
    Nothing,
}

/// Reads a mark at the beginning of a text that begins like one.
fn read_mark(text: &[u8]) -> MarkRead {
    let rest = &text[MARK.len()..];
    let digits = &rest[..rest.len().min(DIGITS)];
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return MarkRead::Nothing;
    }
    let Some(status) = rest.get(DIGITS..).filter(|status| !status.is_empty()) else { return MarkRead::Partial };
    let Some(status) = status.strip_prefix(b":") else { return MarkRead::Nothing };
    let length = status.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match (status.get(length), str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok())) {
        (Some(1), Some(request)) if length <= MOST_STATUS => {
            let status = String::from_utf8_lossy(&status[..length]).into_owned();
            MarkRead::Mark(request, status, MARK.len() + DIGITS + 1 + length + 1)
        }
        (None, Some(_)) if length <= MOST_STATUS => MarkRead::Partial,
        _ => MarkRead::Nothing,
    }
}

impl MarkedStream {
    fn new(pipe: OwnedFd) -> MarkedStream {
        MarkedStream { pipe, expected: 0, held: Vec::new(), ended: false }
    }

    /// Reads what is there; returns the text of the mark if it has come.
    fn read(&mut self, output: &mut Vec<u8>) -> Result<Option<String>, Broken> {
        while output.len() < channel::MOST_AT_ONCE && !self.ended {
            if !is_readable(&self.pipe) {
                break;
            }
            let begin = self.held.len();
            self.held.resize(begin + READ_AT_ONCE, 0);
            let count = rustix::io::read(&self.pipe, &mut self.held[begin..]);
            self.held.truncate(begin + count.unwrap_or(0));
            match count {
                Ok(0) => self.ended = true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => self.ended = true,
            }
            if let Some(text) = self.take(output) {
                return Ok(Some(text));
            }
        }
        if self.ended {
            output.append(&mut self.held);
        }
        Ok(None)
    }

    /// Moves to `output` what is surely none of a mark; returns the text of the awaited mark if it is there. Others are dropped.
    fn take(&mut self, output: &mut Vec<u8>) -> Option<String> {
        let (mut start, mut at, mut awaited) = (0, 0, None);
        let end = loop {
            let Some(offset) = find(&self.held[at..], MARK) else {
                break self.held.len() - overlap(&self.held[at..], MARK);
            };
            let begin = at + offset;
            match read_mark(&self.held[begin..]) {
                MarkRead::Partial => break begin,
                MarkRead::Nothing => at = begin + 1,
                MarkRead::Mark(request, status, length) => {
                    output.extend(&self.held[start..begin]);
                    (start, at) = (begin + length, begin + length);
                    if request == self.expected {
                        awaited = Some(status);
                        break start;
                    }
                }
            }
        };
        output.extend(&self.held[start..end]);
        self.held.drain(..end);
        awaited
    }
}

/// The pipe may be blocking on the other side, which has descriptions of its own; ours is only read when that cannot block.
fn is_readable(pipe: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&now)), Ok(1..))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = *part.first()?;
    let mut at = 0;
    while let Some(next) = text[at..].iter().position(|byte| *byte == first) {
        at += next;
        if text[at..].starts_with(part) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Returns the length of the longest end of a text that may be the beginning of a part.
fn overlap(text: &[u8], part: &[u8]) -> usize {
    (1..part.len().min(text.len() + 1)).rev().find(|length| text.ends_with(&part[..*length])).unwrap_or(0)
}
