//! The plan: an effective policy applied to one host. Which paths are bound with which permissions, which parts are
//! covered, which programs start. Still pure: the host is seen through a trait.

use crate::glob::Pattern;
use crate::perms::{Perm, Perms};
use crate::private::PrivateDirs;
use std::path::{Path, PathBuf};

/// File type at a path of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostFileType {
    Dir,
    File,
    Socket,
    /// A pipe, a device.
    Other,
}

/// A path with all symbolic links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPath {
    /// The real path, without symbolic links.
    pub real: PathBuf,
    pub kind: HostFileType,
    /// Symbolic links on the way, each with its real location and its text as stored.
    pub links: Vec<Symlink>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symlink {
    pub at: PathBuf,
    pub target: PathBuf,
}

/// The host as the planner sees it.
pub trait Host {
    /// Resolves `path`; `None` if it does not exist.
    fn look(&self, path: &Path) -> Option<ResolvedPath>;
    /// Lists a directory, unsorted; empty if no guest could list it either. An error means that the contents are
    /// unknown: a denial may have to be found there.
    fn list(&self, dir: &Path) -> Result<Vec<std::ffi::OsString>, String>;
    /// For a path that `look` did not find: where it leads, and why its existence is unknown. `None` if it does not
    /// exist, or is equally inaccessible to a guest.
    fn hidden(&self, _path: &Path) -> Option<(PathBuf, String)> {
        None
    }
    /// Returns the host without the changes of guests, where they can make any: a link that a guest removed still
    /// resolves there.
    fn beneath(&self) -> Option<&dyn Host> {
        None
    }
    /// SHA-256 of a regular file's bytes.
    fn sha256(&self, file: &Path) -> Option<[u8; 32]>;
    /// The ELF interpreter (dynamic loader) that the program at `file` names, if it names one.
    fn loader(&self, file: &Path) -> Option<PathBuf>;
}

/// A path visible inside, with the permissions at and below it. A nested grant adds to its parent's permissions, as in
/// landlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Real path, absolute, no symbolic link in it; the same inside and outside.
    pub path: PathBuf,
    pub kind: HostFileType,
    /// Permissions here, including those of enclosing grants.
    pub perms: Perms,
    /// The rule behind the grant, for messages: `fs.rules[3]`.
    pub rule: String,
    /// Private directories, which end the grant.
    pub private: PrivateDirs,
}

impl Grant {
    /// Returns true if mounts alone can hold the grant: it permits reading, and all changes or none.
    pub fn is_whole(&self) -> bool {
        let changes = self.perms.and(Perms::WRITE);
        let reads = self.perms.and(Perms::READ) == Perms::READ;
        self.kind != HostFileType::Dir || (reads && (changes.is_empty() || changes == Perms::WRITE))
    }

    /// Returns true if the grant makes `path` visible. A grant from above a private directory shows nothing inside it.
    pub fn covers(&self, path: &Path) -> bool {
        self.private.reaches(&self.path, path)
    }
}

/// The way in which a denial inside a grant is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cover {
    /// Hidden completely.
    Hide,
    /// Bound again read-only.
    ReadOnly,
    /// Bound again without execution.
    NoExec,
    /// Bound again read-only and without execution.
    ReadOnlyNoExec,
}

/// A denial of an existing path inside a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    pub path: PathBuf,
    pub kind: HostFileType,
    pub cover: Cover,
    pub rule: String,
}

/// A denial of a path that does not exist yet, inside a grant that permits creating files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The rule's pattern after expansion; may contain wildcards.
    pub pattern: String,
    pub rule: String,
    /// Reading is denied, too.
    pub hides: bool,
    /// Execution is denied.
    pub bars: bool,
}

impl Guard {
    /// Returns true if the guard denies making `path`, absolute and real.
    pub fn covers(&self, path: &Path) -> bool {
        Pattern::parse(&self.pattern).is_some_and(|pattern| pattern.covers(path))
    }
}

/// A program that an exec rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub kind: HostFileType,
    /// Required digest of the bytes that run; they were read when the plan was made.
    pub sha256: Option<[u8; 32]>,
    pub rule: String,
    /// A person is asked before it, or a program below it, starts. Until then it cannot be executed.
    pub asked: bool,
}

/// The files that the kernel will execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecPlan {
    /// Every file for which a grant permits execution, except the programs listed; among them those that are asked
    /// about.
    AllowBut(Vec<Program>),
    /// Only these programs, and the dynamic loaders that they name.
    Only { programs: Vec<Program>, loaders: Vec<PathBuf> },
}

impl ExecPlan {
    pub fn programs(&self) -> &[Program] {
        match self {
            ExecPlan::AllowBut(programs) | ExecPlan::Only { programs, .. } => programs,
        }
    }

    /// Returns the programs that a person is asked about; at most `MOST_ASKED_PROGRAMS`.
    pub fn asked(&self) -> impl Iterator<Item = &Program> {
        self.programs().iter().filter(|program| program.asked)
    }
}

/// Bound on paths of one plan that a person can be asked about; each takes descriptors.
pub const MOST_ASKED: usize = 16;
/// Bound on programs that a person can be asked about, and directories of such.
pub const MOST_ASKED_PROGRAMS: usize = 32;

/// A socket of the host that is visible in the guest, which may connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSocket {
    /// Real path, as in a grant.
    pub path: PathBuf,
    pub rule: String,
}

/// A path of the host for which a person is asked before a file in it is opened. The guest itself cannot reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedPlace {
    /// Real path of a directory or a file.
    pub path: PathBuf,
    pub kind: HostFileType,
    pub rule: String,
    /// Reading is asked for.
    pub reads: bool,
    /// Writing, truncating or making files is asked for.
    pub changes: bool,
    /// Hidden paths below it.
    pub hidden: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Sorted by path, parents before children, no path twice.
    pub grants: Vec<Grant>,
    pub masks: Vec<Mask>,
    pub guards: Vec<Guard>,
    /// By path, unique; includes sockets that a grant shows.
    pub sockets: Vec<HostSocket>,
    /// By path, unique; at most `MOST_ASKED`.
    pub asked: Vec<AskedPlace>,
    /// Paths inside grants that must not be renamed, because rules about sockets identify them by name.
    pub kept: Vec<PathBuf>,
    /// Symbolic links to make inside, where no grant already shows them.
    pub links: Vec<Symlink>,
    pub exec: ExecPlan,
    /// Private directories: the sandbox's own home is among them if it has one.
    pub private: PrivateDirs,
    /// Notes for `--explain`: rules that have no effect in this run, and why.
    pub notes: Vec<String>,
}

impl Plan {
    /// Returns the covers that a guest could bypass: a directory between the grant and the cover can be renamed,
    /// together with the cover, and the path made anew. The enforcer of the plan has to guard these paths as well.
    pub fn movable_masks(&self) -> impl Iterator<Item = &Mask> {
        self.masks.iter().filter(|mask| {
            let mut above = self.grants.iter().filter(|g| g.covers(&mask.path));
            let outermost = above.clone().next().map(|g| g.path.as_path());
            mask.path.parent() != outermost && above.any(|g| moves(g.perms))
        })
    }
}

/// Returns true if a directory can be renamed or removed, and a new one made in its place.
fn moves(perms: Perms) -> bool {
    perms.contains(Perm::RemoveDir) && perms.contains(Perm::MakeDir)
}
