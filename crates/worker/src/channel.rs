//! One interface to a worker for both kinds of channels. Nothing here waits: a caller steps the channel, and waits for its descriptors when
//! there was nothing.

use crate::Broken;
use crate::frame::Kind;
use crate::message::Received;
use crate::rings::RingChannel;
use crate::shell::ShellChannel;
use api::Language;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bound on the bytes that one step returns, about.
pub(crate) const MOST_AT_ONCE: usize = 1 << 20;
/// What an event counts for beside its payload, so that a flood of empty ones is bounded too.
pub(crate) const EVENT_COST: usize = 64;

/// The supervisor's end of a worker's channel.
pub struct Channel(Transport);

enum Transport {
    Rings(Box<RingChannel>),
    Shell(Box<ShellChannel>),
}

impl Channel {
    /// Opens a channel over the supervisor's ends, as `Launch::ends` made them. It goes on where an earlier supervisor stopped.
    pub fn open(language: Language, ends: Vec<OwnedFd>) -> Result<Channel, Broken> {
        let wrong = |ends: Vec<OwnedFd>| Broken::rule(format!("a channel of {} descriptors", ends.len()));
        Ok(Channel(match language {
            Language::Bash => {
                let ends: [OwnedFd; 4] = ends.try_into().map_err(wrong)?;
                Transport::Shell(Box::new(ShellChannel::open(ends)))
            }
            Language::Python | Language::Javascript => {
                let [memfd, bell]: [OwnedFd; 2] = ends.try_into().map_err(wrong)?;
                Transport::Rings(Box::new(RingChannel::open(&memfd, bell)?))
            }
        }))
    }

    /// Has the worker run code under this request id; its last event is `End`.
    pub fn execute(&mut self, request: u32, code: &str) -> Result<(), Broken> {
        match &mut self.0 {
            Transport::Rings(rings) => rings.send(Kind::Execute, request, code.as_bytes()),
            Transport::Shell(shell) => shell.execute(request, code),
        }
    }

    /// Asks the worker whether this is a whole input; answered by `Checked`.
    pub fn check(&mut self, request: u32, code: &str) -> Result<(), Broken> {
        match &mut self.0 {
            Transport::Rings(rings) => rings.send(Kind::Completeness, request, code.as_bytes()),
            Transport::Shell(shell) => shell.check(request, code),
        }
    }

    /// Reads on for a request that an earlier supervisor sent.
    pub fn resume(&mut self, request: u32) {
        if let Transport::Shell(shell) = &mut self.0 {
            shell.resume(request);
        }
    }

    /// Sends what has room, and returns the events that have come, up to a bound. `Gone` follows the last of them.
    pub fn step(&mut self) -> Result<Vec<Received>, Broken> {
        match &mut self.0 {
            Transport::Rings(rings) => rings.step(),
            Transport::Shell(shell) => shell.step(),
        }
    }

    /// Number of bytes of a value that has not come whole.
    pub fn pending(&self) -> usize {
        match &self.0 {
            Transport::Rings(rings) => rings.pending(),
            Transport::Shell(_) => 0,
        }
    }

    /// Returns the descriptors that become readable when a step has something to do.
    pub fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        match &self.0 {
            Transport::Rings(rings) => rings.wakes(),
            Transport::Shell(shell) => shell.wakes(),
        }
    }
}
