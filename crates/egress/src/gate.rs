//! The gate: the rules in force, what names led where, and what both say about a name, a connection or a request.
//! Everything that passes asks here, and everything that is told or counted comes by here. Nothing here waits.

mod asked;
mod requests;
mod ruling;

use self::asked::lift_address;
pub(crate) use self::asked::name_matter;
pub(crate) use self::requests::FromGuest;
use self::ruling::Candidate;
pub(crate) use self::ruling::{Arrival, Asking, Place, Ruling, Settled, Verdict};
use crate::asks::{Leave, Matter, Questions};
use crate::broker::{Around, SecretValue};
use crate::event::Socket;
use crate::journal::Journal;
use crate::pins::Pins;
use policy::{Decision, NetAsk, Proto, Resolved};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use terms::Action;
use tokio::sync::{Semaphore, watch};

/// Who decides when the bytes of a run are used up.
const BYTE_LIMIT: &str = "limits.max_net_bytes";

pub(crate) struct Gate {
    rules: RwLock<Arc<Rules>>,
    pins: Mutex<Pins>,
    secrets: RwLock<Vec<SecretValue>>,
    around: Mutex<Around>,
    /// Where a person is asked; without, what asks is refused.
    asks: Option<Arc<Questions>>,
    pub journal: Journal,
    /// One for each pipe that relays may have; those beyond do without.
    pub pipes: Arc<Semaphore>,
    limit: Option<u64>,
    spent: AtomicU64,
    state: watch::Sender<State>,
    /// Connections that the guest may still have bytes in.
    speaking: watch::Sender<usize>,
}

struct Rules {
    policy: Resolved,
    revision: u64,
}

impl Rules {
    /// Whether the rule of this label makes no difference between requests.
    fn is_whole(&self, label: &str) -> bool {
        let mut named = self.policy.policy().net.iter().filter(|r| r.label == label);
        named.all(|r| r.rule.methods.is_none() && r.rule.paths.is_none())
    }
}

/// What every open flow watches: at each change it asks again whether it may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    revision: u64,
    over: bool,
}

fn ask<'a>(proto: Proto, host: Option<&'a str>, addr: SocketAddr) -> NetAsk<'a> {
    NetAsk { proto, host, addr: Some(addr.ip()), port: addr.port(), method: None, path: None, unix: None }
}

impl Gate {
    pub fn new(
        (policy, revision): (Resolved, u64),
        secrets: Vec<SecretValue>,
        limit: Option<u64>,
        pipes: usize,
    ) -> std::io::Result<Gate> {
        Ok(Gate {
            rules: RwLock::new(Arc::new(Rules { policy, revision })),
            pins: Mutex::default(),
            secrets: RwLock::new(secrets),
            around: Mutex::default(),
            asks: None,
            journal: Journal::new()?,
            pipes: Arc::new(Semaphore::new(pipes)),
            limit,
            spent: AtomicU64::new(0),
            state: watch::Sender::new(State { revision, ..State::default() }),
            speaking: watch::Sender::new(0),
        })
    }

    /// The same for one run.
    pub fn with(self, around: Around) -> Gate {
        Gate { asks: around.asks.clone(), around: Mutex::new(around), ..self }
    }

    /// Values for secrets, in the place of those before.
    pub fn give(&self, secrets: Vec<SecretValue>) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// Puts other rules in force; what they are called, which `revision` tells from what those before were called.
    pub fn replace(&self, policy: Resolved, revision: impl FnOnce(u64) -> u64) -> u64 {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let revision = revision(rules.revision);
        *rules = Arc::new(Rules { policy, revision });
        drop(rules);
        self.state.send_modify(|state| state.revision = revision);
        revision
    }

    /// Which run a socket belongs to.
    pub fn run_of(&self, socket: Option<Socket>) -> Option<Arc<str>> {
        let mut around = self.around.lock().unwrap_or_else(PoisonError::into_inner);
        around.whose.as_mut().and_then(|whose| whose(socket))
    }

    /// Changes whenever what is open has to be judged again.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// One more connection whose bytes have to be passed on.
    pub fn begin_speaking(&self) {
        self.speaking.send_modify(|count| *count += 1);
    }

    pub fn end_speaking(&self) {
        self.speaking.send_modify(|count| *count = count.saturating_sub(1));
    }

    /// Waits until everything that a guest which is gone has sent was passed on.
    pub async fn all_said(&self) {
        // Its sender is here, so it cannot fail.
        let _ = self.speaking.subscribe().wait_for(|count| *count == 0).await;
    }

    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.state.borrow().over
    }

    /// Whether a name may be asked for.
    pub fn resolve(&self, name: &str) -> Ruling {
        let rules = self.rules();
        if self.is_over() {
            return over_limit(&rules, Some(name));
        }
        let decision = rules.policy.resolves(name);
        let matter = name_matter(&decision.rule, name);
        let (decision, _) = self.lift(&rules, decision, &matter, &Leave::default());
        Ruling::of(decision, Some(name), rules.revision)
    }

    fn candidate(&self, rules: &Rules, name: Option<&str>, place: &Place) -> Candidate {
        let ask = ask(Proto::Tcp, name, place.addr);
        let decision = rules.policy.net(&ask);
        self.judged(rules, name, decision, rules.policy.inspects(&ask), (Proto::Tcp, place.addr, &place.leave))
    }

    fn judged(
        &self,
        rules: &Rules,
        name: Option<&str>,
        decision: Decision,
        inspected: bool,
        (proto, addr, leave): (Proto, SocketAddr, &Leave),
    ) -> Candidate {
        let matter = Matter::connect(&decision.rule, proto, name, addr);
        let (decision, lifted) = self.lift(rules, decision, &matter, leave);
        let open = (decision.action == Action::Ask && self.asks.is_some()).then_some(matter);
        Candidate { name: name.map(str::to_owned), decision, inspected, open, lifted }
    }

    /// Those of a name's addresses that it may lead to; from now on the guest may go there in its name.
    pub fn pin(&self, name: &str, mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
        let rules = self.rules();
        addresses.retain(|addr| rules.policy.leads_to(name, *addr));
        self.pins().add(name, &addresses);
        addresses
    }

    /// An address for a name that may not be asked for, where the run wants to know what the guest would do there. It is
    /// from a range that leads nowhere, and no rule about a name reaches it.
    pub fn imagine(&self, name: &str) -> Option<IpAddr> {
        const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 1]);
        const MOST: u32 = 1 << 16;
        let mut around = self.around.lock().unwrap_or_else(PoisonError::into_inner);
        if !around.imagines {
            return None;
        }
        let mut pins = self.pins();
        let known = pins.addresses_of(name).iter().copied().find(IpAddr::is_ipv4);
        let address = known.unwrap_or_else(|| {
            around.imagined = (around.imagined + 1) % MOST;
            Ipv4Addr::from_bits(FIRST + around.imagined).into()
        });
        pins.add(name, &[address]);
        Some(address)
    }

    /// The same for one that comes now: what was answered for a while is its own from here on.
    pub fn admit(&self, place: &mut Place) -> Arrival {
        if self.asks.is_some() {
            let rules = self.rules();
            let lifted = self.candidates(&rules, place).into_iter().filter(|c| c.lifted);
            let lifted = lifted.map(|c| Matter::connect(&c.decision.rule, Proto::Tcp, c.name.as_deref(), place.addr));
            lifted.collect::<Vec<_>>().into_iter().for_each(|matter| place.leave.add(matter));
        }
        self.arrive(place)
    }

    pub fn arrive(&self, place: &Place) -> Arrival {
        let rules = self.rules();
        if self.is_over() {
            return Arrival::Refuse(over_limit(&rules, place.named.as_deref()));
        }
        let mut candidates = self.candidates(&rules, place);
        // Of equals the first: the name that was asked for last.
        let granted = candidates.iter().enumerate().rev().filter(|(_, c)| c.granted());
        if let Some((index, _)) = granted.max_by_key(|(_, c)| c.decision.action) {
            return Arrival::Dial(candidates.swap_remove(index).ruling(rules.revision));
        }
        if let Some(index) = candidates.iter().position(|c| c.asks_first(&rules)) {
            let mut candidate = candidates.swap_remove(index);
            if let Some(matter) = candidate.open.take() {
                return Arrival::Ask(matter, candidate.ruling(rules.revision));
            }
        }
        match candidates.iter().any(|c| c.inspected) {
            true => Arrival::Wait,
            false => Arrival::Refuse(candidates.swap_remove(0).ruling(rules.revision)),
        }
    }

    /// The client's first bytes name a host.
    pub fn named(&self, place: &Place, said: &str) -> Verdict {
        let rules = self.rules();
        let mut candidate = self.candidate(&rules, Some(said), place);
        let inspected = candidate.inspected;
        let granted = candidate.granted();
        let open = candidate.open.take();
        let ruling = candidate.ruling(rules.revision);
        if let Some(meant) = place.named.as_deref().filter(|meant| *meant != said) {
            return Verdict::Refuse(ruling.refused(format!("it asks for {said} on a connection made to {meant}")));
        }
        let bare = self.candidate(&rules, None, place);
        let led = place.named.is_some() || self.pins().has(said, place.addr.ip());
        if !led && !bare.decision.allowed() && !bare.inspected {
            let reason = format!("it asks for {said}, which was not resolved to {}", place.addr.ip());
            return Verdict::Refuse(ruling.refused(reason));
        }
        match (inspected || bare.inspected, granted, open) {
            (true, _, _) => Verdict::Inspect(vec![said.to_owned()]),
            (false, true, _) => Verdict::Pass(ruling),
            (false, false, Some(matter)) => Verdict::Ask(matter, ruling),
            (false, false, None) => Verdict::Refuse(ruling),
        }
    }

    /// The client's first bytes name no host: it passes if that is so for all that it may mean.
    pub fn unnamed(&self, place: &Place, is_tls: bool) -> Verdict {
        let rules = self.rules();
        let candidates = self.candidates(&rules, place);
        let inspected: Vec<String> = candidates.iter().filter(|c| c.inspected).map(|c| c.name_or(place.addr)).collect();
        if is_tls && !inspected.is_empty() && inspected.len() == candidates.len() {
            return Verdict::Inspect(inspected);
        }
        let (mut against, mut granted) = (None, None);
        for candidate in candidates {
            if candidate.inspected || candidate.is_barred() {
                against.get_or_insert(candidate);
            } else if candidate.granted() {
                granted.get_or_insert(candidate);
            }
        }
        match (against, granted) {
            (Some(candidate), _) => {
                let name = candidate.name_or(place.addr);
                let reason = match candidate.inspected {
                    true => format!("requests to {name} are read, and this is neither HTTP nor TLS"),
                    false => format!("it names no host, and {name} has the same address"),
                };
                Verdict::Refuse(candidate.ruling(rules.revision).refused(reason))
            }
            (None, Some(candidate)) => Verdict::Pass(candidate.ruling(rules.revision)),
            (None, None) => Verdict::Refuse(self.candidate(&rules, None, place).ruling(rules.revision)),
        }
    }

    /// HTTP/2 without TLS: each request is judged by the host that it names, which must be one that led here.
    pub fn http2(&self, place: &Place) -> Verdict {
        let rules = self.rules();
        let names: Vec<String> = self.candidates(&rules, place).into_iter().filter_map(|c| c.name).collect();
        match names.is_empty() {
            false => Verdict::Inspect(names),
            true => Verdict::Refuse(self.candidate(&rules, None, place).ruling(rules.revision)),
        }
    }

    /// Whether the address is let through whoever is behind it, so that names make no difference but by denials.
    pub fn is_open(&self, place: &Place) -> bool {
        let by_address = || self.rules().policy.net(&ask(Proto::Tcp, None, place.addr)).allowed();
        place.named.is_none() && by_address() || self.is_opaque(place)
    }

    /// Whether a rule lets a name through by its address and port alone, whatever host the first bytes name.
    pub fn is_opaque(&self, place: &Place) -> bool {
        let rules = self.rules();
        if rules.policy.policy().net.iter().all(|r| !r.rule.opaque) {
            return false;
        }
        let names = self.candidates(&rules, place).into_iter().filter_map(|c| c.name);
        names.into_iter().any(|name| rules.policy.is_opaque(&ask(Proto::Tcp, Some(&name), place.addr)))
    }

    /// What holds for a flow of datagrams or echo requests: all names count that led there, since nothing in it says
    /// which is meant. With it comes what a person is to be asked, or has answered.
    pub fn datagrams(&self, proto: Proto, addr: SocketAddr, leave: &Leave) -> (Ruling, Option<Matter>) {
        let rules = self.rules();
        if self.is_over() {
            return (over_limit(&rules, None), None);
        }
        let names = self.pins().names_of(addr.ip());
        let names = names.iter().map(|n| Some(n.as_str())).chain([None]);
        let decide = |name| {
            let decision = rules.policy.datagrams(&ask(proto, name, addr));
            self.judged(&rules, name, decision, false, (proto, addr, leave))
        };
        let mut all: Vec<Candidate> = names.map(decide).collect();
        lift_address(&mut all);
        let barred = all.iter().position(Candidate::is_barred);
        let chosen = barred.or_else(|| all.iter().position(|c| c.decision.allowed())).unwrap_or(0);
        let mut chosen = all.swap_remove(chosen);
        let matter = chosen.lifted.then(|| Matter::connect(&chosen.decision.rule, proto, chosen.name.as_deref(), addr));
        let matter = chosen.open.take().or(matter);
        (chosen.ruling(rules.revision), matter)
    }

    /// What ends everything once the bytes of the run are used up.
    pub fn over_limit(&self) -> Option<Ruling> {
        self.is_over().then(|| over_limit(&self.rules(), None))
    }

    /// A refusal that no rule speaks of.
    pub fn refusal(&self, name: Option<&str>, reason: &str) -> Ruling {
        Ruling {
            action: Action::Deny,
            rule: "defaults.net".to_owned(),
            hint: None,
            reason: Some(reason.to_owned()),
            name: name.map(str::to_owned),
            revision: self.rules().revision,
        }
    }

    fn candidates(&self, rules: &Rules, place: &Place) -> Vec<Candidate> {
        if let Some(name) = &place.named {
            return vec![self.candidate(rules, Some(name), place)];
        }
        let names = self.pins().names_of(place.addr.ip());
        let names = names.iter().map(|n| Some(n.as_str())).chain([None]);
        let mut all = names.map(|name| self.candidate(rules, name, place)).collect();
        lift_address(&mut all);
        all
    }

    fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over_limit(rules: &Rules, name: Option<&str>) -> Ruling {
    Ruling {
        action: Action::Deny,
        rule: BYTE_LIMIT.to_owned(),
        hint: None,
        reason: Some("the bytes of this run are used up".to_owned()),
        name: name.map(str::to_owned),
        revision: rules.revision,
    }
}

#[cfg(test)]
#[path = "gate_test.rs"]
mod test;
