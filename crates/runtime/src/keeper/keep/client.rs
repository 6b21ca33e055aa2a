//! A client connection of a keeper and the answer it waits for. Each has at most one request in progress, so its memory is bounded.

use crate::keeper::wire::{Frame, Notice, OpenContext, ReadResult, RunSummary, WireConnection, refusal, value};
use rustix::event::PollFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Instant;
use terms::{ErrorKind, Fault};

/// Unsent bytes above which a follower gets no more notices.
const MOST_WAITING: usize = 4096;

pub(super) struct KeeperClient {
    pub line: WireConnection,
    pub owed: OwedReply,
    /// A file handle was given to it; the client counts as using files until it disconnects.
    pub holds_files: bool,
}

/// The answer that a client waits for.
pub(super) enum OwedReply {
    Nothing,
    /// The run's record must be written first.
    Begin {
        run: String,
        existed: bool,
        /// The client then waits for the end of the run.
        waits: bool,
    },
    /// The input must be taken first.
    Input,
    /// The run must end, or the deadline pass.
    Wait {
        run: String,
        until: Option<Instant>,
        /// The run's output is wanted as well.
        said: bool,
    },
    /// The context must be free first, until the deadline.
    Context {
        ask: Box<OpenContext>,
        until: Instant,
    },
    /// Every run must end first.
    End,
    /// Notices are sent; no further request is expected.
    Follow(Following),
}

pub(super) struct Following {
    /// Runs to follow; `None` for all.
    pub runs: Option<BTreeSet<String>>,
    told: BTreeMap<String, (u64, bool)>,
}

impl Following {
    pub fn new(runs: Option<Vec<String>>) -> Following {
        Following { runs: runs.map(|runs| runs.into_iter().collect()), told: BTreeMap::new() }
    }

    /// Suppresses the notice of a run that had ended before the subscription.
    pub fn skip(&mut self, past: &RunSummary) {
        self.told.insert(past.run.clone(), (past.offset, true));
    }
}

impl KeeperClient {
    pub fn new(socket: OwnedFd) -> KeeperClient {
        KeeperClient { line: WireConnection::new(socket), owed: OwedReply::Nothing, holds_files: false }
    }

    /// Poll flags for the connection: requests are not read before the last answer is sent.
    pub fn flags(&self) -> PollFlags {
        match (&self.owed, self.line.waiting()) {
            (_, 0) => PollFlags::IN,
            (OwedReply::Nothing, _) => PollFlags::OUT,
            _ => PollFlags::IN | PollFlags::OUT,
        }
    }

    /// Reads the next request where one is allowed. `Closed` also for protocol violations.
    pub fn next(&mut self) -> ReadResult {
        match (&self.owed, self.line.waiting()) {
            (OwedReply::Nothing, 0) => self.line.pull().unwrap_or(ReadResult::Closed),
            (OwedReply::Nothing, _) => ReadResult::Later,
            // A waiting client must not send; further bytes or a closed connection drop it.
            _ => match self.line.pull() {
                Ok(ReadResult::Later) => ReadResult::Later,
                _ => ReadResult::Closed,
            },
        }
    }

    pub fn answer(&mut self, frame: Frame) {
        if !matches!(self.owed, OwedReply::Follow(_)) {
            self.owed = OwedReply::Nothing;
        }
        // The client waits for an answer, and would wait for ever for one that does not fit a frame.
        if self.line.put(frame).is_err() {
            let fault = Fault::new(ErrorKind::LimitExceeded, "the keeper's response is too long to be sent");
            let _ = self.line.put(refusal(&fault.hint("ask for less"))); // a short fault always fits
        }
    }

    /// Sends progress notices to a follower, unless earlier ones are still unsent.
    pub fn tell(&mut self, news: &[Notice]) {
        let OwedReply::Follow(following) = &mut self.owed else { return };
        for notice in news {
            if self.line.waiting() > MOST_WAITING {
                return;
            }
            let now = (notice.offset, notice.ended);
            let concerns = following.runs.as_ref().is_none_or(|runs| runs.contains(&notice.run));
            if !concerns || following.told.get(&notice.run) == Some(&now) {
                continue;
            }
            following.told.insert(notice.run.clone(), now);
            let _ = self.line.put(value(notice));
        }
        // Ended runs stay marked as reported for as long as the keeper lists them.
        following.told.retain(|run, _| news.iter().any(|notice| notice.run == *run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::wire::{MOST, read_answer};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// The client gets a fault instead of waiting for ever.
    // promise 24
    #[test]
    fn an_answer_that_is_too_long_is_told_as_such() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let (mut client, mut asks) = (KeeperClient::new(ours), WireConnection::new(theirs));
        for (length, kind) in [(MOST + 1, Some(ErrorKind::LimitExceeded)), (8, None)] {
            client.owed = OwedReply::Input;
            client.answer(value(&"x".repeat(length)));
            client.line.push().unwrap();
            let ReadResult::Frame(frame) = asks.pull().unwrap() else { panic!("an answer comes") };
            assert_eq!(read_answer::<String>(&frame).err().map(|fault| fault.error_kind), kind);
            assert!(matches!(client.owed, OwedReply::Nothing));
        }
    }
}
