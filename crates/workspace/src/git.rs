//! Git support for review: the HEAD commit of a tree, the content of a file in it, and a commit of the changes that
//! landed.
//!
//! The repository is untrusted. References are read and written directly through directory handles (a reftable by
//! git), the config is read as plain data, and objects are written by the real `git` in a git directory of our own: no
//! program named by a repository's config, hooks or attributes is ever run.

mod adopt;
mod ahead;
mod blobs;
mod child;
mod commit;
mod inner;
mod intake;
mod lfs;
mod linked;
mod locate;
mod message;
mod old;
mod paths;
mod refs;
mod reftable;
mod settings;

pub use adopt::Adoption;
pub use commit::{Committed, Plan, Prepared, Staged, prepare};
pub use intake::{Fetched, Intake, check_reference};
pub use linked::{Linked, SEED_MARK, carry_seed, head_inside, head_of_top, is_seeded, top_around};
pub use locate::Repository;
pub use old::{CommitFiles, CommittedFile};
pub use refs::Head;
pub use settings::{GitEnvironment, Identity};

use std::path::Path;

/// HEAD commit of the tree at `base`: 40 or 64 hex digits. None outside a repository, on an unborn branch, and if it
/// cannot be determined. Costs a handful of system calls and no process.
pub fn head(base: &Path) -> Option<String> {
    let repository = Repository::find(base).ok().flatten()?;
    repository.head().ok()?.commit().map(str::to_owned)
}
