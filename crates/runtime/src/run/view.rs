//! The host as a guest will see it: files of the workspace as its layers have them, all others as they are. Read-only.

use api::{FileKind, Rel};
use enclosure::LocalHost;
use policy::{Host, HostFileType, ResolvedPath, Symlink};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use workspace::Stack;

/// Symbolic links followed before a path counts as a loop, as the kernel does it.
const MOST_LINKS: usize = 40;

#[derive(Clone, Default)]
pub struct View {
    host: Rc<LocalHost>,
    over: Option<Rc<Over>>,
}

struct Over {
    at: PathBuf,
    stack: Stack,
}

impl View {
    /// Builds a view of the host with a workspace on it. A workspace with empty layers needs none.
    pub fn over(at: PathBuf, stack: Stack) -> View {
        View { host: Rc::default(), over: Some(Rc::new(Over { at, stack })) }
    }

    /// Opens a file for reading; links are resolved as in the guest.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let Some(over) = &self.over else { return File::open(path) };
        let real = self.look(path).ok_or(io::ErrorKind::NotFound)?.real;
        match over.inside(&real) {
            Some(rel) => over.stack.file(&rel),
            None => File::open(real),
        }
    }

    /// Returns the canonical path, the kind and the permission bits of a path's target.
    pub fn find(&self, path: &Path) -> Option<(PathBuf, HostFileType, u32)> {
        let ResolvedPath { real, kind, .. } = self.look(path)?;
        let mode = match self.over.as_ref().and_then(|over| Some((over, over.inside(&real)?))) {
            Some((over, rel)) => over.stack.meta(&rel).ok()??.meta.mode,
            None => std::fs::symlink_metadata(&real).ok()?.mode() & 0o7777,
        };
        Some((real, kind, mode))
    }

    fn follow(&self, over: &Over, path: &Path) -> Option<ResolvedPath> {
        let (real, links) = over.resolve(path)?;
        let kind = over.kind(&real)?;
        Some(ResolvedPath { real, kind, links })
    }
}

impl Over {
    /// Resolves a path one component at a time, through the workspace where it leads there; the last component need not exist.
    fn resolve(&self, path: &Path) -> Option<(PathBuf, Vec<Symlink>)> {
        let mut rest: VecDeque<OsString> = parts(path);
        let (mut at, mut links) = (PathBuf::from("/"), Vec::new());
        while let Some(name) = rest.pop_front() {
            match Path::new(&name).components().next() {
                Some(Component::RootDir) => at = PathBuf::from("/"),
                Some(Component::ParentDir) => drop(at.pop()),
                Some(Component::Normal(_)) => {
                    at.push(&name);
                    let Some(target) = self.link(&at) else { continue };
                    if links.len() >= MOST_LINKS {
                        return None;
                    }
                    for part in parts(&target).into_iter().rev() {
                        rest.push_front(part);
                    }
                    let link = at.clone();
                    at.pop();
                    links.push(Symlink { at: link, target });
                }
                _ => {}
            }
        }
        Some((at, links))
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components().map(|c| c.as_os_str().to_owned()).collect()
}

impl Over {
    fn inside(&self, path: &Path) -> Option<Rel> {
        Rel::parse(path.strip_prefix(&self.at).ok()?.as_os_str().as_bytes())
    }

    /// Owner of the nearest visible parent directory: the one that denies access.
    fn owner(&self, at: &Rel) -> Option<u32> {
        let mut at = at.clone();
        loop {
            if let Ok(Some(found)) = self.stack.meta(&at) {
                return Some(found.meta.uid);
            }
            at = at.split()?.0;
        }
    }

    fn link(&self, path: &Path) -> Option<PathBuf> {
        match self.inside(path) {
            Some(rel) => self.stack.link_target(&rel).ok().map(OsString::from_vec).map(PathBuf::from),
            None => std::fs::read_link(path).ok(),
        }
    }

    fn kind(&self, path: &Path) -> Option<HostFileType> {
        let kind = match self.inside(path) {
            Some(rel) => self.stack.meta(&rel).ok()??.meta.kind,
            None => FileKind::of_mode(std::fs::symlink_metadata(path).ok()?.mode()),
        };
        Some(match kind {
            FileKind::Dir => HostFileType::Dir,
            FileKind::File => HostFileType::File,
            FileKind::Socket => HostFileType::Socket,
            _ => HostFileType::Other,
        })
    }
}

impl Host for View {
    fn look(&self, path: &Path) -> Option<ResolvedPath> {
        let Some(over) = &self.over else { return self.host.look(path) };
        if !path.starts_with(&over.at)
            && let Some(found) = self.host.look(path).filter(|found| !found.real.starts_with(&over.at))
        {
            return Some(found);
        }
        self.follow(over, path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, String> {
        let inside = self.over.as_ref().and_then(|over| Some((over, over.inside(&self.look(dir)?.real)?)));
        let Some((over, rel)) = inside else { return self.host.list(dir) };
        let names = match over.stack.names(&rel) {
            Ok(names) => names,
            Err(e) => return enclosure::unlisted(&e, || over.owner(&rel)),
        };
        if names.len() > enclosure::MOST_ENTRIES {
            return Err(enclosure::too_many());
        }
        Ok(names.into_keys().map(|name| OsStr::from_bytes(&name).to_owned()).collect())
    }

    fn hidden(&self, path: &Path) -> Option<(PathBuf, String)> {
        let Some(over) = &self.over else { return self.host.hidden(path) };
        let (real, _) = over.resolve(path)?;
        match over.inside(&real) {
            Some(rel) => {
                let error = over.stack.meta(&rel).err()?;
                let why = enclosure::unlisted::<()>(&error, || over.owner(&rel)).err()?;
                Some((real, why))
            }
            None => self.host.hidden(&real),
        }
    }

    fn beneath(&self) -> Option<&dyn Host> {
        self.over.as_ref().map(|_| &*self.host as &dyn Host)
    }

    fn sha256(&self, file: &Path) -> Option<[u8; 32]> {
        enclosure::digest_of(self.open(file).ok()?)
    }

    fn loader(&self, file: &Path) -> Option<PathBuf> {
        enclosure::loader_of(&self.open(file).ok()?)
    }
}
