//! The mapping of a memory file with two rings. The only place where the shared memory is reached; it is given out as
//! atomic words, so no code can take a plain reference to bytes that change.

use super::cursors::Memory;
use super::{FRAMES, HEAD, HEADER, TAIL, words};
use crate::CallError;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A shared mapping of a whole file whose size is sealed.
pub(super) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

/// One ring of a mapping, with its header.
pub struct MappedRing {
    mapping: Arc<Mapping>,
    offset: usize,
    capacity: usize,
}

// SAFETY: the mapping belongs to this value until it is dropped, and its bytes are reached as atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file. The caller has checked that its size is this one and sealed: a shorter file would raise SIGBUS.
    pub(super) fn new(file: BorrowedFd<'_>, size: usize) -> Result<Mapping, CallError> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes; numbers and a descriptor that is open.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(CallError::last("mmap"));
        }
        let mapping = Mapping { base: NonNull::new(base.cast()).expect("no mapping is at address 0"), size };
        // The first process of a guest is a copy of this one, and has no business in the rings of another guest.
        // SAFETY: the advice changes no byte and unmaps no page; it affects later forks only.
        match unsafe { libc::madvise(base, size, libc::MADV_DONTFORK) } {
            0 => Ok(mapping),
            _ => Err(CallError::last("madvise")),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; every `MappedRing` keeps the mapping alive, so no reference to it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

impl MappedRing {
    pub(super) fn new(mapping: &Arc<Mapping>, offset: usize, capacity: usize) -> MappedRing {
        assert!(offset.is_multiple_of(words::BYTES) && offset + HEADER + capacity <= mapping.size);
        MappedRing { mapping: Arc::clone(mapping), offset, capacity }
    }

    /// Copies the fixed fields of the header.
    pub(super) fn header(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        for (chunk, word) in bytes.chunks_exact_mut(words::BYTES).zip(self.words(0, HEAD / words::BYTES)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes
    }

    /// Returns words of this ring, from an offset behind the beginning of its header.
    fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(words::BYTES) && at + count * words::BYTES <= HEADER + self.capacity);
        // SAFETY: within the mapping, as `new` and the line above check, and aligned: a mapping begins at a page, and both
        // offsets are multiples of a word. The mapping lives as long as `self`, and its file cannot shrink. No other
        // reference to these bytes than atomic words of the same size is ever made in this process; what other
        // processes do to them is seen by whole loads, each of which gives some value.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().add(self.offset + at).cast(), count) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words(at, 1)[0]
    }
}

impl Memory for MappedRing {
    type Word = AtomicU64;

    fn head(&self) -> &AtomicU64 {
        self.word(HEAD)
    }

    fn tail(&self) -> &AtomicU64 {
        self.word(TAIL)
    }

    fn frames(&self) -> &AtomicU64 {
        self.word(FRAMES)
    }

    fn data(&self) -> &[AtomicU64] {
        self.words(HEADER, self.capacity / words::BYTES)
    }
}
