//! Measures the layer that a run writes to while the guest runs: in small time slices, and never for longer than a bound.
//!
//! A round scans for unlinked open files, walks the layer, and scans again. A file may lose its name between two scans, or get one; so that
//! none counts twice, only those count that had no name before the walk and after it.

use api::FileKind;
use enclosure::{Gauge, TotalExceeded, UnlinkedFileFinder, UnlinkedFiles};
use state::total::Account;
use std::io;
use std::time::{Duration, Instant};
use workspace::Dir;
use workspace::descent::Descent;

/// Time slice of one call.
const TURN: Duration = Duration::from_millis(4);
/// Longest delay of a command by the first measurement.
const LONGEST_FIRST_LOOK: Duration = Duration::from_secs(2);
/// Inverse of the share of time that measuring may take.
const SHARE: u32 = 20;
/// Failed rounds on a changing tree before the partial count is taken as the whole.
const PATIENCE: u32 = 3;
/// Interval between rounds where the file system does not report changes at once.
const PAUSE: Duration = Duration::from_millis(100);
/// File systems whose free space drops as soon as data is written: ext4, xfs, tmpfs, f2fs. btrfs and others allocate late, up to half a
/// minute, and do not count inodes at all.
const REPORTING: [u64; 4] = [0xef53, 0x5846_5342, 0x0102_1994, 0xf2f5_2010];

/// Incremental meter of a layer that a guest writes to.
pub(super) struct Meter {
    /// Upper directories of the workspace and of the home.
    trees: Vec<Dir>,
    state: Dir,
    round: Option<Round>,
    known: Option<LastRound>,
    /// The file system reports changes of free space at once.
    reports_free_space: bool,
    before: (u64, u64),
    failed_rounds: u32,
    /// Scanner for unlinked files that the guest holds open, where those count.
    nameless: Option<UnlinkedFileFinder>,
    account: Option<LayerShare>,
}

/// Result of the last complete round.
struct LastRound {
    figure: (u64, u64),
    /// Free blocks and inodes of the file system at the start of the round.
    free: (u64, u64),
    /// Expiry, where the free counts do not report changes.
    until: Instant,
}

/// Share of this layer in the total of all layers.
struct LayerShare {
    account: Account,
    /// First and present figures. A layer that does not grow is not held responsible for the total.
    first: Option<(u64, u64)>,
    now: (u64, u64),
    look_at: Option<Instant>,
}

struct Round {
    stage: MeterStage,
    /// Unlinked open files before the walk.
    nameless: UnlinkedFiles,
    descent: Descent,
    /// Trees to walk after this one.
    later: Vec<Dir>,
    /// Names left to visit, for each directory on the path.
    unvisited: Vec<Vec<Vec<u8>>>,
    found: (u64, u64),
    before: (u64, u64),
    spent: Duration,
}

#[derive(Clone, Copy)]
enum MeterStage {
    FirstLook,
    Walk,
    LastLook,
}

/// Result of a complete round.
struct Measured {
    /// Bytes and entries.
    figure: (u64, u64),
    /// No file lost or got its name meanwhile; otherwise some may be missing.
    settled: bool,
}

impl Meter {
    pub fn new(trees: &[&Dir], state: &Dir, account: Option<Account>) -> io::Result<Meter> {
        let trees = trees.iter().map(|tree| tree.try_clone()).collect::<io::Result<Vec<Dir>>>()?;
        let (up, state) = (trees.first().ok_or(io::ErrorKind::NotFound)?, state.try_clone()?);
        let account = account.map(|account| LayerShare { account, first: None, now: (0, 0), look_at: None });
        let reports_free_space =
            rustix::fs::fstatfs(up).is_ok_and(|fs| REPORTING.contains(&(fs.f_type as u64 & 0xffff_ffff)));
        Ok(Meter {
            trees,
            state,
            round: None,
            known: None,
            reports_free_space,
            before: (0, 0),
            failed_rounds: 0,
            nameless: None,
            account,
        })
    }

    /// Measures the present content; a layer that takes too long counts as empty before the run.
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

    /// Declares the layer as newly created and empty: everything in it counts as growth.
    pub fn of_fresh_layer(mut self) -> Meter {
        self.account.iter_mut().for_each(|own| own.first = Some((0, 0)));
        self
    }

    /// Free blocks and inodes: while they are unchanged, so is the layer.
    fn free(&self) -> (u64, u64) {
        self.trees.first().and_then(|up| rustix::fs::fstatvfs(up).ok()).map_or((0, 0), |s| (s.f_bfree, s.f_ffree))
    }

    fn begin(&self) -> io::Result<Round> {
        let mut later = self.trees.iter().rev().map(Dir::try_clone).collect::<io::Result<Vec<Dir>>>()?;
        let first = later.pop().ok_or(io::ErrorKind::NotFound)?;
        let (descent, before) = (Descent::at(&first)?, self.free());
        let (stage, nameless) = (MeterStage::FirstLook, UnlinkedFiles::new());
        let (unvisited, found, spent) = (Vec::new(), (0, 0), Duration::ZERO);
        Ok(Round { stage, nameless, descent, later, unvisited, found, before, spent })
    }

    /// Continues a round until it is complete or the time slice is over.
    fn go_on(&mut self, round: &mut Round, until: Instant) -> io::Result<Option<Measured>> {
        loop {
            match round.stage {
                MeterStage::FirstLook => {
                    let Some(files) = self.look_for_nameless(until) else { return Ok(None) };
                    (round.nameless, round.stage) = (files, MeterStage::Walk);
                    round.unvisited = vec![round.descent.here().names()?];
                }
                MeterStage::Walk => {
                    if !round.walk(until)? {
                        return Ok(None);
                    }
                    round.stage = MeterStage::LastLook;
                }
                MeterStage::LastLook => {
                    let files = self.look_for_nameless(until);
                    return Ok(files.map(|files| round.finish(&files)));
                }
            }
        }
    }

    fn look_for_nameless(&mut self, until: Instant) -> Option<UnlinkedFiles> {
        self.nameless.as_mut().map_or_else(|| Some(UnlinkedFiles::new()), |nameless| nameless.scan(until))
    }

    /// Returns whether the last result is still valid.
    fn holds(&self, known: &LastRound) -> bool {
        if self.reports_free_space { known.free == self.free() } else { Instant::now() < known.until }
    }
}

impl Round {
    /// Adds the walk and the files that had no name before it nor after it.
    fn finish(&self, nameless: &UnlinkedFiles) -> Measured {
        let held = nameless.iter().filter(|(inode, _)| self.nameless.contains_key(inode)).map(|(_, bytes)| bytes);
        let (bytes, files) = held.fold((0, 0), |(bytes, files), more| (bytes + more, files + 1));
        let settled = self.nameless.keys().eq(nameless.keys());
        Measured { figure: (self.found.0 + bytes, self.found.1 + files), settled }
    }

    /// Walks until the tree is done or the time slice is over; returns whether it is done.
    fn walk(&mut self, until: Instant) -> io::Result<bool> {
        while let Some(names) = self.unvisited.last_mut() {
            let Some(name) = names.pop() else {
                self.unvisited.pop();
                if !self.unvisited.is_empty() {
                    self.descent.leave()?;
                } else if let Some(next) = self.later.pop() {
                    self.descent = Descent::at(&next)?;
                    self.unvisited.push(next.names()?);
                }
                continue;
            };
            // A file that was removed meanwhile takes no space.
            let Some(meta) = self.descent.here().meta_of(&name)? else { continue };
            if !meta.is_struck_out() {
                self.found.1 += 1;
            }
            match meta.kind {
                FileKind::Dir => match self.descent.enter(&name) {
                    Ok(()) => self.unvisited.push(self.descent.here().names()?),
                    // Removed, or made unreadable by the guest; its content counts when it can be read again.
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

    fn count_nameless(&mut self, files: UnlinkedFileFinder) {
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
            Err(_) if self.failed_rounds < PATIENCE => {
                self.failed_rounds += 1;
                return None;
            }
            Ok(Some(measured)) => measured,
            // The tree keeps changing: the partial count is taken as the whole.
            Err(_) => round.finish(&round.nameless),
        };
        self.failed_rounds = 0;
        let Measured { figure, settled } = measured;
        let until = Instant::now() + PAUSE.max(round.spent * SHARE);
        self.known = settled.then_some(LastRound { figure, free: round.before, until });
        Some(figure)
    }

    fn look_anew(&mut self) {
        self.round = None;
    }

    fn overfull(&self) -> Option<(u64, u64)> {
        state::directory::overfull(&self.state)
    }

    fn crowded(&mut self) -> Option<TotalExceeded> {
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
