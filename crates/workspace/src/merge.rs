//! Three-way merge of texts by lines. Conflicting parts of both sides are kept between conflict markers as in git.

use crate::lines;
use similar::DiffTag;
use std::collections::HashMap;
use std::ops::Range;

/// Result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged {
    Clean(Vec<u8>),
    /// The text has conflict markers.
    Conflict {
        text: Vec<u8>,
        places: usize,
    },
    /// Binary or too large: one side can be chosen, but not a mixture.
    Unmergeable,
}

/// Size bound of texts that are merged.
pub const LARGEST: usize = 4 << 20;

pub const OURS: &str = "workspace";
pub const THEIRS: &str = "base";

/// Merges the changes of `ours` and `theirs` since the merge base `old`. Without `old`, every difference is a
/// conflict.
pub fn merge(old: Option<&[u8]>, ours: &[u8], theirs: &[u8]) -> Merged {
    if ours == theirs {
        return Merged::Clean(ours.to_vec());
    }
    let all = [old.unwrap_or_default(), ours, theirs];
    if all.iter().any(|text| text.len() > LARGEST || is_binary(text)) {
        // Whole files can still be compared: the side that changed the file wins.
        return match old {
            Some(old) if old == ours => Merged::Clean(theirs.to_vec()),
            Some(old) if old == theirs => Merged::Clean(ours.to_vec()),
            _ => Merged::Unmergeable,
        };
    }
    let (ours, theirs) = (split(ours), split(theirs));
    let blocks = match old {
        Some(old) => three_way(&split(old), &ours, &theirs),
        None => two_way(&ours, &theirs),
    };
    write(&blocks)
}

pub fn is_binary(text: &[u8]) -> bool {
    text.contains(&0)
}

fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|b| *b == b'\n').collect()
}

/// Part of the result.
enum Block<'a> {
    Agreed(Vec<&'a [u8]>),
    Disputed { ours: Vec<&'a [u8]>, theirs: Vec<&'a [u8]> },
}

/// Difference of one side from the merge base.
#[derive(Clone, Debug)]
struct Edit {
    old: Range<usize>,
    new: Range<usize>,
}

fn three_way<'a>(old: &[&'a [u8]], ours: &[&'a [u8]], theirs: &[&'a [u8]]) -> Vec<Block<'a>> {
    let (mine, other) = (edits(old, ours), edits(old, theirs));
    let (mut i, mut j, mut at) = (0, 0, 0);
    let mut blocks = Vec::new();
    while i < mine.len() || j < other.len() {
        let begin = [mine.get(i), other.get(j)].into_iter().flatten().map(|e| e.old.start).min().unwrap_or(at);
        let (first_i, first_j, mut end) = (i, j, begin);
        // Adjacent edits are one conflict: they were hardly made independently.
        loop {
            let next_i = mine.get(i).filter(|e| e.old.start <= end);
            let next_j = other.get(j).filter(|e| e.old.start <= end);
            match (next_i, next_j) {
                (Some(edit), _) => (i, end) = (i + 1, end.max(edit.old.end)),
                (None, Some(edit)) => (j, end) = (j + 1, end.max(edit.old.end)),
                (None, None) => break,
            }
        }
        blocks.push(Block::Agreed(old[at..begin].to_vec()));
        let of_ours = side(&mine[first_i..i], &(begin..end), old, ours);
        let of_theirs = side(&other[first_j..j], &(begin..end), old, theirs);
        match (first_i == i, first_j == j) {
            (true, _) => blocks.push(Block::Agreed(of_theirs)),
            (_, true) => blocks.push(Block::Agreed(of_ours)),
            _ => dispute(&mut blocks, of_ours, of_theirs),
        }
        at = end;
    }
    blocks.push(Block::Agreed(old[at..].to_vec()));
    blocks
}

/// Text of one side in place of a range of the merge base.
fn side<'a>(edits: &[Edit], range: &Range<usize>, old: &[&'a [u8]], new: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let (mut text, mut at) = (Vec::new(), range.start);
    for edit in edits {
        text.extend_from_slice(&old[at..edit.old.start]);
        text.extend_from_slice(&new[edit.new.clone()]);
        at = edit.old.end;
    }
    text.extend_from_slice(&old[at..range.end]);
    text
}

/// Adds two versions of one range; their common head and tail are not in conflict.
fn dispute<'a>(blocks: &mut Vec<Block<'a>>, ours: Vec<&'a [u8]>, theirs: Vec<&'a [u8]>) {
    let head = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    let tail = ours[head..].iter().rev().zip(theirs[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    blocks.push(Block::Agreed(ours[..head].to_vec()));
    let (of_ours, of_theirs) = (&ours[head..ours.len() - tail], &theirs[head..theirs.len() - tail]);
    if !of_ours.is_empty() || !of_theirs.is_empty() {
        blocks.push(Block::Disputed { ours: of_ours.to_vec(), theirs: of_theirs.to_vec() });
    }
    blocks.push(Block::Agreed(ours[ours.len() - tail..].to_vec()));
}

fn two_way<'a>(ours: &[&'a [u8]], theirs: &[&'a [u8]]) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    let mut at = 0;
    for edit in edits(ours, theirs) {
        blocks.push(Block::Agreed(ours[at..edit.old.start].to_vec()));
        at = edit.old.end;
        blocks.push(Block::Disputed { ours: ours[edit.old].to_vec(), theirs: theirs[edit.new].to_vec() });
    }
    blocks.push(Block::Agreed(ours[at..].to_vec()));
    blocks
}

fn write(blocks: &[Block<'_>]) -> Merged {
    let (mut text, mut places) = (Vec::new(), 0);
    for block in blocks {
        match block {
            Block::Agreed(lines) => lines.iter().for_each(|line| text.extend_from_slice(line)),
            Block::Disputed { ours, theirs } => {
                places += 1;
                mark(&mut text, &format!("<<<<<<< {OURS}"));
                ours.iter().for_each(|line| text.extend_from_slice(line));
                mark(&mut text, "=======");
                theirs.iter().for_each(|line| text.extend_from_slice(line));
                mark(&mut text, &format!(">>>>>>> {THEIRS}"));
            }
        }
    }
    match places {
        0 => Merged::Clean(text),
        _ => Merged::Conflict { text, places },
    }
}

/// Writes a conflict marker on a line of its own, even after a last line without a newline.
fn mark(text: &mut Vec<u8>, mark: &str) {
    if text.last().is_some_and(|b| *b != b'\n') {
        text.push(b'\n');
    }
    text.extend_from_slice(mark.as_bytes());
    text.push(b'\n');
}

/// True if a line is a conflict marker.
pub fn is_mark(line: &str) -> bool {
    let line = line.trim_end();
    line.strip_prefix("<<<<<<< ").is_some_and(|l| l == OURS)
        || line.strip_prefix(">>>>>>> ").is_some_and(|l| l == THEIRS)
}

/// Edits between two texts.
fn edits(old: &[&[u8]], new: &[&[u8]]) -> Vec<Edit> {
    let mut numbers: HashMap<&[u8], u32> = HashMap::new();
    let old: Vec<u32> = old.iter().map(|line| next_number(&mut numbers, line)).collect();
    let new: Vec<u32> = new.iter().map(|line| next_number(&mut numbers, line)).collect();
    let mut found: Vec<Edit> = Vec::new();
    for op in lines::compare(&old, &new).into_iter().filter(|op| op.tag() != DiffTag::Equal) {
        let edit = Edit { old: op.old_range(), new: op.new_range() };
        match found.last_mut().filter(|last| last.old.end == edit.old.start && last.new.end == edit.new.start) {
            Some(last) => (last.old.end, last.new.end) = (edit.old.end, edit.new.end),
            None => found.push(edit),
        }
    }
    found
}

/// Interns a line: equal lines have equal numbers.
fn next_number<'a>(numbers: &mut HashMap<&'a [u8], u32>, line: &'a [u8]) -> u32 {
    let next = numbers.len() as u32;
    *numbers.entry(line).or_insert(next)
}
