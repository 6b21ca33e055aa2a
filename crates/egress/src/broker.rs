//! The broker of one guest as its supervisor uses it: a thread behind a few calls.

use crate::connection::Services;
use crate::event::Event;
use crate::gate::Gate;
use crate::guest_ca::GuestCa;
use crate::inspect::{InspectorSettings, Tls};
use crate::pending_connections::PendingConnections;
use crate::resolver::Resolver;
pub use crate::setup::{ProcessLookup, RunContext, RunLookup, SecretValue};
use crate::udp::Datagrams;
pub use crate::upstream::{Resolvers, Upstream};
use policy::{Proto, Resolved};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::host::{Bound, BoundedResource, bound};
use sys::net::{Door, Doors};
use terms::{ErrorKind, Fault};
use tokio::runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Time to relay bytes that an exited guest had already sent, as a kernel would still send them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Yields of the runtime after which every packet that had reached a door was read.
const DRAIN_YIELDS: usize = 8;
/// Upper bound on concurrent connections. A connection beyond it waits with its SYN unanswered.
const MAX_CONNECTIONS: u64 = 4096;
/// Lower bound on concurrent connections where descriptors are scarce.
const MIN_CONNECTIONS: u64 = 4;
/// Descriptors per connection: two for its sockets, the rest for pipes, DNS queries and datagram flows.
const DESCRIPTORS_EACH: u64 = 4;
/// Descriptors reserved for the rest of this process, so that a guest cannot keep the supervisor from observing it.
const DESCRIPTORS_KEPT: u64 = 64;
const DESCRIPTORS: u64 = DESCRIPTORS_EACH * MAX_CONNECTIONS + DESCRIPTORS_KEPT;
/// Limit on ping flows (pairs of echo id and target) for each IP version.
const MAX_ECHO_FLOWS: usize = 32;
/// Time for tasks to finish after the broker was told to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);

/// Concurrency limits derived from the descriptor limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub connections: usize,
    /// Splice pipes of two descriptors each, for connections with much traffic.
    pub pipes: usize,
    /// Datagram flows for each door.
    pub flows: usize,
    /// Concurrent DNS queries.
    pub dns_queries: usize,
}

impl Capacity {
    fn for_descriptors(descriptors: u64) -> Capacity {
        let connections = descriptors.saturating_sub(DESCRIPTORS_KEPT) / DESCRIPTORS_EACH;
        let connections = connections.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS) as usize;
        let dns_queries = (connections / 16).max(MIN_CONNECTIONS as usize);
        Capacity { connections, pipes: connections / 2, flows: connections / 4, dns_queries }
    }
}

pub struct Setup {
    pub doors: Doors,
    pub policy: Resolved,
    /// Revision of the rules in `policy`.
    pub revision: u64,
    pub secrets: Vec<SecretValue>,
    /// Certificate authority for inspected hosts. The caller creates it, because the guest must be configured to trust
    /// it.
    pub authority: Option<Arc<GuestCa>>,
    pub max_net_bytes: Option<u64>,
    pub run_context: RunContext,
}

/// Parameters that a host or a test may change.
pub struct Tuning {
    /// Resolvers and hosts table.
    pub upstream: Upstream,
    /// Deadline for a server to accept a connection that a proxy client requests.
    pub connect_timeout: Duration,
    /// Idle time after which a datagram flow ends.
    pub udp_idle: Duration,
    /// Timeouts of the request inspector, and extra root certificates for servers.
    pub inspect: InspectorSettings,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            upstream: Upstream::of_host(),
            connect_timeout: Duration::from_secs(30),
            udp_idle: Duration::from_secs(60),
            inspect: InspectorSettings::default(),
        }
    }
}

pub struct Broker {
    gate: Arc<Gate>,
    wake: OwnedFd,
    /// Dropping the sender stops the thread.
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// Replaces rules and secrets of a running broker, independent of the `Broker` value.
#[derive(Clone)]
pub struct Handle {
    gate: Arc<Gate>,
}

impl Handle {
    /// Puts other rules in force under this revision, and closes connections that they forbid.
    pub fn replace(&self, policy: Resolved, revision: u64) {
        self.gate.replace(policy, |_| revision);
    }

    /// Returns true if the rule of this label says that its refusals are expected.
    pub fn is_quiet(&self, rule: &str) -> bool {
        self.gate.is_quiet(rule)
    }

    /// Replaces all secret values, for secrets that become known after the start.
    pub fn replace_secrets(&self, secrets: Vec<SecretValue>) {
        self.gate.replace_secrets(secrets);
    }
}

impl Broker {
    /// Starts the broker's thread. Must not be called before the last clone of this process.
    pub fn start(setup: Setup) -> Result<Broker, Fault> {
        Broker::start_with(setup, Tuning::default())
    }

    pub fn start_with(setup: Setup, tuning: Tuning) -> Result<Broker, Fault> {
        let capacity =
            Capacity::for_descriptors(want_descriptors().saturating_sub(setup.run_context.reserved_descriptors));
        let rules = (setup.policy, setup.revision);
        let gate = Gate::new(rules, setup.secrets, setup.max_net_bytes, capacity.pipes).map_err(fault)?;
        let gate = Arc::new(gate.with(setup.run_context));
        let wake = gate.events.wake_handle().map_err(fault)?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(fault)?;
        let (stop, stopped) = oneshot::channel();
        let resolver = Arc::new(Resolver::new(gate.clone(), tuning.upstream, capacity.dns_queries));
        let slots = Arc::new(Semaphore::new(capacity.connections));
        let tls = Arc::new(Tls::new(setup.authority, tuning.inspect));
        let services = Services { gate: gate.clone(), resolver, slots, tls, connect_timeout: tuning.connect_timeout };
        let last = gate.clone();
        let work = move || {
            runtime.block_on(async {
                open(&Arc::new(services), setup.doors, tuning.udp_idle, capacity.flows);
                let _ = stopped.await;
                for _ in 0..DRAIN_YIELDS {
                    yield_now().await;
                }
                if !last.is_over_limit() {
                    let _ = timeout(DRAIN_TIMEOUT, last.uploads_done()).await;
                }
            });
            // Dropping the tasks closes their connections and queues the closing events.
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        };
        let thread = std::thread::Builder::new().name("broker".to_owned()).spawn(work).map_err(fault)?;
        Ok(Broker { gate, wake, running: Some((stop, thread)) })
    }

    /// Descriptor that is readable while events wait or after the byte limit was exceeded.
    pub fn wake(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.wake.as_fd()
    }

    /// Returns the events since the last call, and the number of events dropped because the queue was full.
    pub fn events(&mut self) -> (Vec<Event>, u64) {
        self.gate.events.take()
    }

    /// Bytes in both directions so far.
    pub fn net_bytes(&self) -> u64 {
        self.gate.spent()
    }

    /// Returns true if the guest exceeded `max_net_bytes`; from then on all traffic is refused.
    pub fn is_over_limit(&self) -> bool {
        self.gate.is_over_limit()
    }

    /// Puts other rules in force, closes connections that they forbid, and returns the new revision.
    pub fn replace(&self, policy: Resolved) -> u64 {
        self.gate.replace(policy, |before| before + 1)
    }

    /// Returns a handle that replaces rules and secrets.
    pub fn handle(&self) -> Handle {
        Handle { gate: self.gate.clone() }
    }

    /// Stops the broker and returns the last events.
    pub fn stop(mut self) -> (Vec<Event>, u64) {
        self.end();
        self.gate.events.take()
    }

    fn end(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            // The runtime catches panics of tasks; the thread's result adds nothing.
            let _ = thread.join();
        }
    }
}

/// Fails if this host does not permit unprivileged ICMP echo sockets.
pub fn may_echo() -> std::io::Result<()> {
    crate::udp::may_echo()
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the tasks that serve each door.
fn open(services: &Arc<Services>, doors: Doors, udp_idle: Duration, flows: usize) {
    let gate = services.gate.clone();
    tokio::spawn(async move { gate.events.signal_batches().await });
    let (v4, v6): (Vec<_>, Vec<_>) =
        doors.loopback.into_iter().filter_map(with_local_addr).partition(|(at, _)| at.is_ipv4());
    for (door, inside) in [Some(doors.v4).zip(Some(v4)), doors.v6.zip(Some(v6))].into_iter().flatten() {
        let Door { tcp, dns, udp, out, captured, again } = door;
        let out = Arc::new(out);
        let datagrams = |proto, most| Datagrams::new(services.gate.clone(), proto, out.clone(), udp_idle, most);
        let echoes = datagrams(Proto::Icmp, flows.min(MAX_ECHO_FLOWS));
        if let Ok(pending) =
            PendingConnections::new(services.clone(), (tcp, captured, again), out.clone(), echoes, inside)
        {
            pending.open();
        }
        tokio::spawn(services.resolver.clone().serve(dns, out.clone()));
        tokio::spawn(datagrams(Proto::Udp, flows).serve(udp));
    }
}

/// Pairs a listener on the guest's loopback with its local address.
fn with_local_addr(door: OwnedFd) -> Option<(SocketAddr, OwnedFd)> {
    let door = TcpListener::from(door);
    Some((door.local_addr().ok()?, door.into()))
}

/// Raises the soft limit on open files towards what the broker needs, since every connection takes descriptors of this
/// process and the usual soft limit is low. Returns the limit in effect.
fn want_descriptors() -> u64 {
    let Bound { current, maximum } = bound(BoundedResource::OpenFiles);
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
        let most = Capacity::for_descriptors(DESCRIPTORS);
        assert_eq!(most, Capacity { connections: 4096, pipes: 2048, flows: 1024, dns_queries: 256 });
        assert_eq!(Capacity::for_descriptors(u64::MAX), most);
        for few in [256, 1024, 4096] {
            let Capacity { connections, pipes, flows, dns_queries } = Capacity::for_descriptors(few);
            assert!(2 * connections + 2 * pipes + 2 * flows + dns_queries + 64 <= few as usize, "{few}");
        }
        assert_eq!(Capacity::for_descriptors(0), Capacity { connections: 4, pipes: 2, flows: 1, dns_queries: 4 });
    }
}
