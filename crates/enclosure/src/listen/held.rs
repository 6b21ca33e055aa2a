//! Places that a person is asked about, as the supervisor holds them: trees that the guest has no way to, in which what it
//! wants is found by handle.

use super::EACCES;
use crate::resolve;
use policy::{AskedPlace, Kind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, openat2, statx};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const EEXIST: i32 = 17;

/// A place that is asked about, with a tree to read from and one to change things in, as far as rules ask for these.
pub(crate) struct Held {
    pub place: AskedPlace,
    pub reads: Option<Tree>,
    pub changes: Option<Tree>,
}

pub(crate) struct Tree {
    top: OwnedFd,
    pub mount: Option<u64>,
}

impl Tree {
    fn new(top: OwnedFd) -> Tree {
        let mount = mount_of(&top);
        Tree { top, mount }
    }
}

impl Held {
    /// From the handles of a plan's places, in the order of the steps that opened them.
    pub(crate) fn all(places: &[AskedPlace], handles: Vec<Option<OwnedFd>>) -> Vec<Held> {
        let mut handles = handles.into_iter();
        let mut next = || handles.next().flatten().map(Tree::new);
        places.iter().map(|place| Held { place: place.clone(), reads: next(), changes: next() }).collect()
    }
}

/// An open as the guest wants it.
pub(super) struct Wish {
    pub path: PathBuf,
    pub flags: OFlags,
    pub mode: u32,
}

impl Wish {
    pub fn reads(&self) -> bool {
        !self.flags.contains(OFlags::WRONLY)
    }

    pub fn writes(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    pub fn changes(&self) -> bool {
        self.writes() || self.flags.contains(OFlags::TRUNC)
    }
}

/// What a wish leads to in a tree.
pub(super) struct Target {
    /// Of what is there; or of the directory in which it shall be made.
    pub handle: OwnedFd,
    pub name: Option<OsString>,
    pub real: PathBuf,
    pub kind: FileType,
}

/// What the wish leads to. `None` where the tree that it would need is not asked about.
pub(super) fn find(held: &Held, wish: &Wish) -> Result<Option<Target>, i32> {
    let Some(any) = held.changes.as_ref().or(held.reads.as_ref()) else { return Ok(None) };
    let creates = wish.flags.contains(OFlags::CREATE);
    let tree = match look(any, &held.place, wish) {
        Ok(_) if creates && wish.flags.contains(OFlags::EXCL) => return Err(EEXIST),
        Ok(_) if wish.changes() => &held.changes,
        Ok(_) => &held.reads,
        Err(Errno::NOENT) if creates => {
            return held.changes.as_ref().map(|tree| make_in(tree, &held.place, wish)).transpose();
        }
        Err(error) => return Err(told(error)),
    };
    tree.as_ref().map(|tree| look(tree, &held.place, wish).map_err(told)).transpose()
}

/// Links are followed as long as they stay in the place. Its own path has none, and what is found is where it really is.
fn look(tree: &Tree, place: &AskedPlace, wish: &Wish) -> Result<Target, Errno> {
    let follow = !wish.flags.contains(OFlags::NOFOLLOW) && !wish.flags.contains(OFlags::CREATE | OFlags::EXCL);
    let rest = wish.path.strip_prefix(&place.path).map_err(|_| Errno::NOENT)?;
    let handle = reach(tree, place, rest, follow)?;
    let found = fstat(&handle)?;
    // One that was removed has no path to be shown by.
    if found.st_nlink == 0 {
        return Err(Errno::NOENT);
    }
    let real = real(&handle, tree, place)?;
    Ok(Target { handle, name: None, real, kind: FileType::from_raw_mode(found.st_mode) })
}

fn make_in(tree: &Tree, place: &AskedPlace, wish: &Wish) -> Result<Target, i32> {
    let rest = wish.path.strip_prefix(&place.path).map_err(|_| EACCES)?;
    let (Some(above), Some(name)) = (rest.parent(), rest.file_name()) else { return Err(EACCES) };
    let handle = reach(tree, place, above, true).map_err(told)?;
    // A link that leads nowhere is not to be made into something.
    if openat2(&handle, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), STAY).is_ok() {
        return Err(EACCES);
    }
    let real = real(&handle, tree, place).map_err(told)?.join(name);
    Ok(Target { handle, name: Some(name.to_owned()), real, kind: FileType::RegularFile })
}

const STAY: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

fn reach(tree: &Tree, place: &AskedPlace, rest: &Path, follow: bool) -> Result<OwnedFd, Errno> {
    if rest.as_os_str().is_empty() {
        return rustix::io::fcntl_dupfd_cloexec(&tree.top, 0);
    }
    if place.kind != Kind::Dir {
        return Err(Errno::NOTDIR);
    }
    let last = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    openat2(&tree.top, rest, OFlags::PATH | OFlags::CLOEXEC | last, Mode::empty(), STAY)
}

/// Where a handle of a place's tree is, as a path of the host: the tree stands alone, and its top is the place. Found there once
/// more, because what somebody moves away meanwhile has a path that says something else.
fn real(handle: &OwnedFd, tree: &Tree, place: &AskedPlace) -> Result<PathBuf, Errno> {
    if place.kind != Kind::Dir {
        return Ok(place.path.clone());
    }
    let below = resolve::path_of(handle).ok_or(Errno::NOENT)?;
    let below = below.strip_prefix("/").map_err(|_| Errno::NOENT)?;
    let (found, again) = (fstat(handle)?, fstat(reach(tree, place, below, false)?)?);
    match (found.st_dev, found.st_ino) == (again.st_dev, again.st_ino) {
        true => Ok(resolve::normal(&place.path.join(below))),
        false => Err(Errno::ACCESS),
    }
}

/// A link that leads out of a place is not followed.
fn told(error: Errno) -> i32 {
    match error {
        Errno::XDEV | Errno::AGAIN => EACCES,
        error => error.raw_os_error(),
    }
}

pub(super) fn mount_of(handle: &OwnedFd) -> Option<u64> {
    let found = statx(handle, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}
