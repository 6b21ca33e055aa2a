//! One who asks a keeper: a line, and what is owed to it. It asks one thing at a time, so that its share of memory has an end.

use crate::keeper::wire::{Frame, Line, Listed, Notice, Pulled, refusal, value};
use rustix::event::PollFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Instant;
use terms::{ErrorKind, Fault};

/// A follower whose notices wait hears no more before they are gone.
const MOST_WAITING: usize = 4096;

pub(super) struct Client {
    pub line: Line,
    pub owed: Owed,
    /// It was given a handle on files, and works with it as long as it stays.
    pub holds_files: bool,
}

/// What a client waits for.
pub(super) enum Owed {
    Nothing,
    /// Its answer comes when the run's record is written.
    Begin {
        run: String,
        existed: bool,
        /// Then it waits for the end.
        waits: bool,
    },
    /// When its bytes are taken.
    Input,
    /// When the run has ended, or then.
    Wait {
        run: String,
        until: Option<Instant>,
        /// What the run said is wanted, too.
        said: bool,
    },
    /// When all has ended.
    End,
    /// It hears notices, and asks no more.
    Follow(Following),
}

pub(super) struct Following {
    /// None for all.
    pub runs: Option<BTreeSet<String>>,
    told: BTreeMap<String, (u64, bool)>,
}

impl Following {
    pub fn new(runs: Option<Vec<String>>) -> Following {
        Following { runs: runs.map(|runs| runs.into_iter().collect()), told: BTreeMap::new() }
    }

    /// It need not hear of a run that was over before.
    pub fn skip(&mut self, past: &Listed) {
        self.told.insert(past.run.clone(), (past.offset, true));
    }
}

impl Client {
    pub fn new(socket: OwnedFd) -> Client {
        Client { line: Line::new(socket), owed: Owed::Nothing, holds_files: false }
    }

    /// What its line is polled for: whoever has not taken an answer yet is not heard.
    pub fn flags(&self) -> PollFlags {
        match (&self.owed, self.line.waiting()) {
            (_, 0) => PollFlags::IN,
            (Owed::Nothing, _) => PollFlags::OUT,
            _ => PollFlags::IN | PollFlags::OUT,
        }
    }

    /// The next question, where it may ask one. `Closed` also where it breaks the rules.
    pub fn next(&mut self) -> Pulled {
        match (&self.owed, self.line.waiting()) {
            (Owed::Nothing, 0) => self.line.pull().unwrap_or(Pulled::Closed),
            (Owed::Nothing, _) => Pulled::Later,
            // Whoever waits says nothing; a word more, or a line that was closed, is the end.
            _ => match self.line.pull() {
                Ok(Pulled::Later) => Pulled::Later,
                _ => Pulled::Closed,
            },
        }
    }

    pub fn answer(&mut self, frame: Frame) {
        if !matches!(self.owed, Owed::Follow(_)) {
            self.owed = Owed::Nothing;
        }
        // Whoever asked waits for a word, and would wait for ever for one that cannot be sent.
        if self.line.put(frame).is_err() {
            let fault = Fault::new(ErrorKind::LimitExceeded, "the keeper's answer is too long to be sent");
            let _it_fits = self.line.put(refusal(&fault.hint("ask for less")));
        }
    }

    /// Tells a follower how far runs have come, unless it has not read yet what it was told.
    pub fn tell(&mut self, news: &[Notice]) {
        let Owed::Follow(following) = &mut self.owed else { return };
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
        // Those that are past and told are not told again as long as the keeper knows them.
        following.told.retain(|run, _| news.iter().any(|notice| notice.run == *run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::wire::{MOST, read_answer};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Who asked is told so, and is not left to wait.
    #[test]
    fn an_answer_that_is_too_long_is_told_as_such() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let (mut client, mut asks) = (Client::new(ours), Line::new(theirs));
        for (length, kind) in [(MOST + 1, Some(ErrorKind::LimitExceeded)), (8, None)] {
            client.owed = Owed::Input;
            client.answer(value(&"x".repeat(length)));
            client.line.push().unwrap();
            let Pulled::Frame(frame) = asks.pull().unwrap() else { panic!("an answer comes") };
            assert_eq!(read_answer::<String>(&frame).err().map(|fault| fault.error_kind), kind);
            assert!(matches!(client.owed, Owed::Nothing));
        }
    }
}
