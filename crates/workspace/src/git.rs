//! Git, as far as review needs it: which commit a tree stands on, what a file held there, and a commit of what landed.
//!
//! A repository is taken for hostile. Its references are read and written by hand through handles (a reftable by git), its settings are read as
//! plain data, and objects are made by the real `git` in a directory of settings of our own: nothing that a
//! repository's settings, hooks or attributes name is ever run.

mod ahead;
mod blobs;
mod child;
mod commit;
mod inner;
mod lfs;
mod locate;
mod message;
mod old;
mod paths;
mod refs;
mod reftable;
mod settings;

pub use commit::{Author, Committed, Plan, Prepared, Staged, prepare};
pub use inner::Inside;
pub use locate::Repository;
pub use old::{Old, Was};
pub use refs::Head;
pub use settings::{Identity, Surroundings};

use std::path::Path;

/// The commit that the tree at `base` stands on: 40 or 64 hex digits. None outside a repository, on a branch without commits, and
/// where it cannot be told. Costs a handful of calls and no process.
pub fn head(base: &Path) -> Option<String> {
    let repository = Repository::find(base).ok().flatten()?;
    repository.head().ok()?.commit().map(str::to_owned)
}
