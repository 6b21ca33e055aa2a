//! Private directories of every sandbox. A rule about the host reaches into one of them only if it names the directory
//! itself or a path below it; a rule from above (`/`, `/var`, `defaults.fs`) ends there. The workspace is the
//! exception: the caller chose it, so rules from above apply in it even inside a private directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Private directories of every sandbox: writable inside, empty at first and removed afterwards.
pub const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];

/// Returns the directory of `PRIVATE` that `path` is, or lies below.
pub fn private_place(path: &Path) -> Option<&'static Path> {
    PRIVATE.iter().map(Path::new).find(|place| path.starts_with(place))
}

/// The private directories of one sandbox: those of every sandbox, and its home if it has one of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivateDirs {
    home: Option<Arc<Path>>,
}

impl PrivateDirs {
    pub(crate) fn with_home(home: PathBuf) -> PrivateDirs {
        PrivateDirs { home: Some(home.into()) }
    }

    /// Returns the sandbox's own home, by its real path.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Returns true if `path` is the sandbox's own home, or lies below it.
    pub fn is_in_home(&self, path: &Path) -> bool {
        self.home().is_some_and(|home| path.starts_with(home))
    }

    /// Returns the innermost private directory that `path` is, or lies below.
    pub fn place_of(&self, path: &Path) -> Option<&Path> {
        self.home().filter(|home| path.starts_with(home)).or_else(|| private_place(path))
    }

    /// Returns true if `path` is in no private directory, or in one that contains `at` as well.
    pub(crate) fn may_enter(&self, at: &Path, path: &Path) -> bool {
        self.place_of(path).is_none_or(|place| at.starts_with(place))
    }

    /// Returns true if a rule for the tree at `at` applies to `path`: it lies in that tree, and no private directory is
    /// in between.
    pub(crate) fn reaches(&self, at: &Path, path: &Path) -> bool {
        path.starts_with(at) && self.may_enter(at, path)
    }

    /// Returns `path` and the directories above it, up to the private directory that contains it.
    pub(crate) fn reaching<'p>(&self, path: &'p Path) -> impl Iterator<Item = &'p Path> + use<'_, 'p> {
        path.ancestors().filter(move |at| self.reaches(at, path))
    }

    /// Returns true if `workspace` lies in a private directory, and is not one itself.
    pub(crate) fn hold(&self, workspace: &Path) -> bool {
        self.place_of(workspace).is_some_and(|place| workspace != place)
    }
}
