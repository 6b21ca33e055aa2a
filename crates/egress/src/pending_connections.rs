//! Pending connections of the guest: SYN packets that were captured and not yet let through to the listening socket. Each is
//! judged and its server dialed; the guest's own SYN is re-injected only when the server has accepted. The guest therefore
//! sees the same result as without a broker: connected, refused, unreachable, or no answer.
//!
//! ```text
//! SYN captured ──▶ refused by a rule: "connection refused", and an event
//!    │
//!    ├─▶ server dialed ──▶ refuses, cannot be reached: the guest gets the same error
//!    │        │       └──▶ does not answer: no answer to the guest either, until it gives up
//!    ▼        ▼
//!   admitted: the SYN is re-injected, the listener has the connection ──▶ endpoint.rs
//! ```

use crate::connection::Services;
use crate::dial::{self, NO_ANSWER, reason_of};
use crate::endpoint::{self, Endpoint};
use crate::event::GuestSocket;
use crate::flow::{Flow, ReadableFd, reset, with_scratch};
use crate::gate::{ConnectDecision, GateState, Ruling};
use crate::udp::Datagrams;
use policy::Proto;
use rustix::io::Errno;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Error;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::syn_capture::{self, Packet, Syn, Unreachable};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until, timeout};

/// Limit on pending connections for each IP version. A SYN beyond it is ignored; the guest's kernel retransmits it.
const MAX_PENDING: usize = 4096;
/// Deadline for an admitted connection to be accepted. The handshake is local, so only a guest that has given up misses
/// it.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Tolerance on the retransmission interval, which starts at one second and doubles. A guest that does not retransmit
/// its SYN has given up.
const SLACK: Duration = Duration::from_secs(3);

/// Reasons reported for connections that were allowed and not made.
const GIVEN_UP: &str = "the client gave up";
const NO_ROOM: &str = "too many connections";

/// Address of the guest's socket, and the address it connects to.
type SocketPair = (SocketAddr, SocketAddr);

/// An admitted connection: its permit, the guest's stream, and the server's stream if one was dialed.
type Admitted = (OwnedSemaphorePermit, TcpStream, Option<TcpStream>);

/// The pending connections of one IP version.
pub(crate) struct PendingConnections {
    services: Arc<Services>,
    captured: ReadableFd,
    again: OwnedFd,
    out: Arc<OwnedFd>,
    /// Listeners that accept admitted connections: to any address, and to single ports on the guest's loopback.
    anywhere: ReadableFd,
    loopback: BTreeMap<SocketAddr, ReadableFd>,
    pending: Mutex<BTreeMap<SocketPair, Pending>>,
    echoes: Arc<Datagrams>,
}

/// A pending connection.
struct Pending {
    /// Latest copy of the SYN.
    syn: Syn,
    since: Instant,
    last_syn: Instant,
    /// Set once the connection is admitted; receives the accepted socket.
    accepted: Option<oneshot::Sender<OwnedFd>>,
}

impl Pending {
    fn gives_up_at(&self) -> Instant {
        self.last_syn + self.last_syn.duration_since(self.since) + SLACK
    }
}

impl PendingConnections {
    /// Takes over the sockets of a door. `loopback` are listeners on the guest's loopback, of the same IP version.
    pub fn new(
        services: Arc<Services>,
        (tcp, captured, again): (OwnedFd, OwnedFd, OwnedFd),
        out: Arc<OwnedFd>,
        echoes: Arc<Datagrams>,
        loopback: Vec<(SocketAddr, OwnedFd)>,
    ) -> Result<Arc<PendingConnections>, Error> {
        let door = |fd: OwnedFd| {
            // No network lies between a listener and its guest, so congestion control only delays. Accepted sockets
            // inherit the option.
            let _ = rustix::net::sockopt::set_tcp_congestion(&fd, "reno");
            ReadableFd::new(fd)
        };
        Ok(Arc::new(PendingConnections {
            services,
            captured: ReadableFd::new(captured)?,
            again,
            out,
            anywhere: door(tcp)?,
            loopback: loopback.into_iter().map(|(place, fd)| Ok((place, door(fd)?))).collect::<Result<_, Error>>()?,
            pending: Mutex::default(),
            echoes,
        }))
    }

    /// Starts the tasks that read captured packets and accept admitted connections.
    pub fn open(self: &Arc<PendingConnections>) {
        for place in [None].into_iter().chain(self.loopback.keys().copied().map(Some)) {
            let here = self.clone();
            tokio::spawn(async move {
                let door = place.and_then(|place| here.loopback.get(&place)).unwrap_or(&here.anywhere);
                here.accept_all(door).await
            });
        }
        let here = self.clone();
        tokio::spawn(async move { here.read_packets().await });
    }

    async fn read_packets(self: Arc<PendingConnections>) -> Result<(), Error> {
        loop {
            match self
                .captured
                .next(|captured| with_scratch(|buffer| syn_capture::next_packet(captured, buffer)))
                .await?
            {
                Packet::Syn(syn) => self.on_syn(syn),
                Packet::Echo(echo) => self.echoes.echo(&echo),
            }
            // A guest that floods packets must not starve other tasks.
            consume_budget().await;
        }
    }

    /// Handles a SYN of the guest, new or retransmitted.
    fn on_syn(self: &Arc<PendingConnections>, syn: Syn) {
        let key = (syn.peer, syn.original);
        if self.is_known(key, &syn) {
            return;
        }
        let state = self.services.gate.watch();
        let mut endpoint = Endpoint::of(syn.original);
        let (mut ruling, mut asks) = (None, false);
        if let Endpoint::Remote(place) = &mut endpoint {
            match self.services.gate.admit(place) {
                ConnectDecision::Refuse(refusal) => {
                    let flow = Flow::new(&self.services.gate, Proto::Tcp, place.addr, Some(socket_of(key)));
                    // Reported first: the process can be looked up only while its connection is pending.
                    flow.refused(&refusal);
                    // A lost reset is repeated at the next SYN.
                    let _ = syn_capture::refuse(&self.out, &syn);
                    return;
                }
                // The server is known only after the first bytes.
                ConnectDecision::Wait => {}
                ConnectDecision::Dial(granted) => ruling = Some(granted),
                ConnectDecision::Ask(..) => asks = true,
            }
        }
        let now = Instant::now();
        let mut pending = self.pending();
        if pending.len() < MAX_PENDING {
            pending.insert(key, Pending { syn, since: now, last_syn: now, accepted: None });
            tokio::spawn(self.clone().lead(key, endpoint, (ruling, asks), state));
        }
    }

    fn is_known(&self, key: SocketPair, syn: &Syn) -> bool {
        let mut pending = self.pending();
        let Some(one) = pending.get_mut(&key) else { return false };
        one.last_syn = Instant::now();
        if !one.syn.is_same(syn) {
            // Another socket uses the same port now.
            one.since = one.last_syn;
        }
        one.syn.clone_from(syn);
        if one.accepted.is_some() {
            // The re-injected SYN may have been lost.
            let _ = syn_capture::admit(&self.again, syn);
        }
        true
    }

    /// Takes one connection from its SYN to its end.
    async fn lead(
        self: Arc<PendingConnections>,
        key: SocketPair,
        mut endpoint: Endpoint,
        (ruling, asks): (Option<Ruling>, bool),
        state: watch::Receiver<GateState>,
    ) {
        let mut attempt = Attempt { services: &self.services, key, ruling, reason: NO_ROOM.into() };
        let admitted = {
            let _place = Removal { pending: &self, key };
            if let (true, Endpoint::Remote(place)) = (asks, &mut endpoint) {
                match self
                    .unless_given_up(key, self.services.gate.admit_with_approval(place, Some(socket_of(key))))
                    .await
                {
                    // The guest has given up: no answer is needed any more.
                    None => return,
                    Some(ConnectDecision::Refuse(refusal) | ConnectDecision::Ask(_, refusal)) => {
                        return self.refuse(key, &refusal);
                    }
                    Some(ConnectDecision::Wait) => {}
                    Some(ConnectDecision::Dial(granted)) => attempt.ruling = Some(granted),
                }
            }
            tokio::select! {
                biased;
                admitted = self.admit(key, &endpoint, &mut attempt) => admitted,
                refusal = self.forbidden(&endpoint, state.clone()) => {
                    attempt.ruling = None;
                    self.refuse(key, &refusal);
                    None
                }
            }
        };
        let Some((slot, guest, outside)) = admitted else { return };
        let dialed = outside.zip(attempt.ruling.take());
        // Boxed to keep the future of the many pending connections small.
        Box::pin(endpoint::serve(&self.services, guest, endpoint, dialed, state)).await;
        drop(slot);
    }

    /// Takes a permit, dials the server if there is one, and lets the guest's SYN through.
    async fn admit(&self, key: SocketPair, endpoint: &Endpoint, attempt: &mut Attempt<'_>) -> Option<Admitted> {
        let slots = self.services.slots.clone();
        let slot = self.unless_given_up(key, slots.acquire_owned()).await?.ok()?;
        let outside = match endpoint {
            Endpoint::Remote(place) if attempt.ruling.is_some() => Some(self.dial(key, place.addr, attempt).await?),
            _ => None,
        };
        attempt.reason = GIVEN_UP.into();
        let guest = self.accept(key).await;
        if guest.is_none() {
            outside.iter().for_each(reset);
        }
        Some((slot, guest?, outside))
    }

    /// Waits until rules or the byte limit forbid a pending connection, and returns the refusal.
    async fn forbidden(&self, endpoint: &Endpoint, mut state: watch::Receiver<GateState>) -> Ruling {
        let Endpoint::Remote(place) = endpoint else { return std::future::pending().await };
        self.services.gate.until_forbidden(place, &mut state).await
    }

    /// Refuses a pending connection with a reset.
    fn refuse(&self, key: SocketPair, refusal: &Ruling) {
        Flow::new(&self.services.gate, Proto::Tcp, place_of(key), Some(socket_of(key))).refused(refusal);
        if let Some(one) = self.pending().get(&key) {
            let _ = syn_capture::refuse(&self.out, &one.syn);
        }
    }

    /// Dials the server and passes its errors on to the guest.
    async fn dial(&self, key: SocketPair, addr: SocketAddr, attempt: &mut Attempt<'_>) -> Option<TcpStream> {
        attempt.reason = NO_ANSWER.into();
        let error = match self.unless_given_up(key, dial::connect(addr)).await? {
            Ok(stream) => return Some(stream),
            Err(error) => error,
        };
        attempt.reason = reason_of(&error).into();
        let pending = self.pending();
        let syn = &pending.get(&key)?.syn;
        let _ = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::CONNREFUSED | Errno::CONNRESET) => syn_capture::refuse(&self.out, syn),
            // No answer to the guest either: the server did not answer, or this host is short of memory or descriptors
            // and may not be at the next SYN.
            Some(Errno::TIMEDOUT | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return None,
            Some(Errno::NETUNREACH) => syn_capture::unreachable(&self.out, syn, Unreachable::Network),
            Some(Errno::ACCESS | Errno::PERM) => syn_capture::unreachable(&self.out, syn, Unreachable::Forbidden),
            _ => syn_capture::unreachable(&self.out, syn, Unreachable::Host),
        };
        None
    }

    /// Re-injects the SYN. The loopback handshake completes within that call, so the listener has the connection
    /// afterwards.
    async fn accept(&self, key: SocketPair) -> Option<TcpStream> {
        let (accepted, taken) = oneshot::channel();
        {
            let mut pending = self.pending();
            let one = pending.get_mut(&key)?;
            one.accepted = Some(accepted);
            let _ = syn_capture::admit(&self.again, &one.syn);
        }
        // The task that watches the listener handles other connections and errors.
        let door = self.loopback.get(&key.1).unwrap_or(&self.anywhere);
        if let Ok(Some(arrival)) = sys::net::accept_from(door.fd()) {
            self.hand_over(arrival);
        }
        let socket = timeout(ACCEPT_TIMEOUT, taken).await.ok()?.ok()?;
        TcpStream::from_std(socket.into()).ok()
    }

    async fn accept_all(&self, door: &ReadableFd) -> Result<(), Error> {
        loop {
            self.hand_over(door.next(|door| sys::net::accept_from(door)).await?);
            // The listener has an address of its own; a guest that connects there in a loop must not starve other
            // tasks.
            consume_budget().await;
        }
    }

    /// Hands an accepted connection to its pending entry. A connection without an entry is closed.
    fn hand_over(&self, arrival: sys::net::Arrival) {
        let key = (plain(arrival.peer), plain(arrival.original));
        // Only the entry's own task removes it, so no other connection can have the key before.
        if let Some(accepted) = self.pending().get_mut(&key).and_then(|one| one.accepted.take()) {
            let _ = accepted.send(arrival.socket);
        }
    }

    /// Awaits `work`, or returns `None` once the guest gives up.
    async fn unless_given_up<T>(&self, key: SocketPair, work: impl Future<Output = T>) -> Option<T> {
        let until = || self.pending().get(&key).map(Pending::gives_up_at).filter(|at| *at > Instant::now());
        let given_up = async {
            while let Some(until) = until() {
                sleep_until(until).await;
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = given_up => None,
        }
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<SocketPair, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Strips the IPv6 scope that the kernel adds, so that the address equals the one in packets.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn place_of((_, to): SocketPair) -> SocketAddr {
    SocketAddr::new(to.ip().to_canonical(), to.port())
}

fn socket_of((own, to): SocketPair) -> GuestSocket {
    GuestSocket { proto: Proto::Tcp, own, to }
}

/// Removes a pending connection when dropped.
struct Removal<'a> {
    pending: &'a PendingConnections,
    key: SocketPair,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.pending.pending().remove(&self.key);
    }
}

/// An allowed connection that is being made. If it is dropped with its ruling, it reports a failure with the reason.
struct Attempt<'a> {
    services: &'a Services,
    key: SocketPair,
    /// Taken once the connection is made or refused.
    ruling: Option<Ruling>,
    reason: Cow<'static, str>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(ruling) = self.ruling.take() {
            let flow = Flow::new(&self.services.gate, Proto::Tcp, place_of(self.key), Some(socket_of(self.key)));
            flow.failed(&ruling, self.reason.to_string());
        }
    }
}
