//! One connection: counted, timed, and answered in words of ours also where HTTP itself was not kept to.

use super::linger::{Asked, Linger, Rest};
use crate::Settings;
use crate::credentials::Peer;
use crate::front::Front;
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

const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a client may take nothing of an answer.
const STUCK: Duration = Duration::from_secs(60);
/// More than the gate lets through, so that the gate can say why.
const MOST_HEADERS: usize = 128;
const LARGEST_HEAD: usize = 64 << 10;

/// Those that are open, counted by where they come from.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    most: usize,
    each: usize,
    open: Mutex<HashMap<Source, usize>>,
    count: watch::Sender<usize>,
}

/// Where connections come from, as far as they are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Source {
    User(Option<u32>),
    Address(IpAddr),
}

/// What can be listened on.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Resolves when something has come, and takes none of it.
    fn stirs(&self) -> impl Future<Output = io::Result<()>> + Send;
}

impl Stream for UnixStream {
    async fn stirs(&self) -> io::Result<()> {
        self.async_io(Interest::READABLE, || peek(self)).await
    }
}

impl Stream for TcpStream {
    async fn stirs(&self) -> io::Result<()> {
        self.async_io(Interest::READABLE, || peek(self)).await
    }
}

/// The kernel may say that there is something where there is nothing yet; a look tells.
fn peek(socket: impl AsFd) -> io::Result<()> {
    rustix::net::recv(socket, &mut [0u8; 1][..], RecvFlags::PEEK)?;
    Ok(())
}

impl Connections {
    pub fn new(most: usize, each: usize) -> Connections {
        Connections(Arc::new(Inner { most, each, open: Mutex::default(), count: watch::channel(0).0 }))
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        *self.0.count.borrow()
    }

    /// Resolves when none is open any more.
    pub async fn finished(&self) {
        let _ = self.0.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Serves a connection as long as it lasts; one too many is told so and closed.
    pub fn take(&self, stream: impl Stream, peer: Peer, tls: Option<TlsAcceptor>, front: &Front) {
        let from = match &peer {
            Peer::Unix { uid } => Source::User(*uid),
            Peer::Tcp { address } => Source::Address(counted(address.ip())),
        };
        let Some(place) = self.place(from) else {
            // Without a place of its own it may take no time: what the kernel buffers is all it gets.
            let plain = tls.is_none();
            tokio::spawn(async move {
                if plain {
                    turn_away(stream).await
                }
            });
            return;
        };
        let front = front.clone();
        tokio::spawn(async move {
            let patience = front.shared.patience();
            // Nothing is set aside for one that sends nothing.
            tokio::select! {
                ready = timeout(patience, stream.stirs()) => if !matches!(ready, Ok(Ok(()))) { return },
                () = front.shared.until_end() => return,
            }
            // Boxed, so that those who send nothing have no room for it either.
            match tls {
                None => Box::pin(speak(stream, place, peer, front)).await,
                Some(tls) => Box::pin(greet(stream, tls, place, peer, front)).await,
            }
        });
    }

    fn place(&self, from: Source) -> Option<Place> {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all = *self.0.count.borrow();
        let each = open.entry(from).or_default();
        // However many come over the network, the daemon's own user is let in.
        let most = if matches!(from, Source::User(_)) { self.0.most + Settings::RESERVED } else { self.0.most };
        if all >= most || *each >= self.0.each {
            return None;
        }
        *each += 1;
        self.0.count.send_replace(all + 1);
        Some(Place { of: self.clone(), from })
    }
}

/// The address that connections are counted under: whoever has one has all those that come with it.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        other => other,
    }
}

/// One of those that are open.
struct Place {
    of: Connections,
    from: Source,
}

impl Drop for Place {
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

async fn turn_away(mut stream: impl Stream) {
    let refusal = Refusal::limit(
        StatusCode::SERVICE_UNAVAILABLE,
        LimitKind::Connections,
        "as many connections are open as there may be",
        "close some, or try again",
    );
    let _ = timeout(Duration::from_secs(1), stream.write_all(&blunt(refusal))).await;
}

async fn greet(stream: impl Stream, tls: TlsAcceptor, place: Place, peer: Peer, front: Front) {
    if let Ok(Ok(stream)) = timeout(HANDSHAKE, tls.accept(stream)).await {
        speak(stream, place, peer, front).await;
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, place: Place, peer: Peer, front: Front) {
    let shared = front.shared.clone();
    let (busy, rest) = (Arc::new(AtomicBool::new(false)), Arc::new(Rest::default()));
    let stream = TokioIo::new(Wire::new(stream, place, busy.clone(), rest.clone()));
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (front, peer, busy, rest) = (front.clone(), peer.clone(), busy.clone(), rest.clone());
        async move {
            busy.store(true, Ordering::Relaxed);
            let mut answer = front.answer(peer, request.map(|body| Asked::new(body, rest.clone()))).await;
            if Front::knew(&answer) {
                rest.is_known();
            }
            if rest.ends_it() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer.map(|body| Marked { body, busy }))
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(shared.patience())
        .max_headers(MOST_HEADERS)
        .max_buf_size(LARGEST_HEAD);
    let mut connection = std::pin::pin!(http.serve_connection(stream, service).with_upgrades());
    // A client that left is no error of ours.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = shared.until_end() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// A whole answer in bytes, for where no service can give one.
fn blunt(refusal: Refusal) -> Vec<u8> {
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

/// A stream that gives up on clients who take nothing, and on which hyper's own bare refusals of broken heads become ours.
struct Wire<S> {
    stream: S,
    /// A request was understood, and its answer is not out yet.
    busy: Arc<AtomicBool>,
    /// What is left of a refusal that stands in for hyper's.
    instead: Option<(Vec<u8>, usize)>,
    stuck: Option<Pin<Box<Sleep>>>,
    rest: Arc<Rest>,
    /// All is said, and what the client still says is thrown away.
    linger: Option<Linger>,
    /// It counts as one as long as it lasts, also when it speaks something else than HTTP by then.
    _place: Place,
}

impl<S> Wire<S> {
    fn new(stream: S, place: Place, busy: Arc<AtomicBool>, rest: Arc<Rest>) -> Wire<S> {
        Wire { stream, busy, instead: None, stuck: None, rest, linger: None, _place: place }
    }

    /// Passes on what the stream says, unless it has said "not yet" for too long.
    fn timed<T>(&mut self, cx: &mut Context<'_>, now: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if now.is_ready() {
            self.stuck = None;
            return now;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + STUCK)));
        match stuck.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A body at whose end the connection is free for the next request.
struct Marked {
    body: Body,
    busy: Arc<AtomicBool>,
}

impl Drop for Marked {
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Relaxed);
    }
}

impl hyper::body::Body for Marked {
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

/// What hyper says of a head that it does not understand: a status and nothing else.
fn bare(bytes: &[u8]) -> Option<Refusal> {
    const LONGEST: usize = 256;
    let text = std::str::from_utf8(bytes.get(..bytes.len().min(LONGEST))?).ok()?.to_ascii_lowercase();
    if bytes.len() >= LONGEST || !text.ends_with("\r\n\r\n") || !text.contains("\r\ncontent-length: 0\r\n") {
        return None;
    }
    let code = bytes.strip_prefix(b"HTTP/1.1 ").or_else(|| bytes.strip_prefix(b"HTTP/1.0 "))?.get(..3)?;
    match StatusCode::from_bytes(code).ok()? {
        status @ (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG) => {
            let message =
                format!("the head of the request is larger than {LARGEST_HEAD} bytes or {MOST_HEADERS} headers");
            Some(Refusal::limit(status, LimitKind::HeaderBytes, message, "send fewer and shorter headers"))
        }
        status if status.is_client_error() => {
            Some(Refusal::http(status, "this is no HTTP request", "speak HTTP/1.1, with one Host header"))
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
        if this.instead.is_none() && !this.busy.load(Ordering::Relaxed) {
            this.instead = bare(bytes).map(|refusal| (blunt(refusal), 0));
            if this.instead.is_some() {
                this.rest.is_unread();
            }
        }
        let Some((whole, done)) = &mut this.instead else {
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
        // To hyper its own words are out.
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
        let linger = this.linger.get_or_insert_with(|| this.rest.linger());
        linger.poll(&mut this.stream, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_many_addresses_is_counted_once() {
        let of = |text: &str| counted(text.parse().unwrap()).to_string();
        for own in ["127.0.0.1", "127.1.2.3", "127.255.255.254", "::1", "::ffff:127.0.0.9"] {
            assert_eq!(of(own), "127.0.0.1", "{own}");
        }
        assert_eq!((of("2001:db8::1"), of("2001:db8::2:1")), ("2001:db8::".into(), "2001:db8::".into()));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
        assert_eq!((of("10.0.0.1"), of("::ffff:10.0.0.1")), ("10.0.0.1".into(), "10.0.0.1".into()));
    }
}
