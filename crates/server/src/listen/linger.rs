//! Lingering close. A connection that is closed while its client still sends is reset, and a client that sends everything before it reads
//! gets a socket error instead of the response. So the rest of the request is read and discarded, within bounds.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// Time limit for reading the rest.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of bytes read for authenticated clients, and for others.
const MAX_OF_AUTHENTICATED: u64 = 32 << 20;
const MAX_OF_OTHERS: u64 = 1 << 20;
/// A rest of this size is in hyper's buffer: the connection need not be closed for it.
const BUFFERED: u64 = 4 << 10;

/// State of the last request of a connection.
#[derive(Debug, Default)]
pub struct LastRequest {
    /// The end of the body was not read.
    is_unread: AtomicBool,
    /// The body was dropped, and more of it may follow than hyper has buffered.
    is_long: AtomicBool,
    is_authenticated: AtomicBool,
}

impl LastRequest {
    /// Notes that a request could not be parsed: its bytes still arrive.
    pub fn set_unread(&self) {
        self.is_unread.store(true, Ordering::Relaxed);
    }

    /// Notes that the client was authenticated.
    pub fn set_authenticated(&self) {
        self.is_authenticated.store(true, Ordering::Relaxed);
    }

    /// Returns true if the connection must be closed after the response.
    pub fn must_close(&self) -> bool {
        self.is_long.load(Ordering::Relaxed)
    }

    /// Starts to discard the rest of the request, if any.
    pub fn linger(&self) -> Linger {
        let most = if self.is_authenticated.load(Ordering::Relaxed) { MAX_OF_AUTHENTICATED } else { MAX_OF_OTHERS };
        let left = if self.is_unread.load(Ordering::Relaxed) { most } else { 0 };
        Linger { left, until: Box::pin(tokio::time::sleep(TIME_LIMIT)) }
    }
}

/// A request body that records whether all of it was read.
pub struct RequestBody<B: Body> {
    body: B,
    last_request: Arc<LastRequest>,
}

impl<B: Body> RequestBody<B> {
    pub fn new(body: B, last_request: Arc<LastRequest>) -> RequestBody<B> {
        last_request.is_unread.store(!body.is_end_stream(), Ordering::Relaxed);
        last_request.is_long.store(false, Ordering::Relaxed);
        last_request.is_authenticated.store(false, Ordering::Relaxed);
        RequestBody { body, last_request }
    }
}

impl<B: Body> Drop for RequestBody<B> {
    fn drop(&mut self) {
        let is_unread = self.last_request.is_unread.load(Ordering::Relaxed);
        let is_long = self.body.size_hint().upper().is_none_or(|left| left > BUFFERED);
        self.last_request.is_long.store(is_unread && is_long, Ordering::Relaxed);
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.last_request.is_unread.store(false, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads until the client has sent everything, or a bound is reached.
pub struct Linger {
    left: u64,
    until: Pin<Box<Sleep>>,
}

impl Linger {
    pub fn poll(&mut self, stream: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<()> {
        let mut room = [0; 16 << 10];
        while self.left > 0 && self.until.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut room);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.left = self.left.saturating_sub(buffer.filled().len() as u64);
                }
                Poll::Ready(_) => self.left = 0,
            }
        }
        Poll::Ready(())
    }
}
