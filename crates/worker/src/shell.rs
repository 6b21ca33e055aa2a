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
use rustix::net::{SendFlags, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// First line that a shell reads: output goes to the pipes, and nothing prompts. Only the shell's own copies of the descriptors stay.
const GREETING: &str = "PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +o history; exec 1>&101 2>&102 101>&- 102>&-\n";
/// Status of a command that a SIGINT ended.
const INTERRUPTED: u32 = 130;
const READ_AT_ONCE: usize = 256 << 10;

pub struct ShellChannel {
    commands: OwnedFd,
    code: OwnedFd,
    output: MarkedStream,
    errors: MarkedStream,
    /// What was sent and has not ended.
    asked: Option<Asked>,
    executed: u64,
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
        ShellChannel { commands, code, output, errors, asked: None, executed: 0 }
    }

    pub fn execute(&mut self, request: u32, code: &str) -> Result<(), Broken> {
        self.put_code(code)?;
        self.begin(request, AskedFor::Run);
        self.say(&format!(". /dev/fd/103 </dev/null\n{}", mark_line(&mark(request))))
    }

    /// The interpreter itself parses the code, in a shell of its own that runs nothing.
    pub fn check(&mut self, request: u32, code: &str) -> Result<(), Broken> {
        self.put_code(code)?;
        self.begin(request, AskedFor::Check { errors: Vec::new() });
        let parse = "(LC_ALL=C exec bash --noprofile --norc -n /dev/fd/103 </dev/null)";
        self.say(&format!("{parse}\n{}", mark_line(&mark(request))))
    }

    pub fn resume(&mut self, request: u32) {
        self.begin(request, AskedFor::Run);
    }

    fn begin(&mut self, request: u32, kind: AskedFor) {
        self.asked = Some(Asked { request, kind, status: None, errors_ended: false });
        self.output.expect(mark(request));
        self.errors.expect(mark(request));
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
            AskedFor::Check { errors: all } => all.extend(errors),
            AskedFor::Run => {
                let made = [(output, Event::Stdout as fn(_) -> _), (errors, Event::Stderr as fn(_) -> _)];
                let made = made.into_iter().filter(|(bytes, _)| !bytes.is_empty());
                events.extend(made.map(|(bytes, event)| Received { request, event: event(bytes) }));
            }
        }
        if let (Some(status), true) = (asked.status, asked.errors_ended) {
            events.extend(self.end(status));
        } else if events.is_empty() && self.output.ended && self.errors.ended {
            return Err(Broken::Gone);
        }
        Ok(events)
    }

    /// What comes without a request is left for the next one; only the end is looked for.
    fn step_idle(&mut self) -> Result<Vec<Received>, Broken> {
        if self.output.ended && self.errors.ended { Err(Broken::Gone) } else { Ok(Vec::new()) }
    }

    fn end(&mut self, status: u32) -> Vec<Received> {
        let Some(Asked { request, kind, .. }) = self.asked.take() else { return Vec::new() };
        let received = |event| Received { request, event };
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
        [&self.output, &self.errors]
            .into_iter()
            .filter(|stream| !stream.ended)
            .map(|stream| stream.pipe.as_fd())
            .collect()
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

/// The line that prints a mark with the status of the line before, in the shell that has both pipes as standard output and error.
fn mark_line(mark: &str) -> String {
    let mark = mark.replace('\u{1}', "\\001");
    format!(
        "{{ __cofferdam=$?; builtin printf '{mark}%s\\001' \"$__cofferdam\"; builtin printf '{mark}\\001' >&2; builtin unset __cofferdam; }} 2>&2\n"
    )
}

/// A pipe on which a mark ends what belongs to a request.
struct MarkedStream {
    pipe: OwnedFd,
    mark: Vec<u8>,
    /// Bytes that may be the beginning of a mark.
    held: Vec<u8>,
    ended: bool,
}

impl MarkedStream {
    fn new(pipe: OwnedFd) -> MarkedStream {
        MarkedStream { pipe, mark: Vec::new(), held: Vec::new(), ended: false }
    }

    fn expect(&mut self, mark: String) {
        self.mark = mark.into_bytes();
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

    /// Moves to `output` what is surely none of a mark; returns the mark's text if it is there.
    fn take(&mut self, output: &mut Vec<u8>) -> Option<String> {
        let found = find(&self.held, &self.mark);
        let begin = found.unwrap_or(self.held.len());
        if let Some(begin) = found {
            let rest = begin + self.mark.len();
            if let Some(end) = self.held[rest..].iter().position(|byte| *byte == 1) {
                output.extend(&self.held[..begin]);
                let text = String::from_utf8_lossy(&self.held[rest..rest + end]).into_owned();
                self.held.drain(..=rest + end);
                return Some(text);
            }
            // A status has three digits: more is no mark of ours.
            if self.held.len() - rest > 8 {
                output.extend(self.held.drain(..rest));
                return self.take(output);
            }
        }
        let keep = if found.is_some() { begin } else { self.held.len() - overlap(&self.held, &self.mark) };
        output.extend(self.held.drain(..keep));
        None
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
