//! Queue of a run's input, in order of arrival. A writer that gives the offset of a piece in its own stream may retry it when delivery is
//! uncertain: bytes that were taken already are not written twice.

use crate::keeper::wire::InputWriter;
use std::collections::VecDeque;
use terms::{ErrorKind, Fault, Phase};

/// Bound on remembered writers of one run; the least recently active is forgotten first.
const MOST_WRITERS: usize = 32;

/// A piece of input from a client.
pub(in crate::keeper) struct Feed {
    pub client: u64,
    pub bytes: Vec<u8>,
    pub at: usize,
    pub eof: bool,
    pub by: Option<InputWriter>,
    /// Bytes that were taken already have been skipped. Decided when the piece reaches the front of the queue: an earlier piece of the same
    /// writer may be ahead of it, whose client has disconnected.
    pub begun: bool,
}

impl Feed {
    pub fn new(client: u64, bytes: Vec<u8>, eof: bool, by: Option<InputWriter>) -> Feed {
        Feed { client, bytes, at: 0, eof, by, begun: false }
    }

    /// Skips bytes that were taken already; a fault where bytes between would be missing.
    pub fn begin(&mut self, writers: &mut Writers, run: &str) -> Result<(), Fault> {
        if let (Some(by), false) = (&self.by, self.begun) {
            let taken = writers.of(&by.writer).map_or(0, |known| known.taken);
            let Some(again) = taken.checked_sub(by.offset) else { return Err(gap(run, by.offset, taken)) };
            self.at = usize::try_from(again).unwrap_or(usize::MAX).min(self.bytes.len());
        }
        self.begun = true;
        Ok(())
    }
}

fn gap(run: &str, offset: u64, taken: u64) -> Fault {
    let message = format!(
        "input at {offset}: {run} has received {taken} bytes from this writer, so bytes are missing in between"
    );
    let fault = Fault::new(ErrorKind::InvalidRequest, message).subject(run).phase(Phase::Execution);
    fault.hint(format!("continue at {taken}"))
}

/// Offsets taken from each writer that counts.
#[derive(Default)]
pub(in crate::keeper) struct Writers(VecDeque<WriterOffset>);

struct WriterOffset {
    writer: String,
    taken: u64,
    /// The writer has sent its end of file.
    closed: bool,
}

impl Writers {
    fn of(&self, writer: &str) -> Option<&WriterOffset> {
        self.0.iter().find(|known| known.writer == writer)
    }

    /// Adds bytes taken from a writer's stream.
    pub fn took(&mut self, by: Option<&InputWriter>, bytes: u64) {
        self.change(by, |known| known.taken += bytes);
    }

    pub fn close(&mut self, by: Option<&InputWriter>) {
        self.change(by, |known| known.closed = true);
    }

    fn change(&mut self, by: Option<&InputWriter>, change: impl FnOnce(&mut WriterOffset)) {
        let Some(InputWriter { writer, .. }) = by else { return };
        let before = self.0.iter().position(|known| known.writer == *writer).and_then(|at| self.0.remove(at));
        let mut known = before.unwrap_or_else(|| WriterOffset { writer: writer.clone(), taken: 0, closed: false });
        change(&mut known);
        if self.0.len() >= MOST_WRITERS {
            self.0.pop_front();
        }
        self.0.push_back(known);
    }

    /// Returns the offset taken of a writer's stream; `None` for a writer without offsets.
    pub fn taken(&self, by: Option<&InputWriter>) -> Option<u64> {
        by.map(|by| self.of(&by.writer).map_or(0, |known| known.taken))
    }

    /// Returns whether a piece is a pure repetition: its bytes and its end of file were taken already.
    pub fn have_taken(&self, feed: &Feed) -> bool {
        let Some(by) = &feed.by else { return false };
        let end = by.offset.saturating_add(feed.bytes.len() as u64);
        self.of(&by.writer).is_some_and(|known| end <= known.taken && (known.closed || !feed.eof))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(writer: &str, offset: u64) -> Option<InputWriter> {
        Some(InputWriter { writer: writer.into(), offset })
    }

    // promise 25
    #[test]
    fn of_what_was_taken_nothing_is_left_to_write() {
        let mut writers = Writers::default();
        writers.took(by("a", 0).as_ref(), 10);
        for (offset, len, left) in [(0, 10, 0), (0, 15, 5), (4, 10, 4), (10, 3, 3), (7, 1, 0)] {
            let mut feed = Feed::new(1, vec![0; len], false, by("a", offset));
            feed.begin(&mut writers, "run").unwrap();
            assert_eq!(feed.bytes.len() - feed.at, left, "{len} at {offset}");
        }
        assert!(Feed::new(1, vec![0; 3], false, by("a", 11)).begin(&mut writers, "run").is_err(), "a gap");
        assert!(Feed::new(1, vec![0; 3], false, by("b", 1)).begin(&mut writers, "run").is_err(), "another's");
        let mut plain = Feed::new(1, vec![0; 3], false, None);
        plain.begin(&mut writers, "run").unwrap();
        assert_eq!(plain.at, 0);
    }

    #[test]
    fn few_writers_are_remembered() {
        let mut writers = Writers::default();
        for n in 0..MOST_WRITERS + 1 {
            writers.took(by(&n.to_string(), 0).as_ref(), 1);
        }
        assert_eq!(writers.taken(by("0", 0).as_ref()), Some(0));
        assert_eq!(writers.taken(by("1", 0).as_ref()), Some(1));
        writers.close(by("1", 0).as_ref());
        assert_eq!(writers.0.len(), MOST_WRITERS);
    }

    #[test]
    fn what_was_taken_is_known_and_an_end_only_once_it_was_told() {
        let mut writers = Writers::default();
        writers.took(by("a", 0).as_ref(), 3);
        let piece = |writer: &str, offset, len, eof| Feed::new(1, vec![0; len], eof, by(writer, offset));
        for (feed, taken) in [
            (piece("a", 0, 3, false), true),
            (piece("a", 1, 2, false), true),
            (piece("a", 0, 4, false), false),
            (piece("b", 0, 3, false), false),
            (Feed::new(1, vec![0; 3], false, None), false),
            (piece("a", 0, 3, true), false),
        ] {
            assert_eq!(writers.have_taken(&feed), taken);
        }
        writers.close(by("a", 0).as_ref());
        assert!(writers.have_taken(&piece("a", 3, 0, true)) && !writers.have_taken(&piece("a", 3, 1, true)));
    }
}
