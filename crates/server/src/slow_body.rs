//! Request bodies with a minimum rate: a body that arrives more slowly fails with `TooSlow`.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Minimum rate in bytes per second: a body may take `patience`, plus one second for each so many bytes received.
const MIN_BYTES_PER_SECOND: u64 = 1024;

#[derive(Debug)]
pub struct TooSlow;

impl std::fmt::Display for TooSlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the body comes too slowly")
    }
}

impl std::error::Error for TooSlow {}

/// A body that fails once waiting for the client has taken too long.
pub struct TimedBody<B> {
    body: B,
    bytes: u64,
    /// Time spent waiting for the client; time that the daemon spends does not count.
    waited: Duration,
    since: Option<Instant>,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<B> TimedBody<B> {
    pub fn new(body: B, patience: Duration) -> TimedBody<B> {
        let timer = Box::pin(tokio::time::sleep(patience));
        TimedBody { body, bytes: 0, waited: Duration::ZERO, since: None, patience, timer }
    }

    fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.waited += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    fn wait(&mut self) {
        if self.since.is_none() {
            let now = Instant::now();
            let whole = self.patience + Duration::from_secs(self.bytes / MIN_BYTES_PER_SECOND);
            self.timer.as_mut().reset(now + whole.saturating_sub(self.waited).min(self.patience));
            self.since = Some(now);
        }
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.came(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(other) => Poll::Ready(other.map(|frame| frame.map_err(Into::into))),
            Poll::Pending => {
                this.wait();
                match this.timer.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(Box::new(TooSlow)))),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
