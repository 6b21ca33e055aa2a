//! Events of the broker: every name, connection and request, allowed or refused, with the rule that decided.

use policy::Proto;
use std::net::SocketAddr;
use std::sync::Arc;
use terms::{Action, Actor};
use tokio::net::TcpStream;

/// Operation that the guest attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A DNS query for a name.
    Resolve,
    /// A connection, or the first datagram of a flow.
    Connect,
    /// An inspected HTTP request.
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

/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStage {
    /// Held until a person answers.
    Asked,
    /// Allowed; a connection is open.
    Opened,
    /// Refused by a rule, by a person or by the broker.
    Refused,
    /// Allowed, and the server could not be reached.
    Failed,
    /// Ended; the byte counts are final.
    Closed,
}

/// A socket of the guest, by its local and remote address as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestSocket {
    pub proto: Proto,
    pub own: SocketAddr,
    pub to: SocketAddr,
}

impl GuestSocket {
    /// Returns the guest's end of a connection that the broker accepted.
    pub(crate) fn of(guest: &TcpStream) -> Option<GuestSocket> {
        let (own, to) = (guest.peer_addr().ok()?, guest.local_addr().ok()?);
        Some(GuestSocket { proto: Proto::Tcp, own, to })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub op: Op,
    pub stage: EventStage,
    pub action: Action,
    pub rule: String,
    /// Revision of the rules that decided.
    pub revision: u64,
    pub proto: Proto,
    pub name: Option<String>,
    pub address: Option<SocketAddr>,
    pub method: Option<String>,
    pub path: Option<String>,
    /// Bytes to the guest, and from it.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Reason for a refusal or failure, unless the rule alone gives it.
    pub reason: Option<String>,
    /// Hint that tells an operator how to allow it.
    pub hint: Option<String>,
    /// Socket and process that it came from. The process is looked up for refusals and warnings only, and may not be
    /// found.
    pub socket: Option<GuestSocket>,
    pub actor: Option<Actor>,
    /// Run of the guest that it came from, if known.
    pub run: Option<Arc<str>>,
}

impl Event {
    /// Returns true for refusals and for operations that were allowed with a warning.
    pub fn is_notable(&self) -> bool {
        let warned = self.action == Action::Warn && matches!(self.stage, EventStage::Opened | EventStage::Failed);
        warned || self.stage == EventStage::Refused
    }
}
