//! What happened on a sandbox's network, as its keeper writes it down: read by offset, whole lines at a time. Changes nothing.

use super::client::Keeper;
use super::place::Place;
use crate::Caller;
use crate::sandbox;
use crate::state::State;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use terms::{ErrorKind, Fault, Phase};

/// Read at once.
const AT_ONCE: u64 = 256 << 10;

/// Some lines, each with the offset behind it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub lines: Vec<(u64, String)>,
    /// Nobody writes any more, and this was all.
    pub over: bool,
}

/// What was written from an offset on.
pub fn read(word: &str, from: u64, caller: &Caller) -> Result<Page, Fault> {
    let state = State::open(caller)?;
    let found = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    // Looked for first: what its keeper wrote before it left is then there.
    let is_live = Keeper::find(&state.path, &found.id).is_some();
    let unread = |e: std::io::Error| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("{}: its events cannot be read: {e}", found.id));
        fault.subject(&found.id).phase(Phase::Delivery).hint("try again")
    };
    let file = Place::of(&state.path, &found.id).events().map_err(unread)?;
    let bytes = file.map_or(Ok(Vec::new()), |file| rest(file, from)).map_err(unread)?;
    let lines = lines(&bytes, from);
    Ok(Page { over: !is_live && (bytes.len() as u64) < AT_ONCE, lines })
}

fn rest(mut file: File, from: u64) -> std::io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(AT_ONCE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Lines that are there as a whole.
fn lines(bytes: &[u8], from: u64) -> Vec<(u64, String)> {
    let mut at = from;
    let whole = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    whole
        .map(|line| {
            at += line.len() as u64;
            (at, String::from_utf8_lossy(line).trim_end().to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_not_told() {
        assert_eq!(lines(b"a\nbc\nd", 5), vec![(7, "a".to_owned()), (10, "bc".to_owned())]);
        assert_eq!(lines(b"", 5), vec![]);
    }
}
