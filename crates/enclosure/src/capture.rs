//! Output kept in memory for the outcome document, up to a bound.

/// Bytes kept of each stream when no smaller limit is set.
pub const MOST: usize = 16 << 20;

#[derive(Default)]
pub struct Capture {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Capture {
    pub fn add(&mut self, chunk: &[u8]) {
        let room = MOST - self.bytes.len();
        let kept = chunk.len().min(room);
        self.bytes.extend_from_slice(&chunk[..kept]);
        self.dropped += (chunk.len() - kept) as u64;
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
