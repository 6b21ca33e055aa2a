//! Frames of the worker protocol, as docs/reference/worker-protocol.md describes them. What a ring holds was written by the guest: a frame
//! is copied out once, and then checked.

use crate::Broken;
use sys::ring::{Consumer, Producer};

/// Bound on the payload of one frame.
pub const MOST_PAYLOAD: usize = 262_144;
/// Bound on a payload that comes in pieces.
pub const MOST_ASSEMBLED: usize = 64 << 20;
const HEADER: usize = 16;
/// Flag: the payload goes on in the next frame.
const CONTINUES: u8 = 1;

/// Types of frames, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Hello = 0x01,
    Execute = 0x02,
    Completeness = 0x03,
    Ready = 0x10,
    Stdout = 0x11,
    Stderr = 0x12,
    Display = 0x13,
    Result = 0x14,
    Error = 0x15,
    End = 0x16,
    Complete = 0x17,
}

impl Kind {
    /// Types that a worker sends.
    const FROM_WORKER: [Kind; 8] =
        [Kind::Ready, Kind::Stdout, Kind::Stderr, Kind::Display, Kind::Result, Kind::Error, Kind::End, Kind::Complete];

    fn from_worker(number: u8) -> Option<Kind> {
        Kind::FROM_WORKER.into_iter().find(|kind| *kind as u8 == number)
    }

    /// True for what a call says: streams, values and errors.
    pub fn counts_as_output(self) -> bool {
        matches!(self, Kind::Stdout | Kind::Stderr | Kind::Display | Kind::Result | Kind::Error)
    }

    /// Output comes in independent pieces, so that its reader can have each at once.
    pub fn is_output(self) -> bool {
        matches!(self, Kind::Stdout | Kind::Stderr)
    }
}

/// A frame that keeps to the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    /// The payload goes on in the next frame.
    pub continues: bool,
    pub request: u32,
    pub payload: Vec<u8>,
}

/// Splits a payload into encoded frames.
pub fn encode(kind: Kind, request: u32, payload: &[u8]) -> Vec<Vec<u8>> {
    // An empty payload has one frame as well.
    let count = payload.len().div_ceil(MOST_PAYLOAD).max(1);
    let piece = |n: usize| &payload[n * MOST_PAYLOAD..payload.len().min((n + 1) * MOST_PAYLOAD)];
    (0..count).map(|n| encode_one(kind, n + 1 < count, request, piece(n))).collect()
}

fn encode_one(kind: Kind, continues: bool, request: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend([kind as u8, if continues { CONTINUES } else { 0 }, 0, 0]);
    frame.extend(request.to_le_bytes());
    frame.extend(checksum(&frame, payload).to_le_bytes());
    frame.extend(payload);
    frame
}

/// Writes an encoded frame if there is room for all of it, so that no frame is left half written where this process ends.
pub fn write(producer: &mut Producer, frame: &[u8]) -> Result<bool, Broken> {
    if producer.free()? < frame.len() as u64 {
        return Ok(false);
    }
    producer.write(frame)?;
    producer.count_frame();
    Ok(true)
}

/// A frame that was read.
pub struct Read {
    pub frame: Frame,
    /// The worker may wait for the space that this freed.
    pub notify: bool,
}

/// Reads the next frame, if all of it is there.
pub fn read(consumer: &mut Consumer) -> Result<Option<Read>, Broken> {
    let available = consumer.available()?;
    if available < HEADER {
        return Ok(None);
    }
    let mut header = [0; HEADER];
    consumer.copy(0, &mut header);
    let (kind, flags, length) = check_header(&header)?;
    if available < HEADER + length {
        return Ok(None);
    }
    let mut payload = vec![0; length];
    consumer.copy(HEADER, &mut payload);
    if number(&header, 12) != checksum(&header[..12], &payload) {
        return Err(Broken::rule("the checksum of a frame is wrong"));
    }
    let notify = consumer.advance(HEADER + length);
    let frame = Frame { kind, continues: flags & CONTINUES != 0, request: number(&header, 8), payload };
    Ok(Some(Read { frame, notify }))
}

fn check_header(header: &[u8; HEADER]) -> Result<(Kind, u8, usize), Broken> {
    let length = number(header, 0) as usize;
    if length > MOST_PAYLOAD {
        return Err(Broken::rule(format!("a frame of {length} bytes; at most {MOST_PAYLOAD} are allowed")));
    }
    let kind = Kind::from_worker(header[4]);
    let kind = kind.ok_or_else(|| Broken::rule(format!("a frame of the unknown type {:#04x}", header[4])))?;
    let flags = header[5];
    let allowed = if kind.is_output() { 0 } else { CONTINUES };
    if flags & !allowed != 0 || header[6..8] != [0, 0] {
        return Err(Broken::rule(format!("a frame of type {:#04x} with flags {flags:#04x}", header[4])));
    }
    Ok((kind, flags, length))
}

fn number(header: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|n| header[at + n]))
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(header);
    sum.update(payload);
    sum.finalize()
}

/// Puts payloads together that come in pieces.
#[derive(Debug, Default)]
pub struct Assembler {
    begun: Option<Frame>,
}

impl Assembler {
    /// Takes a frame; returns it with its whole payload once the last piece is there. A frame of another type or request drops what has
    /// come of a payload: whoever wrote it began anew.
    pub fn take(&mut self, frame: Frame) -> Result<Option<Frame>, Broken> {
        let mut whole = match self.begun.take() {
            Some(begun) if (begun.kind, begun.request) == (frame.kind, frame.request) => begun,
            // Output may come between two pieces.
            Some(begun) if frame.kind.is_output() => {
                self.begun = Some(begun);
                return Ok(Some(frame));
            }
            _ if !frame.continues => return Ok(Some(frame)),
            _ => Frame { payload: Vec::new(), ..frame },
        };
        if whole.payload.len() + frame.payload.len() > MOST_ASSEMBLED {
            return Err(Broken::rule(format!("a value of more than {} MiB", MOST_ASSEMBLED >> 20)));
        }
        whole.payload.extend(frame.payload);
        if frame.continues {
            self.begun = Some(whole);
            return Ok(None);
        }
        whole.continues = false;
        Ok(Some(whole))
    }

    /// Number of bytes that have come of a payload which is not whole.
    pub fn pending(&self) -> usize {
        self.begun.as_ref().map_or(0, |begun| begun.payload.len())
    }
}
