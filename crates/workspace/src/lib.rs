//! Copy-on-write trees with review: layers over a base directory, the changes in them, and landings of chosen changes,
//! after which a crash leaves the base in its old or its new state.
//!
//! On disk a layer is a directory `layers/ID` that holds `up` (the changes) and `work` (for overlayfs). Both are
//! created and owned by the caller, whatever the guest's user id. `up` follows overlayfs with `userxattr`: a character
//! device 0:0 is a whiteout, `user.overlay.opaque` = "y" on a directory hides its contents in lower layers.
//!
//! Never here: mounts, records, terminals, processes of guests. Every file is reached from a `Dir`, never by joining
//! path strings; no symbolic link of a tree is followed, ever.

mod alias;
pub mod anchor;
pub mod archive;
pub mod attributes;
pub mod bring;
pub mod change_count;
mod class;
pub mod copy;
pub mod descent;
pub mod diff;
pub mod dir;
pub mod disk_usage;
pub mod driver;
mod entry;
pub mod exclude;
pub mod files;
mod flags;
pub mod git;
pub mod goal;
pub mod home;
pub mod hunks;
mod ignore;
pub mod item;
pub mod known;
pub mod land;
pub mod layer;
mod lines;
mod lookalike;
pub mod manifest;
pub mod merge;
pub mod origin;
pub mod patch;
pub mod place;
pub mod plan;
pub mod rebase;
#[cfg(test)]
mod rebase_test;
pub mod reject;
pub mod remove;
mod rename;
mod runs;
#[cfg(test)]
mod runs_test;
mod scan;
pub mod select;
pub mod sight;
pub mod stage;
mod sweep;
#[cfg(test)]
mod testing;
pub mod text;
pub mod top;
mod trouble;
mod twin;
pub mod undo;
mod unknown;
mod view;
pub mod walk;
mod way;

pub use anchor::{Anchors, BaseStat};
pub use attributes::Marks;
pub use dir::Dir;
pub use layer::{HomePart, Layer, Layers, Lock, Stack};
pub use view::Found;
