//! The relay: bytes from one connection to another. Few are copied through a buffer that all flows share; where many
//! pass, the kernel moves them through a pipe without copying, which takes two descriptors more and half the time.

use crate::first::{AnswersHttp, ServerWatch, Speaks};
use crate::flow::{Flow, Way, hang_up, reset, some, with_scratch, write_all};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::coop::consume_budget;

/// From how many bytes on a direction gets a pipe.
const MANY: u64 = 256 * 1024;
/// What a pipe shall hold. Each fill wakes somebody at either end; larger ones leave the processor's cache.
const PIPE: usize = 256 * 1024;
/// More than a pipe holds.
const AT_ONCE: usize = 1024 * 1024;

/// One direction of a relay. What the other end did not take at once stays here, so that a step may be given up at any
/// time without losing bytes.
pub(crate) struct Pump {
    way: Way,
    rest: Vec<u8>,
    passed: u64,
    pipe: Option<Pipe>,
    ended: bool,
    /// Set where a server must not answer in HTTP.
    watch: Option<ServerWatch>,
}

struct Pipe {
    inlet: OwnedFd,
    outlet: OwnedFd,
    held: usize,
    /// Its place among all pipes.
    _slot: OwnedSemaphorePermit,
}

impl Pump {
    pub fn new(way: Way) -> Pump {
        Pump { way, rest: Vec::new(), passed: 0, pipe: None, ended: false, watch: None }
    }

    /// A direction that fails with `AnswersHttp` when the server answers in HTTP to what the guest has sent.
    pub fn watching(way: Way) -> Pump {
        Pump { watch: Some(ServerWatch::default()), ..Pump::new(way) }
    }

    pub fn stop_watching(&mut self) {
        self.watch = None;
    }

    /// What the server's first bytes say it speaks, where that is watched.
    pub fn server_speaks(&self) -> Speaks {
        self.watch.as_ref().map(|watch| watch.speaks).unwrap_or_default()
    }

    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Passes on what is there now, once there is some.
    pub async fn step(&mut self, flow: &Flow, from: &TcpStream, to: &TcpStream) -> Result<(), Error> {
        to.writable().await?;
        if !self.rest.is_empty() {
            let sent = some(to.try_write(&self.rest))?;
            self.rest.drain(..sent);
            return Ok(());
        }
        if self.pipe.as_ref().is_none_or(|pipe| pipe.held == 0) {
            from.readable().await?;
        }
        let taken = match &mut self.pipe {
            Some(pipe) => pipe.step(flow, self.way, from, to),
            None => self.copy(flow, from, to),
        };
        match taken {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.ended = true;
                hang_up(to);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Copies what is there; false at the end.
    fn copy(&mut self, flow: &Flow, from: &TcpStream, to: &TcpStream) -> Result<bool, Error> {
        with_scratch(|buffer| {
            let len = from.try_read(buffer)?;
            if len == 0 {
                return Ok(false);
            }
            if let Some(watch) = &mut self.watch {
                watch.hear(&buffer[..len]);
                // A server that is tired of waiting says so unasked.
                if watch.speaks == Speaks::Http && flow.guest_has_spoken() {
                    return Err(AnswersHttp::error());
                }
            }
            flow.spend(self.way, len)?;
            let sent = some(to.try_write(&buffer[..len]))?;
            self.rest = buffer[sent..len].to_vec();
            self.passed += len as u64;
            if self.passed >= MANY {
                // Without one, all goes on as before.
                self.pipe = Pipe::new(&flow.gate.pipes).ok();
            }
            Ok(true)
        })
    }

    /// Passes on everything up to the end, which is passed on too.
    pub async fn run(mut self, flow: &Flow, from: &TcpStream, to: &TcpStream) -> Result<(), Error> {
        while !self.ended {
            self.step(flow, from, to).await?;
            // Two ends that are always ready would keep the thread for themselves.
            consume_budget().await;
        }
        Ok(())
    }

    /// Passes on what is left over, to stop there. Whoever stops does so before many bytes have passed.
    pub async fn flush(&mut self, to: &TcpStream) -> Result<(), Error> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held > 0) {
            to.writable().await?;
            pipe.empty(to)?;
        }
        write_all(to, &std::mem::take(&mut self.rest)).await
    }
}

impl Pipe {
    fn new(slots: &Arc<Semaphore>) -> Result<Pipe, Error> {
        let slot = slots.clone().try_acquire_owned().map_err(Error::other)?;
        let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A user who has many pipes is refused, and the usual size does as well.
        let _ = fcntl_setpipe_size(&inlet, PIPE);
        Ok(Pipe { inlet, outlet, held: 0, _slot: slot })
    }

    /// Moves what is there; false at the end.
    fn step(&mut self, flow: &Flow, way: Way, from: &TcpStream, to: &TcpStream) -> Result<bool, Error> {
        if self.held == 0 {
            let len = from.try_io(Interest::READABLE, || {
                Ok(splice(from, None, &self.inlet, None, AT_ONCE, SpliceFlags::NONBLOCK)?)
            })?;
            if len == 0 {
                return Ok(false);
            }
            flow.spend(way, len)?;
            self.held = len;
        }
        self.empty(to)?;
        Ok(true)
    }

    fn empty(&mut self, to: &TcpStream) -> Result<(), Error> {
        // A peer that is gone is an error here and not a signal: Rust programs ignore that one.
        let sent = to
            .try_io(Interest::WRITABLE, || Ok(splice(&self.outlet, None, to, None, self.held, SpliceFlags::NONBLOCK)?));
        self.held -= some(sent)?;
        Ok(())
    }
}

/// Passes bytes both ways until both ends have said all; an error of either end is the end of both.
pub(crate) async fn relay(flow: &Flow, guest: &TcpStream, outside: &TcpStream, back: Pump) -> Result<(), Error> {
    let forth = async {
        let whole = Whole { to: outside, is: Cell::new(false) };
        Pump::new(Way::FromGuest).run(flow, guest, outside).await?;
        whole.is.set(true);
        flow.said_all();
        Ok(())
    };
    tokio::try_join!(forth, back.run(flow, outside, guest))?;
    Ok(())
}

/// Sees to it that a server never takes a part for all: what is given up before its end is reset.
struct Whole<'a> {
    to: &'a TcpStream,
    is: Cell<bool>,
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if !self.is.get() {
            reset(self.to);
        }
    }
}
