//! Types of the gate's decisions: the remote end, candidates for its name, and rulings.

use super::Rules;
use crate::approval::{ApprovedSubjects, AskedAccess};
use crate::event::{Event, EventStage, GuestSocket, Op};
use policy::{Decision, Proto};
use std::net::SocketAddr;
use terms::Action;

/// Remote end of a connection. `requested_host` is set if the client gave the host name to a proxy; then only that name
/// counts, and no other name with the same address.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub addr: SocketAddr,
    pub requested_host: Option<String>,
    /// Subjects that a person approved for this connection.
    pub approved: ApprovedSubjects,
}

impl Remote {
    pub fn at(addr: SocketAddr, requested_host: Option<String>) -> Remote {
        Remote { addr, requested_host, approved: ApprovedSubjects::default() }
    }
}

/// A decision with everything that its event reports.
#[derive(Clone, Debug)]
pub(crate) struct Ruling {
    pub action: Action,
    pub rule: String,
    pub hint: Option<String>,
    pub reason: Option<String>,
    pub name: Option<String>,
    pub revision: u64,
}

/// Decision on a new connection, before any of its bytes.
#[derive(Clone, Debug)]
pub(crate) enum ConnectDecision {
    Refuse(Ruling),
    /// Only the first bytes can decide; no server may be dialed before.
    Wait,
    /// A name or the address itself is allowed, so the server may be dialed. The first bytes must confirm the name.
    Dial(Ruling),
    /// A person has to answer first.
    Ask(AskedAccess, Ruling),
}

impl ConnectDecision {
    /// Returns the ruling that ends an open connection. `Ask` counts as a refusal, because an open connection cannot be
    /// held for an answer.
    pub fn refusal(self) -> Option<Ruling> {
        match self {
            ConnectDecision::Refuse(ruling) | ConnectDecision::Ask(_, ruling) => Some(ruling),
            ConnectDecision::Wait | ConnectDecision::Dial(_) => None,
        }
    }
}

/// Decision on a connection once its first bytes are known.
#[derive(Clone, Debug)]
pub(crate) enum StreamDecision {
    Pass(Ruling),
    /// Requests must be inspected; the server may have any of these names.
    Inspect(Vec<String>),
    Refuse(Ruling),
    /// A person has to answer first.
    Ask(AskedAccess, Ruling),
}

impl StreamDecision {
    /// Returns the ruling that ends an open connection, as `ConnectDecision::refusal` does.
    pub fn refusal(self) -> Option<Ruling> {
        match self {
            StreamDecision::Refuse(ruling) | StreamDecision::Ask(_, ruling) => Some(ruling),
            StreamDecision::Pass(_) | StreamDecision::Inspect(_) => None,
        }
    }
}

/// Result of a question to a person.
#[derive(Clone, Debug)]
pub(crate) enum ApprovalOutcome {
    Approved,
    Refused(Ruling),
    /// The rules changed meanwhile: the operation has to be judged again.
    Changed,
}

/// Details of a held operation that its event reports beside the subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuestionContext<'a> {
    pub proto: Proto,
    pub address: Option<SocketAddr>,
    pub socket: Option<GuestSocket>,
    pub request: Option<(&'a str, &'a str)>,
}

impl<'a> QuestionContext<'a> {
    /// Details of a TCP connection from a socket of the guest.
    pub fn connection(remote: &Remote, socket: Option<GuestSocket>) -> QuestionContext<'a> {
        QuestionContext { proto: Proto::Tcp, address: Some(remote.addr), socket, request: None }
    }
}

impl Ruling {
    pub(super) fn of(decision: Decision, name: Option<&str>, revision: u64) -> Ruling {
        let Decision { action, rule, hint, .. } = decision;
        Ruling { action, rule, hint, reason: None, name: name.map(str::to_owned), revision }
    }

    pub fn allowed(&self) -> bool {
        matches!(self.action, Action::Allow | Action::Warn)
    }

    /// Turns the ruling into a refusal for a reason that no rule gives.
    pub fn refused(mut self, reason: impl Into<String>) -> Ruling {
        self.action = Action::Deny;
        self.reason = Some(reason.into());
        self
    }

    pub fn hint(mut self, hint: &str) -> Ruling {
        self.hint = Some(hint.to_owned());
        self
    }

    pub fn event(&self, op: Op, stage: EventStage, proto: Proto, address: Option<SocketAddr>) -> Event {
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
            run: None,
        }
    }
}

/// A possible meaning of a connection to an address: a name that resolved to it, or the address itself.
pub(super) struct Candidate {
    pub name: Option<String>,
    pub decision: Decision,
    pub is_inspected: bool,
    /// Subject of the question that a person has not answered yet.
    pub unanswered: Option<AskedAccess>,
    /// True if a person's approval turned `ask` into `allow`.
    pub is_approved: bool,
}

impl Candidate {
    pub fn granted(&self) -> bool {
        self.decision.allowed() && !self.is_inspected
    }

    /// Returns true if a person must be asked before the server is dialed. Inspected requests are asked about one by
    /// one, unless the rule treats all requests alike.
    pub fn asks_first(&self, rules: &Rules) -> bool {
        self.unanswered.as_ref().is_some_and(|open| !self.is_inspected || rules.is_whole(&open.rule))
    }

    /// Returns true if a matching rule refuses it, as opposed to no rule that allows it.
    pub fn is_barred(&self) -> bool {
        !self.decision.allowed() && !self.decision.matches.iter().all(|m| m.action <= Action::Warn)
    }

    pub fn ruling(self, revision: u64) -> Ruling {
        Ruling::of(self.decision, self.name.as_deref(), revision)
    }

    pub fn name_or(&self, addr: SocketAddr) -> String {
        self.name.clone().unwrap_or_else(|| addr.ip().to_string())
    }
}
