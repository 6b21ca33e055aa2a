//! The OTLP collector: its address, TLS and headers. One connection per export; no redirect is followed, and the headers of its file are
//! neither cached nor logged.

use bytes::Bytes;
use client::trust;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use node::config::Telemetry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use terms::{Fault, Phase};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Time limit of an export, the connection included.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of the collector's response body.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Maximum number of bytes read per connection, so that an endless response ends early.
const MAX_EXCHANGE_BYTES: usize = 256 << 10;
/// Maximum size of the file of headers, and number of headers.
const MAX_HEADERS_FILE_BYTES: u64 = 16 << 10;
const MAX_HEADERS: usize = 32;

/// Headers that only this client sets.
const RESERVED_HEADERS: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

#[derive(Clone)]
pub struct Collector {
    pub service: String,
    host: String,
    port: u16,
    /// Prefix of `/v1/traces`.
    path: String,
    /// File of headers for each export. Read each time, so that a token can be replaced while the daemon runs.
    headers: Option<PathBuf>,
    /// Set for https.
    tls: Option<TlsConnector>,
}

impl Collector {
    /// Reads the configuration; none without an endpoint. Refuses settings that cannot work, or that would send a secret in clear.
    pub fn of(telemetry: &Telemetry) -> Result<Option<Collector>, Fault> {
        let Some(endpoint) = &telemetry.endpoint else { return Ok(None) };
        let odd = || {
            let fault = Fault::invalid(format!("telemetry.otlp_endpoint {endpoint:?}: not the address of a collector"));
            fault.hint("write e.g. http://127.0.0.1:4318 or https://collector.example:4318").phase(Phase::Admission)
        };
        let uri: Uri = endpoint.parse().map_err(|_| odd())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(odd)?.to_owned();
        let tls = match (uri.scheme_str(), &telemetry.ca) {
            (Some("https"), ca) => Some(trust::connector(ca.as_deref(), "telemetry.otlp_ca", "collector")?),
            (Some("http"), None) => None,
            _ => return Err(odd()),
        };
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let (path, service) = (uri.path().trim_end_matches('/').to_owned(), telemetry.service_name.clone());
        let made = Collector { service, host, port, path, headers: telemetry.headers.clone(), tls };
        made.headers().map_err(|why| {
            let file = made.headers.as_deref().unwrap_or(Path::new("")).display();
            let fault = Fault::invalid(format!("telemetry.otlp_headers_file {file}: {why}"));
            fault
                .hint("write one `name: value` per line, in a file that only the daemon's user can read")
                .phase(Phase::Admission)
        })?;
        Ok(Some(made))
    }

    pub async fn post(&self, signal: &str, body: Vec<u8>) -> Result<(), String> {
        let sent = timeout(PATIENCE, self.connect_and_send(signal, body)).await;
        sent.unwrap_or_else(|_| Err(format!("no response within {} s", PATIENCE.as_secs())))
    }

    async fn connect_and_send(&self, signal: &str, body: Vec<u8>) -> Result<(), String> {
        let stream = self.connect().await?;
        let Some(tls) = &self.tls else { return self.exchange(stream, signal, body).await };
        let bare = bare(&self.host).to_owned();
        let name = ServerName::try_from(bare).map_err(|e| e.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => format!("its certificate is not accepted: {e}"),
            _ => e.to_string(),
        })?;
        self.exchange(stream, signal, body).await
    }

    /// Connects to the collector. Without TLS a name is resolved by /etc/hosts only; with TLS the certificate proves the name.
    async fn connect(&self) -> Result<TcpStream, String> {
        let found = match (address(&self.host, self.port), &self.tls) {
            (Ok(at), _) => vec![at],
            (Err(why), None) => return Err(why),
            (Err(_), Some(_)) => {
                let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
                found.map_err(|e| format!("{}: {e}", self.host))?.collect()
            }
        };
        let mut last = format!("{} has no address", self.host);
        for at in found {
            match TcpStream::connect(at).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e.to_string(),
            }
        }
        Err(last)
    }

    async fn exchange<S>(&self, stream: S, signal: &str, body: Vec<u8>) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let text = |e: &dyn std::error::Error| e.to_string();
        let (mut client, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(LimitedStream { stream, left: MAX_EXCHANGE_BYTES }))
                .await
                .map_err(|e| text(&e))?;
        // Aborted at the end of this exchange or at its timeout.
        let _connection = AbortOnDrop(tokio::spawn(connection));
        let mut request = Request::post(format!("{}/v1/{signal}", self.path))
            .header("host", format!("{}:{}", self.host, self.port))
            .header("content-type", "application/x-protobuf")
            .header("user-agent", concat!("cofferdam/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| text(&e))?;
        request.headers_mut().extend(self.headers()?);
        let response = client.send_request(request).await.map_err(|e| text(&e))?;
        let status = response.status();
        let _ = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        if status.is_success() { Ok(()) } else { Err(format!("it responded with {status}")) }
    }

    /// Reads the headers from their file.
    fn headers(&self) -> Result<HeaderMap, String> {
        let Some(file) = &self.headers else { return Ok(HeaderMap::new()) };
        parse(&trust::secret_text(file, MAX_HEADERS_FILE_BYTES)?)
    }
}

/// A connection with a limit on the bytes read.
struct LimitedStream<S> {
    stream: S,
    left: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "its response is too long")));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.left = self.left.saturating_sub(into.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Aborts a task when it is dropped.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Parses `name: value` lines; empty lines are skipped. No error contains a name or value of the file.
fn parse(text: &str) -> Result<HeaderMap, String> {
    let mut found = HeaderMap::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |why: &str| format!("line {number}: {why}");
        let (name, value) = line.split_once(':').ok_or_else(|| bad("not `name: value`"))?;
        let name: HeaderName = name.trim().parse().map_err(|_| bad("not a valid header name"))?;
        if RESERVED_HEADERS.contains(&name.as_str()) {
            return Err(bad("this header is set by cofferdam"));
        }
        let plain = value.trim().bytes().all(|b| b == b' ' || b.is_ascii_graphic()) && !value.trim().is_empty();
        let value = HeaderValue::from_str(value.trim()).ok().filter(|_| plain);
        let mut value = value.ok_or_else(|| bad("the value is not plain ASCII text"))?;
        value.set_sensitive(true);
        if found.insert(name, value).is_some() {
            return Err(bad("the same header twice"));
        }
        if found.len() > MAX_HEADERS {
            return Err(bad("too many headers"));
        }
    }
    Ok(found)
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Parses an IP address, or resolves a name by /etc/hosts; DNS is not queried.
fn address(host: &str, port: u16) -> Result<SocketAddr, String> {
    let bare = bare(host);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok((ip, port).into());
    }
    if bare == "localhost" {
        return Ok(([127, 0, 0, 1], port).into());
    }
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let found = hosts.lines().map(|line| line.split('#').next().unwrap_or_default()).find_map(|line| {
        let mut words = line.split_whitespace();
        let ip = words.next()?.parse::<IpAddr>().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(bare)).then_some(ip)
    });
    found.map(|ip| (ip, port).into()).ok_or_else(|| format!("{bare} is not an IP address and not in /etc/hosts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_headers_is_read_to_the_letter_and_never_repeated() {
        let read = parse("authorization: Bearer abc:def\n\nX-Scope-OrgID:  blue \n").unwrap();
        assert_eq!(
            (&read["authorization"], &read["x-scope-orgid"]),
            (&"Bearer abc:def".parse().unwrap(), &"blue".parse().unwrap())
        );
        assert!(read["authorization"].is_sensitive() && parse("").unwrap().is_empty());
        for bad in [
            "secret",
            "host: secret",
            "a b: secret",
            "x: ",
            "x: s\u{e9}cret",
            "x: secret\nX: secret",
            "transfer-encoding: secret",
        ] {
            let why = parse(bad).unwrap_err();
            assert!(why.starts_with("line ") && !why.contains("secret"), "{bad:?}: {why}");
        }
    }
}
