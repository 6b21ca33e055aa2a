//! Applies hunks as shown to a text: the result has exactly the lines that the reviewer saw. Does not access any tree.

use api::{DiffLine, Hunk, LineKind};
use std::fs::File;
use std::io::{self, Read};

/// Size bound of a text that is shown in hunks.
const LARGEST_TEXT: u64 = 64 << 20;

pub(crate) fn read_text(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    match file.take(LARGEST_TEXT + 1).read_to_end(&mut text)? as u64 > LARGEST_TEXT {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "too large to be taken in parts")),
        false => Ok(text),
    }
}

/// Applies hunks, in file order, to a text; None if a hunk does not fit.
pub fn apply(before: &[u8], hunks: &[Hunk]) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = before.split_inclusive(|b| *b == b'\n').collect();
    let (mut out, mut next) = (Vec::with_capacity(before.len()), 0usize);
    for hunk in hunks {
        // A hunk without old lines starts after the line it names.
        let start = if hunk.old_lines == 0 { hunk.old_start } else { hunk.old_start.checked_sub(1)? } as usize;
        out.extend(lines.get(next..start)?.concat());
        next = start;
        for line in &hunk.lines {
            if line.kind != LineKind::Added {
                if *lines.get(next)? != line.text.as_bytes() {
                    return None;
                }
                next += 1;
            }
            if line.kind != LineKind::Removed {
                out.extend_from_slice(line.text.as_bytes());
            }
        }
    }
    out.extend(lines.get(next..)?.concat());
    Some(out)
}

/// Splits a hunk into parts that can be chosen separately: in the middle of each run of context lines between changes.
/// The id of a part is that of the hunk, a dot and a number from 1. A hunk without context between its changes is one
/// part.
pub fn split(hunk: &Hunk) -> Vec<Hunk> {
    let mut parts = Vec::new();
    let (mut old, mut new) =
        (lines_before(hunk.old_start, hunk.old_lines), lines_before(hunk.new_start, hunk.new_lines));
    let mut from = 0;
    for to in cuts(&hunk.lines).into_iter().chain([hunk.lines.len()]) {
        let lines = hunk.lines[from..to].to_vec();
        let count = |other: LineKind| lines.iter().filter(|line| line.kind != other).count() as u64;
        let (old_lines, new_lines) = (count(LineKind::Added), count(LineKind::Removed));
        let id = format!("{}.{}", hunk.id, parts.len() + 1);
        let (old_start, new_start) = (start_line(old, old_lines), start_line(new, new_lines));
        parts.push(Hunk { id, old_start, old_lines, new_start, new_lines, lines });
        (old, new, from) = (old + old_lines, new + new_lines, to);
    }
    parts
}

/// Number of lines before a hunk, from the numbering of `diff -u`; `start_line` is the inverse.
fn lines_before(start: u64, lines: u64) -> u64 {
    if lines == 0 { start } else { start.saturating_sub(1) }
}

fn start_line(before: u64, lines: u64) -> u64 {
    if lines == 0 { before } else { before + 1 }
}

/// Line indices at which a hunk is split.
fn cuts(lines: &[DiffLine]) -> Vec<usize> {
    let changed: Vec<usize> = (0..lines.len()).filter(|n| lines[*n].kind != LineKind::Context).collect();
    let between = changed.windows(2).filter(|pair| pair[1] > pair[0] + 1);
    between.map(|pair| (pair[0] + 1 + pair[1]).div_ceil(2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;
    use api::Rel;
    use proptest::prelude::*;

    fn hunks(before: &str, after: &str) -> Vec<Hunk> {
        text::hunks(&Rel::parse(b"file").unwrap(), before, after)
    }

    #[test]
    fn a_hunk_is_cut_between_its_changes_and_nowhere_else() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n";
        let all = hunks(before, "1\ntwo\nTWO\n3\n4\n5\nsix\n7\n8\n9\n");
        assert_eq!(all.len(), 1);
        let parts = split(&all[0]);
        assert_eq!(parts.len(), 3, "{parts:#?}");
        let ids: Vec<_> = parts.iter().map(|part| part.id.clone()).collect();
        assert_eq!(ids, [1, 2, 3].map(|n| format!("{}.{n}", all[0].id)));
        let only = |n: usize| String::from_utf8(apply(before.as_bytes(), &parts[n..=n]).unwrap()).unwrap();
        assert_eq!(only(0), "1\ntwo\nTWO\n3\n4\n5\n6\n7\n8\n");
        assert_eq!(only(1), "1\n2\n3\n4\n5\nsix\n7\n8\n");
        assert_eq!(only(2), "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        assert_eq!(split(&parts[0]).len(), 1, "a part has nothing left to be cut at");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// The parts together equal the hunks, and any subset applies without the rest.
        #[test]
        fn parts_together_are_the_hunk(
            old in prop::collection::vec(0..6u8, 0..30),
            new in prop::collection::vec(0..6u8, 0..30),
            taken in any::<u64>(),
        ) {
            let text = |side: &[u8]| side.iter().map(|line| format!("{line}\n")).collect::<String>();
            let (old, new) = (text(&old), text(&new));
            let parts: Vec<Hunk> = hunks(&old, &new).iter().flat_map(split).collect();
            prop_assert_eq!(apply(old.as_bytes(), &parts), Some(new.clone().into_bytes()));
            let some = parts.iter().enumerate().filter(|(n, _)| taken >> (n % 64) & 1 == 1);
            let some: Vec<Hunk> = some.map(|(_, part)| part.clone()).collect();
            prop_assert!(apply(old.as_bytes(), &some).is_some());
        }
    }
}
