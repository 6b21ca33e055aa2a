//! HTTP/2: concurrent requests over one connection on each side. Each stream of the guest maps to one stream of the
//! server.

mod exchange;

use super::headers::{Headers, ambiguity};
use super::http1::authority;
use super::judged_request::{JudgedRequest, NormalizedRequest};
use super::refusal::{RULE_HEADER, RequestRefusal};
use super::stream::Io;
use super::tls::{Protocol, UpstreamError};
use super::{LAST_MESSAGE_TIMEOUT, Session};
use crate::event::Op;
use bytes::Bytes;
use exchange::{Exchange, send, size};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response, StatusCode, Uri, request};
use std::future::poll_fn;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const MAX_STREAMS: u32 = 128;
const MAX_TASKS: usize = 4 * MAX_STREAMS as usize;
const MAX_HEADERS: u32 = 64 * 1024;
/// Flow control windows of a stream, and of the connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Limit on the send buffer of a stream whose peer does not read.
const MAX_BUFFERED: usize = 64 * 1024;
const MAX_METHOD: usize = 32;
/// Limit on the excess of streams that the client reset over streams that completed (rapid reset attack).
const MAX_ENDED_EARLY: usize = 1024;
/// Limit on the rest of a request body that is discarded after the response.
const MAX_PAST: usize = 4 * 1024 * 1024;

/// Reason reported for requests that the server refused with GOAWAY.
const GOAWAY_REASON: &str = "the server takes no more requests on this connection";

type ToServer = h2::client::SendRequest<Bytes>;

/// End of a stream, as it matters to the connection.
enum StreamEnd {
    /// The server's response was forwarded completely.
    Whole,
    /// The broker answered or reset the stream.
    Here,
    /// The client reset the stream before the response was complete.
    Early,
    /// The server accepts no more requests.
    ServerAway,
}

pub(super) async fn run(session: Arc<Session>, guest: Io, server: Option<Result<Io, UpstreamError>>) {
    let settings = session.tls.settings.clone();
    let mut server_ends = JoinSet::new();
    let upstream = match server {
        Some(Ok(server)) => begin(server, &session, &mut server_ends).await,
        Some(Err(trouble)) => Err(trouble),
        None => match session.dial(&[Protocol::Http2]).await {
            Ok((server, _)) => begin(server, &session, &mut server_ends).await,
            Err(trouble) => Err(trouble),
        },
    };
    let accepting = server_builder().handshake::<_, Bytes>(guest);
    let mut guest = match timeout(settings.head, accepting).await {
        Ok(Ok(guest)) => guest,
        // No preface in time, or disconnected before it, like clients that only test reachability.
        Err(_) => return,
        Ok(Err(error)) if error.is_io() => return,
        Ok(Err(_)) => {
            return session.refuse_unread(Op::Connect, None, "the client negotiated HTTP/2 and does not speak it");
        }
    };
    let (mut streams, mut leaving, mut ended_early) = (JoinSet::new(), false, 0usize);
    loop {
        tokio::select! {
            accepted = guest.accept() => match accepted {
                // Only a client that resets streams faster than their tasks end gets here.
                Some(Ok(_)) if streams.len() >= MAX_TASKS => return,
                Some(Ok((request, respond))) => {
                    streams.spawn(stream(session.clone(), upstream.clone(), request, respond));
                }
                Some(Err(_)) | None => return,
            },
            Some(ended) = streams.join_next() => match ended {
                // Each reset costs the server a request and the client nothing.
                Ok(StreamEnd::Early) if ended_early >= MAX_ENDED_EARLY => guest.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM),
                Ok(StreamEnd::Early) => ended_early += 1,
                Ok(StreamEnd::ServerAway) => guest.graceful_shutdown(),
                Ok(StreamEnd::Whole) => ended_early = ended_early.saturating_sub(1),
                Ok(StreamEnd::Here) | Err(_) => {}
            },
            // GOAWAY makes the client open another connection, which gets another server connection.
            Some(_) = server_ends.join_next() => guest.graceful_shutdown(),
            () = sleep(settings.idle), if streams.is_empty() => match std::mem::replace(&mut leaving, true) {
                false => guest.graceful_shutdown(),
                true => return,
            },
        }
    }
}

fn server_builder() -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEADERS);
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    builder.max_send_buffer_size(MAX_BUFFERED);
    builder
}

/// Starts HTTP/2 with the server. The task that drives the connection ends with it.
async fn begin(server: Io, session: &Session, ends: &mut JoinSet<()>) -> Result<ToServer, UpstreamError> {
    let mut builder = h2::client::Builder::new();
    builder.enable_push(false).max_header_list_size(MAX_HEADERS).max_send_buffer_size(MAX_BUFFERED);
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let begun = timeout(session.tls.settings.connect, builder.handshake::<_, Bytes>(server)).await;
    let begun = begun.map_err(|_| UpstreamError("the server does not answer in time".to_owned()))?;
    let (requests, connection) = begun.map_err(|e| UpstreamError(format!("HTTP/2 with the server failed: {e}")))?;
    ends.spawn(async move {
        // Each request gets the error of its own stream.
        let _ = connection.await;
    });
    Ok(requests)
}

/// Serves one stream of the guest.
async fn stream(
    session: Arc<Session>,
    upstream: Result<ToServer, UpstreamError>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> StreamEnd {
    let (parts, mut body) = request.into_parts();
    let is_head = parts.method == http::Method::HEAD;
    let (judged, outgoing) = match admit(&session, parts).await {
        Ok(admitted) => admitted,
        Err(refusal) => return answer(&mut respond, &refusal, is_head, &mut body).await,
    };
    let mut upstream = match ready(upstream, &judged, &mut respond).await {
        Ok(upstream) => upstream,
        Err(Unready::Away) => return refuse_stream(&judged, &mut respond),
        Err(Unready::Early) => {
            judged.failed("the client reset the stream");
            return StreamEnd::Early;
        }
        Err(Unready::Upstream(UpstreamError(reason))) => {
            judged.failed(&reason);
            return answer(&mut respond, &RequestRefusal::unavailable(reason), is_head, &mut body).await;
        }
    };
    judged.opened();
    let head = size(outgoing.headers());
    match upstream.send_request(outgoing, body.is_end_stream()) {
        Ok((response, out)) if judged.passes(0, head).is_ok() => {
            return Exchange::new(&judged, is_head).run(body, out, response, respond).await;
        }
        Ok(_) => respond.send_reset(Reason::CANCEL),
        Err(error) if is_graceful_goaway(&error) => return refuse_stream(&judged, &mut respond),
        Err(error) => {
            let reason = trouble(&error);
            judged.failed(&reason);
            answer(&mut respond, &RequestRefusal::unavailable(reason), is_head, &mut body).await;
        }
    }
    StreamEnd::Here
}

/// Judges a request and builds the one for the server. A refusal that it returns has already been
/// reported.
async fn admit(session: &Arc<Session>, parts: request::Parts) -> Result<(JudgedRequest, Request<()>), RequestRefusal> {
    let normalized = normalized(&parts, session.is_secure()).map_err(|(status, reason)| {
        session.refuse_unread(Op::Request, None, reason);
        RequestRefusal::malformed(status, reason)
    })?;
    let judged = session.judge(normalized, &parts.headers).await?;
    match outgoing(parts, &judged, session) {
        Ok(outgoing) => Ok((judged, outgoing)),
        Err(refusal) => {
            judged.failed(&refusal.message);
            Err(refusal)
        }
    }
}

/// Refuses a stream that the server has not processed, so that the client may retry it on another connection.
fn refuse_stream(judged: &JudgedRequest, respond: &mut SendResponse<Bytes>) -> StreamEnd {
    judged.failed(GOAWAY_REASON);
    respond.send_reset(Reason::REFUSED_STREAM);
    StreamEnd::ServerAway
}

/// Returns true for a graceful GOAWAY (NO_ERROR), after which the request was not processed.
fn is_graceful_goaway(error: &h2::Error) -> bool {
    error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR)
}

fn trouble(error: &h2::Error) -> String {
    format!("the connection to the server broke: {error}")
}

/// Reason why no request can be sent to the server.
enum Unready {
    Away,
    /// The client reset the stream.
    Early,
    Upstream(UpstreamError),
}

impl From<String> for Unready {
    fn from(reason: String) -> Unready {
        Unready::Upstream(UpstreamError(reason))
    }
}

/// Waits until the server accepts one more stream.
async fn ready(
    upstream: Result<ToServer, UpstreamError>,
    judged: &JudgedRequest,
    respond: &mut SendResponse<Bytes>,
) -> Result<ToServer, Unready> {
    let upstream = upstream.map_err(Unready::Upstream)?;
    tokio::select! {
        _ = poll_fn(|cx| respond.poll_reset(cx)) => Err(Unready::Early),
        ready = upstream.ready() => ready.map_err(|error| match is_graceful_goaway(&error) {
            true => Unready::Away,
            false => trouble(&error).into(),
        }),
        reason = judged.until_aborted() => Err(reason.to_owned().into()),
    }
}

/// Converts a request to the form in which it is judged.
fn normalized(parts: &request::Parts, secure: bool) -> Result<NormalizedRequest, (u16, &'static str)> {
    let method = parts.method.as_str();
    if method == "CONNECT" || parts.extensions.get::<h2::ext::Protocol>().is_some() {
        return Err((405, "a tunnel cannot be opened inside a connection that is inspected"));
    }
    // As in HTTP/1.x: a denied method must have no other spelling.
    if method.len() > MAX_METHOD || method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err((501, "the method is too long or has small letters"));
    }
    if let Some(reason) = ambiguity(&parts.headers) {
        return Err((400, reason));
    }
    let scheme = parts.uri.scheme_str();
    if scheme.is_some_and(|scheme| scheme != if secure { "https" } else { "http" }) {
        return Err((400, "the scheme is not that of the connection"));
    }
    let host = parts.headers.get("host").map(|value| value.to_str().unwrap_or_default());
    let named = parts.uri.authority().map(|a| a.as_str());
    let read = |text: &str| crate::authority::parse(text).ok_or((400, "the authority is empty or malformed"));
    let (host, port) = match (named, host) {
        (Some(named), None) | (None, Some(named)) => read(named)?,
        (Some(named), Some(host)) if read(named)? == read(host)? => read(named)?,
        (Some(_), Some(_)) => return Err((400, "Host is not the authority of the request")),
        (None, None) => return Err((400, "the authority is missing")),
    };
    let path = parts.uri.path_and_query().map(|p| p.as_str()).unwrap_or_default();
    let is_path = path.starts_with('/') || path == "*" && method == "OPTIONS";
    if !is_path || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err((400, "the path is malformed"));
    }
    Ok(NormalizedRequest { host, port, method: method.to_owned(), path: path.to_owned() })
}

/// Builds the request for the server.
fn outgoing(parts: request::Parts, judged: &JudgedRequest, session: &Session) -> Result<Request<()>, RequestRefusal> {
    let mut headers = parts.headers;
    headers.remove("host");
    judged.inject(&mut headers)?;
    let scheme = if session.is_secure() { "https" } else { "http" };
    let place = authority(judged.host(), session.addr.port(), session.is_secure());
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let uri = Uri::builder().scheme(scheme).authority(place).path_and_query(path).build();
    let uri = uri.map_err(|_| RequestRefusal::malformed(400, "the path is malformed"))?;
    let mut request = Request::new(());
    *request.method_mut() = parts.method;
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Sends an error response.
async fn answer(
    respond: &mut SendResponse<Bytes>,
    refusal: &RequestRefusal,
    is_head: bool,
    rest: &mut RecvStream,
) -> StreamEnd {
    let body = Bytes::from(refusal.body());
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::FORBIDDEN);
    let headers = response.headers_mut();
    headers.set("content-type", b"application/json");
    headers.set("content-length", body.len().to_string().as_bytes());
    if let Some(rule) = refusal.rule_value() {
        headers.set(RULE_HEADER, rule.as_bytes());
    }
    if let Ok(mut out) = respond.send_response(response, is_head)
        && !is_head
    {
        // Fails if the client is gone.
        let _ = timeout(LAST_MESSAGE_TIMEOUT, send(&mut out, body)).await;
        let _ = out.send_data(Bytes::new(), true);
    }
    discard_body(rest).await;
    StreamEnd::Here
}

/// Discards the rest of a request body. Some clients treat a reset of a stream on which they are
/// still sending as a failure, and ignore the response that they have received.
async fn discard_body(rest: &mut RecvStream) {
    let reading = async {
        let mut past = 0;
        while let Some(Ok(data)) = rest.data().await {
            past += data.len();
            if past > MAX_PAST || rest.flow_control().release_capacity(data.len()).is_err() {
                return;
            }
        }
    };
    let _ = timeout(LAST_MESSAGE_TIMEOUT, reading).await;
}
