//! Byte relay from one connection to another. Small transfers are copied through a buffer that all flows share; for
//! large ones the kernel splices through a pipe without copying, which takes two more descriptors and half the time.

use crate::first_bytes::{ServerDetector, ServerProtocol, UnexpectedHttp};
use crate::flow::{Direction, Flow, half_close, or_zero, reset, with_scratch, write_all};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::coop::consume_budget;

/// Bytes after which a direction switches from copying to splicing.
const SPLICE_THRESHOLD: u64 = 256 * 1024;
/// Capacity of a splice pipe. Each fill wakes a peer at either end, so small pipes cost wake-ups; larger ones exceed
/// the processor's cache.
const PIPE_SIZE: usize = 256 * 1024;
/// Bytes requested from one splice call, more than a pipe holds.
const SPLICE_MAX: usize = 1024 * 1024;

/// A direction of a relay. Bytes that the receiver did not accept stay here, so that a step may be cancelled at any
/// time without losing bytes.
pub(crate) struct Pump {
    direction: Direction,
    unsent: Vec<u8>,
    passed: u64,
    pipe: Option<Pipe>,
    ended: bool,
    /// Set where the server must not answer in HTTP.
    detector: Option<ServerDetector>,
}

struct Pipe {
    inlet: OwnedFd,
    outlet: OwnedFd,
    held: usize,
    /// Permit that limits the number of pipes.
    _slot: OwnedSemaphorePermit,
}

impl Pump {
    pub fn new(direction: Direction) -> Pump {
        Pump { direction, unsent: Vec::new(), passed: 0, pipe: None, ended: false, detector: None }
    }

    /// A direction that fails with `UnexpectedHttp` when the server answers in HTTP to bytes of the guest.
    pub fn detecting_http(direction: Direction) -> Pump {
        Pump { detector: Some(ServerDetector::default()), ..Pump::new(direction) }
    }

    pub fn stop_detecting(&mut self) {
        self.detector = None;
    }

    /// Returns the protocol of the server's first bytes, if detection is on.
    pub fn server_protocol(&self) -> ServerProtocol {
        self.detector.as_ref().map(|detector| detector.protocol).unwrap_or_default()
    }

    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Waits for readiness and relays one buffer or pipe of bytes.
    pub async fn step(&mut self, flow: &Flow, from: &TcpStream, to: &TcpStream) -> Result<(), Error> {
        to.writable().await?;
        if !self.unsent.is_empty() {
            let sent = or_zero(to.try_write(&self.unsent))?;
            self.unsent.drain(..sent);
            return Ok(());
        }
        if self.pipe.as_ref().is_none_or(|pipe| pipe.held == 0) {
            from.readable().await?;
        }
        let taken = match &mut self.pipe {
            Some(pipe) => pipe.step(flow, self.direction, from, to),
            None => self.copy(flow, from, to),
        };
        match taken {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.ended = true;
                half_close(to);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Copies one buffer; returns false at end of stream.
    fn copy(&mut self, flow: &Flow, from: &TcpStream, to: &TcpStream) -> Result<bool, Error> {
        with_scratch(|buffer| {
            let len = from.try_read(buffer)?;
            if len == 0 {
                return Ok(false);
            }
            if let Some(detector) = &mut self.detector {
                detector.push(&buffer[..len]);
                // Without bytes from the guest, an HTTP message is no answer: servers send 408 to idle clients.
                if detector.protocol == ServerProtocol::Http && flow.has_bytes_from_guest() {
                    return Err(UnexpectedHttp::error());
                }
            }
            flow.count_bytes(self.direction, len)?;
            let sent = or_zero(to.try_write(&buffer[..len]))?;
            self.unsent = buffer[sent..len].to_vec();
            self.passed += len as u64;
            if self.passed >= SPLICE_THRESHOLD {
                // Without a pipe, copying goes on.
                self.pipe = Pipe::new(&flow.gate.pipes).ok();
            }
            Ok(true)
        })
    }

    /// Relays to the end of the stream, and then half-closes the receiver.
    pub async fn run(mut self, flow: &Flow, from: &TcpStream, to: &TcpStream) -> Result<(), Error> {
        while !self.ended {
            self.step(flow, from, to).await?;
            // Two peers that are always ready would starve other tasks.
            consume_budget().await;
        }
        Ok(())
    }

    /// Writes the remaining bytes, so that another reader can take over. Callers do this before a pipe is likely to be
    /// in use.
    pub async fn flush(&mut self, to: &TcpStream) -> Result<(), Error> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held > 0) {
            to.writable().await?;
            pipe.empty(to)?;
        }
        write_all(to, &std::mem::take(&mut self.unsent)).await
    }
}

impl Pipe {
    fn new(slots: &Arc<Semaphore>) -> Result<Pipe, Error> {
        let slot = slots.clone().try_acquire_owned().map_err(Error::other)?;
        let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Refused to a user with many pipes; the default size works as well.
        let _ = fcntl_setpipe_size(&inlet, PIPE_SIZE);
        Ok(Pipe { inlet, outlet, held: 0, _slot: slot })
    }

    /// Splices one pipe of bytes; returns false at end of stream.
    fn step(&mut self, flow: &Flow, direction: Direction, from: &TcpStream, to: &TcpStream) -> Result<bool, Error> {
        if self.held == 0 {
            let len = from.try_io(Interest::READABLE, || {
                Ok(splice(from, None, &self.inlet, None, SPLICE_MAX, SpliceFlags::NONBLOCK)?)
            })?;
            if len == 0 {
                return Ok(false);
            }
            flow.count_bytes(direction, len)?;
            self.held = len;
        }
        self.empty(to)?;
        Ok(true)
    }

    fn empty(&mut self, to: &TcpStream) -> Result<(), Error> {
        // A closed peer gives EPIPE here: Rust programs ignore SIGPIPE.
        let sent = to
            .try_io(Interest::WRITABLE, || Ok(splice(&self.outlet, None, to, None, self.held, SpliceFlags::NONBLOCK)?));
        self.held -= or_zero(sent)?;
        Ok(())
    }
}

/// Relays both directions until both have ended. An error in either ends both.
pub(crate) async fn relay(flow: &Flow, guest: &TcpStream, outside: &TcpStream, back: Pump) -> Result<(), Error> {
    let forth = async {
        let guard = ResetUnlessComplete { to: outside, is_complete: Cell::new(false) };
        Pump::new(Direction::FromGuest).run(flow, guest, outside).await?;
        guard.is_complete.set(true);
        flow.finish_upload();
        Ok(())
    };
    tokio::try_join!(forth, back.run(flow, outside, guest))?;
    Ok(())
}

/// Resets the server's connection on drop unless the upload is complete, so that the server never takes a truncated
/// request for a whole one.
struct ResetUnlessComplete<'a> {
    to: &'a TcpStream,
    is_complete: Cell<bool>,
}

impl Drop for ResetUnlessComplete<'_> {
    fn drop(&mut self) {
        if !self.is_complete.get() {
            reset(self.to);
        }
    }
}
