//! What the broker tells: every name asked for, connection and request, allowed or refused, with the rule that decided.

use policy::Proto;
use std::net::SocketAddr;
use terms::Action;

/// What was done or tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A name was asked for.
    Resolve,
    /// A connection, or the first datagram of a flow.
    Connect,
    /// An HTTP request that was read.
    Request,
}

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Op::Resolve => "net.resolve",
            Op::Connect => "net.connect",
            Op::Request => "net.request",
        }
    }
}

/// How far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Let through; a connection has begun.
    Opened,
    /// Not let through.
    Refused,
    /// Let through, and the other side could not be reached.
    Failed,
    /// Over; the byte counts are final.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub op: Op,
    pub stage: Stage,
    pub action: Action,
    pub rule: String,
    /// Which version of the rules decided.
    pub revision: u64,
    pub proto: Proto,
    pub name: Option<String>,
    pub address: Option<SocketAddr>,
    pub method: Option<String>,
    pub path: Option<String>,
    /// To the guest, and from it.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Why it was refused or failed, where the rule alone does not say it.
    pub reason: Option<String>,
    /// How to allow it.
    pub hint: Option<String>,
}
