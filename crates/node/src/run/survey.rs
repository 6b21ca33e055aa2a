//! Measures the layer that a run writes to while the guest lives: in small turns, and never for longer than a bound.

use crate::total::Account;
use enclosure::{Crowd, Gauge};
use std::io;
use std::time::{Duration, Instant};
use workspace::descent::Descent;
use workspace::{Dir, FileKind};

/// How long one look may take before somebody else gets a turn.
const TURN: Duration = Duration::from_millis(4);
/// How long the command may have to wait for the first look.
const LONGEST_FIRST_LOOK: Duration = Duration::from_secs(2);
/// Of the time that passes, this share at most goes into looking for what is shared with others.
const SHARE: u32 = 20;
/// Looks that found the tree moving before what was seen counts as all.
const PATIENCE: u32 = 3;
/// Measures a layer in small turns while a guest writes to it.
pub(super) struct Meter {
    up: Dir,
    state: Dir,
    round: Option<Round>,
    /// The last whole figure, and the figures of the file system when it was begun.
    known: Option<((u64, u64), (u64, u64))>,
    before: (u64, u64),
    moved: u32,
    account: Option<Own>,
}

/// A part of what all layers take.
struct Own {
    account: Account,
    /// What it was at first, and is now. One that does not grow is in nobody's way.
    first: Option<(u64, u64)>,
    now: (u64, u64),
    look_at: Option<Instant>,
}

struct Round {
    way: Descent,
    /// Of each directory on the way: names still to be looked at.
    waiting: Vec<Vec<Vec<u8>>>,
    found: (u64, u64),
    before: (u64, u64),
}

impl Meter {
    pub fn new(up: &Dir, state: &Dir, account: Option<Account>) -> io::Result<Meter> {
        let (up, state) = (up.try_clone()?, state.try_clone()?);
        let account = account.map(|account| Own { account, first: None, now: (0, 0), look_at: None });
        Ok(Meter { up, state, round: None, known: None, before: (0, 0), moved: 0, account })
    }

    /// Measures what is there already; a layer that takes longer counts as empty before.
    pub fn settle(mut self) -> Meter {
        let end = Instant::now() + LONGEST_FIRST_LOOK;
        while Instant::now() < end {
            if let Some(found) = self.used() {
                self.before = found;
                break;
            }
        }
        self
    }

    /// Free space and free entries: while they stay the same, so does everything.
    fn free(&self) -> (u64, u64) {
        rustix::fs::fstatvfs(&self.up).map_or((0, 0), |s| (s.f_bfree, s.f_ffree))
    }

    fn begin(&self) -> io::Result<Round> {
        let waiting = vec![self.up.names()?];
        Ok(Round { way: Descent::at(&self.up)?, waiting, found: (0, 0), before: self.free() })
    }
}

impl Round {
    /// Goes on until all is seen or the turn is over; whether all is seen.
    fn go_on(&mut self, until: Instant) -> io::Result<bool> {
        while let Some(names) = self.waiting.last_mut() {
            let Some(name) = names.pop() else {
                self.waiting.pop();
                self.way.leave()?;
                continue;
            };
            // What was removed meanwhile takes nothing.
            let Some(meta) = self.way.here().meta_of(&name)? else { continue };
            if !meta.is_struck_out() {
                self.found.1 += 1;
            }
            match meta.kind {
                FileKind::Dir => match self.way.enter(&name) {
                    Ok(()) => self.waiting.push(self.way.here().names()?),
                    // Removed, or shut by the guest; then only it knows what is inside, and it counts when it is open again.
                    Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
                    Err(e) => return Err(e),
                },
                FileKind::File => self.found.0 += meta.space / meta.links.max(1),
                _ => {}
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Gauge for Meter {
    fn before(&self) -> (u64, u64) {
        self.before
    }

    fn used(&mut self) -> Option<(u64, u64)> {
        if let (Some((figure, free)), None) = (self.known, &self.round)
            && free == self.free()
        {
            return Some(figure);
        }
        let round = match self.round.take() {
            Some(round) => round,
            None => self.begin().ok()?,
        };
        let mut round = round;
        match round.go_on(Instant::now() + TURN) {
            Ok(false) => {
                self.round = Some(round);
                None
            }
            Err(_) if self.moved < PATIENCE => {
                self.moved += 1;
                None
            }
            Ok(true) | Err(_) => {
                self.moved = 0;
                self.known = Some((round.found, round.before));
                Some(round.found)
            }
        }
    }

    fn overfull(&self) -> Option<(u64, u64)> {
        crate::state::overfull(&self.state)
    }

    fn crowded(&mut self) -> Option<Crowd> {
        let mut own = self.account.take()?;
        let began = Instant::now();
        if own.look_at.is_none_or(|at| began >= at) {
            if let Some(found) = self.used() {
                own.now = found;
                own.first.get_or_insert(found);
            }
            own.look_at = Some(began + began.elapsed() * SHARE);
        }
        let crowd = own.account.passed_by(own.now);
        let first = own.first.unwrap_or(own.now);
        let grew = own.now.0 > first.0 || own.now.1 > first.1;
        self.account = Some(own);
        crowd.filter(|_| grew)
    }
}
