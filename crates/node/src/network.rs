//! A guest's network: the broker at its doors, joined to the supervisor on one side and to those who want to hear of
//! events on the other.

use crate::Caller;
use crate::events::EventFile;
use crate::questions::Questions;
use crate::roster::{Roster, Runs};
use crate::secrets::Secrets;
use egress::authority_of_guest::Authority;
use egress::broker::{Around, Broker, Setup, Who, Whose};
use egress::event::{Event, Op, Socket, Stage};
use enclosure::{NetPlan, NetReport, Network, Opening};
use policy::{Proto, Resolved};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use terms::{Action, ErrorKind, Fault, Phase};

/// What a policy makes of a guest's network; nothing when it gives none.
#[derive(Default)]
pub(crate) struct Planned {
    plan: Option<NetPlan>,
    /// Signs for hosts whose requests are read; the plan has its certificate.
    authority: Option<Arc<Authority>>,
    pub(crate) secrets: Secrets,
    imagines: bool,
}

/// Whether rules about the network ask somebody.
fn asks(resolved: &Resolved) -> bool {
    let asks = |rule: &policy::NetRule| rule.action == Action::Ask && rule.proto != Some(Proto::Unix);
    resolved.policy().net.iter().any(|r| asks(&r.rule))
}

/// Who wants a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The rules, if they let anything through.
    Rules,
    /// Whoever wants to see what is tried, as well.
    Watching,
}

/// Makes the plan; `secrets` say where values come from.
pub(crate) fn plan(
    resolved: &Resolved,
    secrets: &[String],
    caller: &Caller,
    purpose: Purpose,
) -> Result<Planned, Fault> {
    let named: BTreeSet<&str> = resolved.policy().secrets.iter().map(|s| s.rule.name.as_str()).collect();
    let secrets = Secrets::find(&named, secrets, caller)?;
    if resolved.needs_network().is_none() && purpose == Purpose::Rules {
        return Ok(Planned::default());
    }
    let loopback = resolved.loopback_places(sys::doors::MOST_LOOPBACK).map_err(unsupported)?;
    let echoes = match resolved.sends_echoes() {
        Some(rule) => may_echo(rule)?,
        None => false,
    };
    let authority = match resolved.inspects_anything() {
        true => Some(Arc::new(Authority::new()?)),
        false => None,
    };
    let pem = authority.as_ref().map(|a| a.certificate_pem().to_owned());
    let imagines = purpose == Purpose::Watching;
    Ok(Planned {
        plan: Some(NetPlan { loopback, echoes, asks: asks(resolved), authority: pem }),
        authority,
        secrets,
        imagines,
    })
}

impl Planned {
    /// Whether programs inside must be told whom to trust.
    pub(crate) fn inspects(&self) -> bool {
        self.authority.is_some()
    }

    /// What the guest's setup needs of it, and what the broker does.
    pub(crate) fn divide(self, policy: &Resolved, max_net_bytes: Option<u64>) -> (Option<NetPlan>, Option<Wanted>) {
        let Planned { plan, authority, secrets, imagines } = self;
        let wanted = plan.is_some().then(|| Wanted {
            policy: policy.clone().on_host(sys::net::own_addresses()),
            secrets,
            authority,
            max_net_bytes,
            imagines,
            asks: asks(policy),
            questions: None,
            revision: 1,
            roster: Roster::default(),
        });
        (plan, wanted)
    }
}

/// Whether the host lets us send echo requests for the guest; a refusal where it does not.
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

pub(crate) fn unsupported(refusal: policy::Refusal) -> Fault {
    let fault = Fault::new(ErrorKind::UnsupportedPolicy, refusal.message).phase(Phase::Planning);
    refusal.hint.into_iter().fold(fault, Fault::hint)
}

/// What the broker is started with, once the doors are there.
pub(crate) struct Wanted {
    policy: Resolved,
    pub(crate) secrets: Secrets,
    authority: Option<Arc<Authority>>,
    max_net_bytes: Option<u64>,
    imagines: bool,
    /// Some rule asks; and whom.
    pub(crate) asks: bool,
    pub(crate) questions: Option<Questions>,
    /// What the rules are called, and whose what happens can be.
    pub(crate) revision: u64,
    pub(crate) roster: Roster,
}

/// Hears of every event.
pub(crate) type Ear<'a> = Box<dyn FnMut(&Event) + 'a>;

/// Puts other rules in force, once there is a broker.
pub(crate) type Lever = Rc<RefCell<Option<egress::broker::Handle>>>;

/// What a guest's network was built for; rules that need more than this need another guest.
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
            loopback: resolved.loopback_places(sys::doors::MOST_LOOPBACK).map_err(unsupported)?,
            echoes: resolved.sends_echoes().is_some(),
            inspects: resolved.inspects_anything(),
        })
    }

    /// What the other one needs and this one has not.
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
    wanted: Option<Wanted>,
    broker: Option<Broker>,
    events: Option<Rc<RefCell<EventFile>>>,
    ear: Option<Ear<'a>>,
    lever: Lever,
    roster: Roster,
    /// As it was at the end.
    used: u64,
    over: bool,
}

impl<'a> Brokered<'a> {
    pub(crate) fn new(wanted: Wanted, events: Option<Rc<RefCell<EventFile>>>, ear: Option<Ear<'a>>) -> Brokered<'a> {
        let (lever, roster) = (Lever::default(), wanted.roster.clone());
        Brokered { wanted: Some(wanted), broker: None, events, ear, lever, roster, used: 0, over: false }
    }

    pub(crate) fn lever(&self) -> Lever {
        self.lever.clone()
    }

    fn sift(&mut self, (events, dropped): (Vec<Event>, u64)) -> Vec<NetReport> {
        if let Some(file) = &self.events {
            let mut file = file.borrow_mut();
            events.iter().for_each(|event| file.put(event));
            file.lost(dropped);
        }
        if let Some(ear) = &mut self.ear {
            events.iter().for_each(ear);
        }
        events.iter().filter_map(|event| report(event, &self.roster)).collect()
    }
}

/// The guest's processes, for both who ask about them.
type Actors = Option<Arc<Mutex<enclosure::Actors>>>;

/// Asks the guest's processes who holds a socket.
fn who(actors: &Actors) -> Option<Who> {
    let actors = actors.clone()?;
    Some(Box::new(move |socket: Socket| {
        let mut actors = actors.lock().unwrap_or_else(PoisonError::into_inner);
        match socket.proto {
            Proto::Tcp => actors.of_stream(socket.own, socket.to),
            Proto::Udp => actors.of_datagrams(socket.own),
            _ => None,
        }
    }))
}

/// Says which run holds a socket. Where only one goes on, nobody is looked for.
fn whose(actors: Actors, roster: Roster) -> Whose {
    let find = move |socket: Socket, among: &[i32]| {
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

impl Network for Brokered<'_> {
    fn open(&mut self, opening: Opening) -> Result<(), Fault> {
        let Some(wanted) = self.wanted.take() else { return Ok(()) };
        let Wanted { policy, secrets, authority, max_net_bytes, imagines, questions, revision, roster, .. } = wanted;
        let Opening { doors, actors, published } = opening;
        let mut around = Around::default();
        let actors = actors.map(|actors| Arc::new(Mutex::new(actors)));
        (around.who, around.descriptors, around.imagines) = (who(&actors), published, imagines);
        around.whose = Some(whose(actors, roster));
        around.asks = questions.map(|questions| questions.0);
        let secrets = secrets.read()?;
        let broker = Broker::start(Setup { doors, policy, revision, secrets, authority, max_net_bytes, around })?;
        self.lever.replace(Some(broker.handle()));
        self.broker = Some(broker);
        Ok(())
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.broker.as_ref().map(Broker::wake)
    }

    fn happened(&mut self) -> Vec<NetReport> {
        let taken = self.broker.as_mut().map(Broker::events).unwrap_or_default();
        self.sift(taken)
    }

    fn used(&self) -> u64 {
        self.broker.as_ref().map_or(self.used, Broker::net_bytes)
    }

    fn over_limit(&self) -> bool {
        self.broker.as_ref().map_or(self.over, Broker::over_limit)
    }

    fn close(&mut self) -> Vec<NetReport> {
        let Some(broker) = self.broker.take() else { return Vec::new() };
        self.lever.take();
        (self.used, self.over) = (broker.net_bytes(), broker.over_limit());
        let last = broker.stop();
        self.sift(last)
    }
}

impl Drop for Brokered<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the outcome shall say of an event: refusals, and what was let through with a warning, once.
fn report(event: &Event, roster: &Roster) -> Option<NetReport> {
    let action = match (event.stage, event.action) {
        // A rule may have let it go on to where something else stopped it.
        (Stage::Refused, Action::Allow | Action::Warn) => Action::Deny,
        (_, action) => action,
    };
    let hint = match (&event.hint, &event.reason) {
        _ if action == Action::Warn => None,
        (Some(hint), Some(reason)) => Some(format!("{reason}; {hint}")),
        (hint, reason) => hint.clone().or_else(|| reason.clone()),
    };
    let (target, rule, actor) = (target(event), event.rule.clone(), event.actor.clone());
    let shepherd = event.run.as_ref().and_then(|run| roster.first_of(run));
    event.is_notable().then(|| NetReport { op: event.op.name(), target, rule, action, hint, actor, shepherd })
}

/// `host:port`, `icmp:host`, or a URL without its query, in which there may be secrets.
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

pub(crate) fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

#[cfg(test)]
pub(crate) mod test {
    use super::*;

    pub(crate) fn event(op: Op, stage: Stage, action: Action) -> Event {
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
            report(&event(Op::Connect, stage, action), &Roster::default()).map(|r| (r.action, r.target))
        };
        let place = "example.org:443".to_owned();
        assert_eq!(told(Stage::Refused, Action::Deny), Some((Action::Deny, place.clone())));
        assert_eq!(told(Stage::Refused, Action::Ask), Some((Action::Ask, place.clone())));
        assert_eq!(told(Stage::Refused, Action::Allow), Some((Action::Deny, place.clone())));
        assert_eq!(told(Stage::Opened, Action::Warn), Some((Action::Warn, place)));
        for (stage, action) in [
            (Stage::Closed, Action::Warn),
            (Stage::Opened, Action::Allow),
            (Stage::Closed, Action::Allow),
            (Stage::Failed, Action::Allow),
        ] {
            assert_eq!(told(stage, action), None, "{stage:?} {action:?}");
        }
    }

    #[test]
    fn a_target_has_no_query() {
        let request = Event {
            method: Some("GET".into()),
            path: Some("/a/b?token=x".into()),
            ..event(Op::Request, Stage::Refused, Action::Deny)
        };
        assert_eq!(target(&request), "GET example.org:443/a/b");
        assert_eq!(target(&event(Op::Resolve, Stage::Refused, Action::Deny)), "example.org");
        let bare = Event { name: None, ..event(Op::Connect, Stage::Refused, Action::Deny) };
        assert_eq!(target(&bare), "192.0.2.1:443");
    }
}
