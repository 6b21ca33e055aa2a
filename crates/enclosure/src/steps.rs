//! From a plan to the ordered list of setup steps. Decides everything here, so that whoever walks it only walks. Order: the
//! frame (ids, new root, devices), the first process's first steps, private places, grants, covers, seal, rules of
//! landlock; then what only the first process can do for itself: doors, limits, seccomp, landlock. The places can be
//! made by somebody else meanwhile.

mod asked;
mod covers;
mod frame;
mod grants;
mod network;
mod own;
mod programs;
mod workspace;

use self::frame::FRAME_DIRS;
pub use self::frame::{early, frame};
pub(crate) use self::grants::is_system;
use crate::ground::Groundwork;
use crate::guest::Guest;
use crate::launch::Request;
use crate::repository;
use crate::shift::Wanted;
use policy::{Grant, Kind, Perm, Perms, private_place};
use std::collections::BTreeSet;
use std::ffi::{CStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use sys::op::{Attr, Op, Place};
use sys::seccomp::Watch;
use sys::{arena, landlock};
use terms::Fault;

/// The finished list, with the handles its steps name.
pub struct Steps {
    pub ops: Vec<Op>,
    /// Where those begin that only the first process itself can walk.
    pub own: usize,
    /// Kept open until the guest's first process has it.
    _ruleset: OwnedFd,
    /// Mounts to prepare for the guest while it sets itself up, in the order of its `Attach` steps.
    pub mounts: Vec<Wanted>,
    pub watch: Watch,
    pub guest: Guest,
    /// Directories in the private /tmp that lead to something of the host, as those outside it do: see `Builder::skeleton`.
    pub skeleton: Vec<PathBuf>,
    /// The layer that takes changes, by its path on the host, where there is one.
    pub top_layer: Option<PathBuf>,
}

impl Steps {
    /// A list made elsewhere, with the ruleset its steps name.
    pub fn of(ops: Vec<Op>, ruleset: OwnedFd, watch: Watch, guest: Guest) -> Steps {
        let (mounts, skeleton) = (Vec::new(), Vec::new());
        Steps { ops, own: 0, _ruleset: ruleset, mounts, watch, guest, skeleton, top_layer: None }
    }
}

/// Names in the new root that exist only during setup.
const OLD: &str = "/.old";
/// Covers the former root's /proc, which nothing needs by then, and goes away with it.
const SCRATCH: &str = "/.old/proc";
const MADE: &str = "/.made";
/// Like the scratch space.
const LAYERS: &str = "/.old/sys";

const VAR_TMP: &str = "/var/tmp";
/// Where /var/tmp is in the scratch space, if it is a directory.
const VAR_TMP_SOURCE: &str = "/var-tmp";

const QUIET: Attr = Attr::NO_SUID.with(Attr::NO_DEV);

struct Builder<'a> {
    request: &'a Request,
    guest: Guest,
    ops: Vec<Op>,
    /// Steps that only the first process itself can walk.
    own: Vec<Op>,
    ruleset: OwnedFd,
    /// Directories that stand already. Sets of names as they are spelled: comparing paths part by part is dear.
    dirs: BTreeSet<OsString>,
    /// Directories that mounts brought; what is below is theirs.
    mounted: BTreeSet<OsString>,
    /// Bound onto themselves so that they cannot be renamed.
    pinned: BTreeSet<OsString>,
    mounts: Vec<Wanted>,
    /// Files of ours that stand in the root itself.
    shown: Vec<PathBuf>,
    /// There is a place for layers.
    layers: bool,
    /// Where the whole workspace can be bound from, once it stands.
    whole: Option<Vec<u8>>,
    /// Names that are struck out already.
    struck: BTreeSet<OsString>,
    /// A directory of made files that the guest may read.
    settings: Option<PathBuf>,
    /// /var/tmp is a directory of the guest's own, and no link to /tmp.
    has_var_tmp: bool,
    /// Directories right below a private one that lead to grants, sockets or the working directory. They belong to the host's tree, so
    /// the guest cannot change them: what it left there would be lost without a word.
    skeleton: BTreeSet<PathBuf>,
    top_layer: Option<PathBuf>,
}

pub fn build(request: &Request, ground: &mut Groundwork) -> Result<Steps, Fault> {
    let mut b = Builder {
        request,
        guest: ground.guest,
        ops: ground.ops()?,
        own: Vec::with_capacity(32),
        ruleset: ground.ruleset()?,
        dirs: FRAME_DIRS.map(OsString::from).into(),
        mounted: ["/proc"].map(OsString::from).into(),
        pinned: BTreeSet::new(),
        mounts: Vec::new(),
        shown: Vec::new(),
        layers: false,
        whole: None,
        struck: BTreeSet::new(),
        settings: None,
        has_var_tmp: has_var_tmp(request),
        skeleton: skeleton(request),
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
    Ok(Steps { ops: b.ops, own, _ruleset: b.ruleset, mounts, watch, guest, skeleton, top_layer })
}

impl Builder<'_> {
    fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn scratch(&mut self) {
        let options = crate::limits::scratch_options(&self.request.limits, self.expected_scratch_entries());
        self.push(Op::Tmpfs { at: cstring(SCRATCH), options: cstring(options), attr: QUIET });
        for (name, at) in [("/tmp", "/tmp"), ("/shm", "/dev/shm")] {
            self.push(Op::Dir { at: path(&[SCRATCH, name]), mode: 0o1777 });
            self.dir(Path::new(at));
            let attr = self.scratch_attr();
            self.push(Op::BindKnown { from: path(&[SCRATCH, name]), at: cstring(at), attr });
        }
        self.dir(Path::new("/var"));
        match self.has_var_tmp {
            true => {
                self.push(Op::Dir { at: path(&[SCRATCH, VAR_TMP_SOURCE]), mode: 0o1777 });
                self.dir(Path::new(VAR_TMP));
                self.bind_var_tmp();
            }
            // One place serves both names.
            false => self.push(Op::Link { at: c"/var/tmp", target: c"/tmp" }),
        }
        self.dir(Path::new("/run"));
    }

    fn scratch_attr(&self) -> Attr {
        if self.lists_programs() { QUIET.with(Attr::NO_EXEC) } else { QUIET }
    }

    /// Once in the guest's own tree, and once more over what a grant of /var shows.
    fn bind_var_tmp(&mut self) {
        let attr = self.scratch_attr();
        self.push(Op::Bind { from: path(&[SCRATCH, VAR_TMP_SOURCE]), at: cstring(VAR_TMP), attr });
    }

    /// Mount points below /tmp are entries of the scratch space, but not the guest's.
    fn expected_scratch_entries(&self) -> u64 {
        let own = points(self.request).filter(|p| private_place(p).is_some());
        3 + own.map(|p| p.components().count() as u64).sum::<u64>()
    }

    fn memory(&mut self) {
        if let Some(text) = crate::limits::memory_file(&self.request.limits) {
            // The first process mounts /proc.
            self.push(Op::AwaitEarly);
            self.made_file("meminfo", text, 0o444, Path::new("/proc/meminfo"));
        }
    }

    fn made_file(&mut self, name: &str, bytes: Vec<u8>, mode: u32, at: &Path) {
        self.made_with(name, bytes, mode, at, if mode & 0o111 == 0 { Attr::NO_EXEC } else { Attr(0) });
    }

    fn made_with(&mut self, name: &str, bytes: Vec<u8>, mode: u32, at: &Path, attr: Attr) {
        let from = path(&[MADE, "/", name]);
        self.push(Op::File { at: from, mode, bytes: arena::list(&bytes) });
        self.push(Op::Bind { from, at: cpath(at), attr: attr.with(QUIET).with(Attr::READ_ONLY) });
        self.push(Op::RemoveFile { at: from });
    }

    /// Makes a directory and those above it, unless a mount brings them.
    fn dir(&mut self, at: &Path) {
        if self.dirs.contains(at.as_os_str()) || self.is_mounted(at) {
            return;
        }
        if let Some(parent) = at.parent() {
            self.dir(parent);
        }
        self.push(Op::Dir { at: cpath(at), mode: 0o755 });
        self.dirs.insert(at.into());
        // A mount of its own, which `seal` makes read-only once all below it stands, and which nobody can move away meanwhile: it is by
        // their paths that services of the host are told from the guest's own.
        if self.skeleton.contains(at) {
            self.pin(at);
        }
    }

    fn mount_point_file(&mut self, at: &Path) {
        if let Some(parent) = at.parent() {
            self.dir(parent);
        }
        self.push(Op::File { at: cpath(at), mode: 0o644, bytes: &[] });
    }

    /// Whether a mount brings `at`. One above a private directory does not bring what is in it.
    fn is_mounted(&self, at: &Path) -> bool {
        let own = private_place(at).filter(|place| *place != Path::new(VAR_TMP) || self.has_var_tmp);
        let reaches = |above: &&Path| own.is_none_or(|place| above.starts_with(place));
        at.ancestors().take_while(reaches).any(|above| self.mounted.contains(above.as_os_str()))
    }

    /// Links that rules led over, and those that join the old places of programs and libraries with /usr: every
    /// program names its loader by one of them, and a name alone gives nothing away.
    fn links(&mut self) {
        let joined = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]
            .into_iter()
            .filter_map(|at| Some(policy::Link { at: at.into(), target: std::fs::read_link(at).ok()? }));
        let links: Vec<_> = self.request.plan.links.iter().cloned().chain(joined).collect();
        for link in &links {
            let taken = self.dirs.contains(link.at.as_os_str()) || self.is_mounted(&link.at);
            if taken || link.at == Path::new("/var/tmp") {
                continue;
            }
            if let Some(parent) = link.at.parent() {
                self.dir(parent);
            }
            self.push(Op::Link { at: cpath(&link.at), target: cpath(&link.target) });
            self.dirs.insert(link.at.clone().into());
        }
    }

    fn account_files(&mut self) {
        let r = self.request;
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
        let cwd = self.request.cwd.clone();
        self.dir(&cwd);
    }

    fn git_settings(&mut self) {
        let request = self.request;
        let made = self.read_only_repository().and_then(|at| repository::settings(&request.home, &at));
        let Some(made) = made.filter(|made| !self.is_mounted(&made.directory)) else { return };
        let named = |path: &Path| !request.policy.fs(path, Perm::ReadFile).matches.is_empty();
        if made.files.iter().any(|(at, _)| named(at)) {
            return;
        }
        self.dir(&made.directory);
        let file =
            |(at, bytes): &(PathBuf, Vec<u8>)| Op::File { at: cpath(at), mode: 0o444, bytes: arena::list(bytes) };
        self.ops.extend(made.files.iter().map(file));
        self.settings = Some(made.directory);
    }

    /// The repository around the current directory, when nothing of it may be changed and its owners are shifted.
    fn read_only_repository(&self) -> Option<PathBuf> {
        let grants = &self.request.plan.grants;
        let around = grants.iter().filter(|g| self.request.cwd.starts_with(&g.path) && !is_system(&g.path));
        let shifts = self.guest.privileged || self.request.workspace.is_some();
        let shown = around.filter(|_| shifts).max_by_key(|g| g.path.as_os_str().len())?;
        let at = repository::around(&self.request.cwd, &shown.path)?;
        // In a workspace it can note what it found, but the next one over the same project has none of that.
        if self.workspace_at(&at).is_some() {
            return Some(at);
        }
        let changes = |g: &Grant| !g.perms.and(Perms::CHANGES).is_empty();
        let apart = |g: &Grant| !g.path.starts_with(&at) && !at.starts_with(&g.path);
        grants.iter().all(|g| !changes(g) || apart(g)).then_some(at)
    }

    fn seal(&mut self) {
        self.push(Op::OpenPlace { at: cstring(SCRATCH), place: Place::Scratch });
        // The first process must be done with what it takes from there.
        self.push(Op::AwaitEarly);
        self.push(Op::RemoveFile { at: path(&[MADE, "/file"]) });
        self.push(Op::RemoveDir { at: path(&[MADE, "/dir"]) });
        self.push(Op::RemoveDir { at: cstring(MADE) });
        self.push(Op::Unmount { at: cstring(OLD) });
        self.push(Op::RemoveDir { at: cstring(OLD) });
        let sealed: Vec<&'static CStr> = self.skeleton.iter().map(|at| cpath(at)).collect();
        for at in [c"/"].into_iter().chain(sealed) {
            self.push(Op::Seal { at, attr: QUIET.with(Attr::READ_ONLY) });
        }
        if self.request.resident {
            return self.open_places();
        }
        if self.request.asks_to_start() {
            self.push(Op::OpenPlace { at: c"/", place: Place::Root });
        }
        if let Some((rows, columns)) = self.request.stdio.terminal_size() {
            self.own.push(Op::OpenTerminal { at: c"/dev/pts/ptmx", rows, columns });
        }
    }
}

/// Handles for those who look into a guest that stays.
impl Builder<'_> {
    fn open_places(&mut self) {
        self.push(Op::OpenPlace { at: c"/", place: Place::Root });
        self.push(Op::OpenPlace { at: c"/tmp", place: Place::Tmp });
        if let Some(workspace) = &self.request.workspace {
            self.push(Op::OpenPlace { at: cpath(&workspace.at), place: Place::Workspace });
        }
    }
}

/// Paths that must stand inside.
fn points(request: &Request) -> impl Iterator<Item = &PathBuf> {
    let plan = &request.plan;
    plan.grants.iter().map(|g| &g.path).chain(plan.sockets.iter().map(|s| &s.path)).chain([&request.cwd])
}

/// Whether /var/tmp must be a directory: something stands below it, a grant of /var would show the host's, or /tmp is the host's.
fn has_var_tmp(request: &Request) -> bool {
    let is_dir = |at: &str| std::fs::symlink_metadata(at).is_ok_and(|found| found.is_dir());
    let shows_var = |g: &Grant| [Path::new("/"), Path::new("/var")].contains(&g.path.as_path());
    let covered = request.plan.grants.iter().any(shows_var) && is_dir("/var") && is_dir(VAR_TMP);
    covered || points(request).any(|point| point.starts_with(VAR_TMP) || point == Path::new("/tmp"))
}

/// See `Builder::skeleton`. What is granted itself, or lies in a private directory that a rule replaces by the host's, needs none.
fn skeleton(request: &Request) -> BTreeSet<PathBuf> {
    let is_granted = |at: &Path| request.plan.grants.iter().any(|g| g.covers(at));
    let top = |point: &PathBuf| {
        let place = private_place(point)?;
        let first = point.strip_prefix(place).ok()?.components().next()?;
        Some(place.join(first)).filter(|top| !is_granted(top))
    };
    let is_socket = |at: &PathBuf| request.plan.sockets.iter().any(|s| s.path == *at);
    points(request).filter_map(top).filter(|at| !is_socket(at)).collect()
}

pub fn of_kind(rights: u64, kind: Kind) -> u64 {
    if kind == Kind::Dir { rights } else { rights & landlock::FILE_RIGHTS }
}

fn cpath(path: &Path) -> &'static CStr {
    arena::text(path.as_os_str().as_bytes())
}

fn cstring(text: impl AsRef<[u8]>) -> &'static CStr {
    arena::text(text)
}

fn path(parts: &[&str]) -> &'static CStr {
    arena::text(parts.concat())
}

fn path_of(parts: &[&[u8]]) -> &'static CStr {
    arena::text(parts.concat())
}
