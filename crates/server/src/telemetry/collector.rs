//! The collector: where it is, how it proves who it is, and what we prove who we are with. One exchange at a time; no redirect is
//! followed, and what the headers of its file say is neither kept nor told to anybody but the collector.

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

/// How long one export may take, the connection included.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is read of the collector's answer.
const LARGEST_ANSWER: usize = 64 << 10;
/// What is taken from it at all, heads and words between included: one that never stops talking would keep us busy to the last moment.
const LARGEST_EXCHANGE: usize = 256 << 10;
/// A file of headers, and how many it may hold.
const LARGEST_HEADERS: u64 = 16 << 10;
const MOST_HEADERS: usize = 32;

/// Headers that are ours to write.
const OURS: [&str; 9] = [
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
    /// What stands before `/v1/traces`.
    path: String,
    /// Headers for each export. Read anew each time, so that a token can be exchanged while we run.
    headers: Option<PathBuf>,
    /// Only where TLS is spoken.
    tls: Option<TlsConnector>,
}

impl Collector {
    /// None where the configuration names none. What could not work, or would tell a secret to others, is refused.
    pub fn of(telemetry: &Telemetry) -> Result<Option<Collector>, Fault> {
        let Some(endpoint) = &telemetry.endpoint else { return Ok(None) };
        let odd = || {
            let fault = Fault::invalid(format!("telemetry.otlp_endpoint {endpoint:?}: no address of a collector"));
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
                .hint("one `name: value` in a line, in a file that only the daemon's user reads")
                .phase(Phase::Admission)
        })?;
        Ok(Some(made))
    }

    pub async fn post(&self, signal: &str, body: Vec<u8>) -> Result<(), String> {
        let sent = timeout(PATIENCE, self.connect_and_send(signal, body)).await;
        sent.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
    }

    async fn connect_and_send(&self, signal: &str, body: Vec<u8>) -> Result<(), String> {
        let stream = self.connect().await?;
        let Some(tls) = &self.tls else { return self.exchange(stream, signal, body).await };
        let bare = bare(&self.host).to_owned();
        let name = ServerName::try_from(bare).map_err(|e| e.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => format!("it does not prove who it is: {e}"),
            _ => e.to_string(),
        })?;
        self.exchange(stream, signal, body).await
    }

    /// In clear, nobody but this machine's own list is asked where a name is. Who speaks TLS proves his name himself.
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
            hyper::client::conn::http1::handshake(TokioIo::new(Brief { stream, left: LARGEST_EXCHANGE }))
                .await
                .map_err(|e| text(&e))?;
        // Given up with this exchange, whether it came to an end or its time was over.
        let _connection = Given(tokio::spawn(connection));
        let mut request = Request::post(format!("{}/v1/{signal}", self.path))
            .header("host", format!("{}:{}", self.host, self.port))
            .header("content-type", "application/x-protobuf")
            .header("user-agent", concat!("cofferdam/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| text(&e))?;
        request.headers_mut().extend(self.headers()?);
        let answer = client.send_request(request).await.map_err(|e| text(&e))?;
        let status = answer.status();
        let _ = Limited::new(answer.into_body(), LARGEST_ANSWER).collect().await;
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    }

    /// As the file has them now.
    fn headers(&self) -> Result<HeaderMap, String> {
        let Some(file) = &self.headers else { return Ok(HeaderMap::new()) };
        parse(&trust::secret_text(file, LARGEST_HEADERS)?)
    }
}

/// A connection that so much is read from, and nothing more.
struct Brief<S> {
    stream: S,
    left: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Brief<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "it says too much")));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.left = self.left.saturating_sub(into.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Brief<S> {
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

/// A task that ends when nobody waits for what it does.
struct Given<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Given<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// `name: value` in each line that is not empty. No error repeats what stands there.
fn parse(text: &str) -> Result<HeaderMap, String> {
    let mut found = HeaderMap::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |why: &str| format!("line {number}: {why}");
        let (name, value) = line.split_once(':').ok_or_else(|| bad("no `name: value`"))?;
        let name: HeaderName = name.trim().parse().map_err(|_| bad("the name is none of a header"))?;
        if OURS.contains(&name.as_str()) {
            return Err(bad("this header is ours to write"));
        }
        let plain = value.trim().bytes().all(|b| b == b' ' || b.is_ascii_graphic()) && !value.trim().is_empty();
        let value = HeaderValue::from_str(value.trim()).ok().filter(|_| plain);
        let mut value = value.ok_or_else(|| bad("the value is no plain text"))?;
        value.set_sensitive(true);
        if found.insert(name, value).is_some() {
            return Err(bad("the same header twice"));
        }
        if found.len() > MOST_HEADERS {
            return Err(bad("too many headers"));
        }
    }
    Ok(found)
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// An address, or a name of this machine's own list: nobody else is asked.
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
    found.map(|ip| (ip, port).into()).ok_or_else(|| format!("{bare} is no address and not in /etc/hosts"))
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
