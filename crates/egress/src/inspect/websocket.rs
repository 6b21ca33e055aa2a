//! WebSocket frames on their way to the guest. Secrets in messages are masked, also across fragments and around
//! interleaved control frames. Lengths do not change, so frame headers pass unchanged; bytes that are no frame are refused.
//!
//! ```text
//! header ─▶ data: through the mask ─▶ header …   a message ends with its last frame, which decides the held bytes
//!        ─▶ control: buffered and masked as a whole, then passed on in its place
//! ```

use super::secrets::{Mask, Needles};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;

/// Payload limit of a control frame.
const MAX_CONTROL: u64 = 125;
const MAX_HEAD: usize = 10;
/// Limit on frame headers and control frames queued behind held bytes.
const MAX_QUEUED: usize = 64;

pub(super) struct Frames<'a> {
    needles: &'a Needles,
    mask: Mask<'a>,
    state: FrameState,
    in_message: bool,
    /// Message bytes received, and passed on.
    received: u64,
    sent: u64,
    /// Frame headers and control frames, each with the number of message bytes before it.
    queued: VecDeque<(u64, Vec<u8>)>,
}

enum FrameState {
    Head(Vec<u8>),
    Data { left: u64, last: bool },
    Control { left: usize, frame: Vec<u8>, head: usize },
}

impl<'a> Frames<'a> {
    pub fn new(needles: &'a Needles) -> Frames<'a> {
        Frames {
            needles,
            mask: Mask::new(Some(needles)),
            state: FrameState::Head(Vec::new()),
            in_message: false,
            received: 0,
            sent: 0,
            queued: VecDeque::new(),
        }
    }

    /// Masks data and returns the bytes that may go on. Fails if the stream is no valid WebSocket.
    pub fn pass(&mut self, mut data: Bytes) -> Result<Bytes, &'static str> {
        let mut out = Vec::with_capacity(data.len());
        while data.has_remaining() {
            match &mut self.state {
                FrameState::Head(head) => {
                    head.push(data.get_u8());
                    let Some((frame, len)) = read_head(head)? else {
                        continue;
                    };
                    let head = std::mem::take(head);
                    self.begin(frame, len, head, &mut out)?;
                }
                FrameState::Data { left, last } => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
                    *left -= len as u64;
                    let ended = (*left == 0).then_some(*last);
                    self.received += len as u64;
                    let through = self.mask.pass(data.split_to(len));
                    self.emit(&through, &mut out);
                    if let Some(last) = ended {
                        self.end(last, &mut out);
                    }
                }
                FrameState::Control { left, frame, head } => {
                    let len = (*left).min(data.len());
                    *left -= len;
                    frame.extend_from_slice(&data.split_to(len));
                    if *left == 0 {
                        self.needles.mask(&mut frame[*head..]);
                        let frame = std::mem::take(frame);
                        self.state = FrameState::Head(Vec::new());
                        self.queue(frame, &mut out)?;
                    }
                }
            }
        }
        Ok(out.into())
    }

    pub fn may_release(&self) -> bool {
        self.mask.may_release()
    }

    /// Releases the held bytes after a pause.
    pub fn release(&mut self) -> Bytes {
        let (through, mut out) = (self.mask.release(), Vec::new());
        self.emit(&through, &mut out);
        out.into()
    }

    fn begin(&mut self, frame: FrameKind, len: u64, head: Vec<u8>, out: &mut Vec<u8>) -> Result<(), &'static str> {
        match frame {
            FrameKind::Control if len > 0 => {
                self.state = FrameState::Control { left: len as usize, head: head.len(), frame: head };
                return Ok(());
            }
            FrameKind::Control => return self.queue(head, out),
            FrameKind::First { .. } if self.in_message => return Err("a message begins within another"),
            FrameKind::More { .. } if !self.in_message => return Err("a message goes on that has not begun"),
            FrameKind::First { last } | FrameKind::More { last } => {
                self.in_message = true;
                self.queue(head, out)?;
                match len {
                    0 => self.end(last, out),
                    left => self.state = FrameState::Data { left, last },
                }
            }
        }
        Ok(())
    }

    /// Ends a frame of a message; the last frame also ends the message.
    fn end(&mut self, last: bool, out: &mut Vec<u8>) {
        self.state = FrameState::Head(Vec::new());
        if last {
            self.in_message = false;
            let rest = self.mask.rest();
            self.emit(&rest, out);
        }
    }

    /// Queues a frame header or control frame behind the message bytes received so far.
    fn queue(&mut self, bytes: Vec<u8>, out: &mut Vec<u8>) -> Result<(), &'static str> {
        if self.queued.len() == MAX_QUEUED {
            return Err("a message is cut into too many frames");
        }
        self.queued.push_back((self.received, bytes));
        self.emit(&[], out);
        Ok(())
    }

    /// Emits message bytes, with the queued headers and control frames in their places.
    fn emit(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some((at, queued)) = self.queued.front()
            && *at - self.sent <= bytes.len() as u64
        {
            let (before, after) = bytes.split_at((*at - self.sent) as usize);
            self.sent = *at;
            out.extend_from_slice(before);
            out.extend_from_slice(queued);
            bytes = after;
            self.queued.pop_front();
        }
        self.sent += bytes.len() as u64;
        out.extend_from_slice(bytes);
    }
}

/// Type of a frame; a message consists of one or more data frames.
enum FrameKind {
    First { last: bool },
    More { last: bool },
    Control,
}

/// Parses a frame header with its payload length, or returns `None` while it is incomplete.
fn read_head(head: &[u8]) -> Result<Option<(FrameKind, u64)>, &'static str> {
    let [first, second, long @ ..] = head else {
        return Ok(None);
    };
    let (last, reserved, code) = (first & 0x80 != 0, first & 0x70, first & 0x0f);
    if reserved != 0 {
        return Err("a frame uses an extension that was not agreed on");
    }
    if second & 0x80 != 0 {
        return Err("a server masks its frame");
    }
    let (wanted, short) = match second & 0x7f {
        126 => (2, 0),
        127 => (MAX_HEAD - 2, 0),
        len => (0, u64::from(len)),
    };
    if long.len() < wanted {
        return Ok(None);
    }
    let len = long.iter().fold(short, |sum, byte| sum << 8 | u64::from(*byte));
    let kind = match code {
        0 => FrameKind::More { last },
        1 | 2 => FrameKind::First { last },
        8..=10 if last && len <= MAX_CONTROL => FrameKind::Control,
        8..=10 => return Err("a control frame is too long or cut"),
        _ => return Err("a frame is of a kind that does not exist"),
    };
    match len >> 63 {
        0 => Ok(Some((kind, len))),
        _ => Err("a frame is longer than any can be"),
    }
}

#[cfg(test)]
#[path = "websocket_test.rs"]
mod test;
