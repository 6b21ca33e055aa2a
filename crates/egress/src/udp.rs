//! UDP datagrams and ICMP echo requests of the guest. Each pair of the guest's address and the target is a flow with a
//! socket of its own on the host, so that replies find their way back. A flow ends after an idle time.

use crate::approval::{ApprovedSubjects, AskedAccess};
use crate::dial::reason_of;
use crate::event::GuestSocket;
use crate::flow::{Direction, Flow, ReadableFd, with_scratch};
use crate::gate::{ApprovalOutcome, Gate, QuestionContext, Ruling};
use policy::Proto;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sys::syn_capture::Echo;
use tokio::net::UdpSocket;
use tokio::task::coop::consume_budget;

const MAX_DATAGRAM: usize = 64 * 1024;
/// Minimum interval between events about one refused pair. The program gets an error for each datagram.
const REFUSAL_EVENT_INTERVAL: Duration = Duration::from_secs(10);
const MAX_REFUSED: usize = 1024;
/// Limit on flows that wait for a person's answer.
const MAX_AWAITING_APPROVAL: usize = 64;

/// Rate limit for echo requests: one per interval, and a burst after an idle time.
const ECHO_INTERVAL: Duration = Duration::from_millis(10);
const ECHO_BURST: u32 = 100;
/// Limit on unanswered echo requests of one flow.
const MAX_UNANSWERED_ECHOES: usize = 64;

/// Address of the guest's socket, and the target.
type FlowKey = (SocketAddr, SocketAddr);

/// The datagram flows of one door, or its echo flows.
pub(crate) struct Datagrams {
    gate: Arc<Gate>,
    proto: Proto,
    /// Raw socket for packets to the guest, with the target as their source address.
    out: Arc<OwnedFd>,
    idle: Duration,
    /// Limit on concurrent flows.
    max_flows: usize,
    flows: Mutex<BTreeMap<FlowKey, Arc<DatagramFlow>>>,
    refused: Mutex<BTreeMap<FlowKey, Instant>>,
    /// Flows that wait for a person's answer.
    awaiting_approval: Mutex<BTreeSet<FlowKey>>,
    /// Virtual time of the rate limiter: when all echo requests sent so far are due at the regular interval.
    echo_schedule: Mutex<Instant>,
}

/// A flow between one socket of the guest and one target.
struct DatagramFlow {
    key: FlowKey,
    remote_addr: SocketAddr,
    flow: Flow,
    socket: UdpSocket,
    last_used: Mutex<Instant>,
    /// Unanswered echo requests: sequence numbers with hashes of their payloads.
    unanswered_echoes: Mutex<VecDeque<(u16, u64)>>,
    /// Subjects that a person approved for this flow.
    approved: ApprovedSubjects,
}

/// Result of the first datagram of a flow.
enum OpenResult {
    Flow(Arc<DatagramFlow>),
    /// A person is asked. Until the answer, datagrams are dropped without an error to the sender.
    Held,
    Refused,
}

impl Datagrams {
    /// Serves UDP or ICMP echo, as `proto` says.
    pub fn new(gate: Arc<Gate>, proto: Proto, out: Arc<OwnedFd>, idle: Duration, max_flows: usize) -> Arc<Datagrams> {
        let (flows, refused, awaiting_approval) = (Mutex::default(), Mutex::default(), Mutex::default());
        let echo_schedule = Mutex::new(Instant::now());
        Arc::new(Datagrams { gate, proto, out, idle, max_flows, flows, refused, awaiting_approval, echo_schedule })
    }

    /// Forwards an echo request within the rate limit.
    pub fn echo(self: &Arc<Datagrams>, echo: &Echo) {
        if !self.take_echo_slot() {
            return;
        }
        // The echo id tells programs apart as the source port does for UDP.
        let key = (SocketAddr::new(echo.from, echo.id), SocketAddr::new(echo.to, 0));
        let known = self.flows().get(&key).cloned();
        if let OpenResult::Flow(datagram_flow) = known.map_or_else(|| self.open(key), OpenResult::Flow) {
            let mut unanswered_echoes = datagram_flow.unanswered_echoes.lock().unwrap_or_else(PoisonError::into_inner);
            unanswered_echoes.push_back((echo.sequence, payload_hash(&echo.payload)));
            if unanswered_echoes.len() > MAX_UNANSWERED_ECHOES {
                unanswered_echoes.pop_front();
            }
            drop(unanswered_echoes);
            datagram_flow.send(&echo.request());
        }
    }

    fn take_echo_slot(&self) -> bool {
        let mut echo_schedule = self.echo_schedule.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        *echo_schedule = now.max(*echo_schedule);
        let in_time = echo_schedule.duration_since(now) < ECHO_INTERVAL * ECHO_BURST;
        if in_time {
            *echo_schedule += ECHO_INTERVAL;
        }
        in_time
    }

    /// Receives the datagrams that reach the door.
    pub async fn serve(self: Arc<Datagrams>, door: OwnedFd) -> Result<(), Error> {
        let door = ReadableFd::new(door)?;
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            let datagram = door.next(|door| sys::net::receive_from(door, &mut buffer)).await?;
            let key = (datagram.peer, datagram.original);
            let known = self.flows().get(&key).cloned();
            match known.map_or_else(|| self.open(key), OpenResult::Flow) {
                OpenResult::Flow(datagram_flow) => datagram_flow.send(&buffer[..datagram.len]),
                OpenResult::Held => {}
                OpenResult::Refused => drop(sys::net::refuse_from(&self.out, key.1, key.0)),
            }
            // A guest that floods datagrams must not starve other tasks.
            consume_budget().await;
        }
    }

    /// Opens a new flow if the rules and the limit allow it.
    fn open(self: &Arc<Datagrams>, key: FlowKey) -> OpenResult {
        let remote_addr = SocketAddr::new(key.1.ip().to_canonical(), key.1.port());
        // The sender of echo requests is unknown: ping sockets have no address pair to look up.
        let socket = GuestSocket { proto: self.proto, own: key.0, to: key.1 };
        let socket = Some(socket).filter(|_| self.proto == Proto::Udp);
        let flow = Flow::new(&self.gate, self.proto, remote_addr, socket);
        let (ruling, subject) = self.gate.judge_datagrams(self.proto, remote_addr, &ApprovedSubjects::default());
        if !ruling.allowed() {
            let Some(subject) = subject else {
                self.record_refusal(key, &flow, &ruling);
                return OpenResult::Refused;
            };
            self.ask(key, flow, subject, ruling);
            return OpenResult::Held;
        }
        if self.flows().len() >= self.max_flows {
            self.record_refusal(key, &flow, &ruling.refused("there are too many flows of datagrams"));
            return OpenResult::Refused;
        }
        let socket =
            match if self.proto == Proto::Icmp { echo_socket_to(remote_addr) } else { udp_socket_to(remote_addr) } {
                Ok(socket) => socket,
                Err(error) => {
                    flow.failed(&ruling, reason_of(&error));
                    return OpenResult::Refused;
                }
            };
        flow.opened(&ruling);
        let last_used = Mutex::new(Instant::now());
        // A temporary approval is kept for the life of the flow.
        let mut approved = ApprovedSubjects::default();
        subject.into_iter().for_each(|subject| approved.add(subject));
        let datagram_flow = Arc::new(DatagramFlow {
            key,
            remote_addr,
            flow,
            socket,
            last_used,
            unanswered_echoes: Mutex::default(),
            approved,
        });
        self.flows().insert(key, datagram_flow.clone());
        tokio::spawn(self.clone().relay_until_end(datagram_flow.clone()));
        OpenResult::Flow(datagram_flow)
    }

    /// Relays replies until the flow is idle or the rules forbid it.
    async fn relay_until_end(self: Arc<Datagrams>, datagram_flow: Arc<DatagramFlow>) {
        let mut state = self.gate.watch();
        let refusal = loop {
            // Judged first, so that no change between the start and the first wait is missed.
            let (ruling, _) = self.gate.judge_datagrams(self.proto, datagram_flow.remote_addr, &datagram_flow.approved);
            if !ruling.allowed() {
                break Some(ruling);
            }
            tokio::select! {
                _ = state.changed() => {}
                _ = datagram_flow.relay_replies(self.proto, &self.out) => break self.gate.limit_refusal(),
                () = datagram_flow.idle(self.idle) => break None,
            }
        };
        self.flows().remove(&datagram_flow.key);
        if let Some(ruling) = refusal {
            datagram_flow.flow.refused(&ruling);
        }
    }

    /// Asks a person in a task of its own. Datagrams are dropped meanwhile; the answer holds for later ones.
    fn ask(self: &Arc<Datagrams>, key: FlowKey, flow: Flow, subject: AskedAccess, ruling: Ruling) {
        let here = self.clone();
        {
            let mut awaiting_approval = self.awaiting_approval();
            if awaiting_approval.len() >= MAX_AWAITING_APPROVAL || !awaiting_approval.insert(key) {
                return;
            }
        }
        tokio::spawn(async move {
            let (proto, address) = (here.proto, Some(flow.address()));
            let awaiting_approval = QuestionContext { proto, address, socket: flow.socket(), request: None };
            if let ApprovalOutcome::Refused(ruling) =
                here.gate.await_approval(&subject, &ruling, awaiting_approval).await
            {
                here.record_refusal(key, &flow, &ruling);
            }
            here.awaiting_approval().remove(&key);
        });
    }

    fn awaiting_approval(&self) -> MutexGuard<'_, BTreeSet<FlowKey>> {
        self.awaiting_approval.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_refusal(&self, key: FlowKey, flow: &Flow, ruling: &Ruling) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if refused.get(&key).is_some_and(|reported_at| now.duration_since(*reported_at) < REFUSAL_EVENT_INTERVAL) {
            return;
        }
        if refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        refused.insert(key, now);
        flow.refused(ruling);
    }

    fn flows(&self) -> MutexGuard<'_, BTreeMap<FlowKey, Arc<DatagramFlow>>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DatagramFlow {
    fn send(&self, bytes: &[u8]) {
        self.touch();
        // Datagrams that the network does not accept now are dropped.
        if self.flow.count_bytes(Direction::FromGuest, bytes.len()).is_ok() {
            let _ = rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT);
        }
    }

    async fn relay_replies(&self, proto: Proto, out: &OwnedFd) -> Result<(), Error> {
        let (peer, original) = self.key;
        loop {
            self.socket.readable().await?;
            let got = with_scratch(|buffer| {
                let (len, from) = self.socket.try_recv_from(buffer)?;
                let bytes = &buffer[..len];
                if proto == Proto::Icmp {
                    return self.relay_echo_reply(from.ip(), bytes, out);
                }
                self.flow.count_bytes(Direction::ToGuest, len)?;
                let _ = sys::net::send_from(out, original, peer, bytes);
                Ok(())
            });
            match got.map_err(|error: Error| error.kind()) {
                Ok(()) => self.touch(),
                Err(ErrorKind::WouldBlock) => {}
                Err(ErrorKind::ConnectionRefused) => drop(sys::net::refuse_from(out, original, peer)),
                Err(kind) => return Err(kind.into()),
            }
            consume_budget().await;
        }
    }

    /// Relays an echo reply if it matches a request: sent by the target, with the same sequence number and payload.
    fn relay_echo_reply(&self, from: IpAddr, message: &[u8], out: &OwnedFd) -> Result<(), Error> {
        let (peer, original) = self.key;
        let Some((sequence, payload)) = Echo::answered(message, original.is_ipv4()) else { return Ok(()) };
        let mut unanswered_echoes = self.unanswered_echoes.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = (sequence, payload_hash(payload));
        let Some(at) =
            unanswered_echoes.iter().position(|one| *one == wanted).filter(|_| from == self.remote_addr.ip())
        else {
            return Ok(());
        };
        unanswered_echoes.remove(at);
        self.flow.count_bytes(Direction::ToGuest, message.len())?;
        let payload = payload.to_vec();
        let echo = Echo { from: peer.ip(), to: original.ip(), id: peer.port(), sequence, payload };
        // Dropped if the queue is full, as on any network.
        let _ = sys::syn_capture::answer(out, &echo);
        Ok(())
    }

    /// Waits until the flow has been unused for `idle`.
    async fn idle(&self, idle: Duration) {
        loop {
            let until = *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) + idle;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until.into()).await;
        }
    }

    fn touch(&self) {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Hashes an echo payload, to compare it with its reply.
fn payload_hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Fails if the host does not permit ICMP echo sockets.
pub(crate) fn may_echo() -> Result<(), Error> {
    echo_socket(true).map(drop)
}

/// Opens an ICMP echo socket of the host for one target. The kernel does not filter replies by sender.
fn echo_socket_to(remote_addr: SocketAddr) -> Result<UdpSocket, Error> {
    let socket = echo_socket(remote_addr.is_ipv4())?;
    rustix::net::connect(&socket, &remote_addr)?;
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

fn udp_socket_to(remote_addr: SocketAddr) -> Result<UdpSocket, Error> {
    let any: IpAddr = if remote_addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(remote_addr)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}
