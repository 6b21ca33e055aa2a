//! An allowed request and its response, streamed concurrently: a server may respond before it has read the whole
//! request, and a client may wait for an interim response before it sends the body.

use super::super::headers::remove_hop_by_hop;
use super::super::judged_request::JudgedRequest;
use super::super::refusal::RequestRefusal;
use super::super::secrets::Mask;
use super::super::tls::stream_trouble;
use super::super::websocket_relay::{self, WebSocketPeer};
use super::{AfterRequest, BodyLeft, HttpReader, HttpWriter, ReadError, StreamHalves};
use crate::chunked::{LAST_CHUNK, chunk_head};
use crate::http1::{
    BodyFraming, Connection, HeaderFields, RequestHead, Response, Version, resume_response, write_response,
};
use bytes::Bytes;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use terms::ErrorKind;
use tokio::io::AsyncWriteExt;

/// Limit on interim (1xx) responses.
const MAX_INTERIM: usize = 16;

pub(super) struct Exchange<'a> {
    request: &'a RequestHead,
    judged: &'a JudgedRequest,
    upgrade: bool,
    /// True once the request was sent completely.
    sent: AtomicBool,
    /// True once the response has begun, so that no error response can be sent.
    begun: AtomicBool,
}

pub(super) struct ExchangeEnd {
    pub after: AfterRequest,
    pub keep_server: bool,
    /// Error response to send to the guest instead.
    pub refusal: Option<RequestRefusal>,
}

/// Reason for aborting an exchange.
enum ExchangeError {
    GuestGone,
    GuestSaid(u16, &'static str),
    Server(String),
    Cut(&'static str),
}

/// End of a response.
enum ResponseEnd {
    /// Use of the guest's connection, and whether the server's connection can be reused.
    Whole(AfterRequest, bool),
    Upgraded,
}

impl<'a> Exchange<'a> {
    pub fn new(request: &'a RequestHead, judged: &'a JudgedRequest, upgrade: bool) -> Exchange<'a> {
        Exchange { request, judged, upgrade, sent: false.into(), begun: false.into() }
    }

    pub async fn run(&self, guest: &mut StreamHalves, server: &mut StreamHalves, head: &[u8]) -> ExchangeEnd {
        let mut answered = tokio::select! {
            biased;
            answered = self.download(&mut server.reader, &mut guest.writer) => answered,
            broken = self.upload(&mut guest.reader, &mut server.writer, head) => Err(broken),
            reason = self.judged.until_aborted() => Err(ExchangeError::Cut(reason)),
        };
        if let Ok(ResponseEnd::Upgraded) = answered {
            answered = self.relay(guest, server).await;
        }
        match answered {
            Ok(ResponseEnd::Whole(after, keep_server)) if self.sent.load(Relaxed) => {
                ExchangeEnd { after, keep_server, refusal: None }
            }
            // The rest of the request would be taken for the next one.
            Ok(_) => ExchangeEnd { after: AfterRequest::Close, keep_server: false, refusal: None },
            Err(broken) => self.give_up(broken),
        }
    }

    fn give_up(&self, broken: ExchangeError) -> ExchangeEnd {
        let (reason, refusal) = match broken {
            ExchangeError::GuestGone => ("the client is gone".to_owned(), None),
            ExchangeError::GuestSaid(status, reason) => {
                (reason.to_owned(), Some(RequestRefusal::malformed(status, reason)))
            }
            ExchangeError::Server(reason) => (reason.clone(), Some(RequestRefusal::unavailable(reason))),
            ExchangeError::Cut(reason) => {
                let refusal =
                    RequestRefusal { kind: ErrorKind::PolicyDenied, ..RequestRefusal::unavailable(reason.to_owned()) };
                (reason.to_owned(), Some(refusal))
            }
        };
        self.judged.failed(&reason);
        let refusal = refusal.filter(|_| !self.begun.load(Relaxed));
        ExchangeEnd { after: AfterRequest::Gone, keep_server: false, refusal }
    }

    /// Sends the request. Returns only on a fault of the guest; a fault of the server shows in its response.
    async fn upload(&self, guest: &mut HttpReader, server: &mut HttpWriter, head: &[u8]) -> ExchangeError {
        match self.send(guest, server, head).await {
            Ok(()) => {
                self.sent.store(true, Relaxed);
                guest.until_broken().await;
                ExchangeError::GuestGone
            }
            Err(SendError::Server) => pending().await,
            Err(SendError::Guest(ReadError::Gone(_))) => ExchangeError::GuestGone,
            Err(SendError::Guest(ReadError::Bad(status, reason))) => ExchangeError::GuestSaid(status, reason),
            Err(SendError::Cut(reason)) => ExchangeError::Cut(reason),
        }
    }

    async fn send(&self, guest: &mut HttpReader, server: &mut HttpWriter, head: &[u8]) -> Result<(), SendError> {
        self.judged.passes(0, head.len()).map_err(SendError::Cut)?;
        put(server, head).await?;
        let chunked = self.request.body == BodyFraming::Chunked;
        let mut left = BodyLeft::of(self.request.body);
        while let Some(data) = guest.piece(&mut left).await.map_err(SendError::Guest)? {
            self.judged.passes(0, data.len()).map_err(SendError::Cut)?;
            put_body(server, data, chunked).await?;
        }
        if chunked {
            let mut trailers = left.trailers();
            self.judged.clean_trailers(&mut trailers);
            put(server, &last_chunk(&trailers)).await?;
        }
        Ok(())
    }

    /// Forwards the response.
    async fn download(&self, server: &mut HttpReader, guest: &mut HttpWriter) -> Result<ResponseEnd, ExchangeError> {
        let mut response = self.response(server, guest).await?;
        if response.status == 101 {
            self.begun.store(true, Relaxed);
            self.put_head(guest, &mut response, &[("Connection", "Upgrade"), ("Upgrade", "websocket")]).await?;
            return Ok(ResponseEnd::Upgraded);
        }
        let keep_server = response.connection != Connection::Close;
        let chunked = response.body == BodyFraming::Chunked && self.request.version == Version::Http11;
        let bounded = chunked || matches!(response.body, BodyFraming::None | BodyFraming::Length(_));
        let keep = bounded && self.request.connection != Connection::Close && self.sent_or_bodiless();
        if response.body == BodyFraming::Chunked && !chunked {
            response.fields.remove("transfer-encoding");
        }
        self.begun.store(true, Relaxed);
        let connection = ("Connection", if keep { "keep-alive" } else { "close" });
        let extra_fields: &[_] = if keep && self.request.version == Version::Http11 { &[] } else { &[connection] };
        self.put_head(guest, &mut response, extra_fields).await?;
        self.put_answer(server, guest, response.body, chunked).await?;
        Ok(ResponseEnd::Whole(if keep { AfterRequest::Next } else { AfterRequest::Close }, keep_server))
    }

    /// Returns true if the guest's connection can be reused. While the client still sends a body, the start of its next
    /// request is unknown.
    fn sent_or_bodiless(&self) -> bool {
        self.sent.load(Relaxed) || self.request.body == BodyFraming::None
    }

    /// Reads the final response head, and forwards interim responses before it.
    async fn response(&self, server: &mut HttpReader, guest: &mut HttpWriter) -> Result<Response, ExchangeError> {
        for _ in 0..MAX_INTERIM {
            let read = server.head(|b, seen| resume_response(b, &self.request.method, seen), |r| r.consumed).await;
            let mut response = match read {
                Ok(Some(response)) => response,
                Ok(None) => {
                    return Err(ExchangeError::Server("the server closed the connection without an answer".into()));
                }
                Err(stop) => return Err(broken_server(stop)),
            };
            self.judged.passes(response.consumed, 0).map_err(ExchangeError::Cut)?;
            self.check(&response)?;
            match response.status {
                101 => return Ok(response),
                100..=199 if self.request.version == Version::Http11 => {
                    self.put_head(guest, &mut response, &[]).await?;
                }
                100..=199 => {}
                _ => return Ok(response),
            }
        }
        Err(ExchangeError::Server("the server sends too many interim responses".to_owned()))
    }

    fn check(&self, response: &Response) -> Result<(), ExchangeError> {
        let websocket =
            |c: &Connection| matches!(c, Connection::Upgrade(name) if name.eq_ignore_ascii_case("websocket"));
        if response.status == 101 && !(self.upgrade && websocket(&response.connection)) {
            return Err(ExchangeError::Server("the server changes to a protocol that was not asked for".to_owned()));
        }
        match self.judged.unsearchable_reason(response.status, &response.fields) {
            Some(reason) => Err(ExchangeError::Server(reason.to_owned())),
            None => Ok(()),
        }
    }

    async fn put_head(
        &self,
        guest: &mut HttpWriter,
        response: &mut Response,
        extra_fields: &[(&str, &str)],
    ) -> Result<(), ExchangeError> {
        let fields = &mut response.fields;
        remove_hop_by_hop(fields);
        extra_fields.iter().for_each(|(name, value)| fields.add(name, *value));
        self.judged.mask(fields);
        if let Some(needles) = &self.judged.needles {
            needles.mask(&mut response.reason);
        }
        let head = write_response(response.status, &response.reason, fields);
        let head = head.map_err(|e| ExchangeError::Server(format!("{} of the answer cannot be passed on", e.0)))?;
        put(guest, &head).await.map_err(|_| ExchangeError::GuestGone)
    }

    async fn put_answer(
        &self,
        server: &mut HttpReader,
        guest: &mut HttpWriter,
        body: BodyFraming,
        chunked: bool,
    ) -> Result<(), ExchangeError> {
        let mut left = BodyLeft::of(body);
        let mut mask = Mask::new(self.judged.needles.as_deref());
        while let Some(data) = server.masked(&mut left, &mut mask).await.map_err(broken_server)? {
            self.judged.passes(data.len(), 0).map_err(ExchangeError::Cut)?;
            put_body(guest, data, chunked).await.map_err(|_| ExchangeError::GuestGone)?;
        }
        if chunked {
            let mut trailers = left.trailers();
            self.judged.mask(&mut trailers);
            put(guest, &last_chunk(&trailers)).await.map_err(|_| ExchangeError::GuestGone)?;
        }
        Ok(())
    }

    async fn relay(&self, guest: &mut StreamHalves, server: &mut StreamHalves) -> Result<ResponseEnd, ExchangeError> {
        let guest = WebSocketPeer { reader: &mut guest.reader, writer: &mut guest.writer };
        let server = WebSocketPeer { reader: &mut server.reader, writer: &mut server.writer };
        tokio::select! {
            ended = websocket_relay::run(guest, server, self.judged) => match ended {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    Err(ExchangeError::Server(format!("the server sent no valid WebSocket data: {error}")))
                }
                // Any other end of a WebSocket is up to the two peers.
                _ => Ok(ResponseEnd::Upgraded),
            },
            reason = self.judged.until_aborted() => Err(ExchangeError::Cut(reason)),
        }
    }
}

/// Reason why a request could not be sent.
enum SendError {
    Guest(ReadError),
    Server,
    Cut(&'static str),
}

impl From<io::Error> for SendError {
    fn from(_: io::Error) -> SendError {
        SendError::Server
    }
}

fn broken_server(stop: ReadError) -> ExchangeError {
    match stop {
        ReadError::Gone(error) => {
            ExchangeError::Server(format!("the connection to the server broke: {}", stream_trouble(&error)))
        }
        ReadError::Bad(_, reason) => ExchangeError::Server(format!("the answer of the server is refused: {reason}")),
    }
}

async fn put(to: &mut HttpWriter, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

async fn put_body(to: &mut HttpWriter, data: Bytes, chunked: bool) -> io::Result<()> {
    if !chunked {
        return put(to, &data).await;
    }
    let mut chunk = chunk_head(data.len());
    chunk.extend_from_slice(&data);
    chunk.extend(b"\r\n");
    put(to, &chunk).await
}

fn last_chunk(trailers: &HeaderFields) -> Vec<u8> {
    let (size, end) = LAST_CHUNK.split_at(LAST_CHUNK.len() - 2);
    let mut out = size.to_vec();
    for field in &trailers.0 {
        out.extend(field.name.as_bytes());
        out.extend(b": ");
        out.extend(&field.value);
        out.extend(b"\r\n");
    }
    out.extend(end);
    out
}
