//! One request that is let through, and its answer. Both move at once: a server may answer before it has heard all,
//! and a client may wait for a word before it says all.

use super::super::answer::Refusal;
use super::super::case::Case;
use super::super::headers::end_here;
use super::super::relay::{self, Side};
use super::super::secrets::Mask;
use super::super::tls::stream_trouble;
use super::{After, Left, Pair, Reader, Stop, Writer};
use crate::chunked::{LAST_CHUNK, chunk_head};
use crate::http1::{Body, Connection, Fields, Request, Response, Version, resume_response, write_response};
use bytes::Bytes;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use terms::ErrorKind;
use tokio::io::AsyncWriteExt;

/// How many words a server may say before its answer.
const MAX_INTERIM: usize = 16;

pub(super) struct Exchange<'a> {
    request: &'a Request,
    case: &'a Case,
    upgrade: bool,
    /// The request was sent as a whole.
    sent: AtomicBool,
    /// The answer has begun, so no other can be given.
    begun: AtomicBool,
}

pub(super) struct Done {
    pub after: After,
    pub keep_server: bool,
    /// What to tell the guest in the place of an answer.
    pub refusal: Option<Refusal>,
}

/// Why it went wrong.
enum Broken {
    GuestGone,
    GuestSaid(u16, &'static str),
    Server(String),
    Cut(&'static str),
}

/// How an answer ended.
enum Answered {
    /// Whether the guest, and the server, can go on.
    Whole(After, bool),
    Upgraded,
}

impl<'a> Exchange<'a> {
    pub fn new(request: &'a Request, case: &'a Case, upgrade: bool) -> Exchange<'a> {
        Exchange { request, case, upgrade, sent: false.into(), begun: false.into() }
    }

    pub async fn run(&self, guest: &mut Pair, server: &mut Pair, head: &[u8]) -> Done {
        let mut answered = tokio::select! {
            biased;
            answered = self.download(&mut server.reader, &mut guest.writer) => answered,
            broken = self.upload(&mut guest.reader, &mut server.writer, head) => Err(broken),
            reason = self.case.overdue() => Err(Broken::Cut(reason)),
        };
        if let Ok(Answered::Upgraded) = answered {
            answered = self.relay(guest, server).await;
        }
        match answered {
            Ok(Answered::Whole(after, keep_server)) if self.sent.load(Relaxed) => {
                Done { after, keep_server, refusal: None }
            }
            // The rest of the request would be taken for the next one.
            Ok(_) => Done { after: After::Close, keep_server: false, refusal: None },
            Err(broken) => self.give_up(broken),
        }
    }

    fn give_up(&self, broken: Broken) -> Done {
        let (reason, refusal) = match broken {
            Broken::GuestGone => ("the client is gone".to_owned(), None),
            Broken::GuestSaid(status, reason) => (reason.to_owned(), Some(Refusal::malformed(status, reason))),
            Broken::Server(reason) => (reason.clone(), Some(Refusal::unavailable(reason))),
            Broken::Cut(reason) => {
                let refusal = Refusal { kind: ErrorKind::PolicyDenied, ..Refusal::unavailable(reason.to_owned()) };
                (reason.to_owned(), Some(refusal))
            }
        };
        self.case.failed(&reason);
        let refusal = refusal.filter(|_| !self.begun.load(Relaxed));
        Done { after: After::Gone, keep_server: false, refusal }
    }

    /// Sends the request. Returns only when the guest is at fault; whatever the server does, its answer tells.
    async fn upload(&self, guest: &mut Reader, server: &mut Writer, head: &[u8]) -> Broken {
        match self.send(guest, server, head).await {
            Ok(()) => {
                self.sent.store(true, Relaxed);
                guest.until_broken().await;
                Broken::GuestGone
            }
            Err(Sending::Server) => pending().await,
            Err(Sending::Guest(Stop::Gone(_))) => Broken::GuestGone,
            Err(Sending::Guest(Stop::Bad(status, reason))) => Broken::GuestSaid(status, reason),
            Err(Sending::Cut(reason)) => Broken::Cut(reason),
        }
    }

    async fn send(&self, guest: &mut Reader, server: &mut Writer, head: &[u8]) -> Result<(), Sending> {
        self.case.passes(0, head.len()).map_err(Sending::Cut)?;
        put(server, head).await?;
        let chunked = self.request.body == Body::Chunked;
        let mut left = Left::of(self.request.body);
        while let Some(data) = guest.piece(&mut left).await.map_err(Sending::Guest)? {
            self.case.passes(0, data.len()).map_err(Sending::Cut)?;
            put_body(server, data, chunked).await?;
        }
        if chunked {
            let mut trailers = left.trailers();
            self.case.clean_trailers(&mut trailers);
            put(server, &last_chunk(&trailers)).await?;
        }
        Ok(())
    }

    /// Passes the answer on.
    async fn download(&self, server: &mut Reader, guest: &mut Writer) -> Result<Answered, Broken> {
        let mut response = self.response(server, guest).await?;
        if response.status == 101 {
            self.begun.store(true, Relaxed);
            self.put_head(guest, &mut response, &[("Connection", "Upgrade"), ("Upgrade", "websocket")]).await?;
            return Ok(Answered::Upgraded);
        }
        let keep_server = response.connection != Connection::Close;
        let chunked = response.body == Body::Chunked && self.request.version == Version::Http11;
        let bounded = chunked || matches!(response.body, Body::None | Body::Length(_));
        let keep = bounded && self.request.connection != Connection::Close && self.sent_or_bodiless();
        if response.body == Body::Chunked && !chunked {
            response.fields.remove("transfer-encoding");
        }
        self.begun.store(true, Relaxed);
        let connection = ("Connection", if keep { "keep-alive" } else { "close" });
        let said: &[_] = if keep && self.request.version == Version::Http11 { &[] } else { &[connection] };
        self.put_head(guest, &mut response, said).await?;
        self.put_answer(server, guest, response.body, chunked).await?;
        Ok(Answered::Whole(if keep { After::Next } else { After::Close }, keep_server))
    }

    /// A client that still sends when the answer comes cannot be followed to its next request.
    fn sent_or_bodiless(&self) -> bool {
        self.sent.load(Relaxed) || self.request.body == Body::None
    }

    /// The head of the answer; what a server says before it is passed on.
    async fn response(&self, server: &mut Reader, guest: &mut Writer) -> Result<Response, Broken> {
        for _ in 0..MAX_INTERIM {
            let read = server.head(|b, seen| resume_response(b, &self.request.method, seen), |r| r.consumed).await;
            let mut response = match read {
                Ok(Some(response)) => response,
                Ok(None) => return Err(Broken::Server("the server closed the connection without an answer".into())),
                Err(stop) => return Err(broken_server(stop)),
            };
            self.case.passes(response.consumed, 0).map_err(Broken::Cut)?;
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
        Err(Broken::Server("the server says too much before its answer".to_owned()))
    }

    fn check(&self, response: &Response) -> Result<(), Broken> {
        let websocket =
            |c: &Connection| matches!(c, Connection::Upgrade(name) if name.eq_ignore_ascii_case("websocket"));
        if response.status == 101 && !(self.upgrade && websocket(&response.connection)) {
            return Err(Broken::Server("the server changes to a protocol that was not asked for".to_owned()));
        }
        match self.case.hides(response.status, &response.fields) {
            Some(reason) => Err(Broken::Server(reason.to_owned())),
            None => Ok(()),
        }
    }

    async fn put_head(&self, guest: &mut Writer, response: &mut Response, said: &[(&str, &str)]) -> Result<(), Broken> {
        let fields = &mut response.fields;
        end_here(fields);
        said.iter().for_each(|(name, value)| fields.add(name, *value));
        self.case.mask(fields);
        if let Some(needles) = &self.case.needles {
            needles.mask(&mut response.reason);
        }
        let head = write_response(response.status, &response.reason, fields);
        let head = head.map_err(|e| Broken::Server(format!("{} of the answer cannot be passed on", e.0)))?;
        put(guest, &head).await.map_err(|_| Broken::GuestGone)
    }

    async fn put_answer(
        &self,
        server: &mut Reader,
        guest: &mut Writer,
        body: Body,
        chunked: bool,
    ) -> Result<(), Broken> {
        let mut left = Left::of(body);
        let mut mask = Mask::new(self.case.needles.as_deref());
        while let Some(data) = server.masked(&mut left, &mut mask).await.map_err(broken_server)? {
            self.case.passes(data.len(), 0).map_err(Broken::Cut)?;
            put_body(guest, data, chunked).await.map_err(|_| Broken::GuestGone)?;
        }
        if chunked {
            let mut trailers = left.trailers();
            self.case.mask(&mut trailers);
            put(guest, &last_chunk(&trailers)).await.map_err(|_| Broken::GuestGone)?;
        }
        Ok(())
    }

    async fn relay(&self, guest: &mut Pair, server: &mut Pair) -> Result<Answered, Broken> {
        let guest = Side { reader: &mut guest.reader, writer: &mut guest.writer };
        let server = Side { reader: &mut server.reader, writer: &mut server.writer };
        tokio::select! {
            ended = relay::run(guest, server, self.case) => match ended {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    Err(Broken::Server(format!("what the server sends is no WebSocket: {error}")))
                }
                // How else it ends is a matter of the two sides.
                _ => Ok(Answered::Upgraded),
            },
            reason = self.case.overdue() => Err(Broken::Cut(reason)),
        }
    }
}

/// Why a request could not be sent.
enum Sending {
    Guest(Stop),
    Server,
    Cut(&'static str),
}

impl From<io::Error> for Sending {
    fn from(_: io::Error) -> Sending {
        Sending::Server
    }
}

fn broken_server(stop: Stop) -> Broken {
    match stop {
        Stop::Gone(error) => Broken::Server(format!("the connection to the server broke: {}", stream_trouble(&error))),
        Stop::Bad(_, reason) => Broken::Server(format!("the answer of the server is refused: {reason}")),
    }
}

async fn put(to: &mut Writer, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

async fn put_body(to: &mut Writer, data: Bytes, chunked: bool) -> io::Result<()> {
    if !chunked {
        return put(to, &data).await;
    }
    let mut chunk = chunk_head(data.len());
    chunk.extend_from_slice(&data);
    chunk.extend(b"\r\n");
    put(to, &chunk).await
}

fn last_chunk(trailers: &Fields) -> Vec<u8> {
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
