//! Heads and bodies of HTTP/1.x as they come off a stream.

use super::super::secrets::{Mask, QUIET};
use super::super::stream::Io;
use crate::chunked::{Chunked, Piece};
use crate::http1::{Body, Fields, Head, Seen};
use bytes::{Buf, Bytes, BytesMut};
use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::timeout;

pub(in crate::inspect) type Writer = WriteHalf<Io>;

/// How much is read at once: little while little comes, for a connection that waits keeps the room it would read into.
const LEAST_READ: usize = 2 * 1024;
const MOST_READ: usize = 64 * 1024;
/// How much of what follows a request is read before its turn has come.
const AHEAD: usize = 64 * 1024;

pub(in crate::inspect) struct Reader {
    half: ReadHalf<Io>,
    buffer: BytesMut,
    /// How much is read the next time.
    room: usize,
    ended: bool,
}

/// Both directions of one stream.
pub(in crate::inspect) struct Pair {
    pub reader: Reader,
    pub writer: Writer,
}

/// What is left of a body.
pub(in crate::inspect) enum Left {
    Length(u64),
    Chunked(Box<Chunked>),
    UntilClose,
}

/// Why nothing more can be read.
#[derive(Debug)]
pub(in crate::inspect) enum Stop {
    /// The stream is broken or ended too soon.
    Gone(io::Error),
    /// What to answer with, and why.
    Bad(u16, &'static str),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Gone(error)
    }
}

impl Pair {
    pub fn new(stream: Io) -> Pair {
        let (half, writer) = tokio::io::split(stream);
        Pair { reader: Reader { half, buffer: BytesMut::new(), room: LEAST_READ, ended: false }, writer }
    }

    pub fn whole(self) -> Io {
        self.reader.half.unsplit(self.writer)
    }
}

impl Left {
    pub fn of(body: Body) -> Left {
        match body {
            Body::None => Left::Length(0),
            Body::Length(len) => Left::Length(len),
            Body::Chunked => Left::Chunked(Box::default()),
            Body::UntilClose => Left::UntilClose,
        }
    }

    /// What stood after the last chunk.
    pub fn trailers(&self) -> Fields {
        match self {
            Left::Chunked(decoder) => decoder.trailers().clone(),
            _ => Fields::default(),
        }
    }
}

impl Reader {
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Reads some bytes; none when the stream has ended.
    pub async fn more(&mut self) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        self.buffer.reserve(self.room);
        let len = self.half.read_buf(&mut self.buffer).await?;
        self.ended = len == 0;
        self.room = next_room(self.room, len);
        Ok(len)
    }

    /// The next head; `None` when the stream ends before it begins.
    pub async fn head<T>(
        &mut self,
        read: impl Fn(&[u8], &mut Seen) -> Head<T>,
        len: impl Fn(&T) -> usize,
    ) -> Result<Option<T>, Stop> {
        let mut seen = Seen::default();
        loop {
            match read(&self.buffer, &mut seen) {
                Head::Done(head) => {
                    self.buffer.advance(len(&head));
                    return Ok(Some(head));
                }
                Head::Bad { status, reason } => return Err(Stop::Bad(status, reason)),
                Head::NeedMore => {}
            }
            if self.more().await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(too_soon()) };
            }
        }
    }

    /// The next bytes of a body; `None` when it is whole. Nothing is lost when this is dropped half way.
    pub async fn piece(&mut self, left: &mut Left) -> Result<Option<Bytes>, Stop> {
        loop {
            match left {
                Left::Length(0) => return Ok(None),
                Left::Length(left) if !self.buffer.is_empty() => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buffer.len());
                    *left -= len as u64;
                    return Ok(Some(self.buffer.split_to(len).freeze()));
                }
                Left::UntilClose if !self.buffer.is_empty() => return Ok(Some(self.buffer.split().freeze())),
                Left::Chunked(decoder) => match decoder.next(&self.buffer) {
                    Piece::NeedMore => self.buffer.clear(),
                    Piece::Data(range) => {
                        self.buffer.advance(range.start);
                        return Ok(Some(self.buffer.split_to(range.len()).freeze()));
                    }
                    Piece::End(used) => {
                        self.buffer.advance(used);
                        return Ok(None);
                    }
                    Piece::Bad(reason) => return Err(Stop::Bad(400, reason)),
                },
                Left::Length(_) | Left::UntilClose => {}
            }
            if self.more().await? == 0 {
                return if matches!(left, Left::UntilClose) { Ok(None) } else { Err(too_soon()) };
            }
        }
    }

    /// The next bytes of a body with its secrets masked.
    pub async fn masked(&mut self, left: &mut Left, mask: &mut Mask<'_>) -> Result<Option<Bytes>, Stop> {
        loop {
            let read = match mask.holds_little() {
                false => self.piece(left).await?,
                true => match timeout(QUIET, self.piece(left)).await {
                    Ok(read) => read?,
                    Err(_) => return Ok(Some(mask.let_go())),
                },
            };
            let out = match read {
                Some(data) => mask.pass(data),
                None => return Ok(Some(mask.rest()).filter(|rest| !rest.is_empty())),
            };
            if !out.is_empty() {
                return Ok(Some(out));
            }
        }
    }

    /// Returns when the stream breaks. Meanwhile a little is read ahead, for without reading nothing is heard.
    pub async fn until_broken(&mut self) -> io::Error {
        loop {
            if self.buffer.len() >= AHEAD {
                return pending().await;
            }
            match self.more().await {
                // The other direction may still be open.
                Ok(0) => return pending().await,
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// Whether the stream is open and silent, as a server is between two requests.
    pub async fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let silent = poll_fn(|cx| Poll::Ready(self.peek(cx, &mut byte))).await;
        silent && self.buffer.is_empty() && !self.ended
    }

    fn peek(&mut self, cx: &mut std::task::Context<'_>, byte: &mut [u8; 1]) -> bool {
        Pin::new(&mut self.half).poll_read(cx, &mut ReadBuf::new(byte)).is_pending()
    }
}

/// Room that was filled grows, room that was hardly used shrinks.
fn next_room(room: usize, len: usize) -> usize {
    match len {
        len if len >= room => (room * 4).min(MOST_READ),
        len if len < room / 4 => (room / 2).max(LEAST_READ),
        _ => room,
    }
}

fn too_soon() -> Stop {
    Stop::Gone(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended too soon"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn room_follows_what_comes() {
        let after = |reads: &[usize]| reads.iter().fold(LEAST_READ, |room, len| next_room(room, *len));
        assert_eq!(after(&[100, 0]), LEAST_READ);
        assert_eq!(after(&[usize::MAX; 9]), MOST_READ);
        assert_eq!(after(&[LEAST_READ, 4 * LEAST_READ, 10]), 8 * LEAST_READ);
        assert_eq!(after(&[&[usize::MAX; 9][..], &[1; 9]].concat()), LEAST_READ);
    }
}
