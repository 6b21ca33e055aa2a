//! Finds the repository of a directory as git does, by `.git` in it or in a parent, and never a bare repository that
//! merely looks like one from inside. Opens it through handles; its own references to the work tree must agree with
//! where it was found.

use crate::dir::{Dir, Meta};
use api::{FileKind, Rel};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// A repository with a work tree that holds the base.
#[derive(Debug)]
pub struct Repository {
    /// Top of the work tree.
    pub top: PathBuf,
    /// Path of the base in the work tree.
    pub prefix: Rel,
    /// Git directory of this work tree: HEAD, index.
    pub(super) own: Dir,
    pub(super) own_path: PathBuf,
    /// Git directory shared by all work trees: branches, config, objects.
    pub(super) common: Dir,
    pub(super) common_path: PathBuf,
    /// Owner of the git directory, and so of files created in it.
    pub(super) owner: (u32, u32),
    /// Found by a `.git` file: a linked work tree or a submodule.
    pub(super) by_file: bool,
}

/// Size bound of a one-line file: HEAD, a reference, `commondir`.
const SHORT: u64 = 4096;

/// Bound on the parents that are searched.
const MOST_ABOVE: usize = 256;

impl Repository {
    /// Repository that a directory belongs to; None if there is none up to the boundary of the file system.
    pub fn find(base: &Path) -> Result<Option<Repository>, Fault> {
        let mut device = None;
        for top in base.ancestors().take(MOST_ABOVE) {
            // An unreadable directory hides its parents, as it does for git.
            let Ok(dir) = Dir::open(top) else { return Ok(None) };
            let Some(here) = dir.meta(&Rel::top()).map_err(|e| unreadable(top, &e))? else { return Ok(None) };
            if *device.get_or_insert(here.dev) != here.dev {
                return Ok(None);
            }
            let Some(found) = dir.meta_of(b".git").map_err(|e| unreadable(top, &e))? else { continue };
            let prefix = base.strip_prefix(top).ok().and_then(|rest| Rel::parse(rest.as_os_str().as_bytes()));
            let Some(prefix) = prefix else { continue };
            let opened = match found.kind {
                FileKind::Dir => by_directory(&dir, top),
                FileKind::File => by_file(&dir, top).map(Some),
                _ => Err(refused(top, "its .git is neither a directory nor a file")),
            };
            if let Some(mut repository) = opened? {
                repository.prefix = prefix;
                return Ok(Some(repository));
            }
        }
        Ok(None)
    }

    /// Returns the directory of another repository between the top of the work tree and this path, recognised by its
    /// `.git`.
    pub fn inner(&self, path: &Rel) -> io::Result<Option<Rel>> {
        let top = Dir::open(&self.top)?;
        let mut at = Rel::top();
        let Some((parent, _)) = path.split() else { return Ok(None) };
        for part in parent.parts() {
            at = at.join(part);
            if top.meta(&at.join(b".git"))?.is_some() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}

fn by_directory(dir: &Dir, top: &Path) -> Result<Option<Repository>, Fault> {
    let own = dir.dir(&Rel::top().join(b".git")).map_err(|e| unreadable(&top.join(".git"), &e))?;
    let own_path = top.join(".git");
    if !looks_like_one(&own).map_err(|e| unreadable(&own_path, &e))? {
        return Ok(None);
    }
    let common = own.try_clone().map_err(|e| unreadable(&own_path, &e))?;
    opened(top, own, own_path.clone(), common, own_path, false).map(Some)
}

/// Opens the git directory named by a `.git` file with one line, `gitdir: PATH`.
pub(super) fn by_file(dir: &Dir, top: &Path) -> Result<Repository, Fault> {
    let file = top.join(".git");
    let text = short(dir, &Rel::top().join(b".git")).map_err(|e| unreadable(&file, &e))?.unwrap_or_default();
    let named = text.strip_prefix(b"gitdir: ").map(trimmed).filter(|path| !path.is_empty());
    let named = named.ok_or_else(|| refused(&file, "does not say where the git directory is"))?;
    let own_path = top.join(OsStr::from_bytes(named));
    let own_path = std::fs::canonicalize(&own_path).map_err(|e| unreadable(&own_path, &e))?;
    let own = Dir::open(&own_path).map_err(|e| unreadable(&own_path, &e))?;
    let shared = short(&own, &Rel::top().join(b"commondir")).map_err(|e| unreadable(&own_path, &e))?;
    let common_path = match &shared {
        Some(text) => {
            let path = own_path.join(OsStr::from_bytes(trimmed(text)));
            std::fs::canonicalize(&path).map_err(|e| unreadable(&path, &e))?
        }
        None => own_path.clone(),
    };
    let common = Dir::open(&common_path).map_err(|e| unreadable(&common_path, &e))?;
    if !looks_like_one(&common).map_err(|e| unreadable(&common_path, &e))? {
        return Err(refused(&common_path, "is not a git directory"));
    }
    if shared.is_some() {
        leads_back(&own, &own_path, dir)?;
    }
    opened(top, own, own_path, common, common_path, true)
}

/// Checks that the git directory of a linked work tree names the `.git` file that names it. Otherwise any such file
/// could direct commits to any repository of the user.
fn leads_back(own: &Dir, own_path: &Path, top: &Dir) -> Result<(), Fault> {
    let back = short(own, &Rel::top().join(b"gitdir")).map_err(|e| unreadable(own_path, &e))?.unwrap_or_default();
    let back = own_path.join(OsStr::from_bytes(trimmed(&back)));
    let there = std::fs::canonicalize(&back).ok().and_then(|path| Dir::open(path.parent()?).ok());
    match there.and_then(|there| identity(&there)) {
        Some(id) if Some(id) == identity(top) => Ok(()),
        _ => Err(refused(own_path, "does not name this directory as its work tree")),
    }
}

/// Device and inode number.
pub(super) fn identity(dir: &Dir) -> Option<(u64, u64)> {
    dir.meta(&Rel::top()).ok().flatten().map(|meta: Meta| (meta.dev, meta.ino))
}

fn opened(
    top: &Path,
    own: Dir,
    own_path: PathBuf,
    common: Dir,
    common_path: PathBuf,
    by_file: bool,
) -> Result<Repository, Fault> {
    let meta = common.meta(&Rel::top()).map_err(|e| unreadable(&common_path, &e))?;
    let owner = meta.map(|m| (m.uid, m.gid)).ok_or_else(|| refused(&common_path, "went away"))?;
    let prefix = Rel::top();
    Ok(Repository { top: top.to_owned(), prefix, own, own_path, common, common_path, owner, by_file })
}

/// True if HEAD, `objects` and `refs` exist, which is git's test. Links in their place are not followed.
fn looks_like_one(dir: &Dir) -> io::Result<bool> {
    let is = |name: &[u8], kind: FileKind| Ok::<_, io::Error>(dir.meta_of(name)?.is_some_and(|m| m.kind == kind));
    Ok(is(b"HEAD", FileKind::File)? && is(b"objects", FileKind::Dir)? && is(b"refs", FileKind::Dir)?)
}

/// Reads a one-line file; None if it is missing. A longer one is refused.
pub(super) fn short(dir: &Dir, at: &Rel) -> io::Result<Option<Vec<u8>>> {
    bounded(dir, at, SHORT)
}

pub(super) fn bounded(dir: &Dir, at: &Rel, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match dir.file(at) {
        Ok(file) => file,
        Err(e) if crate::dir::is_absent(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    bounded_file(file, at, most).map(Some)
}

/// Reads a file; a longer one is refused.
pub(super) fn bounded_file(file: std::fs::File, at: &Rel, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{at} is longer than {most} bytes"))),
        false => Ok(bytes),
    }
}

pub(super) fn trimmed(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii_end()
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())).phase(Phase::Review)
}

pub(super) fn refused(path: &Path, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{}: {why}", path.display())).phase(Phase::Review);
    fault.hint("approve without --commit, and commit with git")
}
