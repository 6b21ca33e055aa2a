//! Builds the ordered list of setup steps from a plan. All decisions are made here, so that the processes that carry
//! the steps out make none. Order: the frame (ids, new root, devices), the first process's early steps, private
//! directories, grants, covers, seal, landlock rules; then the steps that only the first process can do for itself:
//! doors, limits, seccomp, landlock. The mounts can be made by the helper meanwhile.

mod asked;
mod covers;
mod frame;
mod grants;
mod home;
mod landlock_only;
mod network;
mod own;
mod programs;
mod workspace;

use self::frame::FRAME_DIRS;
pub use self::frame::{early, frame};
pub use self::home::{Point, home_points, is_below};
use crate::driver::Driver;
use crate::guest::Guest;
use crate::idmap::{IdMapped, is_system};
use crate::repository;
use crate::spec::GuestSpec;
use crate::workspace::OwnHome;
use policy::{Grant, HostFileType, Perm, Perms, private_place};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use sys::arena::{Arena, ArenaRef, Text};
use sys::landlock;
use sys::op::{Attr, InsideDir, Op};
use sys::seccomp::NotifyOptions;
use terms::Fault;

/// The finished list, with the handles that its steps refer to.
pub struct Steps {
    pub ops: Vec<Op>,
    /// Index of the first step that only the first process itself can do.
    pub own: usize,
    /// Kept open until the guest's first process has inherited it.
    _ruleset: OwnedFd,
    /// Mounts to prepare for the guest while it sets itself up, in the order of its `Attach` steps.
    pub mounts: Vec<IdMapped>,
    pub watch: NotifyOptions,
    pub guest: Guest,
    /// Directories in the private /tmp that lead to paths of the host: see `Builder::skeleton`.
    pub skeleton: Vec<PathBuf>,
    /// Host path of the layer that takes changes, where there is one.
    pub top_layer: Option<PathBuf>,
    /// The sandbox's own home, where it has one.
    pub home: Option<PathBuf>,
}

/// Old root (pivot_root), present only during setup.
const OLD: &str = "/.old";
/// Scratch tmpfs, mounted over the old root's /proc, which no step needs by then, and unmounted with it.
const SCRATCH: &str = "/.old/proc";
const MADE: &str = "/.made";
/// tmpfs for layers, mounted over the old root's /sys in the same way.
const LAYERS: &str = "/.old/sys";

const VAR_TMP: &str = "/var/tmp";
/// Source of /var/tmp in the scratch tmpfs, if it is a directory.
const VAR_TMP_SOURCE: &str = "/var-tmp";

const QUIET: Attr = Attr::NO_SUID.with(Attr::NO_DEV);

struct Builder<'a> {
    spec: &'a GuestSpec,
    /// Holds the strings of all steps.
    arena: Arena,
    /// Deadline of a plan that is only explained; file contents are then not kept.
    explained_by: Option<Instant>,
    guest: Guest,
    ops: Vec<Op>,
    /// Steps that only the first process itself can do.
    own: Vec<Op>,
    ruleset: OwnedFd,
    /// Directories that exist already. A set of spelled names, because comparing paths component by component is slow.
    dirs: BTreeSet<OsString>,
    /// Directories with a mount; what is below belongs to the mount.
    mounted: BTreeSet<OsString>,
    /// Directories bound onto themselves, so that they cannot be renamed.
    pinned: BTreeSet<OsString>,
    mounts: Vec<IdMapped>,
    /// Generated files in the root itself.
    generated_files: Vec<PathBuf>,
    /// The tmpfs for layers is mounted.
    layers: bool,
    /// Bind source of the whole workspace, once it is mounted.
    workspace_source: Option<Vec<u8>>,
    /// Places of attached layers.
    attached: BTreeMap<OsString, String>,
    /// The sandbox's own home is mounted.
    has_home: bool,
    /// Names that have a whiteout already.
    whiteouts: BTreeSet<OsString>,
    /// Directory of generated files that the guest may read.
    settings: Option<PathBuf>,
    /// /var/tmp is a private directory, not a link to /tmp.
    has_var_tmp: bool,
    /// Directories right below a private one that lead to grants, sockets or the working directory. They are read-only
    /// for the guest, as the host's directories are: files left there would be lost silently.
    skeleton: BTreeSet<PathBuf>,
    top_layer: Option<PathBuf>,
}

/// Inputs of the steps that are the same for every plan.
pub struct StepInputs {
    pub guest: Guest,
    pub arena: Arena,
    /// The frame, and the early steps of the first process.
    pub ops: Vec<Op>,
    pub ruleset: OwnedFd,
    /// See `Groundwork`.
    pub explained_by: Option<Instant>,
}

/// Builds the steps of a spec.
pub fn build(spec: &GuestSpec, basis: StepInputs) -> Result<Steps, Fault> {
    match spec.enforced.driver {
        Driver::Namespaces => in_namespaces(spec, basis),
        Driver::Landlock => landlock_only::build(spec, basis),
    }
}

fn in_namespaces(spec: &GuestSpec, basis: StepInputs) -> Result<Steps, Fault> {
    let mut b = Builder {
        spec,
        arena: basis.arena,
        explained_by: basis.explained_by,
        guest: basis.guest,
        ops: basis.ops,
        own: Vec::with_capacity(32),
        ruleset: basis.ruleset,
        dirs: FRAME_DIRS.map(OsString::from).into(),
        mounted: ["/proc"].map(OsString::from).into(),
        pinned: BTreeSet::new(),
        mounts: Vec::new(),
        generated_files: Vec::new(),
        layers: false,
        workspace_source: None,
        attached: BTreeMap::new(),
        has_home: false,
        whiteouts: BTreeSet::new(),
        settings: None,
        has_var_tmp: has_var_tmp(spec),
        skeleton: skeleton(spec),
        top_layer: None,
    };
    b.doors();
    b.scratch();
    b.grants()?;
    b.sockets()?;
    b.asked()?;
    b.links();
    b.network_files();
    b.account_files();
    b.covers();
    b.programs()?;
    b.working_directory();
    b.git_settings();
    b.memory();
    b.seal();
    b.limits();
    let watch = b.restrict();
    let own = b.ops.len();
    b.ops.append(&mut b.own);
    let skeleton = b.skeleton.into_iter().collect();
    let (mounts, guest, top_layer) = (b.mounts, b.guest, b.top_layer);
    let home = spec.plan.private.home().filter(|_| b.has_home).map(Path::to_path_buf);
    Ok(Steps { ops: b.ops, own, _ruleset: b.ruleset, mounts, watch, guest, skeleton, top_layer, home })
}

impl Builder<'_> {
    fn cpath(&self, path: &Path) -> Text {
        self.arena.text(path.as_os_str().as_bytes())
    }

    fn cstring(&self, text: impl AsRef<[u8]>) -> Text {
        self.arena.text(text)
    }

    fn path(&self, parts: &[&str]) -> Text {
        self.arena.text(parts.concat())
    }

    fn path_of(&self, parts: &[&[u8]]) -> Text {
        self.arena.text(parts.concat())
    }

    fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn scratch(&mut self) {
        let options = crate::limits::scratch_options(&self.spec.limits, self.expected_scratch_entries());
        self.push(Op::Tmpfs { at: self.cstring(SCRATCH), options: self.cstring(options), attr: QUIET });
        for (name, at) in [("/tmp", "/tmp"), ("/shm", "/dev/shm")] {
            self.push(Op::Dir { at: self.path(&[SCRATCH, name]), mode: 0o1777 });
            self.dir(Path::new(at));
            let attr = self.scratch_attr();
            self.push(Op::BindKnown { from: self.path(&[SCRATCH, name]), at: self.cstring(at), attr });
        }
        self.dir(Path::new("/var"));
        match self.has_var_tmp {
            true => {
                self.push(Op::Dir { at: self.path(&[SCRATCH, VAR_TMP_SOURCE]), mode: 0o1777 });
                self.dir(Path::new(VAR_TMP));
                self.bind_var_tmp();
            }
            // One directory serves both names.
            false => self.push(Op::Link { at: c"/var/tmp".into(), target: c"/tmp".into() }),
        }
        self.dir(Path::new("/run"));
    }

    fn scratch_attr(&self) -> Attr {
        if self.lists_programs() { QUIET.with(Attr::NO_EXEC) } else { QUIET }
    }

    /// Binds /var/tmp: once in the guest's own tree, and again over a grant of /var.
    fn bind_var_tmp(&mut self) {
        let attr = self.scratch_attr();
        self.push(Op::Bind { from: self.path(&[SCRATCH, VAR_TMP_SOURCE]), at: self.cstring(VAR_TMP), attr });
    }

    /// Returns the scratch tmpfs's entries that are mount points, and so not the guest's.
    fn expected_scratch_entries(&self) -> u64 {
        let home = match self.spec.own_home {
            OwnHome::Scratch => self.expected_home_entries(),
            OwnHome::Layers { .. } | OwnHome::Tree(_) => 0,
        };
        let place = self.spec.plan.private.home();
        let is_above = |p: &Path| !self.is_in_home(p) || Some(p) == place;
        let own = points(self.spec).filter(|p| private_place(p).is_some() && is_above(p));
        3 + home + own.map(|p| p.components().count() as u64).sum::<u64>()
    }

    fn memory(&mut self) {
        if let Some(text) = crate::limits::memory_file(&self.spec.limits) {
            // /proc is mounted by the first process.
            self.push(Op::AwaitEarly);
            self.made_file("meminfo", text, 0o444, Path::new("/proc/meminfo"));
        }
    }

    fn made_file(&mut self, name: &str, bytes: Vec<u8>, mode: u32, at: &Path) {
        let bytes = self.arena.list(&bytes);
        self.made_with(name, bytes, mode, at, if mode & 0o111 == 0 { Attr::NO_EXEC } else { Attr(0) });
    }

    fn made_with(&mut self, name: &str, bytes: ArenaRef<[u8]>, mode: u32, at: &Path, attr: Attr) {
        let from = self.path(&[MADE, "/", name]);
        self.push(Op::File { at: from.clone(), mode, bytes });
        self.push(Op::Bind { from: from.clone(), at: self.cpath(at), attr: attr.with(QUIET).with(Attr::READ_ONLY) });
        self.push(Op::RemoveFile { at: from });
    }

    /// Creates a directory and its parents, unless a mount has them.
    fn dir(&mut self, at: &Path) {
        if self.dirs.contains(at.as_os_str()) || self.is_mounted(at) || self.is_in_home(at) {
            return;
        }
        if let Some(parent) = at.parent() {
            self.dir(parent);
        }
        self.push(Op::Dir { at: self.cpath(at), mode: 0o755 });
        self.dirs.insert(at.into());
        // A mount of its own, which `seal` makes read-only once everything below exists, and which cannot be renamed
        // meanwhile: services of the host are told from the guest's own sockets by their paths.
        if self.skeleton.contains(at) {
            self.pin(at);
        }
    }

    fn mount_point_file(&mut self, at: &Path) {
        if self.is_in_home(at) {
            return;
        }
        if let Some(parent) = at.parent() {
            self.dir(parent);
        }
        self.push(Op::File { at: self.cpath(at), mode: 0o644, bytes: empty() });
    }

    /// True when a mount has `at`. A mount above a private directory does not have what is in it.
    fn is_mounted(&self, at: &Path) -> bool {
        let own = self.spec.plan.private.place_of(at).filter(|place| *place != Path::new(VAR_TMP) || self.has_var_tmp);
        let reaches = |above: &&Path| own.is_none_or(|place| above.starts_with(place));
        at.ancestors().take_while(reaches).any(|above| self.mounted.contains(above.as_os_str()))
    }

    /// Creates the links that rules were resolved through, and those of merged /usr: every program names its loader by
    /// one of them, and the name alone reveals nothing.
    fn links(&mut self) {
        let joined = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]
            .into_iter()
            .filter_map(|at| Some(policy::Symlink { at: at.into(), target: std::fs::read_link(at).ok()? }));
        let links: Vec<_> = self.spec.plan.links.iter().cloned().chain(joined).collect();
        for link in &links {
            let taken = self.dirs.contains(link.at.as_os_str()) || self.is_mounted(&link.at);
            if taken || self.is_in_home(&link.at) || link.at == Path::new("/var/tmp") {
                continue;
            }
            if let Some(parent) = link.at.parent() {
                self.dir(parent);
            }
            self.push(Op::Link { at: self.cpath(&link.at), target: self.cpath(&link.target) });
            self.dirs.insert(link.at.clone().into());
        }
    }

    fn account_files(&mut self) {
        let r = self.spec;
        let home = r.home.to_string_lossy();
        let Some((passwd, group)) = self.guest.account_files(&r.user, &home, "/bin/sh") else { return };
        for (name, bytes) in [("passwd", passwd), ("group", group)] {
            let at = Path::new("/etc").join(name);
            if self.is_mounted(&at) && at.is_file() {
                self.made_file(name, bytes, 0o444, &at);
            }
        }
    }

    fn working_directory(&mut self) {
        let cwd = self.spec.cwd.clone();
        self.dir(&cwd);
    }

    fn git_settings(&mut self) {
        let Some(made) = self.made_git_settings().filter(|made| !self.is_in_home(&made.directory)) else { return };
        self.dir(&made.directory);
        for (at, bytes) in &made.files {
            self.push(Op::File { at: self.cpath(at), mode: 0o444, bytes: self.arena.list(bytes) });
        }
        self.settings = Some(made.directory);
    }

    /// Returns the generated settings of git, unless the host's are shown.
    fn made_git_settings(&self) -> Option<repository::GitConfigFiles> {
        let spec = self.spec;
        let made = self.read_only_repository().and_then(|at| repository::settings(&spec.home, &at))?;
        let named = |path: &Path| !spec.policy.fs(path, Perm::ReadFile).matches.is_empty();
        let is_shown = self.is_mounted(&made.directory) || made.files.iter().any(|(at, _)| named(at));
        (!is_shown).then_some(made)
    }

    /// Returns the repository around the working directory, when it is read-only and its owners are id-mapped.
    fn read_only_repository(&self) -> Option<PathBuf> {
        let grants = &self.spec.plan.grants;
        let around = grants.iter().filter(|g| self.spec.cwd.starts_with(&g.path) && !is_system(&g.path));
        let shifts = self.guest.privileged || self.spec.workspace.is_some();
        let shown = around.filter(|_| shifts).max_by_key(|g| g.path.as_os_str().len())?;
        let at = repository::around(&self.spec.cwd, &shown.path)?;
        // Git can update its index in a workspace, but the next workspace over the same project starts without that.
        if self.workspace_at(&at).is_some() {
            return Some(at);
        }
        let changes = |g: &Grant| !g.perms.and(Perms::CHANGES).is_empty();
        let apart = |g: &Grant| !g.path.starts_with(&at) && !at.starts_with(&g.path);
        grants.iter().all(|g| !changes(g) || apart(g)).then_some(at)
    }

    fn seal(&mut self) {
        self.push(Op::OpenPlace { at: self.cstring(SCRATCH), place: InsideDir::Scratch });
        // The first process must be done with the files it takes from there.
        self.push(Op::AwaitEarly);
        self.push(Op::RemoveFile { at: self.path(&[MADE, "/file"]) });
        self.push(Op::RemoveDir { at: self.path(&[MADE, "/dir"]) });
        self.push(Op::RemoveDir { at: self.cstring(MADE) });
        self.push(Op::Unmount { at: self.cstring(OLD) });
        self.push(Op::RemoveDir { at: self.cstring(OLD) });
        let sealed: Vec<Text> = self.skeleton.iter().map(|at| self.cpath(at)).collect();
        for at in [Text::from(c"/")].into_iter().chain(sealed) {
            self.push(Op::SetMountAttr { at, attr: QUIET.with(Attr::READ_ONLY) });
        }
        if self.spec.resident {
            return self.open_places();
        }
        if self.spec.asks_to_start() {
            self.push(Op::OpenPlace { at: c"/".into(), place: InsideDir::Root });
        }
        if let Some((rows, columns)) = self.spec.stdio.terminal_size() {
            self.own.push(Op::OpenTerminal { at: c"/dev/pts/ptmx".into(), rows, columns });
        }
    }
}

/// Handles for file access into a resident guest.
impl Builder<'_> {
    fn open_places(&mut self) {
        self.push(Op::OpenPlace { at: c"/".into(), place: InsideDir::Root });
        self.push(Op::OpenPlace { at: c"/tmp".into(), place: InsideDir::Tmp });
        if let Some(workspace) = &self.spec.workspace {
            self.push(Op::OpenPlace { at: self.cpath(&workspace.at), place: InsideDir::Workspace });
        }
    }
}

/// Lists the paths that must exist inside.
fn points(spec: &GuestSpec) -> impl Iterator<Item = &PathBuf> {
    let plan = &spec.plan;
    let home = spec.plan.private.home().is_some().then_some(&spec.home);
    plan.grants.iter().map(|g| &g.path).chain(plan.sockets.iter().map(|s| &s.path)).chain([&spec.cwd]).chain(home)
}

/// True when /var/tmp must be a directory: a path below it is shown, a grant of /var would show the host's, or /tmp is
/// the host's.
fn has_var_tmp(spec: &GuestSpec) -> bool {
    let is_dir = |at: &str| std::fs::symlink_metadata(at).is_ok_and(|found| found.is_dir());
    let shows_var = |g: &Grant| [Path::new("/"), Path::new("/var")].contains(&g.path.as_path());
    let covered = spec.plan.grants.iter().any(shows_var) && is_dir("/var") && is_dir(VAR_TMP);
    covered || points(spec).any(|point| point.starts_with(VAR_TMP) || point == Path::new("/tmp"))
}

/// Computes `Builder::skeleton`. A directory that is granted itself, or is in a private directory that a rule replaces
/// by the host's, needs none.
fn skeleton(spec: &GuestSpec) -> BTreeSet<PathBuf> {
    let is_granted = |at: &Path| spec.plan.grants.iter().any(|g| g.covers(at));
    let top = |point: &PathBuf| {
        // The home is writable, and what is left in it is kept.
        let above_home = if spec.plan.private.is_in_home(point) { spec.plan.private.home()?.parent()? } else { point };
        let (place, point) = (private_place(above_home)?, above_home);
        let first = point.strip_prefix(place).ok()?.components().next()?;
        Some(place.join(first)).filter(|top| !is_granted(top))
    };
    let is_socket = |at: &PathBuf| spec.plan.sockets.iter().any(|s| s.path == *at);
    points(spec).filter_map(top).filter(|at| !is_socket(at)).collect()
}

pub fn of_kind(rights: u64, kind: HostFileType) -> u64 {
    if kind == HostFileType::Dir { rights } else { rights & landlock::FILE_RIGHTS }
}

/// The content of a file that is only a mount point.
fn empty() -> ArenaRef<[u8]> {
    ArenaRef::from(&[][..])
}
