//! Selects changes of a diff: all, some by path or pattern, single hunks. Changes that would run on the reviewer's
//! machine are selected only by name; those that never land are never selected. Reads no file.

use crate::hunks;
use api::{Change, ChangeBody, ChangeClass, ChangeKind, Diff, FileDiff, Hunk, LeftChange, Rel};
use globset::{GlobBuilder, GlobMatcher};
use std::collections::{BTreeMap, BTreeSet};
use terms::{ErrorKind, Fault, Phase};

/// Request of the reviewer. Empty selects no change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Selects all ordinary changes.
    pub everything: bool,
    /// Files, directories with everything below, or patterns.
    pub paths: Vec<Rel>,
    /// Changes at exactly these paths.
    pub exact: Vec<Rel>,
    /// Ids of hunks, or unique prefixes; with `.N` at the end, the N-th part of a split hunk.
    pub hunks: Vec<String>,
    /// Includes selected changes that would run on the reviewer's machine. Alone, selects all of these.
    pub runs_on_host: bool,
}

impl Selection {
    pub fn all() -> Selection {
        Selection { everything: true, ..Selection::default() }
    }

    pub fn is_empty(&self) -> bool {
        !self.everything
            && !self.runs_on_host
            && self.paths.is_empty()
            && self.exact.is_empty()
            && self.hunks.is_empty()
    }
}

/// A selected change, whole or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedChange<'a> {
    pub file: &'a FileDiff,
    /// Selected hunks or parts of hunks; None selects all.
    pub hunks: Option<Vec<Hunk>>,
}

/// Reason for a change that was not selected.
pub const NOT_CHOSEN: &str = "not chosen";

/// Suffix of the reason for a change that has to be selected by its own path.
pub const NEEDS_NAME: &str = "lands only when it is named";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen<'a> {
    pub picks: Vec<SelectedChange<'a>>,
    pub left: Vec<LeftChange>,
}

/// Paths that have to be selected by name for reasons other than their class.
pub type Marked = BTreeMap<Rel, String>;

/// Resolves a selection for a rejection, for which no change has to be named.
pub fn choose_to_drop<'a>(diff: &'a Diff, wish: &Selection) -> Result<Chosen<'a>, Fault> {
    let wanted = ResolvedSelection::read(diff, wish)?;
    let mut chosen = Chosen::default();
    for file in &diff.files {
        let hunks = wanted.hunks.get(&file.change.path);
        match wanted.covers(&file.change) {
            true => chosen.picks.push(SelectedChange { file, hunks: None }),
            false => match hunks {
                Some(some) => chosen.picks.push(SelectedChange { file, hunks: part(file, some) }),
                None => chosen.left.push(LeftChange { path: file.change.path.clone(), why: NOT_CHOSEN.to_owned() }),
            },
        }
    }
    Ok(chosen)
}

/// Resolves a selection for an approval. A path, pattern or hunk without a match is not found; one that names a change
/// that never lands is refused with the reason.
pub fn choose<'a>(diff: &'a Diff, wish: &Selection, marked: &Marked) -> Result<Chosen<'a>, Fault> {
    let wanted = ResolvedSelection::read(diff, wish)?;
    let mut chosen = Chosen::default();
    for file in &diff.files {
        let path = &file.change.path;
        let named = wanted.named.contains(path);
        let covered = wanted.covers(&file.change);
        let hunks = wanted.hunks.get(path);
        let left = |why: String| LeftChange { path: path.clone(), why };
        match &file.change.class {
            ChangeClass::Never { why } if named || hunks.is_some() => return Err(never(path, why)),
            ChangeClass::Never { why } => chosen.left.push(left(format!("never lands: {why}"))),
            ChangeClass::RunsOnHost { why } if !named && !wish.runs_on_host && hunks.is_none() => {
                chosen.left.push(left(format!("runs on your machine ({why}); {NEEDS_NAME}")));
            }
            _ if !covered && hunks.is_none() => chosen.left.push(left(NOT_CHOSEN.to_owned())),
            _ if !named && hunks.is_none() && marked.contains_key(path) => {
                chosen.left.push(left(format!("{}; {NEEDS_NAME}", marked[path])));
            }
            _ => {
                let part = if covered { None } else { hunks.and_then(|some| part(file, some)) };
                if part.is_some() {
                    chosen.left.push(left("other hunks were not selected".to_owned()));
                }
                chosen.picks.push(SelectedChange { file, hunks: part });
            }
        }
    }
    Ok(chosen)
}

/// Selected hunks in file order; None if they are the whole change.
fn part(file: &FileDiff, ids: &BTreeSet<String>) -> Option<Vec<Hunk>> {
    let ChangeBody::Text(hunks) = &file.body else { return None };
    let mut some: Vec<Hunk> = Vec::new();
    let mut is_all = true;
    for hunk in hunks {
        let (meant, rest): (Vec<Hunk>, Vec<Hunk>) =
            hunks::split(hunk).into_iter().partition(|part| ids.contains(&hunk.id) || ids.contains(&part.id));
        is_all &= rest.is_empty();
        match rest.is_empty() {
            true => some.push(hunk.clone()),
            false => some.extend(meant),
        }
    }
    // The lines of an added, deleted or renamed file are the whole change. For a modified one they are its lines
    // alone: mode or attributes may have changed as well and were not selected.
    let is_whole = is_all && !matches!(file.change.kind, ChangeKind::Modified | ChangeKind::Type);
    (!is_whole).then_some(some)
}

/// Selection resolved against a diff.
struct ResolvedSelection {
    everything: bool,
    /// Literal paths of files, which count as named.
    named: BTreeSet<Rel>,
    /// Renamed files selected by their old path, which does not name the new one.
    moved: BTreeSet<Rel>,
    /// Literal paths with changes below them.
    above: BTreeSet<Rel>,
    patterns: Vec<GlobMatcher>,
    hunks: BTreeMap<Rel, BTreeSet<String>>,
}

impl ResolvedSelection {
    fn read(diff: &Diff, wish: &Selection) -> Result<ResolvedSelection, Fault> {
        let only_risky = wish.runs_on_host && wish.paths.is_empty() && wish.exact.is_empty() && wish.hunks.is_empty();
        let mut wanted = ResolvedSelection {
            everything: wish.everything,
            named: BTreeSet::new(),
            moved: BTreeSet::new(),
            above: BTreeSet::new(),
            patterns: Vec::new(),
            hunks: BTreeMap::new(),
        };
        if only_risky && !wish.everything {
            let risky = diff.files.iter().filter(|f| matches!(f.change.class, ChangeClass::RunsOnHost { .. }));
            wanted.named.extend(risky.map(|f| f.change.path.clone()));
        }
        for path in &wish.paths {
            wanted.add_path(diff, path)?;
        }
        for path in &wish.exact {
            match diff.files.iter().any(|file| file.change.path == *path) {
                true => wanted.named.insert(path.clone()),
                false => return Err(nothing_at(path)),
            };
        }
        for id in &wish.hunks {
            let (path, id) = hunk(diff, id)?;
            wanted.hunks.entry(path.clone()).or_default().insert(id);
        }
        Ok(wanted)
    }

    fn add_path(&mut self, diff: &Diff, wish: &Rel) -> Result<(), Fault> {
        let mut met = false;
        for FileDiff { change, .. } in &diff.files {
            if change.path == *wish {
                self.named.insert(change.path.clone());
            }
            if change.kind.from() == Some(wish) {
                self.moved.insert(change.path.clone());
            }
            met |= change.path.is_at_or_below(wish) || change.kind.from() == Some(wish);
        }
        if met {
            self.above.insert(wish.clone());
            return Ok(());
        }
        let text = std::str::from_utf8(wish.as_bytes()).map_err(|_| nothing_at(wish))?;
        let matcher = match GlobBuilder::new(text).literal_separator(true).build() {
            Ok(glob) => glob.compile_matcher(),
            Err(e) => {
                let fault = Fault::invalid(format!("{wish} is not a path or a pattern: {}", e.kind()));
                return Err(fault.hint("the wildcards are `*`, `**`, `?`, `[a-z]` and `{a,b}`").phase(Phase::Review));
            }
        };
        if !diff.files.iter().any(|f| matcher.is_match(f.change.path.as_path())) {
            return Err(nothing_at(wish));
        }
        self.patterns.push(matcher);
        Ok(())
    }

    fn covers(&self, change: &Change) -> bool {
        self.everything
            || self.named.contains(&change.path)
            || self.moved.contains(&change.path)
            || (!self.above.is_empty() && ancestors(&change.path).any(|dir| self.above.contains(&dir)))
            || self.patterns.iter().any(|pattern| pattern.is_match(change.path.as_path()))
    }
}

/// The path and all its parents up to the top.
fn ancestors(path: &Rel) -> impl Iterator<Item = Rel> {
    std::iter::successors(Some(path.clone()), |at| at.split().map(|(above, _)| above))
}

/// Minimum length of an id prefix.
const SHORTEST_ID: usize = 4;

/// File and full id of a hunk, with the number of the part if one is given.
fn hunk<'a>(diff: &'a Diff, word: &str) -> Result<(&'a Rel, String), Fault> {
    let (id, number) = word.split_once('.').map_or((word, None), |(id, number)| (id, Some(number)));
    let hunks_of = |file: &'a FileDiff| match &file.body {
        ChangeBody::Text(hunks) => hunks.as_slice(),
        _ => &[],
    };
    let all = || diff.files.iter().flat_map(|f| hunks_of(f).iter().map(|h| (&f.change.path, h)));
    let found = match all().find(|(_, hunk)| hunk.id == id) {
        Some(found) => found,
        None => {
            let is_alike = |own: &str| id.len() >= SHORTEST_ID && own.starts_with(id);
            let alike: Vec<_> = all().filter(|(_, hunk)| is_alike(&hunk.id)).take(2).collect();
            match alike[..] {
                [found] => found,
                [] => return Err(no_hunk(word)),
                _ => {
                    let fault = Fault::invalid(format!("several hunks begin with {id:?}")).phase(Phase::Review);
                    return Err(fault.hint("give more of the id"));
                }
            }
        }
    };
    let (path, hunk) = found;
    let Some(number) = number else { return Ok((path, hunk.id.clone())) };
    let parts = hunks::split(hunk);
    let whole = format!("{}.{number}", hunk.id);
    match parts.iter().any(|part| part.id == whole) {
        true => Ok((path, whole)),
        false => {
            let message = format!("hunk {} has no part {number:?}: it can be split into {}", hunk.id, parts.len());
            Err(Fault::new(ErrorKind::NotFound, message).hint("parts are counted from 1").phase(Phase::Review))
        }
    }
}

fn no_hunk(word: &str) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("there is no hunk {word:?} in this diff"));
    fault.hint("`cofferdam diff` shows the ids; an id changes when its lines change").phase(Phase::Review)
}

fn nothing_at(path: &Rel) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("no changes at {path}"));
    fault.hint("`cofferdam diff --name-only` lists what changed").phase(Phase::Review)
}

fn never(path: &Rel, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::PolicyDenied, format!("{path} never lands: {why}"));
    fault.hint("it stays in the workspace; `cofferdam reject` removes it there").phase(Phase::Review)
}
