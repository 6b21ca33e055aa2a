//! Staging, before the base changes: new files are written beside their place under a name of the batch, files to be
//! replaced are copied into the batch directory, and the plan of renames is written. All of it is on disk before the
//! first rename. Staged files are compared with what the reviewer saw: a difference is a conflict.

use crate::attributes::{self, Marks};
use crate::dir::Dir;
use crate::layer::Stack;
use crate::place::{self, FileFacts};
use crate::plan::{
    self, ContentSource, DirProperties, Draft, Goal, LandingStep, Piece, Plan, PlanItem, Shape, StepAction,
};
use crate::{hunks, trouble};
use api::{FileKind, Rel};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::fd::AsFd;
use terms::hex;
use terms::{ErrorKind, Fault, Phase};

/// Directories of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchDirs<'a> {
    pub base: &'a Dir,
    /// Batch directory.
    pub batch: &'a Dir,
    pub id: &'a str,
    /// Workspace that changes come from.
    pub view: Option<&'a Stack>,
    /// Directory of the batch that is undone.
    pub undone: Option<&'a Dir>,
}

/// Drafts of a batch: checked against the base, not staged yet.
#[derive(Debug)]
pub struct CheckedDrafts(Vec<Draft>);

impl CheckedDrafts {
    pub fn of(
        base: &Dir,
        goals: Vec<Goal>,
        made: &dyn Fn(&Rel) -> Result<Shape, Fault>,
    ) -> Result<CheckedDrafts, Fault> {
        plan::draft(base, goals, made).map(CheckedDrafts)
    }

    /// Directories that will hold staged files. Recorded before there are any, so that recovery can remove them.
    pub fn holds(&self) -> BTreeSet<Rel> {
        self.0.iter().map(|draft| draft.hold.clone()).collect()
    }
}

/// Stages a batch. A plan on disk means that all of it is on disk. After a fault the caller calls `discard`.
pub fn stage(site: &BatchDirs<'_>, CheckedDrafts(drafts): &CheckedDrafts) -> Result<Plan, Fault> {
    let mut work = Staging { site, drafts, steps: BTreeMap::new(), items: Vec::new(), synced: Synced::of(drafts) };
    for number in 0..drafts.len() {
        work.keep_and_make(number)?;
    }
    work.finish_dirs()?;
    work.synced.settle(site, drafts)?;
    let plan = work.into_plan()?;
    write_durably(site.batch, PLAN, &plan).map_err(|e| trouble::with(&"the batch", "write its plan", &e))?;
    Ok(plan)
}

/// Retries for a directory that is not at its path, and the pause before each.
pub(crate) const PATIENCE: u32 = 200;
pub(crate) const PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

/// Name of the plan in a batch directory.
pub const PLAN: &str = "plan";

/// Name of a staged or set-aside file.
pub(crate) fn name_of(batch: &str, number: usize) -> String {
    format!("{}{number}", prefix_of(batch))
}

fn prefix_of(batch: &str) -> String {
    format!(".cofferdam-{batch}-")
}

/// Removes the staged files of a batch that never began to land, durably.
pub fn discard(base: &Dir, holds: &BTreeSet<Rel>, id: &str) -> io::Result<()> {
    let prefix = prefix_of(id);
    let mut patience = PATIENCE;
    for hold in holds {
        let dir = loop {
            match place::reach(base, hold) {
                // Another process may be swapping the directory just now.
                Err(e) if crate::dir::is_absent(&e) && patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(PAUSE);
                }
                Err(e) if crate::dir::is_absent(&e) => break None,
                other => break Some(other?),
            }
        };
        let Some(dir) = dir else { continue };
        for name in dir.names()?.iter().filter(|name| name.starts_with(prefix.as_bytes())) {
            crate::remove::tree(&dir, name)?;
        }
        rustix::fs::fsync(&dir)?;
    }
    Ok(())
}

struct Staging<'a> {
    site: &'a BatchDirs<'a>,
    drafts: &'a [Draft],
    /// Operation of each draft by its index; drafts inside a new directory come with it.
    steps: BTreeMap<usize, StepAction>,
    items: Vec<PlanItem>,
    synced: Synced,
}

impl Staging<'_> {
    fn keep_and_make(&mut self, number: usize) -> Result<(), Fault> {
        let Draft { goal, now, .. } = &self.drafts[number];
        let before = now.map(|now| self.keep(number, &now)).transpose()?;
        let digest = goal.before.as_ref().and_then(|expected| expected.digest.as_ref());
        if digest.is_some() && before.as_ref().and_then(|b| b.digest.as_ref()) != digest {
            return Err(trouble::moved(&goal.at));
        }
        let after = match &goal.want {
            Some((shape, source)) => Some(self.make(number, shape, source, before.as_ref())?),
            None => None,
        };
        self.act(number, before.as_ref(), after.as_ref())?;
        self.items.push(PlanItem { at: goal.at.clone(), before, after });
        Ok(())
    }

    /// Saves a copy of the base's entry, with everything needed to restore it.
    fn keep(&mut self, number: usize, now: &FileFacts) -> Result<Shape, Fault> {
        let at = &self.drafts[number].goal.at;
        let fail = |e: io::Error| trouble::with(at, "keep a copy of what is in the base", &e);
        let (dir, name) = place::parent_of(self.site.base, at).map_err(fail)?;
        let mut shape = Shape {
            kind: now.kind,
            mode: now.mode,
            owner: Some(now.owner),
            mtime: Some(now.mtime),
            size: now.size,
            digest: None,
            target: None,
            xattrs: BTreeMap::new(),
            kept: None,
        };
        let below = Rel::top().join(name);
        match now.kind {
            FileKind::File => {
                let mut file = dir.file(&below).map_err(fail)?;
                shape.xattrs = xattrs_of(&file).map_err(fail)?;
                let copy = create(self.site.batch, number.to_string().as_bytes()).map_err(fail)?;
                let (size, digest) = copy_bytes(&mut file, &copy).map_err(fail)?;
                self.synced.file(&copy).map_err(fail)?;
                (shape.size, shape.digest, shape.kept) = (size, Some(digest), Some(number as u32));
            }
            FileKind::Symlink => {
                let target = dir.link_target(name).map_err(fail)?;
                (shape.digest, shape.target) = (Some(digest_of(&target)), Some(BASE64.encode(&target)));
            }
            FileKind::Dir => shape.xattrs = xattrs_of(dir.dir(&below).map_err(fail)?).map_err(fail)?,
            kind => return Err(not_restorable(at, kind)),
        }
        // Checked again: the copy is of one and the same file.
        match place::look(&dir, name).map_err(fail)? {
            Some(still) if still == *now => Ok(shape),
            _ => Err(trouble::moved(at)),
        }
    }

    /// Path of a staged file: under its own name of the batch, or inside the new directory it comes with.
    fn staged_path(&self, number: usize) -> Rel {
        let (mut top, mut inner) = (number, Vec::new());
        while let Some(above) = self.drafts[top].inside {
            inner.push(self.drafts[top].goal.at.split().map(|(_, name)| name.to_vec()).unwrap_or_default());
            top = above;
        }
        let mut at = self.drafts[top].hold.join(name_of(self.site.id, top).as_bytes());
        for name in inner.iter().rev() {
            at = at.join(name);
        }
        at
    }

    fn make(
        &mut self,
        number: usize,
        want: &Shape,
        source: &ContentSource,
        before: Option<&Shape>,
    ) -> Result<Shape, Fault> {
        let draft = &self.drafts[number];
        let at = &draft.goal.at;
        let fail = |e: io::Error| trouble::with(at, "stage it", &e);
        let mut shape = Shape { kept: None, ..want.clone() };
        if draft.stays_dir() {
            return Ok(shape);
        }
        let staged = self.staged_path(number);
        let (dir, name) = place::parent_of(self.site.base, &staged).map_err(fail)?;
        let owner = self.owner(want, before, &dir).map_err(fail)?;
        match want.kind {
            FileKind::Dir => rustix::fs::mkdirat(&dir, name, Mode::RWXU).map_err(|e| fail(e.into()))?,
            FileKind::Symlink => {
                let target = want.target.as_deref().and_then(|t| BASE64.decode(t).ok()).unwrap_or_default();
                rustix::fs::symlinkat(&target[..], &dir, name).map_err(|e| fail(e.into()))?;
                set_link_metadata(&dir, name, want, owner).map_err(fail)?;
            }
            FileKind::File => {
                let file = create(&dir, name).map_err(fail)?;
                let (size, digest) = self.fill(at, source, &file)?;
                if want.digest.as_ref().is_some_and(|shown| *shown != digest) {
                    return Err(changed_since(at));
                }
                (shape.size, shape.digest) = (size, Some(digest));
                set_metadata(&file, want, owner).map_err(fail)?;
                self.synced.file(&file).map_err(fail)?;
            }
            kind => return Err(not_restorable(at, kind)),
        }
        Ok(shape)
    }

    /// Owner of a staged file; only root can choose one.
    fn owner(&self, want: &Shape, before: Option<&Shape>, dir: &Dir) -> io::Result<Option<(u32, u32)>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let inherited = match want.owner.or(before.and_then(|b| b.owner)) {
            Some(owner) => owner,
            None => place::look_at(dir)?.owner,
        };
        Ok(Some(inherited))
    }

    fn fill(&self, at: &Rel, source: &ContentSource, to: &File) -> Result<(u64, String), Fault> {
        let fail = |e: io::Error| trouble::with(at, "stage its bytes", &e);
        let missing = || Fault::internal(format!("{at}: no source for its bytes")).phase(Phase::Application);
        match source {
            ContentSource::None => copy_bytes(&mut io::empty(), to).map_err(fail),
            ContentSource::View(path) => {
                let view = self.site.view.ok_or_else(missing)?;
                let mut file = view.file(path).map_err(|_| changed_since(at))?;
                copy_bytes(&mut file, to).map_err(fail)
            }
            ContentSource::Hunks { of, hunks } => {
                let before = match of {
                    None => Vec::new(),
                    Some(of) => hunks::read_text(file_of(self.site.base, of).map_err(fail)?).map_err(fail)?,
                };
                let after = hunks::apply(&before, hunks).ok_or_else(|| trouble::moved(at))?;
                copy_bytes(&mut &after[..], to).map_err(fail)
            }
            ContentSource::Kept(number) => {
                let undone = self.site.undone.ok_or_else(missing)?;
                let mut file = undone.file(&Rel::top().join(number.to_string().as_bytes())).map_err(fail)?;
                copy_bytes(&mut file, to).map_err(fail)
            }
        }
    }

    /// Adds the plan operation of a draft whose file is staged.
    fn act(&mut self, number: usize, before: Option<&Shape>, after: Option<&Shape>) -> Result<(), Fault> {
        let draft = &self.drafts[number];
        let act = match (&draft.now, before, after) {
            _ if draft.inside.is_some() => return Ok(()),
            (Some(now), Some(before), Some(after)) if draft.stays_dir() => {
                let look = |shape: &Shape| DirProperties { mode: shape.mode, xattrs: shape.xattrs.clone() };
                StepAction::Dress { dir: now.id, from: look(before), to: look(after) }
            }
            (Some(now), _, Some(_)) => StepAction::Swap { old: Piece::of(now), new: self.piece(number)? },
            (None, _, Some(_)) => StepAction::Place { new: self.piece(number)? },
            (Some(now), _, None) => StepAction::Remove { old: Piece::of(now) },
            (None, _, None) => return Ok(()),
        };
        self.steps.insert(number, act);
        Ok(())
    }

    fn piece(&self, number: usize) -> Result<Piece, Fault> {
        let staged = self.staged_path(number);
        let found = place::parent_of(self.site.base, &staged).and_then(|(dir, name)| place::look(&dir, name));
        match found.map_err(|e| trouble::with(&self.drafts[number].goal.at, "read the staged files", &e))? {
            Some(facts) => Ok(Piece::of(&facts)),
            None => Err(trouble::moved(&self.drafts[number].goal.at)),
        }
    }

    /// Sets the mode of new directories, innermost first: it may make them unwritable.
    fn finish_dirs(&mut self) -> Result<(), Fault> {
        for (number, draft) in self.drafts.iter().enumerate().rev() {
            let Some((want, _)) = &draft.goal.want else { continue };
            if !draft.wants_dir() || draft.stays_dir() {
                continue;
            }
            let fail = |e: io::Error| trouble::with(&draft.goal.at, "stage the directory", &e);
            let staged = self.staged_path(number);
            let dir = place::reach(self.site.base, &staged).map_err(fail)?;
            let (above, _) = place::parent_of(self.site.base, &staged).map_err(fail)?;
            let owner = self.owner(want, self.items[number].before.as_ref(), &above).map_err(fail)?;
            set_metadata(&dir, want, owner).map_err(fail)?;
            self.synced.dir(&dir).map_err(fail)?;
            if draft.inside.is_none() {
                let piece = self.piece(number)?;
                if let Some(StepAction::Place { new } | StepAction::Swap { new, .. }) = self.steps.get_mut(&number) {
                    *new = piece;
                }
            }
        }
        Ok(())
    }

    /// Orders the steps: removals first, files before their directories; then the rest.
    fn into_plan(self) -> Result<Plan, Fault> {
        let mut order: Vec<(usize, StepAction)> = self.steps.into_iter().collect();
        order.sort_by_key(|(number, act)| {
            let depth = self.drafts[*number].goal.at.parts().count();
            match act {
                StepAction::Remove { old } if !old.is_dir => (0, 0),
                StepAction::Remove { .. } => (1, usize::MAX - depth),
                _ => (2, 0),
            }
        });
        let mut steps = Vec::with_capacity(order.len());
        let mut known: BTreeMap<Rel, place::Identity> = BTreeMap::new();
        for (number, act) in order {
            let Draft { goal, hold, .. } = &self.drafts[number];
            let mut identity = |at: &Rel| match known.get(at) {
                Some(id) => Ok(*id),
                None => {
                    let found = place::reach(self.site.base, at).and_then(|dir| place::look_at(&dir));
                    let id = found.map_err(|e| trouble::with(at, "look at the directory", &e))?.id;
                    known.insert(at.clone(), id);
                    Ok::<_, Fault>(id)
                }
            };
            let above = goal.at.split().map(|(above, _)| above).unwrap_or_default();
            steps.push(LandingStep {
                at: goal.at.clone(),
                parent: identity(&above)?,
                hold: hold.clone(),
                hold_id: identity(hold)?,
                name: name_of(self.site.id, number),
                act,
            });
        }
        Ok(Plan { batch: self.site.id.to_owned(), items: self.items, steps })
    }
}

/// Number of paths up to which each is synced by itself; beyond it syncfs is faster.
const SINGLY: usize = 32;

/// Strategy to bring the batch to disk.
struct Synced {
    singly: bool,
}

impl Synced {
    fn of(drafts: &[Draft]) -> Synced {
        Synced { singly: drafts.len() <= SINGLY }
    }

    fn file(&self, file: &File) -> io::Result<()> {
        if self.singly { file.sync_all() } else { Ok(()) }
    }

    fn dir(&self, dir: &Dir) -> io::Result<()> {
        if self.singly { Ok(rustix::fs::fsync(dir)?) } else { Ok(()) }
    }

    fn settle(&self, site: &BatchDirs<'_>, drafts: &[Draft]) -> Result<(), Fault> {
        let holds: BTreeSet<&Rel> = drafts.iter().map(|d| &d.hold).collect();
        let fail = |e: io::Error| trouble::with(&"the batch", "sync it to disk", &e);
        let settled = settle(site.base, holds, self.singly).map_err(fail)?;
        // With single fsyncs, the batch directory is synced together with its plan.
        let device = rustix::fs::fstat(site.batch).map_err(|e| fail(e.into()))?.st_dev;
        if !self.singly && !settled.contains(&device) {
            rustix::fs::syncfs(site.batch).map_err(|e| fail(e.into()))?;
        }
        Ok(())
    }
}

/// Syncs directories, by fsync of each or by syncfs; returns the devices in the second case.
pub(crate) fn settle<'a>(
    base: &Dir,
    dirs: impl IntoIterator<Item = &'a Rel>,
    singly: bool,
) -> io::Result<BTreeSet<u64>> {
    let mut done: BTreeSet<u64> = BTreeSet::new();
    for at in dirs {
        let dir = place::reach(base, at)?;
        if singly {
            rustix::fs::fsync(&dir)?;
        } else if done.insert(rustix::fs::fstat(&dir)?.st_dev) {
            rustix::fs::syncfs(&dir)?;
        }
    }
    Ok(done)
}

/// Opens a regular file of a tree, also beyond PATH_MAX.
pub(crate) fn file_of(tree: &Dir, at: &Rel) -> io::Result<File> {
    let (dir, name) = place::parent_of(tree, at)?;
    dir.file(&Rel::top().join(name))
}

/// Creates a file; an existing one is an error.
pub(crate) fn create(dir: &Dir, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    dir.open_at(&Rel::top().join(name), flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

const CHUNK: usize = 128 * 1024;

/// Copies to the end; returns size and digest. Runs of zeros become holes.
pub(crate) fn copy_bytes(from: &mut dyn Read, mut to: &File) -> io::Result<(u64, String)> {
    let (mut buffer, mut hasher, mut size) = (vec![0u8; CHUNK], Sha256::new(), 0u64);
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let bytes = &buffer[..got];
        hasher.update(bytes);
        size += got as u64;
        if got >= 4096 && bytes.iter().all(|b| *b == 0) {
            to.seek(io::SeekFrom::Current(got as i64))?;
        } else {
            to.write_all(bytes)?;
        }
    }
    to.set_len(size)?;
    Ok((size, hex::encode(hasher.finalize())))
}

pub(crate) fn digest_of_file(from: &mut File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(from, &mut HashWriter(&mut hasher))?;
    Ok(hex::encode(hasher.finalize()))
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn digest_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Attributes of a base file: everything readable, because it may have to be restored.
fn xattrs_of(file: impl AsFd) -> io::Result<BTreeMap<String, String>> {
    let own = attributes::read(&file, Marks::Foreign)?.own;
    let mut all: BTreeMap<String, String> = own
        .into_iter()
        .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), hex::encode(&value)))
        .collect();
    let mut value = [0u8; 64];
    if let Ok(length) = rustix::fs::fgetxattr(&file, CAPABILITY, &mut value[..]) {
        all.insert(CAPABILITY.to_owned(), hex::encode(&value[..length]));
    }
    Ok(all)
}

const CAPABILITY: &str = "security.capability";

/// Decodes an attribute value of a record.
fn attribute(value: &str) -> io::Result<Vec<u8>> {
    hex::decode(value)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an attribute's value is not hexadecimal"))
}

/// Sets attributes, owner and mode of an open file, in an order in which no step reverts or prevents another.
fn set_metadata(file: impl AsFd, want: &Shape, owner: Option<(u32, u32)>) -> io::Result<()> {
    let (own, special): (Vec<_>, Vec<_>) = want.xattrs.iter().partition(|(name, _)| name.starts_with("user."));
    for (name, value) in own {
        rustix::fs::fsetxattr(&file, name.as_str(), &attribute(value)?, XattrFlags::empty())?;
    }
    if let Some((uid, gid)) = owner {
        rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    rustix::fs::fchmod(&file, Mode::from_raw_mode(want.mode & 0o7777))?;
    for (name, value) in special {
        match rustix::fs::fsetxattr(&file, name.as_str(), &attribute(value)?, XattrFlags::empty()) {
            // Access lists and capabilities that this file system or user cannot set.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {}
            other => other?,
        }
    }
    if let Some(mtime) = want.mtime {
        rustix::fs::futimens(&file, &times(mtime))?;
    }
    Ok(())
}

fn set_link_metadata(dir: &Dir, name: &[u8], want: &Shape, owner: Option<(u32, u32)>) -> io::Result<()> {
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if let Some(mtime) = want.mtime {
        rustix::fs::utimensat(dir, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}

/// Sets mode and attributes of a directory in place; other attributes are removed.
pub(crate) fn set_look(dir: &Dir, look: &DirProperties) -> io::Result<()> {
    // Attributes can only be set while the directory is writable.
    rustix::fs::fchmod(dir, Mode::from_raw_mode(look.mode & 0o7777 | 0o200))?;
    for name in xattrs_of(dir)?.keys().filter(|name| !look.xattrs.contains_key(*name)) {
        rustix::fs::fremovexattr(dir, name.as_str())?;
    }
    for (name, value) in &look.xattrs {
        rustix::fs::fsetxattr(dir, name.as_str(), &attribute(value)?, XattrFlags::empty())?;
    }
    Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(look.mode & 0o7777))?)
}

/// Writes a document atomically and durably: temporary file, fsync, rename, fsync of the directory.
pub(crate) fn write_durably(dir: &Dir, name: &str, document: &impl serde::Serialize) -> io::Result<()> {
    write_temporary(dir, name, document)?.sync_all()?;
    rename_into_place(dir, name)?;
    Ok(rustix::fs::fsync(dir)?)
}

/// Writes a dispensable document without fsync: a power failure may leave it missing or unreadable.
pub(crate) fn write_unsynced(dir: &Dir, name: &str, document: &impl serde::Serialize) -> io::Result<()> {
    write_temporary(dir, name, document)?;
    rename_into_place(dir, name)
}

fn write_temporary(dir: &Dir, name: &str, document: &impl serde::Serialize) -> io::Result<File> {
    let waiting = format!("{name}.new");
    match rustix::fs::unlinkat(dir, &*waiting, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let mut out = BufWriter::new(create(dir, waiting.as_bytes())?);
    serde_json::to_writer(&mut out, document)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)
}

fn rename_into_place(dir: &Dir, name: &str) -> io::Result<()> {
    Ok(rustix::fs::renameat(dir, format!("{name}.new"), dir, name)?)
}

/// Size bound of a document that is read back.
const LARGEST_DOCUMENT: u64 = 1 << 30;

/// Reads a document; None if it was never written.
pub(crate) fn read_back<T: serde::de::DeserializeOwned>(dir: &Dir, name: &str) -> io::Result<Option<T>> {
    let file = match dir.file(&Rel::top().join(name.as_bytes())) {
        Err(e) if crate::dir::is_absent(&e) => return Ok(None),
        other => other?,
    };
    Ok(Some(serde_json::from_reader(io::BufReader::new(file.take(LARGEST_DOCUMENT)))?))
}

fn changed_since(at: &Rel) -> Fault {
    let message = format!("{at} was changed in the workspace after it was reviewed");
    Fault::new(ErrorKind::Conflict, message).hint("review again with `cofferdam diff`").phase(Phase::Review)
}

fn not_restorable(at: &Rel, kind: FileKind) -> Fault {
    let message = format!("{at} is a {kind:?} in the base, which an undo could not restore");
    Fault::new(ErrorKind::Conflict, message.to_lowercase())
        .hint("remove it manually, then try again")
        .phase(Phase::Review)
}
