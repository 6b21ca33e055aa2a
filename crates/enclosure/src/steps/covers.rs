//! Steps that hide again what a grant would show: denied paths, denied names that do not exist yet, and pinned
//! directories that keep a cover in its place.

use super::{Builder, MADE, QUIET};
use policy::{Cover, HostFileType, Mask, Perms};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use sys::op::{Attr, Op};

impl Builder<'_> {
    pub(super) fn hide(&mut self, at: &Path, kind: HostFileType) {
        let from = if kind == HostFileType::Dir { "/dir" } else { "/file" };
        let attr = QUIET.with(Attr::READ_ONLY).with(Attr::NO_EXEC);
        self.push(Op::Bind { from: self.path(&[MADE, from]), at: self.cpath(at), attr });
    }

    pub(super) fn covers(&mut self) {
        for mask in &self.spec.plan.masks {
            self.pin_above(&mask.path);
            self.cover(mask);
        }
        for kept in &self.spec.plan.kept {
            self.pin_above(kept);
            self.pin(kept);
        }
        self.dir(&self.spec.home.clone());
    }

    /// Hides denied names that do not exist yet: the directory in which one would appear is shown through an overlay
    /// with a whiteout. Applies only where the guest cannot create files itself; that case is refused before. An
    /// overlay does not show mounts below its directory, so it comes before all of those; and one overlay serves for
    /// all directories below it, because the kernel limits how deep overlays may be stacked.
    pub(super) fn hide_missing_names(&mut self, attr: Attr, is_here: impl Fn(&Path) -> bool) {
        let spec = self.spec;
        let guards = spec.plan.guards.iter().filter(|guard| self.workspace_at(Path::new(&guard.pattern)).is_none());
        let names = guards.filter_map(|guard| missing_name(&guard.pattern));
        let names: BTreeSet<(PathBuf, OsString)> =
            names.filter(|(dir, _)| is_here(dir) && self.is_mounted(dir)).collect();
        let mut layers: Vec<(PathBuf, String)> = Vec::new();
        for (dir, name) in names {
            if !layers.last().is_some_and(|(top, _)| dir.starts_with(top)) {
                let layer = self.new_layer();
                layers.push((dir.clone(), layer));
            }
            if let Some((top, layer)) = layers.last() {
                self.add_whiteout(layer, top, &dir, Path::new(&name));
            }
        }
        layers.into_iter().for_each(|(top, layer)| self.overlay(&layer, &top, attr));
    }

    /// Adds a whiteout to a layer over `top`, with the directories that lead to it.
    pub(super) fn add_whiteout(&mut self, layer: &str, top: &Path, dir: &Path, name: &Path) {
        let (mut inside, mut outside) = (PathBuf::from(layer), top.to_path_buf());
        for part in dir.strip_prefix(top).unwrap_or(Path::new("")) {
            inside.push(part);
            outside.push(part);
            // A merged directory has the mode of its uppermost layer.
            let mode = std::fs::symlink_metadata(&outside).map_or(0o755, |m| m.permissions().mode() & 0o7777);
            self.push(Op::Dir { at: self.cpath(&inside), mode });
        }
        if self.whiteouts.insert(inside.join(name).into()) {
            self.push(Op::Whiteout { at: self.cpath(&inside.join(name)) });
        }
    }

    /// Applies the covers again below a directory that was bound anew.
    pub(super) fn cover_below(&mut self, dir: &Path) {
        let spec = self.spec;
        self.hide_missing_names(QUIET, |at| at.starts_with(dir));
        for mask in spec.plan.masks.iter().filter(|mask| mask.path.starts_with(dir) && mask.path != dir) {
            self.cover(mask);
        }
    }

    pub(super) fn overlay(&mut self, layer: &str, dir: &Path, attr: Attr) {
        let options = self.path_of(&[b"userxattr,lowerdir=", layer.as_bytes(), b":", dir.as_os_str().as_bytes()]);
        self.push(Op::Overlay { at: self.cpath(dir), options, attr: attr.with(QUIET).with(Attr::READ_ONLY) });
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
        // A bind onto itself keeps the mount's attributes and adds to them.
        self.push(Op::Bind { from: self.cpath(at), at: self.cpath(at), attr });
    }

    /// Pins the parents of a covered path: a mount point cannot be renamed or removed inside. Otherwise a guest could
    /// move a parent away and put another tree in its place.
    pub(super) fn pin_above(&mut self, covered: &Path) {
        let writable = |p: &&Path| {
            self.spec.plan.grants.iter().any(|g| g.covers(p) && *p != g.path && !g.perms.and(Perms::CHANGES).is_empty())
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

/// Returns the directory in which a literal name would appear, and its first missing component.
fn missing_name(pattern: &str) -> Option<(PathBuf, OsString)> {
    let denied = Path::new(pattern);
    let plain = !pattern.bytes().any(|b| b":,\\*?[".contains(&b));
    let dir = denied.ancestors().skip(1).find(|a| a.is_dir()).filter(|_| plain)?;
    let name = denied.strip_prefix(dir).ok()?.iter().next()?;
    Some((dir.to_path_buf(), name.to_owned()))
}
