//! The journal of a run's network: one JSON object a line, where the caller wants it. It is bounded, makes nobody wait, and
//! what is not in it is counted.

use crate::fresh::timestamp;
use crate::keeper::parts::Parts;
use crate::network::without_query;
use crate::roster::{Roster, Runs};
use egress::event::{Event, Stage};
use serde::Serialize;
use std::fs::File;
use std::io::{Error, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::SystemTime;
use terms::{Action, Actor};

/// What a file may grow to unless the caller says otherwise.
pub const DEFAULT_MAX: u64 = 64 << 20;
/// The least that it can be told to hold: a few lines.
pub const LEAST_MAX: u64 = 4096;
/// The longest line; a pipe that says it is writable takes this much without making us wait.
pub(crate) const LONGEST_LINE: usize = 4096;
/// The longest text from outside in a line, as it is written.
const LONGEST_TEXT: usize = 512;
/// Room for the last line, which says how many are missing.
const LAST_LINE: u64 = 256;

/// Where the caller wants all network events. A reader that does not read makes nobody wait: what has no room is counted,
/// and the count is told when there is room again, or at the end.
pub struct EventFile {
    file: File,
    /// Where the newest are kept and the oldest go; without, the first are kept.
    parts: Option<Parts>,
    is_regular: bool,
    max: u64,
    written: u64,
    /// Nothing but the last line follows.
    is_full: bool,
    /// A line broke off and could not be taken back.
    is_cut: bool,
    /// Not written, and not told yet.
    lost: u64,
    dropped: u64,
    reason: Option<String>,
    /// Whose what no broker tells of can be, and by which version of the rules it is judged.
    roster: Roster,
    revision: u64,
}

/// One event as it is written.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    /// Which run it came from; empty where that cannot be told.
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
    /// `max` is how many bytes are written at most. Without, a file has a bound all the same, and a pipe, which somebody
    /// empties, has none.
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

    /// What is written from now on came from these runs, and was judged by rules of this version.
    pub(crate) fn of(&mut self, roster: &Roster, revision: u64) {
        (self.roster, self.revision) = (roster.clone(), revision);
    }

    /// A journal in parts, which keeps the newest, behind what is there already.
    pub(crate) fn in_parts(dir: &Path, max: u64) -> std::io::Result<EventFile> {
        let (parts, file, is_cut) = Parts::open(dir, max)?;
        Ok(EventFile { parts: Some(parts), is_cut, ..EventFile::new(file, None) })
    }

    /// A line that was written elsewhere. What is none is counted as one that is missing.
    pub fn pass_on(&mut self, line: &str) {
        match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line) {
            Ok(line) => {
                if line.get("op").is_some_and(|op| op == "net.lost") {
                    let count = line.get("count").and_then(serde_json::Value::as_u64).unwrap_or(1);
                    self.dropped = self.dropped.saturating_add(count);
                    self.reason.get_or_insert_with(|| "the daemon did not write them down".to_owned());
                }
                if let Err(why) = self.write(&line) {
                    self.drop(1, &why);
                }
            }
            Err(e) => self.drop(1, &format!("what came is no event: {e}")),
        }
    }

    pub(crate) fn put(&mut self, event: &Event) {
        self.line(&Line {
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

    /// A socket of the host that the guest connected to, or would have.
    pub(crate) fn socket(&mut self, path: &Path, rule: &str, action: Action, actor: &Actor) {
        let passed = matches!(action, Action::Allow | Action::Warn);
        let stage = if passed { Stage::Opened } else { Stage::Refused };
        self.local(egress::event::Op::Connect.name(), stage, action, rule, &path.to_string_lossy(), actor);
    }

    /// A socket or a file of the host that a person is asked about.
    pub(crate) fn asked(&mut self, op: &'static str, target: &str, rule: &str, actor: &Actor) {
        let path = target.strip_prefix("unix:").unwrap_or(target);
        self.local(op, Stage::Asked, Action::Ask, rule, path, actor);
    }

    fn local(&mut self, op: &'static str, at: Stage, action: Action, rule: &str, path: &str, actor: &Actor) {
        let of_file = op.starts_with("fs.");
        let run = match self.roster.now() {
            Runs::One(run) => Some(run),
            _ => None,
        };
        self.line(&Line {
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

    /// Counts what never came here because it was too much at once.
    pub(crate) fn lost(&mut self, count: u64) {
        if count > 0 {
            self.drop(count, "there were too many at once");
            self.tell_lost();
        }
    }

    /// Writes the last line where one is needed; how many events are missing, and why.
    pub fn close(&mut self) -> (u64, Option<String>) {
        self.is_full = false;
        self.max = self.max.saturating_add(LAST_LINE);
        self.tell_lost();
        (self.dropped, self.reason.take())
    }

    fn line(&mut self, line: &Line<'_>) {
        if !self.is_full {
            self.tell_lost();
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

    fn tell_lost(&mut self) {
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
        match self.pass(text.as_bytes()) {
            Ok(()) => {
                self.parts.iter_mut().for_each(|parts| parts.wrote(len, 1 + u64::from(self.is_cut)));
                (self.written, self.is_cut) = (self.written + len, false);
                Ok(())
            }
            Err((passed, error)) => {
                self.take_back(passed);
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

    /// Writes it all, or says how much was.
    fn pass(&mut self, text: &[u8]) -> Result<(), (usize, Error)> {
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

    /// A full disk takes part of a line. What nobody wrote behind is taken back; elsewhere the next line begins anew.
    fn take_back(&mut self, passed: usize) {
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

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Asked => "asked",
        Stage::Opened => "opened",
        Stage::Refused => "refused",
        Stage::Failed => "failed",
        Stage::Closed => "closed",
    }
}

/// As much of a text as fits a line. Counted as it will be written: a guest must not make a line too long by what it calls
/// its programs.
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

    #[test]
    fn a_file_is_bounded_and_says_what_it_lacks() {
        let (path, file) = scratch("bounded");
        let mut events = EventFile::new(file, Some(LEAST_MAX));
        (0..1000).for_each(|_| events.put(&event(Op::Connect, Stage::Opened, Action::Allow)));
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
        (0..1000).for_each(|_| events.put(&event(Op::Connect, Stage::Opened, Action::Allow)));
        assert_eq!(events.close(), (0, None));
        assert_eq!(lines(&std::fs::read(&path).unwrap()).len(), 1000);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_line_that_broke_off_is_taken_back() {
        let (path, mut file) = scratch("broken");
        file.write_all(b"{}\n{\"brok").unwrap();
        let mut events = EventFile::new(file, None);
        events.take_back(6);
        events.put(&event(Op::Connect, Stage::Opened, Action::Allow));
        assert_eq!(lines(&std::fs::read(&path).unwrap()).len(), 2);
        std::fs::remove_file(&path).unwrap();
        // Nothing is taken back from a pipe: the next line stands for itself.
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"{\"brok").unwrap();
        let mut events = EventFile::new(File::from(std::os::fd::OwnedFd::from(writer)), None);
        events.take_back(6);
        events.put(&event(Op::Connect, Stage::Opened, Action::Allow));
        drop(events);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(lines(text.split_once('\n').unwrap().1.as_bytes()).len(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_counted_with_its_reason() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut events = EventFile::new(full, None);
        (0..3).for_each(|_| events.put(&event(Op::Connect, Stage::Refused, Action::Deny)));
        let (dropped, reason) = events.close();
        assert_eq!(dropped, 3);
        assert!(reason.unwrap().contains("No space left"));
    }

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
            ..event(Op::Request, Stage::Refused, Action::Deny)
        };
        events.put(&one);
        events.socket(Path::new(&odd), &odd, Action::Deny, &Actor { pid: 1, exe: odd.clone() });
        assert_eq!(events.close(), (0, None));
        assert_eq!(lines(&std::fs::read(&path).unwrap()).len(), 2);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_reader_that_does_not_read_makes_nobody_wait() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut file = EventFile::new(File::from(std::os::fd::OwnedFd::from(writer)), None);
        let one = Event { path: Some("x".repeat(10_000)), ..event(Op::Request, Stage::Opened, Action::Allow) };
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
