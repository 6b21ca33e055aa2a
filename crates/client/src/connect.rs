//! Connections: made in time, one for each request but where requests follow each other.

use crate::address::Address;
use crate::answer;
use crate::ask::{Ask, Sent};
use crate::server::Server;
use crate::{unavailable, unreachable};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::rustls::pki_types::ServerName;

/// How long a connection may take to be made.
const CONNECTING: Duration = Duration::from_secs(10);

/// Asks on a connection of its own. Anything but success is the daemon's own fault document.
pub async fn send(server: &Server, ask: Ask) -> Result<Response<Incoming>, Fault> {
    let mut line = line(server).await?;
    on(server, &mut line, ask).await
}

/// Asks on a connection that is there.
pub async fn on(server: &Server, line: &mut SendRequest<Sent>, ask: Ask) -> Result<Response<Incoming>, Fault> {
    let patience = if ask.waits { Duration::MAX } else { server.patience(ask.patience) };
    let request = request(server, ask)?;
    let answer = match tokio::time::timeout(patience, line.send_request(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) if e.is_parse() && matches!(server.address, Address::Http { .. }) => {
            let fault = unavailable(server, "what answers there does not speak plain HTTP; it looks like TLS");
            return Err(fault.hint("try https:// in --server or COFFERDAM_SERVER"));
        }
        Ok(Err(e)) => return Err(unavailable(server, told(&e))),
        Err(_) => return Err(unavailable(server, "it does not answer")),
    };
    match answer.status().is_success() {
        true => Ok(answer),
        false => Err(answer::fault(server, answer).await),
    }
}

/// An error with what caused it.
pub fn told(error: &dyn std::error::Error) -> String {
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

fn request(server: &Server, ask: Ask) -> Result<Request<Sent>, Fault> {
    let host =
        HeaderValue::from_str(&server.address.host()).map_err(|_| Fault::internal("a host that is no header"))?;
    let mut request = Request::builder().method(ask.method).uri(ask.target).header(HOST, host);
    if let Some(token) = server.token.as_ref().and_then(|token| token.header()) {
        request = request.header(AUTHORIZATION, token);
    }
    if let Some(sort) = ask.content.sort() {
        request = request.header(CONTENT_TYPE, HeaderValue::from_static(sort));
    }
    for (name, value) in ask.headers {
        request = request.header(name, value);
    }
    request.body(ask.content.body()).map_err(|e| Fault::internal(format!("a request: {e}")))
}

/// A new connection.
pub async fn line(server: &Server) -> Result<SendRequest<Sent>, Fault> {
    match tokio::time::timeout(server.patience(CONNECTING), connected(server)).await {
        Ok(made) => made,
        Err(_) => Err(unreachable(server, "no connection came about in time")),
    }
}

async fn connected(server: &Server) -> Result<SendRequest<Sent>, Fault> {
    match &server.address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|e| unreachable(server, e))?;
            shaken(server, stream).await
        }
        Address::Http { host, port } => shaken(server, tcp(server, host, *port, |a| a.ip().is_loopback()).await?).await,
        Address::Https { host, port } => {
            let stream = tcp(server, host, *port, |_| true).await?;
            let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(bare).map_err(|e| unreachable(server, e))?;
            let tls = server.tls.as_ref().ok_or_else(|| Fault::internal("TLS without certificates"))?;
            let stream = tls.connect(name, stream).await.map_err(|e| untrusted(server, &e))?;
            shaken(server, stream).await
        }
    }
}

/// A certificate that is not believed is no passing trouble.
fn untrusted(server: &Server, error: &std::io::Error) -> Fault {
    if error.kind() != std::io::ErrorKind::InvalidData {
        return unreachable(server, error);
    }
    if error.to_string().contains("CaUsedAsEndEntity") {
        let message =
            format!("{} does not prove who it is: its certificate is for signing others (CA:TRUE)", server.address);
        let fault = Fault::new(ErrorKind::Unauthenticated, message).phase(Phase::Admission);
        return fault.hint(
            "have the daemon use one that is for a server alone: `openssl req -x509 … -addext basicConstraints=critical,CA:FALSE`",
        );
    }
    let message = format!("{} does not prove who it is: {error}", server.address);
    let fault = Fault::new(ErrorKind::Unauthenticated, message).phase(Phase::Admission);
    fault.hint(
        "name the certificate that signed the daemon's with --server-ca FILE, and the daemon as its certificate does",
    )
}

async fn tcp(server: &Server, host: &str, port: u16, wanted: fn(&SocketAddr) -> bool) -> Result<TcpStream, Fault> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found = tokio::net::lookup_host((bare, port)).await.map_err(|e| unreachable(server, e))?;
    let mut last = None;
    for address in found.filter(wanted) {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // What is typed shall not wait for more.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(e) => last = Some(e),
        }
    }
    Err(unreachable(server, last.map_or_else(|| "no such host".to_owned(), |e| e.to_string())))
}

async fn shaken<S>(server: &Server, stream: S) -> Result<SendRequest<Sent>, Fault>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| unreachable(server, told(&e)))?;
    // It ends with its sender; what goes wrong the sender is told.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
