//! HTTP/2: many requests at once over one connection on each side. Each stream of the guest becomes one of the server's.

mod exchange;

use super::answer::{RULE_HEADER, Refusal};
use super::case::{Asked, Case};
use super::headers::{Headers, doubtful};
use super::http1::authority;
use super::stream::Io;
use super::tls::{Protocol, Trouble};
use super::{SHORT, Session};
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
/// What may be on its way in one stream, and in all of a connection together.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// What may wait in each stream for a peer that does not read.
const MAX_BUFFERED: usize = 64 * 1024;
const MAX_METHOD: usize = 32;
/// How many more requests a client may end early than it lets come to their end.
const MAX_ENDED_EARLY: usize = 1024;
/// How much of a body is read past when its request has been answered.
const MAX_PAST: usize = 4 * 1024 * 1024;

/// Why a request is given back when the server goes away.
const AWAY: &str = "the server takes no more requests on this connection";

type ToServer = h2::client::SendRequest<Bytes>;

/// How a stream ended, as far as it concerns the connection.
enum Ended {
    /// With a whole answer of the server.
    Whole,
    /// With an answer of ours, or with none.
    Here,
    /// By the client, before the answer was whole.
    Early,
    /// The server takes no more requests.
    ServerAway,
}

pub(super) async fn run(session: Arc<Session>, guest: Io, server: Option<Result<Io, Trouble>>) {
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
        // Gone before it said anything, as clients are that only try whether someone is there.
        Err(_) => return,
        Ok(Err(error)) if error.is_io() => return,
        Ok(Err(_)) => return session.refuse_unread(Op::Connect, None, "the client does not speak HTTP/2 as it said"),
    };
    let (mut streams, mut leaving, mut ended_early) = (JoinSet::new(), false, 0usize);
    loop {
        tokio::select! {
            accepted = guest.accept() => match accepted {
                // Only who ends streams faster than they can be ended here has so many.
                Some(Ok(_)) if streams.len() >= MAX_TASKS => return,
                Some(Ok((request, respond))) => {
                    streams.spawn(stream(session.clone(), upstream.clone(), request, respond));
                }
                Some(Err(_)) | None => return,
            },
            Some(ended) = streams.join_next() => match ended {
                // Each costs the server a request and the client nothing.
                Ok(Ended::Early) if ended_early >= MAX_ENDED_EARLY => guest.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM),
                Ok(Ended::Early) => ended_early += 1,
                Ok(Ended::ServerAway) => guest.graceful_shutdown(),
                Ok(Ended::Whole) => ended_early = ended_early.saturating_sub(1),
                Ok(Ended::Here) | Err(_) => {}
            },
            // The client is told to open another connection, which will have another server.
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

/// Begins to speak with the server; what drives the connection ends with it.
async fn begin(server: Io, session: &Session, ends: &mut JoinSet<()>) -> Result<ToServer, Trouble> {
    let mut builder = h2::client::Builder::new();
    builder.enable_push(false).max_header_list_size(MAX_HEADERS).max_send_buffer_size(MAX_BUFFERED);
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let begun = timeout(session.tls.settings.connect, builder.handshake::<_, Bytes>(server)).await;
    let begun = begun.map_err(|_| Trouble("the server does not answer in time".to_owned()))?;
    let (requests, connection) = begun.map_err(|e| Trouble(format!("HTTP/2 with the server failed: {e}")))?;
    ends.spawn(async move {
        // Each request hears of its own end.
        let _ = connection.await;
    });
    Ok(requests)
}

/// One request of the guest.
async fn stream(
    session: Arc<Session>,
    upstream: Result<ToServer, Trouble>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Ended {
    let (parts, mut body) = request.into_parts();
    let is_head = parts.method == http::Method::HEAD;
    let (case, outgoing) = match admit(&session, parts).await {
        Ok(admitted) => admitted,
        Err(refusal) => return answer(&mut respond, &refusal, is_head, &mut body).await,
    };
    let mut upstream = match ready(upstream, &case, &mut respond).await {
        Ok(upstream) => upstream,
        Err(Unready::Away) => return away(&case, &mut respond),
        Err(Unready::Early) => {
            case.failed("the client ended it");
            return Ended::Early;
        }
        Err(Unready::Trouble(Trouble(reason))) => {
            case.failed(&reason);
            return answer(&mut respond, &Refusal::unavailable(reason), is_head, &mut body).await;
        }
    };
    case.opened();
    let head = size(outgoing.headers());
    match upstream.send_request(outgoing, body.is_end_stream()) {
        Ok((response, out)) if case.passes(0, head).is_ok() => {
            return Exchange::new(&case, is_head).run(body, out, response, respond).await;
        }
        Ok(_) => respond.send_reset(Reason::CANCEL),
        Err(error) if is_away(&error) => return away(&case, &mut respond),
        Err(error) => {
            let reason = trouble(&error);
            case.failed(&reason);
            answer(&mut respond, &Refusal::unavailable(reason), is_head, &mut body).await;
        }
    }
    Ended::Here
}

/// Judges a request, and writes it as the server gets it. A refusal has been told when this returns.
async fn admit(session: &Arc<Session>, parts: request::Parts) -> Result<(Case, Request<()>), Refusal> {
    let asked = asked(&parts, session.is_secure()).map_err(|(status, reason)| {
        session.refuse_unread(Op::Request, None, reason);
        Refusal::malformed(status, reason)
    })?;
    let case = session.judge(asked, &parts.headers).await?;
    match outgoing(parts, &case, session) {
        Ok(outgoing) => Ok((case, outgoing)),
        Err(refusal) => {
            case.failed(&refusal.message);
            Err(refusal)
        }
    }
}

/// Gives a request back that the server has not looked at: whoever sent it may send it again elsewhere.
fn away(case: &Case, respond: &mut SendResponse<Bytes>) -> Ended {
    case.failed(AWAY);
    respond.send_reset(Reason::REFUSED_STREAM);
    Ended::ServerAway
}

/// Whether the server goes away in peace, without having looked at the request in question.
fn is_away(error: &h2::Error) -> bool {
    error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR)
}

fn trouble(error: &h2::Error) -> String {
    format!("the connection to the server broke: {error}")
}

/// Why no request can be sent to the server.
enum Unready {
    Away,
    /// The client ended the request.
    Early,
    Trouble(Trouble),
}

impl From<String> for Unready {
    fn from(reason: String) -> Unready {
        Unready::Trouble(Trouble(reason))
    }
}

/// Waits until the server takes one more request.
async fn ready(
    upstream: Result<ToServer, Trouble>,
    case: &Case,
    respond: &mut SendResponse<Bytes>,
) -> Result<ToServer, Unready> {
    let upstream = upstream.map_err(Unready::Trouble)?;
    tokio::select! {
        _ = poll_fn(|cx| respond.poll_reset(cx)) => Err(Unready::Early),
        ready = upstream.ready() => ready.map_err(|error| match is_away(&error) {
            true => Unready::Away,
            false => trouble(&error).into(),
        }),
        reason = case.overdue() => Err(reason.to_owned().into()),
    }
}

/// The request in the words of the policy.
fn asked(parts: &request::Parts, secure: bool) -> Result<Asked, (u16, &'static str)> {
    let method = parts.method.as_str();
    if method == "CONNECT" || parts.extensions.get::<h2::ext::Protocol>().is_some() {
        return Err((405, "a tunnel cannot be opened inside a connection that is inspected"));
    }
    // The same holds for HTTP/1.x: one that is denied must have no other spelling.
    if method.len() > MAX_METHOD || method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err((501, "the method is too long or has small letters"));
    }
    if let Some(reason) = doubtful(&parts.headers) {
        return Err((400, reason));
    }
    let said = parts.uri.scheme_str();
    if said.is_some_and(|said| said != if secure { "https" } else { "http" }) {
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
    Ok(Asked { host, port, method: method.to_owned(), path: path.to_owned() })
}

/// The request as the server gets it.
fn outgoing(parts: request::Parts, case: &Case, session: &Session) -> Result<Request<()>, Refusal> {
    let mut headers = parts.headers;
    headers.remove("host");
    case.inject(&mut headers)?;
    let scheme = if session.is_secure() { "https" } else { "http" };
    let place = authority(case.host(), session.addr.port(), session.is_secure());
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let uri = Uri::builder().scheme(scheme).authority(place).path_and_query(path).build();
    let uri = uri.map_err(|_| Refusal::malformed(400, "the path is malformed"))?;
    let mut request = Request::new(());
    *request.method_mut() = parts.method;
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Answers in the place of the server.
async fn answer(respond: &mut SendResponse<Bytes>, refusal: &Refusal, is_head: bool, rest: &mut RecvStream) -> Ended {
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
        // The client may be gone, and needs no answer then.
        let _ = timeout(SHORT, send(&mut out, body)).await;
        let _ = out.send_data(Bytes::new(), true);
    }
    pass_over(rest).await;
    Ended::Here
}

/// Reads past what a client still sends. Some take the end of a stream that they have not ended for a failure, and do
/// not look at the answer they have.
async fn pass_over(rest: &mut RecvStream) {
    let reading = async {
        let mut past = 0;
        while let Some(Ok(data)) = rest.data().await {
            past += data.len();
            if past > MAX_PAST || rest.flow_control().release_capacity(data.len()).is_err() {
                return;
            }
        }
    };
    let _ = timeout(SHORT, reading).await;
}
