//! Private directories of every sandbox. A rule about the host reaches into one of them only if it names the directory
//! itself or a path below it; a rule from above (`/`, `/var`, `defaults.fs`) ends there. The workspace is the
//! exception: the caller chose it, so rules from above apply in it even inside a private directory.

use std::path::Path;

/// Private directories: writable inside, empty at first and removed afterwards.
pub const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];

/// Returns the private directory that `path` is, or lies below.
pub fn private_place(path: &Path) -> Option<&'static Path> {
    PRIVATE.iter().map(Path::new).find(|place| path.starts_with(place))
}

/// Returns true if `path` is in no private directory, or in one that contains `at` as well.
pub(crate) fn may_enter(at: &Path, path: &Path) -> bool {
    private_place(path).is_none_or(|place| at.starts_with(place))
}

/// Returns true if a rule for the tree at `at` applies to `path`: it lies in that tree, and no private directory is in
/// between.
pub(crate) fn reaches(at: &Path, path: &Path) -> bool {
    path.starts_with(at) && may_enter(at, path)
}

/// Returns `path` and the directories above it, up to the private directory that contains it.
pub(crate) fn reaching<'p>(path: &'p Path) -> impl Iterator<Item = &'p Path> + use<'p> {
    path.ancestors().filter(move |at| reaches(at, path))
}

/// Returns true if `workspace` lies in a private directory, and is not one itself.
pub(crate) fn is_in_private_dir(workspace: &Path) -> bool {
    private_place(workspace).is_some_and(|place| workspace != place)
}
