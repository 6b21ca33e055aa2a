//! The frames of a WebSocket on their way to the guest. Secrets in its messages are masked, also where a message is cut
//! into frames or another frame stands between. Lengths stay as they are, so heads go on as they came; what is no frame
//! does not go on.
//!
//! ```text
//! head ─▶ data: through the mask ─▶ head …      a message ends with its last frame, and what is held is decided then
//!      ─▶ control: gathered and masked as a whole, goes on in its place
//! ```

use super::secrets::{Mask, Needles};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;

/// The longest control frame, without its head.
const MAX_CONTROL: u64 = 125;
const MAX_HEAD: usize = 10;
/// How many heads and control frames may stand behind bytes that are held.
const MAX_BEHIND: usize = 64;

pub(super) struct Frames<'a> {
    needles: &'a Needles,
    mask: Mask<'a>,
    state: State,
    in_message: bool,
    /// How many bytes of messages have come, and gone on.
    come: u64,
    gone: u64,
    /// What stands between the bytes of messages, each with how many of them come before it.
    between: VecDeque<(u64, Vec<u8>)>,
}

enum State {
    Head(Vec<u8>),
    Data { left: u64, last: bool },
    Control { left: usize, frame: Vec<u8>, head: usize },
}

impl<'a> Frames<'a> {
    pub fn new(needles: &'a Needles) -> Frames<'a> {
        Frames {
            needles,
            mask: Mask::new(Some(needles)),
            state: State::Head(Vec::new()),
            in_message: false,
            come: 0,
            gone: 0,
            between: VecDeque::new(),
        }
    }

    /// What of the stream may go on. `Err` says what is wrong with it.
    pub fn pass(&mut self, mut data: Bytes) -> Result<Bytes, &'static str> {
        let mut out = Vec::with_capacity(data.len());
        while data.has_remaining() {
            match &mut self.state {
                State::Head(head) => {
                    head.push(data.get_u8());
                    let Some((frame, len)) = read_head(head)? else {
                        continue;
                    };
                    let head = std::mem::take(head);
                    self.begin(frame, len, head, &mut out)?;
                }
                State::Data { left, last } => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
                    *left -= len as u64;
                    let ended = (*left == 0).then_some(*last);
                    self.come += len as u64;
                    let through = self.mask.pass(data.split_to(len));
                    self.put(&through, &mut out);
                    if let Some(last) = ended {
                        self.end(last, &mut out);
                    }
                }
                State::Control { left, frame, head } => {
                    let len = (*left).min(data.len());
                    *left -= len;
                    frame.extend_from_slice(&data.split_to(len));
                    if *left == 0 {
                        self.needles.mask(&mut frame[*head..]);
                        let frame = std::mem::take(frame);
                        self.state = State::Head(Vec::new());
                        self.stand(frame, &mut out)?;
                    }
                }
            }
        }
        Ok(out.into())
    }

    pub fn holds_little(&self) -> bool {
        self.mask.holds_little()
    }

    /// Lets go what is held, after a moment without more.
    pub fn let_go(&mut self) -> Bytes {
        let (through, mut out) = (self.mask.let_go(), Vec::new());
        self.put(&through, &mut out);
        out.into()
    }

    fn begin(&mut self, frame: Kind, len: u64, head: Vec<u8>, out: &mut Vec<u8>) -> Result<(), &'static str> {
        match frame {
            Kind::Control if len > 0 => {
                self.state = State::Control { left: len as usize, head: head.len(), frame: head };
                return Ok(());
            }
            Kind::Control => return self.stand(head, out),
            Kind::First { .. } if self.in_message => return Err("a message begins within another"),
            Kind::More { .. } if !self.in_message => return Err("a message goes on that has not begun"),
            Kind::First { last } | Kind::More { last } => {
                self.in_message = true;
                self.stand(head, out)?;
                match len {
                    0 => self.end(last, out),
                    left => self.state = State::Data { left, last },
                }
            }
        }
        Ok(())
    }

    /// The end of a frame of a message.
    fn end(&mut self, last: bool, out: &mut Vec<u8>) {
        self.state = State::Head(Vec::new());
        if last {
            self.in_message = false;
            let rest = self.mask.rest();
            self.put(&rest, out);
        }
    }

    /// Something that stands between the bytes of messages.
    fn stand(&mut self, bytes: Vec<u8>, out: &mut Vec<u8>) -> Result<(), &'static str> {
        if self.between.len() == MAX_BEHIND {
            return Err("a message is cut into too many frames");
        }
        self.between.push_back((self.come, bytes));
        self.put(&[], out);
        Ok(())
    }

    /// Bytes of messages that may go on, with what stands between them.
    fn put(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some((at, between)) = self.between.front()
            && *at - self.gone <= bytes.len() as u64
        {
            let (before, after) = bytes.split_at((*at - self.gone) as usize);
            self.gone = *at;
            out.extend_from_slice(before);
            out.extend_from_slice(between);
            bytes = after;
            self.between.pop_front();
        }
        self.gone += bytes.len() as u64;
        out.extend_from_slice(bytes);
    }
}

/// What a frame is; a message is one or more of them.
enum Kind {
    First { last: bool },
    More { last: bool },
    Control,
}

/// The head of a frame, once it is whole, and the length it declares.
fn read_head(head: &[u8]) -> Result<Option<(Kind, u64)>, &'static str> {
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
        0 => Kind::More { last },
        1 | 2 => Kind::First { last },
        8..=10 if last && len <= MAX_CONTROL => Kind::Control,
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
