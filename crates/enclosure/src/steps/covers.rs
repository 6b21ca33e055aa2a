//! The steps that take away again what a grant would show: denied paths, names that nobody has used yet, and directories that must
//! stay where they are so that a cover keeps its place.

use super::{Builder, MADE, QUIET, cpath, path, path_of};
use policy::{Cover, Kind, Mask, Perms};
use std::os::unix::ffi::OsStrExt;
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
        for guard in &self.request.plan.guards {
            if self.workspace_at(Path::new(&guard.pattern)).is_none() {
                self.hide_future(&guard.pattern);
            }
        }
        self.dir(&self.request.home.clone());
    }

    /// A denied name that nobody has used yet: the directory it would appear in is shown through a layer on top in
    /// which that name is struck out. Only where the guest cannot make things itself; that case is refused before.
    pub(super) fn hide_future(&mut self, pattern: &str) {
        let denied = Path::new(pattern);
        let plain = |p: &Path| !p.as_os_str().as_bytes().iter().any(|b| b":,\\*?[".contains(b));
        let Some(dir) = denied.ancestors().skip(1).find(|a| a.is_dir()) else { return };
        let Some(name) = denied.strip_prefix(dir).ok().and_then(|rest| rest.iter().next()) else { return };
        if !plain(denied) || !self.is_mounted(dir) {
            return;
        }
        let layer = self.new_layer();
        self.push(Op::StrikeOut { at: path_of(&[layer.as_bytes(), b"/", name.as_bytes()]) });
        self.overlay(&layer, dir);
    }

    pub(super) fn overlay(&mut self, layer: &str, dir: &Path) {
        let options = path_of(&[b"userxattr,lowerdir=", layer.as_bytes(), b":", dir.as_os_str().as_bytes()]);
        self.push(Op::Overlay { at: cpath(dir), options, attr: QUIET.with(Attr::READ_ONLY) });
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
                .any(|g| p.starts_with(&g.path) && *p != g.path && !g.perms.and(Perms::CHANGES).is_empty())
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
