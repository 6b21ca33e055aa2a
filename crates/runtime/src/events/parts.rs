//! Segment files of a keeper's network event log. Each is named by the number of its first line; when their total size would exceed the
//! bound, the oldest segment is deleted. So the newest events are kept, and the number of a line never changes.

use crate::owned_file::open_own;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// File name stem of a part; parts after the first carry the number of their first line in the middle.
const NAME: &str = "events";
const KIND: &str = ".jsonl";
/// Approximate number of parts: deleting the oldest drops no more than this share of the log.
const PARTS: u64 = 8;
/// Upper bound on line numbers: a file name with a higher number is not a part.
const MOST_LINES: u64 = 1 << 52;
/// Read size for counting lines.
const CHUNK: usize = 64 << 10;

/// The writer's view of the parts.
pub(crate) struct Parts {
    dir: PathBuf,
    max: u64,
    /// Parts in order of age; only the last is appended to.
    parts: VecDeque<FilePart>,
    /// The number of the next line.
    next: u64,
}

struct FilePart {
    first: u64,
    len: u64,
}

impl Parts {
    /// Opens the log for append. Returns the file to write to as well, and whether its last line is incomplete.
    pub fn open(dir: &Path, max: u64) -> io::Result<(Parts, File, bool)> {
        let mut parts = VecDeque::new();
        for first in all(dir)? {
            match open_own(&path(dir, first), File::options().read(true)) {
                Ok(file) => parts.push_back(FilePart { first, len: file.metadata()?.len() }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let mut own = Parts { dir: dir.to_owned(), max, parts, next: 0 };
        match own.parts.pop_back() {
            Some(last) if last.len <= max => {
                let at = path(dir, last.first);
                let (lines, is_cut) = count(open_own(&at, File::options().read(true))?)?;
                own.next = last.first + lines;
                own.parts.push_back(last);
                Ok((own, open_own(&at, File::options().append(true))?, is_cut))
            }
            last => {
                // No keeper writes a part this long; its content counts as one missing line.
                if let Some(FilePart { first, .. }) = last {
                    std::fs::remove_file(path(dir, first))?;
                    own.next = first + 1;
                }
                let file = own.begin()?;
                Ok((own, file, false))
            }
        }
    }

    /// Makes space for a line by deleting the oldest parts. Returns a file where the line starts a new part.
    pub fn make_room(&mut self, len: u64) -> io::Result<Option<File>> {
        let is_full = self.parts.back().is_none_or(|last| last.len > 0 && last.len + len > self.max / PARTS);
        let fresh = is_full.then(|| self.begin()).transpose()?;
        while self.parts.len() > 1 && self.parts.iter().map(|part| part.len).sum::<u64>() + len > self.max {
            let oldest = path(&self.dir, self.parts[0].first);
            match std::fs::remove_file(oldest) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => self.parts.pop_front(),
            };
        }
        Ok(fresh)
    }

    /// Adds a written line to the totals.
    pub fn wrote(&mut self, len: u64, lines: u64) {
        self.next += lines;
        if let Some(last) = self.parts.back_mut() {
            last.len += len;
        }
    }

    fn begin(&mut self) -> io::Result<File> {
        let path = path(&self.dir, self.next);
        // Removed first, so that a planted link or file is not written through.
        let _ = std::fs::remove_file(&path);
        let file = open_own(&path, File::options().append(true).create_new(true))?;
        self.parts.push_back(FilePart { first: self.next, len: 0 });
        Ok(file)
    }
}

/// Returns the numbers of the first lines of all parts, in ascending order.
pub(crate) fn all(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        found.extend(entry?.file_name().to_str().and_then(number));
    }
    found.sort_unstable();
    Ok(found)
}

pub(crate) fn path(dir: &Path, first: u64) -> PathBuf {
    dir.join(name(first))
}

fn name(first: u64) -> String {
    match first {
        0 => format!("{NAME}{KIND}"),
        _ => format!("{NAME}.{first}{KIND}"),
    }
}

fn number(text: &str) -> Option<u64> {
    let middle = text.strip_prefix(NAME)?.strip_suffix(KIND)?;
    let first = middle.strip_prefix('.').map_or(Some(0), |digits| digits.parse().ok())?;
    // Canonical spelling only, so that no part has two names.
    (first < MOST_LINES && name(first) == text).then_some(first)
}

/// Counts the lines of a part; true where bytes follow the last newline.
fn count(mut file: File) -> io::Result<(u64, bool)> {
    let (mut buffer, mut lines, mut last) = (vec![0; CHUNK], 0, b'\n');
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((lines, last != b'\n')),
            got => {
                lines += buffer[..got].iter().filter(|byte| **byte == b'\n').count() as u64;
                last = buffer[got - 1];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_one_name() {
        for first in [0, 1, 17, MOST_LINES - 1] {
            assert_eq!(number(&name(first)), Some(first));
        }
        let none = ["events.0.jsonl", "events.01.jsonl", "events.+1.jsonl", "events..jsonl", "events.-1.jsonl"];
        let more = ["events.18446744073709551616.jsonl", "events.4503599627370496.jsonl", "eventsjsonl", "keeper.json"];
        for text in none.into_iter().chain(more) {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
