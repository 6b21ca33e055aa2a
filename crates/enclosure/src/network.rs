//! A guest's network as its supervisor sees it. Connections arrive at doors that the guest's setup opens; who answers
//! there, by which rules, is handed in from above.

use crate::actors::Actors;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use sys::net::Doors;
use terms::{Action, Actor, Fault};

/// Whoever answers at the doors of one guest.
pub trait Network {
    /// Takes over the doors and begins. Called once, after the last clone, when the command is about to start.
    fn open(&mut self, opening: Opening) -> Result<(), Fault>;

    /// Readable when there is something to tell; none before `open`.
    fn wake(&self) -> Option<BorrowedFd<'_>>;

    /// What was refused, or let through with a warning, since the last call.
    fn happened(&mut self) -> Vec<NetReport>;

    /// Bytes both ways so far.
    fn used(&self) -> u64;

    /// Whether the guest went over its limit of bytes; nothing passes from then on.
    fn over_limit(&self) -> bool;

    /// Ends everything and tells the last of it.
    fn close(&mut self) -> Vec<NetReport>;
}

/// What a network begins with.
pub struct Opening {
    pub doors: Doors,
    /// Knows who holds a socket inside.
    pub actors: Option<Actors>,
    /// Descriptors of this process that published ports may need.
    pub published: u64,
}

/// One refusal or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetReport {
    pub op: &'static str,
    pub target: String,
    pub rule: String,
    pub action: Action,
    pub hint: Option<String>,
    /// Who did it, where that was found.
    pub actor: Option<Actor>,
    /// The number outside of the process that its command is below, where that was found; the actor may be gone by now.
    pub shepherd: Option<i32>,
}

/// What the guest's setup must know of its network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetPlan {
    /// Places on its own loopback that lead outside; at most `sys::doors::MOST_LOOPBACK`.
    pub loopback: Vec<SocketAddr>,
    /// It may send echo requests.
    pub echoes: bool,
    /// Somebody may be asked before a name is told, so programs must wait longer for one than usual.
    pub asks: bool,
    /// The certificate that it must trust, as PEM, where requests are read on the way.
    pub authority: Option<String>,
}
