//! From what shall stand at which path to a list of renames: each can be taken back, none needs space, and what has been done
//! of the list can be read from the tree itself. Looks at the base, writes nothing.

use crate::change::{FileKind, Hunk};
use crate::dir::Dir;
use crate::name::{Rel, Spelt};
use crate::place::{self, Facts, Identity};
use crate::trouble;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use terms::{ErrorKind, Fault, Phase};

/// What is at a path, complete enough to make it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub kind: FileKind,
    pub mode: u32,
    /// None: of whoever owns what is replaced, else of the directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<(u32, u32)>,
    /// None: now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mtime: Option<(i64, u32)>,
    #[serde(default)]
    pub size: u64,
    /// SHA-256 of a file's bytes or of a link's target, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Where a link leads; base64.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<String>,
    /// Values in hex.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub xattrs: BTreeMap<String, String>,
    /// The number of the copy in the directory of the batch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept: Option<u32>,
}

impl Shape {
    /// A directory that has to be there for something else.
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

/// Where the bytes of a file come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// It has none, or they are in its shape.
    None,
    /// The workspace, as a guest sees it.
    View(Rel),
    /// The base's file there, or nothing, with these hunks applied.
    Hunks { of: Option<Rel>, hunks: Vec<Hunk> },
    /// A copy that another batch kept.
    Kept(u32),
}

/// What shall become of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    pub at: Rel,
    /// What must stand there now; anything else is a conflict.
    pub before: Option<Expected>,
    /// What shall stand there.
    pub want: Option<(Shape, Source)>,
}

/// What somebody saw at a path, and decided upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub kind: FileKind,
    pub mode: Option<u32>,
    pub digest: Option<String>,
}

/// One path of a batch: what was there and what came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    pub at: Rel,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<Shape>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<Shape>,
}

/// What a rename puts in its place or takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub id: Identity,
    pub is_dir: bool,
    pub size: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
}

impl Piece {
    pub fn of(facts: &Facts) -> Piece {
        let Facts { id, kind, size, mtime, ctime, .. } = *facts;
        Piece { id, is_dir: kind == FileKind::Dir, size, mtime, ctime }
    }
}

/// What one step does at its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The staged piece gets the name, which is free.
    Place { new: Piece },
    /// The staged piece and what stands there change names.
    Swap { old: Piece, new: Piece },
    /// What stands there is moved aside.
    Remove { old: Piece },
    /// A directory that stays gets other bits or attributes.
    Dress { dir: Identity, from: Look, to: Look },
}

/// What can be changed of a directory without moving it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    pub mode: u32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub xattrs: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub at: Rel,
    /// The directory that holds `at`.
    pub parent: Identity,
    /// The directory where the piece waits, or is put aside; it stays what and where it is all the time.
    pub hold: Rel,
    pub hold_id: Identity,
    /// The name there.
    pub name: String,
    pub act: Act,
}

/// All that a batch does, in order. Kept until the batch is forgotten: it is what `undo` reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub batch: String,
    pub items: Vec<Item>,
    pub steps: Vec<Step>,
}

/// More paths than this do not land at once.
pub const MOST_PATHS: usize = 250_000;

/// One path as it will be gone about, before anything is staged.
#[derive(Debug)]
pub(crate) struct Draft {
    pub goal: Goal,
    pub now: Option<Facts>,
    /// The nearest directory above that stays.
    pub hold: Rel,
    /// A new directory that this is staged inside of, by its number among the drafts.
    pub inside: Option<usize>,
}

impl Draft {
    pub(crate) fn wants_dir(&self) -> bool {
        self.goal.want.as_ref().is_some_and(|(shape, _)| shape.kind == FileKind::Dir)
    }

    fn is_dir_now(&self) -> bool {
        self.now.is_some_and(|now| now.kind == FileKind::Dir)
    }

    /// A directory before and after: it is changed where it stands.
    pub(crate) fn stays_dir(&self) -> bool {
        self.wants_dir() && self.is_dir_now()
    }

    fn stops_being_dir(&self) -> bool {
        self.is_dir_now() && !self.wants_dir()
    }
}

/// Looks at every path and decides where its piece waits. Sorted by path. `made` says how a directory looks that must be made
/// because something lands below it.
pub(crate) fn draft(
    base: &Dir,
    goals: Vec<Goal>,
    made: &dyn Fn(&Rel) -> Result<Shape, Fault>,
) -> Result<Vec<Draft>, Fault> {
    let goals = with_parents(base, goals, made)?;
    let mut drafts: Vec<Draft> = Vec::with_capacity(goals.len());
    // Directories above the path at hand, as numbers of drafts.
    let mut numbers: BTreeMap<Rel, usize> = BTreeMap::new();
    for goal in goals.into_values() {
        let now = now_at(base, &goal.at)?;
        check(&goal, now.as_ref())?;
        let above = goal.at.split().map(|(above, _)| above).unwrap_or_default();
        let parent = numbers.get(&above).map(|n| (*n, &drafts[*n]));
        let (hold, inside) = match parent {
            None => (above, None),
            Some((_, parent)) if parent.stays_dir() => (above, None),
            // A directory that comes is staged with all that is in it; one that goes is emptied to beside it first.
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

/// Adds the directories that must be there for others; refuses a way that leads over a link or a file.
fn with_parents(
    base: &Dir,
    goals: Vec<Goal>,
    made: &dyn Fn(&Rel) -> Result<Shape, Fault>,
) -> Result<BTreeMap<Rel, Goal>, Fault> {
    let mut all: BTreeMap<Rel, Goal> = BTreeMap::new();
    for goal in goals {
        let at = goal.at.clone();
        if at.is_top() || all.insert(at.clone(), goal).is_some() {
            return Err(Fault::internal(format!("{at}: asked for twice, or the top")).phase(Phase::Application));
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
                Some(_) => return Err(in_the_way(&at, &above, "is to become something else")),
                None => match now_at(base, &above)?.map(|now| now.kind) {
                    Some(FileKind::Dir) => {}
                    Some(FileKind::Symlink) => return Err(leads_away(base, &at, &above)),
                    Some(_) => return Err(in_the_way(&at, &above, "is no directory in the base")),
                    None => {
                        let want = Some((made(&above)?, Source::None));
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
            let fault =
                Fault::new(ErrorKind::LimitExceeded, format!("{} paths; {MOST_PATHS} can land at once", all.len()));
            Err(fault.hint("choose some by path, then the rest").phase(Phase::Review))
        }
    }
}

/// What is at a path of the base now; a way over a link, or none, is nothing.
pub(crate) fn now_at(base: &Dir, at: &Rel) -> Result<Option<Facts>, Fault> {
    let found = place::parent_of(base, at).and_then(|(dir, name)| place::look(&dir, name));
    match found {
        Err(e) if crate::dir::is_absent(&e) => Ok(None),
        other => other.map_err(|e| trouble::with(at, "look at it in the base", &e)),
    }
}

fn check(goal: &Goal, now: Option<&Facts>) -> Result<(), Fault> {
    let same = match (&goal.before, now) {
        (None, None) => true,
        (Some(expected), Some(now)) => expected.kind == now.kind && expected.mode.is_none_or(|mode| mode == now.mode),
        _ => false,
    };
    if same { Ok(()) } else { Err(trouble::moved(&goal.at)) }
}

/// A directory can only go when everything in it goes.
fn all_leave(base: &Dir, drafts: &[Draft]) -> Result<(), Fault> {
    let leaving: BTreeSet<&Rel> = drafts.iter().filter(|d| d.goal.want.is_none()).map(|d| &d.goal.at).collect();
    for gone in drafts.iter().filter(|d| d.stops_being_dir()) {
        let at = &gone.goal.at;
        let names = place::reach(base, at).and_then(|dir| dir.names());
        for name in names.map_err(|e| trouble::with(at, "list it in the base", &e))? {
            let below = at.join(&name);
            if !leaving.contains(&below) {
                let message = format!("{at} cannot go: {below} is in it and was not chosen");
                let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
                return Err(fault.hint("choose that, too, or leave the directory"));
            }
        }
    }
    Ok(())
}

fn in_the_way(at: &Rel, above: &Rel, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{at} cannot land: {above} {why}")).phase(Phase::Review);
    fault.hint(format!("choose {above} as well"))
}

/// What was written below a link in the workspace would come out wherever the base's link leads.
fn leads_away(base: &Dir, at: &Rel, above: &Rel) -> Fault {
    let target = place::parent_of(base, above).and_then(|(dir, name)| dir.link_target(name)).unwrap_or_default();
    let target = Spelt(&target);
    let message = format!("{at} cannot land: {above} is a symbolic link in the base and leads to {target}");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
    fault.hint(format!("nothing is written through links; approve {above} as well if it shall become a directory"))
}
