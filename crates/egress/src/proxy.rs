//! SOCKS5 and HTTP proxy clients. They name the host themselves: the broker resolves it under the same rules, and the
//! following bytes must be for that host and no other.

use crate::connection::{self, GuestConnection, Services};
use crate::dial::{connect_within, reason_of};
use crate::event::GuestSocket;
use crate::flow::{Flow, read_more, reset, write_all};
use crate::forward::{self, AfterExchange, ServerStream, read_head, send_refusal};
use crate::gate::{ConnectDecision, Remote, Ruling, StreamDecision};
use crate::http1::{self, RequestHead, RequestTarget, Version};
use crate::socks::{self, SocksHandshake, SocksStep, Status};
use policy::{HostName, Proto};
use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Deadline for a client to send its request to the proxy.
const HANDSHAKE: Duration = Duration::from_secs(30);
const MAX_SOCKS: usize = 1024;
/// Limit on addresses tried for one name.
const MAX_TRIES: usize = 4;

/// Refusal or failure of a connection that a proxy client requested.
struct ProxyRefusal {
    addr: SocketAddr,
    socket: Option<GuestSocket>,
    ruling: Ruling,
    /// Set if the rules allow the server and it could not be reached.
    error: Option<Error>,
}

impl ProxyRefusal {
    /// Reports the event and returns the ruling to send to the client.
    fn record(&self, services: &Services) -> Ruling {
        let flow = Flow::new(&services.gate, Proto::Tcp, self.addr, self.socket);
        match &self.error {
            None => {
                flow.refused(&self.ruling);
                self.ruling.clone()
            }
            Some(error) => {
                flow.failed(&self.ruling, reason_of(error));
                Ruling { reason: Some(reason_of(error)), ..self.ruling.clone() }
            }
        }
    }

    fn socks_status(&self) -> Status {
        match self.error.as_ref().map(Error::kind) {
            None => Status::NotAllowed,
            Some(ErrorKind::ConnectionRefused) => Status::ConnectionRefused,
            Some(ErrorKind::TimedOut) => Status::TimedOut,
            Some(ErrorKind::NetworkUnreachable) => Status::NetworkUnreachable,
            Some(ErrorKind::HostUnreachable) => Status::HostUnreachable,
            Some(_) => Status::Failed,
        }
    }
}

/// Server that a proxy client gets connected to. Without a stream, no server may be dialed before the client's requests
/// are inspected.
struct ProxyRoute {
    remote: Remote,
    ruling: Option<Ruling>,
    stream: Option<TcpStream>,
}

/// Resolves, judges and dials the host that a client named.
async fn find_route(
    services: &Services,
    guest: &TcpStream,
    host: &HostName,
    port: u16,
) -> Result<ProxyRoute, ProxyRefusal> {
    let socket = GuestSocket::of(guest);
    let remotes = match host {
        HostName::Addr(addr) => vec![Remote::at(SocketAddr::new(*addr, port), None)],
        HostName::Name(name) => {
            let addresses = services.resolver.addresses(name, socket).await.into_iter().take(MAX_TRIES);
            addresses.map(|addr| Remote::at(SocketAddr::new(addr, port), Some(name.clone()))).collect()
        }
    };
    let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let ruling = services.gate.refusal(Some(&host.to_string()), "the name does not resolve to an allowed address");
    let mut refusal = ProxyRefusal { addr: nowhere, socket, ruling, error: None };
    for mut remote in remotes {
        let addr = remote.addr;
        let ruling = match services.gate.admit_with_approval(&mut remote, socket).await {
            ConnectDecision::Wait => return Ok(ProxyRoute { remote, ruling: None, stream: None }),
            ConnectDecision::Refuse(ruling) | ConnectDecision::Ask(_, ruling) => {
                refusal = ProxyRefusal { addr, socket, ruling, error: None };
                continue;
            }
            ConnectDecision::Dial(ruling) => ruling,
        };
        match connect_within(services.connect_timeout, addr).await {
            Ok(stream) => return Ok(ProxyRoute { remote, ruling: Some(ruling), stream: Some(stream) }),
            Err(error) => refusal = ProxyRefusal { addr, socket, ruling, error: Some(error) },
        }
    }
    Err(refusal)
}

/// Serves a SOCKS5 client.
pub(crate) async fn socks(services: &Arc<Services>, guest: TcpStream) {
    let mut bytes = Vec::new();
    let asked = timeout(HANDSHAKE, socks_request(&guest, &mut bytes)).await;
    let Ok(Ok(Some((host, port)))) = asked else { return };
    let (reply, route) = match find_route(services, &guest, &host, port).await {
        Ok(route) => (socks::reply(Status::Succeeded, None), Some(route)),
        Err(refusal) => {
            refusal.record(services);
            (socks::reply(refusal.socks_status(), None), None)
        }
    };
    if write_all(&guest, &reply).await.is_err() {
        return;
    }
    if let Some(route) = route {
        serve_route(services, guest, route, bytes).await;
    }
}

/// Reads the client's request; `None` if the client was sent an error or closed the connection.
async fn socks_request(guest: &TcpStream, bytes: &mut Vec<u8>) -> Result<Option<(HostName, u16)>, Error> {
    let mut client = SocksHandshake::new();
    loop {
        match client.step(bytes) {
            SocksStep::NeedMore => {
                if read_more(guest, bytes, MAX_SOCKS).await? == 0 {
                    return Ok(None);
                }
            }
            SocksStep::Reply { bytes: reply, consumed } => {
                bytes.drain(..consumed);
                write_all(guest, &reply).await?;
            }
            SocksStep::Connect { host, port, consumed } => {
                bytes.drain(..consumed);
                return Ok(Some((host, port)));
            }
            SocksStep::Bad { reply, .. } => {
                write_all(guest, &reply).await?;
                return Ok(None);
            }
        }
    }
}

async fn serve_route(services: &Arc<Services>, guest: TcpStream, route: ProxyRoute, bytes: Vec<u8>) {
    let mut connection = GuestConnection::new(services, guest, route.remote);
    (connection.outside, connection.ruling) = (route.stream, route.ruling);
    connection::serve(connection, bytes).await;
}

/// Serves an HTTP proxy client: CONNECT, or requests with absolute URLs.
pub(crate) async fn http(services: &Arc<Services>, guest: TcpStream) {
    let mut bytes = Vec::new();
    let Ok(Ok(Some(request))) = timeout(HANDSHAKE, next_request(&guest, &mut bytes)).await else { return };
    match request {
        Ok(request) if request.method == "CONNECT" => connect(services, guest, request, bytes).await,
        // After any error the client sees its connection closed.
        first => drop(requests(services, guest, first, bytes).await),
    }
}

async fn connect(services: &Arc<Services>, guest: TcpStream, request: RequestHead, mut bytes: Vec<u8>) {
    bytes.drain(..request.consumed);
    let RequestTarget::Authority { host, port } = &request.target else { return };
    match find_route(services, &guest, host, *port).await {
        Ok(route) => {
            if write_all(&guest, b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_ok() {
                serve_route(services, guest, route, bytes).await;
            }
        }
        Err(refusal) => {
            let _ = send_refusal(&guest, http_status(&refusal), &refusal.record(services)).await;
        }
    }
}

fn http_status(refusal: &ProxyRefusal) -> u16 {
    match refusal.error.as_ref().map(Error::kind) {
        None => 403,
        Some(ErrorKind::TimedOut) => 504,
        Some(_) => 502,
    }
}

/// Server of the last request, kept for the next one.
struct KeptServer {
    host: HostName,
    port: u16,
    remote: Remote,
    flow: Flow,
    stream: TcpStream,
    ahead: Vec<u8>,
}

/// Serves requests with absolute URLs, each at the host it names.
async fn requests(
    services: &Arc<Services>,
    guest: TcpStream,
    first: Result<RequestHead, (u16, &'static str)>,
    mut bytes: Vec<u8>,
) -> Result<(), Error> {
    let mut kept: Option<KeptServer> = None;
    let mut next = Some(first);
    while let Some(read) = next {
        let bad = |status, reason| (status, services.gate.refusal(None, reason));
        let (mut request, host, port, path) = match read {
            Err((status, reason)) => return refuse_malformed(services, &guest, bad(status, reason)).await,
            Ok(request) => match request.target.clone() {
                RequestTarget::Absolute { secure: false, host, port, path } => (request, host, port, path),
                RequestTarget::Absolute { .. } => {
                    return refuse_malformed(services, &guest, bad(400, "use CONNECT for https")).await;
                }
                _ => {
                    return refuse_malformed(services, &guest, bad(400, "send absolute URLs or CONNECT to a proxy"))
                        .await;
                }
            },
        };
        request.remove_upgrade_offer();
        let mut server = match kept.take() {
            Some(kept) if kept.host == host && kept.port == port && is_allowed(services, &kept.remote, &host) => kept,
            _ => match find_route(services, &guest, &host, port).await {
                Err(refusal) => return send_refusal(&guest, http_status(&refusal), &refusal.record(services)).await,
                Ok(ProxyRoute { remote, ruling: Some(ruling), stream: Some(stream) })
                    if is_allowed(services, &remote, &host) =>
                {
                    let flow = Flow::new(&services.gate, Proto::Tcp, remote.addr, GuestSocket::of(&guest));
                    flow.opened(&ruling);
                    KeptServer { host, port, remote, flow, stream, ahead: Vec::new() }
                }
                // Served, or refused with the reason, like a connection without a proxy.
                Ok(route) => {
                    let mut whole = origin_form(&request, &path)?;
                    whole.extend(bytes.drain(..).skip(request.consumed));
                    serve_route(services, guest, route, whole).await;
                    return Ok(());
                }
            },
        };
        bytes.drain(..request.consumed);
        let head = origin_form(&request, &path)?;
        let ahead = std::mem::take(&mut server.ahead);
        let mut server_stream = ServerStream { flow: &server.flow, stream: &server.stream, ahead };
        let exchanged = tokio::select! {
            exchanged = server_stream.exchange(&guest, &head, &request, &mut bytes) => exchanged,
            ruling = until_forbidden(services, &server.remote) => {
                server.flow.refused(&ruling);
                reset(&guest);
                return Ok(());
            }
        };
        match exchanged {
            Ok(AfterExchange::Again) => {
                let ahead = std::mem::take(&mut server_stream.ahead);
                server.ahead = ahead;
                kept = Some(server);
            }
            Ok(AfterExchange::Close) => return Ok(()),
            Ok(AfterExchange::Tunnel) => return server_stream.tunnel(&guest, bytes).await,
            Err(error) => {
                reset(&guest);
                return Err(error);
            }
        }
        next = next_head(services, &guest, &mut bytes, &mut kept).await?;
    }
    Ok(())
}

/// Reads the next request. The kept server is closed as soon as the rules forbid it.
async fn next_head(
    services: &Services,
    guest: &TcpStream,
    bytes: &mut Vec<u8>,
    kept: &mut Option<KeptServer>,
) -> Result<Option<Result<RequestHead, (u16, &'static str)>>, Error> {
    if let Some(server) = kept {
        tokio::select! {
            read = next_request(guest, bytes) => return read,
            ruling = until_forbidden(services, &server.remote) => server.flow.refused(&ruling),
        }
    }
    *kept = None;
    next_request(guest, bytes).await
}

async fn next_request(
    guest: &TcpStream,
    bytes: &mut Vec<u8>,
) -> Result<Option<Result<RequestHead, (u16, &'static str)>>, Error> {
    read_head(guest, bytes, http1::resume_proxied).await
}

async fn refuse_malformed(
    services: &Services,
    guest: &TcpStream,
    (status, ruling): (u16, Ruling),
) -> Result<(), Error> {
    let addr = SocketAddr::new(sys::doors::RESOLVER.into(), 0);
    let flow = Flow::new(&services.gate, Proto::Tcp, addr, GuestSocket::of(guest));
    forward::refuse(&flow, guest, status, &ruling).await
}

/// Returns true if requests for the host may go to this address. An open connection does not imply that: the address
/// may be allowed under another name.
fn is_allowed(services: &Services, remote: &Remote, host: &HostName) -> bool {
    matches!(services.gate.judge_named(remote, &host.to_string()), StreamDecision::Pass(_))
}

/// Waits until the rules forbid connections to `remote`.
async fn until_forbidden(services: &Services, remote: &Remote) -> Ruling {
    let mut state = services.gate.watch();
    loop {
        if let Some(ruling) = services.gate.judge_connect(remote).refusal() {
            return ruling;
        }
        if state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Builds the head that a server gets: the path alone, without fields meant for the proxy.
fn origin_form(request: &RequestHead, path: &str) -> Result<Vec<u8>, Error> {
    let mut fields = request.fields.clone();
    fields.remove("proxy-connection");
    fields.remove("proxy-authorization");
    if fields.get("host").is_none() {
        fields.add("host", request.host.to_string());
    }
    let head = http1::write_request(&request.method, path, &fields);
    let mut head = head.map_err(|unwritable| Error::new(ErrorKind::InvalidData, unwritable.0))?;
    if request.version == Version::Http10
        && let Some(at) = head.windows(2).position(|pair| pair == b"\r\n")
    {
        // A client of HTTP/1.0 must not get an answer in HTTP/1.1.
        head[at - 1] = b'0';
    }
    Ok(head)
}
