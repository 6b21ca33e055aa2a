//! Cache of one search, so that each name is looked up once: real paths, owners, directory listings, link targets.

use super::paths::*;
use super::{MAX_NAMES, Search};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

impl Search<'_> {
    pub(super) fn is_system(&self, path: &Path) -> bool {
        let bytes = path.as_os_str().as_bytes();
        let Some(rest) = bytes.strip_prefix(b"/") else {
            return false;
        };
        let first = rest.split(|b| *b == b'/').next().unwrap_or_default();
        let system = match first {
            b"usr" | b"bin" | b"sbin" | b"opt" | b"etc" => true,
            b"lib" | b"lib32" | b"lib64" | b"libx32" => true,
            b"nix" => below(rest, b"nix/store"),
            _ => false,
        };
        system && !self.homes.iter().any(|home| inside(path, home)) && !bytes.windows(4).any(|w| w == b"/../")
    }

    pub(super) fn in_workspace(&self, path: &Path) -> bool {
        self.workspace.as_ref().is_some_and(|workspace| inside(path, workspace))
    }

    /// Returns true if `path` belongs to the workspace, by name or by its symlinks.
    pub(super) fn is_workspace(&mut self, path: &Path) -> bool {
        self.in_workspace(path)
            || (self.workspace.is_some() && self.real(path).is_some_and(|real| self.in_workspace(&real)))
    }

    pub(super) fn exists(&mut self, path: &Path) -> bool {
        self.real(path).is_some()
    }

    /// Returns the real path. One `lstat` per path component and call, since parents are cached.
    pub(super) fn real(&mut self, path: &Path) -> Option<PathBuf> {
        if let Some(known) = self.known.get(path.as_os_str()) {
            return known.clone();
        }
        let real = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.real(parent).and_then(|parent| {
                let full = parent.join(name);
                match is_link(&full)? {
                    true => fs::canonicalize(full).ok(),
                    false => Some(full),
                }
            }),
            _ => Some(PathBuf::from("/")),
        };
        self.known.insert(path.as_os_str().to_os_string(), real.clone());
        real
    }

    /// Lists a directory, sorted; empty if it cannot be read or holds too many names.
    pub(super) fn list(&mut self, dir: &Path) -> Rc<Listing> {
        if let Some(listing) = self.listings.get(dir.as_os_str()) {
            return listing.clone();
        }
        let mut names = list_up_to(dir, MAX_NAMES + 1);
        if names.len() > MAX_NAMES {
            names.clear();
        }
        let listing = Rc::new(names);
        self.listings.insert(dir.as_os_str().to_os_string(), listing.clone());
        listing
    }

    /// Returns the target of a symlink, as an absolute path without `..`.
    pub(super) fn link_target(&mut self, link: &Path) -> Option<PathBuf> {
        let target = fs::read_link(link).ok()?;
        self.absolute(link, &target)
    }

    pub(super) fn absolute(&mut self, link: &Path, target: &Path) -> Option<PathBuf> {
        if is_plain(target) {
            return Some(target.to_path_buf());
        }
        let mut path = match target.is_absolute() {
            true => PathBuf::from("/"),
            false => self.real(link.parent()?)?,
        };
        let mut named = false;
        for part in target.components() {
            match part {
                Component::Normal(name) => {
                    path.push(name);
                    named = true;
                }
                // `..` after a name may leave through a symlink, so the kernel resolves it.
                Component::ParentDir if named => return fs::canonicalize(link).ok(),
                Component::ParentDir => {
                    path.pop();
                }
                _ => {}
            }
        }
        plain(&path)
    }
}
