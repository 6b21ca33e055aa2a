//! What a client still sends when its answer is out. A connection that is closed upon it is reset, and a client that sends all before
//! it reads then has an error of its socket instead of our answer. So the rest is read, thrown away, and bounded.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// How long the rest may take.
const LONGEST: Duration = Duration::from_secs(5);
/// How much of it is read for whoever showed a credential, and for anybody else.
const OF_KNOWN: u64 = 32 << 20;
const OF_STRANGERS: u64 = 1 << 20;
/// A body that hyper finds whole in its buffer: nothing has to be closed for it.
const AT_HAND: u64 = 4 << 10;

/// What is known of the last request of a connection.
#[derive(Debug, Default)]
pub struct Rest {
    /// The end of its body was not seen.
    unread: AtomicBool,
    /// The body was let go of, and more of it may be to come than is at hand.
    long: AtomicBool,
    known: AtomicBool,
}

impl Rest {
    /// What comes is none that we understand; it comes all the same.
    pub fn is_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Who asked has shown a credential.
    pub fn is_known(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    /// Whether the connection must end with the answer.
    pub fn ends_it(&self) -> bool {
        self.long.load(Ordering::Relaxed)
    }

    /// Reads what is left, where something is.
    pub fn linger(&self) -> Linger {
        let most = if self.known.load(Ordering::Relaxed) { OF_KNOWN } else { OF_STRANGERS };
        let left = if self.unread.load(Ordering::Relaxed) { most } else { 0 };
        Linger { left, until: Box::pin(tokio::time::sleep(LONGEST)) }
    }
}

/// The body of a request, which tells whether all of it was wanted.
pub struct Asked<B: Body> {
    body: B,
    rest: Arc<Rest>,
}

impl<B: Body> Asked<B> {
    pub fn new(body: B, rest: Arc<Rest>) -> Asked<B> {
        rest.unread.store(!body.is_end_stream(), Ordering::Relaxed);
        rest.long.store(false, Ordering::Relaxed);
        rest.known.store(false, Ordering::Relaxed);
        Asked { body, rest }
    }
}

impl<B: Body> Drop for Asked<B> {
    fn drop(&mut self) {
        let unread = self.rest.unread.load(Ordering::Relaxed);
        let long = self.body.size_hint().upper().is_none_or(|left| left > AT_HAND);
        self.rest.long.store(unread && long, Ordering::Relaxed);
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Asked<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.rest.unread.store(false, Ordering::Relaxed);
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

/// Reads until the client has no more, or took too much.
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
