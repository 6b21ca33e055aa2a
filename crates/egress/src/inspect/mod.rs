//! The request inspector: reads the guest's requests one by one where rules have methods, paths or secrets.
//!
//! ```text
//! guest ── TLS with a leaf of its CA ──▶ http1 or http2 ── judged, secrets injected ──▶ TLS ── server
//!       ◀── secrets masked ──────────────────────────────────────────────────────────────────────
//! ```
//!
//! The server is dialed first, and the guest gets the protocol that the server chose in ALPN, so that requests need no
//! translation. Ambiguous input is refused; refusals are answered wherever the protocol has a way to do so.

mod headers;
mod http1;
mod http2;
mod judged_request;
mod refusal;
mod secrets;
mod stream;
mod tls;
mod websocket;
mod websocket_relay;

pub use tls::{InspectorSettings, Tls};

use crate::event::{Event, EventStage, Op};
use crate::first_bytes::HTTP2_PREFACE as PREFACE;
use crate::hello::{self, Hello};
use crate::request_judge::{Destination, RequestJudge};
use policy::{Action, HostName, Proto};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stream::{ByteStream, Io, Prefixed};
use tls::{Protocol, UpstreamError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;

/// Rule label of events that no rule decided.
const NO_RULE: &str = "defaults.net";
const TOO_MANY: &str = "too many connections with HTTP/2 are open";
/// Time limit for a client to take a final message.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_OPENING: usize = hello::MAX_HELLO;

/// Serves one connection of the guest until it ends. Dropping the future closes it at once.
pub async fn serve<S>(client: S, first: Vec<u8>, to: Destination, judge: Arc<dyn RequestJudge>, tls: Arc<Tls>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let guest: Io = Box::new(client);
    match open(guest, first, &tls).await {
        Some((guest, first, ClientProtocol::Tls(client))) => serve_tls(guest, first, client, to, judge, tls).await,
        Some((guest, first, ClientProtocol::Plain(protocol))) => {
            let mut session = Session::new(&to, judge, tls);
            let slot = (protocol == Protocol::Http2).then(|| session.tls.http2_slot());
            if let Some(None) = slot {
                return session.refuse_unread(Op::Connect, None, TOO_MANY);
            }
            session.hosts = names(&to).chain([HostName::Addr(to.addr.ip().to_canonical())]).collect();
            let guest = Box::new(Prefixed::new(first, guest));
            Arc::new(session).speak(protocol, guest, None).await;
        }
        Some((guest, _, ClientProtocol::Broken(reason))) => {
            Session::new(&to, judge, tls).refuse_unread(Op::Connect, None, reason);
            alert(guest, DECODE_ERROR).await;
        }
        None => {}
    }
}

/// State shared by all requests of one connection.
struct Session {
    judge: Arc<dyn RequestJudge>,
    tls: Arc<Tls>,
    addr: SocketAddr,
    /// Hosts that requests may be for.
    hosts: Vec<HostName>,
    /// Name or address that the server's certificate must prove; set for TLS only.
    server_name: Option<ServerName<'static>>,
}

/// Protocol with which a client begins.
enum ClientProtocol {
    Tls(hello::ClientHello),
    Plain(Protocol),
    Broken(&'static str),
}

/// Reads until the protocol is known. Returns `None` if the client disconnects or times out before.
async fn open(mut guest: Io, mut first: Vec<u8>, tls: &Tls) -> Option<(Io, Vec<u8>, ClientProtocol)> {
    let reading = async {
        loop {
            match hello::read(&first) {
                Hello::Client(client) => return Some(ClientProtocol::Tls(client)),
                Hello::Bad(reason) => return Some(ClientProtocol::Broken(reason)),
                Hello::NotTls if first.starts_with(PREFACE) => return Some(ClientProtocol::Plain(Protocol::Http2)),
                Hello::NotTls if !PREFACE.starts_with(&first) => return Some(ClientProtocol::Plain(Protocol::Http1)),
                _ if first.len() >= MAX_OPENING => {
                    return Some(ClientProtocol::Broken("the client sends neither TLS nor HTTP"));
                }
                _ => {}
            }
            if guest.read_buf(&mut first).await.ok()? == 0 {
                return None;
            }
        }
    };
    let opening = timeout(tls.settings.head, reading).await.ok()??;
    Some((guest, first, opening))
}

async fn serve_tls(
    guest: Io,
    first: Vec<u8>,
    client: hello::ClientHello,
    to: Destination,
    judge: Arc<dyn RequestJudge>,
    tls: Arc<Tls>,
) {
    let mut session = Session::new(&to, judge, tls);
    let protocols: Vec<Protocol> =
        Protocol::ALL.into_iter().filter(|p| client.alpn.iter().any(|name| name == p.name())).collect();
    let name = match identity(&client, &to) {
        Ok(identity) => {
            session.server_name = Some(identity.server_name);
            session.hosts = identity.hosts;
            identity.name
        }
        Err(reason) => {
            session.refuse_unread(Op::Connect, client.sni, &reason);
            return alert(guest, UNRECOGNIZED_NAME).await;
        }
    };
    if protocols.is_empty() && !client.alpn.is_empty() {
        session.refuse_unread(Op::Connect, name, "the client offers no protocol that can be inspected");
        return alert(guest, NO_APPLICATION_PROTOCOL).await;
    }
    session.complete_handshake(guest, first, name, client.sni.is_none(), &protocols).await;
}

/// Identity of the server in a TLS connection, as the rules allow it.
struct Identity {
    name: Option<String>,
    /// Name or address that the server's certificate must prove.
    server_name: ServerName<'static>,
    /// Hosts that requests may be for.
    hosts: Vec<HostName>,
}

fn identity(client: &hello::ClientHello, to: &Destination) -> Result<Identity, String> {
    let address = HostName::Addr(to.addr.ip().to_canonical());
    let names: Vec<String> =
        names(to).filter_map(|name| if let HostName::Name(n) = name { Some(n) } else { None }).collect();
    let (name, hosts) = match (&client.sni, names.as_slice()) {
        (Some(sni), names) if names.contains(sni) => (sni, vec![HostName::Name(sni.clone())]),
        (Some(sni), _) => return Err(format!("the client asks for {sni}, which is not allowed at {}", to.addr)),
        (None, [name]) => (name, vec![HostName::Name(name.clone()), address]),
        (None, []) => {
            let server_name = ServerName::from(to.addr.ip());
            return Ok(Identity { name: None, server_name, hosts: vec![address] });
        }
        (None, _) => return Err("the client names no server, and several are allowed at this address".to_owned()),
    };
    let server_name =
        ServerName::try_from(name.clone()).map_err(|_| format!("no certificate can be made for {name}"))?;
    Ok(Identity { name: Some(name.clone()), server_name, hosts })
}

fn names(to: &Destination) -> impl Iterator<Item = HostName> {
    to.names.iter().filter_map(|name| HostName::parse(name).ok())
}

impl Session {
    fn new(to: &Destination, judge: Arc<dyn RequestJudge>, tls: Arc<Tls>) -> Session {
        Session { judge, tls, addr: to.addr, hosts: Vec::new(), server_name: None }
    }

    fn is_secure(&self) -> bool {
        self.server_name.is_some()
    }

    /// Dials the server, then completes the guest's TLS handshake with the protocol that the server chose. If the
    /// server cannot be reached, the guest gets that error in response to each of its requests.
    async fn complete_handshake(
        self,
        guest: Io,
        first: Vec<u8>,
        name: Option<String>,
        with_address: bool,
        protocols: &[Protocol],
    ) {
        let addr = Some(self.addr.ip().to_canonical()).filter(|_| with_address);
        let leaf = match self.tls.leaf(name.as_deref(), addr) {
            Ok(leaf) => leaf,
            Err(fault) => return self.handshake_failed(name, fault.message, None),
        };
        let slot = protocols.contains(&Protocol::Http2).then(|| self.tls.http2_slot()).flatten();
        let protocols = match (slot.is_some(), protocols) {
            // Without a free HTTP/2 slot, clients that also offer HTTP/1.1 get that.
            (false, [Protocol::Http2, rest @ ..]) if !rest.is_empty() => rest,
            (_, protocols) => protocols,
        };
        let upstream = match (slot.is_some(), protocols) {
            (false, [Protocol::Http2]) => Err(UpstreamError(TOO_MANY.to_owned())),
            _ => self.dial(protocols).await,
        };
        let chosen = match &upstream {
            Ok((_, chosen)) => *chosen,
            Err(_) if protocols == [Protocol::Http2] => Protocol::Http2,
            Err(_) => Protocol::Http1,
        };
        let offered = protocols.contains(&chosen).then_some(chosen);
        let _slot = slot.filter(|_| chosen == Protocol::Http2);
        match self.tls.accept(Prefixed::new(first, guest), leaf, offered).await {
            Ok(guest) => Arc::new(self).speak(chosen, guest, Some(upstream.map(|(server, _)| server))).await,
            Err(error) => {
                let hint = "the program may not trust the certificate authority of the sandbox";
                self.handshake_failed(name, format!("TLS with the client failed: {error}"), Some(hint));
            }
        }
    }

    /// Dials the server; with TLS, it may choose among the protocols.
    async fn dial(&self, protocols: &[Protocol]) -> Result<(Io, Protocol), UpstreamError> {
        match &self.server_name {
            Some(name) => {
                let (server, chosen) = self.tls.connect(self.addr, name.clone(), protocols, &self.judge).await?;
                match protocols.is_empty() || protocols.contains(&chosen) {
                    true => Ok((server, chosen)),
                    false => Err(UpstreamError("the server speaks no protocol that the client speaks".to_owned())),
                }
            }
            None => Ok((self.tls.dial(self.addr, &self.judge).await?, Protocol::Http1)),
        }
    }

    async fn speak(self: Arc<Session>, protocol: Protocol, guest: Io, server: Option<Result<Io, UpstreamError>>) {
        match protocol {
            Protocol::Http1 => http1::run(self, guest, server).await,
            Protocol::Http2 => http2::run(self, guest, server).await,
        }
    }

    fn handshake_failed(&self, name: Option<String>, reason: String, hint: Option<&str>) {
        self.judge.record(Event {
            op: Op::Connect,
            stage: EventStage::Failed,
            action: Action::Allow,
            rule: NO_RULE.to_owned(),
            revision: self.judge.revision(),
            proto: Proto::Tcp,
            name,
            address: Some(self.addr),
            method: None,
            path: None,
            bytes_in: 0,
            bytes_out: 0,
            reason: Some(reason),
            hint: hint.map(str::to_owned),
            socket: None,
            actor: None,
            run: None,
        });
    }
}

const DECODE_ERROR: u8 = 50;
const UNRECOGNIZED_NAME: u8 = 112;
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Refuses a client with a TLS alert after its ClientHello.
async fn alert(mut guest: Io, description: u8) {
    const FATAL: u8 = 2;
    let telling = async {
        guest.write_all(&[21, 3, 3, 0, 2, FATAL, description]).await?;
        guest.flush().await
    };
    if let Ok(Ok(())) = timeout(LAST_MESSAGE_TIMEOUT, telling).await {
        linger(&mut guest).await;
    }
}

/// Closes so that the last bytes arrive: closing a socket with unread bytes would send a reset.
async fn linger(guest: &mut (impl ByteStream + ?Sized)) {
    const MOST: usize = 256 * 1024;
    let draining = async {
        let _ = guest.shutdown().await;
        let (mut sink, mut left) = (vec![0; 16 * 1024], MOST);
        while left > 0 {
            match guest.read(&mut sink).await {
                Ok(0) | Err(_) => return,
                Ok(len) => left = left.saturating_sub(len),
            }
        }
    };
    let _ = timeout(LAST_MESSAGE_TIMEOUT, draining).await;
}
