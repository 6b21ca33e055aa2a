//! The steps that take away again what a grant would show: denied paths, names that nobody has used yet, and directories that must
//! stay where they are so that a cover keeps its place.

use super::{Builder, MADE, QUIET, cpath, path, path_of};
use policy::{Cover, Kind, Mask, Perms};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use sys::op::{Attr, Op};

impl Builder<'_> {
    pub(super) fn hide(&mut self, at: &Path, kind: Kind) {
        let from = if kind == Kind::Dir { "/dir" } else { "/file" };
        let attr = QUIET.with(Attr::READ_ONLY).with(Attr::NO_EXEC);
        self.push(Op::Bind { from: path(&[MADE, from]), at: cpath(at), attr });
    }

    pub(super) fn covers(&mut self) {
        for mask in &self.request.plan.masks {
            self.pin_above(&mask.path);
            self.cover(mask);
        }
        for kept in &self.request.plan.kept {
            self.pin_above(kept);
            self.pin(kept);
        }
        self.dir(&self.request.home.clone());
    }

    /// Denied names that nobody has used yet: the directory that one would appear in is shown through a layer on top in which
    /// it is struck out. Only where the guest cannot make things itself; that case is refused before. Such a layer shows
    /// nothing that is mounted below its directory, so it comes before all that is; and one serves for all below it, because
    /// the kernel does not put many of them over one another.
    pub(super) fn hide_futures(&mut self, attr: Attr, is_here: impl Fn(&Path) -> bool) {
        let request = self.request;
        let guards = request.plan.guards.iter().filter(|guard| self.workspace_at(Path::new(&guard.pattern)).is_none());
        let names = guards.filter_map(|guard| future(&guard.pattern));
        let names: BTreeSet<(PathBuf, OsString)> =
            names.filter(|(dir, _)| is_here(dir) && self.is_mounted(dir)).collect();
        let mut layers: Vec<(PathBuf, String)> = Vec::new();
        for (dir, name) in names {
            if !layers.last().is_some_and(|(top, _)| dir.starts_with(top)) {
                let layer = self.new_layer();
                layers.push((dir.clone(), layer));
            }
            if let Some((top, layer)) = layers.last() {
                self.strike_out(layer, top, &dir, Path::new(&name));
            }
        }
        layers.into_iter().for_each(|(top, layer)| self.overlay(&layer, &top, attr));
    }

    /// Strikes out a name of a directory in a layer that is for a tree around it.
    pub(super) fn strike_out(&mut self, layer: &str, top: &Path, dir: &Path, name: &Path) {
        let (mut inside, mut outside) = (PathBuf::from(layer), top.to_path_buf());
        for part in dir.strip_prefix(top).unwrap_or(Path::new("")) {
            inside.push(part);
            outside.push(part);
            // The merged directory has the bits of the uppermost layer that has it.
            let mode = std::fs::symlink_metadata(&outside).map_or(0o755, |m| m.permissions().mode() & 0o7777);
            self.push(Op::Dir { at: cpath(&inside), mode });
        }
        if self.struck.insert(inside.join(name).into()) {
            self.push(Op::StrikeOut { at: cpath(&inside.join(name)) });
        }
    }

    /// Takes away once more what lies in a directory that was bound anew.
    pub(super) fn cover_below(&mut self, dir: &Path) {
        let request = self.request;
        self.hide_futures(QUIET, |at| at.starts_with(dir));
        for mask in request.plan.masks.iter().filter(|mask| mask.path.starts_with(dir) && mask.path != dir) {
            self.cover(mask);
        }
    }

    pub(super) fn overlay(&mut self, layer: &str, dir: &Path, attr: Attr) {
        let options = path_of(&[b"userxattr,lowerdir=", layer.as_bytes(), b":", dir.as_os_str().as_bytes()]);
        self.push(Op::Overlay { at: cpath(dir), options, attr: attr.with(QUIET).with(Attr::READ_ONLY) });
    }

    pub(super) fn cover(&mut self, mask: &Mask) {
        let attr = match mask.cover {
            Cover::Hide => return self.hide(&mask.path, mask.kind),
            Cover::ReadOnly => Attr::READ_ONLY,
            Cover::NoExec => Attr::NO_EXEC,
            Cover::ReadOnlyNoExec => Attr::READ_ONLY.with(Attr::NO_EXEC),
        };
        self.rebind(&mask.path, attr);
    }

    pub(super) fn rebind(&mut self, at: &Path, attr: Attr) {
        // It keeps what the tree has and only adds.
        self.push(Op::Bind { from: cpath(at), at: cpath(at), attr });
    }

    /// A directory that is a mount point cannot be renamed or removed inside. Without this a guest could move the
    /// parent of a covered path away and put another tree in its place.
    pub(super) fn pin_above(&mut self, covered: &Path) {
        let writable = |p: &&Path| {
            self.request
                .plan
                .grants
                .iter()
                .any(|g| g.covers(p) && *p != g.path && !g.perms.and(Perms::CHANGES).is_empty())
        };
        let mut above: Vec<PathBuf> = covered.ancestors().skip(1).take_while(writable).map(Path::to_path_buf).collect();
        above.reverse();
        above.iter().for_each(|dir| self.pin(dir));
    }

    pub(super) fn pin(&mut self, at: &Path) {
        if self.pinned.insert(at.into()) && !self.mounted.contains(at.as_os_str()) {
            self.rebind(at, Attr(0));
        }
    }
}

/// The directory that a plain name would appear in, and the first part of it that is missing there.
fn future(pattern: &str) -> Option<(PathBuf, OsString)> {
    let denied = Path::new(pattern);
    let plain = !pattern.bytes().any(|b| b":,\\*?[".contains(&b));
    let dir = denied.ancestors().skip(1).find(|a| a.is_dir()).filter(|_| plain)?;
    let name = denied.strip_prefix(dir).ok()?.iter().next()?;
    Some((dir.to_path_buf(), name.to_owned()))
}
