//! Finds the differences between a stack and its base. Only paths that a layer mentions are looked up in the base, so
//! the cost is that of the changes; a copied tree has no such list, and both trees are walked.
//!
//! The walk keeps its own stack of pending directories and descends by handles: neither deep trees nor long paths end
//! it.

use crate::anchor::Anchors;
use crate::attributes::Marks;
use crate::class;
use crate::dir::Meta;
use crate::entry::{Budget, ReviewedEntry, SPECIAL, UNREADABLE, is_refused, take};
use crate::exclude::{self, Exclude, Ignore, Keeping, WithheldReason};
use crate::ignore::Patience;
use crate::layer::Stack;
use crate::origin::Origin;
use crate::twin;
use crate::view::{LayerEntry, MergedDir, names_in};
use crate::way::OpenPath;
use api::{ChangeSide, FileKind, Rel, Withheld};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use terms::{ErrorKind, Fault, LimitKind, Phase};

/// Bounds on a workspace that can be reviewed.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub entries: u64,
    /// Bytes of all paths together: deep trees of long names would take more memory than their files.
    pub path_bytes: u64,
}

/// A path at which workspace and base differ.
#[derive(Debug)]
pub struct Pair {
    pub path: Rel,
    /// Old path of a renamed file; `before` is the entry there.
    pub from: Option<Rel>,
    pub before: Option<ChangeSide>,
    pub after: Option<ChangeSide>,
    /// Index of the layer that holds `after`, from the bottom.
    pub layer: Option<usize>,
    /// Hard link count in its layer.
    pub links: u64,
    /// Reason why it cannot land.
    pub trouble: Option<&'static str>,
    /// The name, or that of a new parent directory, collides with a similar name on some file systems.
    pub twin: bool,
    pub in_bare_repository: bool,
    pub drifted: bool,
}

#[derive(Debug, Default)]
pub struct Scanned {
    pub pairs: Vec<Pair>,
    /// Withheld groups as found: one for each topmost withheld path.
    pub withheld: Vec<Withheld>,
    /// Withheld paths in the layers that can be removed: whole artefacts, and single ignored files.
    pub prunable: Vec<Rel>,
}

pub fn scan(
    stack: &Stack,
    anchors: &Anchors,
    exclude: Exclude,
    bounds: Bounds,
    budget: &mut Budget,
) -> Result<Scanned, Fault> {
    let marks = crate::attributes::Marks::of(stack.driver);
    let origin = stack.layers.last().filter(|_| marks == Marks::Plain).and_then(Origin::read);
    let walk = ScanWalk {
        stack,
        anchors,
        exclude,
        marks,
        origin,
        bounds,
        budget,
        patience: Patience::default(),
        way: OpenPath::default(),
        pending: vec![PendingDir::default()],
        found: Scanned::default(),
    };
    walk.run()
}

/// Directory still to visit.
#[derive(Debug, Default)]
struct PendingDir {
    path: Rel,
    /// Change that counts only if the directory is empty.
    if_empty: Option<Box<Pair>>,
    inherited: Inherited,
}

/// Properties that a directory passes down to its contents.
#[derive(Clone, Debug, Default)]
struct Inherited {
    rules: Option<Rc<Ignore>>,
    /// The base's rules ignore the directory, although it is in the base.
    ignored: bool,
    held: Option<WithheldReason>,
    twin: bool,
    bare: bool,
    /// Copied tree: the directory is the copied one.
    copied: bool,
}

/// A name in a directory, on both sides.
struct Name {
    name: Vec<u8>,
    before: Option<Meta>,
    /// Layer entry: index in the place's layers, and metadata.
    after: Option<(usize, Meta)>,
}

impl Name {
    fn is_dir_before(&self) -> bool {
        self.before.is_some_and(|m| m.kind == FileKind::Dir)
    }

    fn is_dir_after(&self) -> bool {
        self.after.is_some_and(|(_, m)| m.kind == FileKind::Dir)
    }
}

struct ScanWalk<'a> {
    stack: &'a Stack,
    anchors: &'a Anchors,
    exclude: Exclude,
    marks: Marks,
    /// Copied tree: record of untouched entries.
    origin: Option<Origin>,
    bounds: Bounds,
    budget: &'a mut Budget,
    patience: Patience,
    way: OpenPath,
    pending: Vec<PendingDir>,
    found: Scanned,
}

impl ScanWalk<'_> {
    fn run(mut self) -> Result<Scanned, Fault> {
        while let Some(item) = self.pending.pop() {
            let path = item.path.clone();
            match self.visit(item) {
                Ok(()) => {}
                Err(Stop::Io(e)) => return Err(broken(&path, &e)),
                Err(Stop::Full) => return Err(self.too_much()),
            }
        }
        self.found.pairs.sort_by(|a, b| a.path.cmp(&b.path));
        // A directory can be a change of its own and later turn out to be unreadable.
        self.found.pairs.dedup_by(|later, pair| {
            let same = later.path == pair.path;
            pair.trouble = pair.trouble.or(later.trouble.filter(|_| same));
            same
        });
        Ok(self.found)
    }

    fn visit(&mut self, item: PendingDir) -> Result<(), Stop> {
        let place = match self.way.to(self.stack, &item.path) {
            Ok(Some(place)) => place,
            Ok(None) => return Ok(()),
            Err(e) if is_refused(&e) => return self.unreadable(item),
            Err(e) => return Err(e.into()),
        };
        let names = match self.names(&place) {
            Ok(names) => names,
            Err(Stop::Io(e)) if is_refused(&e) => return self.unreadable(item),
            Err(e) => return Err(e),
        };
        let PendingDir { path, if_empty, mut inherited } = item;
        if let (Some(pair), true) = (if_empty, names.iter().all(|n| n.after.is_none())) {
            self.found.pairs.push(*pair);
        }
        if self.exclude == Exclude::Artefacts && !inherited.held.is_some_and(|h| h.keeping != Keeping::Ignored) {
            inherited.rules = exclude::rules_of(place.base.as_ref(), &path, inherited.rules.take(), &mut self.patience);
        }
        inherited.bare = inherited.bare || is_bare(&place);
        inherited.copied = match (&self.origin, place.up.first()) {
            (Some(origin), Some((_, dir))) => origin.is_same_dir(&path, dir)?,
            _ => false,
        };
        let twins = if inherited.held.is_none() { twins(&place, &names) } else { BTreeSet::new() };
        for name in names {
            self.count(path.as_bytes().len() + name.name.len())?;
            let here = Inherited { twin: inherited.twin || twins.contains(&name.name), ..inherited.clone() };
            self.compare(&place, path.join(&name.name), name, here)?;
        }
        Ok(())
    }

    /// Names in this directory that may differ.
    fn names(&self, place: &MergedDir) -> Result<Vec<Name>, Stop> {
        let mut names = place.layer_names()?;
        if let (Some(base), false) = (&place.base, place.base_shows) {
            names.extend(names_in(base)?);
        }
        if names.len() as u64 > self.bounds.entries {
            return Err(Stop::Full);
        }
        let look = |name: Vec<u8>| -> Result<Name, Stop> {
            let after = match place.lookup(&name)? {
                LayerEntry::Holds(index, meta) => Some((index, meta)),
                LayerEntry::Whiteout | LayerEntry::Absent => None,
            };
            Ok(Name { before: place.before(&name)?, after, name })
        };
        names.into_iter().map(look).collect()
    }

    fn compare(&mut self, place: &MergedDir, path: Rel, name: Name, mut inherited: Inherited) -> Result<(), Stop> {
        if name.before.is_none() && name.after.is_none() {
            return Ok(());
        }
        self.hold(place, &path, &name, &mut inherited)?;
        if let Some(held) = inherited.held {
            let shown = held.keeping == Keeping::Ignored && name.after.is_some() && class::is_named(&path);
            if !shown || name.is_dir_after() {
                return self.withhold(path, &name, held, inherited);
            }
        }
        let pair = self.pair(place, &path, &name, &inherited)?;
        if self.was_left_out(&name, pair.as_ref().and_then(|pair| pair.trouble)) {
            return Ok(());
        }
        let is_new_dir = name.is_dir_after() && name.before.is_none();
        if name.is_dir_before() || name.is_dir_after() {
            let if_empty = if is_new_dir { pair.map(Box::new) } else { self.keep(pair) };
            let twin = inherited.twin && is_new_dir;
            self.pending.push(PendingDir { path, if_empty, inherited: Inherited { twin, ..inherited } });
        } else {
            self.keep(pair);
        }
        Ok(())
    }

    fn keep(&mut self, pair: Option<Pair>) -> Option<Box<Pair>> {
        self.found.pairs.extend(pair);
        None
    }

    /// Decides if a name is withheld from here on.
    fn hold(&mut self, place: &MergedDir, path: &Rel, name: &Name, inherited: &mut Inherited) -> Result<(), Stop> {
        let either_dir = name.is_dir_after() || (name.after.is_none() && name.is_dir_before());
        if name.name == b".git" && (name.is_dir_after() || name.is_dir_before()) && inherited.held.is_none() {
            inherited.held = Some(self.start(path, Keeping::Git, exclude::GIT.to_owned()));
            return Ok(());
        }
        let settled = inherited.held.is_some_and(|held| held.keeping != Keeping::Ignored);
        if self.exclude == Exclude::Nothing || settled {
            return Ok(());
        }
        let by_rule = inherited.rules.as_ref().and_then(|rules| rules.decide(path, either_dir, &mut self.patience));
        let ignored = by_rule.unwrap_or(inherited.ignored);
        let changes_type = name.before.is_some() && name.is_dir_before() != either_dir;
        let has = |sibling: &[u8]| place.find(sibling).ok().flatten().is_some();
        let artefact = exclude::artefact(&name.name, either_dir, ignored, has).filter(|_| !changes_type);
        let keeping = match (artefact, ignored, name.before.is_some()) {
            (Some(why), _, false) | (Some(why), true, true) => Some((Keeping::Artefact, why.to_owned())),
            (None, true, false) => Some((Keeping::Ignored, exclude::IGNORED.to_owned())),
            _ => None,
        };
        inherited.ignored = ignored;
        match (&mut inherited.held, keeping) {
            (Some(held), Some((keeping, _))) => {
                held.keeping = keeping;
                self.found.prunable.extend((keeping == Keeping::Artefact).then(|| path.clone()));
            }
            (held @ None, Some((keeping, why))) => *held = Some(self.start(path, keeping, why)),
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, path: &Rel, keeping: Keeping, why: String) -> WithheldReason {
        self.found.withheld.push(Withheld { path: path.clone(), why, files: 0, bytes: 0 });
        if keeping == Keeping::Artefact {
            self.found.prunable.push(path.clone());
        }
        WithheldReason { group: self.found.withheld.len() - 1, keeping }
    }

    fn withhold(&mut self, path: Rel, name: &Name, held: WithheldReason, inherited: Inherited) -> Result<(), Stop> {
        if name.is_dir_after() {
            self.pending.push(PendingDir { path, if_empty: None, inherited });
            return Ok(());
        }
        let group = &mut self.found.withheld[held.group];
        group.files += 1;
        group.bytes += name.after.map_or(0, |(_, meta)| meta.space);
        if held.keeping == Keeping::Ignored {
            self.found.prunable.push(path);
        }
        Ok(())
    }

    /// True if a file of a copied tree is known to equal the base's without reading it.
    fn is_as_copied(&self, name: &Name, inherited: &Inherited) -> bool {
        let (Some(origin), Some(before), Some((_, after))) = (&self.origin, &name.before, &name.after) else {
            return false;
        };
        let untouched = inherited.copied && origin.is_as_copied(before) && origin.is_untouched(after);
        untouched && (before.kind, after.kind) == (FileKind::File, FileKind::File)
    }

    /// True if a copied tree lacks an entry because it could not be copied.
    fn was_left_out(&self, name: &Name, trouble: Option<&str>) -> bool {
        let left_out = matches!(trouble, Some(SPECIAL | UNREADABLE));
        self.marks == Marks::Plain && name.after.is_none() && left_out
    }

    /// Entries of both sides, if they differ.
    fn pair(
        &mut self,
        place: &MergedDir,
        path: &Rel,
        name: &Name,
        inherited: &Inherited,
    ) -> Result<Option<Pair>, Stop> {
        if self.is_as_copied(name, inherited) {
            return Ok(None);
        }
        let after = match &name.after {
            Some((index, meta)) => take(&place.up[*index].1, &name.name, meta, self.marks, self.budget)?,
            None => None,
        };
        let before = match (&place.base, &name.before) {
            (Some(base), Some(meta)) => take(base, &name.name, meta, Marks::Foreign, self.budget)?,
            _ => None,
        };
        let trouble = [&after, &before].into_iter().flatten().find_map(|taken| taken.trouble);
        let entry = |taken: Option<ReviewedEntry>| taken.map(|t| t.entry);
        let (before, after) = (entry(before), entry(after));
        if before == after && trouble.is_none() {
            return Ok(None);
        }
        let both_dirs = name.is_dir_before() && (name.is_dir_after() || after.is_none());
        let drifted = !both_dirs && self.anchors.has_drifted(path, name.before.as_ref(), self.stack.since);
        Ok(Some(Pair {
            path: path.clone(),
            from: None,
            layer: name.after.map(|(index, _)| place.up[index].0),
            before,
            links: name.after.map_or(1, |(_, meta)| if meta.kind == FileKind::Dir { 1 } else { meta.links }),
            after,
            trouble,
            twin: inherited.twin,
            in_bare_repository: inherited.bare,
            drifted,
        }))
    }

    /// Records an unreadable directory as a change of its own; its contents stay unknown.
    fn unreadable(&mut self, item: PendingDir) -> Result<(), Stop> {
        if let Some(held) = item.inherited.held {
            self.found.withheld[held.group].files += 1;
            return Ok(());
        }
        if let Some(pair) = item.if_empty {
            self.found.pairs.push(Pair { trouble: Some(UNREADABLE), ..*pair });
            return Ok(());
        }
        let after = self.stack.meta(&item.path)?.map(|found| bare_entry(&found.meta));
        let before = self.stack.base.meta(&item.path).ok().flatten().map(|meta| bare_entry(&meta));
        let (trouble, twin, bare) = (Some(UNREADABLE), item.inherited.twin, item.inherited.bare);
        self.found.pairs.push(Pair {
            path: item.path,
            from: None,
            before,
            after,
            layer: None,
            links: 1,
            trouble,
            twin,
            in_bare_repository: bare,
            drifted: false,
        });
        Ok(())
    }

    fn count(&mut self, length: usize) -> Result<(), Stop> {
        let entries = self.bounds.entries.checked_sub(1).ok_or(Stop::Full)?;
        let path_bytes = self.bounds.path_bytes.checked_sub(length as u64).ok_or(Stop::Full)?;
        self.bounds = Bounds { entries, path_bytes };
        Ok(())
    }

    fn too_much(&self) -> Fault {
        let message = "too many changes for one review";
        let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::Files).phase(Phase::Execution);
        fault.hint("remove unneeded files from the workspace, or drop it with `cofferdam rm`")
    }
}

/// Reason why a walk ends early.
enum Stop {
    Io(io::Error),
    Full,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            io::ErrorKind::QuotaExceeded => Stop::Full,
            _ => Stop::Io(error),
        }
    }
}

/// Fault of an I/O error, with a hint for the user.
pub(crate) fn broken(path: &Rel, error: &io::Error) -> Fault {
    let message =
        format!("{}: {error}", if path.is_top() { "the workspace's top".to_owned() } else { path.to_string() });
    match error.kind() {
        io::ErrorKind::InvalidData => Fault::new(ErrorKind::Conflict, message)
            .hint("another program wrote into the layers; drop the sandbox with `cofferdam rm`"),
        io::ErrorKind::PermissionDenied => {
            Fault::new(ErrorKind::PolicyDenied, message).hint("change its permission bits")
        }
        _ => Fault::new(ErrorKind::Unavailable, message),
    }
    .phase(Phase::Execution)
}

fn bare_entry(meta: &Meta) -> ChangeSide {
    ChangeSide { kind: meta.kind, mode: meta.mode, size: 0, digest: None, target: None, xattrs: Default::default() }
}

/// True for a bare git repository: git started in it would obey its config and hooks. It may be split in two: a
/// directory with `commondir` takes objects, config and hooks from the one it names.
fn is_bare(place: &MergedDir) -> bool {
    let has = |name: &[u8]| matches!(place.find(name), Ok(Some(_)));
    let stores = || has(b"objects") && has(b"refs");
    match has(b"HEAD") {
        true => has(b"commondir") || stores(),
        false => (has(b"config") || has(b"hooks")) && stores(),
    }
}

/// Added names that some file systems take for the same as an existing one.
fn twins(place: &MergedDir, names: &[Name]) -> BTreeSet<Vec<u8>> {
    let added: Vec<&[u8]> =
        names.iter().filter(|n| n.before.is_none() && n.after.is_some()).map(|n| n.name.as_slice()).collect();
    if added.is_empty() {
        return BTreeSet::new();
    }
    let mut all: BTreeSet<Vec<u8>> = names.iter().filter(|n| n.after.is_some()).map(|n| n.name.clone()).collect();
    if let (Some(base), true) = (&place.base, place.base_shows) {
        let deleted: BTreeSet<&[u8]> = names.iter().filter(|n| n.after.is_none()).map(|n| n.name.as_slice()).collect();
        // An unreadable base directory yields no collisions.
        let listed = names_in(base).unwrap_or_default();
        all.extend(listed.into_iter().filter(|name| !deleted.contains(name.as_slice())));
    }
    twin::among(&added, &all)
}
