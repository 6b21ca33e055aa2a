//! A guest's network as its supervisor sees it. Connections arrive at doors that the guest's setup opens; the broker
//! that answers there, and its rules, are handed in from above.

use crate::actors::Actors;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use sys::net::Doors;
use terms::{Action, Actor, Fault};

/// The broker at the doors of one guest.
pub trait Network {
    /// Takes over the doors and starts. Called once, after the last clone, just before the command starts.
    fn open(&mut self, opening: Opening) -> Result<(), Fault>;

    /// Returns a descriptor that is readable when there are reports; `None` before `open`.
    fn wake(&self) -> Option<BorrowedFd<'_>>;

    /// Takes the refusals and warnings since the last call.
    fn happened(&mut self) -> Vec<NetReport>;

    /// Returns the bytes in both directions so far.
    fn used(&self) -> u64;

    /// True once the guest exceeded its limit of bytes; no traffic passes from then on.
    fn over_limit(&self) -> bool;

    /// Ends all connections and returns the last reports.
    fn close(&mut self) -> Vec<NetReport>;
}

/// Resources with which a network starts.
pub struct Opening {
    /// `None` where the guest has a name server only.
    pub doors: Option<Doors>,
    /// The name server's socket of a guest without doors, where its kernel could have one.
    pub resolver: Option<OwnedFd>,
    /// Attributes sockets to processes of the guest.
    pub actors: Option<Actors>,
    /// Descriptors of this process that published ports may need.
    pub published: u64,
}

/// A refusal or warning of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetReport {
    pub op: &'static str,
    pub target: String,
    pub rule: String,
    pub action: Action,
    pub hint: Option<String>,
    /// The rule says that such refusals are expected.
    pub quiet: bool,
    /// Process that caused the report, where it was found.
    pub actor: Option<Actor>,
    /// Host pid of the shepherd above that process, where it was found; the actor itself may be gone by now.
    pub shepherd: Option<i32>,
}

/// Network settings that the guest's setup needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetPlan {
    /// The guest has no network: there is a name server that refuses every name, so that a refusal can name the host
    /// that was meant, and nothing else.
    pub names_only: bool,
    /// Addresses on the guest's loopback that lead outside; at most `sys::doors::MOST_LOOPBACK`.
    pub loopback: Vec<SocketAddr>,
    /// The guest may send ICMP echo requests.
    pub echoes: bool,
    /// A person may be asked before a name is resolved, so resolvers need a longer timeout than usual.
    pub asks: bool,
    /// CA certificate that the guest must trust, as PEM, where the broker reads requests.
    pub authority: Option<String>,
}
