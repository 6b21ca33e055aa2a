//! The files in which a keeper writes down what happens on a sandbox's network. Each is a part of the journal, named by the number of its first
//! line; when all of them together would be longer than they may be, the oldest goes. So what is kept is the newest, and a line
//! has the same number for as long as it is there.

use super::place::open_own;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How the first part is called; others have the number of their first line in the middle.
const NAME: &str = "events";
const KIND: &str = ".jsonl";
/// So many parts there are, or nearly so: with the oldest, no more than this share of the journal goes at once.
const PARTS: u64 = 8;
/// More lines than are ever written: a name with a higher number is none of ours.
const MOST_LINES: u64 = 1 << 52;
/// Read at once where lines are counted.
const CHUNK: usize = 64 << 10;

/// The journal as it is written.
pub(crate) struct Parts {
    dir: PathBuf,
    max: u64,
    /// From old to new. Nothing is added to any but the last.
    parts: VecDeque<Part>,
    /// The number of the next line.
    next: u64,
}

struct Part {
    first: u64,
    len: u64,
}

impl Parts {
    /// Goes on behind what was written before; also the file to write to, and whether its last line broke off.
    pub fn open(dir: &Path, max: u64) -> io::Result<(Parts, File, bool)> {
        let mut parts = VecDeque::new();
        for first in all(dir)? {
            match open_own(&path(dir, first), File::options().read(true)) {
                Ok(file) => parts.push_back(Part { first, len: file.metadata()?.len() }),
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
                // No keeper makes one so long; whatever is in it is one line that is missing.
                if let Some(Part { first, .. }) = last {
                    std::fs::remove_file(path(dir, first))?;
                    own.next = first + 1;
                }
                let file = own.begin()?;
                Ok((own, file, false))
            }
        }
    }

    /// Sees to it that there is room for a line. A file where it shall go to another than the lines before.
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

    /// Counts what was written.
    pub fn wrote(&mut self, len: u64, lines: u64) {
        self.next += lines;
        if let Some(last) = self.parts.back_mut() {
            last.len += len;
        }
    }

    fn begin(&mut self) -> io::Result<File> {
        let path = path(&self.dir, self.next);
        // What lies in the way is not written through.
        let _ = std::fs::remove_file(&path);
        let file = open_own(&path, File::options().append(true).create_new(true))?;
        self.parts.push_back(Part { first: self.next, len: 0 });
        Ok(file)
    }
}

/// The numbers of the first lines of all parts, from old to new.
pub(super) fn all(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        found.extend(entry?.file_name().to_str().and_then(number));
    }
    found.sort_unstable();
    Ok(found)
}

pub(super) fn path(dir: &Path, first: u64) -> PathBuf {
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
    // Only as we write it: no part has two names.
    (first < MOST_LINES && name(first) == text).then_some(first)
}

/// How many lines there are, and whether something stands behind the last.
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
