//! Reader for heads and bodies of HTTP/1.x on a stream.

use super::super::secrets::{Mask, RELEASE_DELAY};
use super::super::stream::Io;
use crate::chunked::{Chunked, DecodeStep};
use crate::http1::{BodyFraming, Head, HeadScan, HeaderFields};
use bytes::{Buf, Bytes, BytesMut};
use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::timeout;

pub(in crate::inspect) type HttpWriter = WriteHalf<Io>;

/// Bounds of the adaptive read size: small for idle connections, since the buffer stays allocated while a read waits.
const LEAST_READ: usize = 2 * 1024;
const MOST_READ: usize = 64 * 1024;
/// Limit on pipelined bytes read ahead of their turn.
const AHEAD: usize = 64 * 1024;

pub(in crate::inspect) struct HttpReader {
    half: ReadHalf<Io>,
    buffer: BytesMut,
    /// Size of the next read.
    room: usize,
    ended: bool,
}

/// Both halves of one stream.
pub(in crate::inspect) struct StreamHalves {
    pub reader: HttpReader,
    pub writer: HttpWriter,
}

/// Remaining part of a body.
pub(in crate::inspect) enum BodyLeft {
    Length(u64),
    Chunked(Box<Chunked>),
    UntilClose,
}

/// Reason why reading stopped.
#[derive(Debug)]
pub(in crate::inspect) enum ReadError {
    /// The stream failed or ended early.
    Gone(io::Error),
    /// Status and reason of the refusal.
    Bad(u16, &'static str),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Gone(error)
    }
}

impl StreamHalves {
    pub fn new(stream: Io) -> StreamHalves {
        let (half, writer) = tokio::io::split(stream);
        StreamHalves { reader: HttpReader { half, buffer: BytesMut::new(), room: LEAST_READ, ended: false }, writer }
    }

    pub fn whole(self) -> Io {
        self.reader.half.unsplit(self.writer)
    }
}

impl BodyLeft {
    pub fn of(body: BodyFraming) -> BodyLeft {
        match body {
            BodyFraming::None => BodyLeft::Length(0),
            BodyFraming::Length(len) => BodyLeft::Length(len),
            BodyFraming::Chunked => BodyLeft::Chunked(Box::default()),
            BodyFraming::UntilClose => BodyLeft::UntilClose,
        }
    }

    /// Returns the trailer fields of a chunked body.
    pub fn trailers(&self) -> HeaderFields {
        match self {
            BodyLeft::Chunked(decoder) => decoder.trailers().clone(),
            _ => HeaderFields::default(),
        }
    }
}

impl HttpReader {
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Reads more bytes; returns 0 at end of stream.
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

    /// Reads the next head, or returns `None` at end of stream.
    pub async fn head<T>(
        &mut self,
        read: impl Fn(&[u8], &mut HeadScan) -> Head<T>,
        len: impl Fn(&T) -> usize,
    ) -> Result<Option<T>, ReadError> {
        let mut seen = HeadScan::default();
        loop {
            match read(&self.buffer, &mut seen) {
                Head::Done(head) => {
                    self.buffer.advance(len(&head));
                    return Ok(Some(head));
                }
                Head::Bad { status, reason } => return Err(ReadError::Bad(status, reason)),
                Head::NeedMore => {}
            }
            if self.more().await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(too_soon()) };
            }
        }
    }

    /// Returns the next bytes of a body, or `None` at its end. Cancellation loses no bytes.
    pub async fn piece(&mut self, left: &mut BodyLeft) -> Result<Option<Bytes>, ReadError> {
        loop {
            match left {
                BodyLeft::Length(0) => return Ok(None),
                BodyLeft::Length(left) if !self.buffer.is_empty() => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buffer.len());
                    *left -= len as u64;
                    return Ok(Some(self.buffer.split_to(len).freeze()));
                }
                BodyLeft::UntilClose if !self.buffer.is_empty() => return Ok(Some(self.buffer.split().freeze())),
                BodyLeft::Chunked(decoder) => match decoder.next(&self.buffer) {
                    DecodeStep::NeedMore => self.buffer.clear(),
                    DecodeStep::Data(range) => {
                        self.buffer.advance(range.start);
                        return Ok(Some(self.buffer.split_to(range.len()).freeze()));
                    }
                    DecodeStep::End(used) => {
                        self.buffer.advance(used);
                        return Ok(None);
                    }
                    DecodeStep::Bad(reason) => return Err(ReadError::Bad(400, reason)),
                },
                BodyLeft::Length(_) | BodyLeft::UntilClose => {}
            }
            if self.more().await? == 0 {
                return if matches!(left, BodyLeft::UntilClose) { Ok(None) } else { Err(too_soon()) };
            }
        }
    }

    /// Returns the next bytes of a body with secrets masked.
    pub async fn masked(&mut self, left: &mut BodyLeft, mask: &mut Mask<'_>) -> Result<Option<Bytes>, ReadError> {
        loop {
            let read = match mask.may_release() {
                false => self.piece(left).await?,
                true => match timeout(RELEASE_DELAY, self.piece(left)).await {
                    Ok(read) => read?,
                    Err(_) => return Ok(Some(mask.release())),
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

    /// Waits until the stream fails. Reads some bytes ahead meanwhile, since only a read detects the failure.
    pub async fn until_broken(&mut self) -> io::Error {
        loop {
            if self.buffer.len() >= AHEAD {
                return pending().await;
            }
            match self.more().await {
                // Half-closed: the other direction may still be open.
                Ok(0) => return pending().await,
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// Returns true if the stream is open and has no unread bytes, as a server's is between two requests.
    pub async fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let silent = poll_fn(|cx| Poll::Ready(self.peek(cx, &mut byte))).await;
        silent && self.buffer.is_empty() && !self.ended
    }

    fn peek(&mut self, cx: &mut std::task::Context<'_>, byte: &mut [u8; 1]) -> bool {
        Pin::new(&mut self.half).poll_read(cx, &mut ReadBuf::new(byte)).is_pending()
    }
}

/// Grows the read size after a full read, and shrinks it after a small one.
fn next_room(room: usize, len: usize) -> usize {
    match len {
        len if len >= room => (room * 4).min(MOST_READ),
        len if len < room / 4 => (room / 2).max(LEAST_READ),
        _ => room,
    }
}

fn too_soon() -> ReadError {
    ReadError::Gone(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended too soon"))
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
