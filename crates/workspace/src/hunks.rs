//! Hunks as they were shown, put onto a text: the lines that a reviewer saw are the lines that come out. Reads and writes
//! no tree.

use crate::change::{Hunk, LineKind};
use std::fs::File;
use std::io::{self, Read};

/// No text that is shown in hunks is larger.
const LARGEST_TEXT: u64 = 64 << 20;

pub(crate) fn read_text(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    match file.take(LARGEST_TEXT + 1).read_to_end(&mut text)? as u64 > LARGEST_TEXT {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "too large to be taken in parts")),
        false => Ok(text),
    }
}

/// The text with these hunks, which are in the order of the file; none where a hunk does not fit the text.
pub fn apply(before: &[u8], hunks: &[Hunk]) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = before.split_inclusive(|b| *b == b'\n').collect();
    let (mut out, mut next) = (Vec::with_capacity(before.len()), 0usize);
    for hunk in hunks {
        // Where a hunk has no old lines its start is the line before it.
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
