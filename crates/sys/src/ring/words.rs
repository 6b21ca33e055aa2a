//! Words of memory that the other side can change at any moment, and copies between them and private bytes. Each word is
//! loaded and stored whole and atomically, so that a writer beside us makes wrong bytes and no undefined behaviour.
//!
//! Copies are relaxed: the positions in the header order them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub const BYTES: usize = 8;

/// A word that both sides see.
pub trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
}

/// Copies bytes out of a ring, from an offset in it; they may begin at its end and go on at its beginning.
pub fn copy_out<W: Word>(ring: &[W], at: usize, to: &mut [u8]) {
    let (first, second) = to.split_at_mut(to.len().min(ring.len() * BYTES - at));
    copy_out_straight(ring, at, first);
    copy_out_straight(ring, 0, second);
}

/// Copies bytes into a ring, as `copy_out`.
pub fn copy_in<W: Word>(ring: &[W], at: usize, from: &[u8]) {
    let (first, second) = from.split_at(from.len().min(ring.len() * BYTES - at));
    copy_in_straight(ring, at, first);
    copy_in_straight(ring, 0, second);
}

fn copy_out_straight<W: Word>(ring: &[W], at: usize, to: &mut [u8]) {
    let (mut word, skipped) = (at / BYTES, at % BYTES);
    let (edge, rest) = to.split_at_mut(edge(skipped, to.len()));
    if !edge.is_empty() {
        edge.copy_from_slice(&ring[word].load(Ordering::Relaxed).to_ne_bytes()[skipped..][..edge.len()]);
        word += 1;
    }
    let mut middle = rest.chunks_exact_mut(BYTES);
    let count = middle.len();
    for (chunk, source) in middle.by_ref().zip(&ring[word..word + count]) {
        chunk.copy_from_slice(&source.load(Ordering::Relaxed).to_ne_bytes());
    }
    let end = middle.into_remainder();
    if !end.is_empty() {
        end.copy_from_slice(&ring[word + count].load(Ordering::Relaxed).to_ne_bytes()[..end.len()]);
    }
}

fn copy_in_straight<W: Word>(ring: &[W], at: usize, from: &[u8]) {
    let (mut word, skipped) = (at / BYTES, at % BYTES);
    let (edge, rest) = from.split_at(edge(skipped, from.len()));
    if !edge.is_empty() {
        replace(&ring[word], skipped, edge);
        word += 1;
    }
    let middle = rest.chunks_exact(BYTES);
    let (count, end) = (middle.len(), middle.remainder());
    for (chunk, target) in middle.zip(&ring[word..word + count]) {
        target.store(u64::from_ne_bytes(chunk.try_into().expect("a chunk is a word")), Ordering::Relaxed);
    }
    if !end.is_empty() {
        replace(&ring[word + count], 0, end);
    }
}

/// Returns the number of bytes up to the next whole word.
fn edge(skipped: usize, len: usize) -> usize {
    if skipped == 0 { 0 } else { len.min(BYTES - skipped) }
}

/// Stores a part of a word. Its other bytes are written again as they are: only this side writes this ring, so nobody
/// who keeps to the rules has changed them meanwhile.
fn replace<W: Word>(word: &W, skipped: usize, part: &[u8]) {
    let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    bytes[skipped..][..part.len()].copy_from_slice(part);
    word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
}
