//! Two byte rings in a sealed memory file, between the supervisor and a worker inside. The layout is in
//! docs/reference/worker-protocol.md; frames are not known here.
//!
//! The file is an attack surface: the other side can write any byte of it at any moment. So the supervisor keeps its
//! positions in its own memory, takes the size from the sealed file and never from a header, and copies bytes out once,
//! before anything looks at them. What the other side says is a position that is checked, or bytes.

mod cursors;
mod mapping;
#[cfg(test)]
mod model_test;
mod words;

use crate::CallError;
use mapping::{MappedRing, Mapping};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Size of each ring, unless told otherwise.
pub const CAPACITY: usize = 1 << 20;
/// Bound on the size of a ring.
const LARGEST: usize = 1 << 30;
/// Size of the header in front of each ring's data.
const HEADER: usize = 64;
/// `CFR1` in memory.
const MAGIC: u32 = 0x3152_4643;
const VERSION: u32 = 1;
/// Offsets in the header.
const HEAD: usize = 16;
const TAIL: usize = 24;
const FRAMES: usize = 32;

/// The writing end of a ring.
pub type Producer = cursors::Producer<MappedRing>;
/// The reading end of a ring.
pub type Consumer = cursors::Consumer<MappedRing>;

/// Both rings as one side uses them.
pub struct Rings {
    pub producer: Producer,
    pub consumer: Consumer,
}

/// The side of the memory file that a process is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Writes the input ring and reads the output ring.
    Supervisor,
    Worker,
}

/// The reason why a ring is not used any more. All but `Call` mean that the other side broke a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    Call(CallError),
    /// The file can change its size.
    NotSealed,
    /// The file holds no two rings.
    Size(u64),
    Header,
    /// The positions of a ring do not fit into it.
    Positions {
        head: u64,
        tail: u64,
        capacity: u64,
    },
    /// The other side moved its position back.
    Backward {
        from: u64,
        to: u64,
    },
    /// The other side changes its position faster than it can be read.
    Unsteady,
}

/// Figures of the two rings, as the memory tells them: nothing in them is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFigures {
    /// Size of each ring.
    pub capacity_bytes: u64,
    /// Supervisor to worker.
    pub input: RingFigure,
    /// Worker to supervisor.
    pub output: RingFigure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFigure {
    /// Bytes that are written and not yet read.
    pub queued_bytes: u64,
    /// Bytes ever written.
    pub bytes: u64,
    /// Frames ever written.
    pub frames: u64,
}

/// Creates a memory file with two empty rings of this size, a power of two.
pub fn create(capacity: usize) -> Result<OwnedFd, CallError> {
    assert!(is_capacity(capacity), "the size of a ring is a power of two");
    let failed = |call| move |errno: Errno| CallError { call, errno: errno.raw_os_error() };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("rings", flags).map_err(failed("memfd_create"))?;
    rustix::fs::ftruncate(&file, 2 * half(capacity) as u64).map_err(failed("ftruncate"))?;
    for offset in [0, half(capacity)] {
        let written = rustix::io::pwrite(&file, &header(capacity), offset as u64).map_err(failed("pwrite"))?;
        assert_eq!(written, HEADER, "a file in memory takes a header at once");
    }
    rustix::fs::fcntl_add_seals(&file, seals()).map_err(failed("fcntl"))?;
    Ok(file)
}

impl Rings {
    /// Maps the rings for the supervisor, which goes on where the memory says that an earlier one stopped.
    pub fn map(memfd: impl AsFd) -> Result<Rings, RingError> {
        Rings::map_as(Side::Supervisor, memfd)
    }

    pub fn map_as(side: Side, memfd: impl AsFd) -> Result<Rings, RingError> {
        // A size that cannot change is checked once; a file that shrinks would raise SIGBUS here.
        if !rustix::fs::fcntl_get_seals(&memfd).is_ok_and(|found| found.contains(seals())) {
            return Err(RingError::NotSealed);
        }
        let capacity = capacity_of(&memfd)?;
        let mapping = Mapping::new(memfd.as_fd(), 2 * half(capacity)).map_err(RingError::Call)?;
        let mapping = Arc::new(mapping);
        let halves = [0, half(capacity)].map(|offset| MappedRing::new(&mapping, offset, capacity));
        if halves.iter().any(|half| half.header() != header(capacity)[..HEAD]) {
            return Err(RingError::Header);
        }
        let [input, output] = halves;
        let (written, read) = if side == Side::Supervisor { (input, output) } else { (output, input) };
        Ok(Rings { producer: Producer::resume(written)?, consumer: Consumer::resume(read)? })
    }
}

/// Reads the figures of both rings; only a file that holds no rings is an error.
pub fn figures(memfd: impl AsFd) -> Result<RingFigures, RingError> {
    let capacity = capacity_of(&memfd)?;
    let figure = |offset: usize| {
        let mut header = [0u8; HEADER];
        let got = rustix::io::pread(&memfd, &mut header, offset as u64).map_err(call_failed("pread"))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| header[at + n]));
        let queued = word(HEAD).wrapping_sub(word(TAIL)).min(capacity as u64);
        match got {
            HEADER => Ok(RingFigure { queued_bytes: queued, bytes: word(HEAD), frames: word(FRAMES) }),
            _ => Err(RingError::Size(got as u64)),
        }
    };
    Ok(RingFigures { capacity_bytes: capacity as u64, input: figure(0)?, output: figure(half(capacity))? })
}

/// Returns the size of the rings that fill this file.
fn capacity_of(memfd: impl AsFd) -> Result<usize, RingError> {
    let size = rustix::fs::fstat(memfd).map_err(call_failed("fstat"))?.st_size as u64;
    let capacity = usize::try_from(size / 2).unwrap_or(0).saturating_sub(HEADER);
    match is_capacity(capacity) && size == 2 * half(capacity) as u64 {
        true => Ok(capacity),
        false => Err(RingError::Size(size)),
    }
}

fn call_failed(call: &'static str) -> impl Fn(Errno) -> RingError {
    move |errno| RingError::Call(CallError { call, errno: errno.raw_os_error() })
}

/// Returns true for a size that keeps positions of the second ring aligned and sums in range.
fn is_capacity(capacity: usize) -> bool {
    capacity.is_power_of_two() && (HEADER..=LARGEST).contains(&capacity)
}

/// Size of a ring with its header.
fn half(capacity: usize) -> usize {
    HEADER + capacity
}

fn header(capacity: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    for (at, number) in [(0, MAGIC), (4, VERSION), (8, capacity as u32)] {
        header[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    header
}

fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Call(error) => write!(f, "{error}"),
            RingError::NotSealed => write!(f, "the file of the rings can change its size"),
            RingError::Size(size) => write!(f, "a file of {size} bytes holds no two rings"),
            RingError::Header => write!(f, "the header of a ring was overwritten"),
            RingError::Positions { head, tail, capacity } => {
                write!(f, "head {head} and tail {tail} are not positions in a ring of {capacity} bytes")
            }
            RingError::Backward { from, to } => write!(f, "a position in a ring went back from {from} to {to}"),
            RingError::Unsteady => write!(f, "a position in a ring changes faster than it can be read"),
        }
    }
}

impl std::error::Error for RingError {}

#[cfg(test)]
#[path = "ring/ring_test.rs"]
mod tests;
