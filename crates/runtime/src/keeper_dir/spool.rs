//! Spool of a run's output: one log of framed records in segments that are named by their first offset. The keeper writes it; every process
//! that may read the state directory can read it, also after keeper and run have ended.
//!
//! ```text
//!  runs/<run>/0000000000000000.spool   head │ payload │ head │ payload │ …      at most 4 MiB
//!  runs/<run>/00000000003fffe0.spool   …                                        at most 16 are kept
//!  head: u32 length │ u8 kind │ 3 zero bytes │ u64 milliseconds since 1970      little endian
//! ```
//!
//! An offset is a position in the whole log where a record begins. A record that a crash cut short does not count: readers stop before it,
//! and the next writer truncates it.

use crate::owned_file::open_own;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Size bound of a segment.
pub const SEGMENT: u64 = 4 << 20;
/// Bound on segments kept of one log; older ones are deleted.
pub const KEPT: usize = 16;
/// Longest payload.
pub const MOST: usize = 256 << 10;
/// Length of a record's header.
pub const HEAD: usize = 16;
/// Longest log that is sent as a whole.
const LITTLE: u64 = 64 << 10;
/// Bound on segment names in a directory: the kept ones, and old ones that the writer could not delete.
const MOST_SEGMENTS: usize = 16 * KEPT;
/// Largest offset: higher numbers in names are ignored, so that sums of offsets cannot overflow.
const LAST: u64 = i64::MAX as u64;
/// Read size for walking record headers.
const PIECE: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Stdout,
    Stderr,
    /// Merged output of a terminal.
    Terminal,
    /// Number of output bytes that were not kept, as eight bytes.
    Dropped,
    /// The outcome as JSON; the last record.
    End,
}

impl RecordKind {
    fn of(byte: u8) -> Option<RecordKind> {
        [RecordKind::Stdout, RecordKind::Stderr, RecordKind::Terminal, RecordKind::Dropped, RecordKind::End]
            .into_iter()
            .find(|k| k.byte() == byte)
    }

    fn byte(self) -> u8 {
        match self {
            RecordKind::Stdout => 1,
            RecordKind::Stderr => 2,
            RecordKind::Terminal => 3,
            RecordKind::Dropped => 4,
            RecordKind::End => 5,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset of the record.
    pub offset: u64,
    pub kind: RecordKind,
    pub at_ms: u64,
    pub bytes: Vec<u8>,
}

impl Record {
    /// Builds a record of dropped bytes.
    pub fn dropped_of(offset: u64, at_ms: u64, count: u64) -> Record {
        Record { offset, kind: RecordKind::Dropped, at_ms, bytes: count.to_le_bytes().to_vec() }
    }

    /// Returns the count of a `Dropped` record.
    pub fn dropped(&self) -> Option<u64> {
        (self.kind == RecordKind::Dropped)
            .then(|| self.bytes.as_slice().try_into().ok().map(u64::from_le_bytes))
            .flatten()
    }
}

struct Head {
    length: usize,
    kind: RecordKind,
    at_ms: u64,
}

impl Head {
    fn write(kind: RecordKind, at_ms: u64, length: usize) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(length as u32).to_le_bytes());
        head[4] = kind.byte();
        head[8..].copy_from_slice(&at_ms.to_le_bytes());
        head
    }

    /// Parses a header; `None` for bytes that no writer wrote, such as zeros that a file system left after a power failure.
    fn read(bytes: &[u8; HEAD]) -> Option<Head> {
        let [a, b, c, d, kind, 0, 0, 0, time @ ..] = bytes else { return None };
        let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let kind = RecordKind::of(*kind)?;
        (length <= MOST).then(|| Head { length, kind, at_ms: u64::from_le_bytes(*time) })
    }
}

fn name(first: u64) -> String {
    format!("{first:016x}.spool")
}

/// Lists the first offsets of the segments, in order.
fn segments(dir: &Path) -> io::Result<Vec<u64>> {
    check_own(dir)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let file = entry?.file_name();
        let first = file.to_str().and_then(|name| name.strip_suffix(".spool")).filter(|hex| hex.len() == 16);
        found.extend(first.and_then(|hex| u64::from_str_radix(hex, 16).ok()).filter(|first| *first <= LAST));
        if found.len() > MOST_SEGMENTS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more segments than any writer leaves"));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The writer of a log.
#[derive(Debug)]
pub struct SpoolWriter {
    dir: PathBuf,
    segments: Vec<u64>,
    file: File,
    /// Offset of the next record.
    next: u64,
    ended: bool,
    /// A failed write left a partial record that could not be truncated.
    torn: bool,
}

impl SpoolWriter {
    /// Creates the directory and starts a log in it.
    pub fn create(dir: &Path) -> io::Result<SpoolWriter> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let file = open_new(dir, 0)?;
        let (dir, segments) = (dir.to_path_buf(), vec![0]);
        Ok(SpoolWriter { dir, segments, file, next: 0, ended: false, torn: false })
    }

    /// Resumes a log whose writer is gone, truncating a partial record.
    pub fn take_up(dir: &Path) -> io::Result<SpoolWriter> {
        let segments = segments(dir)?;
        let Some(&first) = segments.last() else { return SpoolWriter::create(dir) };
        let file = open_own(&dir.join(name(first)), OpenOptions::new().read(true).append(true))?;
        let mut walk = HeaderWalk::new(&file);
        let (mut whole, mut ended) = (0, false);
        while let Some((at, head)) = walk.next()? {
            whole = at + (HEAD + head.length) as u64;
            ended = head.kind == RecordKind::End;
        }
        file.set_len(whole)?;
        Ok(SpoolWriter { dir: dir.to_path_buf(), segments, file, next: first + whole, ended, torn: false })
    }

    /// Offset of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Appends a record of at most `MOST` bytes; returns its offset.
    pub fn append(&mut self, kind: RecordKind, at_ms: u64, bytes: &[u8]) -> io::Result<u64> {
        if bytes.len() > MOST || self.ended || self.torn {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let whole = (HEAD + bytes.len()) as u64;
        let first = self.segments.last().copied().unwrap_or(0);
        if self.next > first && self.next + whole - first > SEGMENT {
            self.roll()?;
        }
        let mut record = Vec::with_capacity(whole as usize);
        record.extend_from_slice(&Head::write(kind, at_ms, bytes.len()));
        record.extend_from_slice(bytes);
        let begun = self.next;
        if let Err(error) = self.file.write_all(&record) {
            // A full disk takes a partial record, which must not precede later ones.
            let first = self.segments.last().copied().unwrap_or(0);
            self.torn = self.file.set_len(begun - first).is_err();
            return Err(error);
        }
        self.next += whole;
        self.ended = kind == RecordKind::End;
        Ok(begun)
    }

    /// Returns the whole log up to an offset, where it is short and no segment was deleted.
    pub fn whole(&self, end: Option<u64>) -> Option<Vec<u8>> {
        let length = end.filter(|end| *end <= LITTLE && self.segments == [0])?;
        let mut log = vec![0; length as usize];
        self.file.read_exact_at(&mut log, 0).ok().map(|()| log)
    }

    /// Appends the last record: the outcome.
    pub fn end(&mut self, at_ms: u64, outcome: &[u8]) -> io::Result<u64> {
        self.append(RecordKind::End, at_ms, outcome)
    }

    fn roll(&mut self) -> io::Result<()> {
        self.file = open_new(&self.dir, self.next)?;
        self.segments.push(self.next);
        while self.segments.len() > KEPT {
            let oldest = self.segments.remove(0);
            match std::fs::remove_file(self.dir.join(name(oldest))) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

fn open_segment(dir: &Path, first: u64) -> io::Result<File> {
    open_own(&dir.join(name(first)), OpenOptions::new().read(true))
}

/// Checks that the log's directory and its parents up to the keeper's own are directories: a symbolic link would lead to files of another
/// owner.
fn check_own(dir: &Path) -> io::Result<()> {
    for dir in dir.ancestors().take(3) {
        if !std::fs::symlink_metadata(dir)?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its directory was replaced by something else"));
        }
    }
    Ok(())
}

fn open_new(dir: &Path, first: u64) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(dir.join(name(first)))
}

/// Parses the complete records of a whole log.
pub fn records(mut log: &[u8]) -> Vec<Record> {
    let (mut all, mut offset) = (Vec::new(), 0);
    while let Some((head, rest)) = log.split_first_chunk::<HEAD>() {
        let Some(Head { length, kind, at_ms }) = Head::read(head) else { break };
        let Some((bytes, behind)) = rest.split_at_checked(length) else { break };
        all.push(Record { offset, kind, at_ms, bytes: bytes.to_vec() });
        (offset, log) = (offset + (HEAD + length) as u64, behind);
    }
    all
}

/// Iterates over record headers, reading the file in pieces.
struct HeaderWalk<'a> {
    file: &'a File,
    piece: Vec<u8>,
    /// Offset of the piece, and of the next header.
    begins: u64,
    at: u64,
    length: u64,
}

impl<'a> HeaderWalk<'a> {
    fn new(file: &'a File) -> HeaderWalk<'a> {
        HeaderWalk { file, piece: Vec::new(), begins: 0, at: 0, length: u64::MAX }
    }

    /// Returns the next complete record.
    fn next(&mut self) -> io::Result<Option<(u64, Head)>> {
        if self.length == u64::MAX {
            // No writer goes past the end of a segment, so bytes behind it are ignored.
            self.length = self.file.metadata()?.len().min(SEGMENT);
        }
        if self.at + HEAD as u64 > self.length {
            return Ok(None);
        }
        let ends = self.begins + self.piece.len() as u64;
        if self.at < self.begins || self.at + HEAD as u64 > ends {
            self.piece.resize(PIECE, 0);
            let got = read_at(self.file, &mut self.piece, self.at)?;
            self.piece.truncate(got);
            self.begins = self.at;
        }
        let from = (self.at - self.begins) as usize;
        let Some(bytes) = self.piece.get(from..from + HEAD).and_then(|b| b.try_into().ok()) else { return Ok(None) };
        let Some(head) = Head::read(bytes) else { return Ok(None) };
        let begun = self.at;
        let end = begun + (HEAD + head.length) as u64;
        if end > self.length {
            return Ok(None);
        }
        self.at = end;
        Ok(Some((begun, head)))
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// Result of one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpoolPage {
    pub records: Vec<Record>,
    /// Offset to continue from.
    pub next: u64,
    /// Requested range that is no longer kept.
    pub gap: Option<(u64, u64)>,
    /// The end record has been read.
    pub ended: bool,
}

/// Reasons why nothing could be read.
#[derive(Debug)]
pub enum ReadError {
    /// The offset is not, and will never be, the start of a record.
    NoRecord {
        offset: u64,
    },
    Io(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

/// A reader of a log, whether it still grows or not.
#[derive(Debug)]
pub struct SpoolReader {
    dir: PathBuf,
    /// Segment that was read last, by its first offset.
    open: Option<(u64, File)>,
    /// Offset that is known to start a record.
    known: u64,
    /// The record before `known` was the end record.
    ended: bool,
}

/// Retries when segments are deleted between listing and opening.
const VANISHED: u32 = 16;

impl SpoolReader {
    pub fn open(dir: &Path) -> io::Result<SpoolReader> {
        check_own(dir)?;
        Ok(SpoolReader { dir: dir.to_path_buf(), open: None, known: 0, ended: false })
    }

    /// Returns the last record of a log.
    pub fn last(dir: &Path) -> io::Result<Option<Record>> {
        let mut all = segments(dir)?;
        while let Some(first) = all.pop() {
            let file = open_segment(dir, first)?;
            let mut walk = HeaderWalk::new(&file);
            let mut last = None;
            while let Some((at, _)) = walk.next()? {
                last = Some(first + at);
            }
            if let Some(at) = last {
                let reader = SpoolReader { dir: dir.to_path_buf(), open: Some((first, file)), known: at, ended: false };
                return Ok(reader.record(at)?.map(|(record, _)| record));
            }
        }
        Ok(None)
    }

    /// Returns the last records, up to `most` bytes but at least one record, and whether there are others before them.
    pub fn tail(dir: &Path, most: usize) -> io::Result<(Vec<Record>, bool)> {
        let (mut last, mut size): (VecDeque<(u64, usize)>, usize) = (VecDeque::new(), 0);
        let all = segments(dir)?;
        // The last segment may have just begun; two hold more than any tail.
        for first in all.iter().skip(all.len().saturating_sub(2)) {
            let file = open_segment(dir, *first)?;
            let mut walk = HeaderWalk::new(&file);
            while let Some((at, head)) = walk.next()? {
                last.push_back((first + at, head.length));
                size += head.length;
                while size > most && last.len() > 1 {
                    size -= last.pop_front().map_or(0, |(_, length)| length);
                }
            }
        }
        let begins = last.front().map_or(0, |(at, _)| *at);
        match SpoolReader::open(dir)?.read(begins, most) {
            Ok(page) => Ok((page.records, begins > 0)),
            Err(ReadError::Io(error)) => Err(error),
            Err(ReadError::NoRecord { .. }) => Ok((Vec::new(), true)),
        }
    }

    /// Reads records from an offset on, up to `most` bytes of payload but at least one record, if there is one.
    pub fn read(&mut self, from: u64, most: usize) -> Result<SpoolPage, ReadError> {
        let (begin, gap) = self.seek(from)?;
        let mut page = SpoolPage { next: begin, gap, ..SpoolPage::default() };
        self.fill(&mut page, most)?;
        // A reader at the end of an old segment may find that the segments after it were deleted meanwhile.
        if page.records.is_empty() && !page.ended && segments(&self.dir)?.first().is_some_and(|oldest| *oldest > begin)
        {
            self.open = None;
            let (begin, gap) = self.seek(from)?;
            page = SpoolPage { next: begin, gap, ..SpoolPage::default() };
            self.fill(&mut page, most)?;
        }
        (self.known, self.ended) = (page.next, page.ended);
        Ok(page)
    }

    fn fill(&mut self, page: &mut SpoolPage, most: usize) -> Result<(), ReadError> {
        page.ended = self.ended && page.next == self.known;
        let mut size = 0;
        while !page.ended && size < most.max(1) {
            let Some((record, ends)) = self.record(page.next)? else {
                // At the end of a segment, the next one begins.
                if self.step(page.next)? {
                    continue;
                }
                break;
            };
            if !page.records.is_empty() && size + record.bytes.len() > most {
                break;
            }
            size += record.bytes.len();
            (page.next, page.ended) = (ends, record.kind == RecordKind::End);
            page.records.push(record);
        }
        Ok(())
    }

    /// Opens the segment that holds an offset; returns the offset to read from, and the range that is gone before it.
    fn seek(&mut self, from: u64) -> Result<(u64, Option<(u64, u64)>), ReadError> {
        if self.known == from && self.open.is_some() {
            return Ok((from, None));
        }
        for _ in 0..VANISHED {
            let all = segments(&self.dir)?;
            let Some(&oldest) = all.first() else { return Err(io::Error::from(io::ErrorKind::NotFound).into()) };
            let begin = from.max(oldest);
            let first = all.into_iter().take_while(|first| *first <= begin).last().unwrap_or(oldest);
            let file = match open_segment(&self.dir, first) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if begin != self.known {
                self.ended = begins_at(&file, begin - first)?.ok_or(ReadError::NoRecord { offset: from })?;
                self.known = begin;
            }
            self.open = Some((first, file));
            return Ok((begin, (begin > from).then_some((from, begin))));
        }
        Err(io::Error::from(io::ErrorKind::NotFound).into())
    }

    fn record(&self, at: u64) -> io::Result<Option<(Record, u64)>> {
        let Some((first, file)) = &self.open else { return Ok(None) };
        let inside = at - first;
        let mut head = [0; HEAD];
        if read_at(file, &mut head, inside)? < HEAD {
            return Ok(None);
        }
        let Some(Head { length, kind, at_ms }) = Head::read(&head) else { return Ok(None) };
        if inside + (HEAD + length) as u64 > SEGMENT {
            return Ok(None);
        }
        let mut bytes = vec![0; length];
        if read_at(file, &mut bytes, inside + HEAD as u64)? < length {
            return Ok(None);
        }
        Ok(Some((Record { offset: at, kind, at_ms, bytes }, at + (HEAD + length) as u64)))
    }

    /// Opens the segment that begins at an offset, if there is one.
    fn step(&mut self, at: u64) -> Result<bool, ReadError> {
        if self.open.as_ref().is_some_and(|(first, _)| *first == at) {
            return Ok(false);
        }
        match open_segment(&self.dir, at) {
            Ok(file) => {
                self.open = Some((at, file));
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// Returns whether a record begins at an offset in a segment, or will; and whether the record before it was the end record. A payload is
/// written by a guest and may look like a header, so the walk passes all records before the offset.
fn begins_at(file: &File, place: u64) -> io::Result<Option<bool>> {
    let mut walk = HeaderWalk::new(file);
    let (mut at, mut ended) = (0, false);
    while at < place {
        let Some((begun, head)) = walk.next()? else { return Ok(None) };
        at = begun + (HEAD + head.length) as u64;
        ended = head.kind == RecordKind::End;
    }
    Ok((at == place).then_some(ended))
}

#[cfg(test)]
#[path = "spool_test.rs"]
mod tests;
