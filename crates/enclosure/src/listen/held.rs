//! Handles on places that a person is asked about: detached mount trees that the guest cannot reach, in which the
//! supervisor resolves the paths of its calls.

use super::EACCES;
use crate::resolve;
use policy::{AskedPlace, HostFileType};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, openat2, statx};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const EEXIST: i32 = 17;

/// A place that rules ask about, with a tree to read from and one to change, as far as the rules cover these.
pub(crate) struct AskedTrees {
    pub place: AskedPlace,
    pub reads: Option<AskedTree>,
    pub changes: Option<AskedTree>,
}

pub(crate) struct AskedTree {
    top: OwnedFd,
    pub mount: Option<u64>,
}

impl AskedTree {
    fn new(top: OwnedFd) -> AskedTree {
        let mount = mount_of(&top);
        AskedTree { top, mount }
    }
}

impl AskedTrees {
    /// Pairs a plan's places with their handles, in the order of the steps that opened them.
    pub(crate) fn all(places: &[AskedPlace], handles: Vec<Option<OwnedFd>>) -> Vec<AskedTrees> {
        let mut handles = handles.into_iter();
        let mut next = || handles.next().flatten().map(AskedTree::new);
        places.iter().map(|place| AskedTrees { place: place.clone(), reads: next(), changes: next() }).collect()
    }
}

/// Arguments of an open(2) of the guest.
pub(super) struct OpenRequest {
    pub path: PathBuf,
    pub flags: OFlags,
    pub mode: u32,
}

impl OpenRequest {
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

/// The file that an open request resolves to in a tree.
pub(super) struct OpenTarget {
    /// Handle of the file; with a name, of the directory in which the file is to be created.
    pub handle: OwnedFd,
    pub name: Option<OsString>,
    pub real: PathBuf,
    pub kind: FileType,
}

/// Resolves an open request. `None` where the rules ask about no tree of the needed kind.
pub(super) fn find(held: &AskedTrees, request: &OpenRequest) -> Result<Option<OpenTarget>, i32> {
    let Some(any) = held.changes.as_ref().or(held.reads.as_ref()) else { return Ok(None) };
    let creates = request.flags.contains(OFlags::CREATE);
    let tree = match look(any, &held.place, request) {
        Ok(_) if creates && request.flags.contains(OFlags::EXCL) => return Err(EEXIST),
        Ok(_) if request.changes() => &held.changes,
        Ok(_) => &held.reads,
        Err(Errno::NOENT) if creates => {
            return held.changes.as_ref().map(|tree| make_in(tree, &held.place, request)).transpose();
        }
        Err(error) => return Err(errno_for_guest(error)),
    };
    tree.as_ref().map(|tree| look(tree, &held.place, request).map_err(errno_for_guest)).transpose()
}

/// Resolves an existing file. Symbolic links are followed within the place (RESOLVE_BENEATH), and the result is the
/// real path.
fn look(tree: &AskedTree, place: &AskedPlace, request: &OpenRequest) -> Result<OpenTarget, Errno> {
    let follow = !request.flags.contains(OFlags::NOFOLLOW) && !request.flags.contains(OFlags::CREATE | OFlags::EXCL);
    let rest = request.path.strip_prefix(&place.path).map_err(|_| Errno::NOENT)?;
    let handle = reach(tree, place, rest, follow)?;
    let found = fstat(&handle)?;
    // An unlinked file has no path to show to a person.
    if found.st_nlink == 0 {
        return Err(Errno::NOENT);
    }
    let real = real(&handle, tree, place)?;
    Ok(OpenTarget { handle, name: None, real, kind: FileType::from_raw_mode(found.st_mode) })
}

fn make_in(tree: &AskedTree, place: &AskedPlace, request: &OpenRequest) -> Result<OpenTarget, i32> {
    let rest = request.path.strip_prefix(&place.path).map_err(|_| EACCES)?;
    let (Some(above), Some(name)) = (rest.parent(), rest.file_name()) else { return Err(EACCES) };
    let handle = reach(tree, place, above, true).map_err(errno_for_guest)?;
    // A dangling symbolic link is not followed to create its target.
    if openat2(&handle, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), STAY).is_ok() {
        return Err(EACCES);
    }
    let real = real(&handle, tree, place).map_err(errno_for_guest)?.join(name);
    Ok(OpenTarget { handle, name: Some(name.to_owned()), real, kind: FileType::RegularFile })
}

const STAY: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

fn reach(tree: &AskedTree, place: &AskedPlace, rest: &Path, follow: bool) -> Result<OwnedFd, Errno> {
    if rest.as_os_str().is_empty() {
        return rustix::io::fcntl_dupfd_cloexec(&tree.top, 0);
    }
    if place.kind != HostFileType::Dir {
        return Err(Errno::NOTDIR);
    }
    let last = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    openat2(&tree.top, rest, OFlags::PATH | OFlags::CLOEXEC | last, Mode::empty(), STAY)
}

/// Returns the host path of a handle in a place's detached tree, whose root is the place. The path is resolved once
/// more and compared by inode, because a file that is moved meanwhile has another path.
fn real(handle: &OwnedFd, tree: &AskedTree, place: &AskedPlace) -> Result<PathBuf, Errno> {
    if place.kind != HostFileType::Dir {
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

/// Translates an error for the guest: a symbolic link that leaves the place gives EACCES.
fn errno_for_guest(error: Errno) -> i32 {
    match error {
        Errno::XDEV | Errno::AGAIN => EACCES,
        error => error.raw_os_error(),
    }
}

pub(super) fn mount_of(handle: &OwnedFd) -> Option<u64> {
    let found = statx(handle, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}
