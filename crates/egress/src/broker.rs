//! The broker of one guest, as whoever runs the guest sees it: a thread of its own behind a few calls.

use crate::asks::Questions;
use crate::authority_of_guest::Authority;
use crate::entrance::Entrance;
use crate::event::{Event, Socket};
use crate::gate::Gate;
use crate::inspect::{Settings, Tls};
use crate::names::Names;
use crate::tcp::World;
use crate::udp::Datagrams;
pub use crate::upstream::{Resolvers, Upstream};
use policy::{Proto, Resolved};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::host::{Bound, Bounded, bound};
use sys::net::{Door, Doors};
use terms::{Actor, ErrorKind, Fault};
use tokio::runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;

/// How long a guest that is gone may have bytes on their way: a kernel would send them, too.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// Turns of the thread after which all that has come to a door was taken.
const TURNS: usize = 8;
/// Connections at once. Those beyond wait before they are let in.
const MAX_CONNECTIONS: u64 = 4096;
/// Even where descriptors are scarce, more than the doors and the command's first needs.
const MIN_CONNECTIONS: u64 = 4;
/// Two for each connection, and the rest for pipes, names and datagrams.
const DESCRIPTORS_EACH: u64 = 4;
/// For everything else that this process does: a guest must not be able to keep it from seeing what happens.
const DESCRIPTORS_KEPT: u64 = 64;
const DESCRIPTORS: u64 = DESCRIPTORS_EACH * MAX_CONNECTIONS + DESCRIPTORS_KEPT;
/// Programs inside that ping, and places they ping, for each protocol.
const MAX_ECHO_FLOWS: usize = 32;
/// What tasks may still do once everything is to end.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How much may go on at once, so that descriptors last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub connections: usize,
    /// Pipes of two descriptors, for connections that much passes through.
    pub pipes: usize,
    /// Flows of datagrams, for each door.
    pub flows: usize,
    /// Questions for names.
    pub questions: usize,
}

impl Room {
    fn within(descriptors: u64) -> Room {
        let connections = descriptors.saturating_sub(DESCRIPTORS_KEPT) / DESCRIPTORS_EACH;
        let connections = connections.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS) as usize;
        let questions = (connections / 16).max(MIN_CONNECTIONS as usize);
        Room { connections, pipes: connections / 2, flows: connections / 4, questions }
    }
}

/// A secret with its value. The value is never printed.
pub struct SecretValue {
    /// As in the policy.
    pub name: String,
    /// What the guest has instead.
    pub placeholder: String,
    pub value: Vec<u8>,
}

pub struct Setup {
    pub doors: Doors,
    pub policy: Resolved,
    /// Which version of the rules these are.
    pub revision: u64,
    pub secrets: Vec<SecretValue>,
    /// Signs for hosts whose requests must be read; made by the caller because the guest must be told to trust it.
    pub authority: Option<Arc<Authority>>,
    pub max_net_bytes: Option<u64>,
    pub around: Around,
}

/// Says which process of the guest holds a socket. Called on the broker's thread, which waits for it.
pub type Who = Box<dyn FnMut(Socket) -> Option<Actor> + Send>;

/// Says which run of the guest a socket belongs to; without a socket, whichever it can only be. Called like the other.
pub type Whose = Box<dyn FnMut(Option<Socket>) -> Option<Arc<str>> + Send>;

/// What a run has beside its rules.
#[derive(Default)]
pub struct Around {
    pub who: Option<Who>,
    pub whose: Option<Whose>,
    /// Descriptors of this process that others are to have.
    pub descriptors: u64,
    /// A name that may not be asked for gets an address all the same, one that leads nowhere, so that the place the
    /// guest wants to reach there is told. Nobody is asked for it.
    pub imagines: bool,
    /// Where a person is asked; without, what asks is refused.
    pub asks: Option<Arc<Questions>>,
    pub(crate) imagined: u32,
}

/// What a host or a test may have otherwise.
pub struct Tuning {
    /// Whom to ask for names.
    pub upstream: Upstream,
    /// How long a server may take to accept a connection that a client of a proxy asks for.
    pub connect_timeout: Duration,
    /// After how long a flow of datagrams that nothing passes through is over.
    pub udp_idle: Duration,
    /// How requests are read, and whom servers may be vouched for by.
    pub inspect: Settings,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            upstream: Upstream::of_host(),
            connect_timeout: Duration::from_secs(30),
            udp_idle: Duration::from_secs(60),
            inspect: Settings::default(),
        }
    }
}

pub struct Broker {
    gate: Arc<Gate>,
    wake: OwnedFd,
    /// The thread ends when this is gone.
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// Puts other rules in force; whoever has it need not have the broker.
#[derive(Clone)]
pub struct Handle {
    gate: Arc<Gate>,
}

impl Handle {
    /// Closes what the rules forbid. `revision` is what they are called from now on.
    pub fn replace(&self, policy: Resolved, revision: u64) {
        self.gate.replace(policy, |_| revision);
    }

    /// Values for secrets that were not known when it was started, in the place of all that were.
    pub fn give(&self, secrets: Vec<SecretValue>) {
        self.gate.give(secrets);
    }
}

impl Broker {
    /// Starts the broker's thread. Call it only after the last clone.
    pub fn start(setup: Setup) -> Result<Broker, Fault> {
        Broker::start_with(setup, Tuning::default())
    }

    pub fn start_with(setup: Setup, tuning: Tuning) -> Result<Broker, Fault> {
        let room = Room::within(want_descriptors().saturating_sub(setup.around.descriptors));
        let rules = (setup.policy, setup.revision);
        let gate = Gate::new(rules, setup.secrets, setup.max_net_bytes, room.pipes).map_err(fault)?;
        let gate = Arc::new(gate.with(setup.around));
        let wake = gate.journal.wake_handle().map_err(fault)?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(fault)?;
        let (stop, stopped) = oneshot::channel();
        let names = Arc::new(Names::new(gate.clone(), tuning.upstream, room.questions));
        let slots = Arc::new(Semaphore::new(room.connections));
        let tls = Arc::new(Tls::new(setup.authority, tuning.inspect));
        let world = World { gate: gate.clone(), names, slots, tls, connect_timeout: tuning.connect_timeout };
        let last = gate.clone();
        let work = move || {
            runtime.block_on(async {
                open(&Arc::new(world), setup.doors, tuning.udp_idle, room.flows);
                let _ = stopped.await;
                for _ in 0..TURNS {
                    yield_now().await;
                }
                if !last.is_over() {
                    let _ = timeout(ON_THE_WAY, last.all_said()).await;
                }
            });
            // Connections end with their tasks, and tell so.
            runtime.shutdown_timeout(LAST_WORDS);
        };
        let thread = std::thread::Builder::new().name("broker".to_owned()).spawn(work).map_err(fault)?;
        Ok(Broker { gate, wake, running: Some((stop, thread)) })
    }

    /// Readable when there are events to take or the byte limit was met.
    pub fn wake(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.wake.as_fd()
    }

    /// What happened since the last call, and how many events were dropped because nobody took them.
    pub fn events(&mut self) -> (Vec<Event>, u64) {
        self.gate.journal.take()
    }

    /// Bytes both ways so far.
    pub fn net_bytes(&self) -> u64 {
        self.gate.spent()
    }

    /// Whether the guest went over `max_net_bytes`; nothing passes from then on.
    pub fn over_limit(&self) -> bool {
        self.gate.is_over()
    }

    /// Puts other rules in force and closes what they forbid; the revision they got.
    pub fn replace(&self, policy: Resolved) -> u64 {
        self.gate.replace(policy, |before| before + 1)
    }

    /// A handle by which others put other rules in force.
    pub fn handle(&self) -> Handle {
        Handle { gate: self.gate.clone() }
    }

    /// Ends everything and gives the last events.
    pub fn stop(mut self) -> (Vec<Event>, u64) {
        self.end();
        self.gate.journal.take()
    }

    fn end(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            // It catches what its tasks do wrong; there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}

/// Whether this host lets us send echo requests for a guest.
pub fn may_echo() -> std::io::Result<()> {
    crate::udp::may_echo()
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sets somebody to each door.
fn open(world: &Arc<World>, doors: Doors, udp_idle: Duration, flows: usize) {
    let gate = world.gate.clone();
    tokio::spawn(async move { gate.journal.tend().await });
    let (v4, v6): (Vec<_>, Vec<_>) =
        doors.loopback.into_iter().filter_map(with_place).partition(|(at, _)| at.is_ipv4());
    for (door, inside) in [Some(doors.v4).zip(Some(v4)), doors.v6.zip(Some(v6))].into_iter().flatten() {
        let Door { tcp, dns, udp, out, knocks, again } = door;
        let out = Arc::new(out);
        let datagrams = |proto, most| Datagrams::new(world.gate.clone(), proto, out.clone(), udp_idle, most);
        let echoes = datagrams(Proto::Icmp, flows.min(MAX_ECHO_FLOWS));
        if let Ok(entrance) = Entrance::new(world.clone(), (tcp, knocks, again), out.clone(), echoes, inside) {
            entrance.open();
        }
        tokio::spawn(world.names.clone().serve(dns, out.clone()));
        tokio::spawn(datagrams(Proto::Udp, flows).serve(udp));
    }
}

/// A door on the guest's loopback, with where it stands.
fn with_place(door: OwnedFd) -> Option<(SocketAddr, OwnedFd)> {
    let door = TcpListener::from(door);
    Some((door.local_addr().ok()?, door.into()))
}

/// Every connection takes descriptors of this process, and the usual limit is for programs that have few. How many there
/// may be in the end.
fn want_descriptors() -> u64 {
    let Bound { current, maximum } = bound(Bounded::OpenFiles);
    let wanted = maximum.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    match current {
        Some(current) if current < wanted => {
            let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
            if raised.is_ok() { wanted } else { current }
        }
        current => current.unwrap_or(DESCRIPTORS),
    }
}

fn fault(error: std::io::Error) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("the network broker cannot start: {error}"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn descriptors_last() {
        let most = Room::within(DESCRIPTORS);
        assert_eq!(most, Room { connections: 4096, pipes: 2048, flows: 1024, questions: 256 });
        assert_eq!(Room::within(u64::MAX), most);
        for few in [256, 1024, 4096] {
            let Room { connections, pipes, flows, questions } = Room::within(few);
            assert!(2 * connections + 2 * pipes + 2 * flows + questions + 64 <= few as usize, "{few}");
        }
        assert_eq!(Room::within(0), Room { connections: 4, pipes: 2, flows: 1, questions: 4 });
    }
}
