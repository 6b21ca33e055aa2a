//! Connections of the guest: taken at the door, judged, called outside, and relayed once the first bytes have shown
//! whom they are for.
//!
//! ```text
//! arrive ──▶ refused: reset
//!    │
//!    ├─▶ called outside ──▶ the server's bytes pass at once; the guest's first bytes are held
//!    │                            │
//!    └─▶ must be read ───────────▶ first bytes: TLS name, HTTP host, or neither
//!                                 ├─▶ refused: reset
//!                                 ├─▶ relayed          (forward.rs: HTTP under the name of a host)
//!                                 └─▶ inspected
//! ```

use crate::court::{Court, Destination};
use crate::event::Socket;
use crate::first::{self, First};
use crate::flow::{Flow, Way, read_more, reset, write_all};
use crate::forward;
use crate::gate::{Arrival, FromGuest, Gate, Place, Ruling, State, Verdict};
use crate::hello::MAX_HELLO;
use crate::http1::Seen;
use crate::inspect::{self, Tls};
use crate::names::Names;
use crate::proxy;
use crate::pump::{Pump, relay};
use policy::Proto;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use sys::doors::RESOLVER;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long first bytes may take to become whole.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// After the kernel had no descriptor or no memory for a connection.
const AFTER_ERROR: Duration = Duration::from_millis(20);
/// An end outside that is gone without a word is noticed after some minutes.
const KEEPALIVE: Duration = Duration::from_secs(120);

const DNS_PORT: u16 = 53;
const SOCKS_PORT: u16 = 1080;
const PROXY_PORT: u16 = 3128;

/// What every connection needs.
pub(crate) struct World {
    pub gate: Arc<Gate>,
    pub names: Arc<Names>,
    /// One for each connection at once; those beyond wait in the door's queue.
    pub slots: Arc<Semaphore>,
    /// What the inspector needs; none where nothing is inspected.
    pub tls: Option<Arc<Tls>>,
    pub connect_timeout: Duration,
}

/// Takes the connections that come to a door.
pub(crate) async fn serve(world: Arc<World>, door: OwnedFd) -> Result<(), Error> {
    // There is no network between a door and its guest: whoever paces what is sent there only waits. Connections have it
    // from their door.
    let _ = rustix::net::sockopt::set_tcp_congestion(&door, "reno");
    let door = TcpListener::from_std(door.into())?;
    loop {
        // In this order, or doors where nobody comes would keep slots from those where many do.
        let guest = accept(&door).await;
        let Ok(slot) = world.slots.clone().acquire_owned().await else { return Ok(()) };
        let world = world.clone();
        tokio::spawn(async move {
            // A connection at a door bears the name of the place that was called.
            if let Ok(original) = guest.set_nodelay(true).and_then(|()| guest.local_addr()) {
                receive(&world, guest, original).await;
            }
            drop(slot);
        });
    }
}

async fn accept(door: &TcpListener) -> TcpStream {
    loop {
        match door.accept().await {
            Ok((guest, _)) => return guest,
            Err(_) => sleep(AFTER_ERROR).await,
        }
    }
}

async fn receive(world: &Arc<World>, guest: TcpStream, original: SocketAddr) {
    let addr = SocketAddr::new(original.ip().to_canonical(), original.port());
    let ours = addr.ip() == IpAddr::from(RESOLVER);
    match addr.port() {
        // Whatever goes wrong with these, the client sees its connection end.
        DNS_PORT => drop(world.names.serve_stream(guest).await),
        SOCKS_PORT if ours => proxy::socks(world, guest).await,
        PROXY_PORT if ours => proxy::http(world, guest).await,
        _ => direct(world, guest, Place { addr, named: None }).await,
    }
}

/// A connection to an address, as the guest's kernel made it.
async fn direct(world: &Arc<World>, guest: TcpStream, place: Place) {
    let mut talk = Talk::new(world, guest, place);
    match world.gate.arrive(&talk.place) {
        Arrival::Refuse(ruling) => {
            talk.flow.refused(&ruling);
            reset(&talk.guest);
        }
        Arrival::Wait => converse(talk, Vec::new()).await,
        Arrival::Dial(ruling) => match dial(world, talk.place.addr).await {
            Ok(outside) => {
                (talk.outside, talk.ruling) = (Some(outside), Some(ruling));
                converse(talk, Vec::new()).await;
            }
            Err(error) => {
                talk.flow.failed(&ruling, reason_of(&error));
                reset(&talk.guest);
            }
        },
    }
}

/// Calls exactly this address.
pub(crate) async fn dial(world: &World, addr: SocketAddr) -> Result<TcpStream, Error> {
    let stream = timeout(world.connect_timeout, TcpStream::connect(addr)).await.map_err(|_| ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
    Ok(stream)
}

pub(crate) fn reason_of(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "the server refused the connection".to_owned(),
        ErrorKind::TimedOut => "the server does not answer".to_owned(),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => "the server cannot be reached".to_owned(),
        _ => error.to_string(),
    }
}

/// A connection that may go on, from its first bytes to its end.
pub(crate) struct Talk<'a> {
    pub world: &'a Arc<World>,
    pub flow: Flow,
    pub guest: TcpStream,
    /// `None` while nobody may be called.
    pub outside: Option<TcpStream>,
    pub place: Place,
    /// What let it through so far.
    pub ruling: Option<Ruling>,
    /// From before it was judged, so that no change is missed.
    state: watch::Receiver<State>,
}

/// How a conversation ended, if not by itself.
enum End {
    Refused(Ruling),
    Broken,
    Inspect(Vec<String>),
}

impl From<Error> for End {
    fn from(_: Error) -> End {
        End::Broken
    }
}

/// Leads a connection to its end. `bytes` were read from the guest already.
pub(crate) async fn converse(mut talk: Talk<'_>, mut bytes: Vec<u8>) {
    match talk.run(&mut bytes).await {
        Ok(()) => {}
        Err(End::Broken) => {
            talk.ruling.iter().for_each(|ruling| talk.flow.opened(ruling));
            talk.world.gate.over_limit().iter().for_each(|ruling| talk.flow.refused(ruling));
            talk.reset();
        }
        Err(End::Refused(ruling)) => {
            talk.flow.refused(&ruling);
            talk.reset();
        }
        Err(End::Inspect(names)) => inspected(talk, bytes, names).await,
    }
}

/// Where requests must be read. The inspector calls the server itself, and tells of each request.
async fn inspected(talk: Talk<'_>, first: Vec<u8>, names: Vec<String>) {
    let Talk { world, flow, guest, place, mut state, .. } = talk;
    let Some(tls) = world.tls.clone() else {
        let name = names.first().map(String::as_str);
        flow.refused(&world.gate.refusal(name, "its requests must be read, and the guest trusts no authority of ours"));
        return reset(&guest);
    };
    let to = Destination { names, addr: place.addr };
    let court: Arc<dyn Court> = Arc::new(FromGuest { gate: world.gate.clone(), socket: Socket::of(&guest) });
    tokio::select! {
        () = inspect::serve(guest, first, to, court, tls) => {}
        ruling = forbidden(&world.gate, &place, &mut state) => flow.refused(&ruling),
    }
}

/// Waits until nobody may go to this place any longer.
async fn forbidden(gate: &Gate, place: &Place, state: &mut watch::Receiver<State>) -> Ruling {
    loop {
        if state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Arrival::Refuse(ruling) = gate.arrive(place) {
            return ruling;
        }
    }
}

impl<'a> Talk<'a> {
    pub fn new(world: &'a Arc<World>, guest: TcpStream, place: Place) -> Talk<'a> {
        let flow = Flow::new(&world.gate, Proto::Tcp, place.addr, Socket::of(&guest));
        Talk { world, flow, guest, outside: None, place, ruling: None, state: world.gate.watch() }
    }

    async fn run(&mut self, bytes: &mut Vec<u8>) -> Result<(), End> {
        let mut back = Pump::new(Way::ToGuest);
        let first = tokio::select! {
            first = self.greet(&mut back, bytes) => first?,
            ruling = self.cut(None) => return Err(End::Refused(ruling)),
        };
        let is_http = matches!(first, First::Http(_)) && !self.is_open();
        match self.judge(&first) {
            Verdict::Pass(ruling) => self.open(ruling),
            Verdict::Inspect(names) => return Err(End::Inspect(names)),
            // Whoever speaks HTTP is told in HTTP, by those who read all of its requests.
            Verdict::Refuse(_) if is_http && self.outside.is_some() => {}
            Verdict::Refuse(ruling) => return Err(End::Refused(ruling)),
        }
        let Some(outside) = &self.outside else {
            return Err(End::Refused(self.world.gate.refusal(None, "the rules changed while it began")));
        };
        let bytes = std::mem::take(bytes);
        let talked = async {
            if is_http {
                back.flush(&self.guest).await?;
                return forward::along(&self.flow, &self.guest, bytes, outside, &self.place).await;
            }
            self.flow.spend(Way::FromGuest, bytes.len())?;
            write_all(outside, &bytes).await?;
            // A connection may last for days; its first bytes need not.
            drop(bytes);
            relay(&self.flow, &self.guest, outside, back).await
        };
        tokio::select! {
            talked = talked => Ok(talked?),
            ruling = self.cut(Some(&first)) => Err(End::Refused(ruling)),
        }
    }

    /// Holds the guest's first bytes until they can be told apart, while those of the server pass.
    async fn greet(&self, back: &mut Pump, bytes: &mut Vec<u8>) -> Result<First, Error> {
        let mut seen = Seen::default();
        let patience = sleep(FIRST_BYTES);
        tokio::pin!(patience);
        loop {
            let first = first::read(bytes, &mut seen);
            if first != First::NeedMore {
                return Ok(first);
            }
            tokio::select! {
                got = read_more(&self.guest, bytes, MAX_HELLO + 1) => match got? {
                    0 if bytes.is_empty() => return Ok(First::Other),
                    0 => return Ok(First::Bad("its first bytes break off".to_owned())),
                    got if got == bytes.len() => patience.as_mut().reset(Instant::now() + FIRST_BYTES),
                    _ => {}
                },
                passed = self.hear(back) => passed?,
                // Only those that began to speak are hurried.
                _ = &mut patience, if !bytes.is_empty() => {
                    return Ok(First::Bad("its first bytes take too long".to_owned()));
                }
            }
        }
    }

    /// Passes on what the server says unasked.
    async fn hear(&self, back: &mut Pump) -> Result<(), Error> {
        let Some(outside) = self.outside.as_ref().filter(|_| !back.ended()) else {
            return std::future::pending().await;
        };
        back.step(&self.flow, outside, &self.guest).await?;
        if let Some(ruling) = self.ruling.as_ref().filter(|_| self.flow.has_spoken()) {
            self.flow.opened(ruling);
        }
        Ok(())
    }

    fn judge(&self, first: &First) -> Verdict {
        let gate = &self.world.gate;
        match first {
            First::Tls(Some(name)) | First::Http(name) => gate.named(&self.place, name),
            First::Tls(None) => gate.unnamed(&self.place, true),
            First::Other => gate.unnamed(&self.place, false),
            // Where the address alone is let through, nobody needs to understand what goes there.
            First::Bad(_) | First::NeedMore if self.is_open() => gate.unnamed(&self.place, false),
            First::Bad(reason) => Verdict::Refuse(gate.refusal(self.name(), reason)),
            First::NeedMore => Verdict::Refuse(gate.refusal(self.name(), "its first bytes break off")),
        }
    }

    fn name(&self) -> Option<&str> {
        self.ruling.as_ref().and_then(|ruling| ruling.name.as_deref()).or(self.place.named.as_deref())
    }

    fn is_open(&self) -> bool {
        self.place.named.is_none() && self.world.gate.is_open(self.place.addr)
    }

    /// Waits until rules or limits no longer let it go on; then what says so.
    async fn cut(&self, judged: Option<&First>) -> Ruling {
        let mut state = self.state.clone();
        loop {
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Arrival::Refuse(ruling) = self.world.gate.arrive(&self.place) {
                return ruling;
            }
            // Requests of HTTP are judged one by one as it is.
            let judged = judged.filter(|first| !matches!(first, First::Http(_)) || self.is_open());
            if let Some(Verdict::Refuse(ruling)) = judged.map(|first| self.judge(first)) {
                return ruling;
            }
        }
    }

    fn open(&mut self, ruling: Ruling) {
        self.flow.opened(&ruling);
        self.ruling = Some(ruling);
    }

    fn reset(&self) {
        reset(&self.guest);
        self.outside.iter().for_each(reset);
    }
}
