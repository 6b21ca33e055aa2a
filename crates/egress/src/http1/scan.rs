//! Search for the end of a head.

use super::{HeadError, MAX_HEAD};

/// Position of the search in an incomplete head. The next call resumes there, so that a client that sends single bytes
/// costs no more than others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadScan {
    at: usize,
    line: usize,
}

/// Returns the length of the head with its empty line, or `None` while it is incomplete. Bytes are judged in order, so
/// that the first invalid byte decides, however the bytes arrive.
pub(super) fn head_len(bytes: &[u8], seen: &mut HeadScan) -> Result<Option<usize>, HeadError> {
    let within = bytes.get(..MAX_HEAD).unwrap_or(bytes);
    let HeadScan { mut at, mut line } = *seen;
    while let Some(found) = within.get(at..).unwrap_or_default().iter().position(|byte| is_special(*byte)) {
        at += found;
        match (within[at], within.get(at + 1)) {
            (b'\r', Some(b'\n')) if at == 0 => return Err((400, "an empty line stands before the head")),
            (b'\r', Some(b'\n')) if at == line => return Ok(Some(at + 2)),
            (b'\r', Some(b'\n')) => {
                at += 2;
                line = at;
            }
            (b'\r', Some(_)) => return Err((400, "a carriage return stands alone")),
            (b'\r', None) => return more(within, HeadScan { at, line }, seen),
            (b'\n', _) => return Err((400, "a line feed stands alone")),
            _ => return Err((400, "the head contains a control character")),
        }
    }
    more(within, HeadScan { at: within.len(), line }, seen)
}

fn more(within: &[u8], now: HeadScan, seen: &mut HeadScan) -> Result<Option<usize>, HeadError> {
    *seen = now;
    match within.len() == MAX_HEAD {
        true => Err((431, "the head is longer than 64 KiB")),
        false => Ok(None),
    }
}

fn is_special(byte: u8) -> bool {
    byte < b' ' && byte != b'\t' || byte == 0x7f
}
