//! Where connections of the guest wait until they may come in. What asks for a connection is heard before there is one: it
//! is judged, the server is called, and only when the server has taken it is the guest's own request let through to the
//! door. So a connection is made, refused, unreachable or without an answer inside exactly as it is outside.
//!
//! ```text
//! heard ──▶ refused by a rule: "connection refused", and told
//!    │
//!    ├─▶ server called ──▶ refuses, cannot be reached: the guest is told the same
//!    │        │       └──▶ does not answer: nor do we, until the guest gives up
//!    ▼        ▼
//!   let in: the request is sent again, the door has the connection ──▶ tcp.rs
//! ```

use crate::event::Socket;
use crate::flow::{Flow, Watched, reset, with_scratch};
use crate::gate::{Arrival, Ruling, State};
use crate::tcp::{self, Errand, NO_ANSWER, World, reason_of};
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
use sys::knock::{self, Call, Knock, Unreachable};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until, timeout};

/// How many may wait at once, for each protocol. The requests of those beyond are not heard, and come again.
const MOST_WAITING: usize = 4096;
/// A connection that is let in is there at once, unless nobody waits for it any longer.
const COMING: Duration = Duration::from_secs(1);
/// A kernel sends its request again when twice as much time has passed as before, from one second on. Whoever does not
/// has given up.
const SLACK: Duration = Duration::from_secs(3);

/// What is told of connections that were not made for want of somebody or of room.
const GIVEN_UP: &str = "nobody waits for it any longer";
const NO_ROOM: &str = "there are too many connections";

/// The guest's end, and where it wants to go.
type Key = (SocketAddr, SocketAddr);

/// One that was let in: its room, its connection, and its server if that was called.
type Ushered = (OwnedSemaphorePermit, TcpStream, Option<TcpStream>);

/// The entrance of one protocol.
pub(crate) struct Entrance {
    world: Arc<World>,
    knocks: Watched,
    again: OwnedFd,
    out: Arc<OwnedFd>,
    /// Where connections come out once they are let in: those to anywhere, and those to single places on the guest's loopback.
    anywhere: Watched,
    inside: BTreeMap<SocketAddr, Watched>,
    waiting: Mutex<BTreeMap<Key, Waiting>>,
    echoes: Arc<Datagrams>,
}

/// One that waits.
struct Waiting {
    /// Its request, as it was heard last.
    call: Call,
    since: Instant,
    heard: Instant,
    /// Set when it is let in; takes the connection.
    coming: Option<oneshot::Sender<OwnedFd>>,
}

impl Waiting {
    fn gives_up(&self) -> Instant {
        self.heard + self.heard.duration_since(self.since) + SLACK
    }
}

impl Entrance {
    /// Opens the entrance that belongs to a door. `inside` are doors on the guest's loopback, of the same protocol.
    pub fn new(
        world: Arc<World>,
        (tcp, knocks, again): (OwnedFd, OwnedFd, OwnedFd),
        out: Arc<OwnedFd>,
        echoes: Arc<Datagrams>,
        inside: Vec<(SocketAddr, OwnedFd)>,
    ) -> Result<Arc<Entrance>, Error> {
        let door = |fd: OwnedFd| {
            // There is no network between a door and its guest: whoever paces what is sent there only waits. Connections
            // have it from their door.
            let _ = rustix::net::sockopt::set_tcp_congestion(&fd, "reno");
            Watched::new(fd)
        };
        Ok(Arc::new(Entrance {
            world,
            knocks: Watched::new(knocks)?,
            again,
            out,
            anywhere: door(tcp)?,
            inside: inside.into_iter().map(|(place, fd)| Ok((place, door(fd)?))).collect::<Result<_, Error>>()?,
            waiting: Mutex::default(),
            echoes,
        }))
    }

    /// Hears who asks, and takes who comes.
    pub fn open(self: &Arc<Entrance>) {
        for place in [None].into_iter().chain(self.inside.keys().copied().map(Some)) {
            let here = self.clone();
            tokio::spawn(async move {
                let door = place.and_then(|place| here.inside.get(&place)).unwrap_or(&here.anywhere);
                here.take_all(door).await
            });
        }
        let here = self.clone();
        tokio::spawn(async move { here.hear_all().await });
    }

    async fn hear_all(self: Arc<Entrance>) -> Result<(), Error> {
        loop {
            match self.knocks.next(|knocks| with_scratch(|buffer| knock::hear(knocks, buffer))).await? {
                Knock::Call(call) => self.called(call),
                Knock::Echo(echo) => self.echoes.echo(&echo),
            }
            // A guest that asks without end would keep the thread for itself.
            consume_budget().await;
        }
    }

    /// Somebody asks for a connection, or asks again.
    fn called(self: &Arc<Entrance>, call: Call) {
        let key = (call.peer, call.original);
        if self.is_known(key, &call) {
            return;
        }
        let state = self.world.gate.watch();
        let mut errand = Errand::of(call.original);
        let (mut ruling, mut asks) = (None, false);
        if let Errand::Place(place) = &mut errand {
            match self.world.gate.admit(place) {
                Arrival::Refuse(refusal) => {
                    let flow = Flow::new(&self.world.gate, Proto::Tcp, place.addr, Some(socket_of(key)));
                    // Told first: while it waits it can be found out who asks.
                    flow.refused(&refusal);
                    // An answer that is lost is given again when the guest asks again.
                    let _ = knock::refuse(&self.out, &call);
                    return;
                }
                // Nobody is to be called before the first bytes have told whom.
                Arrival::Wait => {}
                Arrival::Dial(granted) => ruling = Some(granted),
                Arrival::Ask(..) => asks = true,
            }
        }
        let now = Instant::now();
        let mut waiting = self.waiting();
        if waiting.len() < MOST_WAITING {
            waiting.insert(key, Waiting { call, since: now, heard: now, coming: None });
            tokio::spawn(self.clone().attend(key, errand, (ruling, asks), state));
        }
    }

    fn is_known(&self, key: Key, call: &Call) -> bool {
        let mut waiting = self.waiting();
        let Some(one) = waiting.get_mut(&key) else { return false };
        one.heard = Instant::now();
        if !one.call.is_same(call) {
            // The end was given up and another has taken its place.
            one.since = one.heard;
        }
        one.call.clone_from(call);
        if one.coming.is_some() {
            // What was lost on its way is made up for.
            let _ = knock::admit(&self.again, call);
        }
        true
    }

    /// Leads one from its request to the end of its connection.
    async fn attend(
        self: Arc<Entrance>,
        key: Key,
        mut errand: Errand,
        (ruling, asks): (Option<Ruling>, bool),
        state: watch::Receiver<State>,
    ) {
        let mut attempt = Attempt { world: &self.world, key, ruling, reason: NO_ROOM.into() };
        let came = {
            let _place = Leaves { entrance: &self, key };
            if let (true, Errand::Place(place)) = (asks, &mut errand) {
                match self.patiently(key, tcp::answered(&self.world.gate, place, Some(socket_of(key)))).await {
                    // The guest has given up: nobody needs to answer any more.
                    None => return,
                    Some(Arrival::Refuse(refusal) | Arrival::Ask(_, refusal)) => {
                        return self.turn_away(key, &refusal);
                    }
                    Some(Arrival::Wait) => {}
                    Some(Arrival::Dial(granted)) => attempt.ruling = Some(granted),
                }
            }
            tokio::select! {
                biased;
                came = self.usher(key, &errand, &mut attempt) => came,
                refusal = self.forbidden(&errand, state.clone()) => {
                    attempt.ruling = None;
                    self.turn_away(key, &refusal);
                    None
                }
            }
        };
        let Some((slot, guest, outside)) = came else { return };
        let called = outside.zip(attempt.ruling.take());
        // Those that wait are many; they need not have room for all that may follow.
        Box::pin(tcp::attend(&self.world, guest, errand, called, state)).await;
        drop(slot);
    }

    /// Finds room, calls the server if there is one to be called, and lets the guest in.
    async fn usher(&self, key: Key, errand: &Errand, attempt: &mut Attempt<'_>) -> Option<Ushered> {
        let slots = self.world.slots.clone();
        let slot = self.patiently(key, slots.acquire_owned()).await?.ok()?;
        let outside = match errand {
            Errand::Place(place) if attempt.ruling.is_some() => Some(self.call(key, place.addr, attempt).await?),
            _ => None,
        };
        attempt.reason = GIVEN_UP.into();
        let guest = self.let_in(key).await;
        if guest.is_none() {
            outside.iter().for_each(reset);
        }
        Some((slot, guest?, outside))
    }

    /// Waits until rules or limits no longer let one go on that waits; it is refused like any other then.
    async fn forbidden(&self, errand: &Errand, mut state: watch::Receiver<State>) -> Ruling {
        let Errand::Place(place) = errand else { return std::future::pending().await };
        tcp::forbidden(&self.world.gate, place, &mut state).await
    }

    /// Refuses one that waits.
    fn turn_away(&self, key: Key, refusal: &Ruling) {
        Flow::new(&self.world.gate, Proto::Tcp, place_of(key), Some(socket_of(key))).refused(refusal);
        if let Some(one) = self.waiting().get(&key) {
            let _ = knock::refuse(&self.out, &one.call);
        }
    }

    /// Calls the server. Whatever it says but yes is passed on to the guest.
    async fn call(&self, key: Key, addr: SocketAddr, attempt: &mut Attempt<'_>) -> Option<TcpStream> {
        attempt.reason = NO_ANSWER.into();
        let error = match self.patiently(key, tcp::call(addr)).await? {
            Ok(stream) => return Some(stream),
            Err(error) => error,
        };
        attempt.reason = reason_of(&error).into();
        let waiting = self.waiting();
        let call = &waiting.get(&key)?.call;
        let _ = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::CONNREFUSED | Errno::CONNRESET) => knock::refuse(&self.out, call),
            // Nobody answered; or this host has no room now, and may have some when the guest asks again.
            Some(Errno::TIMEDOUT | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return None,
            Some(Errno::NETUNREACH) => knock::unreachable(&self.out, call, Unreachable::Network),
            Some(Errno::ACCESS | Errno::PERM) => knock::unreachable(&self.out, call, Unreachable::Forbidden),
            _ => knock::unreachable(&self.out, call, Unreachable::Host),
        };
        None
    }

    /// Lets one in: its request is sent again, and before that call returns the connection is there.
    async fn let_in(&self, key: Key) -> Option<TcpStream> {
        let (coming, came) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            let one = waiting.get_mut(&key)?;
            one.coming = Some(coming);
            let _ = knock::admit(&self.again, &one.call);
        }
        // Others that have come, and whatever goes wrong here, are seen by the one who watches the door, too.
        let door = self.inside.get(&key.1).unwrap_or(&self.anywhere);
        if let Ok(Some(arrival)) = sys::net::accept_from(door.fd()) {
            self.give(arrival);
        }
        let socket = timeout(COMING, came).await.ok()?.ok()?;
        TcpStream::from_std(socket.into()).ok()
    }

    async fn take_all(&self, door: &Watched) -> Result<(), Error> {
        loop {
            self.give(door.next(|door| sys::net::accept_from(door)).await?);
            // The door itself has an address, and a guest that comes there without end is nobody's to be waited for.
            consume_budget().await;
        }
    }

    /// Gives a connection to whom it belongs. One that nobody waits for any longer is closed.
    fn give(&self, arrival: sys::net::Arrival) {
        let key = (plain(arrival.peer), plain(arrival.original));
        // Its place is left to be given up by whom it belongs to; nobody else can have taken it by then.
        if let Some(coming) = self.waiting().get_mut(&key).and_then(|one| one.coming.take()) {
            let _ = coming.send(arrival.socket);
        }
    }

    /// What comes of it, or nothing when the guest has given up before.
    async fn patiently<T>(&self, key: Key, work: impl Future<Output = T>) -> Option<T> {
        let until = || self.waiting().get(&key).map(Waiting::gives_up).filter(|at| *at > Instant::now());
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

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Key, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As packets have it: no scope, which the kernel adds to names.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn place_of((_, to): Key) -> SocketAddr {
    SocketAddr::new(to.ip().to_canonical(), to.port())
}

fn socket_of((own, to): Key) -> Socket {
    Socket { proto: Proto::Tcp, own, to }
}

/// Takes one from the list of those that wait, however its waiting ends.
struct Leaves<'a> {
    entrance: &'a Entrance,
    key: Key,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.entrance.waiting().remove(&self.key);
    }
}

/// A connection that some rule lets through: unless it is made, it is told that and why it was not.
struct Attempt<'a> {
    world: &'a World,
    key: Key,
    /// `None` when there is nothing to tell.
    ruling: Option<Ruling>,
    reason: Cow<'static, str>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(ruling) = self.ruling.take() {
            let flow = Flow::new(&self.world.gate, Proto::Tcp, place_of(self.key), Some(socket_of(self.key)));
            flow.failed(&ruling, self.reason.to_string());
        }
    }
}
