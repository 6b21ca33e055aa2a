//! HTTP/1.x: one request after the other, each parsed strictly and serialised anew. A guest connection has one server
//! connection, which is reopened if the server closed it between two requests.

mod exchange;
mod wire;

pub(super) use wire::{BodyLeft, HttpReader, HttpWriter, ReadError, StreamHalves};

use super::headers::remove_hop_by_hop;
use super::judged_request::{JudgedRequest, NormalizedRequest};
use super::refusal::{RULE_HEADER, RequestRefusal};
use super::stream::Io;
use super::tls::{Protocol, UpstreamError};
use super::{Session, linger};
use crate::event::Op;
use crate::http1::{
    BodyFraming, Connection, Field, HeaderFields, RequestHead, RequestTarget, Version, resume_request, write_request,
    write_response,
};
use exchange::Exchange;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use zeroize::{Zeroize, Zeroizing};

/// Limit on the body of a refused request that is read and discarded to keep the connection.
const MAX_PAST: u64 = 256 * 1024;

pub(super) async fn run(session: Arc<Session>, guest: Io, server: Option<Result<Io, UpstreamError>>) {
    let (server, trouble) = match server {
        Some(Ok(server)) => (Some(StreamHalves::new(server)), None),
        Some(Err(trouble)) => (None, Some(trouble)),
        None => (None, None),
    };
    let mut link = RelayedConnection { session, guest: StreamHalves::new(guest), server, trouble };
    loop {
        let after = match link.next_request().await {
            Ok(Some(request)) => link.serve(request).await,
            Ok(None) => AfterRequest::Close,
            Err(after) => after,
        };
        match after {
            AfterRequest::Next => {}
            AfterRequest::Close => {
                link.server = None;
                return linger(&mut link.guest.whole()).await;
            }
            AfterRequest::Gone => return,
        }
    }
}

/// Use of the guest's connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterRequest {
    Next,
    Close,
    Gone,
}

struct RelayedConnection {
    session: Arc<Session>,
    guest: StreamHalves,
    server: Option<StreamHalves>,
    /// Error of the first attempt to reach the server: reported with the first request, then the server is dialed
    /// again.
    trouble: Option<UpstreamError>,
}

impl RelayedConnection {
    async fn next_request(&mut self) -> Result<Option<RequestHead>, AfterRequest> {
        let settings = &self.session.tls.settings;
        if self.guest.reader.is_empty() {
            match timeout(settings.idle, self.guest.reader.more()).await {
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Err(AfterRequest::Gone),
                Err(_) => return Err(AfterRequest::Close),
            }
        }
        let reading = self.guest.reader.head(resume_request, |request| request.consumed);
        match timeout(settings.head, reading).await {
            Ok(Ok(request)) => Ok(request),
            Ok(Err(ReadError::Gone(_))) => Err(AfterRequest::Gone),
            Ok(Err(ReadError::Bad(status, reason))) => Err(self.refuse_unread(status, reason).await),
            Err(_) => Err(self.refuse_unread(408, "the request head takes too long").await),
        }
    }

    async fn serve(&mut self, mut request: RequestHead) -> AfterRequest {
        let judged = match normalized(&request, self.session.is_secure()) {
            Ok(normalized) => match self.session.judge(normalized, &request.fields).await {
                Ok(judged) => judged,
                Err(refusal) => return self.refuse(&request, refusal).await,
            },
            Err(reason) => return self.refuse_unread(400, reason).await,
        };
        if let Err(UpstreamError(reason)) = self.ensure_server().await {
            judged.failed(&reason);
            return self.refuse(&request, RequestRefusal::unavailable(reason)).await;
        }
        let Some(server) = &mut self.server else {
            return AfterRequest::Gone;
        };
        let upgrade = wants_websocket(&request);
        let head = match outgoing(&mut request, &judged, &self.session, upgrade) {
            Ok(head) => head,
            Err(refusal) => {
                judged.failed(&refusal.message);
                return self.refuse(&request, refusal).await;
            }
        };
        judged.opened();
        let done = Exchange::new(&request, &judged, upgrade).run(&mut self.guest, server, &head).await;
        if !done.keep_server {
            self.server = None;
        }
        match done.refusal {
            None => done.after,
            Some(refusal) => self.answer(&request.method, refusal, false).await,
        }
    }

    /// Ensures that there is a server connection for the next request.
    async fn ensure_server(&mut self) -> Result<(), UpstreamError> {
        // Unsolicited bytes of a server would be taken for the response to the next request.
        if let Some(server) = &mut self.server
            && server.reader.is_silent().await
        {
            return Ok(());
        }
        self.server = None;
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        let (server, _) = self.session.dial(&[Protocol::Http1]).await?;
        self.server = Some(StreamHalves::new(server));
        Ok(())
    }

    /// Answers malformed input and closes the connection, since the start of the next request is unknown.
    async fn refuse_unread(&mut self, status: u16, reason: &str) -> AfterRequest {
        self.session.refuse_unread(Op::Request, None, reason);
        self.answer("", RequestRefusal::malformed(status, reason), false).await
    }

    /// Sends an error response, and keeps the connection if the rest of the request can be discarded.
    async fn refuse(&mut self, request: &RequestHead, refusal: RequestRefusal) -> AfterRequest {
        let past = match request.body {
            // With Expect, the client may send the body after this response, or leave it out.
            body if body != BodyFraming::None && request.fields.get("expect").is_some() => false,
            BodyFraming::Length(len) => len <= MAX_PAST,
            _ => true,
        };
        let keep = past && request.connection != Connection::Close;
        match self.answer(&request.method, refusal, keep).await {
            AfterRequest::Next => self.discard_body(request.body).await,
            after => after,
        }
    }

    async fn discard_body(&mut self, body: BodyFraming) -> AfterRequest {
        let (mut left, mut past) = (BodyLeft::of(body), 0);
        let reading = async {
            while let Ok(Some(data)) = self.guest.reader.piece(&mut left).await {
                past += data.len() as u64;
                if past > MAX_PAST {
                    return AfterRequest::Close;
                }
            }
            if matches!(left, BodyLeft::Length(1..)) { AfterRequest::Gone } else { AfterRequest::Next }
        };
        timeout(self.session.tls.settings.head, reading).await.unwrap_or(AfterRequest::Close)
    }

    async fn answer(&mut self, method: &str, refusal: RequestRefusal, keep: bool) -> AfterRequest {
        let body = refusal.body();
        let mut fields = HeaderFields::default();
        fields.add("content-type", "application/json");
        fields.add("content-length", body.len().to_string());
        if let Some(rule) = refusal.rule_value() {
            fields.add(RULE_HEADER, rule);
        }
        fields.add("connection", if keep { "keep-alive" } else { "close" });
        let Ok(mut out) = write_response(refusal.status, refusal.phrase().as_bytes(), &fields) else {
            return AfterRequest::Gone;
        };
        if method != "HEAD" {
            out.extend(body);
        }
        let writer = &mut self.guest.writer;
        let writing = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        match timeout(self.session.tls.settings.head, writing).await {
            Ok(Ok(())) if keep => AfterRequest::Next,
            Ok(Ok(())) => AfterRequest::Close,
            _ => AfterRequest::Gone,
        }
    }
}

/// Converts a request to the form in which it is judged.
fn normalized(request: &RequestHead, secure: bool) -> Result<NormalizedRequest, &'static str> {
    let path = match &request.target {
        RequestTarget::Origin(path) => path,
        RequestTarget::Absolute { secure: is_https, path, .. } if *is_https == secure => path,
        RequestTarget::Absolute { .. } => return Err("the scheme of the target is not that of the connection"),
        RequestTarget::Asterisk => "*",
        RequestTarget::Authority { .. } => {
            return Err("a tunnel cannot be opened inside a connection that is inspected");
        }
    };
    Ok(NormalizedRequest {
        host: request.host.clone(),
        port: request.port,
        method: request.method.clone(),
        path: path.to_owned(),
    })
}

/// Returns true if the request asks for a WebSocket upgrade. Other protocols are not offered to the server: some carry
/// requests that could not be judged.
fn wants_websocket(request: &RequestHead) -> bool {
    let named = matches!(&request.connection, Connection::Upgrade(name) if name.eq_ignore_ascii_case("websocket"));
    named && request.method == "GET" && request.body == BodyFraming::None
}

/// Builds the request head for the server.
fn outgoing(
    request: &mut RequestHead,
    judged: &JudgedRequest,
    session: &Session,
    upgrade: bool,
) -> Result<Zeroizing<Vec<u8>>, RequestRefusal> {
    let fields = &mut request.fields;
    remove_hop_by_hop(fields);
    if request.version == Version::Http10 {
        fields.remove("expect");
    }
    fields.remove("host");
    let host = authority(judged.host(), session.addr.port(), session.is_secure());
    fields.0.insert(0, Field { name: "Host".to_owned(), value: host.into_bytes() });
    if upgrade {
        fields.add("Connection", "Upgrade");
        fields.add("Upgrade", "websocket");
    }
    judged.inject(fields)?;
    let path = request.target.path().unwrap_or("*");
    let head = write_request(&request.method, path, fields);
    if !judged.injections.is_empty() {
        fields.0.iter_mut().for_each(|f| f.value.zeroize());
    }
    head.map(Zeroizing::new).map_err(|e| RequestRefusal::malformed(400, &format!("{} cannot be passed on", e.0)))
}

/// Formats the authority, without the default port.
pub(super) fn authority(host: &str, port: u16, secure: bool) -> String {
    match (port, secure) {
        (443, true) | (80, false) => host.to_owned(),
        _ => format!("{host}:{port}"),
    }
}
