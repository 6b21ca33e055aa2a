//! The workspace as the enclosure sees it: the base directory and the layers over it. Knows no records, diffs or
//! reviews.

use crate::nameless::UnlinkedFileFinder;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use terms::LimitKind;

/// Layers in one stack: their names must fit in a page of mount options, and each slows down lookups of missing names.
pub const MOST_LAYERS: usize = 120;

/// A directory whose changes go to a layer.
pub struct Workspace {
    /// Path inside: the real path of the directory, or one that tells nothing of the host.
    pub at: PathBuf,
    /// Real path of the directory outside.
    pub base: PathBuf,
    pub over: ChangeStorage,
    /// Opens a file as the guest will see it, whichever layer has it.
    pub open: OpenInside,
}

/// Opens a file by its path inside.
pub type OpenInside = Box<dyn Fn(&Path) -> io::Result<File>>;

/// Storage for the guest's changes.
pub enum ChangeStorage {
    /// Overlay layers, from the bottom up: each directory has `up`, the last also an empty `work`. The guest writes to
    /// the last.
    Layers(Vec<PathBuf>),
    /// A copy that is mounted in place of the directory.
    Tree(PathBuf),
}

/// Storage of a sandbox's own home.
#[derive(Default)]
pub enum OwnHome {
    /// Overlay over parts of layers, from the bottom up: the directory of a layer, and the name of the part in it. Changes
    /// go to `home` of the top, which also has an empty `homework`.
    Layers { lower: Vec<(PathBuf, &'static str)>, top: PathBuf, caches: Vec<Cache> },
    /// A directory in which the mount points of `home_points` exist.
    Tree(PathBuf),
    /// A directory in the private space, gone with the guest.
    #[default]
    Scratch,
}

/// A package cache of the host that is shown read-only below the sandbox's own home, as the base of the sandbox's own
/// additions.
pub struct Cache {
    /// Path of the host's directory, which a grant shows.
    pub at: PathBuf,
    /// Directory in `caches` and `cachework` of the top layer.
    pub name: String,
    /// Frozen layers with additions to it, from the bottom up.
    pub lower: Vec<PathBuf>,
}

impl OwnHome {
    pub fn caches(&self) -> &[Cache] {
        match self {
            OwnHome::Layers { caches, .. } => caches,
            OwnHome::Tree(_) | OwnHome::Scratch => &[],
        }
    }
}

/// Measures the workspace against its limits, polled during the run.
pub trait Gauge {
    /// Returns bytes and entries before the run. A workspace that starts above its limit may shrink, and must not grow.
    fn before(&self) -> (u64, u64);

    /// True when a limit is shared with other workspaces.
    fn shares(&self) -> bool;

    /// Includes unlinked files in the count from now on, found by `files`.
    fn count_nameless(&mut self, files: UnlinkedFileFinder);

    /// Returns the bytes and entries of the guest's changes, unlinked open files included; `None` while a scan is in
    /// progress. Takes a few milliseconds at most.
    fn used(&mut self) -> Option<(u64, u64)>;

    /// Restarts the scan, because one in progress may have passed directories that changed since.
    fn look_anew(&mut self);

    /// Returns bytes in use and permitted of the file system, where it is too full to continue.
    fn overfull(&self) -> Option<(u64, u64)>;

    /// Returns the sum over all workspaces that share a limit, where it exceeds that. Takes as long as `used`.
    fn crowded(&mut self) -> Option<TotalExceeded>;
}

/// Bytes or entries of several workspaces together that exceed their common limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalExceeded {
    /// `TotalDiskMb` or `TotalFiles`.
    pub kind: LimitKind,
    pub used: u64,
    pub most: u64,
}
