//! Clients that speak to us as to a proxy, by SOCKS5 or HTTP. They name their host themselves: it is resolved here under
//! the same rules, and what follows must be for that host and no other.

use crate::event::Socket;
use crate::flow::{Flow, read_more, reset, write_all};
use crate::forward::{self, After, Server, read_head, say};
use crate::gate::{Arrival, Place, Ruling, Verdict};
use crate::http1::{self, Request, Target, Version};
use crate::socks::{self, Socks, Status, Step};
use crate::tcp::{self, Talk, World, converse, dial, reason_of};
use policy::{HostName, Proto};
use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a client may take to say where it wants to go.
const HANDSHAKE: Duration = Duration::from_secs(30);
const MAX_SOCKS: usize = 1024;
/// Addresses of one name that are tried.
const MAX_TRIES: usize = 4;

/// Why a client of a proxy does not get its connection.
struct Refusal {
    addr: SocketAddr,
    socket: Option<Socket>,
    ruling: Ruling,
    /// Set when it may be reached and could not be.
    error: Option<Error>,
}

impl Refusal {
    /// Tells of it, and says what a client is to be told.
    fn tell(&self, world: &World) -> Ruling {
        let flow = Flow::new(&world.gate, Proto::Tcp, self.addr, self.socket);
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

/// Where a client of a proxy gets to. Without a stream, nobody may be called before its requests are read.
struct Reached {
    place: Place,
    ruling: Option<Ruling>,
    stream: Option<TcpStream>,
}

/// Resolves, judges and calls what a client named.
async fn reach(world: &World, guest: &TcpStream, host: &HostName, port: u16) -> Result<Reached, Refusal> {
    let socket = Socket::of(guest);
    let places = match host {
        HostName::Addr(addr) => vec![Place::at(SocketAddr::new(*addr, port), None)],
        HostName::Name(name) => {
            let addresses = world.names.addresses(name, socket).await.into_iter().take(MAX_TRIES);
            addresses.map(|addr| Place::at(SocketAddr::new(addr, port), Some(name.clone()))).collect()
        }
    };
    let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let ruling = world.gate.refusal(Some(&host.to_string()), "the name leads nowhere");
    let mut refusal = Refusal { addr: nowhere, socket, ruling, error: None };
    for mut place in places {
        let addr = place.addr;
        let ruling = match tcp::answered(&world.gate, &mut place, socket).await {
            Arrival::Wait => return Ok(Reached { place, ruling: None, stream: None }),
            Arrival::Refuse(ruling) | Arrival::Ask(_, ruling) => {
                refusal = Refusal { addr, socket, ruling, error: None };
                continue;
            }
            Arrival::Dial(ruling) => ruling,
        };
        match dial(world, addr).await {
            Ok(stream) => return Ok(Reached { place, ruling: Some(ruling), stream: Some(stream) }),
            Err(error) => refusal = Refusal { addr, socket, ruling, error: Some(error) },
        }
    }
    Err(refusal)
}

/// A client that speaks SOCKS5.
pub(crate) async fn socks(world: &Arc<World>, guest: TcpStream) {
    let mut bytes = Vec::new();
    let asked = timeout(HANDSHAKE, socks_request(&guest, &mut bytes)).await;
    let Ok(Ok(Some((host, port)))) = asked else { return };
    let (reply, reached) = match reach(world, &guest, &host, port).await {
        Ok(reached) => (socks::reply(Status::Succeeded, None), Some(reached)),
        Err(refusal) => {
            refusal.tell(world);
            (socks::reply(refusal.socks_status(), None), None)
        }
    };
    if write_all(&guest, &reply).await.is_err() {
        return;
    }
    if let Some(reached) = reached {
        go_on(world, guest, reached, bytes).await;
    }
}

/// Whom the client wants to reach; `None` when it was told that it cannot.
async fn socks_request(guest: &TcpStream, bytes: &mut Vec<u8>) -> Result<Option<(HostName, u16)>, Error> {
    let mut client = Socks::new();
    loop {
        match client.step(bytes) {
            Step::NeedMore => {
                if read_more(guest, bytes, MAX_SOCKS).await? == 0 {
                    return Ok(None);
                }
            }
            Step::Reply { bytes: reply, consumed } => {
                bytes.drain(..consumed);
                write_all(guest, &reply).await?;
            }
            Step::Connect { host, port, consumed } => {
                bytes.drain(..consumed);
                return Ok(Some((host, port)));
            }
            Step::Bad { reply, .. } => {
                write_all(guest, &reply).await?;
                return Ok(None);
            }
        }
    }
}

async fn go_on(world: &Arc<World>, guest: TcpStream, reached: Reached, bytes: Vec<u8>) {
    let mut talk = Talk::new(world, guest, reached.place);
    (talk.outside, talk.ruling) = (reached.stream, reached.ruling);
    converse(talk, bytes).await;
}

/// A client that speaks HTTP to a proxy: CONNECT, or requests with whole URLs.
pub(crate) async fn http(world: &Arc<World>, guest: TcpStream) {
    let mut bytes = Vec::new();
    let Ok(Ok(Some(request))) = timeout(HANDSHAKE, next_request(&guest, &mut bytes)).await else { return };
    match request {
        Ok(request) if request.method == "CONNECT" => connect(world, guest, request, bytes).await,
        // Whatever goes wrong, the client sees its connection end.
        first => drop(requests(world, guest, first, bytes).await),
    }
}

async fn connect(world: &Arc<World>, guest: TcpStream, request: Request, mut bytes: Vec<u8>) {
    bytes.drain(..request.consumed);
    let Target::Authority { host, port } = &request.target else { return };
    match reach(world, &guest, host, *port).await {
        Ok(reached) => {
            if write_all(&guest, b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_ok() {
                go_on(world, guest, reached, bytes).await;
            }
        }
        Err(refusal) => {
            let _ = say(&guest, http_status(&refusal), &refusal.tell(world)).await;
        }
    }
}

fn http_status(refusal: &Refusal) -> u16 {
    match refusal.error.as_ref().map(Error::kind) {
        None => 403,
        Some(ErrorKind::TimedOut) => 504,
        Some(_) => 502,
    }
}

/// A server that the last request went to.
struct Held {
    host: HostName,
    port: u16,
    place: Place,
    flow: Flow,
    stream: TcpStream,
    ahead: Vec<u8>,
}

/// Requests with whole URLs, each to the host it names.
async fn requests(
    world: &Arc<World>,
    guest: TcpStream,
    first: Result<Request, (u16, &'static str)>,
    mut bytes: Vec<u8>,
) -> Result<(), Error> {
    let mut held: Option<Held> = None;
    let mut next = Some(first);
    while let Some(read) = next {
        let bad = |status, reason| (status, world.gate.refusal(None, reason));
        let (mut request, host, port, path) = match read {
            Err((status, reason)) => return tell_bad(world, &guest, bad(status, reason)).await,
            Ok(request) => match request.target.clone() {
                Target::Absolute { secure: false, host, port, path } => (request, host, port, path),
                Target::Absolute { .. } => return tell_bad(world, &guest, bad(400, "https goes by CONNECT")).await,
                _ => return tell_bad(world, &guest, bad(400, "a proxy takes whole URLs and CONNECT")).await,
            },
        };
        request.take_back_offer();
        let mut server = match held.take() {
            Some(held) if held.host == host && held.port == port && passes(world, &held.place, &host) => held,
            _ => match reach(world, &guest, &host, port).await {
                Err(refusal) => return say(&guest, http_status(&refusal), &refusal.tell(world)).await,
                Ok(Reached { place, ruling: Some(ruling), stream: Some(stream) }) if passes(world, &place, &host) => {
                    let flow = Flow::new(&world.gate, Proto::Tcp, place.addr, Socket::of(&guest));
                    flow.opened(&ruling);
                    Held { host, port, place, flow, stream, ahead: Vec::new() }
                }
                // It is read on, or told why not, like one that came without a proxy.
                Ok(reached) => {
                    let mut whole = origin_form(&request, &path)?;
                    whole.extend(bytes.drain(..).skip(request.consumed));
                    go_on(world, guest, reached, whole).await;
                    return Ok(());
                }
            },
        };
        bytes.drain(..request.consumed);
        let head = origin_form(&request, &path)?;
        let ahead = std::mem::take(&mut server.ahead);
        let mut way = Server { flow: &server.flow, stream: &server.stream, ahead };
        let exchanged = tokio::select! {
            exchanged = way.exchange(&guest, &head, &request, &mut bytes) => exchanged,
            ruling = cut(world, &server.place) => {
                server.flow.refused(&ruling);
                reset(&guest);
                return Ok(());
            }
        };
        match exchanged {
            Ok(After::Again) => {
                let ahead = std::mem::take(&mut way.ahead);
                server.ahead = ahead;
                held = Some(server);
            }
            Ok(After::Close) => return Ok(()),
            Ok(After::Tunnel) => return way.tunnel(&guest, bytes).await,
            Err(error) => {
                reset(&guest);
                return Err(error);
            }
        }
        next = next_head(world, &guest, &mut bytes, &mut held).await?;
    }
    Ok(())
}

/// The next request. Meanwhile the server is held only as long as the rules let anything go there.
async fn next_head(
    world: &World,
    guest: &TcpStream,
    bytes: &mut Vec<u8>,
    held: &mut Option<Held>,
) -> Result<Option<Result<Request, (u16, &'static str)>>, Error> {
    if let Some(server) = held {
        tokio::select! {
            read = next_request(guest, bytes) => return read,
            ruling = cut(world, &server.place) => server.flow.refused(&ruling),
        }
    }
    *held = None;
    next_request(guest, bytes).await
}

async fn next_request(
    guest: &TcpStream,
    bytes: &mut Vec<u8>,
) -> Result<Option<Result<Request, (u16, &'static str)>>, Error> {
    read_head(guest, bytes, http1::resume_proxied).await
}

async fn tell_bad(world: &World, guest: &TcpStream, (status, ruling): (u16, Ruling)) -> Result<(), Error> {
    let addr = SocketAddr::new(sys::doors::RESOLVER.into(), 0);
    let flow = Flow::new(&world.gate, Proto::Tcp, addr, Socket::of(guest));
    forward::refuse(&flow, guest, status, &ruling).await
}

/// Whether requests for the host may go to the place. That somebody may go there does not say so: an address may be
/// open in another's name.
fn passes(world: &World, place: &Place, host: &HostName) -> bool {
    matches!(world.gate.named(place, &host.to_string()), Verdict::Pass(_))
}

/// Waits until the rules no longer let anything go there.
async fn cut(world: &World, place: &Place) -> Ruling {
    let mut state = world.gate.watch();
    loop {
        if let Some(ruling) = world.gate.arrive(place).against() {
            return ruling;
        }
        if state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The head as a server takes it: the path alone, and nothing that was for the proxy.
fn origin_form(request: &Request, path: &str) -> Result<Vec<u8>, Error> {
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
        // Whoever speaks the old version is not to be answered in the new one.
        head[at - 1] = b'0';
    }
    Ok(head)
}
