//! Directories that every sandbox has of its own. A rule about the host reaches into one of them only if it names the directory itself
//! or something below it; what a rule from above says (`/`, `/var`, `defaults.fs`) ends there. The workspace is the exception: it is
//! the caller's choice, so rules from above hold in it wherever it lies.

use std::path::Path;

/// Writable inside, empty at first and gone afterwards.
pub const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];

/// The private directory that `path` is, or lies below.
pub fn private_place(path: &Path) -> Option<&'static Path> {
    PRIVATE.iter().map(Path::new).find(|place| path.starts_with(place))
}

/// Whether `path` is in no private directory, or in one that `at` is in as well.
pub(crate) fn may_enter(at: &Path, path: &Path) -> bool {
    private_place(path).is_none_or(|place| at.starts_with(place))
}

/// Whether something said about the tree at `at` holds for `path`: it lies in that tree, and no private directory is in between.
pub(crate) fn reaches(at: &Path, path: &Path) -> bool {
    path.starts_with(at) && may_enter(at, path)
}

/// `path` and the directories above it, up to the private directory that holds it.
pub(crate) fn reaching<'p>(path: &'p Path) -> impl Iterator<Item = &'p Path> + use<'p> {
    path.ancestors().filter(move |at| reaches(at, path))
}

/// Whether `workspace` lies in a private directory, and is none itself.
pub(crate) fn is_island(workspace: &Path) -> bool {
    private_place(workspace).is_some_and(|place| workspace != place)
}
