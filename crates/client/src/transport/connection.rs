//! Connections to a daemon: made within a timeout, one for each request except where requests follow each other.

use super::address::Address;
use super::request::{Request, SentBody};
use super::response;
use super::server::Server;
use super::{unavailable, unreachable};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::rustls::{self, pki_types::ServerName};

/// Timeout for making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a request on a connection of its own. A status other than success becomes the fault that the daemon sent.
pub async fn send(server: &Server, request: Request) -> Result<Response<Incoming>, Fault> {
    let mut sender = connect(server).await?;
    send_on(server, &mut sender, request).await
}

/// Sends a request on an open connection.
pub async fn send_on(
    server: &Server,
    sender: &mut SendRequest<SentBody>,
    request: Request,
) -> Result<Response<Incoming>, Fault> {
    let timeout = request.timeout.map_or(Duration::MAX, |timeout| server.timeout(timeout));
    let request = http_request(server, request)?;
    let response = match tokio::time::timeout(timeout, sender.send_request(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(e)) if e.is_parse() && matches!(server.address, Address::Http { .. }) => {
            let fault = unavailable(server, "the server does not speak plain HTTP; it seems to use TLS");
            return Err(fault.hint("try https:// in --server or COFFERDAM_SERVER"));
        }
        Ok(Err(e)) => return Err(unavailable(server, with_causes(&e))),
        Err(_) => return Err(unavailable(server, "it does not answer")),
    };
    match response.status().is_success() {
        true => Ok(response),
        false => Err(response::fault(server, response).await),
    }
}

/// Returns the text of an error with those of its causes.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}

fn http_request(server: &Server, request: Request) -> Result<http::Request<SentBody>, Fault> {
    let host = server.address.host();
    let host = HeaderValue::from_str(&host)
        .map_err(|e| Fault::internal(format!("cannot set header Host to {host:?}: {e}")))?;
    let Request { method, target, headers, body, timeout: _ } = request;
    let described = format!("{method} {target}");
    let mut request = http::Request::builder().method(method).uri(target).header(HOST, host);
    if let Some(token) = server.token.as_ref().and_then(|token| token.header()) {
        request = request.header(AUTHORIZATION, token);
    }
    if let Some(media_type) = body.media_type() {
        request = request.header(CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.body(body.into_sent()).map_err(|e| Fault::internal(format!("{described}: cannot build the request: {e}")))
}

/// Makes a connection.
pub async fn connect(server: &Server) -> Result<SendRequest<SentBody>, Fault> {
    match tokio::time::timeout(server.timeout(CONNECT_TIMEOUT), connect_now(server)).await {
        Ok(made) => made,
        Err(_) => Err(unreachable(server, "connecting took too long")),
    }
}

async fn connect_now(server: &Server) -> Result<SendRequest<SentBody>, Fault> {
    match &server.address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|e| unreachable(server, e))?;
            start(server, stream).await
        }
        Address::Http { host, port } => start(server, tcp(server, host, *port, |a| a.ip().is_loopback()).await?).await,
        Address::Https { host, port } => {
            let stream = tcp(server, host, *port, |_| true).await?;
            let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(bare).map_err(|e| unreachable(server, e))?;
            let tls = server
                .tls
                .as_ref()
                .ok_or_else(|| Fault::internal(format!("{}: no TLS connector was made for it", server.address)))?;
            let stream = tls.connect(name, stream).await.map_err(|e| untrusted(server, &e))?;
            start(server, stream).await
        }
    }
}

/// A fault for a failed TLS handshake. What the daemon sent will not change; failures of the connection may pass.
fn untrusted(server: &Server, error: &std::io::Error) -> Fault {
    if error.kind() != std::io::ErrorKind::InvalidData {
        return unreachable(server, error);
    }
    if is_ca_as_server(error) {
        let message = format!("{}: its certificate is not trusted: it is for signing others (CA:TRUE)", server.address);
        let fault = Fault::new(ErrorKind::Unauthenticated, message).phase(Phase::Admission);
        return fault.hint(
            "give the daemon a certificate for servers only: `openssl req -x509 … -addext basicConstraints=critical,CA:FALSE`",
        );
    }
    let message = format!("{}: its certificate is not trusted: {error}", server.address);
    let fault = Fault::new(ErrorKind::Unauthenticated, message).phase(Phase::Admission);
    fault.hint(
        "name the certificate that signed the daemon's with --server-ca FILE, and use the host name in the daemon's certificate",
    )
}

/// True when the daemon presents a CA certificate as its own.
fn is_ca_as_server(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other))) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

async fn tcp(server: &Server, host: &str, port: u16, wanted: fn(&SocketAddr) -> bool) -> Result<TcpStream, Fault> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found = tokio::net::lookup_host((bare, port)).await.map_err(|e| unreachable(server, e))?;
    let mut last = None;
    for address in found.filter(wanted) {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Keystrokes are sent at once.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(e) => last = Some(e),
        }
    }
    Err(unreachable(server, last.map_or_else(|| "no such host".to_owned(), |e| e.to_string())))
}

async fn start<S>(server: &Server, stream: S) -> Result<SendRequest<SentBody>, Fault>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|e| unreachable(server, with_causes(&e)))?;
    // Ends with its sender, which also gets its errors.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
