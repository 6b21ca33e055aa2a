//! Network events of a run: one JSON object a line, in a file or pipe that the caller names. The file is bounded, writing never blocks, and
//! events that were not written are counted.

pub(crate) mod parts;

use self::parts::Parts;
use crate::roster::{Roster, Runs};
use egress::event::{Event, EventStage};
use serde::Serialize;
use std::fs::File;
use std::io::{Error, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::SystemTime;
use terms::clock::timestamp;
use terms::{Action, Actor};

/// Default size bound of an event file.
pub const DEFAULT_MAX: u64 = 64 << 20;
/// Smallest size bound that a caller can set: a few lines.
pub const LEAST_MAX: u64 = 4096;
/// Longest line. A pipe that polls as writable takes this many bytes without blocking.
pub(crate) const LONGEST_LINE: usize = 4096;
/// Longest text from outside in a line, counted as escaped JSON.
const LONGEST_TEXT: usize = 512;
/// Bytes reserved for the last line, which tells how many events are missing.
const LAST_LINE: u64 = 256;

/// The file or pipe that network events are written to. A slow reader never blocks the writer: events that do not fit are counted, and the
/// count is written when there is space again, or at the close.
pub struct EventFile {
    file: File,
    /// Parts that drop the oldest events for the newest; without parts, the first events are kept.
    parts: Option<Parts>,
    is_regular: bool,
    max: u64,
    written: u64,
    /// The size bound was reached; only the last line follows.
    is_full: bool,
    /// A partial line was written and could not be truncated away.
    is_cut: bool,
    /// Events not written and not yet reported by a `net.lost` line.
    lost: u64,
    dropped: u64,
    reason: Option<String>,
    /// Runs that events without a broker are attributed to, and the policy revision that judged them.
    roster: Roster,
    revision: u64,
}

/// An event in its serialized form.
#[derive(Serialize)]
struct EventLine<'a> {
    time: String,
    /// Run that the event came from; empty where the run is not known.
    run: Option<&'a str>,
    op: &'static str,
    stage: &'static str,
    action: &'static str,
    rule: &'a str,
    revision: u64,
    proto: &'static str,
    name: Option<&'a str>,
    address: Option<String>,
    port: Option<u16>,
    method: Option<&'a str>,
    path: Option<&'a str>,
    bytes_in: u64,
    bytes_out: u64,
    reason: Option<&'a str>,
    pid: Option<i32>,
    exe: Option<&'a str>,
}

impl EventFile {
    /// Opens the file with a bound of `max` bytes. Without `max`, a regular file is bounded by `DEFAULT_MAX`, and a pipe, whose reader
    /// empties it, is not bounded.
    pub fn new(file: File, max: Option<u64>) -> EventFile {
        let is_regular = file.metadata().is_ok_and(|m| m.is_file());
        let max = max.unwrap_or(if is_regular { DEFAULT_MAX } else { u64::MAX });
        EventFile {
            file,
            parts: None,
            is_regular,
            max,
            written: 0,
            is_full: false,
            is_cut: false,
            lost: 0,
            dropped: 0,
            reason: None,
            roster: Roster::default(),
            revision: 1,
        }
    }

    /// Attributes the events written from now on to these runs and this policy revision.
    pub(crate) fn attribute_to(&mut self, roster: &Roster, revision: u64) {
        (self.roster, self.revision) = (roster.clone(), revision);
    }

    /// Opens an event log in parts, which keeps the newest events and appends to the parts that exist.
    pub(crate) fn in_parts(dir: &Path, max: u64) -> std::io::Result<EventFile> {
        let (parts, file, is_cut) = Parts::open(dir, max)?;
        Ok(EventFile { parts: Some(parts), is_cut, ..EventFile::new(file, None) })
    }

    /// Copies a line that another process wrote. Text that is not a JSON object is counted as one missing event.
    pub fn pass_on(&mut self, line: &str) {
        match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line) {
            Ok(line) => {
                if line.get("op").is_some_and(|op| op == "net.lost") {
                    let count = line.get("count").and_then(serde_json::Value::as_u64).unwrap_or(1);
                    self.dropped = self.dropped.saturating_add(count);
                    self.reason.get_or_insert_with(|| "the daemon did not record them".to_owned());
                }
                if let Err(why) = self.write(&line) {
                    self.drop(1, &why);
                }
            }
            Err(e) => self.drop(1, &format!("not a valid event: {e}")),
        }
    }

    pub(crate) fn put(&mut self, event: &Event) {
        self.line(&EventLine {
            time: timestamp(SystemTime::now()),
            run: event.run.as_deref(),
            op: event.op.name(),
            stage: stage(event.stage),
            action: event.action.name(),
            rule: shortened(&event.rule),
            revision: event.revision,
            proto: event.proto.name(),
            name: event.name.as_deref().map(shortened),
            address: event.address.map(|a| a.ip().to_string()),
            port: event.address.map(|a| a.port()).filter(|_| event.proto != policy::Proto::Icmp),
            method: event.method.as_deref().map(shortened),
            path: event.path.as_deref().map(without_query).map(shortened),
            bytes_in: event.bytes_in,
            bytes_out: event.bytes_out,
            reason: event.reason.as_deref().map(shortened),
            pid: event.actor.as_ref().map(|a| a.pid),
            exe: event.actor.as_ref().map(|a| shortened(&a.exe)),
        });
    }

    /// Writes a connection attempt of the guest to a unix socket of the host.
    pub(crate) fn socket(&mut self, path: &Path, rule: &str, action: Action, actor: &Actor) {
        let passed = matches!(action, Action::Allow | Action::Warn);
        let stage = if passed { EventStage::Opened } else { EventStage::Refused };
        self.local(egress::event::Op::Connect.name(), stage, action, rule, &path.to_string_lossy(), actor);
    }

    /// Writes that a person is asked about a socket or a file of the host.
    pub(crate) fn asked(&mut self, op: &'static str, target: &str, rule: &str, actor: &Actor) {
        let path = target.strip_prefix("unix:").unwrap_or(target);
        self.local(op, EventStage::Asked, Action::Ask, rule, path, actor);
    }

    fn local(&mut self, op: &'static str, at: EventStage, action: Action, rule: &str, path: &str, actor: &Actor) {
        let of_file = op.starts_with("fs.");
        let run = match self.roster.now() {
            Runs::One(run) => Some(run),
            _ => None,
        };
        self.line(&EventLine {
            time: timestamp(SystemTime::now()),
            run: run.as_deref(),
            op,
            stage: stage(at),
            action: action.name(),
            rule: shortened(rule),
            revision: self.revision,
            proto: if of_file { "file" } else { policy::Proto::Unix.name() },
            name: None,
            address: None,
            port: None,
            method: None,
            path: Some(shortened(path)),
            bytes_in: 0,
            bytes_out: 0,
            reason: None,
            pid: Some(actor.pid),
            exe: Some(shortened(&actor.exe)),
        });
    }

    /// Counts events that were dropped before they arrived, because there were too many at once.
    pub(crate) fn lost(&mut self, count: u64) {
        if count > 0 {
            self.drop(count, "there were too many at once");
            self.write_lost();
        }
    }

    /// Writes the last line where one is needed; returns how many events are missing, and the first reason.
    pub fn close(&mut self) -> (u64, Option<String>) {
        self.is_full = false;
        self.max = self.max.saturating_add(LAST_LINE);
        self.write_lost();
        (self.dropped, self.reason.take())
    }

    fn line(&mut self, line: &EventLine<'_>) {
        if !self.is_full {
            self.write_lost();
        }
        if let Err(why) = self.write(line) {
            self.drop(1, &why);
        }
    }

    fn drop(&mut self, count: u64, why: &str) {
        self.lost += count;
        self.dropped += count;
        self.reason.get_or_insert_with(|| why.to_owned());
    }

    fn write_lost(&mut self) {
        let line = serde_json::json!({"time": timestamp(SystemTime::now()), "op": "net.lost", "count": self.lost});
        if self.lost > 0 && self.write(&line).is_ok() {
            self.lost = 0;
        }
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), String> {
        let mut text = serde_json::to_string(line).map(|text| format!("\n{text}\n")).unwrap_or_default();
        if text.len() > LONGEST_LINE {
            return Err("a line would be too long".to_owned());
        }
        self.make_room(text.len() as u64)?;
        if !self.is_cut {
            text.remove(0);
        }
        let len = text.len() as u64;
        if !self.has_room() {
            return Err("its reader does not keep up".to_owned());
        }
        match self.write_bytes(text.as_bytes()) {
            Ok(()) => {
                self.parts.iter_mut().for_each(|parts| parts.wrote(len, 1 + u64::from(self.is_cut)));
                (self.written, self.is_cut) = (self.written + len, false);
                Ok(())
            }
            Err((passed, error)) => {
                self.truncate_partial(passed);
                Err(error.to_string())
            }
        }
    }

    fn make_room(&mut self, len: u64) -> Result<(), String> {
        if let Some(parts) = &mut self.parts {
            if let Some(fresh) = parts.make_room(len).map_err(|e| e.to_string())? {
                (self.file, self.is_cut) = (fresh, false);
            }
            return Ok(());
        }
        self.is_full |= self.written + len > self.max.saturating_sub(LAST_LINE);
        match self.is_full {
            true => Err(format!("--events-max is {} bytes", self.max)),
            false => Ok(()),
        }
    }

    /// Writes the whole text; on failure, returns the number of bytes that were written.
    fn write_bytes(&mut self, text: &[u8]) -> Result<(), (usize, Error)> {
        let mut at = 0;
        while at < text.len() {
            match self.file.write(&text[at..]) {
                Ok(0) => return Err((at, std::io::ErrorKind::WriteZero.into())),
                Ok(n) => at += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err((at, e)),
            }
        }
        Ok(())
    }

    /// Truncates a partial line that a full disk left, where no other process has appended since; elsewhere the next line starts with a
    /// newline.
    fn truncate_partial(&mut self, passed: usize) {
        if passed == 0 {
            return;
        }
        let taken = (|| {
            let end = self.file.stream_position()?;
            if !self.is_regular || self.file.metadata()?.len() != end {
                return Err(Error::from(std::io::ErrorKind::Unsupported));
            }
            let start = end.saturating_sub(passed as u64);
            self.file.set_len(start)?;
            self.file.seek(std::io::SeekFrom::Start(start)).map(drop)
        })();
        self.is_cut |= taken.is_err();
    }

    fn has_room(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(self.file.as_fd(), rustix::event::PollFlags::OUT)];
        rustix::event::poll(&mut fds, Some(&now)) == Ok(1)
    }
}

fn stage(stage: EventStage) -> &'static str {
    match stage {
        EventStage::Asked => "asked",
        EventStage::Opened => "opened",
        EventStage::Refused => "refused",
        EventStage::Failed => "failed",
        EventStage::Closed => "closed",
    }
}

/// Shortens a text so that it fits a line. Lengths are counted after JSON escaping: a guest must not overflow a line by the names of its
/// programs.
fn shortened(text: &str) -> &str {
    let mut left = LONGEST_TEXT;
    for (at, c) in text.char_indices() {
        let cost = match c {
            '"' | '\\' => 2,
            c if c.is_control() => 6,
            c => c.len_utf8(),
        };
        let Some(rest) = left.checked_sub(cost) else { return &text[..at] };
        left = rest;
    }
    text
}

/// Returns a path without its query and fragment, which may hold secrets.
pub(crate) fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::network::test::event;
    use egress::event::Op;
    use std::io::Read;

    fn lines(text: &[u8]) -> Vec<serde_json::Value> {
        let lines = text.split(|b| *b == b'\n').filter(|l| !l.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    fn scratch(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("cofferdam-events-{}-{name}", std::process::id()));
        let file = File::create(&path).unwrap();
        (path, file)
    }

    // promise 9
    #[test]
    fn a_file_is_bounded_and_says_what_it_lacks() {
        let (path, file) = scratch("bounded");
        let mut events = EventFile::new(file, Some(LEAST_MAX));
        (0..1000).for_each(|_| events.put(&event(Op::Connect, EventStage::Opened, Action::Allow)));
        let (dropped, reason) = events.close();
        let text = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines = lines(&text);
        assert!(text.len() as u64 <= LEAST_MAX && lines.len() > 3, "{} bytes", text.len());
        assert_eq!(lines.len() as u64 - 1 + dropped, 1000);
        let last = lines.last().unwrap();
        assert_eq!((&last["op"], &last["count"]), (&"net.lost".into(), &dropped.into()));
        assert_eq!(reason.as_deref(), Some("--events-max is 4096 bytes"));
    }

    #[test]
    fn a_whole_journal_lacks_nothing() {
        let (path, file) = scratch("whole");
        let mut events = EventFile::new(file, None);
        (0..1000).for_each(|_| events.put(&event(Op::Connect, EventStage::Opened, Action::Allow)));
        assert_eq!(events.close(), (0, None));
        assert_eq!(lines(&std::fs::read(&path).unwrap()).len(), 1000);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_line_that_broke_off_is_taken_back() {
        let (path, mut file) = scratch("broken");
        file.write_all(b"{}\n{\"brok").unwrap();
        let mut events = EventFile::new(file, None);
        events.truncate_partial(6);
        events.put(&event(Op::Connect, EventStage::Opened, Action::Allow));
        assert_eq!(lines(&std::fs::read(&path).unwrap()).len(), 2);
        std::fs::remove_file(&path).unwrap();
        // A pipe cannot be truncated: the next line starts on its own.
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"{\"brok").unwrap();
        let mut events = EventFile::new(File::from(std::os::fd::OwnedFd::from(writer)), None);
        events.truncate_partial(6);
        events.put(&event(Op::Connect, EventStage::Opened, Action::Allow));
        drop(events);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(lines(text.split_once('\n').unwrap().1.as_bytes()).len(), 1);
    }

    // promise 9
    #[test]
    fn what_cannot_be_written_is_counted_with_its_reason() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut events = EventFile::new(full, None);
        (0..3).for_each(|_| events.put(&event(Op::Connect, EventStage::Refused, Action::Deny)));
        let (dropped, reason) = events.close();
        assert_eq!(dropped, 3);
        assert!(reason.unwrap().contains("No space left"));
    }

    // promise 9
    #[test]
    fn no_text_makes_a_line_too_long() {
        let (path, file) = scratch("long");
        let mut events = EventFile::new(file, None);
        let odd = "\u{1}\"".repeat(9000);
        let one = Event {
            rule: odd.clone(),
            name: Some(odd.clone()),
            method: Some(odd.clone()),
            path: Some(odd.clone()),
            reason: Some(odd.clone()),
            actor: Some(Actor { pid: i32::MAX, exe: odd.clone() }),
            bytes_in: u64::MAX,
            bytes_out: u64::MAX,
            ..event(Op::Request, EventStage::Refused, Action::Deny)
        };
        events.put(&one);
        events.socket(Path::new(&odd), &odd, Action::Deny, &Actor { pid: 1, exe: odd.clone() });
        assert_eq!(events.close(), (0, None));
        assert_eq!(lines(&std::fs::read(&path).unwrap()).len(), 2);
        std::fs::remove_file(&path).unwrap();
    }

    // promise 9
    #[test]
    fn a_reader_that_does_not_read_makes_nobody_wait() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut file = EventFile::new(File::from(std::os::fd::OwnedFd::from(writer)), None);
        let one = Event { path: Some("x".repeat(10_000)), ..event(Op::Request, EventStage::Opened, Action::Allow) };
        (0..1000).for_each(|_| file.put(&one));
        assert!(file.lost > 0);
        let mut buffer = vec![0; 1 << 20];
        let first = reader.read(&mut buffer).unwrap();
        let lines = buffer[..first].split(|b| *b == b'\n').filter(|l| !l.is_empty());
        for line in lines {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!((&line["op"], &line["port"]), (&"net.request".into(), &443.into()));
        }
        file.put(&one);
        assert_eq!(file.lost, 0);
        drop(file);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.contains(r#""op":"net.lost""#), "{rest}");
    }
}
