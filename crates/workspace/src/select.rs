//! Which changes of a diff are meant: all, some by path or pattern, single hunks. What would run on the reviewer's machine is only
//! meant when it is named; what never lands is never meant. Never reads a file.

use crate::change::{Body, Change, ChangeKind, Class, Diff, FileDiff, Hunk};
use crate::hunks;
use crate::name::Rel;
use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use terms::{ErrorKind, Fault, Phase};

/// What somebody asked for. Empty means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// All ordinary changes.
    pub everything: bool,
    /// Each a file, a directory with all below it, or a pattern.
    pub paths: Vec<Rel>,
    /// Each the change at that path alone.
    pub exact: Vec<Rel>,
    /// Ids of hunks, or beginnings of ids that no other hunk has; with `.N` at the end, the N-th part of what it is split into.
    pub hunks: Vec<String>,
    /// Among what is selected, also what would run on the reviewer's machine. With nothing else selected: all of that.
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

/// A change that is meant, whole or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick<'a> {
    pub file: &'a FileDiff,
    /// Only these hunks or parts of hunks; none means all of it.
    pub hunks: Option<Vec<Hunk>>,
}

/// Why a change stays that nobody asked for.
pub const NOT_CHOSEN: &str = "not chosen";

/// How the reason of a change ends that is taken only by its own path.
pub const NEEDS_NAME: &str = "lands only when it is named";

/// A change that is not meant, and why it stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = LeftChange)]
pub struct Left {
    pub path: Rel,
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen<'a> {
    pub picks: Vec<Pick<'a>>,
    pub left: Vec<Left>,
}

/// Why single files are only taken when they are named by their whole path, beside their class.
pub type Marked = BTreeMap<Rel, String>;

/// What a wish to throw changes away means in this diff: nothing needs to be named for that.
pub fn choose_to_drop<'a>(diff: &'a Diff, wish: &Selection) -> Result<Chosen<'a>, Fault> {
    let wanted = Wanted::read(diff, wish)?;
    let mut chosen = Chosen::default();
    for file in &diff.files {
        let hunks = wanted.hunks.get(&file.change.path);
        match wanted.covers(&file.change) {
            true => chosen.picks.push(Pick { file, hunks: None }),
            false => match hunks {
                Some(some) => chosen.picks.push(Pick { file, hunks: part(file, some) }),
                None => chosen.left.push(Left { path: file.change.path.clone(), why: NOT_CHOSEN.to_owned() }),
            },
        }
    }
    Ok(chosen)
}

/// What a wish to let changes through means in this diff. A path, pattern or hunk that meets nothing is not found; one that
/// names what never lands is refused with the reason.
pub fn choose<'a>(diff: &'a Diff, wish: &Selection, marked: &Marked) -> Result<Chosen<'a>, Fault> {
    let wanted = Wanted::read(diff, wish)?;
    let mut chosen = Chosen::default();
    for file in &diff.files {
        let path = &file.change.path;
        let named = wanted.named.contains(path);
        let covered = wanted.covers(&file.change);
        let hunks = wanted.hunks.get(path);
        let left = |why: String| Left { path: path.clone(), why };
        match &file.change.class {
            Class::Never { why } if named || hunks.is_some() => return Err(never(path, why)),
            Class::Never { why } => chosen.left.push(left(format!("never lands: {why}"))),
            Class::RunsOnHost { why } if !named && !wish.runs_on_host && hunks.is_none() => {
                chosen.left.push(left(format!("runs on your machine ({why}); {NEEDS_NAME}")));
            }
            _ if !covered && hunks.is_none() => chosen.left.push(left(NOT_CHOSEN.to_owned())),
            _ if !named && hunks.is_none() && marked.contains_key(path) => {
                chosen.left.push(left(format!("{}; {NEEDS_NAME}", marked[path])));
            }
            _ => {
                let part = if covered { None } else { hunks.and_then(|some| part(file, some)) };
                if part.is_some() {
                    chosen.left.push(left("other hunks were not chosen".to_owned()));
                }
                chosen.picks.push(Pick { file, hunks: part });
            }
        }
    }
    Ok(chosen)
}

/// The hunks in the order of the file; none where they are the whole change.
fn part(file: &FileDiff, ids: &BTreeSet<String>) -> Option<Vec<Hunk>> {
    let Body::Text(hunks) = &file.body else { return None };
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
    // All lines of a file that came, went or moved are that file. Of one that stayed they are its lines alone: its
    // mode or attributes may have changed as well and were not asked for.
    let is_whole = is_all && !matches!(file.change.kind, ChangeKind::Modified | ChangeKind::Type);
    (!is_whole).then_some(some)
}

/// A wish in terms of a diff.
struct Wanted {
    everything: bool,
    /// Literal paths of files, and so the ones that were named.
    named: BTreeSet<Rel>,
    /// What was moved, by where it was. That does not name what it has become.
    moved: BTreeSet<Rel>,
    /// Literal paths that have changes below them.
    above: BTreeSet<Rel>,
    patterns: Vec<GlobMatcher>,
    hunks: BTreeMap<Rel, BTreeSet<String>>,
}

impl Wanted {
    fn read(diff: &Diff, wish: &Selection) -> Result<Wanted, Fault> {
        let only_risky = wish.runs_on_host && wish.paths.is_empty() && wish.exact.is_empty() && wish.hunks.is_empty();
        let mut wanted = Wanted {
            everything: wish.everything,
            named: BTreeSet::new(),
            moved: BTreeSet::new(),
            above: BTreeSet::new(),
            patterns: Vec::new(),
            hunks: BTreeMap::new(),
        };
        if only_risky && !wish.everything {
            let risky = diff.files.iter().filter(|f| matches!(f.change.class, Class::RunsOnHost { .. }));
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
                let fault = Fault::invalid(format!("{wish} is neither a path nor a pattern: {}", e.kind()));
                return Err(fault.hint("`*`, `**`, `?`, `[a-z]` and `{a,b}` have a meaning").phase(Phase::Review));
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

/// The path itself, and every directory it is below, up to the top.
fn ancestors(path: &Rel) -> impl Iterator<Item = Rel> {
    std::iter::successors(Some(path.clone()), |at| at.split().map(|(above, _)| above))
}

/// Fewer digits than this name no hunk.
const SHORTEST_ID: usize = 4;

/// The file of the hunk that is meant, and its whole id, with the part's number where one is given.
fn hunk<'a>(diff: &'a Diff, word: &str) -> Result<(&'a Rel, String), Fault> {
    let (id, number) = word.split_once('.').map_or((word, None), |(id, number)| (id, Some(number)));
    let hunks_of = |file: &'a FileDiff| match &file.body {
        Body::Text(hunks) => hunks.as_slice(),
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
    fault.hint("`cofferdam diff` shows the id of each; it changes when the lines do").phase(Phase::Review)
}

fn nothing_at(path: &Rel) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("nothing changed at {path}"));
    fault.hint("`cofferdam diff --name-only` lists what changed").phase(Phase::Review)
}

fn never(path: &Rel, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::PolicyDenied, format!("{path} never lands: {why}"));
    fault.hint("it stays in the workspace; `cofferdam reject` removes it there").phase(Phase::Review)
}
