//! What a guest changes without the host's noticing: which directory it is, and what lies over it. Says nothing of records,
//! diffs or reviews.

use crate::nameless::Nameless;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use terms::LimitKind;

/// Layers in one stack; their names must fit in a page, and each makes looking for what is missing slower.
pub const MOST_LAYERS: usize = 120;

/// A directory that looks the same inside, and takes every change without being changed.
pub struct Workspace {
    /// The directory: real, and the same inside and outside.
    pub at: PathBuf,
    pub over: Over,
    /// Opens a file of it as the guest will see it, whichever layer that is in.
    pub open: Open,
}

/// Opens a file by its path inside.
pub type Open = Box<dyn Fn(&Path) -> io::Result<File>>;

/// What the guest writes to.
pub enum Over {
    /// Layers over the directory, from the bottom up: each a directory that holds `up`; the last also `work`, empty. The
    /// guest writes to the last.
    Layers(Vec<PathBuf>),
    /// A copy that is shown in its place.
    Tree(PathBuf),
}

/// How much of its allowance the guest's workspace takes. Looked at now and then while it runs.
pub trait Gauge {
    /// Bytes and entries before the run. One that begins with more than its allowance can make it less, and not more.
    fn before(&self) -> (u64, u64);

    /// Whether an allowance is shared with others.
    fn shares(&self) -> bool;

    /// Files without a name count as well from now on; this finds them.
    fn count_nameless(&mut self, files: Nameless);

    /// Bytes and entries in what the guest writes to, with those of files that it only holds open; none while a look around is still under way. Takes a few milliseconds
    /// at most each time.
    fn used(&mut self) -> Option<(u64, u64)>;

    /// The next look begins anew, because one that is under way may have passed by what was made since.
    fn look_anew(&mut self);

    /// How full its file system is, where that is too full to go on: bytes in use, and how many may be.
    fn overfull(&self) -> Option<(u64, u64)>;

    /// What it takes together with others that share an allowance with it, where that is too much. Takes as long as `used`.
    fn crowded(&mut self) -> Option<Crowd>;
}

/// Bytes or entries of several workspaces together, which are more than they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// `TotalDiskMb` or `TotalFiles`.
    pub kind: LimitKind,
    pub used: u64,
    pub most: u64,
}
