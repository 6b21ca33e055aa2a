//! Connections of the guest that were let in (entrance.rs): relayed once the first bytes have shown whom they are for.
//!
//! ```text
//! called outside ──▶ the server's bytes pass at once; the guest's first bytes are held
//!                         │
//! must be read ──────────▶ first bytes: TLS name, HTTP host, or another protocol (first.rs)
//!                         ├─▶ refused: reset
//!                         ├─▶ relayed          (forward.rs: HTTP under the name of a host)
//!                         └─▶ inspected
//! ```
//!
//! Bytes that no server can take for a request yet are passed on while they are watched, so that other protocols need not wait.
//! What passes as another protocol in the name of a host ends when its server answers in HTTP.

use crate::court::{Court, Destination};
use crate::event::Socket;
use crate::first::{self, AnswersHttp, First, MAX_KEPT, Speaks, Watch};
use crate::flow::{Flow, Way, read_more, reset, write_all};
use crate::forward;
use crate::gate::{Arrival, Asking, FromGuest, Gate, Place, Ruling, Settled, State, Verdict};
use crate::hello::MAX_HELLO;
use crate::inspect::{self, Tls};
use crate::names::Names;
use crate::proxy;
use crate::pump::{Pump, relay};
use policy::Proto;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use sys::doors::RESOLVER;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long first bytes that are held may take to become whole.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// An end outside that is gone without a word is noticed after some minutes.
const KEEPALIVE: Duration = Duration::from_secs(120);

/// What is told of a server that nothing is heard of.
pub(crate) const NO_ANSWER: &str = "the server does not answer";

/// How a rule says that names do not matter, for protocols that look like HTTP.
const OPAQUE: &str = r#"if this is another protocol, a rule with "opaque": true (--net opaque:HOST:PORT) lets it pass to the address, whatever host it names"#;

const DNS_PORT: u16 = 53;
const SOCKS_PORT: u16 = 1080;
const PROXY_PORT: u16 = 3128;

/// What every connection needs.
pub(crate) struct World {
    pub gate: Arc<Gate>,
    pub names: Arc<Names>,
    /// One for each connection at once, also while its server is called; those beyond wait.
    pub slots: Arc<Semaphore>,
    /// What the inspector of requests needs.
    pub tls: Arc<Tls>,
    /// How long a client of a proxy waits for a server. Others wait as long as their own kernel does.
    pub connect_timeout: Duration,
}

/// What a connection is for.
pub(crate) enum Errand {
    /// Questions for names, which all addresses answer.
    Names,
    Socks,
    Proxy,
    Place(Place),
}

impl Errand {
    pub fn of(original: SocketAddr) -> Errand {
        let addr = SocketAddr::new(original.ip().to_canonical(), original.port());
        let ours = addr.ip() == IpAddr::from(RESOLVER);
        match addr.port() {
            DNS_PORT => Errand::Names,
            SOCKS_PORT if ours => Errand::Socks,
            PROXY_PORT if ours => Errand::Proxy,
            _ => Errand::Place(Place::at(addr, None)),
        }
    }
}

/// Leads a connection to its end. `called` is its server, and what let it go there; `state` is from before that.
pub(crate) async fn attend(
    world: &Arc<World>,
    guest: TcpStream,
    errand: Errand,
    called: Option<(TcpStream, Ruling)>,
    state: watch::Receiver<State>,
) {
    if guest.set_nodelay(true).is_err() {
        return;
    }
    let place = match errand {
        // Whatever goes wrong with these, the client sees its connection end.
        Errand::Names => return drop(world.names.serve_stream(guest).await),
        Errand::Socks => return proxy::socks(world, guest).await,
        Errand::Proxy => return proxy::http(world, guest).await,
        Errand::Place(place) => place,
    };
    let mut talk = Talk { state, ..Talk::new(world, guest, place) };
    if let Some((outside, ruling)) = called {
        // One that is gone already is seen to be when it is read.
        let _ = settle(&outside);
        (talk.outside, talk.ruling) = (Some(outside), Some(ruling));
    }
    converse(talk, Vec::new()).await;
}

/// Calls exactly this address, for as long as the kernel waits.
pub(crate) async fn call(addr: SocketAddr) -> Result<TcpStream, Error> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A server on this host has answered before the first call returns, and the second tells its answer.
    for _ in 0..2 {
        match rustix::net::connect(&socket, &addr) {
            Ok(()) => return TcpStream::from_std(socket.into()),
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    stream.take_error()?.map_or(Ok(stream), Err)
}

/// The same with a bound, for clients that are told in words.
pub(crate) async fn dial(world: &World, addr: SocketAddr) -> Result<TcpStream, Error> {
    let stream = timeout(world.connect_timeout, call(addr)).await.map_err(|_| ErrorKind::TimedOut)??;
    settle(&stream)?;
    Ok(stream)
}

fn settle(stream: &TcpStream) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    Ok(())
}

pub(crate) fn reason_of(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "the server refused the connection".to_owned(),
        ErrorKind::TimedOut => NO_ANSWER.to_owned(),
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
    /// What passed as another protocol was answered in HTTP.
    AnsweredInHttp,
    Inspect(Vec<String>),
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        if AnswersHttp::is(&error) { End::AnsweredInHttp } else { End::Broken }
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
        Err(End::AnsweredInHttp) => {
            talk.flow.refused(&talk.world.gate.refusal(talk.name(), AnswersHttp::REASON).hint(OPAQUE));
            talk.reset();
        }
        Err(End::Inspect(names)) => inspected(talk, bytes, names).await,
    }
}

/// Where requests must be read. The inspector calls the server itself, and tells of each request.
async fn inspected(talk: Talk<'_>, first: Vec<u8>, names: Vec<String>) {
    let Talk { world, flow, guest, place, mut state, .. } = talk;
    let tls = world.tls.clone();
    if !tls.has_authority() && !first.starts_with(first::HTTP2_PREFACE) {
        let name = names.first().map(String::as_str);
        flow.refused(&world.gate.refusal(name, "its requests must be read, and the guest trusts no authority of ours"));
        return reset(&guest);
    }
    let to = Destination { names, addr: place.addr };
    let court: Arc<dyn Court> = Arc::new(FromGuest::new(&world.gate, Socket::of(&guest)));
    tokio::select! {
        () = inspect::serve(guest, first, to, court, tls) => {}
        ruling = forbidden(&world.gate, &place, &mut state) => flow.refused(&ruling),
    }
}

/// What is told of a connection that somebody is asked about.
pub(crate) fn asking<'a>(place: &Place, socket: Option<Socket>) -> Asking<'a> {
    Asking { proto: Proto::Tcp, address: Some(place.addr), socket, request: None }
}

/// What can be said of one that comes, once a person has answered where one must be asked.
pub(crate) async fn answered(gate: &Gate, place: &mut Place, socket: Option<Socket>) -> Arrival {
    let mut arrival = gate.admit(place);
    while let Arrival::Ask(matter, ruling) = arrival {
        match gate.settle(&matter, &ruling, asking(place, socket)).await {
            Settled::Allowed => place.leave.add(matter),
            Settled::Refused(ruling) => return Arrival::Refuse(ruling),
            Settled::Changed => {}
        }
        arrival = gate.arrive(place);
    }
    arrival
}

/// Waits until nobody may go to this place any longer.
pub(crate) async fn forbidden(gate: &Gate, place: &Place, state: &mut watch::Receiver<State>) -> Ruling {
    loop {
        if state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(ruling) = gate.arrive(place).against() {
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
        // Where the address is let through whatever is said, it makes no difference what the server speaks.
        let mut back = match self.is_open() {
            true => Pump::new(Way::ToGuest),
            false => Pump::watching(Way::ToGuest),
        };
        let mut passed = 0;
        let first = tokio::select! {
            first = self.greet(&mut back, bytes, &mut passed) => first?,
            ruling = self.cut(None) => return Err(End::Refused(ruling)),
        };
        let is_http = matches!(first, First::Http(_)) && !self.is_open();
        let by_request = is_http && self.outside.is_some();
        let verdict = match self.judge(&first) {
            // Those who read all of its requests ask about them, too.
            verdict if by_request => verdict,
            verdict => self.answered(&first, verdict).await,
        };
        match verdict {
            Verdict::Pass(ruling) => self.open(ruling),
            Verdict::Inspect(names) => return Err(End::Inspect(names)),
            // Whoever speaks HTTP is told in HTTP, by those who read all of its requests.
            Verdict::Refuse(_) | Verdict::Ask(..) if by_request => {}
            Verdict::Refuse(ruling) | Verdict::Ask(_, ruling) => return Err(End::Refused(ruling)),
        }
        let Some(outside) = &self.outside else {
            return Err(End::Refused(self.world.gate.refusal(None, "the rules changed while it began")));
        };
        if first != First::Other || self.is_open() {
            back.stop_watching();
        }
        if back.server_speaks() == Speaks::Http && !bytes.is_empty() {
            return Err(End::AnsweredInHttp);
        }
        let bytes = std::mem::take(bytes);
        let talked = async {
            if is_http {
                back.flush(&self.guest).await?;
                return forward::along(&self.flow, &self.guest, (bytes, passed), outside, &self.place).await;
            }
            self.pass(outside, &bytes[passed..]).await?;
            // A connection may last for days; its first bytes need not.
            drop(bytes);
            relay(&self.flow, &self.guest, outside, back).await
        };
        tokio::select! {
            talked = talked => Ok(talked?),
            ruling = self.cut(Some(&first)) => Err(End::Refused(ruling)),
        }
    }

    /// Holds the guest's first bytes until they can be told apart, while those of the server pass. `passed` are those that
    /// need not be held.
    async fn greet(&self, back: &mut Pump, bytes: &mut Vec<u8>, passed: &mut usize) -> Result<First, Error> {
        let mut watch = Watch::default();
        let patience = sleep(FIRST_BYTES);
        tokio::pin!(patience);
        loop {
            let first = watch.read(bytes);
            let server = self.outside.as_ref().filter(|_| self.may_pass_unjudged(bytes, &first, back));
            match first {
                First::NeedMore => {}
                // A server that answers to less than a line, and not in HTTP, takes nothing for a request. Neither does one
                // that hears nothing.
                First::Undecided { is_text: false }
                    if back.server_speaks() == Speaks::Other || server.is_none() || self.is_open() =>
                {
                    return Ok(First::Other);
                }
                First::Undecided { .. } => {}
                decided => return Ok(decided),
            }
            if let Some(outside) = server {
                self.pass_and_hear(outside, &bytes[*passed..], back).await?;
                if first != First::NeedMore && bytes.len() > MAX_KEPT {
                    watch.forget(bytes);
                }
                *passed = bytes.len();
            }
            let held_before = bytes.len() > *passed;
            tokio::select! {
                got = read_more(&self.guest, bytes, MAX_HELLO + 1) => match got? {
                    0 => return Ok(first::ended(bytes, &first)),
                    _ if !held_before => patience.as_mut().reset(Instant::now() + FIRST_BYTES),
                    _ => {}
                },
                back = self.hear(back) => back?,
                // Only those that began to speak are hurried.
                _ = &mut patience, if held_before => {
                    return Ok(First::Bad("its first bytes take too long".to_owned()));
                }
            }
        }
    }

    /// Whether the server may see these bytes whatever follows them: then one that answers to them is not kept waiting.
    fn may_pass_unjudged(&self, bytes: &[u8], first: &First, back: &Pump) -> bool {
        let is_undecided = matches!(first, First::Undecided { .. }) && back.server_speaks() != Speaks::Http;
        let harmless = !bytes.is_empty() && (is_undecided || self.is_open());
        harmless && matches!(self.world.gate.unnamed(&self.place, false), Verdict::Pass(_))
    }

    async fn pass(&self, outside: &TcpStream, bytes: &[u8]) -> Result<(), Error> {
        self.flow.spend(Way::FromGuest, bytes.len())?;
        write_all(outside, bytes).await
    }

    /// Passes bytes on, and what the server says meanwhile: one that answers as it reads would wait for its answers to be taken.
    async fn pass_and_hear(&self, outside: &TcpStream, bytes: &[u8], back: &mut Pump) -> Result<(), Error> {
        let passing = self.pass(outside, bytes);
        tokio::pin!(passing);
        loop {
            tokio::select! {
                passed = &mut passing => return passed,
                heard = self.hear(back) => heard?,
            }
        }
    }

    /// Holds it while a person is asked; what holds then.
    async fn answered(&mut self, first: &First, mut verdict: Verdict) -> Verdict {
        while let Verdict::Ask(matter, ruling) = &verdict {
            let asking = asking(&self.place, Socket::of(&self.guest));
            let settled = tokio::select! {
                settled = self.world.gate.settle(matter, ruling, asking) => settled,
                ruling = self.cut(None) => Settled::Refused(ruling),
            };
            match settled {
                Settled::Allowed => self.place.leave.add(matter.clone()),
                Settled::Refused(ruling) => return Verdict::Refuse(ruling),
                Settled::Changed => {}
            }
            verdict = self.judge(first);
        }
        verdict
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
        if gate.is_opaque(&self.place) {
            return gate.unnamed(&self.place, false);
        }
        match first {
            First::Tls(Some(name)) | First::Http(name) => gate.named(&self.place, name),
            First::Tls(None) => gate.unnamed(&self.place, true),
            First::Other => gate.unnamed(&self.place, false),
            // Where the address alone is let through, nobody needs to understand what goes there.
            First::Bad(_) | First::NeedMore | First::Undecided { .. } | First::Http2 if self.is_open() => {
                gate.unnamed(&self.place, false)
            }
            First::Http2 => gate.http2(&self.place),
            First::Bad(reason) => Verdict::Refuse(gate.refusal(self.name(), reason).hint(OPAQUE)),
            First::NeedMore | First::Undecided { .. } => {
                Verdict::Refuse(gate.refusal(self.name(), "its first bytes break off"))
            }
        }
    }

    fn name(&self) -> Option<&str> {
        self.ruling.as_ref().and_then(|ruling| ruling.name.as_deref()).or(self.place.named.as_deref())
    }

    fn is_open(&self) -> bool {
        self.world.gate.is_open(&self.place)
    }

    /// Waits until rules or limits no longer let it go on; then what says so.
    async fn cut(&self, judged: Option<&First>) -> Ruling {
        let mut state = self.state.clone();
        loop {
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(ruling) = self.world.gate.arrive(&self.place).against() {
                return ruling;
            }
            // Requests of HTTP are judged one by one as it is.
            let judged = judged.filter(|first| !matches!(first, First::Http(_)) || self.is_open());
            if let Some(ruling) = judged.and_then(|first| self.judge(first).against()) {
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
