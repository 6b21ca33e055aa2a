//! Connections: counts them, sets time limits, and responds with a fault also to a request that is not valid HTTP.

use super::http2;
use super::linger::{LastRequest, Linger, RequestBody};
use crate::Settings;
use crate::credentials::Peer;
use crate::front::RequestHandler;
use crate::refuse::Refusal;
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, StatusCode};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::RecvFlags;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use terms::LimitKind;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Name of HTTP/2 in a TLS handshake.
pub(super) const HTTP2: &[u8] = b"h2";
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time in which a client reads nothing of a response.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Above the limits of the gate, so that the gate refuses first, with a reason.
const MAX_HEADERS: usize = 128;
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Open connections, counted by source.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    most: usize,
    each: usize,
    open: Mutex<HashMap<ConnectionSource, usize>>,
    count: watch::Sender<usize>,
}

/// Source of a connection, as it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ConnectionSource {
    User(Option<u32>),
    Address(IpAddr),
}

/// A stream that a listener accepts.
pub trait ListenerStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Resolves when data has arrived, without reading it.
    fn data_arrives(&self) -> impl Future<Output = io::Result<()>> + Send;
}

impl ListenerStream for UnixStream {
    async fn data_arrives(&self) -> io::Result<()> {
        self.async_io(Interest::READABLE, || peek(self)).await
    }
}

impl ListenerStream for TcpStream {
    async fn data_arrives(&self) -> io::Result<()> {
        self.async_io(Interest::READABLE, || peek(self)).await
    }
}

/// Confirms readiness, which the kernel may report spuriously.
fn peek(socket: impl AsFd) -> io::Result<()> {
    rustix::net::recv(socket, &mut [0u8; 1][..], RecvFlags::PEEK)?;
    Ok(())
}

impl Connections {
    pub fn new(most: usize, each: usize) -> Connections {
        Connections(Arc::new(Inner { most, each, open: Mutex::default(), count: watch::channel(0).0 }))
    }

    /// Returns the number of open connections.
    pub fn count(&self) -> usize {
        *self.0.count.borrow()
    }

    /// Resolves when no connection is open.
    pub async fn finished(&self) {
        let _ = self.0.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Serves a connection to its end; above the limit it gets a refusal and is closed.
    pub fn take(&self, stream: impl ListenerStream, peer: Peer, tls: Option<TlsAcceptor>, front: &RequestHandler) {
        let from = match &peer {
            Peer::Unix { uid } => ConnectionSource::User(*uid),
            Peer::Tcp { address } => ConnectionSource::Address(counting_address(address.ip())),
        };
        let Some(slot) = self.slot(from) else {
            // An uncounted connection may take no time: it gets what the kernel buffers and nothing more.
            let plain = tls.is_none();
            tokio::spawn(async move {
                if plain {
                    refuse(stream).await
                }
            });
            return;
        };
        let front = front.clone();
        tokio::spawn(async move {
            let patience = front.shared.patience();
            // No memory is allocated for a connection that sends nothing.
            tokio::select! {
                ready = timeout(patience, stream.data_arrives()) => if !matches!(ready, Ok(Ok(()))) { return },
                () = front.shared.until_end() => return,
            }
            // Boxed, so that idle connections do not reserve the size of this future.
            match tls {
                None => Box::pin(serve_http(stream, slot, peer, front)).await,
                Some(tls) => Box::pin(serve_tls(stream, tls, slot, peer, front)).await,
            }
        });
    }

    fn slot(&self, from: ConnectionSource) -> Option<ConnectionSlot> {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all = *self.0.count.borrow();
        let each = open.entry(from).or_default();
        // However many connections come over the network, the daemon's own user gets in.
        let most =
            if matches!(from, ConnectionSource::User(_)) { self.0.most + Settings::RESERVED } else { self.0.most };
        if all >= most || *each >= self.0.each {
            return None;
        }
        *each += 1;
        self.0.count.send_replace(all + 1);
        Some(ConnectionSlot { of: self.clone(), from })
    }
}

/// Returns the address that a connection counts under: an IPv6 client usually has a whole /64.
fn counting_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        other => other,
    }
}

/// The slot of an open connection.
struct ConnectionSlot {
    of: Connections,
    from: ConnectionSource,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.of.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(each) = open.get_mut(&self.from) {
            *each -= 1;
            if *each == 0 {
                open.remove(&self.from);
            }
        }
        self.of.0.count.send_modify(|count| *count -= 1);
    }
}

async fn refuse(mut stream: impl ListenerStream) {
    let refusal = Refusal::limit(
        StatusCode::SERVICE_UNAVAILABLE,
        LimitKind::Connections,
        "the limit of open connections is reached",
        "close idle connections, or try again",
    );
    let _ = timeout(Duration::from_secs(1), stream.write_all(&raw_response(refusal))).await;
}

async fn serve_tls(
    stream: impl ListenerStream,
    tls: TlsAcceptor,
    slot: ConnectionSlot,
    peer: Peer,
    front: RequestHandler,
) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await else { return };
    match stream.get_ref().1.alpn_protocol() {
        Some(HTTP2) => {
            // Never free for a bare error response: hyper speaks frames here.
            let wire = Wire::new(stream, slot, Arc::new(AtomicBool::new(true)), Arc::default());
            http2::serve(wire, peer, front).await;
        }
        _ => serve_http(stream, slot, peer, front).await,
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    slot: ConnectionSlot,
    peer: Peer,
    front: RequestHandler,
) {
    let shared = front.shared.clone();
    let (busy, last_request) = (Arc::new(AtomicBool::new(false)), Arc::new(LastRequest::default()));
    let stream = TokioIo::new(Wire::new(stream, slot, busy.clone(), last_request.clone()));
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (front, peer, busy, last_request) = (front.clone(), peer.clone(), busy.clone(), last_request.clone());
        async move {
            busy.store(true, Ordering::Relaxed);
            let mut response =
                front.respond(peer, request.map(|body| RequestBody::new(body, last_request.clone()))).await;
            if RequestHandler::was_authenticated(&response) {
                last_request.set_authenticated();
            }
            if last_request.must_close() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| ResponseBody { body, busy }))
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(shared.patience())
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES);
    let mut connection = std::pin::pin!(http.serve_connection(stream, service).with_upgrades());
    // A client that leaves is not an error.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = shared.until_end() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Serializes a whole response, for errors outside of hyper's service.
fn raw_response(refusal: Refusal) -> Vec<u8> {
    let status = refusal.status();
    let mut fault = refusal.fault;
    let id = terms::id("req", node::random::id_bytes());
    fault.request_id = Some(id.clone());
    let text = serde_json::to_string(&fault).unwrap_or_default();
    let again = if status == StatusCode::SERVICE_UNAVAILABLE { "retry-after: 1\r\n" } else { "" };
    let reason = status.canonical_reason().unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nx-request-id: {id}\r\n{again}\
         connection: close\r\n\r\n",
        status.as_u16(),
        text.len(),
    );
    (head + &text).into_bytes()
}

/// A stream that times out writes to clients that read nothing, and replaces hyper's bare error responses by faults.
struct Wire<S> {
    stream: S,
    /// A request was parsed, and its response is not sent yet.
    busy: Arc<AtomicBool>,
    /// The response that replaces hyper's, and the number of bytes sent.
    replacement: Option<(Vec<u8>, usize)>,
    write_timeout: Option<Pin<Box<Sleep>>>,
    last_request: Arc<LastRequest>,
    /// Discards the rest of the request after the response.
    linger: Option<Linger>,
    /// Held for the connection's lifetime, also after an upgrade to another protocol.
    _slot: ConnectionSlot,
}

impl<S> Wire<S> {
    fn new(stream: S, slot: ConnectionSlot, busy: Arc<AtomicBool>, last_request: Arc<LastRequest>) -> Wire<S> {
        Wire { stream, busy, replacement: None, write_timeout: None, last_request, linger: None, _slot: slot }
    }

    /// Returns `now`, or a timeout once the stream has been pending for too long.
    fn timed<T>(&mut self, cx: &mut Context<'_>, now: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if now.is_ready() {
            self.write_timeout = None;
            return now;
        }
        let write_timeout = self
            .write_timeout
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_TIMEOUT)));
        match write_timeout.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A response body; when it is dropped the connection is free for the next request.
struct ResponseBody {
    body: Body,
    busy: Arc<AtomicBool>,
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Relaxed);
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Recognizes hyper's error response to an invalid head, which has a status and nothing else.
fn parse_bare_error(bytes: &[u8]) -> Option<Refusal> {
    const LONGEST: usize = 256;
    let text = std::str::from_utf8(bytes.get(..bytes.len().min(LONGEST))?).ok()?.to_ascii_lowercase();
    if bytes.len() >= LONGEST || !text.ends_with("\r\n\r\n") || !text.contains("\r\ncontent-length: 0\r\n") {
        return None;
    }
    let code = bytes.strip_prefix(b"HTTP/1.1 ").or_else(|| bytes.strip_prefix(b"HTTP/1.0 "))?.get(..3)?;
    match StatusCode::from_bytes(code).ok()? {
        status @ (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG) => {
            let message =
                format!("the head of the request is larger than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers");
            Some(Refusal::limit(status, LimitKind::HeaderBytes, message, "send fewer and shorter headers"))
        }
        status if status.is_client_error() => {
            Some(Refusal::http(status, "the request is not valid HTTP", "send HTTP/1.1, with one Host header"))
        }
        _ => None,
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.replacement.is_none() && !this.busy.load(Ordering::Relaxed) {
            this.replacement = parse_bare_error(bytes).map(|refusal| (raw_response(refusal), 0));
            if this.replacement.is_some() {
                this.last_request.set_unread();
            }
        }
        let Some((whole, done)) = &mut this.replacement else {
            let now = Pin::new(&mut this.stream).poll_write(cx, bytes);
            return this.timed(cx, now);
        };
        while *done < whole.len() {
            match Pin::new(&mut this.stream).poll_write(cx, &whole[*done..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => *done += n,
                other => return this.timed(cx, other),
            }
        }
        // hyper is told that its own response was written.
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let now = Pin::new(&mut this.stream).poll_flush(cx);
        this.timed(cx, now)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let linger = this.linger.get_or_insert_with(|| this.last_request.linger());
        linger.poll(&mut this.stream, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_many_addresses_is_counted_once() {
        let of = |text: &str| counting_address(text.parse().unwrap()).to_string();
        for own in ["127.0.0.1", "127.1.2.3", "127.255.255.254", "::1", "::ffff:127.0.0.9"] {
            assert_eq!(of(own), "127.0.0.1", "{own}");
        }
        assert_eq!((of("2001:db8::1"), of("2001:db8::2:1")), ("2001:db8::".into(), "2001:db8::".into()));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
        assert_eq!((of("10.0.0.1"), of("::ffff:10.0.0.1")), ("10.0.0.1".into(), "10.0.0.1".into()));
    }
}
