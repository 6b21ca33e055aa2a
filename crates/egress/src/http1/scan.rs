//! Finding the end of a head.

use super::{MAX_HEAD, Refused};

/// How far a head that is not whole yet was looked through: whoever reads it again after every segment goes on from
/// there, and a client that sends single bytes costs no more than others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    at: usize,
    line: usize,
}

/// The length of the head with its empty line, once it is there. Every byte is judged before those after it, so the
/// first one that cannot be in a head decides, however the bytes come in.
pub(super) fn end(bytes: &[u8], seen: &mut Seen) -> Result<Option<usize>, Refused> {
    let within = bytes.get(..MAX_HEAD).unwrap_or(bytes);
    let Seen { mut at, mut line } = *seen;
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
            (b'\r', None) => return more(within, Seen { at, line }, seen),
            (b'\n', _) => return Err((400, "a line feed stands alone")),
            _ => return Err((400, "it holds a control character")),
        }
    }
    more(within, Seen { at: within.len(), line }, seen)
}

fn more(within: &[u8], now: Seen, seen: &mut Seen) -> Result<Option<usize>, Refused> {
    *seen = now;
    match within.len() == MAX_HEAD {
        true => Err((431, "the head is longer than 64 KiB")),
        false => Ok(None),
    }
}

fn is_special(byte: u8) -> bool {
    byte < b' ' && byte != b'\t' || byte == 0x7f
}
