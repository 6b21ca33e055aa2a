//! The gate: the rules in force, what names led where, and what both say about a name, a connection or a request.
//! Everything that passes asks here, and everything that is told or counted comes by here. Nothing here waits.

use crate::broker::{Around, SecretValue};
use crate::court::{Court, Injection, RequestAsk};
use crate::event::{Event, Op, Socket, Stage};
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
    secrets: Vec<SecretValue>,
    around: Mutex<Around>,
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

/// What every open flow watches: at each change it asks again whether it may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    revision: u64,
    over: bool,
}

/// Where a connection goes. `named` is set when the client itself named the host to a proxy: then it is that one and
/// no other that has the same address.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub addr: SocketAddr,
    pub named: Option<String>,
}

/// What was decided, with all that an event says about it.
#[derive(Clone, Debug)]
pub(crate) struct Ruling {
    pub action: Action,
    pub rule: String,
    pub hint: Option<String>,
    pub reason: Option<String>,
    pub name: Option<String>,
    pub revision: u64,
}

/// What can be said when a connection comes, before any of its bytes.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    Refuse(Ruling),
    /// Only the first bytes can tell; nobody is to be called before.
    Wait,
    /// Some name or the address itself is let through; which, the first bytes must confirm.
    Dial(Ruling),
}

/// What can be said once the first bytes are there.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Pass(Ruling),
    /// Its requests must be read, under one of these names.
    Inspect(Vec<String>),
    Refuse(Ruling),
}

impl Ruling {
    fn of(decision: Decision, name: Option<&str>, revision: u64) -> Ruling {
        let Decision { action, rule, hint, .. } = decision;
        Ruling { action, rule, hint, reason: None, name: name.map(str::to_owned), revision }
    }

    pub fn allowed(&self) -> bool {
        matches!(self.action, Action::Allow | Action::Warn)
    }

    /// The same, refused for a reason that no rule gives.
    pub fn refused(mut self, reason: impl Into<String>) -> Ruling {
        self.action = Action::Deny;
        self.reason = Some(reason.into());
        self
    }

    pub fn event(&self, op: Op, stage: Stage, proto: Proto, address: Option<SocketAddr>) -> Event {
        Event {
            op,
            stage,
            action: self.action,
            rule: self.rule.clone(),
            revision: self.revision,
            proto,
            name: self.name.clone(),
            address,
            method: None,
            path: None,
            bytes_in: 0,
            bytes_out: 0,
            reason: self.reason.clone(),
            hint: self.hint.clone(),
            socket: None,
            actor: None,
        }
    }
}

/// One thing that a connection to an address may mean: a name that led there, or the address itself.
struct Candidate {
    name: Option<String>,
    decision: Decision,
    inspected: bool,
}

impl Candidate {
    fn of(rules: &Rules, name: Option<&str>, addr: SocketAddr) -> Candidate {
        let ask = ask(Proto::Tcp, name, addr);
        Candidate {
            name: name.map(str::to_owned),
            decision: rules.policy.net(&ask),
            inspected: rules.policy.inspects(&ask),
        }
    }

    fn granted(&self) -> bool {
        self.decision.allowed() && !self.inspected
    }

    /// Whether a rule, and not the mere want of one, stands against it.
    fn is_barred(&self) -> bool {
        !self.decision.allowed() && !self.decision.matches.iter().all(|m| m.action <= Action::Warn)
    }

    fn ruling(self, revision: u64) -> Ruling {
        Ruling::of(self.decision, self.name.as_deref(), revision)
    }
}

fn ask<'a>(proto: Proto, host: Option<&'a str>, addr: SocketAddr) -> NetAsk<'a> {
    NetAsk { proto, host, addr: Some(addr.ip()), port: addr.port(), method: None, path: None, unix: None }
}

impl Gate {
    pub fn new(policy: Resolved, secrets: Vec<SecretValue>, limit: Option<u64>, pipes: usize) -> std::io::Result<Gate> {
        Ok(Gate {
            rules: RwLock::new(Arc::new(Rules { policy, revision: 1 })),
            pins: Mutex::default(),
            secrets,
            around: Mutex::default(),
            journal: Journal::new()?,
            pipes: Arc::new(Semaphore::new(pipes)),
            limit,
            spent: AtomicU64::new(0),
            state: watch::Sender::new(State { revision: 1, over: false }),
            speaking: watch::Sender::new(0),
        })
    }

    /// The same for one run.
    pub fn with(self, around: Around) -> Gate {
        Gate { around: Mutex::new(around), ..self }
    }

    pub fn replace(&self, policy: Resolved) -> u64 {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let revision = rules.revision + 1;
        *rules = Arc::new(Rules { policy, revision });
        drop(rules);
        self.state.send_modify(|state| state.revision = revision);
        revision
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
        match self.is_over() {
            true => over_limit(&rules, Some(name)),
            false => Ruling::of(rules.policy.resolves(name), Some(name), rules.revision),
        }
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
        match candidates.iter().any(|c| c.inspected) {
            true => Arrival::Wait,
            false => Arrival::Refuse(candidates.swap_remove(0).ruling(rules.revision)),
        }
    }

    /// The client's first bytes name a host.
    pub fn named(&self, place: &Place, said: &str) -> Verdict {
        let rules = self.rules();
        let candidate = Candidate::of(&rules, Some(said), place.addr);
        let inspected = candidate.inspected;
        let granted = candidate.granted();
        let ruling = candidate.ruling(rules.revision);
        if let Some(meant) = place.named.as_deref().filter(|meant| *meant != said) {
            return Verdict::Refuse(ruling.refused(format!("it asks for {said} on a connection made to {meant}")));
        }
        let bare = Candidate::of(&rules, None, place.addr);
        let led = place.named.is_some() || self.pins().has(said, place.addr.ip());
        if !led && !bare.decision.allowed() && !bare.inspected {
            let reason = format!("it asks for {said}, which was not resolved to {}", place.addr.ip());
            return Verdict::Refuse(ruling.refused(reason));
        }
        match (inspected || bare.inspected, granted) {
            (true, _) => Verdict::Inspect(vec![said.to_owned()]),
            (false, true) => Verdict::Pass(ruling),
            (false, false) => Verdict::Refuse(ruling),
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
            (None, None) => Verdict::Refuse(Candidate::of(&rules, None, place.addr).ruling(rules.revision)),
        }
    }

    /// Whether the address is let through whoever is behind it, so that names make no difference but by denials.
    pub fn is_open(&self, addr: SocketAddr) -> bool {
        self.rules().policy.net(&ask(Proto::Tcp, None, addr)).allowed()
    }

    /// What holds for a flow of datagrams or echo requests: all names count that led there, since nothing in it says
    /// which is meant.
    pub fn datagrams(&self, proto: Proto, addr: SocketAddr) -> Ruling {
        let rules = self.rules();
        if self.is_over() {
            return over_limit(&rules, None);
        }
        let names = self.pins().names_of(addr.ip());
        let names = names.iter().map(|n| Some(n.as_str())).chain([None]);
        let decide = |name| Candidate {
            name: Option::map(name, str::to_owned),
            decision: rules.policy.datagrams(&ask(proto, name, addr)),
            inspected: false,
        };
        let mut all: Vec<Candidate> = names.map(decide).collect();
        let barred = all.iter().position(Candidate::is_barred);
        let chosen = barred.or_else(|| all.iter().position(|c| c.decision.allowed())).unwrap_or(0);
        all.swap_remove(chosen).ruling(rules.revision)
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
            return vec![Candidate::of(rules, Some(name), place.addr)];
        }
        let names = self.pins().names_of(place.addr.ip());
        let names = names.iter().map(|n| Some(n.as_str())).chain([None]);
        names.map(|name| Candidate::of(rules, name, place.addr)).collect()
    }

    fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Candidate {
    fn name_or(&self, addr: SocketAddr) -> String {
        self.name.clone().unwrap_or_else(|| addr.ip().to_string())
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

impl Court for Gate {
    fn request(&self, ask: &RequestAsk<'_>) -> Decision {
        let place = SocketAddr::new(ask.addr, ask.port);
        let ask =
            NetAsk { method: Some(ask.method), path: Some(ask.path), ..self::ask(Proto::Tcp, Some(ask.host), place) };
        self.rules().policy.net(&ask)
    }

    fn injections(&self, ask: &RequestAsk<'_>) -> Vec<Injection> {
        let Ok(host) = policy::HostName::parse(ask.host) else {
            return Vec::new();
        };
        let rules = self.rules();
        let wanted = rules.policy.policy().secrets.iter().map(|s| &s.rule).filter(|secret| secret.host == host);
        let valued = wanted.filter_map(|secret| {
            let value = self.secrets.iter().find(|value| value.name == secret.name)?;
            Some(Injection {
                header: secret.header.clone(),
                placeholder: value.placeholder.clone(),
                value: filled(&secret.format, &value.value).into(),
                secret: value.value.as_slice().into(),
            })
        });
        valued.collect()
    }

    fn revision(&self) -> u64 {
        self.rules().revision
    }

    /// Whoever is told of a refusal wants to know whose it is. The guest learns of it only after this, so its socket is
    /// still there to be found.
    fn tell(&self, mut event: Event) {
        if let (true, Some(socket)) = (event.is_notable(), event.socket) {
            let mut around = self.around.lock().unwrap_or_else(PoisonError::into_inner);
            event.actor = around.who.as_mut().and_then(|who| who(socket));
        }
        self.journal.push(event);
    }

    fn spend(&self, bytes_in: u64, bytes_out: u64) -> bool {
        let bytes = bytes_in.saturating_add(bytes_out);
        let total = self.spent.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let within = self.limit.is_none_or(|limit| total <= limit);
        if !within && self.state.send_if_modified(|state| !std::mem::replace(&mut state.over, true)) {
            self.journal.ring();
        }
        within
    }
}

/// The gate for the requests of one connection, which knows where they come from.
pub(crate) struct FromGuest {
    pub gate: Arc<Gate>,
    pub socket: Option<Socket>,
}

impl Court for FromGuest {
    fn request(&self, ask: &RequestAsk<'_>) -> Decision {
        self.gate.request(ask)
    }

    fn injections(&self, ask: &RequestAsk<'_>) -> Vec<Injection> {
        self.gate.injections(ask)
    }

    fn revision(&self) -> u64 {
        self.gate.revision()
    }

    fn tell(&self, event: Event) {
        self.gate.tell(Event { socket: self.socket, ..event });
    }

    fn spend(&self, bytes_in: u64, bytes_out: u64) -> bool {
        self.gate.spend(bytes_in, bytes_out)
    }
}

/// The format with the secret in place of `{}`.
fn filled(format: &str, secret: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = format.split("{}").map(str::as_bytes).collect();
    parts.join(secret)
}

#[cfg(test)]
#[path = "gate_test.rs"]
mod test;
