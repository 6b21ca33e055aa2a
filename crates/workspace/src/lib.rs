//! Copy-on-write trees with review: layers over a base directory, what changed in them, and how chosen changes land on
//! the base so that a crash leaves it as it was or as it shall be.
//!
//! On disk a layer is a directory `layers/ID` that holds `up` (what changed) and `work` (the kernel's). Both are made by the caller
//! and belong to the caller, whoever the guest is. Marks in `up` are those of overlayfs with `userxattr`: a character device 0:0
//! strikes a name out, `user.overlay.opaque` = "y" on a directory hides what is below it in lower layers.
//!
//! Never here: mounts, records, terminals, processes of guests. Every file is reached from a `Dir`, never by joining path
//! strings; no symbolic link of a tree is followed, ever.

mod alias;
pub mod anchor;
pub mod archive;
pub mod attributes;
pub mod change;
mod class;
pub mod copy;
pub mod descent;
pub mod diff;
pub mod dir;
pub mod driver;
mod entry;
pub mod exclude;
mod flags;
pub mod git;
pub mod goal;
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
pub mod name;
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
pub mod spelled;
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

pub use anchor::{Anchors, Seen};
pub use attributes::Marks;
pub use change::{
    Body, Change, ChangeKind, Class, Diff, Entry, FileDiff, FileKind, Flag, Hunk, Line, LineKind, Target, Withheld,
};
pub use dir::Dir;
pub use layer::{Driver, Layer, Layers, Lock, Stack};
pub use name::Rel;
pub use view::Found;
