//! The broker of one guest, as whoever runs the guest sees it: a thread of its own behind a few calls.

use crate::authority_of_guest::Authority;
use crate::event::Event;
use policy::Resolved;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use terms::Fault;

/// A secret with its value. The value is never printed.
pub struct SecretValue {
    /// As in the policy.
    pub name: String,
    /// What the guest has instead.
    pub placeholder: String,
    pub value: Vec<u8>,
}

pub struct Setup {
    pub doors: sys::net::Doors,
    pub policy: Resolved,
    pub secrets: Vec<SecretValue>,
    /// Signs for hosts whose requests must be read; made by the caller because the guest must be told to trust it.
    pub authority: Option<Arc<Authority>>,
    pub max_net_bytes: Option<u64>,
}

pub struct Broker {
    wake: OwnedFd,
}

impl Broker {
    /// Starts the broker's thread. Call it only after the last clone.
    pub fn start(_setup: Setup) -> Result<Broker, Fault> {
        todo!()
    }

    /// Readable when there are events to take or the byte limit was met.
    pub fn wake(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.wake.as_fd()
    }

    /// What happened since the last call, and how many events were dropped because nobody took them.
    pub fn events(&mut self) -> (Vec<Event>, u64) {
        todo!()
    }

    /// Bytes both ways so far.
    pub fn net_bytes(&self) -> u64 {
        todo!()
    }

    /// Whether the guest went over `max_net_bytes`; nothing passes from then on.
    pub fn over_limit(&self) -> bool {
        todo!()
    }

    /// Puts other rules in force and closes what they forbid; the revision they got.
    pub fn replace(&self, _policy: Resolved) -> u64 {
        todo!()
    }

    /// Ends everything and gives the last events.
    pub fn stop(self) -> (Vec<Event>, u64) {
        todo!()
    }
}
