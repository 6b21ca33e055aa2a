//! Grants of a known toolchain manager: its row of the table, applied to its root, without files that may hold
//! credentials.

use super::managers::{MANAGERS, Manager};
use super::paths::*;
use super::{ClaimOrigin, Search, sensitive};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

impl Search<'_> {
    /// Returns the manager whose root contains `path`; of several the one with the longest root.
    pub(super) fn manager_of(&self, path: &Path) -> Option<(&'static Manager, PathBuf)> {
        let mut best: Option<(&'static Manager, PathBuf)> = None;
        let mut better = |manager, root: PathBuf| {
            if best.as_ref().is_none_or(|(_, kept)| kept.as_os_str().len() < root.as_os_str().len()) {
                best = Some((manager, root));
            }
        };
        for (manager, root) in &self.named {
            if inside(path, root) {
                better(manager, root.clone());
            }
        }
        let bytes = path.as_os_str().as_bytes();
        for manager in MANAGERS {
            for root in manager.roots {
                if root.starts_with('/') && below(bytes, root.as_bytes()) {
                    better(manager, PathBuf::from(root));
                }
            }
        }
        for home in &self.homes {
            if !inside(path, home) {
                continue;
            }
            let rel = bytes.get(home.as_os_str().len() + 1..).unwrap_or_default();
            for manager in MANAGERS {
                if let Some(root) = manager.roots.iter().find(|root| below(rel, root.as_bytes())) {
                    better(manager, home.join(root));
                }
            }
        }
        best
    }

    /// Grants the paths of a manager's row; false if this is not that manager's root after all.
    pub(super) fn manage(&mut self, manager: &'static Manager, root: &Path, cause: &str) -> bool {
        let key = (manager.name, root.as_os_str().to_os_string());
        if let Some(settled) = self.settled.get(&key) {
            return *settled;
        }
        let here = if manager.marks.is_empty() {
            self.exists(root)
        } else {
            manager.marks.iter().any(|mark| self.exists(&root.join(mark)))
        };
        self.settled.insert(key, here);
        if !here {
            return false;
        }
        if self.is_workspace(root) {
            self.add(root, manager.name, cause);
            return true;
        }
        if manager.give.is_empty() {
            let mut holes = self.holes(root, manager.holes);
            if manager.name == "user commands" {
                holes = self.secrets_in(root);
            }
            self.add_around(root, &holes, manager.name, cause);
        } else {
            let holes = self.holes(root, manager.holes);
            for part in manager.give {
                self.add_around(&root.join(part), &holes, manager.name, cause);
            }
            if manager.name == "go" {
                // ~/go may be an unpacked Go instead of a GOPATH.
                self.beside(root, "go", cause);
            }
        }
        for dir in manager.links {
            self.linked_installations(&root.join(dir), root, cause);
        }
        let Some(home) = self.homes.first().cloned() else {
            return true;
        };
        for path in manager.also {
            self.add(&home.join(path), manager.name, cause);
        }
        for path in manager.settings {
            let path = home.join(path);
            if holds_no_secret(&path) {
                self.add(&path, manager.name, cause);
            }
        }
        for name in manager.with {
            self.companion(name, cause);
        }
        self.names.extend(manager.vars.iter().chain(manager.env));
        true
    }

    pub(super) fn companion(&mut self, name: &str, cause: &str) {
        let Some(manager) = MANAGERS.iter().find(|m| m.name == name) else {
            return;
        };
        let mut roots: Vec<PathBuf> =
            self.named.iter().filter(|(m, _)| m.name == name).map(|(_, root)| root.clone()).collect();
        if let Some(home) = self.homes.first() {
            roots.extend(manager.roots.iter().map(|root| home.join(root)));
        }
        for root in roots {
            self.manage(manager, &root, cause);
        }
    }

    /// Follows installations that a manager knows by a symlink: `rustup toolchain link`, jenv, pyenv.
    pub(super) fn linked_installations(&mut self, dir: &Path, root: &Path, cause: &str) {
        if self.is_workspace(dir) {
            return;
        }
        for (name, kind) in self.list(dir).iter() {
            if *kind != PathType::Link {
                continue;
            }
            let Some(target) = self.link_target(&dir.join(name)) else {
                continue;
            };
            if inside(&target, root) {
                continue;
            }
            let bin = target.join("bin");
            if self.exists(&bin) {
                self.base(&bin, cause, ClaimOrigin::User, 0);
            }
        }
    }

    /// Returns the existing paths below `root` that match the patterns.
    pub(super) fn holes(&mut self, root: &Path, patterns: &[&str]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for pattern in patterns {
            let mut paths = vec![root.to_path_buf()];
            for part in pattern.split('/') {
                let mut next = Vec::new();
                for path in &paths {
                    if part != "*" {
                        next.push(path.join(part));
                        continue;
                    }
                    let listing = self.list(path);
                    next.extend(
                        listing.iter().filter(|(_, kind)| *kind == PathType::Dir).map(|(name, _)| path.join(name)),
                    );
                }
                paths = next;
            }
            found.extend(paths.into_iter().filter(|path| is_link(path).is_some()));
        }
        found
    }

    /// Returns names directly in an unknown directory that are sensitive anywhere, such as `.env`.
    pub(super) fn secrets_in(&mut self, dir: &Path) -> Vec<PathBuf> {
        let hidden = self.list(dir);
        let hidden = hidden.iter().filter(|(name, _)| name.as_bytes().starts_with(b"."));
        hidden.map(|(name, _)| dir.join(name)).filter(|path| sensitive(path, Path::new("/")).is_some()).collect()
    }

    /// Grants `path` except for the holes in it.
    pub(super) fn add_around(&mut self, path: &Path, holes: &[PathBuf], what: &str, cause: &str) {
        if !holes.iter().any(|hole| inside(hole, path)) {
            self.add(path, what, cause);
            return;
        }
        let listing = self.list(path);
        if listing.is_empty() {
            self.skip(path, &format!("{what}: holds credentials among too many files"));
        }
        for (name, _) in listing.iter() {
            let child = path.join(name);
            if holes.contains(&child) {
                self.skip(&child, &format!("{what}: may hold credentials"));
            } else {
                self.add_around(&child, holes, what, cause);
            }
        }
    }
}
