//! What files of a base held while they were what a workspace was made over. A file whose times changed later can then be told by
//! its bytes: one that was only touched, or changed there and back, is no drift. Kept beside the layer, where no guest comes, and
//! only ever of what we read ourselves: nobody's word is taken for it, no index of git's and no time that can be set. Where nothing
//! is known, times decide as ever.

use crate::anchor::{Anchors, Seen};
use crate::attributes::Marks;
use crate::change::{Change, Diff, Entry, FileKind};
use crate::entry::{self, Budget};
use crate::layer::{Layer, Stack};
use crate::name::Rel;
use crate::{place, rebase, stage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// The list's name, beside the layer's `up`.
const NAME: &str = "sights";

/// So many are kept beside one layer.
const MOST: usize = 10_000;

/// What one look after a command may cost: so many files, so large, so much in all.
pub const MOST_LOOKED_AT: usize = 1_000;
const BUDGET: Budget = Budget { largest_file: 4 << 20, bytes: 16 << 20, attributes: 1 << 20 };

/// A file or link of the base, as it was from its last change to a moment later on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sight {
    path: Rel,
    seen: Seen,
    /// It was still so then, by the clock that stamps files.
    until: (i64, u32),
    entry: Entry,
}

impl Sight {
    /// Whether it is what a workspace knows to be there: what its anchor says, or else what stood there when it was made.
    fn is_known(&self, anchors: &Anchors, since: (i64, u32)) -> bool {
        match (anchors.get(&self.path), &self.seen) {
            (Some(known), seen) => known == seen,
            (None, Seen::Present { ctime, .. }) => *ctime <= since && since <= self.until,
            (None, Seen::Absent) => false,
        }
    }
}

type Sights = BTreeMap<Rel, Sight>;

/// Looks at files of the base that the topmost layer speaks of. What has changed since the workspace was made is no use any more.
pub fn look(stack: &Stack, paths: &[Rel]) -> io::Result<()> {
    let Some(top) = stack.layers.last().filter(|_| !paths.is_empty()) else { return Ok(()) };
    let until = rebase::now().max(stack.since);
    let (mut known, mut budget, mut more) = (list(top), BUDGET, false);
    for path in paths.iter().take(MOST_LOOKED_AT) {
        if known.get(path).is_some_and(|sight| sight.is_known(&Anchors::default(), stack.since)) {
            continue;
        }
        // What cannot be read is not known.
        if let Ok(Some((seen, entry))) = read(stack, path, &mut budget) {
            known.insert(path.clone(), Sight { path: path.clone(), seen, until, entry });
            more = true;
        }
    }
    if more { keep(top, &known) } else { Ok(()) }
}

/// A file or link as it is, if it is as it was when the workspace was made.
fn read(stack: &Stack, path: &Rel, budget: &mut Budget) -> io::Result<Option<(Seen, Entry)>> {
    let (dir, name) = place::parent_of(&stack.base, path)?;
    let can_be_told = |kind: FileKind| matches!(kind, FileKind::File | FileKind::Symlink);
    let Some(meta) = dir.meta_of(name)?.filter(|m| can_be_told(m.kind) && m.ctime <= stack.since) else {
        return Ok(None);
    };
    let taken = entry::take(&dir, name, &meta, Marks::Foreign, budget)?;
    let entry = taken.filter(|taken| taken.trouble.is_none() && taken.entry.digest.is_some()).map(|taken| taken.entry);
    // Looked at again: what was read is what the times are of.
    let seen = Seen::of(Some(&meta));
    Ok(entry.filter(|_| dir.meta_of(name).is_ok_and(|now| Seen::of(now.as_ref()) == seen)).map(|entry| (seen, entry)))
}

/// Keeps what a diff read of the base, of files that are what the workspace knows. The diff is of this moment.
pub fn keep_of(stack: &Stack, anchors: &Anchors, diff: &Diff, before: (i64, u32)) -> io::Result<()> {
    let Some(top) = stack.layers.last() else { return Ok(()) };
    let told = diff.files.iter().map(|file| &file.change).filter(|change| !change.drifted);
    let told: Vec<(&Rel, &Entry)> = told.filter_map(|change| Some((source(change), told_of(change)?))).collect();
    if told.is_empty() {
        return Ok(());
    }
    let (mut known, mut more) = (list(top), false);
    for (path, entry) in told.into_iter().take(MOST) {
        let Ok(Some(meta)) = rebase::meta_at(&stack.base, path) else { continue };
        let seen = Seen::of(Some(&meta));
        // What was stamped a moment ago may change again and bear the same stamp.
        let is_settled = anchors.get(path).is_none() || meta.ctime <= before;
        if anchors.has_drifted(path, Some(&meta), stack.since) || meta.mode != entry.mode || !is_settled {
            continue;
        }
        let sight = Sight { path: path.clone(), seen, until: before.max(stack.since), entry: entry.clone() };
        if known.get(path).is_none_or(|old| old.seen != seen || !old.is_known(anchors, stack.since)) {
            known.insert(path.clone(), sight);
            more = true;
        }
    }
    if more { keep(top, &known) } else { Ok(()) }
}

/// The file of the base that a change is of.
fn source(change: &Change) -> &Rel {
    change.kind.from().unwrap_or(&change.path)
}

/// What of a change can be told again by its bytes.
fn told_of(change: &Change) -> Option<&Entry> {
    let told = |entry: &&Entry| matches!(entry.kind, FileKind::File | FileKind::Symlink) && entry.digest.is_some();
    change.before.as_ref().filter(told)
}

/// Takes the mark of drift off files that hold again what the workspace knew, bits and attributes and all.
pub fn settle(stack: &Stack, anchors: &Anchors, diff: &mut Diff) {
    if !diff.files.iter().any(|file| file.change.drifted) {
        return;
    }
    let lists: Vec<Sights> = stack.layers.iter().rev().map(list).collect();
    for change in diff.files.iter_mut().map(|file| &mut file.change).filter(|change| change.drifted) {
        // Of what was moved, the place it came to must be as free as it was.
        let is_free = matches!(anchors.get(&change.path), None | Some(Seen::Absent));
        if change.kind.from().is_some() && !is_free {
            continue;
        }
        let sights = lists.iter().filter_map(|sights| sights.get(source(change)));
        let known = sights.into_iter().find(|sight| sight.is_known(anchors, stack.since));
        change.drifted = !known.is_some_and(|sight| told_of(change) == Some(&sight.entry));
    }
}

/// What layers below know goes on to one that takes their place.
pub fn carry_over(from: &[Layer], to: &Layer) -> io::Result<()> {
    let all: Sights = from.iter().flat_map(list).collect();
    if all.is_empty() { Ok(()) } else { keep(to, &all) }
}

/// What cannot be read back tells nothing.
fn list(layer: &Layer) -> Sights {
    let found: Vec<Sight> = stage::read_back(&layer.dir, NAME).ok().flatten().unwrap_or_default();
    found.into_iter().map(|sight| (sight.path.clone(), sight)).collect()
}

/// A power failure may take it: then times decide.
fn keep(layer: &Layer, sights: &Sights) -> io::Result<()> {
    stage::jot_down(&layer.dir, NAME, &sights.values().take(MOST).collect::<Vec<_>>())
}
