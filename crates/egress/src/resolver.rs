//! DNS resolver for the guest: its queries are judged, and allowed ones are sent to the host's resolvers. Only
//! addresses are returned, and only those that the rules accept for the name.

use crate::approval::AskedAccess;
use crate::dns::{self, Query, Rcode, RecordType, ResponseError};
use crate::event::{Event, EventStage, GuestSocket, Op};
use crate::flow::{ReadableFd, read_more, write_all};
use crate::gate::{ApprovalOutcome, Gate, QuestionContext, Ruling};
use crate::request_judge::RequestJudge;
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

/// Upper bound on one lookup over all resolvers; clients give up sooner.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Upper bound in seconds on the cache time here and on the TTL given to the guest.
const MAX_TTL: u32 = 300;
const MAX_CACHED: usize = 2048;
const MAX_MESSAGE: usize = 64 * 1024;
const STREAM_IDLE: Duration = Duration::from_secs(30);

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    pub rcode: Rcode,
    pub addresses: Vec<IpAddr>,
    pub ttl: u32,
}

impl Lookup {
    fn nothing(rcode: Rcode) -> Lookup {
        Lookup { rcode, addresses: Vec::new(), ttl: 0 }
    }
}

/// Expiry time and addresses.
type CacheEntry = (Instant, Vec<IpAddr>);

pub(crate) struct Resolver {
    gate: Arc<Gate>,
    upstream: Upstream,
    cache: Mutex<BTreeMap<(String, RecordType), CacheEntry>>,
    /// A permit per query in progress; queries beyond the limit wait in the socket's buffer.
    slots: Arc<Semaphore>,
}

impl Resolver {
    pub fn new(gate: Arc<Gate>, upstream: Upstream, dns_queries: usize) -> Resolver {
        Resolver { gate, upstream, cache: Mutex::default(), slots: Arc::new(Semaphore::new(dns_queries)) }
    }

    /// Answers the queries that reach a door over UDP.
    pub async fn serve(self: Arc<Resolver>, door: OwnedFd, out: Arc<OwnedFd>) -> Result<(), Error> {
        let door = ReadableFd::new(door)?;
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            let Ok(slot) = self.slots.clone().acquire_owned().await else { return Ok(()) };
            let datagram = door.next(|door| sys::net::receive_from(door, &mut buffer)).await?;
            let (resolver, out, message) = (self.clone(), out.clone(), buffer[..datagram.len].to_vec());
            let socket = Some(GuestSocket { proto: Proto::Udp, own: datagram.peer, to: datagram.original });
            tokio::spawn(async move {
                if let Some(reply) = resolver.answer(&message, socket, dns::udp_reply).await {
                    // Dropped if the queue is full, as on any network; the client retries.
                    let _ = sys::net::send_from(&out, datagram.original, datagram.peer, &reply);
                }
                drop(slot);
            });
        }
    }

    /// Answers DNS queries over TCP, one after the other.
    pub async fn serve_stream(&self, client: TcpStream) -> Result<(), Error> {
        let socket = GuestSocket::of(&client);
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
            let Some(reply) = self.answer(&message[2..], socket, dns::tcp_reply).await else {
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
        socket: Option<GuestSocket>,
        write: fn(&Query, Rcode, &[IpAddr], u32) -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        if !self.gate.count_bytes(0, message.len() as u64) {
            return None;
        }
        let reply = match dns::parse_query(message) {
            Err(bad) => bad.reply?,
            Ok(query) => {
                let lookup = self.resolve(&query, socket).await;
                write(&query, lookup.rcode, &lookup.addresses, lookup.ttl)
            }
        };
        self.gate.count_bytes(reply.len() as u64, 0).then_some(reply)
    }

    async fn resolve(&self, query: &Query, socket: Option<GuestSocket>) -> Lookup {
        if !query.is_host {
            return Lookup::nothing(Rcode::Refused);
        }
        match query.record_type {
            RecordType::A | RecordType::Aaaa => self.look_up(&query.name, query.record_type, socket).await,
            // Only the existence of the name is revealed; records other than addresses are not looked up.
            RecordType::Other(_) => {
                let ruling = self.gate.judge_name(&query.name);
                // A name that a person may still approve counts as existing.
                let is_there = ruling.allowed() || self.gate.can_ask(&ruling);
                Lookup::nothing(if is_there { Rcode::NoError } else { Rcode::NxDomain })
            }
        }
    }

    /// Returns the addresses of a name that the guest may use, IPv4 first. `socket` is the guest's socket, for events.
    pub async fn addresses(&self, name: &str, socket: Option<GuestSocket>) -> Vec<IpAddr> {
        let look_up = |record_type| self.look_up(name, record_type, socket);
        let (mut v4, v6) = tokio::join!(look_up(RecordType::A), look_up(RecordType::Aaaa));
        v4.addresses.extend(v6.addresses);
        v4.addresses
    }

    async fn look_up(&self, name: &str, record_type: RecordType, socket: Option<GuestSocket>) -> Lookup {
        if let Some(own) = loopback(name, record_type) {
            return own;
        }
        let record = |ruling: &Ruling, stage| {
            let event = ruling.event(Op::Resolve, stage, Proto::Udp, None);
            self.gate.record(Event { socket, run: self.gate.run_of(socket), ..event });
        };
        let ruling = self.judge_with_approval(name, socket).await;
        if !ruling.allowed() {
            record(&ruling, EventStage::Refused);
            return self.gate.fake_address(name).map_or_else(refused_name, |address| fake_lookup(address, record_type));
        }
        let (rcode, addresses, ttl) = match self.look_up_upstream(name, record_type).await {
            Ok(lookup) => lookup,
            Err(reason) => {
                record(&Ruling { reason: Some(reason), ..ruling }, EventStage::Failed);
                return Lookup::nothing(Rcode::ServFail);
            }
        };
        let found = addresses.clone();
        let addresses = self.gate.pin(name, addresses);
        match !found.is_empty() && addresses.is_empty() {
            // The name exists, and the rules accept none of its addresses.
            true => record(&self.gate.uncovered(ruling, name, &found), EventStage::Refused),
            false => record(&ruling, EventStage::Opened),
        }
        Lookup { rcode, addresses, ttl: ttl.min(MAX_TTL) }
    }

    /// Judges a name, and awaits a person's answer if the rule says `ask`.
    async fn judge_with_approval(&self, name: &str, socket: Option<GuestSocket>) -> Ruling {
        loop {
            let ruling = self.gate.judge_name(name);
            if !self.gate.can_ask(&ruling) {
                return ruling;
            }
            let context = QuestionContext { proto: Proto::Udp, address: None, socket, request: None };
            match self.gate.await_approval(&AskedAccess::resolve(&ruling.rule, name), &ruling, context).await {
                ApprovalOutcome::Approved => return Ruling { action: Action::Allow, hint: None, ..ruling },
                ApprovalOutcome::Refused(ruling) => return ruling,
                ApprovalOutcome::Changed => {}
            }
        }
    }

    /// Looks a name up in the hosts table, the cache, and at the resolvers. Returns response code, addresses and TTL.
    async fn look_up_upstream(&self, name: &str, record_type: RecordType) -> Result<(Rcode, Vec<IpAddr>, u32), String> {
        let (resolv, hosts) = self.upstream.now();
        let known = hosts.lookup(name);
        if !known.is_empty() {
            return Ok((Rcode::NoError, of_type(&with_route(known), record_type), 60));
        }
        if let Some((addresses, ttl)) = self.cached(name, record_type) {
            return Ok((Rcode::NoError, addresses, ttl));
        }
        let answer = timeout(MAX_WAIT, query_resolvers(&resolv, name, record_type)).await;
        let answer = answer.unwrap_or_else(|_| Err("the resolvers take too long".to_owned()))?;
        let addresses: Vec<IpAddr> = answer.addresses.into_iter().filter(has_route).collect();
        self.store(name, record_type, &addresses, answer.ttl);
        Ok((answer.rcode, addresses, answer.ttl))
    }

    fn cached(&self, name: &str, record_type: RecordType) -> Option<(Vec<IpAddr>, u32)> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, addresses) = cache.get(&(name.to_owned(), record_type))?;
        let left = until.checked_duration_since(Instant::now())?;
        Some((addresses.clone(), left.as_secs() as u32))
    }

    fn store(&self, name: &str, record_type: RecordType, addresses: &[IpAddr], ttl: u32) {
        if addresses.is_empty() || ttl == 0 {
            return;
        }
        let now = Instant::now();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.retain(|_, (until, _)| *until > now);
        }
        if cache.len() >= MAX_CACHED {
            cache.pop_first();
        }
        let until = now + Duration::from_secs(ttl.min(MAX_TTL).into());
        cache.insert((name.to_owned(), record_type), (until, addresses.to_vec()));
    }
}

/// Answers NXDOMAIN for a refused name: programs give up at once, whereas REFUSED makes them retry.
fn refused_name() -> Lookup {
    Lookup::nothing(Rcode::NxDomain)
}

fn fake_lookup(address: IpAddr, record_type: RecordType) -> Lookup {
    Lookup { rcode: Rcode::NoError, addresses: of_type(&[address], record_type), ttl: MAX_TTL }
}

fn message_len(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Answers `localhost` names with the guest's own loopback, without a query.
pub(crate) fn loopback(name: &str, record_type: RecordType) -> Option<Lookup> {
    let own = name == "localhost" || name.ends_with(".localhost");
    let addresses = of_type(&[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()], record_type);
    own.then_some(Lookup { rcode: Rcode::NoError, addresses, ttl: MAX_TTL })
}

fn of_type(addresses: &[IpAddr], record_type: RecordType) -> Vec<IpAddr> {
    addresses.iter().copied().filter(|addr| addr.is_ipv4() == (record_type == RecordType::A)).collect()
}

/// Keeps the addresses that this host has a route to. Without a route to any it keeps all, so that the failure is one
/// of routing and not of the name.
fn with_route(known: &[IpAddr]) -> Vec<IpAddr> {
    let lookup: Vec<IpAddr> = known.iter().copied().filter(has_route).collect();
    if lookup.is_empty() { known.to_vec() } else { lookup }
}

/// Returns true if this host has a route to an address. Without this filter a guest that prefers IPv6 would try
/// addresses that this host cannot reach.
fn has_route(addr: &IpAddr) -> bool {
    let any: IpAddr = if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // `connect` on a UDP socket sends nothing; it only selects a route.
    std::net::UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((*addr, 53))).is_ok()
}

/// Queries the resolvers in turn, with the timeout and attempts of the host's configuration.
async fn query_resolvers(resolv: &Resolvers, name: &str, record_type: RecordType) -> Result<dns::Response, String> {
    let mut last = "no resolver is configured".to_owned();
    for _ in 0..resolv.attempts {
        for server in &resolv.servers {
            match timeout(resolv.timeout, query_udp(*server, name, record_type)).await {
                Ok(Ok(answer)) if matches!(answer.rcode, Rcode::NoError | Rcode::NxDomain) => return Ok(answer),
                Ok(Ok(answer)) => last = format!("the resolver answers {:?}", answer.rcode),
                Ok(Err(error)) => last = format!("cannot query the resolver: {error}"),
                Err(_) => last = "the resolver does not answer".to_owned(),
            }
        }
    }
    Err(last)
}

/// Sends one query over UDP, with an unpredictable id and source port; repeats it over TCP if the response is
/// truncated.
async fn query_udp(server: SocketAddr, name: &str, record_type: RecordType) -> Result<dns::Response, Error> {
    let id = random_id()?;
    let query = dns::build_query(id, name, record_type).ok_or(ErrorKind::InvalidInput)?;
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let len = socket.recv(&mut buffer).await?;
        match dns::parse_response(&buffer[..len], id, name, record_type) {
            Ok(answer) if answer.truncated => return query_tcp(server, name, record_type).await,
            Ok(answer) => return Ok(answer),
            Err(ResponseError::NotOurs(_)) => {}
            Err(ResponseError::Bad(reason)) => return Err(Error::new(ErrorKind::InvalidData, reason)),
        }
    }
}

async fn query_tcp(server: SocketAddr, name: &str, record_type: RecordType) -> Result<dns::Response, Error> {
    let id = random_id()?;
    let query = dns::build_query(id, name, record_type).ok_or(ErrorKind::InvalidInput)?;
    let mut stream = TcpStream::connect(server).await?;
    let mut framed = (query.len() as u16).to_be_bytes().to_vec();
    framed.extend(query);
    stream.write_all(&framed).await?;
    let len = stream.read_u16().await?;
    let mut message = vec![0; len.into()];
    stream.read_exact(&mut message).await?;
    match dns::parse_response(&message, id, name, record_type) {
        Ok(answer) if !answer.truncated => Ok(answer),
        _ => Err(Error::new(ErrorKind::InvalidData, "the response over TCP is malformed or truncated")),
    }
}

fn random_id() -> Result<u16, Error> {
    let mut bytes = [0; 2];
    match getrandom(&mut bytes, GetRandomFlags::empty())? {
        2 => Ok(u16::from_ne_bytes(bytes)),
        _ => Err(ErrorKind::WouldBlock.into()),
    }
}
