//! The channel to a worker over two rings in shared memory, with a socket as doorbell.

use crate::frame::{self, Assembler, Kind};
use crate::message::{self, Received};
use crate::{Broken, channel};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::ring::Rings;

/// Bound on the bytes of doorbell that are taken at once.
const RUNGS: usize = 4096;

pub struct RingChannel {
    rings: Rings,
    bell: OwnedFd,
    /// Encoded frames that have no room yet.
    outbox: VecDeque<Vec<u8>>,
    assembler: Assembler,
    hung_up: bool,
}

impl RingChannel {
    pub fn open(memfd: &OwnedFd, bell: OwnedFd) -> Result<RingChannel, Broken> {
        let rings = Rings::map(memfd)?;
        let (outbox, assembler) = (VecDeque::new(), Assembler::default());
        Ok(RingChannel { rings, bell, outbox, assembler, hung_up: false })
    }

    pub fn send(&mut self, kind: Kind, request: u32, payload: &[u8]) -> Result<(), Broken> {
        self.outbox.extend(frame::encode(kind, request, payload));
        self.flush()
    }

    /// Writes what has room.
    fn flush(&mut self) -> Result<(), Broken> {
        let mut wrote = false;
        while let Some(next) = self.outbox.front() {
            if !frame::write(&mut self.rings.producer, next)? {
                break;
            }
            self.outbox.pop_front();
            wrote = true;
        }
        if wrote {
            self.ring();
        }
        Ok(())
    }

    /// Wakes the worker. A full socket holds a wake-up already, and one without a reader has nobody to wake.
    fn ring(&self) {
        let _ = send(&self.bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Sends what has room, and returns what has come, up to a bound.
    pub fn step(&mut self) -> Result<Vec<Received>, Broken> {
        self.hear();
        if !self.outbox.is_empty() {
            self.flush()?;
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while bytes < channel::MOST_AT_ONCE {
            let Some(read) = frame::read(&mut self.rings.consumer)? else { break };
            if read.notify {
                self.ring();
            }
            bytes += read.frame.payload.len() + channel::EVENT_COST;
            if let Some(whole) = self.assembler.take(read.frame)? {
                events.push(message::read(whole)?);
            }
        }
        // What it wrote before it ended comes first.
        if bytes == 0 && self.hung_up { Err(Broken::Gone) } else { Ok(events) }
    }

    /// Takes wake-ups before the rings are looked at, so that none is lost. Any number of them costs one call a step.
    fn hear(&mut self) {
        let mut rungs = [0u8; RUNGS];
        match recv(&self.bell, &mut rungs, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.hung_up = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.hung_up = true,
        }
    }

    /// Number of bytes of a value that has not come whole.
    pub fn pending(&self) -> usize {
        self.assembler.pending()
    }

    pub fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.bell.as_fd()]
    }
}
