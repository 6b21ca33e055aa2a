//! Reader of the network event log that a keeper writes (`events::parts`): addressed by line number, whole lines at a time. Read-only, and
//! the content is not trusted: deleted lines and lines that no keeper wrote are counted as missing.

use crate::Node;
use crate::events::parts;
use crate::events::{DEFAULT_MAX, LONGEST_LINE};
use crate::keeper_dir::place::KeeperDir;
use crate::owned_file::open_own;
use serde_json::{Map, Value};
use state::Caller;
use state::sandbox;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;
use terms::clock::timestamp;
use terms::{ErrorKind, Fault, Phase};

/// Read size; far more than a line.
const READ_SIZE: usize = 256 << 10;
/// Attempts to open a part: one may be deleted between listing and opening, and so may the next, but not without end.
const TRIES: usize = 8;

/// Position of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPosition {
    /// Number of the next line to return.
    next: u64,
    place: Option<PartPosition>,
}

/// Position within a part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PartPosition {
    /// Number of the part's first line, which names it.
    first: u64,
    byte: u64,
    /// Number of the line at `byte`.
    line: u64,
    /// The line began before `byte` and exceeds the longest valid line.
    is_long: bool,
}

impl JournalPosition {
    /// Position before the line with this number; 0 is the first line ever written.
    pub fn before(number: u64) -> JournalPosition {
        JournalPosition { next: number, place: None }
    }
}

/// A batch of lines, each with the number of the line after it.
#[derive(Debug, PartialEq, Eq)]
pub struct JournalPage {
    pub lines: Vec<(u64, String)>,
    /// Position to continue from.
    pub spot: JournalPosition,
    /// More lines can be read now.
    pub more: bool,
    /// No keeper writes any more, and the last line has been read.
    pub over: bool,
}

/// Reads the events of a sandbox from a position on.
pub fn read(node: &Node, caller: &Caller, word: &str, spot: JournalPosition) -> Result<JournalPage, Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    // Checked before reading, so that everything a keeper wrote before it exited is seen.
    let is_live = KeeperDir::of(&state.path, &found.id).has_keeper();
    let page = page(&KeeperDir::of(&state.path, &found.id).dir, spot).map_err(|e| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("{}: cannot read its events: {e}", found.id));
        fault.subject(&found.id).phase(Phase::Delivery).hint("check its files below `keepers` in the state directory")
    })?;
    Ok(JournalPage { over: !is_live && !page.more, ..page })
}

fn page(dir: &Path, spot: JournalPosition) -> io::Result<JournalPage> {
    for _ in 0..TRIES {
        let parts = match parts::all(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            all => all?,
        };
        let known = spot.place.clone().filter(|place| parts.contains(&place.first));
        let begins = parts.iter().rev().find(|first| **first <= spot.next).or(parts.first());
        let found = || begins.map(|first| PartPosition { first: *first, byte: 0, line: *first, is_long: false });
        let Some(place) = known.or_else(found) else {
            return Ok(JournalPage { lines: Vec::new(), spot, more: false, over: false });
        };
        match open_own(&parts::path(dir, place.first), File::options().read(true)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            file => {
                let later = parts.iter().find(|first| **first > place.first).copied();
                return PageBuilder::new(spot.next, place).read(file?, later);
            }
        }
    }
    Err(io::Error::other("its files keep changing"))
}

/// A page under construction.
struct PageBuilder {
    lines: Vec<(u64, String)>,
    next: u64,
    place: PartPosition,
    /// Missing lines that are not reported yet.
    missing: u64,
}

impl PageBuilder {
    fn new(next: u64, place: PartPosition) -> PageBuilder {
        let mut reading = PageBuilder { lines: Vec::new(), next, place, missing: 0 };
        reading.skip_to(reading.place.line);
        reading
    }

    /// Reads on in a part. `later` is the part after it; where there is one, this part is complete.
    fn read(mut self, mut file: File, later: Option<u64>) -> io::Result<JournalPage> {
        if file.metadata()?.len() > DEFAULT_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a file is longer than the maximum"));
        }
        file.seek(SeekFrom::Start(self.place.byte))?;
        let mut bytes = Vec::with_capacity(READ_SIZE);
        file.take(READ_SIZE as u64).read_to_end(&mut bytes)?;
        self.take(&bytes, later.unwrap_or(u64::MAX));
        let is_end = bytes.len() < READ_SIZE;
        if let Some(first) = later.filter(|first| is_end || self.place.line >= *first) {
            self.skip_to(first);
            self.place = PartPosition { first, byte: 0, line: first, is_long: false };
        }
        self.report_missing(None);
        let more = !is_end || later.is_some();
        Ok(JournalPage {
            lines: self.lines,
            spot: JournalPosition { next: self.next, place: Some(self.place) },
            more,
            over: false,
        })
    }

    /// Takes the complete lines, up to the first line of the next part.
    fn take(&mut self, bytes: &[u8], end: u64) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.place.line >= end {
                return;
            }
            let is_whole = line.ends_with(b"\n");
            if is_whole || line.len() > LONGEST_LINE {
                self.place.byte += line.len() as u64;
            }
            if is_whole {
                let is_long = std::mem::take(&mut self.place.is_long);
                self.place.line += 1;
                self.put(event(line).filter(|_| !is_long));
            } else {
                self.place.is_long |= line.len() > LONGEST_LINE;
            }
        }
    }

    fn put(&mut self, line: Option<&str>) {
        if self.place.line <= self.next {
            return;
        }
        self.next = self.place.line;
        match line {
            Some(line) => {
                self.report_missing(Some(line));
                self.lines.push((self.next, line.to_owned()));
            }
            None => self.missing += 1,
        }
    }

    /// Adds a `net.lost` line before a line, or at the end.
    fn report_missing(&mut self, before: Option<&str>) {
        if self.missing == 0 {
            return;
        }
        let time =
            before.and_then(|line| serde_json::from_str::<Value>(line).ok()?["time"].as_str().map(str::to_owned));
        let time = time.unwrap_or_else(|| timestamp(SystemTime::now()));
        let reason = "they were dropped for newer ones, or cannot be read";
        let told = serde_json::json!({"time": time, "op": "net.lost", "count": self.missing, "reason": reason});
        self.lines.push((self.next - u64::from(before.is_some()), told.to_string()));
        self.missing = 0;
    }

    fn skip_to(&mut self, number: u64) {
        self.missing += number.saturating_sub(self.next);
        self.next = self.next.max(number);
    }
}

/// Accepts a line as a keeper writes it: a JSON object with an operation and without control characters.
fn event(line: &[u8]) -> Option<&str> {
    let line = line.strip_suffix(b"\n")?;
    let text =
        std::str::from_utf8(line).ok().filter(|text| line.len() < LONGEST_LINE && !text.contains(char::is_control))?;
    let object: Map<String, Value> = serde_json::from_str(text).ok()?;
    object.get("op")?.is_string().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventFile;
    use crate::network::test::event as happened;
    use egress::event::{EventStage, Op};
    use std::path::PathBuf;
    use terms::Action;

    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Dir {
            let dir = std::env::temp_dir().join(terms::id("parts", sys::random::id_bytes()));
            std::fs::create_dir(&dir).unwrap();
            Dir(dir)
        }

        fn put(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.0.join(name), bytes).unwrap();
        }

        fn size(&self) -> u64 {
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Reads everything from a number on: each line's number with its rule, or the count of missing lines. Panics if reading does not end.
    fn told(dir: &Dir, from: u64) -> Vec<(u64, Result<String, u64>)> {
        let (mut spot, mut all) = (JournalPosition::before(from), Vec::new());
        for _ in 0..1000 {
            let page = page(&dir.0, spot).unwrap();
            for (behind, line) in page.lines {
                let line: Value = serde_json::from_str(&line).unwrap();
                assert!(all.last().is_none_or(|(before, _)| *before < behind), "{all:?} {behind}");
                all.push((
                    behind,
                    match line["op"] == "net.lost" {
                        true => Err(line["count"].as_u64().unwrap()),
                        false => Ok(line["rule"].as_str().unwrap_or_default().to_owned()),
                    },
                ));
            }
            if !page.more {
                return all;
            }
            spot = page.spot;
        }
        panic!("it does not end");
    }

    fn fill(file: &mut EventFile, numbers: std::ops::Range<u64>) {
        for n in numbers {
            file.put(&egress::event::Event {
                rule: n.to_string(),
                ..happened(Op::Connect, EventStage::Opened, Action::Allow)
            });
        }
    }

    /// Regression: a full log never returned a new event again.
    // promise 9
    #[test]
    fn the_newest_are_kept_and_the_rest_is_counted() {
        const MAX: u64 = 64 << 10;
        let dir = Dir::new();
        let mut file = EventFile::in_parts(&dir.0, MAX).unwrap();
        fill(&mut file, 0..1000);
        assert!(dir.size() <= MAX && dir.size() > MAX / 2, "{}", dir.size());
        let all = told(&dir, 0);
        let Err(lost) = all[0].1 else { panic!("{:?}", all[0]) };
        assert!(lost > 500, "{lost}");
        assert_eq!(all[0].0, lost);
        let rest: Vec<_> = (lost..1000).map(|n| (n + 1, Ok(n.to_string()))).collect();
        assert_eq!(all[1..], rest);
        // A reader resumes exactly at its position, or learns how many lines it missed.
        assert_eq!(told(&dir, 990), rest[rest.len() - 10..]);
        assert_eq!(told(&dir, lost - 3)[0], (lost, Err(3)));
        assert_eq!(told(&dir, lost), rest);
        assert_eq!(told(&dir, 1000), []);
        // The next keeper continues the numbering, also after an incomplete line.
        drop(file);
        let newest = parts::all(&dir.0).unwrap().pop().unwrap();
        let mut broken = File::options().append(true).open(parts::path(&dir.0, newest)).unwrap();
        io::Write::write_all(&mut broken, b"{\"op\":\"net.con").unwrap();
        let mut file = EventFile::in_parts(&dir.0, MAX).unwrap();
        fill(&mut file, 1001..1003);
        assert_eq!(told(&dir, 1000), [(1001, Err(1)), (1002, Ok("1001".into())), (1003, Ok("1002".into()))]);
    }

    /// A reader concurrent with the writer gets each line once, in order, or a count of the lines it missed.
    // promise 9
    #[test]
    fn a_reader_that_is_overtaken_knows() {
        let dir = Dir::new();
        let mut file = EventFile::in_parts(&dir.0, crate::events::LEAST_MAX).unwrap();
        let (mut spot, mut heard, mut next) = (JournalPosition::before(0), 0, 0);
        for round in 0..200u64 {
            fill(&mut file, next..next + round % 23);
            next += round % 23;
            loop {
                let page = page(&dir.0, spot).unwrap();
                for (behind, line) in &page.lines {
                    let line: Value = serde_json::from_str(line).unwrap();
                    heard += if line["op"] == "net.lost" { line["count"].as_u64().unwrap() } else { 1 };
                    assert_eq!(*behind, heard);
                }
                spot = page.spot;
                if !page.more {
                    break;
                }
            }
            assert_eq!(heard, next, "round {round}");
        }
        assert!(dir.size() <= crate::events::LEAST_MAX);
    }

    // promise 9
    #[test]
    fn what_no_keeper_wrote_is_counted_and_never_told() {
        let good = |rule: &str| format!("{{\"op\":\"net.connect\",\"rule\":\"{rule}\"}}\n");
        let long = format!("{{\"op\":\"{}\"}}\n", "x".repeat(1 << 20));
        let cases: [(&[u8], u64); 12] = [
            (b"\n", 1),
            (b"{\"op\":\"cut\n", 1),
            (b"\xff\xfe\0\n", 1),
            (b"\0\0\0\n\n\n", 3),
            (long.as_bytes(), 1),
            (b"[]\n", 1),
            (b"{\"op\":7}\n", 1),
            (b"{\"rule\":\"x\"}\n", 1),
            (b"{\"op\":\r\"x\"}\n", 1),
            (b"{\"op\":\"\x1b[2J\"}\n", 1),
            (&[b'['; 3000], 0),
            ("{\"op\":\"\u{9b}2J\"}\n".as_bytes(), 1),
        ];
        for (bytes, lines) in cases {
            let dir = Dir::new();
            // An unterminated line swallows the one after it.
            let whole = u64::from(lines > 0);
            dir.put(
                "events.jsonl",
                &[good("a").as_bytes(), bytes, good("b").as_bytes(), good("c").as_bytes()].concat(),
            );
            let lost = lines.max(1);
            let mut expected = vec![(1, Ok("a".to_owned())), (1 + lost, Err(lost))];
            expected.extend((whole > 0).then(|| (2 + lost, Ok("b".to_owned()))));
            expected.push((2 + lost + whole, Ok("c".to_owned())));
            assert_eq!(told(&dir, 0), expected, "{}", bytes.escape_ascii());
        }
    }

    // promise 9
    #[test]
    fn parts_that_lie_neither_stop_nor_loop() {
        let line = |rule: &str| format!("{{\"op\":\"net.connect\",\"rule\":\"{rule}\"}}\n");
        let dir = Dir::new();
        // A part with too few lines, one with too many, an empty one, and invalid names.
        dir.put("events.jsonl", line("a").as_bytes());
        dir.put("events.3.jsonl", [line("b"), line("c"), line("d")].concat().as_bytes());
        dir.put("events.4.jsonl", b"");
        dir.put("events.9.jsonl", line("e").as_bytes());
        dir.put("events.99999999999999999999.jsonl", line("f").as_bytes());
        dir.put("events.x.jsonl", line("g").as_bytes());
        let expected = [(1, Ok("a".into())), (3, Err(2)), (4, Ok("b".into())), (9, Err(5)), (10, Ok("e".to_owned()))];
        assert_eq!(told(&dir, 0), expected);
        assert_eq!(told(&dir, 10), []);
        assert_eq!(told(&dir, u64::MAX), []);
        // A file longer than any keeper writes is a fault; the next keeper deletes it.
        File::create(dir.0.join("events.9.jsonl")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(page(&dir.0, JournalPosition::before(9)).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut file = EventFile::in_parts(&dir.0, 64 << 10).unwrap();
        fill(&mut file, 10..11);
        assert_eq!(told(&dir, 4), [(10, Err(6)), (11, Ok("10".to_owned()))]);
        // A symbolic link is a fault as well.
        let dir = Dir::new();
        std::os::unix::fs::symlink("/etc/passwd", dir.0.join("events.jsonl")).unwrap();
        assert!(page(&dir.0, JournalPosition::before(0)).is_err() && EventFile::in_parts(&dir.0, 9).is_err());
    }
}
