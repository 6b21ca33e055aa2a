//! Datagrams of the guest, and its echo requests. Each pair of the guest's end and the place it sends to is a flow with a
//! socket of its own outside, so that answers find their way back; it ends when nothing passes for a while.

use crate::asks::{Leave, Matter};
use crate::event::Socket;
use crate::flow::{Flow, Watched, Way, with_scratch};
use crate::gate::{Asking, Gate, Ruling, Settled};
use policy::Proto;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sys::knock::Echo;
use tokio::net::UdpSocket;
use tokio::task::coop::consume_budget;

const MAX_DATAGRAM: usize = 64 * 1024;
/// A program that goes on sending to where it may not is told of each time, and we tell of it this often.
const TELL_EVERY: Duration = Duration::from_secs(10);
const MAX_REFUSED: usize = 1024;
/// Flows that wait for a person's answer.
const MAX_ASKING: usize = 64;

/// Echo requests that go out in a second, and at once after a while without.
const ECHO_EVERY: Duration = Duration::from_millis(10);
const ECHOES_AT_ONCE: u32 = 100;
/// Echo requests of one flow that may be answered still.
const MAX_ASKED: usize = 64;

/// The guest's end, and where it sends to.
type Key = (SocketAddr, SocketAddr);

/// The datagrams of one door, or the echo requests.
pub(crate) struct Datagrams {
    gate: Arc<Gate>,
    proto: Proto,
    out: Arc<OwnedFd>,
    idle: Duration,
    /// How many there may be at once.
    most: usize,
    exchanges: Mutex<BTreeMap<Key, Arc<Exchange>>>,
    refused: Mutex<BTreeMap<Key, Instant>>,
    /// Flows that wait for a person's answer.
    asking: Mutex<BTreeSet<Key>>,
    /// When echo requests that are sent now would all be due.
    pace: Mutex<Instant>,
}

/// One flow.
struct Exchange {
    key: Key,
    place: SocketAddr,
    flow: Flow,
    socket: UdpSocket,
    used: Mutex<Instant>,
    /// Echo requests that were not answered: their numbers, and what stands for their payloads.
    asked: Mutex<VecDeque<(u16, u64)>>,
    /// What a person let it through with.
    leave: Leave,
}

/// What becomes of the first datagram of a flow.
enum Opened {
    Flow(Arc<Exchange>),
    /// A person is asked; until then it is lost, and its sender is told nothing.
    Held,
    Refused,
}

impl Datagrams {
    /// `proto` says whether they are datagrams or echo requests.
    pub fn new(gate: Arc<Gate>, proto: Proto, out: Arc<OwnedFd>, idle: Duration, most: usize) -> Arc<Datagrams> {
        let (exchanges, refused, asking) = (Mutex::default(), Mutex::default(), Mutex::default());
        let pace = Mutex::new(Instant::now());
        Arc::new(Datagrams { gate, proto, out, idle, most, exchanges, refused, asking, pace })
    }

    /// Passes on an echo request, unless too many come.
    pub fn echo(self: &Arc<Datagrams>, echo: &Echo) {
        if !self.is_in_time() {
            return;
        }
        // Programs that ask are told apart by their ids as others are by their ports.
        let key = (SocketAddr::new(echo.from, echo.id), SocketAddr::new(echo.to, 0));
        let known = self.exchanges().get(&key).cloned();
        if let Opened::Flow(exchange) = known.map_or_else(|| self.open(key), Opened::Flow) {
            let mut asked = exchange.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.push_back((echo.sequence, stand_in(&echo.payload)));
            if asked.len() > MAX_ASKED {
                asked.pop_front();
            }
            drop(asked);
            exchange.send(&echo.request());
        }
    }

    fn is_in_time(&self) -> bool {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        *pace = now.max(*pace);
        let in_time = pace.duration_since(now) < ECHO_EVERY * ECHOES_AT_ONCE;
        if in_time {
            *pace += ECHO_EVERY;
        }
        in_time
    }

    /// Takes the datagrams that come to the door.
    pub async fn serve(self: Arc<Datagrams>, door: OwnedFd) -> Result<(), Error> {
        let door = Watched::new(door)?;
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            let came = door.next(|door| sys::net::receive_from(door, &mut buffer)).await?;
            let key = (came.peer, came.original);
            let known = self.exchanges().get(&key).cloned();
            match known.map_or_else(|| self.open(key), Opened::Flow) {
                Opened::Flow(exchange) => exchange.send(&buffer[..came.len]),
                Opened::Held => {}
                Opened::Refused => drop(sys::net::refuse_from(&self.out, key.1, key.0)),
            }
            // A guest that sends without end would keep the thread for itself.
            consume_budget().await;
        }
    }

    /// A new flow, if one may be.
    fn open(self: &Arc<Datagrams>, key: Key) -> Opened {
        let place = SocketAddr::new(key.1.ip().to_canonical(), key.1.port());
        // Who sends echo requests cannot be told: such sockets have no ends that could be looked for.
        let socket = Socket { proto: self.proto, own: key.0, to: key.1 };
        let socket = Some(socket).filter(|_| self.proto == Proto::Udp);
        let flow = Flow::new(&self.gate, self.proto, place, socket);
        let (ruling, matter) = self.gate.datagrams(self.proto, place, &Leave::default());
        if !ruling.allowed() {
            let Some(matter) = matter else {
                self.tell_refused(key, &flow, &ruling);
                return Opened::Refused;
            };
            self.ask(key, flow, matter, ruling);
            return Opened::Held;
        }
        if self.exchanges().len() >= self.most {
            self.tell_refused(key, &flow, &ruling.refused("there are too many flows of datagrams"));
            return Opened::Refused;
        }
        let socket = match if self.proto == Proto::Icmp { echoing(place) } else { connected(place) } {
            Ok(socket) => socket,
            Err(error) => {
                flow.failed(&ruling, crate::tcp::reason_of(&error));
                return Opened::Refused;
            }
        };
        flow.opened(&ruling);
        let used = Mutex::new(Instant::now());
        // What was answered for a while is its own from here on.
        let mut leave = Leave::default();
        matter.into_iter().for_each(|matter| leave.add(matter));
        let exchange = Arc::new(Exchange { key, place, flow, socket, used, asked: Mutex::default(), leave });
        self.exchanges().insert(key, exchange.clone());
        tokio::spawn(self.clone().attend(exchange.clone()));
        Opened::Flow(exchange)
    }

    /// Passes answers back until nothing passes for a while or the rules say otherwise.
    async fn attend(self: Arc<Datagrams>, exchange: Arc<Exchange>) {
        let mut state = self.gate.watch();
        let refusal = loop {
            // Asked first, so that no change between the start and the first wait is missed.
            let (ruling, _) = self.gate.datagrams(self.proto, exchange.place, &exchange.leave);
            if !ruling.allowed() {
                break Some(ruling);
            }
            tokio::select! {
                _ = state.changed() => {}
                _ = exchange.answers(self.proto, &self.out) => break self.gate.over_limit(),
                () = exchange.idle(self.idle) => break None,
            }
        };
        self.exchanges().remove(&exchange.key);
        if let Some(ruling) = refusal {
            exchange.flow.refused(&ruling);
        }
    }

    /// Has a person asked. What comes meanwhile is lost, as datagrams are; the answer holds for what comes after it.
    fn ask(self: &Arc<Datagrams>, key: Key, flow: Flow, matter: Matter, ruling: Ruling) {
        let here = self.clone();
        {
            let mut asking = self.asking();
            if asking.len() >= MAX_ASKING || !asking.insert(key) {
                return;
            }
        }
        tokio::spawn(async move {
            let (proto, address) = (here.proto, Some(flow.address()));
            let asking = Asking { proto, address, socket: flow.socket(), request: None };
            if let Settled::Refused(ruling) = here.gate.settle(&matter, &ruling, asking).await {
                here.tell_refused(key, &flow, &ruling);
            }
            here.asking().remove(&key);
        });
    }

    fn asking(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_refused(&self, key: Key, flow: &Flow, ruling: &Ruling) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if refused.get(&key).is_some_and(|told| now.duration_since(*told) < TELL_EVERY) {
            return;
        }
        if refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        refused.insert(key, now);
        flow.refused(ruling);
    }

    fn exchanges(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Exchange>>> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    fn send(&self, bytes: &[u8]) {
        self.note();
        // What the network does not take now is lost, as datagrams are.
        if self.flow.spend(Way::FromGuest, bytes.len()).is_ok() {
            let _ = rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT);
        }
    }

    async fn answers(&self, proto: Proto, out: &OwnedFd) -> Result<(), Error> {
        let (peer, original) = self.key;
        loop {
            self.socket.readable().await?;
            let got = with_scratch(|buffer| {
                let (len, from) = self.socket.try_recv_from(buffer)?;
                let bytes = &buffer[..len];
                if proto == Proto::Icmp {
                    return self.answer(from.ip(), bytes, out);
                }
                self.flow.spend(Way::ToGuest, len)?;
                let _ = sys::net::send_from(out, original, peer, bytes);
                Ok(())
            });
            match got.map_err(|error: Error| error.kind()) {
                Ok(()) => self.note(),
                Err(ErrorKind::WouldBlock) => {}
                Err(ErrorKind::ConnectionRefused) => drop(sys::net::refuse_from(out, original, peer)),
                Err(kind) => return Err(kind.into()),
            }
            consume_budget().await;
        }
    }

    /// Answers an echo request if this is its answer: from the one who was asked, with the same number and payload.
    fn answer(&self, from: IpAddr, message: &[u8], out: &OwnedFd) -> Result<(), Error> {
        let (peer, original) = self.key;
        let Some((sequence, payload)) = Echo::answered(message, original.is_ipv4()) else { return Ok(()) };
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = (sequence, stand_in(payload));
        let Some(at) = asked.iter().position(|one| *one == wanted).filter(|_| from == self.place.ip()) else {
            return Ok(());
        };
        asked.remove(at);
        self.flow.spend(Way::ToGuest, message.len())?;
        let payload = payload.to_vec();
        let echo = Echo { from: peer.ip(), to: original.ip(), id: peer.port(), sequence, payload };
        // A full queue loses it, as any network may.
        let _ = sys::knock::answer(out, &echo);
        Ok(())
    }

    /// Waits until nothing has passed for so long.
    async fn idle(&self, idle: Duration) {
        loop {
            let until = *self.used.lock().unwrap_or_else(PoisonError::into_inner) + idle;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until.into()).await;
        }
    }

    fn note(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A number that stands for bytes.
fn stand_in(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Whether the host lets us send echo requests.
pub(crate) fn may_echo() -> Result<(), Error> {
    echo_socket(true).map(drop)
}

/// A socket of the host for echo requests to one place. It takes answers from anybody.
fn echoing(place: SocketAddr) -> Result<UdpSocket, Error> {
    let socket = echo_socket(place.is_ipv4())?;
    rustix::net::connect(&socket, &place)?;
    UdpSocket::from_std(socket.into())
}

fn echo_socket(ipv4: bool) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, protocol) = match ipv4 {
        true => (AddressFamily::INET, ipproto::ICMP),
        false => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    Ok(rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(protocol))?)
}

fn connected(place: SocketAddr) -> Result<UdpSocket, Error> {
    let any: IpAddr = if place.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(place)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}
