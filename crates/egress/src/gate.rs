//! The gate: the rules in force, what names led where, and what both say about a name, a connection or a request.
//! Everything that passes asks here, and everything that is told or counted comes by here. Nothing here waits.

use crate::asks::{Answer, Leave, Matter, Questions, What};
use crate::broker::{Around, SecretValue};
use crate::court::{Court, Injection, RequestAsk, Settling};
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

/// Where a connection goes. `named` is set when the client itself named the host to a proxy: then it is that one and
/// no other that has the same address.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub addr: SocketAddr,
    pub named: Option<String>,
    /// What a person let it through with.
    pub leave: Leave,
}

impl Place {
    pub fn at(addr: SocketAddr, named: Option<String>) -> Place {
        Place { addr, named, leave: Leave::default() }
    }
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
    /// A person decides.
    Ask(Matter, Ruling),
}

impl Arrival {
    /// What is against it for one that is open already: that cannot be held any more, so to ask comes too late.
    pub fn against(self) -> Option<Ruling> {
        match self {
            Arrival::Refuse(ruling) | Arrival::Ask(_, ruling) => Some(ruling),
            Arrival::Wait | Arrival::Dial(_) => None,
        }
    }
}

/// What can be said once the first bytes are there.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Pass(Ruling),
    /// Its requests must be read, under one of these names.
    Inspect(Vec<String>),
    Refuse(Ruling),
    /// A person decides.
    Ask(Matter, Ruling),
}

impl Verdict {
    /// The same for one that is open already.
    pub fn against(self) -> Option<Ruling> {
        match self {
            Verdict::Refuse(ruling) | Verdict::Ask(_, ruling) => Some(ruling),
            Verdict::Pass(_) | Verdict::Inspect(_) => None,
        }
    }
}

/// What came of asking a person.
#[derive(Clone, Debug)]
pub(crate) enum Settled {
    Allowed,
    Refused(Ruling),
    /// Other rules are in force: it must be judged again.
    Changed,
}

/// What is asked about, beside the matter itself: for the event that tells of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub proto: Proto,
    pub address: Option<SocketAddr>,
    pub socket: Option<Socket>,
    pub request: Option<(&'a str, &'a str)>,
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
    /// What a person is to be asked, where that is not answered.
    open: Option<Matter>,
    /// A person let it through.
    lifted: bool,
}

impl Candidate {
    fn granted(&self) -> bool {
        self.decision.allowed() && !self.inspected
    }

    /// Whether somebody must be asked before anybody is called. Requests that are read are asked about one by one, unless
    /// the rule makes no difference between them.
    fn asks_first(&self, rules: &Rules) -> bool {
        self.open.as_ref().is_some_and(|open| !self.inspected || rules.is_whole(&open.rule))
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
            secrets: RwLock::new(secrets),
            around: Mutex::default(),
            asks: None,
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
        Gate { asks: around.asks.clone(), around: Mutex::new(around), ..self }
    }

    /// Values for secrets, in the place of those before.
    pub fn give(&self, secrets: Vec<SecretValue>) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
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
        if self.is_over() {
            return over_limit(&rules, Some(name));
        }
        let decision = rules.policy.resolves(name);
        let matter = name_matter(&decision.rule, name);
        let (decision, _) = self.lift(&rules, decision, &matter, &Leave::default());
        Ruling::of(decision, Some(name), rules.revision)
    }

    /// Whether a person could be asked about it.
    pub fn can_ask(&self, ruling: &Ruling) -> bool {
        ruling.action == Action::Ask && self.asks.is_some()
    }

    /// Holds something until a person has answered, nobody did in time, or other rules came.
    pub async fn settle(&self, matter: &Matter, ruling: &Ruling, asking: Asking<'_>) -> Settled {
        let Some(asks) = &self.asks else { return Settled::Refused(ruling.clone()) };
        let mut state = self.watch();
        let who = || {
            let mut around = self.around.lock().unwrap_or_else(PoisonError::into_inner);
            around.who.as_mut().zip(asking.socket).and_then(|(who, socket)| who(socket))
        };
        let refused = |reason: String| {
            // That it asks is what the rule says; that nobody can answer would not be true here.
            Settled::Refused(Ruling { reason: Some(reason), hint: None, ..ruling.clone() })
        };
        let mut pending = match asks.ask(matter, who) {
            Ok(pending) => pending,
            Err(reason) => return refused(reason),
        };
        if let Some((question, op)) = pending.fresh.take().zip(matter.op()) {
            let mut event = ruling.event(op, Stage::Asked, asking.proto, asking.address);
            (event.hint, event.socket, event.actor) = (None, asking.socket, question.actor);
            (event.method, event.path) = asking.request.map(|(m, p)| (m.to_owned(), p.to_owned())).unzip();
            self.journal.push(event);
        }
        let answer = tokio::select! {
            answer = pending.wait() => answer,
            changed = state.changed() => match changed {
                Ok(()) => return Settled::Changed,
                Err(_) => Answer::Nobody,
            },
        };
        match answer {
            Answer::Allow => Settled::Allowed,
            Answer::Deny => refused("a person refused it".to_owned()),
            Answer::Nobody => refused(format!("nobody answered within {} s", asks.patience().as_secs_f64())),
        }
    }

    /// What holds once the answers are heard; and whether one of them lifted it.
    fn lift(&self, rules: &Rules, decision: Decision, matter: &Matter, leave: &Leave) -> (Decision, bool) {
        if decision.action != Action::Ask {
            return (decision, false);
        }
        let whole = rules.is_whole(&matter.rule);
        let known = || self.asks.as_ref().and_then(|asks| asks.known(matter, whole));
        match leave.covers(matter, whole).then_some(true).or_else(known) {
            None => (decision, false),
            Some(true) => (Decision { action: Action::Allow, hint: None, ..decision }, true),
            Some(false) => {
                let hint = Some("a person refused it".to_owned());
                (Decision { action: Action::Deny, hint, ..decision }, false)
            }
        }
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

    /// Whether the address is let through whoever is behind it, so that names make no difference but by denials.
    pub fn is_open(&self, addr: SocketAddr) -> bool {
        self.rules().policy.net(&ask(Proto::Tcp, None, addr)).allowed()
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

/// Where a person let a name through, the same rule does not ask again because of the address that the name led to. That
/// is no answer about the address: other names that have it, too, are asked about.
fn lift_address(candidates: &mut Vec<Candidate>) {
    let Some(bare) = candidates.pop_if(|c| c.name.is_none()) else { return };
    let named = candidates.iter().any(|c| c.lifted && c.decision.rule == bare.decision.rule);
    candidates.push(match named && bare.decision.action == Action::Ask {
        false => bare,
        true => {
            let decision = Decision { action: Action::Allow, hint: None, ..bare.decision };
            Candidate { decision, open: None, ..bare }
        }
    });
}

pub(crate) fn name_matter(rule: &str, name: &str) -> Matter {
    Matter { rule: rule.to_owned(), what: What::Name(name.to_owned()) }
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

impl Gate {
    /// Asks a person about a request.
    async fn settle_request(&self, asked: &RequestAsk<'_>, decision: Decision, socket: Option<Socket>) -> Decision {
        let mut decision = decision;
        while decision.action == Action::Ask && self.asks.is_some() {
            let matter = request_matter(&decision.rule, asked);
            let ruling = Ruling::of(decision.clone(), Some(asked.host), self.rules().revision);
            let address = Some(SocketAddr::new(asked.addr, asked.port));
            let asking = Asking { proto: Proto::Tcp, address, socket, request: Some((asked.method, asked.path)) };
            match self.settle(&matter, &ruling, asking).await {
                Settled::Allowed => decision = Decision { action: Action::Allow, hint: None, ..decision },
                Settled::Refused(ruling) => return Decision { hint: ruling.reason, ..decision },
                Settled::Changed => decision = self.request(asked),
            }
        }
        decision
    }
}

fn request_matter(rule: &str, asked: &RequestAsk<'_>) -> Matter {
    let at = SocketAddr::new(asked.addr.to_canonical(), asked.port);
    let (host, method, path) = (asked.host.to_owned(), asked.method.to_owned(), asked.path.to_owned());
    Matter { rule: rule.to_owned(), what: What::Request { host, at, method, path } }
}

impl Court for Gate {
    fn request(&self, asked: &RequestAsk<'_>) -> Decision {
        let place = SocketAddr::new(asked.addr, asked.port);
        let host = Some(asked.host);
        let ask = NetAsk { method: Some(asked.method), path: Some(asked.path), ..ask(Proto::Tcp, host, place) };
        let rules = self.rules();
        let decision = rules.policy.net(&ask);
        let matter = request_matter(&decision.rule, asked);
        self.lift(&rules, decision, &matter, &Leave::default()).0
    }

    fn settle<'a>(&'a self, asked: &'a RequestAsk<'a>, decision: Decision) -> Settling<'a> {
        Box::pin(self.settle_request(asked, decision, None))
    }

    fn injections(&self, ask: &RequestAsk<'_>) -> Vec<Injection> {
        let Ok(host) = policy::HostName::parse(ask.host) else {
            return Vec::new();
        };
        let rules = self.rules();
        let wanted = rules.policy.policy().secrets.iter().map(|s| &s.rule).filter(|secret| secret.host == host);
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let valued = wanted.filter_map(|secret| {
            let value = secrets.iter().find(|value| value.name == secret.name)?;
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

    fn settle<'a>(&'a self, asked: &'a RequestAsk<'a>, decision: Decision) -> Settling<'a> {
        Box::pin(self.gate.settle_request(asked, decision, self.socket))
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
