//! The gate: the rules in force, the table of resolved names, and the rulings that both give on a name, a connection or
//! a request. All traffic is judged here, and all events and byte counts pass through here. The gate itself never
//! blocks; only `gate::approvals` awaits a person's answer.

mod approvals;
mod requests;
mod ruling;

use self::approvals::extend_approval_to_address;
pub(crate) use self::requests::ConnectionJudge;
use self::ruling::Candidate;
pub(crate) use self::ruling::{ApprovalOutcome, ConnectDecision, QuestionContext, Remote, Ruling, StreamDecision};
use crate::approval::{Approvals, ApprovedSubjects, AskedAccess};
use crate::event::GuestSocket;
use crate::event_queue::EventQueue;
use crate::pins::Pins;
use crate::setup::{RunContext, SecretValue};
use policy::{Decision, NetRequest, Proto, Resolved};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use terms::Action;
use tokio::sync::{Semaphore, watch};

/// Rule label of rulings that refuse traffic because the byte limit of a run is exceeded.
const BYTE_LIMIT: &str = "limits.max_net_bytes";
/// Addresses of a name that a refusal lists.
const MAX_LISTED: usize = 4;

pub(crate) struct Gate {
    rules: RwLock<Arc<Rules>>,
    pins: Mutex<Pins>,
    secrets: RwLock<Vec<SecretValue>>,
    run_context: Mutex<RunContext>,
    /// Asks a person. Without it, a rule with action `ask` refuses.
    approvals: Option<Arc<dyn Approvals>>,
    pub events: EventQueue,
    /// A permit per splice pipe. Relays that get no permit keep copying through the buffer.
    pub pipes: Arc<Semaphore>,
    limit: Option<u64>,
    spent: AtomicU64,
    state: watch::Sender<GateState>,
    /// Number of connections that may still hold bytes of the guest that were not relayed.
    uploads: watch::Sender<usize>,
}

struct Rules {
    policy: Resolved,
    revision: u64,
}

impl Rules {
    /// Returns true if the rules with this label have no `methods` and no `paths`, so that they treat all requests
    /// alike.
    fn is_whole(&self, label: &str) -> bool {
        let mut named = self.policy.policy().net.iter().filter(|r| r.label == label);
        named.all(|r| r.rule.methods.is_none() && r.rule.paths.is_none())
    }
}

/// State that every open flow watches: after each change the flow has to be judged again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GateState {
    revision: u64,
    is_over_limit: bool,
}

fn ask<'a>(proto: Proto, host: Option<&'a str>, addr: SocketAddr) -> NetRequest<'a> {
    NetRequest { proto, host, addr: Some(addr.ip()), port: addr.port(), method: None, path: None, unix: None }
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
            run_context: Mutex::default(),
            approvals: None,
            events: EventQueue::new()?,
            pipes: Arc::new(Semaphore::new(pipes)),
            limit,
            spent: AtomicU64::new(0),
            state: watch::Sender::new(GateState { revision, ..GateState::default() }),
            uploads: watch::Sender::new(0),
        })
    }

    /// Sets the context of the run that this gate serves.
    pub fn with(self, run_context: RunContext) -> Gate {
        Gate { approvals: run_context.approvals.clone(), run_context: Mutex::new(run_context), ..self }
    }

    /// Replaces all secret values.
    pub fn replace_secrets(&self, secrets: Vec<SecretValue>) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// Puts other rules in force and returns their revision, which `revision` computes from the previous one.
    pub fn replace(&self, policy: Resolved, revision: impl FnOnce(u64) -> u64) -> u64 {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let revision = revision(rules.revision);
        *rules = Arc::new(Rules { policy, revision });
        drop(rules);
        self.state.send_modify(|state| state.revision = revision);
        revision
    }

    /// Returns the run that a socket belongs to.
    pub fn run_of(&self, socket: Option<GuestSocket>) -> Option<Arc<str>> {
        let mut run_context = self.run_context.lock().unwrap_or_else(PoisonError::into_inner);
        run_context.run_lookup.as_mut().and_then(|lookup| lookup(socket))
    }

    /// Subscribes to changes after which open flows have to be judged again.
    pub fn watch(&self) -> watch::Receiver<GateState> {
        self.state.subscribe()
    }

    /// Counts a connection whose bytes still have to be relayed.
    pub fn begin_upload(&self) {
        self.uploads.send_modify(|count| *count += 1);
    }

    pub fn end_upload(&self) {
        self.uploads.send_modify(|count| *count = count.saturating_sub(1));
    }

    /// Waits until all bytes that connections of an exited guest had sent were relayed.
    pub async fn uploads_done(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.uploads.subscribe().wait_for(|count| *count == 0).await;
    }

    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    pub fn is_over_limit(&self) -> bool {
        self.state.borrow().is_over_limit
    }

    /// Judges whether the guest may resolve a name.
    pub fn judge_name(&self, name: &str) -> Ruling {
        let rules = self.rules();
        if self.is_over_limit() {
            return over_limit(&rules, Some(name));
        }
        let decision = rules.policy.resolves(name);
        let subject = AskedAccess::resolve(&decision.rule, name);
        let (decision, _) = self.apply_approvals(&rules, decision, &subject, &ApprovedSubjects::default());
        Ruling::of(decision, Some(name), rules.revision)
    }

    fn candidate(&self, rules: &Rules, name: Option<&str>, remote: &Remote) -> Candidate {
        let ask = ask(Proto::Tcp, name, remote.addr);
        let decision = rules.policy.net(&ask);
        self.new_candidate(
            rules,
            name,
            decision,
            rules.policy.inspects(&ask),
            (Proto::Tcp, remote.addr, &remote.approved),
        )
    }

    fn new_candidate(
        &self,
        rules: &Rules,
        name: Option<&str>,
        decision: Decision,
        is_inspected: bool,
        (proto, addr, approved): (Proto, SocketAddr, &ApprovedSubjects),
    ) -> Candidate {
        let subject = AskedAccess::connect(&decision.rule, proto, name, addr);
        let (decision, is_approved) = self.apply_approvals(rules, decision, &subject, approved);
        let unanswered = (decision.action == Action::Ask && self.approvals.is_some()).then_some(subject);
        Candidate { name: name.map(str::to_owned), decision, is_inspected, unanswered, is_approved }
    }

    /// Keeps the addresses that the rules accept for a name and pins them: from now on the guest may connect there
    /// under that name.
    pub fn pin(&self, name: &str, mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
        let rules = self.rules();
        addresses.retain(|addr| rules.policy.leads_to(name, *addr));
        self.pins().add(name, &addresses);
        addresses
    }

    /// Returns the refusal of an allowed name none of whose addresses a rule covers.
    pub fn uncovered(&self, ruling: Ruling, name: &str, addresses: &[IpAddr]) -> Ruling {
        let listed: Vec<String> = addresses.iter().take(MAX_LISTED).map(IpAddr::to_string).collect();
        let hint = self.rules().policy.covering(name, addresses);
        let ruling = ruling.refused(format!("{name} leads only to {}, which no rule names", listed.join(", ")));
        Ruling { hint, ..ruling }
    }

    /// Returns a fake address for a name that may not be resolved, if the run wants to observe the connections that the
    /// guest would make. The address is from 198.18.0.0/15 (benchmarking range, not routed), and no rule about a name
    /// covers it.
    pub fn fake_address(&self, name: &str) -> Option<IpAddr> {
        const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 1]);
        const MOST: u32 = 1 << 16;
        let mut run_context = self.run_context.lock().unwrap_or_else(PoisonError::into_inner);
        if !run_context.fakes_addresses {
            return None;
        }
        let mut pins = self.pins();
        let known = pins.addresses_of(name).iter().copied().find(IpAddr::is_ipv4);
        let address = known.unwrap_or_else(|| {
            run_context.fake_addresses = (run_context.fake_addresses + 1) % MOST;
            Ipv4Addr::from_bits(FIRST + run_context.fake_addresses).into()
        });
        pins.add(name, &[address]);
        Some(address)
    }

    /// Judges a new connection. Temporary approvals that cover it are copied into `remote`, so that they outlast their
    /// time for this connection.
    pub fn admit(&self, remote: &mut Remote) -> ConnectDecision {
        if self.approvals.is_some() {
            let rules = self.rules();
            let approved = self.candidates(&rules, remote).into_iter().filter(|c| c.is_approved);
            let approved =
                approved.map(|c| AskedAccess::connect(&c.decision.rule, Proto::Tcp, c.name.as_deref(), remote.addr));
            approved.collect::<Vec<_>>().into_iter().for_each(|subject| remote.approved.add(subject));
        }
        self.judge_connect(remote)
    }

    pub fn judge_connect(&self, remote: &Remote) -> ConnectDecision {
        let rules = self.rules();
        if self.is_over_limit() {
            return ConnectDecision::Refuse(over_limit(&rules, remote.requested_host.as_deref()));
        }
        let mut candidates = self.candidates(&rules, remote);
        // `max_by_key` returns the last maximum; reversed, that is the name that was resolved last.
        let granted = candidates.iter().enumerate().rev().filter(|(_, c)| c.granted());
        if let Some((index, _)) = granted.max_by_key(|(_, c)| c.decision.action) {
            return ConnectDecision::Dial(candidates.swap_remove(index).ruling(rules.revision));
        }
        if let Some(index) = candidates.iter().position(|c| c.asks_first(&rules)) {
            let mut candidate = candidates.swap_remove(index);
            if let Some(subject) = candidate.unanswered.take() {
                return ConnectDecision::Ask(subject, candidate.ruling(rules.revision));
            }
        }
        match candidates.iter().any(|c| c.is_inspected) {
            true => ConnectDecision::Wait,
            false => ConnectDecision::Refuse(candidates.swap_remove(0).ruling(rules.revision)),
        }
    }

    /// Judges a connection whose first bytes name a host (SNI or Host).
    pub fn judge_named(&self, remote: &Remote, host: &str) -> StreamDecision {
        let rules = self.rules();
        let mut candidate = self.candidate(&rules, Some(host), remote);
        let is_inspected = candidate.is_inspected;
        let granted = candidate.granted();
        let unanswered = candidate.unanswered.take();
        let ruling = candidate.ruling(rules.revision);
        if let Some(requested) = remote.requested_host.as_deref().filter(|requested| *requested != host) {
            return StreamDecision::Refuse(
                ruling.refused(format!("the client asks for {host} on a connection to {requested}")),
            );
        }
        let bare = self.candidate(&rules, None, remote);
        let is_resolved = remote.requested_host.is_some() || self.pins().has(host, remote.addr.ip());
        if !is_resolved && !bare.decision.allowed() && !bare.is_inspected {
            let reason = format!("the client asks for {host}, which did not resolve to {}", remote.addr.ip());
            return StreamDecision::Refuse(ruling.refused(reason));
        }
        match (is_inspected || bare.is_inspected, granted, unanswered) {
            (true, _, _) => StreamDecision::Inspect(vec![host.to_owned()]),
            (false, true, _) => StreamDecision::Pass(ruling),
            (false, false, Some(subject)) => StreamDecision::Ask(subject, ruling),
            (false, false, None) => StreamDecision::Refuse(ruling),
        }
    }

    /// Judges a connection whose first bytes name no host: it passes only if no name that resolved to the address is
    /// denied or inspected.
    pub fn judge_unnamed(&self, remote: &Remote, is_tls: bool) -> StreamDecision {
        let rules = self.rules();
        let candidates = self.candidates(&rules, remote);
        let inspected: Vec<String> =
            candidates.iter().filter(|c| c.is_inspected).map(|c| c.name_or(remote.addr)).collect();
        if is_tls && !inspected.is_empty() && inspected.len() == candidates.len() {
            return StreamDecision::Inspect(inspected);
        }
        let (mut against, mut granted) = (None, None);
        for candidate in candidates {
            if candidate.is_inspected || candidate.is_barred() {
                against.get_or_insert(candidate);
            } else if candidate.granted() {
                granted.get_or_insert(candidate);
            }
        }
        match (against, granted) {
            (Some(candidate), _) => {
                let name = candidate.name_or(remote.addr);
                let reason = match candidate.is_inspected {
                    true => format!("requests to {name} are inspected, and this is neither HTTP nor TLS"),
                    false => format!("the client names no host, and {name} has the same address"),
                };
                StreamDecision::Refuse(candidate.ruling(rules.revision).refused(reason))
            }
            (None, Some(candidate)) => StreamDecision::Pass(candidate.ruling(rules.revision)),
            (None, None) => StreamDecision::Refuse(self.candidate(&rules, None, remote).ruling(rules.revision)),
        }
    }

    /// Judges HTTP/2 without TLS: each request is judged by the host that it names, which must be a name that resolved
    /// to this address.
    pub fn judge_http2(&self, remote: &Remote) -> StreamDecision {
        let rules = self.rules();
        let names: Vec<String> = self.candidates(&rules, remote).into_iter().filter_map(|c| c.name).collect();
        match names.is_empty() {
            false => StreamDecision::Inspect(names),
            true => StreamDecision::Refuse(self.candidate(&rules, None, remote).ruling(rules.revision)),
        }
    }

    /// Returns true if the address itself is allowed, so that only denials of names make a difference.
    pub fn is_open(&self, remote: &Remote) -> bool {
        let by_address = || self.rules().policy.net(&ask(Proto::Tcp, None, remote.addr)).allowed();
        remote.requested_host.is_none() && by_address() || self.is_opaque(remote)
    }

    /// Returns true if an `opaque` rule allows a name by address and port alone, whatever host the first bytes name.
    pub fn is_opaque(&self, remote: &Remote) -> bool {
        let rules = self.rules();
        if rules.policy.policy().net.iter().all(|r| !r.rule.opaque) {
            return false;
        }
        let names = self.candidates(&rules, remote).into_iter().filter_map(|c| c.name);
        names.into_iter().any(|name| rules.policy.is_opaque(&ask(Proto::Tcp, Some(&name), remote.addr)))
    }

    /// Judges a flow of datagrams or echo requests. Every name that resolved to the address counts, since a datagram
    /// does not say which one is meant. Also returns the subject that a person has to approve, or has approved.
    pub fn judge_datagrams(
        &self,
        proto: Proto,
        addr: SocketAddr,
        approved: &ApprovedSubjects,
    ) -> (Ruling, Option<AskedAccess>) {
        let rules = self.rules();
        if self.is_over_limit() {
            return (over_limit(&rules, None), None);
        }
        let names = self.pins().names_of(addr.ip());
        let names = names.iter().map(|n| Some(n.as_str())).chain([None]);
        let decide = |name| {
            let decision = rules.policy.datagrams(&ask(proto, name, addr));
            self.new_candidate(&rules, name, decision, false, (proto, addr, approved))
        };
        let mut all: Vec<Candidate> = names.map(decide).collect();
        extend_approval_to_address(&mut all);
        let barred = all.iter().position(Candidate::is_barred);
        let chosen = barred.or_else(|| all.iter().position(|c| c.decision.allowed())).unwrap_or(0);
        let mut chosen = all.swap_remove(chosen);
        let subject = chosen
            .is_approved
            .then(|| AskedAccess::connect(&chosen.decision.rule, proto, chosen.name.as_deref(), addr));
        let subject = chosen.unanswered.take().or(subject);
        (chosen.ruling(rules.revision), subject)
    }

    /// Returns the ruling that ends all flows once the byte limit is exceeded.
    pub fn limit_refusal(&self) -> Option<Ruling> {
        self.is_over_limit().then(|| over_limit(&self.rules(), None))
    }

    /// Returns a refusal that no rule gives.
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

    fn candidates(&self, rules: &Rules, remote: &Remote) -> Vec<Candidate> {
        if let Some(name) = &remote.requested_host {
            return vec![self.candidate(rules, Some(name), remote)];
        }
        let names = self.pins().names_of(remote.addr.ip());
        let names = names.iter().map(|n| Some(n.as_str())).chain([None]);
        let mut all = names.map(|name| self.candidate(rules, name, remote)).collect();
        extend_approval_to_address(&mut all);
        all
    }

    /// Returns true if the rule of this label says that its refusals are expected.
    pub fn is_quiet(&self, rule: &str) -> bool {
        self.rules().policy.policy().net.iter().any(|r| r.rule.quiet && r.label == rule)
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
        reason: Some("the run exceeds limits.max_net_bytes".to_owned()),
        name: name.map(str::to_owned),
        revision: rules.revision,
    }
}

#[cfg(test)]
#[path = "gate_test.rs"]
mod test;
