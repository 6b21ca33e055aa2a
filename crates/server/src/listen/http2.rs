//! HTTP/2, for clients that ask for it in their TLS handshake. Requests of one connection run side by side; each passes the same front as
//! one over HTTP/1.1. The bounds on time hold here for each stream: a client can stop reading one of them while it reads others.

use super::connection::WRITE_TIMEOUT;
use crate::credentials::Peer;
use crate::front::RequestHandler;
use axum::body::Body;
use bytes::Bytes;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

/// Requests of one connection that are answered at a time.
const MAX_STREAMS: u32 = 32;
const MAX_HEAD_BYTES: u32 = 64 << 10;
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER: usize = 256 << 10;
/// Requests that a client may withdraw before they are begun; more end the connection.
const MAX_RESETS: usize = 32;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which streams are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time for the last frames of a connection that is closed.
const CLOSE_TIME: Duration = Duration::from_secs(5);

pub async fn serve(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, peer: Peer, front: RequestHandler) {
    let shared = front.shared.clone();
    let streams = Arc::new(Streams::new());
    let open = streams.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (front, peer, stream) = (front.clone(), peer.clone(), open.begin());
        async move {
            let response = front.respond(peer, as_path_and_host(request)).await;
            Ok::<_, Infallible>(response.map(|body| StreamBody { body, stream }))
        }
    });
    let mut http = Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    // A client that leaves is not an error.
    let is_idle = tokio::select! {
        _ = connection.as_mut() => return,
        () = shared.until_end() => false,
        () = streams.idle(shared.patience()) => true,
        () = streams.stalled() => return,
    };
    connection.as_mut().graceful_shutdown();
    match is_idle {
        true => drop(timeout(CLOSE_TIME, connection).await),
        false => tokio::select! {
            _ = connection => {}
            () = streams.stalled() => {}
        },
    }
}

/// Gives a request the form that it has over HTTP/1.1: its path as the target, and its authority as the Host header.
fn as_path_and_host<B>(mut request: Request<B>) -> Request<B> {
    if let Some(host) = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok()) {
        // A second name beside the authority stays, and the gate refuses both.
        match request.headers().get(HOST) {
            Some(given) if *given != host => drop(request.headers_mut().append(HOST, host)),
            _ => drop(request.headers_mut().insert(HOST, host)),
        }
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from(path);
    }
    request
}

/// Open streams of a connection: for each the time at which its client was given a part of a response, if it has not asked for more.
struct Streams(Mutex<OpenStreams>);

struct OpenStreams {
    next: u64,
    open: HashMap<u64, Option<Instant>>,
    idle_since: Instant,
}

impl Streams {
    fn new() -> Streams {
        Streams(Mutex::new(OpenStreams { next: 0, open: HashMap::new(), idle_since: Instant::now() }))
    }

    fn lock(&self) -> MutexGuard<'_, OpenStreams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Streams>) -> OpenStream {
        let mut streams = self.lock();
        let id = streams.next;
        streams.next += 1;
        streams.open.insert(id, None);
        OpenStream { id, of: self.clone() }
    }

    fn is_idle(&self, now: Instant, patience: Duration) -> bool {
        let streams = self.lock();
        streams.open.is_empty() && now.duration_since(streams.idle_since) >= patience
    }

    fn is_stalled(&self, now: Instant) -> bool {
        let is_late = |given: &Option<Instant>| given.is_some_and(|at| now.duration_since(at) >= WRITE_TIMEOUT);
        self.lock().open.values().any(is_late)
    }

    /// Resolves when there has been no request for some time.
    async fn idle(&self, patience: Duration) {
        while !self.is_idle(Instant::now(), patience) {
            tokio::time::sleep(CHECK_EVERY.min(patience)).await;
        }
    }

    /// Resolves when a client has read nothing of a response for too long.
    async fn stalled(&self) {
        while !self.is_stalled(Instant::now()) {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }
}

/// A stream from its request to the end of its response.
struct OpenStream {
    id: u64,
    of: Arc<Streams>,
}

impl OpenStream {
    fn set_given(&self, at: Option<Instant>) {
        self.of.lock().open.insert(self.id, at);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut streams = self.of.lock();
        streams.open.remove(&self.id);
        if streams.open.is_empty() {
            streams.idle_since = Instant::now();
        }
    }
}

/// A response body. hyper asks it for more only when its client has taken what there was.
struct StreamBody {
    body: Body,
    stream: OpenStream,
}

impl hyper::body::Body for StreamBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.stream.set_given(matches!(frame, Poll::Ready(Some(_))).then(Instant::now));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_form_of_an_older_one() {
        let form = |uri: &str, host: &[&str]| {
            let mut request = Request::builder().uri(uri);
            for host in host {
                request = request.header(HOST, *host);
            }
            let request = as_path_and_host(request.body(()).unwrap());
            let hosts: Vec<String> =
                request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap().to_owned()).collect();
            (request.uri().to_string(), hosts)
        };
        assert_eq!(
            form("https://d.example:8443/v1/runs?n=1", &[]),
            ("/v1/runs?n=1".into(), vec!["d.example:8443".into()])
        );
        assert_eq!(form("https://d.example", &["d.example"]), ("/".into(), vec!["d.example".into()]));
        let two = form("https://d.example/", &["other.example"]).1;
        assert_eq!(two, ["other.example", "d.example"], "the gate refuses two names");
        assert_eq!(form("/v1/runs", &["d.example"]), ("/v1/runs".into(), vec!["d.example".into()]));
    }

    #[test]
    fn a_connection_without_requests_is_idle_and_one_that_is_not_read_is_stalled() {
        let (streams, patience) = (Arc::new(Streams::new()), Duration::from_secs(30));
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let told = |seconds| (streams.is_idle(at(seconds), patience), streams.is_stalled(at(seconds)));
        assert_eq!((told(0), told(31)), ((false, false), (true, false)), "nothing was asked");
        let stream = streams.begin();
        assert_eq!(told(600), (false, false), "its client waits for us");
        stream.set_given(Some(now));
        assert_eq!((told(59), told(61)), ((false, false), (false, true)));
        drop(stream);
        assert_eq!((told(29), told(61)), ((false, false), (true, false)));
    }
}
