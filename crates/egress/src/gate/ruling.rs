//! What is said of a name, a connection or a request: where it goes, what it may mean, and what was decided.

use super::Rules;
use crate::asks::{Leave, Matter};
use crate::event::{Event, Op, Socket, Stage};
use policy::{Decision, Proto};
use std::net::SocketAddr;
use terms::Action;

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
    pub(super) fn of(decision: Decision, name: Option<&str>, revision: u64) -> Ruling {
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

    pub fn hint(mut self, hint: &str) -> Ruling {
        self.hint = Some(hint.to_owned());
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
            run: None,
        }
    }
}

/// One thing that a connection to an address may mean: a name that led there, or the address itself.
pub(super) struct Candidate {
    pub name: Option<String>,
    pub decision: Decision,
    pub inspected: bool,
    /// What a person is to be asked, where that is not answered.
    pub open: Option<Matter>,
    /// A person let it through.
    pub lifted: bool,
}

impl Candidate {
    pub fn granted(&self) -> bool {
        self.decision.allowed() && !self.inspected
    }

    /// Whether somebody must be asked before anybody is called. Requests that are read are asked about one by one, unless
    /// the rule makes no difference between them.
    pub fn asks_first(&self, rules: &Rules) -> bool {
        self.open.as_ref().is_some_and(|open| !self.inspected || rules.is_whole(&open.rule))
    }

    /// Whether a rule, and not the mere want of one, stands against it.
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
