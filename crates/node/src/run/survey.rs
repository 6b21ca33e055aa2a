//! Looks around in the layer that a run writes to: how much it takes while the guest lives, and what changed once it is gone.
//! Costs as much as there are changes, and never more than a bound.

use crate::total::Account;
use enclosure::{Crowd, Gauge};
use std::io;
use std::time::{Duration, Instant};
use terms::Changes;
use workspace::attributes::Marks;
use workspace::descent::Descent;
use workspace::diff::{self, Counted, Options};
use workspace::walk::{self, At, Visitor};
use workspace::{Anchors, Dir, Driver, FileKind, Rel, Stack};

/// How long one look may take before somebody else gets a turn.
const TURN: Duration = Duration::from_millis(4);
/// How long the command may have to wait for the first look.
const LONGEST_FIRST_LOOK: Duration = Duration::from_secs(2);
/// Of the time that passes, this share at most goes into looking for what is shared with others.
const SHARE: u32 = 20;
/// Looks that found the tree moving before what was seen counts as all.
const PATIENCE: u32 = 3;
/// Deeper than this nothing is compared: it counts as new.
const DEEPEST_COMPARED: usize = 256;
/// Files up to this size are compared by their bytes where nothing else tells.
const LARGEST_COMPARED: u64 = 4 << 20;

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

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub changes: Changes,
    /// Something was done to a repository itself: a commit, a branch. It is no change to be reviewed, and worth keeping.
    pub history: bool,
    /// There was more to look at than is looked at.
    pub cut: bool,
}

impl Found {
    pub fn is_nothing(&self) -> bool {
        self.changes == Changes::default() && !self.history && !self.cut
    }
}

/// Counts what the top layer of a stack changes in what is below it.
pub(super) fn count(stack: &Stack) -> Found {
    let Some(top) = stack.layers.last() else { return Found::default() };
    if stack.driver != Driver::Overlay {
        return compared(stack);
    }
    let Ok(mut below) = stack.try_clone() else { return Found { cut: true, ..Found::default() } };
    below.layers.pop();
    let counter = Counter { below, path: Vec::new(), git: None, empty: Vec::new(), found: Found::default() };
    match walk::walk(&[&top.up], Marks::Mean, counter) {
        Ok(counter) => counter.found,
        // Changed beyond what can be counted.
        Err(_) => Found { cut: true, ..Found::default() },
    }
}

/// A copy does not say what in it is new: it is held against the directory that it was made of. What is kept out of review is not
/// looked at, and so not thrown away.
fn compared(stack: &Stack) -> Found {
    match diff::count(stack, &Anchors::default(), Options::default().bounds) {
        Ok(Counted { added, modified, deleted, withheld, .. }) => {
            Found { changes: Changes { added, modified, deleted }, history: false, cut: withheld > 0 }
        }
        Err(_) => Found { cut: true, ..Found::default() },
    }
}

struct Counter {
    below: Stack,
    path: Vec<Vec<u8>>,
    /// How deep the repository's own directory is, while in one.
    git: Option<usize>,
    /// Of each directory on the way that is new: whether nothing was found in it yet.
    empty: Vec<bool>,
    found: Found,
}

impl Counter {
    /// What was at the path before; nothing where it is too deep to be told.
    fn before(&self, name: &[u8]) -> Option<(Rel, workspace::dir::Meta)> {
        if self.path.len() > DEEPEST_COMPARED {
            return None;
        }
        let dir = self.path.iter().fold(Rel::top(), |at, part| at.join(part));
        let at = dir.join(name);
        let found = self.below.meta(&at).ok()??;
        Some((at, found.meta))
    }

    fn differs(&self, at: &At<'_>, path: &Rel, before: &workspace::dir::Meta) -> bool {
        let meta = &at.meta;
        if (meta.kind, meta.mode, meta.size) != (before.kind, before.mode, before.size) {
            return true;
        }
        match meta.kind {
            // A guest can set the time back, so that alone says nothing.
            FileKind::File => meta.size > LARGEST_COMPARED || !self.same_bytes(at, path).unwrap_or(false),
            FileKind::Symlink => self.below.link_target(path).ok() != at.parent.link_target(at.name).ok(),
            _ => false,
        }
    }

    fn same_bytes(&self, at: &At<'_>, path: &Rel) -> io::Result<bool> {
        use io::Read;
        let (mut one, mut other) = (Vec::new(), Vec::new());
        walk::open_file(at)?.take(LARGEST_COMPARED + 1).read_to_end(&mut one)?;
        self.below.file(path)?.take(LARGEST_COMPARED + 1).read_to_end(&mut other)?;
        Ok(one == other)
    }

    /// Names that a directory hides because it was made anew.
    fn hidden(&self, path: &Rel, opened: &Dir) -> u64 {
        let before = self.below.names(path).unwrap_or_default();
        before.into_keys().filter(|name| !matches!(opened.meta_of(name), Ok(Some(_)))).count() as u64
    }

    fn note(&mut self, at: &At<'_>) {
        if let Some(last) = self.empty.last_mut() {
            *last = false;
        }
        if let Some(depth) = self.git {
            // Looking at a repository makes git note what it found in its index; that is no history.
            self.found.history |= !(self.path.len() == depth && at.name.starts_with(b"index"));
            return;
        }
        let before = self.before(at.name);
        let changes = &mut self.found.changes;
        match before {
            _ if at.meta.is_struck_out() => changes.deleted += 1,
            None => changes.added += 1,
            Some((path, before)) => {
                if self.differs(at, &path, &before) {
                    self.found.changes.modified += 1;
                }
            }
        }
    }
}

impl Visitor for Counter {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        let new = self.git.is_none() && {
            let before = self.before(at.name);
            let differs = before.as_ref().is_some_and(|(_, b)| b.kind != FileKind::Dir || b.mode != at.meta.mode);
            self.found.changes.modified += u64::from(differs);
            if let (true, Some((path, _)), Some(opened)) = (at.opaque, &before, at.opened) {
                self.found.changes.deleted += self.hidden(path, opened);
            }
            before.is_none()
        };
        if let Some(last) = self.empty.last_mut() {
            *last = false;
        }
        self.path.push(at.name.to_vec());
        if self.git.is_none() && at.name == b".git" {
            self.git = Some(self.path.len());
        }
        self.empty.push(new);
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.note(at);
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        // A directory that is new shows by what is in it; one that holds nothing must be told itself.
        if self.empty.pop() == Some(true) {
            match self.git {
                Some(_) => self.found.history = true,
                None => self.found.changes.added += 1,
            }
        }
        if self.git == Some(self.path.len()) {
            self.git = None;
        }
        self.path.pop();
        Ok(())
    }
}
