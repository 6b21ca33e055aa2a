//! Contents of base files at the time the workspace was created over them. A file whose times changed later can then
//! be compared by its bytes: one that was only touched, or changed back, has not drifted. Stored beside the layer, out
//! of the guest's reach, and only for bytes that were read here: neither git's index nor a settable time is trusted.
//! Without a record, times decide.

use crate::anchor::{Anchors, BaseStat};
use crate::attributes::Marks;
use crate::entry::{self, Budget};
use crate::layer::{Layer, Stack};
use crate::{place, rebase, stage};
use api::{Change, ChangeSide, Diff, FileKind, Rel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// Name of the list, beside the layer's `up`.
const NAME: &str = "sights";

/// Bound on the records beside one layer.
const MOST: usize = 10_000;

/// Bounds on one look after a command: number of files, size of each, total.
pub const MOST_LOOKED_AT: usize = 1_000;
const BUDGET: Budget = Budget { largest_file: 4 << 20, bytes: 16 << 20, attributes: 1 << 20 };

/// A file or link of the base that was unchanged from its ctime to `until`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UnchangedFile {
    path: Rel,
    seen: BaseStat,
    /// Time of the last check, by the clock that stamps files.
    until: (i64, u32),
    entry: ChangeSide,
}

impl UnchangedFile {
    /// True if this is the version that the workspace knows: that of its anchor, or else that of its creation.
    fn is_known(&self, anchors: &Anchors, since: (i64, u32)) -> bool {
        match (anchors.get(&self.path), &self.seen) {
            (Some(known), seen) => known == seen,
            (None, BaseStat::Present { ctime, .. }) => *ctime <= since && since <= self.until,
            (None, BaseStat::Absent) => false,
        }
    }
}

type UnchangedFiles = BTreeMap<Rel, UnchangedFile>;

/// Records base files that the topmost layer mentions. A file that changed since the workspace was created is skipped.
pub fn look(stack: &Stack, paths: &[Rel]) -> io::Result<()> {
    let Some(top) = stack.layers.last().filter(|_| !paths.is_empty()) else { return Ok(()) };
    let until = rebase::now().max(stack.since);
    let (mut known, mut budget, mut more) = (list(top), BUDGET, false);
    for path in paths.iter().take(MOST_LOOKED_AT) {
        if known.get(path).is_some_and(|sight| sight.is_known(&Anchors::default(), stack.since)) {
            continue;
        }
        // An unreadable file is not recorded.
        if let Ok(Some((seen, entry))) = read(stack, path, &mut budget) {
            known.insert(path.clone(), UnchangedFile { path: path.clone(), seen, until, entry });
            more = true;
        }
    }
    if more { keep(top, &known) } else { Ok(()) }
}

/// Reads a file or link, if it is unchanged since the workspace was created.
fn read(stack: &Stack, path: &Rel, budget: &mut Budget) -> io::Result<Option<(BaseStat, ChangeSide)>> {
    let (dir, name) = place::parent_of(&stack.base, path)?;
    let can_be_told = |kind: FileKind| matches!(kind, FileKind::File | FileKind::Symlink);
    let Some(meta) = dir.meta_of(name)?.filter(|m| can_be_told(m.kind) && m.ctime <= stack.since) else {
        return Ok(None);
    };
    let taken = entry::take(&dir, name, &meta, Marks::Foreign, budget)?;
    let entry = taken.filter(|taken| taken.trouble.is_none() && taken.entry.digest.is_some()).map(|taken| taken.entry);
    // Checked again after reading: the bytes belong to the recorded times.
    let seen = BaseStat::of(Some(&meta));
    Ok(entry
        .filter(|_| dir.meta_of(name).is_ok_and(|now| BaseStat::of(now.as_ref()) == seen))
        .map(|entry| (seen, entry)))
}

/// Records the base entries that a diff read, for files that have not drifted. The diff is current.
pub fn keep_of(stack: &Stack, anchors: &Anchors, diff: &Diff, before: (i64, u32)) -> io::Result<()> {
    let Some(top) = stack.layers.last() else { return Ok(()) };
    let comparable = diff.files.iter().map(|file| &file.change).filter(|change| !change.drifted);
    let comparable: Vec<(&Rel, &ChangeSide)> =
        comparable.filter_map(|change| Some((source(change), comparable_entry(change)?))).collect();
    if comparable.is_empty() {
        return Ok(());
    }
    let (mut known, mut more) = (list(top), false);
    for (path, entry) in comparable.into_iter().take(MOST) {
        let Ok(Some(meta)) = rebase::meta_at(&stack.base, path) else { continue };
        let seen = BaseStat::of(Some(&meta));
        // A file stamped a moment ago may change again within the same tick of the clock.
        let is_settled = anchors.get(path).is_none() || meta.ctime <= before;
        if anchors.has_drifted(path, Some(&meta), stack.since) || meta.mode != entry.mode || !is_settled {
            continue;
        }
        let sight = UnchangedFile { path: path.clone(), seen, until: before.max(stack.since), entry: entry.clone() };
        if known.get(path).is_none_or(|old| old.seen != seen || !old.is_known(anchors, stack.since)) {
            known.insert(path.clone(), sight);
            more = true;
        }
    }
    if more { keep(top, &known) } else { Ok(()) }
}

/// Base path of a change.
fn source(change: &Change) -> &Rel {
    change.kind.from().unwrap_or(&change.path)
}

/// Base entry of a change that can be compared by its digest.
fn comparable_entry(change: &Change) -> Option<&ChangeSide> {
    let comparable =
        |entry: &&ChangeSide| matches!(entry.kind, FileKind::File | FileKind::Symlink) && entry.digest.is_some();
    change.before.as_ref().filter(comparable)
}

/// Clears `drifted` for files whose bytes, mode and attributes are again those that the workspace knew.
pub fn settle(stack: &Stack, anchors: &Anchors, diff: &mut Diff) {
    if !diff.files.iter().any(|file| file.change.drifted) {
        return;
    }
    let lists: Vec<UnchangedFiles> = stack.layers.iter().rev().map(list).collect();
    for change in diff.files.iter_mut().map(|file| &mut file.change).filter(|change| change.drifted) {
        // For a rename, the new path must be as free as it was.
        let is_free = matches!(anchors.get(&change.path), None | Some(BaseStat::Absent));
        if change.kind.from().is_some() && !is_free {
            continue;
        }
        let sights = lists.iter().filter_map(|sights| sights.get(source(change)));
        let known = sights.into_iter().find(|sight| sight.is_known(anchors, stack.since));
        change.drifted = !known.is_some_and(|sight| comparable_entry(change) == Some(&sight.entry));
    }
}

/// Copies the records of lower layers to a layer that replaces them.
pub fn carry_over(from: &[Layer], to: &Layer) -> io::Result<()> {
    let all: UnchangedFiles = from.iter().flat_map(list).collect();
    if all.is_empty() { Ok(()) } else { keep(to, &all) }
}

/// Reads the records of a layer; unreadable ones count as none.
fn list(layer: &Layer) -> UnchangedFiles {
    let found: Vec<UnchangedFile> = stage::read_back(&layer.dir, NAME).ok().flatten().unwrap_or_default();
    found.into_iter().map(|sight| (sight.path.clone(), sight)).collect()
}

/// Writes the records without fsync: after a power failure times decide.
fn keep(layer: &Layer, sights: &UnchangedFiles) -> io::Result<()> {
    stage::write_unsynced(&layer.dir, NAME, &sights.values().take(MOST).collect::<Vec<_>>())
}
