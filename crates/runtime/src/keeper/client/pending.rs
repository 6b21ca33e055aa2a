//! Asynchronous answers: a request that was sent without waiting for its answer, and a subscription to the progress of runs. Only
//! `Follow::accepted` and `Follow::next` block, and they have deadlines.

use super::super::wire::{self, AcceptedInput, Frame, Notice, ReadResult, Waited, WireConnection};
use super::{ANSWER, Keeper, gone, wait_for};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Conversion of an answer frame into a value, once the frame has arrived.
pub trait FromReply: Sized {
    fn read(frame: Frame) -> Result<Self, Fault>;
}

impl FromReply for Option<AcceptedInput> {
    fn read(frame: Frame) -> Result<Self, Fault> {
        wire::read_answer(&frame)
    }
}

/// The end of a run, and its log where the keeper sent it along.
#[derive(Debug)]
pub struct RunEnd {
    pub waited: Waited,
    pub log: Option<Vec<u8>>,
}

impl FromReply for RunEnd {
    fn read(frame: Frame) -> Result<RunEnd, Fault> {
        let waited: Waited = wire::read_answer(&frame)?;
        let log = waited.whole.then_some(frame.payload);
        Ok(RunEnd { waited, log })
    }
}

/// A request that was sent and is not answered yet.
#[derive(Debug)]
pub struct Pending<T> {
    pub(super) keeper: Keeper,
    pub(super) answer: PhantomData<fn() -> T>,
}

impl<T: FromReply> Pending<T> {
    /// Sends and receives as far as the connection allows without blocking; returns the answer once it has arrived.
    pub fn step(&mut self) -> Result<Option<T>, Fault> {
        let lost = |e: io::Error| gone(&self.keeper.sandbox, &e.to_string());
        self.keeper.line.push().map_err(lost)?;
        match self.keeper.line.pull().map_err(lost)? {
            ReadResult::Frame(frame) => T::read(frame).map(Some),
            ReadResult::Closed => Err(gone(&self.keeper.sandbox, "it closed the connection")),
            ReadResult::Later => Ok(None),
        }
    }

    /// Returns whether request bytes are unsent; otherwise an answer is awaited.
    pub fn sends(&self) -> bool {
        self.keeper.line.waiting() > 0
    }

    /// Returns the connection for the next request, once this one is answered.
    pub fn done(self) -> Keeper {
        self.keeper
    }
}

impl<T> AsFd for Pending<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.keeper.line.as_fd()
    }
}

/// A subscription to the progress of runs. A slow reader gets fewer notices, but never misses the end of a run.
#[derive(Debug)]
pub struct Follow {
    pub(super) line: WireConnection,
    pub(super) sandbox: String,
    /// The keeper has answered the request; notices follow.
    pub(super) accepted: bool,
}

impl Follow {
    /// Returns whether the keeper has answered the request.
    pub fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// Waits until the keeper has answered the request; a fault where it refused or is silent.
    pub fn accepted(mut self) -> Result<Follow, Fault> {
        let end = Instant::now() + ANSWER;
        while !self.accept()? {
            if !wait_for(self.line.as_fd(), end) {
                let message = format!("the keeper of {} did not answer within {} ms", self.sandbox, ANSWER.as_millis());
                let fault = Fault::new(ErrorKind::Unavailable, message).subject(&self.sandbox);
                return Err(fault.retry(Retry::Later).hint("try again").phase(Phase::Execution));
            }
        }
        Ok(self)
    }

    /// Returns the next notice; `None` at the deadline.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Notice>, Fault> {
        let end = Instant::now() + patience;
        loop {
            if let Some(notice) = self.heard()? {
                return Ok(Some(notice));
            }
            if !wait_for(self.line.as_fd(), end) {
                return Ok(None);
            }
        }
    }

    /// Returns a notice that has arrived already, without blocking.
    pub fn heard(&mut self) -> Result<Option<Notice>, Fault> {
        if !self.accept()? {
            return Ok(None);
        }
        self.pull()?.map(|frame| wire::read_answer(&frame)).transpose()
    }

    /// Reads the answer to the request if it has arrived; returns whether it has been read by now.
    fn accept(&mut self) -> Result<bool, Fault> {
        if !self.accepted
            && let Some(frame) = self.pull()?
        {
            wire::read_answer::<()>(&frame)?;
            self.accepted = true;
        }
        Ok(self.accepted)
    }

    fn pull(&mut self) -> Result<Option<Frame>, Fault> {
        match self.line.push().and_then(|()| self.line.pull()) {
            Ok(ReadResult::Frame(frame)) => Ok(Some(frame)),
            Ok(ReadResult::Later) => Ok(None),
            Ok(ReadResult::Closed) => Err(gone(&self.sandbox, "it closed the connection")),
            Err(e) => Err(gone(&self.sandbox, &e.to_string())),
        }
    }
}

impl AsFd for Follow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}
