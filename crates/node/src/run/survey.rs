//! Measures the layer that a run writes to while the guest lives: in small turns, and never for longer than a bound.
//!
//! One round looks for files without a name, walks the layer, and looks for files without a name again. A file may lose its name
//! between two looks, or get one; so that none counts twice, only those count that had no name before the walk and after it.

use crate::total::Account;
use enclosure::{Crowd, Gauge, Nameless, NamelessFiles};
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
    /// Finds files without a name that the guest holds, where those count.
    nameless: Option<Nameless>,
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
    stage: Stage,
    /// Files without a name before the walk.
    nameless: NamelessFiles,
    way: Descent,
    /// Of each directory on the way: names still to be looked at.
    waiting: Vec<Vec<Vec<u8>>>,
    found: (u64, u64),
    before: (u64, u64),
    spent: Duration,
}

#[derive(Clone, Copy)]
enum Stage {
    FirstLook,
    Walk,
    LastLook,
}

/// A round that is complete.
struct Measured {
    /// Bytes and entries.
    figure: (u64, u64),
    /// No file lost its name or got one meanwhile; else some may not have been counted.
    settled: bool,
}

impl Meter {
    pub fn new(up: &Dir, state: &Dir, account: Option<Account>) -> io::Result<Meter> {
        let (up, state) = (up.try_clone()?, state.try_clone()?);
        let account = account.map(|account| Own { account, first: None, now: (0, 0), look_at: None });
        let counts = rustix::fs::fstatfs(&up).is_ok_and(|fs| COUNTING.contains(&(fs.f_type as u64 & 0xffff_ffff)));
        Ok(Meter { up, state, round: None, known: None, counts, before: (0, 0), moved: 0, nameless: None, account })
    }

    /// Measures what is there already; a layer that takes longer counts as empty before.
    pub fn settle(mut self) -> Meter {
        let end = Instant::now() + LONGEST_FIRST_LOOK;
        while Instant::now() < end {
            if let Some(found) = self.used() {
                self.before = found;
                self.account.iter_mut().for_each(|own| own.first = Some(found));
                break;
            }
        }
        self
    }

    /// The layer was just made, and holds nothing: whatever is in it from now on is growth.
    pub fn of_fresh_layer(mut self) -> Meter {
        self.account.iter_mut().for_each(|own| own.first = Some((0, 0)));
        self
    }

    /// Free space and free entries: while they stay the same, so does everything.
    fn free(&self) -> (u64, u64) {
        rustix::fs::fstatvfs(&self.up).map_or((0, 0), |s| (s.f_bfree, s.f_ffree))
    }

    fn begin(&self) -> io::Result<Round> {
        let (way, before) = (Descent::at(&self.up)?, self.free());
        let (stage, nameless) = (Stage::FirstLook, NamelessFiles::new());
        Ok(Round { stage, nameless, way, waiting: Vec::new(), found: (0, 0), before, spent: Duration::ZERO })
    }

    /// Goes on with a round until it is complete or the turn is over.
    fn go_on(&mut self, round: &mut Round, until: Instant) -> io::Result<Option<Measured>> {
        loop {
            match round.stage {
                Stage::FirstLook => {
                    let Some(files) = self.look_for_nameless(until) else { return Ok(None) };
                    (round.nameless, round.stage) = (files, Stage::Walk);
                    round.waiting = vec![self.up.names()?];
                }
                Stage::Walk => {
                    if !round.walk(until)? {
                        return Ok(None);
                    }
                    round.stage = Stage::LastLook;
                }
                Stage::LastLook => {
                    let files = self.look_for_nameless(until);
                    return Ok(files.map(|files| round.finish(&files)));
                }
            }
        }
    }

    fn look_for_nameless(&mut self, until: Instant) -> Option<NamelessFiles> {
        self.nameless.as_mut().map_or_else(|| Some(NamelessFiles::new()), |nameless| nameless.scan(until))
    }

    /// Whether what is known holds still.
    fn holds(&self, known: &Known) -> bool {
        if self.counts { known.free == self.free() } else { Instant::now() < known.until }
    }
}

impl Round {
    /// The figures of the walk, and of the files that had no name before it nor after it.
    fn finish(&self, nameless: &NamelessFiles) -> Measured {
        let held = nameless.iter().filter(|(inode, _)| self.nameless.contains_key(inode)).map(|(_, bytes)| bytes);
        let (bytes, files) = held.fold((0, 0), |(bytes, files), more| (bytes + more, files + 1));
        let settled = self.nameless.keys().eq(nameless.keys());
        Measured { figure: (self.found.0 + bytes, self.found.1 + files), settled }
    }

    /// Walks until all is seen or the turn is over; whether all is seen.
    fn walk(&mut self, until: Instant) -> io::Result<bool> {
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

    fn shares(&self) -> bool {
        self.account.is_some()
    }

    fn count_nameless(&mut self, files: Nameless) {
        (self.nameless, self.known, self.round) = (Some(files), None, None);
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
        let went = self.go_on(&mut round, began + TURN);
        round.spent += began.elapsed();
        let measured = match went {
            Ok(None) => {
                self.round = Some(round);
                return None;
            }
            Err(_) if self.moved < PATIENCE => {
                self.moved += 1;
                return None;
            }
            Ok(Some(measured)) => measured,
            // The tree does not stand still: what was seen of it counts as all.
            Err(_) => round.finish(&round.nameless),
        };
        self.moved = 0;
        let Measured { figure, settled } = measured;
        let until = Instant::now() + PAUSE.max(round.spent * SHARE);
        self.known = settled.then_some(Known { figure, free: round.before, until });
        Some(figure)
    }

    fn look_anew(&mut self) {
        self.round = None;
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
