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
/// How long apart looks are where the file system does not tell whether anything changed.
const PAUSE: Duration = Duration::from_millis(100);
/// File systems whose free space is less as soon as something is written: ext4, xfs, tmpfs, f2fs. btrfs and others say so when they
/// have found a place for it, which may be half a minute later, and do not count entries at all.
const COUNTING: [u64; 4] = [0xef53, 0x5846_5342, 0x0102_1994, 0xf2f5_2010];

/// Measures a layer in small turns while a guest writes to it.
pub(super) struct Meter {
    up: Dir,
    state: Dir,
    round: Option<Round>,
    known: Option<Known>,
    /// Its file system tells at once whether anything changed.
    counts: bool,
    before: (u64, u64),
    moved: u32,
    account: Option<Own>,
}

/// The last whole figure.
struct Known {
    figure: (u64, u64),
    /// The figures of the file system when it was begun.
    free: (u64, u64),
    /// When it is too old, where those do not tell.
    until: Instant,
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
    spent: Duration,
}

impl Meter {
    pub fn new(up: &Dir, state: &Dir, account: Option<Account>) -> io::Result<Meter> {
        let (up, state) = (up.try_clone()?, state.try_clone()?);
        let account = account.map(|account| Own { account, first: None, now: (0, 0), look_at: None });
        let counts = rustix::fs::fstatfs(&up).is_ok_and(|fs| COUNTING.contains(&(fs.f_type as u64 & 0xffff_ffff)));
        Ok(Meter { up, state, round: None, known: None, counts, before: (0, 0), moved: 0, account })
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
        let (way, before) = (Descent::at(&self.up)?, self.free());
        Ok(Round { way, waiting, found: (0, 0), before, spent: Duration::ZERO })
    }

    /// Whether what is known holds still.
    fn holds(&self, known: &Known) -> bool {
        if self.counts { known.free == self.free() } else { Instant::now() < known.until }
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
        if let (Some(known), None) = (&self.known, &self.round)
            && self.holds(known)
        {
            return Some(known.figure);
        }
        let began = Instant::now();
        let mut round = match self.round.take() {
            Some(round) => round,
            None => self.begin().ok()?,
        };
        let went = round.go_on(began + TURN);
        round.spent += began.elapsed();
        match went {
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
                let until = Instant::now() + PAUSE.max(round.spent * SHARE);
                self.known = Some(Known { figure: round.found, free: round.before, until });
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
