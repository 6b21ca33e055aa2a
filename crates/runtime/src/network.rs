//! A guest's network: connects the broker at its doors to the supervisor on one side, and to the event file and observers on the other.

use crate::events::{EventFile, without_query};
use crate::questions::Questions;
use crate::roster::{Roster, Runs};
use crate::secrets::Secrets;
use egress::broker::{Broker, ProcessLookup, RunContext, RunLookup, Setup};
use egress::event::{Event, EventStage, GuestSocket, Op};
use egress::guest_ca::GuestCa;
use egress::refuser;
use enclosure::{NetPlan, NetReport, Network, Opening};
use policy::{Proto, Resolved};
use state::Caller;
use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use terms::{Action, ErrorKind, Fault, Phase};

/// Queries of a guest without a network that are answered in one turn of the supervisor.
const MAX_QUERIES: usize = 64;
/// Longest query read; clients announce less than this with EDNS.
const MAX_QUERY: usize = 4096;

/// Network part of a run's plan. Where the policy gives no network, a name server alone; empty where there can be none.
#[derive(Default)]
pub(crate) struct Planned {
    plan: Option<NetPlan>,
    /// CA that signs for hosts whose requests are inspected; the plan has its certificate.
    authority: Option<Arc<GuestCa>>,
    pub(crate) secrets: Secrets,
    fakes_addresses: bool,
}

/// Returns whether a network rule has the action `ask`.
fn asks(resolved: &Resolved) -> bool {
    let asks = |rule: &policy::NetRule| rule.action == Action::Ask && rule.proto != Some(Proto::Unix);
    resolved.policy().net.iter().any(|r| asks(&r.rule))
}

/// Purpose of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Connections that the rules let through, if there are any.
    Rules,
    /// Observation of attempted connections as well.
    Watching,
}

/// Plans the network; `words` name the sources of secrets.
pub(crate) fn plan(
    resolved: &Resolved,
    words: &[String],
    caller: &Caller,
    purpose: Purpose,
    namespaces: bool,
) -> Result<Planned, Fault> {
    let secrets = Secrets::of_policy(resolved.policy(), words, caller)?;
    if resolved.needs_network().is_none() && purpose == Purpose::Rules {
        let plan = namespaces.then(|| NetPlan { names_only: true, ..NetPlan::default() });
        return Ok(Planned { plan, secrets, ..Planned::default() });
    }
    let loopback = resolved.loopback_places(sys::doors::MOST_LOOPBACK).map_err(crate::policies::unsupported)?;
    let echoes = match resolved.sends_echoes() {
        Some(rule) => may_echo(rule)?,
        None => false,
    };
    let authority = match resolved.inspects_anything() {
        true => Some(Arc::new(GuestCa::new()?)),
        false => None,
    };
    let pem = authority.as_ref().map(|a| a.certificate_pem().to_owned());
    let fakes_addresses = purpose == Purpose::Watching;
    Ok(Planned {
        plan: Some(NetPlan { names_only: false, loopback, echoes, asks: asks(resolved), authority: pem }),
        authority,
        secrets,
        fakes_addresses,
    })
}

impl Planned {
    /// Returns whether requests are inspected, so that programs inside must trust the guest CA.
    pub(crate) fn inspects(&self) -> bool {
        self.authority.is_some()
    }

    /// Splits the plan into the part for the guest's setup and the part for the broker.
    pub(crate) fn divide(
        self,
        policy: &Resolved,
        max_net_bytes: Option<u64>,
    ) -> (Option<NetPlan>, Option<BrokerRequest>) {
        let Planned { plan, authority, secrets, fakes_addresses } = self;
        let names_only = plan.as_ref().is_some_and(|plan| plan.names_only);
        let own = || if names_only { Vec::new() } else { sys::net::own_addresses() };
        let wanted = plan.is_some().then(|| BrokerRequest {
            names_only,
            policy: policy.clone().on_host(own()),
            secrets,
            authority,
            max_net_bytes,
            fakes_addresses,
            asks: asks(policy),
            questions: None,
            revision: 1,
            roster: Roster::default(),
        });
        (plan, wanted)
    }
}

/// Checks that this host lets the user send echo requests for the guest; a fault where it does not.
fn may_echo(rule: &str) -> Result<bool, Fault> {
    match egress::broker::may_echo() {
        Ok(()) => Ok(true),
        Err(error) => {
            let group = rustix::process::getegid().as_raw();
            let message = format!("{rule}: echo requests cannot be sent from this host by this user: {error}");
            let hint = format!(
                r#"as root: sysctl -w net.ipv4.ping_group_range="{group} {group}", or a range with this group"#
            );
            Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
        }
    }
}

/// Arguments of the broker, which is started once the doors exist.
pub(crate) struct BrokerRequest {
    /// A name server that refuses, and no broker.
    pub(crate) names_only: bool,
    policy: Resolved,
    pub(crate) secrets: Secrets,
    authority: Option<Arc<GuestCa>>,
    max_net_bytes: Option<u64>,
    fakes_addresses: bool,
    /// Some rule asks; and the table of questions.
    pub(crate) asks: bool,
    pub(crate) questions: Option<Questions>,
    /// Policy revision, and the runs that events are attributed to.
    pub(crate) revision: u64,
    pub(crate) roster: Roster,
}

/// Observer of every event.
pub(crate) type EventObserver<'a> = Box<dyn FnMut(&Event) + 'a>;

/// Handle that replaces the rules, once there is a broker.
pub(crate) type RulesHandle = Rc<RefCell<Option<egress::broker::Handle>>>;

/// Network features that a guest was built with; rules that need more need another guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    network: bool,
    loopback: Vec<std::net::SocketAddr>,
    echoes: bool,
    inspects: bool,
}

impl Shape {
    pub(crate) fn of(resolved: &Resolved) -> Result<Shape, Fault> {
        Ok(Shape {
            network: resolved.needs_network().is_some(),
            loopback: resolved.loopback_places(sys::doors::MOST_LOOPBACK).map_err(crate::policies::unsupported)?,
            echoes: resolved.sends_echoes().is_some(),
            inspects: resolved.inspects_anything(),
        })
    }

    /// Returns the first feature that the other shape needs and this one lacks.
    pub(crate) fn lacks(&self, other: &Shape) -> Option<&'static str> {
        match other {
            _ if other.network && !self.network => Some("a network"),
            _ if other.loopback.iter().any(|place| !self.loopback.contains(place)) => Some("a door on its loopback"),
            _ if other.echoes && !self.echoes => Some("echo requests"),
            _ if other.inspects && !self.inspects => Some("an authority that it trusts, for requests to be read"),
            _ => None,
        }
    }
}

/// The broker of one run.
pub(crate) struct Brokered<'a> {
    wanted: Option<BrokerRequest>,
    broker: Option<Broker>,
    /// The name server of a guest without a network.
    refuser: Option<NameServer>,
    events: Option<Rc<RefCell<EventFile>>>,
    ear: Option<EventObserver<'a>>,
    rules_handle: RulesHandle,
    roster: Roster,
    /// Final values, after the broker was stopped.
    used: u64,
    is_over_limit: bool,
}

impl<'a> Brokered<'a> {
    pub(crate) fn new(
        wanted: BrokerRequest,
        events: Option<Rc<RefCell<EventFile>>>,
        ear: Option<EventObserver<'a>>,
    ) -> Brokered<'a> {
        let (rules_handle, roster) = (RulesHandle::default(), wanted.roster.clone());
        Brokered {
            wanted: Some(wanted),
            broker: None,
            refuser: None,
            events,
            ear,
            rules_handle,
            roster,
            used: 0,
            is_over_limit: false,
        }
    }

    pub(crate) fn rules_handle(&self) -> RulesHandle {
        self.rules_handle.clone()
    }

    fn dispatch(&mut self, (events, dropped): (Vec<Event>, u64)) -> Vec<NetReport> {
        if let Some(file) = &self.events {
            let mut file = file.borrow_mut();
            events.iter().for_each(|event| file.put(event));
            file.lost(dropped);
        }
        if let Some(ear) = &mut self.ear {
            events.iter().for_each(ear);
        }
        let is_quiet = |rule: &str| {
            let handle = self.rules_handle.borrow();
            handle.as_ref().is_some_and(|handle| handle.is_quiet(rule))
        };
        events.iter().filter_map(|event| report(event, &self.roster, is_quiet(&event.rule))).collect()
    }
}

/// Process lookup of the guest, shared by the lookups of processes and of runs.
type Actors = Option<Arc<Mutex<enclosure::Actors>>>;

/// Builds the lookup of the process that holds a socket.
fn process_lookup(actors: &Actors) -> Option<ProcessLookup> {
    let actors = actors.clone()?;
    Some(Box::new(move |socket: GuestSocket| {
        let mut actors = actors.lock().unwrap_or_else(PoisonError::into_inner);
        match socket.proto {
            Proto::Tcp => actors.of_stream(socket.own, socket.to),
            Proto::Udp => actors.of_datagrams(socket.own),
            _ => None,
        }
    }))
}

/// Builds the lookup of the run that holds a socket. With a single run no process is searched.
fn run_lookup(actors: Actors, roster: Roster) -> RunLookup {
    let find = move |socket: GuestSocket, among: &[i32]| {
        let mut actors = actors.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        match socket.proto {
            Proto::Tcp => actors.stream_below((socket.own, socket.to), among),
            Proto::Udp => actors.datagrams_below(socket.own, among),
            _ => None,
        }
    };
    Box::new(move |socket| match roster.now() {
        Runs::None => None,
        Runs::One(run) => Some(run),
        Runs::Several(among) => roster.below(find(socket?, &among)?),
    })
}

/// The name server of a guest without a network: refuses every name. Works in the supervisor's thread, because a guest
/// that resolves nothing costs it nothing.
struct NameServer {
    socket: UdpSocket,
    policy: Resolved,
    revision: u64,
    actors: Option<enclosure::Actors>,
}

impl NameServer {
    /// Answers the waiting queries, and returns what was refused. Each is taken down before the guest has its reply.
    fn refuse(&mut self, roster: &Roster) -> Vec<Event> {
        let Ok(own) = self.socket.local_addr() else { return Vec::new() };
        let mut refused = Vec::new();
        let mut buffer = [0; MAX_QUERY];
        for _ in 0..MAX_QUERIES {
            let Ok((len, peer)) = self.socket.recv_from(&mut buffer) else { break };
            let socket = GuestSocket { proto: Proto::Udp, own: peer, to: own };
            let (reply, event) = refuser::refuse(&buffer[..len], &self.policy, self.revision, socket);
            refused.extend(event.map(|event| self.attribute(event, peer, roster)));
            if let Some(reply) = reply {
                let _ = self.socket.send_to(&reply, peer); // The client retries.
            }
        }
        refused
    }

    /// Adds the process and the run that asked, as far as they are found.
    fn attribute(&mut self, event: Event, peer: SocketAddr, roster: &Roster) -> Event {
        let actor = self.actors.as_mut().and_then(|actors| actors.of_datagrams(peer));
        let run = match roster.now() {
            Runs::None => None,
            Runs::One(run) => Some(run),
            Runs::Several(among) => {
                let first = self.actors.as_mut().and_then(|actors| actors.datagrams_below(peer, &among));
                first.and_then(|first| roster.below(first))
            }
        };
        Event { actor, run, ..event }
    }
}

impl Network for Brokered<'_> {
    fn open(&mut self, opening: Opening) -> Result<(), Fault> {
        let Some(wanted) = self.wanted.take() else { return Ok(()) };
        let BrokerRequest {
            policy,
            secrets,
            authority,
            max_net_bytes,
            fakes_addresses,
            questions,
            revision,
            roster,
            ..
        } = wanted;
        let Opening { doors, resolver, actors, published } = opening;
        let Some(doors) = doors else {
            let socket = resolver.map(UdpSocket::from);
            self.refuser = socket.map(|socket| NameServer { socket, policy, revision, actors });
            return Ok(());
        };
        let mut run_context = RunContext::default();
        let actors = actors.map(|actors| Arc::new(Mutex::new(actors)));
        (run_context.process_lookup, run_context.reserved_descriptors, run_context.fakes_addresses) =
            (process_lookup(&actors), published, fakes_addresses);
        run_context.run_lookup = Some(run_lookup(actors, roster));
        run_context.approvals = questions.map(|questions| Arc::new(questions) as Arc<dyn egress::approval::Approvals>);
        let secrets = secrets.read()?;
        let broker = Broker::start(Setup { doors, policy, revision, secrets, authority, max_net_bytes, run_context })?;
        self.rules_handle.replace(Some(broker.handle()));
        self.broker = Some(broker);
        Ok(())
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        let refuser = self.refuser.as_ref().map(|server| server.socket.as_fd());
        self.broker.as_ref().map(Broker::wake).or(refuser)
    }

    fn happened(&mut self) -> Vec<NetReport> {
        if let Some(server) = &mut self.refuser {
            let refused = server.refuse(&self.roster);
            return self.dispatch((refused, 0));
        }
        let taken = self.broker.as_mut().map(Broker::events).unwrap_or_default();
        self.dispatch(taken)
    }

    fn used(&self) -> u64 {
        self.broker.as_ref().map_or(self.used, Broker::net_bytes)
    }

    fn over_limit(&self) -> bool {
        self.broker.as_ref().map_or(self.is_over_limit, Broker::is_over_limit)
    }

    fn close(&mut self) -> Vec<NetReport> {
        if let Some(mut server) = self.refuser.take() {
            let refused = server.refuse(&self.roster);
            return self.dispatch((refused, 0));
        }
        let Some(broker) = self.broker.take() else { return Vec::new() };
        (self.used, self.is_over_limit) = (broker.net_bytes(), broker.is_over_limit());
        let last = self.dispatch(broker.stop());
        self.rules_handle.take();
        last
    }
}

impl Drop for Brokered<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Builds the outcome's entry for an event: refusals, and once for traffic that passed with a warning. `quiet` says that the rule calls its
/// refusals expected.
fn report(event: &Event, roster: &Roster, quiet: bool) -> Option<NetReport> {
    let action = match (event.stage, event.action) {
        // A rule may have allowed it before another check refused it.
        (EventStage::Refused, Action::Allow | Action::Warn) => Action::Deny,
        (_, action) => action,
    };
    let hint = match (&event.hint, &event.reason) {
        _ if action == Action::Warn => None,
        (Some(hint), Some(reason)) => Some(format!("{reason}; {hint}")),
        (hint, reason) => hint.clone().or_else(|| reason.clone()),
    };
    let (target, rule, actor) = (target(event), event.rule.clone(), event.actor.clone());
    let shepherd = event.run.as_ref().and_then(|run| roster.first_of(run));
    event.is_notable().then(|| NetReport { op: event.op.name(), target, rule, action, hint, quiet, actor, shepherd })
}

/// Formats `host:port`, `icmp:host`, or a URL without its query, which may hold secrets.
fn target(event: &Event) -> String {
    if let (Proto::Icmp, Some(address)) = (event.proto, event.address) {
        return format!("icmp:{}", event.name.clone().unwrap_or_else(|| address.ip().to_string()));
    }
    let port = event.address.map(|a| a.port());
    let place = match (&event.name, event.address) {
        (Some(name), _) => name.clone(),
        (None, Some(address)) if address.is_ipv6() => format!("[{}]", address.ip()),
        (None, Some(address)) => address.ip().to_string(),
        (None, None) => "?".into(),
    };
    let place = match (event.op, port) {
        (Op::Resolve, _) | (_, None) => place,
        (_, Some(port)) => format!("{place}:{port}"),
    };
    match (event.op, &event.method, &event.path) {
        (Op::Request, Some(method), Some(path)) => format!("{method} {place}{}", without_query(path)),
        _ => place,
    }
}

#[cfg(test)]
pub(crate) mod test {
    use super::*;

    pub(crate) fn event(op: Op, stage: EventStage, action: Action) -> Event {
        Event {
            op,
            stage,
            action,
            rule: "p:net.rules[0]".into(),
            revision: 1,
            proto: policy::Proto::Tcp,
            name: Some("example.org".into()),
            address: Some("192.0.2.1:443".parse().unwrap()),
            method: None,
            path: None,
            bytes_in: 0,
            bytes_out: 0,
            reason: None,
            hint: Some("allow it".into()),
            socket: None,
            actor: None,
            run: None,
        }
    }

    #[test]
    fn refusals_and_warnings_are_told_once() {
        let told = |stage, action| {
            report(&event(Op::Connect, stage, action), &Roster::default(), false).map(|r| (r.action, r.target))
        };
        let place = "example.org:443".to_owned();
        assert_eq!(told(EventStage::Refused, Action::Deny), Some((Action::Deny, place.clone())));
        assert_eq!(told(EventStage::Refused, Action::Ask), Some((Action::Ask, place.clone())));
        assert_eq!(told(EventStage::Refused, Action::Allow), Some((Action::Deny, place.clone())));
        assert_eq!(told(EventStage::Opened, Action::Warn), Some((Action::Warn, place)));
        for (stage, action) in [
            (EventStage::Closed, Action::Warn),
            (EventStage::Opened, Action::Allow),
            (EventStage::Closed, Action::Allow),
            (EventStage::Failed, Action::Allow),
        ] {
            assert_eq!(told(stage, action), None, "{stage:?} {action:?}");
        }
    }

    #[test]
    fn a_target_has_no_query() {
        let request = Event {
            method: Some("GET".into()),
            path: Some("/a/b?token=x".into()),
            ..event(Op::Request, EventStage::Refused, Action::Deny)
        };
        assert_eq!(target(&request), "GET example.org:443/a/b");
        assert_eq!(target(&event(Op::Resolve, EventStage::Refused, Action::Deny)), "example.org");
        let bare = Event { name: None, ..event(Op::Connect, EventStage::Refused, Action::Deny) };
        assert_eq!(target(&bare), "192.0.2.1:443");
    }
}
