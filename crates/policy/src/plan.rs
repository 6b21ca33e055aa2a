//! Plan: an effective policy met with one host. Which paths are bound with which permissions, what is covered
//! up, which programs start. Still pure: the host is seen through a trait, and nothing here touches it.

use crate::glob::Pattern;
use crate::perms::{Perm, Perms};
use crate::private;
use std::path::{Path, PathBuf};

/// What stands at a path of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Dir,
    File,
    Socket,
    /// A pipe, a device.
    Other,
}

/// A path followed to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The path with no symbolic link left in it.
    pub real: PathBuf,
    pub kind: Kind,
    /// Every symbolic link met on the way, with its own real location and its text as stored.
    pub links: Vec<Link>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub at: PathBuf,
    pub target: PathBuf,
}

/// The host as the planner sees it.
pub trait Host {
    /// Follows `path`; `None` when nothing is there.
    fn look(&self, path: &Path) -> Option<Found>;
    /// Names in a directory, unsorted; none where nobody inside could list it either. An error says why it cannot be known what is
    /// in it: a denial may have to be found there.
    fn list(&self, dir: &Path) -> Result<Vec<std::ffi::OsString>, String>;
    /// Where a path leads at which `look` saw nothing, and why it cannot be known whether something is there. Nothing to say of what is
    /// not there, or is as shut to whoever is inside.
    fn hidden(&self, _path: &Path) -> Option<(PathBuf, String)> {
        None
    }
    /// The same host without what guests have changed of it, where they can: a link that one removed leads on there.
    fn beneath(&self) -> Option<&dyn Host> {
        None
    }
    /// SHA-256 of a regular file's bytes.
    fn sha256(&self, file: &Path) -> Option<[u8; 32]>;
    /// The ELF interpreter (dynamic loader) that the program at `file` names, if it names one.
    fn loader(&self, file: &Path) -> Option<PathBuf>;
}

/// A path that is there inside, with what may be done at and below it.
/// A nested grant adds to its parent's permissions, as landlock does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Real path, absolute, no symbolic link in it; the same inside and outside.
    pub path: PathBuf,
    pub kind: Kind,
    /// What is allowed here, those of enclosing grants included.
    pub perms: Perms,
    /// The rule that brought it, for messages: `fs.rules[3]`.
    pub rule: String,
}

impl Grant {
    /// Whether the grant shows `path`. A grant from above a private directory shows nothing that lies in it.
    pub fn covers(&self, path: &Path) -> bool {
        private::reaches(&self.path, path)
    }
}

/// How a denial inside a grant is made to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cover {
    /// Nothing of it can be seen.
    Hide,
    /// Bound again read-only.
    ReadOnly,
    /// Bound again without execution.
    NoExec,
    /// Both of the above.
    ReadOnlyNoExec,
}

/// A denial of something that exists inside a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    pub path: PathBuf,
    pub kind: Kind,
    pub cover: Cover,
    pub rule: String,
}

/// A denial of something that does not exist yet, inside a grant that allows making things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// As in the rule, after expansion; may hold wildcards.
    pub pattern: String,
    pub rule: String,
    /// Not even reading is left of it.
    pub hides: bool,
    /// It must not be executed.
    pub bars: bool,
}

impl Guard {
    /// Whether making `path`, absolute and real, is what this guard is against.
    pub fn covers(&self, path: &Path) -> bool {
        Pattern::parse(&self.pattern).is_some_and(|pattern| pattern.covers(path))
    }
}

/// A program that an exec rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub kind: Kind,
    /// When set, the bytes that run must have this digest; they were read when the plan was made.
    pub sha256: Option<[u8; 32]>,
    pub rule: String,
    /// A person is asked before it, or anything below it, starts. Until then it cannot be executed.
    pub asked: bool,
}

/// Which files the kernel will execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecPlan {
    /// Anything that a grant lets be executed, but for the programs named here; those that are asked about come to it.
    AllowBut(Vec<Program>),
    /// Only these, and the dynamic loaders they name.
    Only { programs: Vec<Program>, loaders: Vec<PathBuf> },
}

impl ExecPlan {
    pub fn programs(&self) -> &[Program] {
        match self {
            ExecPlan::AllowBut(programs) | ExecPlan::Only { programs, .. } => programs,
        }
    }

    /// What a person is asked about before it starts; at most `MOST_ASKED_PROGRAMS`.
    pub fn asked(&self) -> impl Iterator<Item = &Program> {
        self.programs().iter().filter(|program| program.asked)
    }
}

/// As many places as one plan lets a person be asked about; each takes handles.
pub const MOST_ASKED: usize = 16;
/// The same of programs, and directories of such.
pub const MOST_ASKED_PROGRAMS: usize = 32;

/// A socket of the host that the guest may connect to, and so sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Real, as that of a grant.
    pub path: PathBuf,
    pub rule: String,
}

/// A place of the host of which a person is asked before anything in it is opened. The guest has no way there of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedPlace {
    /// Real, as that of a grant; a directory or a file.
    pub path: PathBuf,
    pub kind: Kind,
    pub rule: String,
    /// Reading is asked about.
    pub reads: bool,
    /// Writing, truncating or making files is.
    pub changes: bool,
    /// What must not even be seen below it.
    pub hidden: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Sorted by path, parents before children, no path twice.
    pub grants: Vec<Grant>,
    pub masks: Vec<Mask>,
    pub guards: Vec<Guard>,
    /// By path, none twice. Those that a grant shows are among them.
    pub sockets: Vec<Socket>,
    /// By path, none twice; at most `MOST_ASKED`.
    pub asked: Vec<AskedPlace>,
    /// Places inside grants that must keep their names, because rules about sockets tell them by it.
    pub kept: Vec<PathBuf>,
    /// Symbolic links to make inside, where no grant already shows them.
    pub links: Vec<Link>,
    pub exec: ExecPlan,
    /// What a reader of `--explain` should know: rules that have no effect in this run, and why.
    pub notes: Vec<String>,
}

impl Plan {
    /// Covers that a guest could step around: a directory between the grant and the cover can be moved away, cover and
    /// all, and the path be made anew. Whoever enforces the plan has to guard these paths as well.
    pub fn movable_masks(&self) -> impl Iterator<Item = &Mask> {
        self.masks.iter().filter(|mask| {
            let mut above = self.grants.iter().filter(|g| g.covers(&mask.path));
            let outermost = above.clone().next().map(|g| g.path.as_path());
            mask.path.parent() != outermost && above.any(|g| moves(g.perms))
        })
    }
}

/// Whether a directory can be moved or removed, and a new one made in its place.
fn moves(perms: Perms) -> bool {
    perms.contains(Perm::RemoveDir) && perms.contains(Perm::MakeDir)
}
