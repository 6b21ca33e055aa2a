//! A host in memory: directories, files and links, resolved as a kernel does.

use policy::{Host, HostFileType, ResolvedPath, Symlink};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    Dir,
    /// A file, identified by its first byte, which is its digest, too.
    File(u8),
    Socket,
    Link(PathBuf),
}

#[derive(Clone, Debug, Default)]
pub struct World {
    things: BTreeMap<PathBuf, Thing>,
    pub loader: Option<PathBuf>,
}

impl World {
    pub fn new() -> World {
        let mut world = World::default();
        world.things.insert(PathBuf::from("/"), Thing::Dir);
        world
    }

    /// Adds an entry and the directories above it, unless another entry is in the way.
    pub fn put(&mut self, path: &str, thing: Thing) {
        let path = PathBuf::from(path);
        let above: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_owned).collect();
        if above.iter().any(|a| self.things.get(a).is_some_and(|t| *t != Thing::Dir)) || self.things.contains_key(&path)
        {
            return;
        }
        for dir in above {
            self.things.insert(dir, Thing::Dir);
        }
        self.things.insert(path, thing);
    }

    pub fn files(mut self, paths: &[&str]) -> World {
        for path in paths {
            self.put(path, Thing::File(1));
        }
        self
    }

    pub fn links(mut self, links: &[(&str, &str)]) -> World {
        for (at, target) in links {
            self.put(at, Thing::Link(PathBuf::from(target)));
        }
        self
    }

    pub fn things(&self) -> impl Iterator<Item = &Path> {
        self.things.keys().map(PathBuf::as_path)
    }

    /// Returns every real path with its type, without links.
    pub fn reals(&self) -> impl Iterator<Item = (&Path, HostFileType)> {
        self.things.iter().filter_map(|(path, thing)| match thing {
            Thing::Dir => Some((path.as_path(), HostFileType::Dir)),
            Thing::File(_) => Some((path.as_path(), HostFileType::File)),
            Thing::Socket => Some((path.as_path(), HostFileType::Socket)),
            Thing::Link(_) => None,
        })
    }
}

impl Host for World {
    fn look(&self, path: &Path) -> Option<ResolvedPath> {
        let mut links: Vec<Symlink> = Vec::new();
        let mut real = PathBuf::from("/");
        let mut todo: Vec<OsString> = parts(path);
        while let Some(name) = todo.pop() {
            if name == ".." {
                real.pop();
                continue;
            }
            if self.things.get(&real) != Some(&Thing::Dir) {
                return None;
            }
            let next = real.join(&name);
            match self.things.get(&next)? {
                Thing::Link(target) => {
                    links.push(Symlink { at: next, target: target.clone() });
                    if links.len() > 20 {
                        return None;
                    }
                    if target.is_absolute() {
                        real = PathBuf::from("/");
                    }
                    todo.extend(parts(target));
                }
                _ => real = next,
            }
        }
        let kind = match self.things.get(&real)? {
            Thing::Dir => HostFileType::Dir,
            Thing::File(_) => HostFileType::File,
            Thing::Socket => HostFileType::Socket,
            Thing::Link(_) => HostFileType::Other,
        };
        Some(ResolvedPath { real, kind, links })
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, String> {
        let below = self.things.keys().filter(|p| p.parent() == Some(dir));
        Ok(below.filter_map(|p| p.file_name().map(ToOwned::to_owned)).collect())
    }

    fn sha256(&self, file: &Path) -> Option<[u8; 32]> {
        match self.things.get(file)? {
            Thing::File(byte) => Some([*byte; 32]),
            _ => None,
        }
    }

    fn loader(&self, file: &Path) -> Option<PathBuf> {
        matches!(self.things.get(file), Some(Thing::File(_))).then(|| self.loader.clone()).flatten()
    }
}

/// Components still to resolve, the next one last.
fn parts(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}
