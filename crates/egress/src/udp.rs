//! Datagrams of the guest. Each pair of the guest's end and the place it sends to is a flow with a socket of its own
//! outside, so that answers find their way back; it ends when nothing passes for a while.

use crate::event::Socket;
use crate::flow::{Flow, Way, with_scratch};
use crate::gate::{Gate, Ruling};
use policy::Proto;
use rustix::net::SendFlags;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::coop::consume_budget;

const MAX_DATAGRAM: usize = 64 * 1024;
/// A program that goes on sending to where it may not is told of each time, and we tell of it this often.
const TELL_EVERY: Duration = Duration::from_secs(10);
const MAX_REFUSED: usize = 1024;

/// After the kernel had no memory for a datagram.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// A door where datagrams come.
pub(crate) struct DatagramDoor {
    /// Knows when one is there, and is not read from.
    ready: UdpSocket,
    door: OwnedFd,
}

impl DatagramDoor {
    pub fn new(door: OwnedFd) -> Result<DatagramDoor, Error> {
        let ready = UdpSocket::from_std(door.try_clone()?.into())?;
        Ok(DatagramDoor { ready, door })
    }

    /// The next datagram.
    pub async fn receive(&self, buffer: &mut [u8]) -> Result<sys::net::Datagram, Error> {
        loop {
            self.ready.readable().await?;
            let got = self.ready.try_io(Interest::READABLE, || match sys::net::receive_from(&self.door, buffer) {
                Ok(came) => came.ok_or_else(|| ErrorKind::WouldBlock.into()),
                Err(error) => Err(Error::from_raw_os_error(error.errno)),
            });
            match got {
                Ok(came) => return Ok(came),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => tokio::time::sleep(AFTER_ERROR).await,
            }
        }
    }
}

/// The guest's end, and where it sends to.
type Key = (SocketAddr, SocketAddr);

/// The datagrams of one door.
pub(crate) struct Datagrams {
    gate: Arc<Gate>,
    out: Arc<OwnedFd>,
    idle: Duration,
    /// How many there may be at once.
    most: usize,
    exchanges: Mutex<BTreeMap<Key, Arc<Exchange>>>,
    refused: Mutex<BTreeMap<Key, Instant>>,
}

/// One flow.
struct Exchange {
    key: Key,
    place: SocketAddr,
    flow: Flow,
    socket: UdpSocket,
    used: Mutex<Instant>,
}

impl Datagrams {
    pub fn new(gate: Arc<Gate>, out: Arc<OwnedFd>, idle: Duration, most: usize) -> Arc<Datagrams> {
        Arc::new(Datagrams { gate, out, idle, most, exchanges: Mutex::default(), refused: Mutex::default() })
    }

    /// Takes the datagrams that come to the door.
    pub async fn serve(self: Arc<Datagrams>, door: OwnedFd) -> Result<(), Error> {
        let door = DatagramDoor::new(door)?;
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            let came = door.receive(&mut buffer).await?;
            let key = (came.peer, came.original);
            let known = self.exchanges().get(&key).cloned();
            match known.or_else(|| self.open(key)) {
                Some(exchange) => exchange.send(&buffer[..came.len]),
                None => drop(sys::net::refuse_from(&self.out, key.1, key.0)),
            }
            // A guest that sends without end would keep the thread for itself.
            consume_budget().await;
        }
    }

    /// A new flow, if one may be.
    fn open(self: &Arc<Datagrams>, key: Key) -> Option<Arc<Exchange>> {
        let place = SocketAddr::new(key.1.ip().to_canonical(), key.1.port());
        let socket = Socket { proto: Proto::Udp, own: key.0, to: key.1 };
        let flow = Flow::new(&self.gate, Proto::Udp, place, Some(socket));
        let ruling = self.gate.datagrams(place);
        if !ruling.allowed() {
            self.tell_refused(key, &flow, &ruling);
            return None;
        }
        if self.exchanges().len() >= self.most {
            self.tell_refused(key, &flow, &ruling.refused("there are too many flows of datagrams"));
            return None;
        }
        let socket = match connected(place) {
            Ok(socket) => socket,
            Err(error) => {
                flow.failed(&ruling, crate::tcp::reason_of(&error));
                return None;
            }
        };
        flow.opened(&ruling);
        let exchange = Arc::new(Exchange { key, place, flow, socket, used: Mutex::new(Instant::now()) });
        self.exchanges().insert(key, exchange.clone());
        tokio::spawn(self.clone().attend(exchange.clone()));
        Some(exchange)
    }

    /// Passes answers back until nothing passes for a while or the rules say otherwise.
    async fn attend(self: Arc<Datagrams>, exchange: Arc<Exchange>) {
        let mut state = self.gate.watch();
        let refusal = loop {
            // Asked first, so that no change between the start and the first wait is missed.
            let ruling = self.gate.datagrams(exchange.place);
            if !ruling.allowed() {
                break Some(ruling);
            }
            tokio::select! {
                _ = state.changed() => {}
                _ = exchange.answers(&self.out) => break self.gate.over_limit(),
                () = exchange.idle(self.idle) => break None,
            }
        };
        self.exchanges().remove(&exchange.key);
        if let Some(ruling) = refusal {
            exchange.flow.refused(&ruling);
        }
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

    async fn answers(&self, out: &OwnedFd) -> Result<(), Error> {
        let (peer, original) = self.key;
        loop {
            self.socket.readable().await?;
            let got = with_scratch(|buffer| {
                let len = self.socket.try_recv(buffer)?;
                self.flow.spend(Way::ToGuest, len)?;
                let _ = sys::net::send_from(out, original, peer, &buffer[..len]);
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

fn connected(place: SocketAddr) -> Result<UdpSocket, Error> {
    let any: IpAddr = if place.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(place)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}
