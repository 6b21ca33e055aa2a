//! Names: the guest's questions at the door, judged, and those that may be asked put to the resolvers of the host. Only
//! addresses are told, and only those that the name may lead to.

use crate::court::Court;
use crate::dns::{self, AnswerError, Kind, Question, Rcode};
use crate::event::{Event, Op, Socket, Stage};
use crate::flow::{Watched, read_more, write_all};
use crate::gate::{Asking, Gate, Ruling, Settled, name_matter};
use crate::upstream::{Resolvers, Upstream};
use policy::Proto;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::Action;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The longest that one question may take, however many resolvers there are: clients give up sooner.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// How long an answer is kept, and how long the guest may keep it.
const MAX_TTL: u32 = 300;
const MAX_KEPT: usize = 2048;
const MAX_MESSAGE: usize = 64 * 1024;
const STREAM_IDLE: Duration = Duration::from_secs(30);

/// How a question ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub rcode: Rcode,
    pub addresses: Vec<IpAddr>,
    ttl: u32,
}

impl Found {
    fn nothing(rcode: Rcode) -> Found {
        Found { rcode, addresses: Vec::new(), ttl: 0 }
    }
}

/// Addresses, and until when they hold.
type Kept = (Instant, Vec<IpAddr>);

pub(crate) struct Names {
    gate: Arc<Gate>,
    upstream: Upstream,
    kept: Mutex<BTreeMap<(String, Kind), Kept>>,
    /// One for each question that is worked on; those beyond wait at the door.
    slots: Arc<Semaphore>,
}

impl Names {
    pub fn new(gate: Arc<Gate>, upstream: Upstream, questions: usize) -> Names {
        Names { gate, upstream, kept: Mutex::default(), slots: Arc::new(Semaphore::new(questions)) }
    }

    /// Answers the questions that come to a door.
    pub async fn serve(self: Arc<Names>, door: OwnedFd, out: Arc<OwnedFd>) -> Result<(), Error> {
        let door = Watched::new(door)?;
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            let Ok(slot) = self.slots.clone().acquire_owned().await else { return Ok(()) };
            let came = door.next(|door| sys::net::receive_from(door, &mut buffer)).await?;
            let (names, out, message) = (self.clone(), out.clone(), buffer[..came.len].to_vec());
            let socket = Some(Socket { proto: Proto::Udp, own: came.peer, to: came.original });
            tokio::spawn(async move {
                if let Some(reply) = names.answer(&message, socket, dns::answer).await {
                    // A full queue loses it, as any network may; the client asks again.
                    let _ = sys::net::send_from(&out, came.original, came.peer, &reply);
                }
                drop(slot);
            });
        }
    }

    /// Answers the questions that come on a stream, one after the other.
    pub async fn serve_stream(&self, client: TcpStream) -> Result<(), Error> {
        let socket = Socket::of(&client);
        let mut bytes = Vec::new();
        loop {
            while bytes.len() < 2 || bytes.len() < 2 + message_len(&bytes) {
                let got = timeout(STREAM_IDLE, read_more(&client, &mut bytes, MAX_MESSAGE + 2)).await??;
                if got == 0 {
                    return Ok(());
                }
            }
            let rest = bytes.split_off(2 + message_len(&bytes));
            let message = std::mem::replace(&mut bytes, rest);
            let Some(reply) = self.answer(&message[2..], socket, dns::answer_on_stream).await else {
                return Ok(());
            };
            let mut framed = (reply.len() as u16).to_be_bytes().to_vec();
            framed.extend(reply);
            timeout(STREAM_IDLE, write_all(&client, &framed)).await??;
        }
    }

    async fn answer(
        &self,
        message: &[u8],
        socket: Option<Socket>,
        write: fn(&Question, Rcode, &[IpAddr], u32) -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        if !self.gate.spend(0, message.len() as u64) {
            return None;
        }
        let reply = match dns::parse_query(message) {
            Err(bad) => bad.reply?,
            Ok(question) => {
                let found = self.find(&question, socket).await;
                write(&question, found.rcode, &found.addresses, found.ttl)
            }
        };
        self.gate.spend(reply.len() as u64, 0).then_some(reply)
    }

    async fn find(&self, question: &Question, socket: Option<Socket>) -> Found {
        if !question.is_host {
            return Found::nothing(Rcode::Refused);
        }
        match question.kind {
            Kind::A | Kind::Aaaa => self.look_up(&question.name, question.kind, socket).await,
            // The name may be asked for; other things about it than addresses are not told.
            Kind::Other(_) => {
                let ruling = self.gate.resolve(&question.name);
                // One that somebody is asked about may turn out to be there.
                let is_there = ruling.allowed() || self.gate.can_ask(&ruling);
                Found::nothing(if is_there { Rcode::NoError } else { Rcode::NxDomain })
            }
        }
    }

    /// The addresses of a name that the guest may use, IPv4 first; `socket` asks.
    pub async fn addresses(&self, name: &str, socket: Option<Socket>) -> Vec<IpAddr> {
        let look_up = |kind| self.look_up(name, kind, socket);
        let (mut v4, v6) = tokio::join!(look_up(Kind::A), look_up(Kind::Aaaa));
        v4.addresses.extend(v6.addresses);
        v4.addresses
    }

    async fn look_up(&self, name: &str, kind: Kind, socket: Option<Socket>) -> Found {
        if let Some(own) = loopback(name, kind) {
            return own;
        }
        let tell = |ruling: &Ruling, stage| {
            let event = ruling.event(Op::Resolve, stage, Proto::Udp, None);
            self.gate.tell(Event { socket, run: self.gate.run_of(socket), ..event });
        };
        let ruling = self.answered(name, socket).await;
        if !ruling.allowed() {
            tell(&ruling, Stage::Refused);
            return self.gate.imagine(name).map_or_else(refused_name, |address| imagined(address, kind));
        }
        let (rcode, addresses, ttl) = match self.ask(name, kind).await {
            Ok(found) => found,
            Err(reason) => {
                tell(&Ruling { reason: Some(reason), ..ruling }, Stage::Failed);
                return Found::nothing(Rcode::ServFail);
            }
        };
        let some = !addresses.is_empty();
        let addresses = self.gate.pin(name, addresses);
        match some && addresses.is_empty() {
            // The name is there, and nowhere that it may lead to.
            true => {
                let reason = "it leads only to addresses that no rule covers";
                tell(&ruling.refused(reason), Stage::Refused);
            }
            false => tell(&ruling, Stage::Opened),
        }
        Found { rcode, addresses, ttl: ttl.min(MAX_TTL) }
    }

    /// Whether the name may be asked for, once a person has answered where one must be asked.
    async fn answered(&self, name: &str, socket: Option<Socket>) -> Ruling {
        loop {
            let ruling = self.gate.resolve(name);
            if !self.gate.can_ask(&ruling) {
                return ruling;
            }
            let asking = Asking { proto: Proto::Udp, address: None, socket, request: None };
            match self.gate.settle(&name_matter(&ruling.rule, name), &ruling, asking).await {
                Settled::Allowed => return Ruling { action: Action::Allow, hint: None, ..ruling },
                Settled::Refused(ruling) => return ruling,
                Settled::Changed => {}
            }
        }
    }

    /// What the host knows, what is still kept, or what a resolver says: outcome, addresses and for how long.
    async fn ask(&self, name: &str, kind: Kind) -> Result<(Rcode, Vec<IpAddr>, u32), String> {
        let (resolv, hosts) = self.upstream.now();
        let known = hosts.lookup(name);
        if !known.is_empty() {
            return Ok((Rcode::NoError, of_kind(&with_route(known), kind), 60));
        }
        if let Some((addresses, ttl)) = self.recall(name, kind) {
            return Ok((Rcode::NoError, addresses, ttl));
        }
        let answer = timeout(MAX_WAIT, ask_all(&resolv, name, kind)).await;
        let answer = answer.unwrap_or_else(|_| Err("the resolvers take too long".to_owned()))?;
        let addresses: Vec<IpAddr> = answer.addresses.into_iter().filter(has_route).collect();
        self.keep(name, kind, &addresses, answer.ttl);
        Ok((answer.rcode, addresses, answer.ttl))
    }

    fn recall(&self, name: &str, kind: Kind) -> Option<(Vec<IpAddr>, u32)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, addresses) = kept.get(&(name.to_owned(), kind))?;
        let left = until.checked_duration_since(Instant::now())?;
        Some((addresses.clone(), left.as_secs() as u32))
    }

    fn keep(&self, name: &str, kind: Kind, addresses: &[IpAddr], ttl: u32) {
        if addresses.is_empty() || ttl == 0 {
            return;
        }
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.retain(|_, (until, _)| *until > now);
        }
        if kept.len() >= MAX_KEPT {
            kept.pop_first();
        }
        let until = now + Duration::from_secs(ttl.min(MAX_TTL).into());
        kept.insert((name.to_owned(), kind), (until, addresses.to_vec()));
    }
}

/// Nothing else makes programs give up at once; "refused" makes them try again and again.
fn refused_name() -> Found {
    Found::nothing(Rcode::NxDomain)
}

fn imagined(address: IpAddr, kind: Kind) -> Found {
    Found { rcode: Rcode::NoError, addresses: of_kind(&[address], kind), ttl: MAX_TTL }
}

fn message_len(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The names of one's own machine lead the guest to itself, and nobody is asked for them.
fn loopback(name: &str, kind: Kind) -> Option<Found> {
    let own = name == "localhost" || name.ends_with(".localhost");
    let addresses = of_kind(&[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()], kind);
    own.then_some(Found { rcode: Rcode::NoError, addresses, ttl: MAX_TTL })
}

fn of_kind(addresses: &[IpAddr], kind: Kind) -> Vec<IpAddr> {
    addresses.iter().copied().filter(|addr| addr.is_ipv4() == (kind == Kind::A)).collect()
}

/// Those that this host has a way to; all, if it has none to any, so that the failure is about the way and not the name.
fn with_route(known: &[IpAddr]) -> Vec<IpAddr> {
    let found: Vec<IpAddr> = known.iter().copied().filter(has_route).collect();
    if found.is_empty() { known.to_vec() } else { found }
}

/// Whether this host has a way to an address. A door takes every connection, so a guest that tries IPv6 first would
/// never learn that it should have taken the other.
fn has_route(addr: &IpAddr) -> bool {
    let any: IpAddr = if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Nothing is sent: this only chooses the way.
    std::net::UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((*addr, 53))).is_ok()
}

/// Asks one resolver after the other, as often as the host's own configuration says.
async fn ask_all(resolv: &Resolvers, name: &str, kind: Kind) -> Result<dns::Answer, String> {
    let mut last = "there is no resolver".to_owned();
    for _ in 0..resolv.attempts {
        for server in &resolv.servers {
            match timeout(resolv.timeout, ask_one(*server, name, kind)).await {
                Ok(Ok(answer)) if matches!(answer.rcode, Rcode::NoError | Rcode::NxDomain) => return Ok(answer),
                Ok(Ok(answer)) => last = format!("the resolver answers {:?}", answer.rcode),
                Ok(Err(error)) => last = format!("the resolver cannot be asked: {error}"),
                Err(_) => last = "the resolver does not answer".to_owned(),
            }
        }
    }
    Err(last)
}

/// One question in a datagram, with a number and a port that nobody can guess; on a stream if the answer is too long.
async fn ask_one(server: SocketAddr, name: &str, kind: Kind) -> Result<dns::Answer, Error> {
    let id = random_id()?;
    let query = dns::query(id, name, kind).ok_or(ErrorKind::InvalidInput)?;
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let len = socket.recv(&mut buffer).await?;
        match dns::parse_answer(&buffer[..len], id, name, kind) {
            Ok(answer) if answer.truncated => return ask_on_stream(server, name, kind).await,
            Ok(answer) => return Ok(answer),
            Err(AnswerError::NotOurs(_)) => {}
            Err(AnswerError::Bad(reason)) => return Err(Error::new(ErrorKind::InvalidData, reason)),
        }
    }
}

async fn ask_on_stream(server: SocketAddr, name: &str, kind: Kind) -> Result<dns::Answer, Error> {
    let id = random_id()?;
    let query = dns::query(id, name, kind).ok_or(ErrorKind::InvalidInput)?;
    let mut stream = TcpStream::connect(server).await?;
    let mut framed = (query.len() as u16).to_be_bytes().to_vec();
    framed.extend(query);
    stream.write_all(&framed).await?;
    let len = stream.read_u16().await?;
    let mut message = vec![0; len.into()];
    stream.read_exact(&mut message).await?;
    match dns::parse_answer(&message, id, name, kind) {
        Ok(answer) if !answer.truncated => Ok(answer),
        _ => Err(Error::new(ErrorKind::InvalidData, "the answer cannot be read")),
    }
}

fn random_id() -> Result<u16, Error> {
    let mut bytes = [0; 2];
    match getrandom(&mut bytes, GetRandomFlags::empty())? {
        2 => Ok(u16::from_ne_bytes(bytes)),
        _ => Err(ErrorKind::WouldBlock.into()),
    }
}
