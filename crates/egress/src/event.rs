//! What the broker tells: every name asked for, connection and request, allowed or refused, with the rule that decided.

use policy::Proto;
use std::net::SocketAddr;
use std::sync::Arc;
use terms::{Action, Actor};
use tokio::net::TcpStream;

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
    /// Held until somebody answers.
    Asked,
    /// Let through; a connection has begun.
    Opened,
    /// Not let through.
    Refused,
    /// Let through, and the other side could not be reached.
    Failed,
    /// Over; the byte counts are final.
    Closed,
}

/// A socket of the guest, by its two ends as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub proto: Proto,
    pub own: SocketAddr,
    pub to: SocketAddr,
}

impl Socket {
    /// The guest's end of a connection that came to a door.
    pub(crate) fn of(guest: &TcpStream) -> Option<Socket> {
        let (own, to) = (guest.peer_addr().ok()?, guest.local_addr().ok()?);
        Some(Socket { proto: Proto::Tcp, own, to })
    }
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
    /// Where it came from, and whose that is: looked up for what is refused or warned of, and where it can be found.
    pub socket: Option<Socket>,
    pub actor: Option<Actor>,
    /// Which run of the guest it came from, where that can be told.
    pub run: Option<Arc<str>>,
}

impl Event {
    /// Whether somebody should be told of it: a refusal, or what was let through with a warning.
    pub fn is_notable(&self) -> bool {
        let warned = self.action == Action::Warn && matches!(self.stage, Stage::Opened | Stage::Failed);
        warned || self.stage == Stage::Refused
    }
}
