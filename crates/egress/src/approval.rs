//! Approval by a person, as the broker sees it: the broker hands the subject of an `ask` rule to an `Approvals` and
//! awaits the answer. The broker stores no questions and knows nothing about the person.

use crate::event::Op;
use policy::Proto;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use terms::Actor;

/// Puts questions to a person and remembers the answers.
pub trait Approvals: Send + Sync {
    /// Returns an earlier answer that still covers the subject. `whole` says that the subject's rule treats all
    /// requests alike.
    fn known(&self, subject: &AskedAccess, whole: bool) -> Option<bool>;

    /// Asks a person, or joins an open question about the same subject; `reply` is called with the answer. `actor`
    /// looks up the process that caused the question, and is called for a new question only. `Err` is the reason why no
    /// person is asked.
    fn ask(
        &self,
        subject: &AskedAccess,
        actor: &mut dyn FnMut() -> Option<Actor>,
        reply: AnswerCallback,
    ) -> Result<OpenQuestion, String>;

    /// Time limit for an answer.
    fn patience(&self) -> Duration;
}

/// Callback for the answer: true allows. Dropped without a call if there will be no answer.
pub type AnswerCallback = Box<dyn FnOnce(bool) + Send>;

/// An open question.
pub struct OpenQuestion {
    pub deadline: Instant,
    /// True if the question is new, false if it joined one that was asked for another connection.
    pub is_new: bool,
    /// Process that caused the question, if the question is new and the process was found.
    pub actor: Option<Actor>,
    pub waiter: Box<dyn AnswerWaiter>,
}

/// A waiter for an answer. Dropping the last waiter of a question withdraws it.
pub trait AnswerWaiter: Send {
    /// Closes the question because its deadline has passed without an answer.
    fn expire(&mut self);
}

/// Subject of a question: a use of the network, and the rule that says `ask` about it. Answers are keyed by subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskedAccess {
    pub rule: String,
    pub access: Access,
}

/// A use of the network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Resolve(String),
    Connect { proto: &'static str, host: Option<String>, at: SocketAddr },
    Request { host: String, at: SocketAddr, method: String, path: String },
}

impl AskedAccess {
    pub(crate) fn resolve(rule: &str, name: &str) -> AskedAccess {
        AskedAccess { rule: rule.to_owned(), access: Access::Resolve(name.to_owned()) }
    }

    pub(crate) fn connect(rule: &str, proto: Proto, host: Option<&str>, at: SocketAddr) -> AskedAccess {
        let access = Access::Connect { proto: proto.name(), host: host.map(str::to_owned), at };
        AskedAccess { rule: rule.to_owned(), access }
    }

    pub fn op(&self) -> Op {
        match self.access {
            Access::Resolve(_) => Op::Resolve,
            Access::Connect { .. } => Op::Connect,
            Access::Request { .. } => Op::Request,
        }
    }

    /// Formats the target for a person: `host:port`, a name, or a method with a URL without its query.
    pub fn target(&self) -> String {
        match &self.access {
            Access::Resolve(name) => name.clone(),
            Access::Connect { proto, host, at } if *proto == Proto::Icmp.name() => {
                format!("icmp:{}", host.clone().unwrap_or_else(|| at.ip().to_string()))
            }
            Access::Connect { host: Some(host), at, .. } => format!("{host}:{}", at.port()),
            Access::Connect { host: None, at, .. } => at.to_string(),
            Access::Request { host, at, method, path } => {
                let path = path.split(['?', '#']).next().unwrap_or(path);
                format!("{method} {host}:{}{path}", at.port())
            }
        }
    }

    /// Returns true if an answer to this subject also answers `other`. An answer about a name covers connections under
    /// that name by the same rule, and an answer about an address covers every host name used there. `whole` says that
    /// the rule treats all requests alike.
    pub fn covers(&self, other: &AskedAccess, whole: bool) -> bool {
        if self == other {
            return true;
        }
        if self.rule != other.rule {
            return false;
        }
        match (&self.access, &other.access) {
            (Access::Resolve(name), Access::Connect { host: Some(host), .. }) => name == host,
            (Access::Resolve(name), Access::Request { host, .. }) => whole && name == host,
            (Access::Connect { proto: a, host: None, at }, Access::Connect { proto: b, at: there, .. }) => {
                a == b && at == there
            }
            (Access::Connect { host, at, .. }, Access::Request { host: named, at: there, .. }) => {
                whole && at == there && host.as_ref().is_none_or(|host| host == named)
            }
            _ => false,
        }
    }

    /// Returns true if programs repeat the operation as a matter of course: they resolve a name more than once and then
    /// connect, and they retransmit datagrams. An answer to such a subject has to hold for a moment.
    pub fn is_repeated(&self) -> bool {
        match &self.access {
            Access::Resolve(_) => true,
            Access::Connect { proto, .. } => *proto != Proto::Tcp.name(),
            Access::Request { .. } => false,
        }
    }
}

/// Subjects that a person approved for one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApprovedSubjects(Vec<AskedAccess>);

impl ApprovedSubjects {
    pub fn add(&mut self, subject: AskedAccess) {
        if !self.0.contains(&subject) {
            self.0.push(subject);
        }
    }

    pub fn covers(&self, subject: &AskedAccess, whole: bool) -> bool {
        self.0.iter().any(|given| given.covers(subject, whole))
    }
}
