//! Counts the changes that the top layer of a stack makes. The cost grows with the number of changes. A repeated
//! count, as a keeper does after each command, costs only the changes since: a directory with the same inode and
//! ctime, in the layer and in the base, is not listed again. A guest cannot set the ctime.

use crate::attributes::Marks;
use crate::diff::{self, ChangeCounts, Options};
use crate::dir::Meta;
use crate::sight::MOST_LOOKED_AT;
use crate::walk::{self, At, Known, Visitor};
use crate::{Anchors, Dir, Stack};
use api::{Driver, FileKind, Rel};
use std::io;
use terms::{Changes, ErrorKind, Fault};

/// Depth beyond which entries are not compared and count as new.
const DEEPEST_COMPARED: usize = 256;
/// Size up to which files are compared by their bytes if metadata does not decide.
const LARGEST_COMPARED: u64 = 4 << 20;
/// Largest number of cached directories and comparisons; a layer with more is not cached at all.
const MOST_REMEMBERED: usize = if cfg!(test) { 300 } else { 30_000 };
/// Age of a ctime from which another change is sure to get another ctime: clocks of file systems are coarse.
const SETTLED_MS: u64 = 2_000;
/// Same for the bytes of a file: writes through a mapping keep the time of the first write until writeback.
const CLEANED_MS: u64 = 60_000;

/// Attempts to count a layer that is changed meanwhile.
const TRIES: usize = 3;

/// Changes that a run left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub changes: Changes,
    /// The `.git` directory of a repository changed: a commit, a branch. Not a change to review, but worth keeping.
    pub history: bool,
    /// The count is incomplete because a bound was met.
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

/// Counts once; also returns the files of the base that were compared.
pub fn count(stack: &Stack) -> Result<(Found, Vec<Rel>), Fault> {
    let (found, met, _) = counted(stack, Vec::new(), None)?;
    Ok((found, met))
}

/// Text for an outcome whose changes could not be counted.
pub fn uncounted(fault: &Fault) -> String {
    format!("its changes could not be counted: {fault}")
}

/// Repeated count with a cache.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cache of the last count; the first entry is the top directory.
    seen: Vec<CachedDir>,
    /// Files of the base that the last count compared for the first time, as far as the cache knows.
    met: Vec<Rel>,
}

impl Tally {
    /// Counts the changes. Other commands may be writing to the layer: a tree that changes while it is counted is
    /// counted again.
    pub fn count(&mut self, stack: &Stack) -> Result<Found, Fault> {
        let mut tries = 1;
        loop {
            match self.count_at(stack, terms::clock::now_ms()) {
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

    /// Takes the files of the base to look at since the last call.
    pub fn met(&mut self) -> Vec<Rel> {
        std::mem::take(&mut self.met)
    }
}

/// With a time, uses the cache in `before` and fills a new one.
fn counted(
    stack: &Stack,
    before: Vec<CachedDir>,
    now_ms: Option<u64>,
) -> Result<(Found, Vec<Rel>, Vec<CachedDir>), Fault> {
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
        seeded: None,
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

/// Counts a copied tree, which does not record changes, by comparing it with its base. Withheld paths are not looked
/// at, so the result is marked incomplete and the workspace is kept.
fn compared(stack: &Stack) -> Result<Found, Fault> {
    let counted = diff::count(stack, &Anchors::default(), Options::default().bounds)?;
    let ChangeCounts { added, modified, deleted, withheld, .. } = counted;
    Ok(Found { changes: Changes { added, modified, deleted }, history: false, cut: withheld > 0 })
}

/// Identity and ctime of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    id: (u64, u64),
    ctime: (i64, u32),
}

impl Stamp {
    fn of(meta: &Meta) -> Stamp {
        Stamp { id: (meta.dev, meta.ino), ctime: meta.ctime }
    }

    /// True if the ctime is so old that another change has another ctime.
    fn is_old(&self, now_ms: u64, time_ms: u64) -> bool {
        let at_ms = u64::try_from(self.ctime.0).unwrap_or(0) * 1000 + u64::from(self.ctime.1) / 1_000_000;
        at_ms.saturating_add(time_ms) <= now_ms
    }
}

/// Cached directory of the layer.
#[derive(Clone, Debug)]
struct CachedDir {
    up: Stamp,
    /// The base's directory at the same path; layers in between never change.
    base: Option<Stamp>,
    /// Both ctimes are old enough to reveal any later change.
    settled: bool,
    /// Changes that the directory adds by itself: its mode, and names in it that are neither directories nor compared.
    own: Found,
    /// Subdirectories by name, with their index in the cache.
    dirs: Vec<(Vec<u8>, usize)>,
    /// Files that were compared with a file below.
    compared: Vec<CachedComparison>,
}

#[derive(Clone, Debug)]
struct CachedComparison {
    name: Vec<u8>,
    up: Stamp,
    base: Option<Stamp>,
    settled: bool,
    differs: bool,
}

/// Directory that the walk is in.
struct CountedDir {
    /// Index in `seen`.
    at: usize,
    /// Index in `before`, and if it is unchanged since.
    was: Option<usize>,
    same: bool,
    /// New directory without entries so far.
    bare: bool,
}

struct Counter {
    below: Stack,
    path: Vec<Vec<u8>>,
    /// Depth of the `.git` directory that the walk is in.
    git: Option<usize>,
    /// Time when that directory was seeded, in place of a `.git` file: what is older was not written by a guest.
    seeded: Option<(i64, u32)>,
    found: Found,
    open: Vec<CountedDir>,
    before: Vec<CachedDir>,
    seen: Vec<CachedDir>,
    remembers: bool,
    remembered: usize,
    now_ms: u64,
    /// Directory that is about to be entered.
    next: Option<(CachedDir, Option<usize>, bool)>,
    /// Files of the base that were compared, up to a bound.
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

    /// Entry below at this path, and if the base provides it; None beyond the depth bound.
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
            // A guest can set the mtime back, so it does not decide.
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

    /// Counts the names of lower layers that an opaque directory hides.
    fn hidden(&self, path: &Rel, opened: &Dir) -> u64 {
        let before = self.below.names(path).unwrap_or_default();
        before.into_keys().filter(|name| !matches!(opened.meta_of(name), Ok(Some(_)))).count() as u64
    }

    /// Adds to the current directory and to the total.
    fn add(&mut self, more: Found) {
        self.found.add(&more);
        if let Some(seen) = self.open.last().and_then(|open| self.seen.get_mut(open.at)) {
            seen.own.add(&more);
        }
    }

    /// The cached state of the current directory, if it is unchanged.
    fn unchanged(&self) -> Option<&CachedDir> {
        let open = self.open.last().filter(|open| open.same)?;
        self.before.get(open.was?)
    }

    /// Compares a file with the one below; uses the cached result if neither has changed.
    fn compare(&mut self, at: &At<'_>, path: &Rel, before: &Meta, of_base: bool) {
        let (up, base) = (Stamp::of(&at.meta), of_base.then(|| Stamp::of(before)));
        let known = self.unchanged().and_then(|seen| find(&seen.compared, at.name, |one| &one.name));
        let known = known.filter(|one| one.settled && one.up == up && one.base == base).cloned();
        if known.is_none() {
            self.meet(path, before, of_base);
        }
        let compared = known.unwrap_or_else(|| {
            let settled = [Some(up), base].iter().flatten().all(|mark| mark.is_old(self.now_ms, CLEANED_MS));
            CachedComparison { name: at.name.to_vec(), up, base, settled, differs: self.differs(at, path, before) }
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

    /// Counts a cache entry; beyond the bound the cache is dropped.
    fn remember_one(&mut self) {
        self.remembered += 1;
        if self.remembered > MOST_REMEMBERED {
            (self.remembers, self.seen) = (false, Vec::new());
        }
    }

    /// Stamp of the directory that the base has at this path, if any.
    fn base_of(&self, name: &[u8]) -> Option<Stamp> {
        let above = self.open.last().and_then(|open| self.seen.get(open.at));
        if !self.remembers || self.git.is_some() || above.is_some_and(|above| above.base.is_none()) {
            return None;
        }
        let meta = self.below.base.meta(&self.at(name)).ok()??;
        (meta.kind == FileKind::Dir).then(|| Stamp::of(&meta))
    }

    /// Adds a directory to the cache and returns its index.
    fn put(&mut self, name: &[u8], seen: CachedDir) -> usize {
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

    fn note_entry(&mut self) {
        if let Some(last) = self.open.last_mut() {
            last.bare = false;
        }
    }
}

impl Visitor for Counter {
    fn known(&mut self, name: &[u8], meta: &Meta) -> io::Result<Known> {
        let (up, base) = (Stamp::of(meta), self.base_of(name));
        let was = match self.open.last() {
            None => (!self.before.is_empty()).then_some(0),
            Some(above) => {
                above.was.and_then(|above| find(&self.before[above].dirs, name, |(known, _)| known).map(|(_, at)| *at))
            }
        };
        let same = was.map(|at| &self.before[at]).filter(|was| was.settled && (was.up, was.base) == (up, base));
        let settled = [Some(up), base].iter().flatten().all(|mark| mark.is_old(self.now_ms, SETTLED_MS));
        let own = same.map_or(Found::default(), |was| was.own);
        let seen = CachedDir { up, base, settled, own, dirs: Vec::new(), compared: Vec::new() };
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
                self.note_entry();
                self.put(name, seen);
            }
            (_, true) => {
                let (at, same) = (self.put(name, seen), known != Known::Nothing);
                self.open.push(CountedDir { at, was, same, bare: false });
            }
            (_, false) => self.next = Some((seen, was, known != Known::Nothing)),
        }
        Ok(known)
    }

    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        let (seen, was, same) = self.next.take().ok_or_else(|| io::Error::other("a directory that was not told of"))?;
        self.note_entry();
        let (mut own, mut bare) = (Found::default(), false);
        if self.git.is_none() && !same {
            let before = self.before(at.name);
            // A git directory of the workspace's own, where the base has a `.git` file.
            let replaces = at.name == b".git" && before.as_ref().is_some_and(|(_, b, _)| b.kind == FileKind::File);
            if replaces {
                let marker = at.opened.and_then(|own| own.meta_of(crate::git::SEED_MARK).ok().flatten());
                self.seeded = marker.map(|mark| mark.ctime);
            }
            let differs =
                !replaces && before.as_ref().is_some_and(|(_, b, _)| b.kind != FileKind::Dir || b.mode != at.meta.mode);
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
        self.open.push(CountedDir { at: place, was, same, bare });
        self.add(own);
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.note_entry();
        let mut more = Found::default();
        if let Some(depth) = self.git {
            // Reading a repository makes git refresh its index; that is not history.
            let is_index = self.path.len() == depth && at.name.starts_with(b"index");
            more.history = !is_index && self.seeded.is_none_or(|seeded| at.meta.ctime > seeded);
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

    /// Another command removed the directory between `stat` and open: skipped.
    fn vanished(&mut self) -> io::Result<()> {
        self.next = None;
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        // A new directory shows by its contents; an empty one is counted itself.
        if self.open.last().is_some_and(|open| open.bare) {
            let history = self.git.is_some();
            let changes = Changes { added: u64::from(!history), ..Changes::default() };
            self.add(Found { changes, history, cut: false });
        }
        if self.git == Some(self.path.len()) {
            (self.git, self.seeded) = (None, None);
        }
        self.path.pop();
        self.open.pop();
        Ok(())
    }
}

/// Binary search by name, in walk order.
fn find<'a, T>(all: &'a [T], name: &[u8], name_of: impl Fn(&T) -> &Vec<u8>) -> Option<&'a T> {
    all.binary_search_by(|one| name_of(one).as_slice().cmp(name)).ok().map(|at| &all[at])
}

#[cfg(test)]
#[path = "change_count_test.rs"]
mod tests;
