//! Counts what the top layer of a stack changes in what is below it. Costs as much as there are changes; and who counts again and
//! again, as a keeper does after each command, pays for what changed since: a directory that is the same by its number and by the time
//! of its last change, in the layer and in the directory below, is not listed again. A guest cannot set that time.

use std::io;
use terms::{Changes, ErrorKind, Fault};
use workspace::attributes::Marks;
use workspace::diff::{self, Counted, Options};
use workspace::dir::Meta;
use workspace::sight::MOST_LOOKED_AT;
use workspace::walk::{self, At, Known, Visitor};
use workspace::{Anchors, Dir, Driver, FileKind, Rel, Stack};

/// Deeper than this nothing is compared: it counts as new.
const DEEPEST_COMPARED: usize = 256;
/// Files up to this size are compared by their bytes where nothing else tells.
const LARGEST_COMPARED: u64 = 4 << 20;
/// Directories and compared files that are remembered; of a layer with more, nothing is.
const MOST_REMEMBERED: usize = if cfg!(test) { 300 } else { 30_000 };
/// A directory that changed within this time may change again without another time: clocks of file systems are coarse.
const SETTLED_MS: u64 = 2_000;
/// The same of a file's bytes: what is written through a mapping has the time of the first write until the kernel has cleaned it.
const CLEANED_MS: u64 = 60_000;

/// How often a layer is counted that is moved meanwhile.
const TRIES: usize = 3;

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
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

    fn add(&mut self, other: &Found) {
        self.changes.added += other.changes.added;
        self.changes.modified += other.changes.modified;
        self.changes.deleted += other.changes.deleted;
        self.history |= other.history;
    }
}

/// Counts once; with the files of the base that it was held against.
pub(crate) fn count(stack: &Stack) -> Result<(Found, Vec<Rel>), Fault> {
    let (found, met, _) = counted(stack, Vec::new(), None)?;
    Ok((found, met))
}

/// What an outcome says whose changes are not known.
pub(crate) fn uncounted(fault: &Fault) -> String {
    format!("its changes could not be counted: {fault}")
}

/// Counts again and again.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Of the last count; the first is the top.
    seen: Vec<Seen>,
    /// Files of the base that the last count met, and that none before it did, as far as is remembered.
    met: Vec<Rel>,
}

impl Tally {
    /// Other commands may be at work in the layer: a tree that is moved while it is counted is counted again.
    pub fn count(&mut self, stack: &Stack) -> Result<Found, Fault> {
        let mut tries = 1;
        loop {
            match self.count_at(stack, crate::fresh::now_ms()) {
                Err(_) if tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    fn count_at(&mut self, stack: &Stack, now_ms: u64) -> Result<Found, Fault> {
        let (found, met, seen) = counted(stack, std::mem::take(&mut self.seen), Some(now_ms))?;
        (self.met, self.seen) = (met, seen);
        Ok(found)
    }

    /// Which files of the base there are to look at since this was asked last.
    pub fn met(&mut self) -> Vec<Rel> {
        std::mem::take(&mut self.met)
    }
}

/// With a time, what was seen is remembered, and what was seen before is made use of.
fn counted(stack: &Stack, before: Vec<Seen>, now_ms: Option<u64>) -> Result<(Found, Vec<Rel>, Vec<Seen>), Fault> {
    let Some(top) = stack.layers.last() else { return Ok((Found::default(), Vec::new(), Vec::new())) };
    if stack.driver != Driver::Overlay {
        return Ok((compared(stack)?, Vec::new(), Vec::new()));
    }
    let unheld = |e: io::Error| Fault::new(ErrorKind::Unavailable, format!("its layers cannot be held: {e}"));
    let mut below = stack.try_clone().map_err(unheld)?;
    below.layers.pop();
    let counter = Counter {
        below,
        path: Vec::new(),
        git: None,
        found: Found::default(),
        open: Vec::new(),
        before,
        seen: Vec::new(),
        remembers: now_ms.is_some(),
        remembered: 0,
        now_ms: now_ms.unwrap_or(0),
        next: None,
        met: Vec::new(),
    };
    let counter = walk::walk(&[&top.up], Marks::Mean, counter)?;
    Ok((counter.found, counter.met, counter.seen))
}

/// A copy does not say what in it is new: it is held against the directory that it was made of. What is kept out of review is not
/// looked at, and so not thrown away.
fn compared(stack: &Stack) -> Result<Found, Fault> {
    let counted = diff::count(stack, &Anchors::default(), Options::default().bounds)?;
    let Counted { added, modified, deleted, withheld, .. } = counted;
    Ok(Found { changes: Changes { added, modified, deleted }, history: false, cut: withheld > 0 })
}

/// Which file it is, and when it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    id: (u64, u64),
    ctime: (i64, u32),
}

impl Mark {
    fn of(meta: &Meta) -> Mark {
        Mark { id: (meta.dev, meta.ino), ctime: meta.ctime }
    }

    /// Whether it changed so long ago that another change has another time.
    fn is_old(&self, now_ms: u64, time_ms: u64) -> bool {
        let at_ms = u64::try_from(self.ctime.0).unwrap_or(0) * 1000 + u64::from(self.ctime.1) / 1_000_000;
        at_ms.saturating_add(time_ms) <= now_ms
    }
}

/// A directory of the layer, as it was.
#[derive(Clone, Debug)]
struct Seen {
    up: Mark,
    /// What the base has there; layers in between never change.
    base: Option<Mark>,
    /// It can be told by its times whether it is still so.
    settled: bool,
    /// What it adds by itself: by its mode, by the names in it that are no directories and are not compared.
    own: Found,
    /// Directories in it, by name, and where they are remembered.
    dirs: Vec<(Vec<u8>, usize)>,
    /// Files that something below is held against.
    compared: Vec<Compared>,
}

#[derive(Clone, Debug)]
struct Compared {
    name: Vec<u8>,
    up: Mark,
    base: Option<Mark>,
    settled: bool,
    differs: bool,
}

/// A directory on the way.
struct Open {
    /// Where it is in `seen`.
    at: usize,
    /// Where it was in `before`, and whether it is still as it was there.
    was: Option<usize>,
    same: bool,
    /// It is new, and nothing was found in it yet.
    bare: bool,
}

struct Counter {
    below: Stack,
    path: Vec<Vec<u8>>,
    /// How deep the repository's own directory is, while in one.
    git: Option<usize>,
    found: Found,
    open: Vec<Open>,
    before: Vec<Seen>,
    seen: Vec<Seen>,
    remembers: bool,
    remembered: usize,
    now_ms: u64,
    /// The directory that is about to be entered.
    next: Option<(Seen, Option<usize>, bool)>,
    /// Files of the base that were met; not all, where they are many.
    met: Vec<Rel>,
}

impl Counter {
    fn at(&self, name: &[u8]) -> Rel {
        self.path
            .iter()
            .map(Vec::as_slice)
            .chain([name])
            .filter(|part| !part.is_empty())
            .fold(Rel::top(), |at, p| at.join(p))
    }

    /// What was at the path before, and whether the base has it; nothing where it is too deep to be told.
    fn before(&self, name: &[u8]) -> Option<(Rel, Meta, bool)> {
        if self.path.len() > DEEPEST_COMPARED {
            return None;
        }
        let at = self.at(name);
        let found = self.below.meta(&at).ok()??;
        Some((at, found.meta, found.layer.is_none()))
    }

    fn differs(&self, at: &At<'_>, path: &Rel, before: &Meta) -> bool {
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

    /// Adds to the directory that we are in, and to the whole.
    fn add(&mut self, more: Found) {
        self.found.add(&more);
        if let Some(seen) = self.open.last().and_then(|open| self.seen.get_mut(open.at)) {
            seen.own.add(&more);
        }
    }

    /// The directory that we are in as it was at the last count, if it is still so.
    fn unchanged(&self) -> Option<&Seen> {
        let open = self.open.last().filter(|open| open.same)?;
        self.before.get(open.was?)
    }

    /// A file that something below is held against; by memory where neither has changed.
    fn compare(&mut self, at: &At<'_>, path: &Rel, before: &Meta, of_base: bool) {
        let (up, base) = (Mark::of(&at.meta), of_base.then(|| Mark::of(before)));
        let known = self.unchanged().and_then(|seen| find(&seen.compared, at.name, |one| &one.name));
        let known = known.filter(|one| one.settled && one.up == up && one.base == base).cloned();
        if known.is_none() {
            self.meet(path, before, of_base);
        }
        let compared = known.unwrap_or_else(|| {
            let settled = [Some(up), base].iter().flatten().all(|mark| mark.is_old(self.now_ms, CLEANED_MS));
            Compared { name: at.name.to_vec(), up, base, settled, differs: self.differs(at, path, before) }
        });
        self.found.changes.modified += u64::from(compared.differs);
        if let Some(seen) = self.open.last().and_then(|open| self.seen.get_mut(open.at)) {
            seen.compared.push(compared);
        }
        self.remember_one();
    }

    fn meet(&mut self, path: &Rel, meta: &Meta, of_base: bool) {
        if of_base && meta.kind != FileKind::Dir && self.met.len() < MOST_LOOKED_AT {
            self.met.push(path.clone());
        }
    }

    /// One more; where they are too many, none from now on.
    fn remember_one(&mut self) {
        self.remembered += 1;
        if self.remembered > MOST_REMEMBERED {
            (self.remembers, self.seen) = (false, Vec::new());
        }
    }

    /// What the base has where a directory of the layer is, if it has one.
    fn base_of(&self, name: &[u8]) -> Option<Mark> {
        let above = self.open.last().and_then(|open| self.seen.get(open.at));
        if !self.remembers || self.git.is_some() || above.is_some_and(|above| above.base.is_none()) {
            return None;
        }
        let meta = self.below.base.meta(&self.at(name)).ok()??;
        (meta.kind == FileKind::Dir).then(|| Mark::of(&meta))
    }

    /// Remembers a directory; where that is.
    fn put(&mut self, name: &[u8], seen: Seen) -> usize {
        if !self.remembers {
            return usize::MAX;
        }
        let at = self.seen.len();
        if let Some(above) = self.open.last().and_then(|open| self.seen.get_mut(open.at)) {
            above.dirs.push((name.to_vec(), at));
        }
        self.seen.push(seen);
        self.remember_one();
        at
    }

    fn is_in(&mut self) {
        if let Some(last) = self.open.last_mut() {
            last.bare = false;
        }
    }
}

impl Visitor for Counter {
    fn known(&mut self, name: &[u8], meta: &Meta) -> io::Result<Known> {
        let (up, base) = (Mark::of(meta), self.base_of(name));
        let was = match self.open.last() {
            None => (!self.before.is_empty()).then_some(0),
            Some(above) => {
                above.was.and_then(|above| find(&self.before[above].dirs, name, |(known, _)| known).map(|(_, at)| *at))
            }
        };
        let same = was.map(|at| &self.before[at]).filter(|was| was.settled && (was.up, was.base) == (up, base));
        let settled = [Some(up), base].iter().flatten().all(|mark| mark.is_old(self.now_ms, SETTLED_MS));
        let own = same.map_or(Found::default(), |was| was.own);
        let seen = Seen { up, base, settled, own, dirs: Vec::new(), compared: Vec::new() };
        let known = match same {
            None => Known::Nothing,
            Some(was) if was.dirs.is_empty() && was.compared.is_empty() && !self.open.is_empty() => Known::All,
            Some(was) => {
                let names = was.dirs.iter().map(|(name, _)| name).chain(was.compared.iter().map(|one| &one.name));
                Known::But(names.cloned().collect())
            }
        };
        self.found.add(&own);
        match (&known, self.open.is_empty()) {
            (Known::All, _) => {
                self.is_in();
                self.put(name, seen);
            }
            (_, true) => {
                let (at, same) = (self.put(name, seen), known != Known::Nothing);
                self.open.push(Open { at, was, same, bare: false });
            }
            (_, false) => self.next = Some((seen, was, known != Known::Nothing)),
        }
        Ok(known)
    }

    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        let (seen, was, same) = self.next.take().ok_or_else(|| io::Error::other("a directory that was not told of"))?;
        self.is_in();
        let (mut own, mut bare) = (Found::default(), false);
        if self.git.is_none() && !same {
            let before = self.before(at.name);
            let differs = before.as_ref().is_some_and(|(_, b, _)| b.kind != FileKind::Dir || b.mode != at.meta.mode);
            own.changes.modified = u64::from(differs);
            if let (true, Some((path, ..)), Some(opened)) = (at.opaque, &before, at.opened) {
                own.changes.deleted = self.hidden(path, opened);
            }
            bare = before.is_none();
        }
        let place = self.put(at.name, seen);
        self.path.push(at.name.to_vec());
        if self.git.is_none() && at.name == b".git" {
            self.git = Some(self.path.len());
        }
        self.open.push(Open { at: place, was, same, bare });
        self.add(own);
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.is_in();
        let mut more = Found::default();
        if let Some(depth) = self.git {
            // Looking at a repository makes git note what it found in its index; that is no history.
            more.history = !(self.path.len() == depth && at.name.starts_with(b"index"));
        } else {
            match self.before(at.name) {
                before if at.meta.is_struck_out() => {
                    more.changes.deleted = 1;
                    before.into_iter().for_each(|(path, meta, of_base)| self.meet(&path, &meta, of_base));
                }
                None => more.changes.added = 1,
                Some((path, before, of_base)) => self.compare(at, &path, &before, of_base),
            }
        }
        self.add(more);
        Ok(())
    }

    /// Another command took it away between two looks: it is as if it had never been.
    fn vanished(&mut self) -> io::Result<()> {
        self.next = None;
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        // A directory that is new shows by what is in it; one that holds nothing must be told itself.
        if self.open.last().is_some_and(|open| open.bare) {
            let history = self.git.is_some();
            let changes = Changes { added: u64::from(!history), ..Changes::default() };
            self.add(Found { changes, history, cut: false });
        }
        if self.git == Some(self.path.len()) {
            self.git = None;
        }
        self.path.pop();
        self.open.pop();
        Ok(())
    }
}

/// By its name, in the order that walks go in.
fn find<'a, T>(all: &'a [T], name: &[u8], name_of: impl Fn(&T) -> &Vec<u8>) -> Option<&'a T> {
    all.binary_search_by(|one| name_of(one).as_slice().cmp(name)).ok().map(|at| &all[at])
}

#[cfg(test)]
#[path = "tally_test.rs"]
mod tests;
