//! Diff of texts by lines: hunks with stable ids, texts with only some hunks applied, and lines compared by words. The
//! result depends on the texts alone, never on the clock.

use api::{DiffLine, Hunk, LineKind, Rel};
use sha2::{Digest, Sha256};
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices, group_diff_ops};
use std::collections::HashMap;
use std::ops::Range;
use terms::hex;
use terms::{ErrorKind, Fault, Phase};

/// Lines shown around a difference.
const CONTEXT: usize = 3;

/// Length of a displayed id, unless more digits are needed to tell two apart.
pub const SHORTEST_ID: usize = 8;

/// Longest line of a file that is compared by lines.
pub const LONGEST_LINE: usize = 64 * 1024;

/// Text of a file: UTF-8 without NUL bytes.
pub fn as_text(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!bytes.contains(&0)).then_some(text)
}

/// Largest number of lines of a file that is compared by lines.
pub const MOST_LINES: usize = 100_000;

/// True if a text is too long to be compared by lines.
pub fn is_unwieldy(text: &str) -> bool {
    text.split('\n').enumerate().any(|(number, line)| number > MOST_LINES || line.len() > LONGEST_LINE)
}

/// Group of diff operations that makes a hunk.
struct HunkOps {
    ops: Vec<DiffOp>,
    id: String,
}

struct Compared<'a> {
    before: Vec<&'a str>,
    after: Vec<&'a str>,
    places: Vec<HunkOps>,
}

/// Hunks between two texts. Ids have full length; `shorten` shortens them for typing.
pub fn hunks(path: &Rel, before: &str, after: &str) -> Vec<Hunk> {
    let compared = compare(path, before, after);
    compared.places.iter().map(|place| hunk(place, &compared)).collect()
}

/// Number of lines of all hunks.
pub fn lines_in(hunks: &[Hunk]) -> usize {
    hunks.iter().map(|hunk| hunk.lines.len()).sum()
}

/// New content of the file at `path` with only these hunks applied, given by id.
pub fn with_hunks(path: &Rel, before: &[u8], after: &[u8], hunks: &[&str]) -> Result<Vec<u8>, Fault> {
    let invalid = |message: String| Fault::new(ErrorKind::NotFound, message).phase(Phase::Admission);
    let (Some(before), Some(after)) = (as_text(before), as_text(after)) else {
        return Err(
            Fault::invalid(format!("{path}: not text, so it cannot be split into hunks")).phase(Phase::Admission)
        );
    };
    let compared = compare(path, before, after);
    let is_meant = |place: &HunkOps, id: &str| id.len() >= SHORTEST_ID && place.id.starts_with(id);
    if let Some(unknown) = hunks.iter().find(|id| !compared.places.iter().any(|place| is_meant(place, id))) {
        let hint = "read the diff again; a hunk's id changes when its lines change";
        return Err(invalid(format!("{path}: there is no hunk {unknown:?}")).hint(hint));
    }
    let (mut out, mut next) = (String::with_capacity(after.len()), 0);
    for place in compared.places.iter().filter(|place| hunks.iter().any(|id| is_meant(place, id))) {
        let (old, new) = spans(&place.ops);
        out.extend(compared.before[next..old.start].iter().copied());
        out.extend(compared.after[new].iter().copied());
        next = old.end;
    }
    out.extend(compared.before[next..].iter().copied());
    Ok(out.into_bytes())
}

/// Shortens ids as far as they stay unique.
pub fn shorten<'a>(hunks: impl Iterator<Item = &'a mut Hunk>) {
    let mut hunks: Vec<&mut Hunk> = hunks.collect();
    hunks.sort_by(|a, b| a.id.cmp(&b.id));
    let common = |a: &Hunk, b: &Hunk| a.id.bytes().zip(b.id.bytes()).take_while(|(x, y)| x == y).count();
    let between: Vec<usize> = hunks.windows(2).map(|pair| common(pair[0], pair[1])).collect();
    for (index, hunk) in hunks.iter_mut().enumerate() {
        let left = index.checked_sub(1).map_or(0, |i| between[i]);
        let right = between.get(index).copied().unwrap_or(0);
        hunk.id.truncate((left.max(right) + 1).max(SHORTEST_ID));
    }
}

fn compare<'a>(path: &Rel, before: &'a str, after: &'a str) -> Compared<'a> {
    let (before, after) = (lines(before), lines(after));
    let mut numbers = HashMap::new();
    let mut number = |lines: &[&'a str]| -> Vec<u32> {
        let next = |line: &&'a str| {
            let fresh = numbers.len() as u32;
            *numbers.entry(*line).or_insert(fresh)
        };
        lines.iter().map(next).collect()
    };
    let (old, new) = (number(&before), number(&after));
    let ops = crate::lines::compare(&old, &new);
    let groups = group_diff_ops(ops, CONTEXT).into_iter().filter(|ops| ops.iter().any(|op| op.tag() != DiffTag::Equal));
    let mut seen: HashMap<[u8; 32], u32> = HashMap::new();
    let places = groups.map(|ops| {
        let lines = digest_of(path, &ops, &before, &after);
        let times = seen.entry(lines).and_modify(|n| *n += 1).or_insert(0);
        let id = hex::encode(Sha256::new().chain_update(lines).chain_update(times.to_be_bytes()).finalize());
        HunkOps { ops, id }
    });
    let places = places.collect();
    Compared { before, after, places }
}

/// Lines with their line endings; the last may have none.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// Digest of the changed lines of a hunk and its path.
fn digest_of(path: &Rel, ops: &[DiffOp], before: &[&str], after: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut add = |sign: u8, text: &[u8]| {
        hash.update([sign]);
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    add(b'@', path.as_bytes());
    for op in ops.iter().filter(|op| op.tag() != DiffTag::Equal) {
        before[op.old_range()].iter().for_each(|line| add(b'-', line.as_bytes()));
        after[op.new_range()].iter().for_each(|line| add(b'+', line.as_bytes()));
    }
    hash.finalize().into()
}

fn spans(ops: &[DiffOp]) -> (Range<usize>, Range<usize>) {
    match (ops.first(), ops.last()) {
        (Some(first), Some(last)) => {
            (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end)
        }
        _ => (0..0, 0..0),
    }
}

fn hunk(place: &HunkOps, compared: &Compared<'_>) -> Hunk {
    let (old, new) = spans(&place.ops);
    let mut lines = Vec::with_capacity(old.len() + new.len());
    for op in &place.ops {
        let mut add = |kind, from: &[&str]| lines.extend(from.iter().map(|l| DiffLine { kind, text: (*l).to_owned() }));
        match op.tag() {
            DiffTag::Equal => add(LineKind::Context, &compared.before[op.old_range()]),
            _ => {
                add(LineKind::Removed, &compared.before[op.old_range()]);
                add(LineKind::Added, &compared.after[op.new_range()]);
            }
        }
    }
    // Numbered as by `diff -u`: the line before, for an empty range.
    let start = |span: &Range<usize>| span.start as u64 + u64::from(!span.is_empty());
    Hunk {
        id: place.id.clone(),
        old_start: start(&old),
        old_lines: old.len() as u64,
        new_start: start(&new),
        new_lines: new.len() as u64,
        lines,
    }
}

/// Range of a line, and true if it differs from the other side.
pub type LineRange = (bool, Range<usize>);

/// Longest line that is compared by words.
const LONGEST_BY_WORDS: usize = 2000;

/// Words of two lines that differ. None if the lines have too little in common.
pub fn words(before: &str, after: &str) -> Option<(Vec<LineRange>, Vec<LineRange>)> {
    if before.len() > LONGEST_BY_WORDS || after.len() > LONGEST_BY_WORDS {
        return None;
    }
    let (old, new) = (split_words(before), split_words(after));
    let text =
        |line: &'_ str, words: &[Range<usize>]| words.iter().map(|w| line[w.clone()].to_owned()).collect::<Vec<_>>();
    let ops = capture_diff_slices(Algorithm::Myers, &text(before, &old), &text(after, &new));
    let (mut left, mut right, mut same) = (Vec::new(), Vec::new(), 0);
    let span = |words: &[Range<usize>], at: Range<usize>| match (words.get(at.start), at.end.checked_sub(1)) {
        (Some(first), Some(last)) if !at.is_empty() => Some(first.start..words[last].end),
        _ => None,
    };
    for op in ops {
        let differs = op.tag() != DiffTag::Equal;
        let (l, r) = (span(&old, op.old_range()), span(&new, op.new_range()));
        if let (false, Some(l)) = (differs, &l) {
            same += before[l.clone()].trim().len();
        }
        left.extend(l.map(|l| (differs, l)));
        right.extend(r.map(|r| (differs, r)));
    }
    let longer = before.trim().len().max(after.trim().len());
    (same * 3 >= longer && longer > 0).then_some((left, right))
}

/// Words, runs of spaces, and every other character by itself.
fn split_words(line: &str) -> Vec<Range<usize>> {
    let kind = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' => 1,
        c if c.is_whitespace() => 2,
        _ => 0,
    };
    let mut words: Vec<(u8, Range<usize>)> = Vec::new();
    for (at, c) in line.char_indices() {
        let end = at + c.len_utf8();
        match words.last_mut() {
            Some((last, range)) if *last == kind(c) && *last != 0 => range.end = end,
            _ => words.push((kind(c), at..end)),
        }
    }
    words.into_iter().map(|(_, range)| range).collect()
}
