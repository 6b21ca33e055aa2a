//! One request that is let through, and its answer; both move at once. Room is given back only when bytes have gone on.

use super::super::answer::Refusal;
use super::super::case::Case;
use super::super::headers::belong_in_head;
use super::super::secrets::{Mask, QUIET};
use super::{AWAY, Ended, answer, away, is_away, pass_over, trouble};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use tokio::time::timeout;

/// How many words a server may say before its answer, and how much. They go to the guest however slowly it reads.
const MAX_INTERIM: usize = 16;
const MAX_INTERIM_SIZE: usize = 16 * 1024;

/// A request that is let through, and its answer.
pub(super) struct Exchange<'a> {
    case: &'a Case,
    is_head: bool,
    /// The answer has begun, so no other can be given.
    begun: AtomicBool,
}

/// Why it went wrong.
enum Broken {
    Guest(Reason),
    /// The server ended the stream so; the guest is told the same.
    Reset(Reason),
    /// The server goes away and has not looked at the request.
    Away,
    Server(String),
    Cut(&'static str),
}

impl<'a> Exchange<'a> {
    pub fn new(case: &'a Case, is_head: bool) -> Exchange<'a> {
        Exchange { case, is_head, begun: false.into() }
    }

    pub async fn run(
        &self,
        mut body: RecvStream,
        mut out: SendStream<Bytes>,
        response: h2::client::ResponseFuture,
        mut respond: SendResponse<Bytes>,
    ) -> Ended {
        let mut back = None;
        let done = tokio::select! {
            biased;
            done = self.download(response, &mut respond, &mut back) => done,
            broken = self.upload(&mut body, &mut out) => Err(broken),
            reason = self.case.overdue() => Err(Broken::Cut(reason)),
        };
        let Err(broken) = done else {
            // What the server has no use for is dropped here, and its stream ended.
            drop(out);
            pass_over(&mut body).await;
            return Ended::Whole;
        };
        if matches!(broken, Broken::Away) && !self.begun.load(Relaxed) {
            return away(self.case, &mut respond);
        }
        let ended = if matches!(broken, Broken::Guest(_)) { Ended::Early } else { Ended::Here };
        let (reason, told, refusal) = match broken {
            Broken::Guest(reason) => (reason, format!("the client ended it: {reason}"), None),
            Broken::Reset(reason) => (reason, format!("the server ended it: {reason}"), None),
            Broken::Away => (Reason::CANCEL, AWAY.to_owned(), None),
            Broken::Server(why) => (Reason::INTERNAL_ERROR, why.clone(), Some(Refusal::unavailable(why))),
            Broken::Cut(why) => (Reason::CANCEL, why.to_owned(), Some(Refusal::unavailable(why.to_owned()))),
        };
        self.case.failed(&told);
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

    /// Sends the body of the request. Returns only when the guest is at fault; the server's answer tells the rest.
    async fn upload(&self, body: &mut RecvStream, out: &mut SendStream<Bytes>) -> Broken {
        loop {
            let data = match body.data().await {
                Some(Ok(data)) => data,
                Some(Err(error)) => return Broken::Guest(error.reason().unwrap_or(Reason::CANCEL)),
                None => break,
            };
            let len = data.len();
            if let Err(reason) = self.case.passes(0, len) {
                return Broken::Cut(reason);
            }
            if send(out, data).await.is_err() {
                return pending().await;
            }
            let _ = body.flow_control().release_capacity(len);
        }
        match body.trailers().await {
            Ok(Some(trailers)) if belong_in_head(&trailers) => return Broken::Guest(Reason::PROTOCOL_ERROR),
            Ok(Some(mut trailers)) => {
                self.case.clean_trailers(&mut trailers);
                let _ = out.send_trailers(trailers);
            }
            // Of a request that had no body, the end was sent with its head.
            Ok(None) => {
                let _ = out.send_data(Bytes::new(), true);
            }
            Err(error) => return Broken::Guest(error.reason().unwrap_or(Reason::CANCEL)),
        }
        pending().await
    }

    /// Passes the answer on. `back` is what the guest gets, from when it has begun.
    async fn download(
        &self,
        response: h2::client::ResponseFuture,
        respond: &mut SendResponse<Bytes>,
        back: &mut Option<SendStream<Bytes>>,
    ) -> Result<(), Broken> {
        let response = self.response(response, respond).await?;
        let (mut parts, mut body) = response.into_parts();
        self.case.passes(size(&parts.headers), 0).map_err(Broken::Cut)?;
        if let Some(reason) = self.case.hides(parts.status.as_u16(), &parts.headers) {
            return Err(Broken::Server(reason.to_owned()));
        }
        self.case.mask(&mut parts.headers);
        let ended = body.is_end_stream();
        self.begun.store(true, Relaxed);
        let sent = respond.send_response(Response::from_parts(parts, ()), ended).map_err(guest_gone)?;
        let sent = back.insert(sent);
        if ended {
            return Ok(());
        }
        self.put_answer(&mut body, sent).await
    }

    /// The head of the answer; what a server says before it is passed on.
    async fn response(
        &self,
        mut response: h2::client::ResponseFuture,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<Response<RecvStream>, Broken> {
        let mut said = 0;
        for _ in 0..MAX_INTERIM {
            let word = poll_fn(|cx| {
                if let Poll::Ready(reset) = respond.poll_reset(cx) {
                    return Poll::Ready(Err(Broken::Guest(reset.unwrap_or(Reason::CANCEL))));
                }
                response.poll_informational(cx).map(|word| word.transpose().map_err(broken_server))
            });
            match word.await? {
                Some(mut word) => {
                    let len = size(word.headers());
                    self.case.passes(len, 0).map_err(Broken::Cut)?;
                    said += len;
                    if said > MAX_INTERIM_SIZE {
                        break;
                    }
                    self.case.mask(word.headers_mut());
                    respond.send_informational(word).map_err(guest_gone)?;
                }
                None => return response.await.map_err(broken_server),
            }
        }
        Err(Broken::Server("the server says too much before its answer".to_owned()))
    }

    async fn put_answer(&self, body: &mut RecvStream, back: &mut SendStream<Bytes>) -> Result<(), Broken> {
        let mut mask = Mask::new(self.case.needles.as_deref());
        loop {
            let read = match mask.holds_little() {
                false => next(body, back).await?,
                true => match timeout(QUIET, next(body, back)).await {
                    Ok(read) => read?,
                    Err(_) => {
                        send(back, mask.let_go()).await.map_err(guest_gone)?;
                        continue;
                    }
                },
            };
            let Some(data) = read else {
                break;
            };
            let len = data.len();
            self.case.passes(len, 0).map_err(Broken::Cut)?;
            send(back, mask.pass(data)).await.map_err(guest_gone)?;
            let _ = body.flow_control().release_capacity(len);
        }
        send(back, mask.rest()).await.map_err(guest_gone)?;
        match body.trailers().await.map_err(broken_server)? {
            Some(mut trailers) => {
                self.case.mask(&mut trailers);
                back.send_trailers(trailers).map_err(guest_gone)
            }
            None => back.send_data(Bytes::new(), true).map_err(guest_gone),
        }
    }
}

/// The next bytes of an answer; `None` when it is whole. Hears at the same time when the guest wants no more.
async fn next(body: &mut RecvStream, back: &mut SendStream<Bytes>) -> Result<Option<Bytes>, Broken> {
    poll_fn(|cx| {
        if let Poll::Ready(reset) = back.poll_reset(cx) {
            return Poll::Ready(Err(Broken::Guest(reset.unwrap_or(Reason::CANCEL))));
        }
        body.poll_data(cx).map(|data| data.transpose().map_err(broken_server))
    })
    .await
}

/// Sends bytes as the other side makes room for them.
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

fn guest_gone(error: h2::Error) -> Broken {
    Broken::Guest(error.reason().unwrap_or(Reason::CANCEL))
}

fn broken_server(error: h2::Error) -> Broken {
    match error.reason() {
        Some(reason) if error.is_reset() => Broken::Reset(reason),
        _ if is_away(&error) => Broken::Away,
        _ => Broken::Server(trouble(&error)),
    }
}

/// What headers count for; how they are packed is nobody's concern.
pub(super) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}
