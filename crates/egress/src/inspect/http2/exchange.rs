//! An allowed request and its response, streamed concurrently. Flow control capacity is released only when bytes have
//! been sent on, which gives end-to-end back-pressure.

use super::super::headers::has_head_fields;
use super::super::judged_request::JudgedRequest;
use super::super::refusal::RequestRefusal;
use super::super::secrets::{Mask, RELEASE_DELAY};
use super::{GOAWAY_REASON, StreamEnd, answer, discard_body, is_graceful_goaway, refuse_stream, trouble};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use tokio::time::timeout;

/// Limits on interim (1xx) responses and their size. They are queued for the guest without flow control.
const MAX_INTERIM: usize = 16;
const MAX_INTERIM_SIZE: usize = 16 * 1024;

/// An allowed request and its response.
pub(super) struct Exchange<'a> {
    judged: &'a JudgedRequest,
    is_head: bool,
    /// True once the response has begun, so that no error response can be sent.
    begun: AtomicBool,
}

/// Reason for aborting an exchange.
enum ExchangeError {
    Guest(Reason),
    /// The server reset the stream; the guest gets the same reset.
    Reset(Reason),
    /// The server sent GOAWAY and has not processed the request.
    Away,
    Server(String),
    Cut(&'static str),
}

impl<'a> Exchange<'a> {
    pub fn new(judged: &'a JudgedRequest, is_head: bool) -> Exchange<'a> {
        Exchange { judged, is_head, begun: false.into() }
    }

    pub async fn run(
        &self,
        mut body: RecvStream,
        mut out: SendStream<Bytes>,
        response: h2::client::ResponseFuture,
        mut respond: SendResponse<Bytes>,
    ) -> StreamEnd {
        let mut back = None;
        let done = tokio::select! {
            biased;
            done = self.download(response, &mut respond, &mut back) => done,
            broken = self.upload(&mut body, &mut out) => Err(broken),
            reason = self.judged.until_aborted() => Err(ExchangeError::Cut(reason)),
        };
        let Err(broken) = done else {
            // Dropping `out` resets the server's stream if the request is incomplete; the rest of the body is
            // discarded.
            drop(out);
            discard_body(&mut body).await;
            return StreamEnd::Whole;
        };
        if matches!(broken, ExchangeError::Away) && !self.begun.load(Relaxed) {
            return refuse_stream(self.judged, &mut respond);
        }
        let ended = if matches!(broken, ExchangeError::Guest(_)) { StreamEnd::Early } else { StreamEnd::Here };
        let (reason, event_reason, refusal) = match broken {
            ExchangeError::Guest(reason) => (reason, format!("the client reset the stream: {reason}"), None),
            ExchangeError::Reset(reason) => (reason, format!("the server reset the stream: {reason}"), None),
            ExchangeError::Away => (Reason::CANCEL, GOAWAY_REASON.to_owned(), None),
            ExchangeError::Server(why) => (Reason::INTERNAL_ERROR, why.clone(), Some(RequestRefusal::unavailable(why))),
            ExchangeError::Cut(why) => {
                (Reason::CANCEL, why.to_owned(), Some(RequestRefusal::unavailable(why.to_owned())))
            }
        };
        self.judged.failed(&event_reason);
        out.send_reset(Reason::CANCEL);
        match (refusal, back) {
            (_, Some(mut back)) => back.send_reset(reason),
            (Some(refusal), None) if !self.begun.load(Relaxed) => {
                answer(&mut respond, &refusal, self.is_head, &mut body).await;
            }
            _ => respond.send_reset(reason),
        }
        ended
    }

    /// Sends the request body. Returns only on a fault of the guest; a fault of the server shows in its response.
    async fn upload(&self, body: &mut RecvStream, out: &mut SendStream<Bytes>) -> ExchangeError {
        loop {
            let data = match body.data().await {
                Some(Ok(data)) => data,
                Some(Err(error)) => return ExchangeError::Guest(error.reason().unwrap_or(Reason::CANCEL)),
                None => break,
            };
            let len = data.len();
            if let Err(reason) = self.judged.passes(0, len) {
                return ExchangeError::Cut(reason);
            }
            if send(out, data).await.is_err() {
                return pending().await;
            }
            let _ = body.flow_control().release_capacity(len);
        }
        match body.trailers().await {
            Ok(Some(trailers)) if has_head_fields(&trailers) => return ExchangeError::Guest(Reason::PROTOCOL_ERROR),
            Ok(Some(mut trailers)) => {
                self.judged.clean_trailers(&mut trailers);
                let _ = out.send_trailers(trailers);
            }
            // For a request without a body, END_STREAM was sent with its headers.
            Ok(None) => {
                let _ = out.send_data(Bytes::new(), true);
            }
            Err(error) => return ExchangeError::Guest(error.reason().unwrap_or(Reason::CANCEL)),
        }
        pending().await
    }

    /// Forwards the response. `back` is set to the guest's stream once the response has begun.
    async fn download(
        &self,
        response: h2::client::ResponseFuture,
        respond: &mut SendResponse<Bytes>,
        back: &mut Option<SendStream<Bytes>>,
    ) -> Result<(), ExchangeError> {
        let response = self.response(response, respond).await?;
        let (mut parts, mut body) = response.into_parts();
        self.judged.passes(size(&parts.headers), 0).map_err(ExchangeError::Cut)?;
        if let Some(reason) = self.judged.unsearchable_reason(parts.status.as_u16(), &parts.headers) {
            return Err(ExchangeError::Server(reason.to_owned()));
        }
        self.judged.mask(&mut parts.headers);
        let ended = body.is_end_stream();
        self.begun.store(true, Relaxed);
        let sent = respond.send_response(Response::from_parts(parts, ()), ended).map_err(guest_gone)?;
        let sent = back.insert(sent);
        if ended {
            return Ok(());
        }
        self.put_answer(&mut body, sent).await
    }

    /// Awaits the final response head, and forwards interim responses before it.
    async fn response(
        &self,
        mut response: h2::client::ResponseFuture,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<Response<RecvStream>, ExchangeError> {
        let mut interim_size = 0;
        for _ in 0..MAX_INTERIM {
            let interim = poll_fn(|cx| {
                if let Poll::Ready(reset) = respond.poll_reset(cx) {
                    return Poll::Ready(Err(ExchangeError::Guest(reset.unwrap_or(Reason::CANCEL))));
                }
                response.poll_informational(cx).map(|interim| interim.transpose().map_err(broken_server))
            });
            match interim.await? {
                Some(mut interim) => {
                    let len = size(interim.headers());
                    self.judged.passes(len, 0).map_err(ExchangeError::Cut)?;
                    interim_size += len;
                    if interim_size > MAX_INTERIM_SIZE {
                        break;
                    }
                    self.judged.mask(interim.headers_mut());
                    respond.send_informational(interim).map_err(guest_gone)?;
                }
                None => return response.await.map_err(broken_server),
            }
        }
        Err(ExchangeError::Server("the server sends too many interim responses".to_owned()))
    }

    async fn put_answer(&self, body: &mut RecvStream, back: &mut SendStream<Bytes>) -> Result<(), ExchangeError> {
        let mut mask = Mask::new(self.judged.needles.as_deref());
        loop {
            let read = match mask.may_release() {
                false => next(body, back).await?,
                true => match timeout(RELEASE_DELAY, next(body, back)).await {
                    Ok(read) => read?,
                    Err(_) => {
                        send(back, mask.release()).await.map_err(guest_gone)?;
                        continue;
                    }
                },
            };
            let Some(data) = read else {
                break;
            };
            let len = data.len();
            self.judged.passes(len, 0).map_err(ExchangeError::Cut)?;
            send(back, mask.pass(data)).await.map_err(guest_gone)?;
            let _ = body.flow_control().release_capacity(len);
        }
        send(back, mask.rest()).await.map_err(guest_gone)?;
        match body.trailers().await.map_err(broken_server)? {
            Some(mut trailers) => {
                self.judged.mask(&mut trailers);
                back.send_trailers(trailers).map_err(guest_gone)
            }
            None => back.send_data(Bytes::new(), true).map_err(guest_gone),
        }
    }
}

/// Returns the next bytes of a response, or `None` at its end. Also detects a reset by the guest.
async fn next(body: &mut RecvStream, back: &mut SendStream<Bytes>) -> Result<Option<Bytes>, ExchangeError> {
    poll_fn(|cx| {
        if let Poll::Ready(reset) = back.poll_reset(cx) {
            return Poll::Ready(Err(ExchangeError::Guest(reset.unwrap_or(Reason::CANCEL))));
        }
        body.poll_data(cx).map(|data| data.transpose().map_err(broken_server))
    })
    .await
}

/// Sends bytes as the peer's flow control window permits.
pub(super) async fn send(out: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        out.reserve_capacity(data.len());
        let room = out.capacity().min(data.len());
        if room > 0 {
            out.send_data(data.split_to(room), false)?;
            continue;
        }
        match poll_fn(|cx| out.poll_capacity(cx)).await {
            Some(room) => room?,
            None => return Err(Reason::CANCEL.into()),
        };
    }
    Ok(())
}

fn guest_gone(error: h2::Error) -> ExchangeError {
    ExchangeError::Guest(error.reason().unwrap_or(Reason::CANCEL))
}

fn broken_server(error: h2::Error) -> ExchangeError {
    match error.reason() {
        Some(reason) if error.is_reset() => ExchangeError::Reset(reason),
        _ if is_graceful_goaway(&error) => ExchangeError::Away,
        _ => ExchangeError::Server(trouble(&error)),
    }
}

/// Size of headers for the byte count, before compression.
pub(super) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}
