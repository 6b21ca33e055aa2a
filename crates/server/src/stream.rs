//! Response bodies that end when the daemon is shutting down or their credential is revoked or expires.

use crate::shared::CloseReason;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub struct Closing<B> {
    body: B,
    /// True for server-sent events, which end with the event `closing`.
    events: bool,
    closed: Pin<Box<dyn Future<Output = CloseReason> + Send>>,
    is_over: bool,
}

impl<B> Closing<B> {
    pub fn new(body: B, events: bool, closed: impl Future<Output = CloseReason> + Send + 'static) -> Closing<B> {
        Closing { body, events, closed: Box::pin(closed), is_over: false }
    }

    fn close(&mut self, why: CloseReason) -> Option<Result<Frame<Bytes>, axum::Error>> {
        self.is_over = true;
        if self.events {
            let text = format!("event: closing\ndata: {{\"reason\":\"{}\"}}\n\n", why.name());
            return Some(Ok(Frame::data(text.into())));
        }
        Some(Err(axum::Error::new(std::io::Error::other(why.name()))))
    }
}

impl<B: Body<Data = Bytes, Error = axum::Error> + Unpin> Body for Closing<B> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        match this.closed.as_mut().poll(cx) {
            // A finite body is sent to its end while the daemon waits for it.
            Poll::Ready(CloseReason::Shutdown) if !this.events => this.closed = Box::pin(std::future::pending()),
            Poll::Ready(why) => return Poll::Ready(this.close(why)),
            Poll::Pending => {}
        }
        let next = Pin::new(&mut this.body).poll_frame(cx);
        this.is_over = matches!(next, Poll::Ready(None));
        next
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
