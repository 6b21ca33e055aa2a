//! Plan of a landing: a list of renames. Each is reversible, none needs disk space, and progress can be read from the
//! tree itself. Reads the base and writes no file.

use crate::dir::Dir;
use crate::place::{self, FileFacts, Identity};
use crate::trouble;
use api::{FileKind, Hunk, Rel, Spelt};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use terms::{ErrorKind, Fault, Phase};

/// State of a path, complete enough to create it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub kind: FileKind,
    pub mode: u32,
    /// Owner; None takes that of the replaced file, else of the directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<(u32, u32)>,
    /// Modification time; None is now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mtime: Option<(i64, u32)>,
    #[serde(default)]
    pub size: u64,
    /// SHA-256 of a file's bytes or of a link target, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Target of a link, in base64.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<String>,
    /// Extended attributes; values in hex.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub xattrs: BTreeMap<String, String>,
    /// Number of the saved copy in the batch directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept: Option<u32>,
}

impl Shape {
    /// Directory that is needed as a parent.
    pub fn dir(mode: u32) -> Shape {
        Shape {
            kind: FileKind::Dir,
            mode,
            owner: None,
            mtime: None,
            size: 0,
            digest: None,
            target: None,
            xattrs: BTreeMap::new(),
            kept: None,
        }
    }
}

/// Origin of the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// Not a file with bytes of its own: the shape is enough.
    None,
    /// The workspace as the guest sees it.
    View(Rel),
    /// The base's file, or an empty one, with these hunks applied.
    Hunks { of: Option<Rel>, hunks: Vec<Hunk> },
    /// Saved copy of another batch.
    Kept(u32),
}

/// Target state of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    pub at: Rel,
    /// Expected present state; any other is a conflict.
    pub before: Option<Expected>,
    /// Wanted state.
    pub want: Option<(Shape, ContentSource)>,
}

/// State of a path that the reviewer saw and decided upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub kind: FileKind,
    pub mode: Option<u32>,
    pub digest: Option<String>,
}

/// A path of a batch: states before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanItem {
    pub at: Rel,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<Shape>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<Shape>,
}

/// File or directory that a rename places or removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub id: Identity,
    pub is_dir: bool,
    pub size: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
}

impl Piece {
    pub fn of(facts: &FileFacts) -> Piece {
        let FileFacts { id, kind, size, mtime, ctime, .. } = *facts;
        Piece { id, is_dir: kind == FileKind::Dir, size, mtime, ctime }
    }
}

/// Operation of a step on its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepAction {
    /// Renames the staged piece to the free name (RENAME_NOREPLACE).
    Place { new: Piece },
    /// Exchanges the staged piece and the existing one (RENAME_EXCHANGE).
    Swap { old: Piece, new: Piece },
    /// Moves the existing piece aside.
    Remove { old: Piece },
    /// Changes mode or attributes of a directory that stays.
    Dress { dir: Identity, from: DirProperties, to: DirProperties },
}

/// Properties of a directory that can change in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirProperties {
    pub mode: u32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub xattrs: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandingStep {
    pub at: Rel,
    /// Identity of the parent directory of `at`.
    pub parent: Identity,
    /// Staging directory, which also takes the piece that is set aside; it stays in place throughout.
    pub hold: Rel,
    pub hold_id: Identity,
    /// Name of the piece in the staging directory.
    pub name: String,
    pub act: StepAction,
}

/// Steps of a batch in order. Kept until the batch is forgotten, because `undo` reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub batch: String,
    pub items: Vec<PlanItem>,
    pub steps: Vec<LandingStep>,
}

/// Bound on the paths of one landing.
pub const MOST_PATHS: usize = 250_000;

/// A path before staging.
#[derive(Debug)]
pub(crate) struct Draft {
    pub goal: Goal,
    pub now: Option<FileFacts>,
    /// Nearest parent directory that stays.
    pub hold: Rel,
    /// Index of the draft of a new directory that this is staged in.
    pub inside: Option<usize>,
}

impl Draft {
    pub(crate) fn wants_dir(&self) -> bool {
        self.goal.want.as_ref().is_some_and(|(shape, _)| shape.kind == FileKind::Dir)
    }

    fn is_dir_now(&self) -> bool {
        self.now.is_some_and(|now| now.kind == FileKind::Dir)
    }

    /// True for a directory before and after, which is changed in place.
    pub(crate) fn stays_dir(&self) -> bool {
        self.wants_dir() && self.is_dir_now()
    }

    fn stops_being_dir(&self) -> bool {
        self.is_dir_now() && !self.wants_dir()
    }
}

/// Looks at every path and determines its staging directory. Sorted by path. `made` gives the shape of a missing
/// parent directory.
pub(crate) fn draft(
    base: &Dir,
    goals: Vec<Goal>,
    made: &dyn Fn(&Rel) -> Result<Shape, Fault>,
) -> Result<Vec<Draft>, Fault> {
    let goals = with_parents(base, goals, made)?;
    let mut drafts: Vec<Draft> = Vec::with_capacity(goals.len());
    // Parents of the current path, as indices of drafts.
    let mut numbers: BTreeMap<Rel, usize> = BTreeMap::new();
    for goal in goals.into_values() {
        let now = now_at(base, &goal.at)?;
        check(&goal, now.as_ref())?;
        let above = goal.at.split().map(|(above, _)| above).unwrap_or_default();
        let parent = numbers.get(&above).map(|n| (*n, &drafts[*n]));
        let (hold, inside) = match parent {
            None => (above, None),
            Some((_, parent)) if parent.stays_dir() => (above, None),
            // A new directory is staged with its contents; one that is removed is emptied into the staging directory first.
            Some((number, parent)) => (parent.hold.clone(), goal.want.is_some().then_some(number)),
        };
        let draft = Draft { goal, now, hold, inside };
        if draft.wants_dir() || draft.stops_being_dir() {
            numbers.insert(draft.goal.at.clone(), drafts.len());
        }
        drafts.push(draft);
    }
    all_leave(base, &drafts)?;
    Ok(drafts)
}

/// Adds missing parents; refuses a path over a link or a file.
fn with_parents(
    base: &Dir,
    goals: Vec<Goal>,
    made: &dyn Fn(&Rel) -> Result<Shape, Fault>,
) -> Result<BTreeMap<Rel, Goal>, Fault> {
    let mut all: BTreeMap<Rel, Goal> = BTreeMap::new();
    for goal in goals {
        let at = goal.at.clone();
        if at.is_top() || all.insert(at.clone(), goal).is_some() {
            return Err(
                Fault::internal(format!("{at}: selected twice, or the top directory")).phase(Phase::Application)
            );
        }
    }
    let mut known: BTreeSet<Rel> = BTreeSet::new();
    let wanted: Vec<Rel> = all.values().filter(|g| g.want.is_some()).map(|g| g.at.clone()).collect();
    for at in wanted {
        let mut above = Rel::top();
        let parts: Vec<&[u8]> = at.parts().collect();
        for part in &parts[..parts.len() - 1] {
            above = above.join(part);
            if known.contains(&above) {
                continue;
            }
            let own = all.get(&above).map(|goal| goal.want.as_ref().map(|(shape, _)| shape.kind));
            match own {
                Some(Some(FileKind::Dir)) => {}
                Some(_) => return Err(in_the_way(&at, &above, "is to be replaced by another kind of file")),
                None => match now_at(base, &above)?.map(|now| now.kind) {
                    Some(FileKind::Dir) => {}
                    Some(FileKind::Symlink) => return Err(leads_away(base, &at, &above)),
                    Some(_) => return Err(in_the_way(&at, &above, "is not a directory in the base")),
                    None => {
                        let want = Some((made(&above)?, ContentSource::None));
                        all.insert(above.clone(), Goal { at: above.clone(), before: None, want });
                    }
                },
            }
            known.insert(above.clone());
        }
    }
    match all.len() > MOST_PATHS {
        false => Ok(all),
        true => {
            let fault = Fault::new(
                ErrorKind::LimitExceeded,
                format!("{} paths; at most {MOST_PATHS} can land at once", all.len()),
            );
            Err(fault.hint("approve some by path, then the rest").phase(Phase::Review))
        }
    }
}

/// Metadata of a base path; None if it is missing or reached over a link.
pub(crate) fn now_at(base: &Dir, at: &Rel) -> Result<Option<FileFacts>, Fault> {
    let found = place::parent_of(base, at).and_then(|(dir, name)| place::look(&dir, name));
    match found {
        Err(e) if crate::dir::is_absent(&e) => Ok(None),
        other => other.map_err(|e| trouble::with(at, "look at it in the base", &e)),
    }
}

fn check(goal: &Goal, now: Option<&FileFacts>) -> Result<(), Fault> {
    let same = match (&goal.before, now) {
        (None, None) => true,
        (Some(expected), Some(now)) => expected.kind == now.kind && expected.mode.is_none_or(|mode| mode == now.mode),
        _ => false,
    };
    if same { Ok(()) } else { Err(trouble::moved(&goal.at)) }
}

/// Refuses to remove a directory unless all its entries are removed.
fn all_leave(base: &Dir, drafts: &[Draft]) -> Result<(), Fault> {
    let leaving: BTreeSet<&Rel> = drafts.iter().filter(|d| d.goal.want.is_none()).map(|d| &d.goal.at).collect();
    for gone in drafts.iter().filter(|d| d.stops_being_dir()) {
        let at = &gone.goal.at;
        let names = place::reach(base, at).and_then(|dir| dir.names());
        for name in names.map_err(|e| trouble::with(at, "list it in the base", &e))? {
            let below = at.join(&name);
            if !leaving.contains(&below) {
                let message = format!("{at} cannot be removed: {below} is in it and was not selected");
                let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
                return Err(fault.hint("select that too, or leave the directory out"));
            }
        }
    }
    Ok(())
}

fn in_the_way(at: &Rel, above: &Rel, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{at} cannot land: {above} {why}")).phase(Phase::Review);
    fault.hint(format!("select {above} as well"))
}

/// Fault for a path below a symbolic link of the base: a write would end up at the link's target.
fn leads_away(base: &Dir, at: &Rel, above: &Rel) -> Fault {
    let target = place::parent_of(base, above).and_then(|(dir, name)| dir.link_target(name)).unwrap_or_default();
    let target = Spelt(&target);
    let message = format!("{at} cannot land: {above} is a symbolic link in the base and leads to {target}");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
    fault
        .hint(format!("cofferdam does not write through links; approve {above} as well if it is to become a directory"))
}
