//! Covers: mounts over a part of a grant, and the permissions that each takes away.

use crate::perms::{Perm, Perms};
use crate::plan::{Cover, HostFileType};

pub(crate) const EXECUTE: Perms = Perms::of(&[Perm::Execute]);

/// Returns the permissions that apply to a path of this kind.
pub(crate) fn applicable(perms: Perms, kind: HostFileType) -> Perms {
    match kind {
        HostFileType::Dir => perms,
        HostFileType::File | HostFileType::Socket | HostFileType::Other => perms.and(Perms::FILE),
    }
}

/// Returns the cover that takes exactly `lost` from `here`.
pub(crate) fn cover(here: Perms, lost: Perms) -> Option<Cover> {
    if here == lost {
        return Some(Cover::Hide);
    }
    let changes = here.and(Perms::CHANGES);
    let read_only = changes.and(lost) == changes && !changes.is_empty();
    let no_exec = lost.contains(Perm::Execute);
    let rest = lost.minus(EXECUTE).minus(if read_only { Perms::CHANGES } else { Perms::NONE });
    match (rest.is_empty(), read_only, no_exec) {
        (false, _, _) => None,
        (true, true, true) => Some(Cover::ReadOnlyNoExec),
        (true, true, false) => Some(Cover::ReadOnly),
        (true, false, _) => Some(Cover::NoExec),
    }
}

/// Returns the permissions that a cover takes away.
pub(crate) fn perms_taken(cover: Cover) -> Perms {
    match cover {
        Cover::Hide => Perms::ALL,
        Cover::ReadOnly => Perms::CHANGES,
        Cover::NoExec => EXECUTE,
        Cover::ReadOnlyNoExec => Perms::CHANGES.union(EXECUTE),
    }
}
