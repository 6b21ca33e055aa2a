//! Test servers that behave as the request path says.

use super::world::{ServerAuthority, head};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Longer than the mask holds bytes for more data.
const PAUSE: Duration = Duration::from_millis(150);

/// Heads that a server received, and its number of connections.
#[derive(Clone, Default)]
pub struct Seen {
    heads: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<usize>>,
    early: Arc<Mutex<bool>>,
}

impl Seen {
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    /// Returns true if any client sent TLS early data.
    pub fn early(&self) -> bool {
        *self.early.lock().unwrap()
    }

    fn add(&self, head: &str) {
        self.heads.lock().unwrap().push(head.to_owned());
    }
}

pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// Serves HTTP/1.1, plain or with TLS.
pub async fn http1(acceptor: Option<TlsAcceptor>) -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, seen) = (listener.local_addr().unwrap(), Seen::default());
    let told = seen.clone();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tcp.set_nodelay(true).unwrap();
            let (acceptor, seen) = (acceptor.clone(), told.clone());
            *seen.connections.lock().unwrap() += 1;
            tokio::spawn(async move {
                match acceptor {
                    None => talk(&mut { tcp }, &seen).await,
                    Some(acceptor) => {
                        if let Ok(mut tls) = acceptor.accept(tcp).await {
                            *seen.early.lock().unwrap() |= tls.get_mut().1.early_data().is_some();
                            talk(&mut tls, &seen).await;
                        }
                    }
                }
            });
        }
    });
    (addr, seen)
}

pub async fn https(servers: &ServerAuthority) -> (SocketAddr, Seen) {
    http1(Some(servers.acceptor(&[super::world::HOST, super::world::OTHER], &["http/1.1"]))).await
}

async fn talk(stream: &mut dyn Duplex, seen: &Seen) {
    let mut stream = stream;
    loop {
        let head = head(&mut stream).await;
        if !head.ends_with("\r\n\r\n") {
            return;
        }
        seen.add(&head);
        if act(&mut stream, &head).await.is_err() {
            let _ = stream.shutdown().await;
            return;
        }
    }
}

/// Handles one request; `Err` closes the connection.
async fn act(stream: &mut &mut dyn Duplex, head: &str) -> Result<(), ()> {
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let path = path.split('?').next().unwrap_or_default();
    let is_head = head.starts_with("HEAD ");
    match path {
        "/ok/early" => {
            put(stream, b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge").await?;
            return Err(());
        }
        "/ok/continue" => put(stream, b"HTTP/1.1 100 Continue\r\n\r\n").await?,
        _ => {}
    }
    let body = body(stream, head).await?;
    match path {
        "/ok/chunked" => {
            put(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            for piece in ["one ", "two ", "three"] {
                put(stream, format!("{:x};x=y\r\n{piece}\r\n", piece.len()).as_bytes()).await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            put(stream, b"0\r\nX-Sum: 6\r\n\r\n").await
        }
        "/ok/slowly" => {
            put(stream, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await?;
            put(stream, b"9\r\ndata: 1\n\n\r\n").await?;
            // The second event comes so late that the test ends before.
            tokio::time::sleep(Duration::from_secs(60)).await;
            put(stream, b"9\r\ndata: 2\n\n\r\n0\r\n\r\n").await
        }
        "/ok/close" => {
            put(stream, b"HTTP/1.1 200 OK\r\n\r\nuntil the end").await?;
            Err(())
        }
        "/ok/once" => {
            put(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nonce").await?;
            Err(())
        }
        "/ok/idle" => {
            // Announces keep-alive, and closes.
            put(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nidle").await?;
            Err(())
        }
        "/ok/204" => put(stream, b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n").await,
        "/ok/304" => put(stream, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: \"a\"\r\n\r\n").await,
        "/ok/hints" => {
            put(stream, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
                .await
        }
        "/ok/ws" | "/ok/ws-echo-head" => {
            put(stream, b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                .await?;
            if path == "/ok/ws-echo-head" {
                // One message in several frames.
                let pieces: Vec<&[u8]> = head.as_bytes().chunks(20).collect();
                for (i, piece) in pieces.iter().enumerate() {
                    let last = if i + 1 == pieces.len() { 0x80 } else { 0 };
                    put(stream, &[&[last | u8::from(i == 0), piece.len() as u8], *piece].concat()).await?;
                }
            }
            let mut buffer = [0; 4096];
            loop {
                let len = stream.read(&mut buffer).await.map_err(|_| ())?;
                if len == 0 {
                    return Err(());
                }
                put(stream, &buffer[..len]).await?;
            }
        }
        "/ok/other-protocol" => {
            put(stream, b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n").await?;
            Err(())
        }
        "/ok/gzip" => put(stream, b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nzzz").await,
        "/ok/two-lengths" => {
            put(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd").await
        }
        "/ok/unasked" => {
            put(
                stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
            )
            .await
        }
        "/ok/cut" => {
            put(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort").await?;
            Err(())
        }
        "/ok/tell" => {
            // Echoes the secret in pieces and in several encodings.
            let value = header(head, "authorization").unwrap_or_default();
            let text = format!("{value} {} {}", serde_json::json!(value), base64(&value));
            let head = format!("HTTP/1.1 200 {value}\r\nX-Told: {value}\r\nTransfer-Encoding: chunked\r\n\r\n");
            put(stream, head.as_bytes()).await?;
            for piece in text.as_bytes().chunks(3) {
                put(stream, format!("{:x}\r\n", piece.len()).as_bytes()).await?;
                put(stream, piece).await?;
                put(stream, b"\r\n").await?;
            }
            put(stream, format!("0\r\nX-Trailer: {value}\r\n\r\n").as_bytes()).await
        }
        // Byte by byte with pauses.
        "/ok/drip" => {
            let value = header(head, "authorization").unwrap_or_default();
            put(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            for byte in value.bytes() {
                put(stream, &[b"1\r\n", &[byte][..], b"\r\n"].concat()).await?;
                tokio::time::sleep(PAUSE).await;
            }
            put(stream, b"0\r\n\r\n").await
        }
        // The secret in the status line, in header values and in an interim response only.
        "/ok/moved" => {
            let value = header(head, "authorization").unwrap_or_default();
            let secret = value.trim_start_matches("Bearer ").to_owned();
            let encoded = secret.replace('/', "%2F").replace('+', "%2B").replace('"', "%22");
            let hints = format!("HTTP/1.1 103 Early Hints\r\nLink: <{secret}>\r\n\r\n");
            let answer = format!("HTTP/1.1 302 {secret}\r\nLocation: /x?k={encoded}\r\nContent-Length: 0\r\n\r\n");
            put(stream, (hints + &answer).as_bytes()).await
        }
        "/ok/part" => {
            put(stream, b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-2/9\r\nContent-Length: 3\r\n\r\nsk-").await
        }
        "/ok/coded" => {
            let coding = head.split("c=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: 3\r\n\r\nzzz");
            put(stream, answer.as_bytes()).await
        }
        "/ok/bulk" => {
            let len: usize = head.split("n=").nth(1).and_then(|r| r.split(' ').next()).unwrap().parse().unwrap();
            put(stream, format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").as_bytes()).await?;
            let block = vec![b'x'; 64 * 1024];
            let mut left = len;
            while left > 0 {
                let now = left.min(block.len());
                put(stream, &block[..now]).await?;
                left -= now;
            }
            Ok(())
        }
        _ => {
            let text = format!("{head}{}", String::from_utf8_lossy(&body));
            put(stream, format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len()).as_bytes()).await?;
            if is_head { Ok(()) } else { put(stream, text.as_bytes()).await }
        }
    }
}

pub fn header(head: &str, name: &str) -> Option<String> {
    let line = head.lines().find(|l| l.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

pub fn base64(text: &str) -> String {
    use ::base64::Engine;
    ::base64::engine::general_purpose::STANDARD.encode(text)
}

async fn body(stream: &mut &mut dyn Duplex, head: &str) -> Result<Vec<u8>, ()> {
    let mut body = Vec::new();
    if let Some(len) = header(head, "content-length") {
        body.resize(len.parse().map_err(|_| ())?, 0);
        stream.read_exact(&mut body).await.map_err(|_| ())?;
    } else if header(head, "transfer-encoding").is_some() {
        while !body.ends_with(b"\r\n\r\n") {
            body.push(stream.read_u8().await.map_err(|_| ())?);
        }
    }
    Ok(body)
}

async fn put(stream: &mut &mut dyn Duplex, bytes: &[u8]) -> Result<(), ()> {
    stream.write_all(bytes).await.map_err(|_| ())?;
    stream.flush().await.map_err(|_| ())
}

/// Serves HTTP/2 with TLS, or in plaintext with prior knowledge.
pub async fn http2(acceptor: Option<TlsAcceptor>) -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, seen) = (listener.local_addr().unwrap(), Seen::default());
    let told = seen.clone();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tcp.set_nodelay(true).unwrap();
            let (acceptor, seen) = (acceptor.clone(), told.clone());
            *seen.connections.lock().unwrap() += 1;
            tokio::spawn(async move {
                match acceptor {
                    None => talk2(tcp, seen).await,
                    Some(acceptor) => {
                        if let Ok(tls) = acceptor.accept(tcp).await {
                            talk2(tls, seen).await;
                        }
                    }
                }
            });
        }
    });
    (addr, seen)
}

pub async fn https2(servers: &ServerAuthority) -> (SocketAddr, Seen) {
    http2(Some(servers.acceptor(&[super::world::HOST], &["h2", "http/1.1"]))).await
}

async fn talk2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, seen: Seen) {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 22);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        seen.add(&format!("{} {} {:?}", request.method(), request.uri(), request.headers()));
        if request.uri().path() == "/ok/goaway" {
            connection.graceful_shutdown();
        }
        tokio::spawn(act2(request, respond));
    }
}

async fn act2(request: Request<h2::RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
    let told = request.headers().get("authorization").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
    let headers = format!("{:?}", request.headers());
    let is_head = request.method() == http::Method::HEAD;
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let mut body = request.into_body();
    match path.as_str() {
        "/ok/reset" => return respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM),
        "/ok/gzip" => {
            let response = Response::builder().header("content-encoding", "gzip").body(()).unwrap();
            let mut out = respond.send_response(response, false).unwrap();
            let _ = out.send_data(Bytes::from_static(b"zzz"), true);
            return;
        }
        "/ok/hints" => {
            let word = Response::builder().status(103).header("link", "</a>").body(()).unwrap();
            respond.send_informational(word).unwrap();
        }
        "/ok/never" => {
            let _kept = respond;
            tokio::time::sleep(Duration::from_secs(600)).await;
            return;
        }
        _ => {}
    }
    let status = if path == "/ok/part" { 206 } else { 200 };
    let response = Response::builder().status(status).header("x-told", &told).body(()).unwrap();
    let mut out = respond.send_response(response, is_head).unwrap();
    match path.as_str() {
        _ if is_head => {}
        // Answers each message before it reads the next.
        "/ok/both-ways" => {
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
                send2(&mut out, data).await;
            }
            let got = body.trailers().await.ok().flatten().unwrap_or_default();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            trailers.extend(got);
            let _ = out.send_trailers(trailers);
        }
        "/ok/tell" => {
            let text = format!("{told} {}", serde_json::json!(told));
            for piece in text.as_bytes().chunks(5) {
                send2(&mut out, Bytes::copy_from_slice(piece)).await;
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("x-trailer", told.parse().unwrap());
            let _ = out.send_trailers(trailers);
        }
        "/ok/drip" => {
            for byte in told.bytes() {
                send2(&mut out, Bytes::copy_from_slice(&[byte])).await;
                tokio::time::sleep(PAUSE).await;
            }
            let _ = out.send_data(Bytes::new(), true);
        }
        "/ok/bulk" => {
            let mut left: usize = query.trim_start_matches("n=").parse().unwrap();
            let block = Bytes::from(vec![b'x'; 16 * 1024]);
            while left > 0 {
                let now = left.min(block.len());
                send2(&mut out, block.slice(..now)).await;
                left -= now;
            }
            let _ = out.send_data(Bytes::new(), true);
        }
        _ => {
            send2(&mut out, headers.into()).await;
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
                send2(&mut out, data).await;
            }
            let _ = out.send_data(Bytes::new(), true);
        }
    }
}

/// Sends as the flow control window permits.
pub async fn send2(out: &mut h2::SendStream<Bytes>, mut data: Bytes) {
    while !data.is_empty() {
        out.reserve_capacity(data.len());
        let room = out.capacity().min(data.len());
        if room == 0 {
            match std::future::poll_fn(|cx| out.poll_capacity(cx)).await {
                Some(Ok(_)) => continue,
                _ => return,
            }
        }
        if out.send_data(data.split_to(room), false).is_err() {
            return;
        }
    }
}
