//! The algorithm of a ring: who moves which position, and in which memory order. It is generic over the memory, so that a
//! model checker can run the same code (`model_test`).
//!
//! ```text
//!   writer: bytes, then head (release)  ───▶  reader: head (acquire), then bytes
//!   reader: bytes, then tail (release)  ───▶  writer: tail (acquire), then new bytes in their place
//! ```
//!
//! A position is the count of bytes that ever passed it. It may wrap: only differences are compared.

use super::RingError;
use super::words::{self, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Number of times that a position is read again until two reads agree. A writer that keeps to the rules changes it once
/// in a hundred nanoseconds, so that the second read agrees nearly always.
const READS: usize = 64;

/// One ring in memory that both sides see.
pub trait Memory {
    type Word: Word;
    /// Bytes ever written; only the writer changes it.
    fn head(&self) -> &Self::Word;
    /// Bytes ever read; only the reader changes it.
    fn tail(&self) -> &Self::Word;
    /// Frames ever written, for figures alone.
    fn frames(&self) -> &Self::Word;
    /// The data; their number is a power of two.
    fn data(&self) -> &[Self::Word];

    /// Size of the ring in bytes.
    fn capacity(&self) -> u64 {
        (self.data().len() * words::BYTES) as u64
    }

    /// Offset of a position in the data.
    fn offset(&self, position: u64) -> usize {
        (position % self.capacity()) as usize
    }
}

/// The writing end. Its own position is private; the one in memory is for the reader.
pub struct Producer<M> {
    memory: M,
    head: u64,
    /// The reader's position when it was last looked at.
    tail: u64,
    frames: u64,
}

/// The reading end.
pub struct Consumer<M> {
    memory: M,
    /// The writer's position when it was last looked at.
    head: u64,
    tail: u64,
}

impl<M: Memory> Producer<M> {
    /// Goes on where the memory says that a writer stopped.
    pub fn resume(memory: M) -> Result<Producer<M>, RingError> {
        let (head, tail) = positions(&memory)?;
        let frames = memory.frames().load(Relaxed);
        Ok(Producer { memory, head, tail, frames })
    }

    /// Writes as many of these bytes as fit, and returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, RingError> {
        let count = bytes.len().min(self.free()? as usize);
        words::copy_in(self.memory.data(), self.memory.offset(self.head), &bytes[..count]);
        self.head = self.head.wrapping_add(count as u64);
        self.memory.head().store(self.head, Release);
        Ok(count)
    }

    /// Looks at the reader's position, and returns the number of bytes that fit.
    pub fn free(&mut self) -> Result<u64, RingError> {
        let tail = steady(self.memory.tail())?;
        let (queued, queued_before) = (self.head.wrapping_sub(tail), self.head.wrapping_sub(self.tail));
        // A reader reads what is there: no more is queued than before.
        if queued > queued_before {
            return Err(misplaced(&self.memory, self.head, tail, self.tail, tail));
        }
        self.tail = tail;
        Ok(self.memory.capacity() - queued)
    }

    /// Counts a frame that is written whole.
    pub fn count_frame(&mut self) {
        self.frames = self.frames.wrapping_add(1);
        self.memory.frames().store(self.frames, Relaxed);
    }

    /// Returns the count of bytes ever written.
    pub fn position(&self) -> u64 {
        self.head
    }

    pub fn capacity(&self) -> usize {
        self.memory.capacity() as usize
    }
}

impl<M: Memory> Consumer<M> {
    /// Goes on where the memory says that a reader stopped.
    pub fn resume(memory: M) -> Result<Consumer<M>, RingError> {
        let (head, tail) = positions(&memory)?;
        Ok(Consumer { memory, head, tail })
    }

    /// Looks at the writer's position, and returns the number of bytes that can be read.
    pub fn available(&mut self) -> Result<usize, RingError> {
        let head = steady(self.memory.head())?;
        let queued = head.wrapping_sub(self.tail);
        if queued > self.memory.capacity() || queued < self.queued() as u64 {
            return Err(misplaced(&self.memory, head, self.tail, self.head, head));
        }
        self.head = head;
        Ok(queued as usize)
    }

    /// Returns the number of bytes that `available` found and that were not passed since.
    pub fn queued(&self) -> usize {
        self.head.wrapping_sub(self.tail) as usize
    }

    /// Copies bytes that are available, from this many bytes behind the reader's position.
    pub fn copy(&self, at: usize, to: &mut [u8]) {
        assert!(at.saturating_add(to.len()) <= self.queued(), "only what is available is read");
        words::copy_out(self.memory.data(), self.memory.offset(self.tail.wrapping_add(at as u64)), to);
    }

    /// Passes bytes that were read, and frees their space. Returns true if that brought the ring from at least half full to
    /// less: the writer may wait for it.
    pub fn advance(&mut self, count: usize) -> bool {
        let before = self.queued();
        assert!(count <= before, "only what is available is passed");
        self.tail = self.tail.wrapping_add(count as u64);
        self.memory.tail().store(self.tail, Release);
        let half = self.capacity() / 2;
        before >= half && self.queued() < half
    }

    /// Returns the count of bytes ever passed.
    pub fn position(&self) -> u64 {
        self.tail
    }

    pub fn capacity(&self) -> usize {
        self.memory.capacity() as usize
    }
}

/// Reads both positions as an earlier process of this side left them.
fn positions<M: Memory>(memory: &M) -> Result<(u64, u64), RingError> {
    let (head, tail) = (steady(memory.head())?, steady(memory.tail())?);
    match head.wrapping_sub(tail) <= memory.capacity() {
        true => Ok((head, tail)),
        false => Err(RingError::Positions { head, tail, capacity: memory.capacity() }),
    }
}

/// Reads a position until two reads in a row agree: a side that writes it with `pwrite` may write it in two steps.
fn steady<W: Word>(word: &W) -> Result<u64, RingError> {
    let mut seen = word.load(Acquire);
    for _ in 0..READS {
        let again = word.load(Acquire);
        if again == seen {
            return Ok(seen);
        }
        seen = again;
    }
    Err(RingError::Unsteady)
}

/// Tells a position that went back from one that is outside of the ring.
fn misplaced<M: Memory>(memory: &M, head: u64, tail: u64, from: u64, to: u64) -> RingError {
    let capacity = memory.capacity();
    match head.wrapping_sub(tail) <= capacity {
        true => RingError::Backward { from, to },
        false => RingError::Positions { head, tail, capacity },
    }
}
