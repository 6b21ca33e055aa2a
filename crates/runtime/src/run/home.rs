//! The sandbox's own home: the directories of the layers that hold it, its mount points, and what programs of it look
//! like from outside.

use super::layer::LockedWorkspace;
use super::view::View;
use api::{Driver, FileKind, Rel};
use enclosure::{Cache, OwnHome, Point};
use policy::{Grant, HostFileType, Perms, Plan, Policy};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use state::Caller;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};
use workspace::{Dir, HomePart, Layer};

/// Package caches below a home, and the names of their parts in a layer. Those that rules show read-only are the base of
/// what the sandbox adds.
const CACHES: [(&str, &str); 6] = [
    (".cargo/registry", "cargo-registry"),
    (".cargo/git", "cargo-git"),
    (".npm/_cacache", "npm"),
    (".cache/pip", "pip"),
    (".local/share/pnpm/store", "pnpm"),
    ("go/pkg/mod", "go"),
];

impl LockedWorkspace {
    /// Returns the directories that the enclosure mounts as the sandbox's home.
    pub(super) fn own_home(&self, plan: &Plan, has_network: bool) -> Result<OwnHome, Fault> {
        let place = |layer: &Layer| self.state.join("layers").join(&layer.id);
        let Some((top, frozen)) = self.stack.layers.split_last() else { return Ok(OwnHome::Scratch) };
        if self.stack.driver != Driver::Overlay {
            return Ok(OwnHome::Tree(place(top).join("home")));
        }
        let parts = workspace::home::parts(&self.stack.layers).map_err(|e| unreadable(top, &e))?;
        // The changes of the top are the overlay's upper directory.
        let number = frozen.len();
        let lower = parts.iter().filter(|one| one.layer != number || one.part == HomePart::Brought);
        let lower = lower.filter_map(|one| Some((place(self.stack.layers.get(one.layer)?), one.part.name()))).collect();
        let caches = if has_network { self.caches(plan)? } else { Vec::new() };
        Ok(OwnHome::Layers { lower, top: place(top), caches })
    }

    /// Makes the top layer ready for additions to the package caches that the plan shows.
    fn caches(&self, plan: &Plan) -> Result<Vec<Cache>, Fault> {
        let (Some(home), Some((top, frozen))) = (plan.private.home(), self.stack.layers.split_last()) else {
            return Ok(Vec::new());
        };
        let mut caches = Vec::new();
        for (path, name) in CACHES {
            let at = home.join(path);
            let Some(meta) = self.is_base(&at, plan) else { continue };
            top.make_cache(name, meta.mode()).map_err(|e| unreadable(top, &e))?;
            let mut lower = Vec::new();
            for layer in frozen {
                let caches = layer.filled(HomePart::Caches).map_err(|e| unreadable(layer, &e))?;
                let has = caches.map_or(Ok(None), |caches| caches.meta_of(name.as_bytes()));
                if has.map_err(|e| unreadable(layer, &e))?.is_some_and(|meta| meta.kind == FileKind::Dir) {
                    lower.push(self.state.join("layers").join(&layer.id));
                }
            }
            caches.push(Cache { at, name: name.to_owned(), lower });
        }
        Ok(caches)
    }

    /// Returns the metadata of a cache that can be the base of additions: a directory that is shown read-only as a whole,
    /// on the file system of the workspace's own base.
    fn is_base(&self, at: &Path, plan: &Plan) -> Option<std::fs::Metadata> {
        let changes = |g: &Grant| !g.perms.and(Perms::CHANGES).is_empty();
        let whole = |g: &&Grant| g.path == at && g.kind == HostFileType::Dir && g.perms.and(Perms::READ) == Perms::READ;
        let grant = plan.grants.iter().find(whole).filter(|g| !changes(g))?;
        let mut others = plan.grants.iter().map(|g| &g.path).filter(|path| **path != grant.path);
        let mut within =
            others.by_ref().chain(plan.masks.iter().map(|m| &m.path)).chain(plan.asked.iter().map(|a| &a.path));
        let guarded =
            plan.guards.iter().any(|guard| guard.pattern.contains('*') || Path::new(&guard.pattern).starts_with(at));
        if guarded || within.any(|path| path.starts_with(at)) {
            return None;
        }
        let meta = std::fs::symlink_metadata(at).ok().filter(std::fs::Metadata::is_dir)?;
        let base = rustix::fs::fstat(&self.stack.base).ok()?;
        (meta.dev() == base.st_dev).then_some(meta)
    }

    /// Copies what the policy names into the home.
    pub(super) fn copy_in(&self, policy: &Policy, caller: &Caller) -> Result<Vec<String>, Fault> {
        super::copy_in(policy, |_| false, (self.top()?, self.stack.driver), caller)
    }

    /// Makes the mount points in the home of a copying workspace. No link in it is followed.
    pub(super) fn furnish_home(&self, at: &Path, points: &BTreeMap<PathBuf, Point>) -> Result<(), Fault> {
        let top = self.top()?;
        let home = top.make_home(HomePart::Changes).map_err(|e| unreadable(top, &e))?;
        points.iter().try_for_each(|(path, point)| {
            furnish(&home, path.strip_prefix(at).unwrap_or(path), *point).map_err(|e| in_the_way(path, &e))
        })
    }
}

/// Makes one mount point, unless it is there.
fn furnish(home: &Dir, at: &Path, point: Point) -> io::Result<()> {
    let rel = Rel::parse(at.as_os_str().as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
    let (above, name) = rel.split().ok_or(io::ErrorKind::InvalidInput)?;
    let dir = home.dir(&above)?;
    match (dir.meta_of(name)?.map(|meta| meta.kind), point) {
        (Some(FileKind::Dir), Point::Dir) | (Some(FileKind::File), Point::File) => Ok(()),
        (Some(_), Point::Dir) => Err(Errno::NOTDIR.into()),
        (Some(_), Point::File) => Err(Errno::EXIST.into()),
        (None, Point::Dir) => Ok(rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o755))?),
        (None, Point::File) => {
            Ok(rustix::fs::mknodat(&dir, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?)
        }
    }
}

fn in_the_way(path: &Path, error: &io::Error) -> Fault {
    let path = path.display();
    let message =
        format!("{path}: the sandbox's own home has something else there, so the host's cannot be mounted: {error}");
    let hint = "`cofferdam reject --home` empties the home of the sandbox; or leave out the rule that shows the path";
    Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Preparation)
}

fn unreadable(layer: &Layer, error: &io::Error) -> Fault {
    Fault::internal(format!("the home in layer {}: {error}", layer.id))
}

/// The home as commands look for programs in it.
pub(super) struct HomePrograms {
    at: PathBuf,
    view: View,
    /// Paths below it that show the host.
    shown: Vec<PathBuf>,
}

impl HomePrograms {
    pub fn of(plan: &Plan, held: Option<&LockedWorkspace>) -> Result<Option<HomePrograms>, Fault> {
        let (Some(at), Some(held)) = (plan.private.home(), held) else { return Ok(None) };
        let merged = workspace::home::merged(&held.stack);
        let Some(stack) = merged.map_err(|e| Fault::internal(format!("the home: {e}")))? else { return Ok(None) };
        let shown = plan.grants.iter().map(|g| &g.path).filter(|path| path.starts_with(at)).cloned().collect();
        Ok(Some(HomePrograms { at: at.to_path_buf(), view: View::over(at.to_path_buf(), stack), shown }))
    }

    fn has(&self, path: &Path) -> bool {
        path.starts_with(&self.at) && !self.shown.iter().any(|shown| path.starts_with(shown))
    }

    /// Finds a program by its path in the home. The second value tells whether its file is the home's own.
    pub fn find(&self, path: &Path) -> Option<((PathBuf, HostFileType, u32), bool)> {
        let found = self.has(path).then(|| self.view.find(path)).flatten()?;
        let own = self.has(&found.0);
        Some((found, own))
    }
}
