//! From a plan to the ordered list of setup steps. Decides everything here, so that whoever walks it only walks. Order: the
//! frame (ids, new root, devices), the first process's first steps, private places, grants, covers, seal, rules of
//! landlock; then what only the first process can do for itself: doors, limits, seccomp, landlock. The places can be
//! made by somebody else meanwhile.

mod asked;
mod frame;
mod network;
mod own;
mod workspace;

use self::frame::{DEVICES, FRAME_DIRS};
pub use self::frame::{early, frame};
use crate::ground::Groundwork;
use crate::guest::Guest;
use crate::launch::Request;
use crate::repository;
use crate::shift::{Purpose, Wanted};
use policy::{Cover, ExecPlan, Grant, Kind, Mask, Perm, Perms};
use std::collections::BTreeSet;
use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use sys::op::{Attr, Op, Place};
use sys::seccomp::Watch;
use sys::{arena, landlock, spawn};
use terms::{ErrorKind, Fault, Phase};

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
}

impl Steps {
    /// A list made elsewhere, with the ruleset its steps name.
    pub fn of(ops: Vec<Op>, ruleset: OwnedFd, watch: Watch, guest: Guest) -> Steps {
        Steps { ops, own: 0, _ruleset: ruleset, mounts: Vec::new(), watch, guest }
    }
}

/// Names in the new root that exist only during setup.
const OLD: &str = "/.old";
/// Covers the former root's /proc, which nothing needs by then, and goes away with it.
const SCRATCH: &str = "/.old/proc";
const MADE: &str = "/.made";
/// Like the scratch space.
const LAYERS: &str = "/.old/sys";

const QUIET: Attr = Attr::NO_SUID.with(Attr::NO_DEV);

/// Directories that hold programs rather than libraries; covered without execution when exec rules list programs.
const PROGRAM_DIRS: [&str; 7] =
    ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/games", "/bin", "/sbin"];

/// Directories whose owners need no shifting: root's, readable by all.
const SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store"];

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
}

pub fn build(request: &Request, ground: &mut Groundwork) -> Result<Steps, Fault> {
    let mut b = Builder {
        request,
        guest: ground.guest,
        ops: ground.ops()?,
        own: Vec::with_capacity(32),
        ruleset: ground.ruleset()?,
        dirs: FRAME_DIRS.map(OsString::from).into(),
        mounted: ["/proc", "/tmp"].map(OsString::from).into(),
        pinned: BTreeSet::new(),
        mounts: Vec::new(),
        shown: Vec::new(),
        layers: false,
        whole: None,
        struck: BTreeSet::new(),
        settings: None,
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
    Ok(Steps { ops: b.ops, own, _ruleset: b.ruleset, mounts: b.mounts, watch, guest: b.guest })
}

impl Builder<'_> {
    fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn scratch(&mut self) {
        let options = crate::limits::scratch_options(&self.request.limits, self.expected_scratch_entries());
        self.push(Op::Tmpfs { at: cstring(SCRATCH), options: cstring(options), attr: QUIET });
        let no_exec = if self.lists_programs() { Attr::NO_EXEC } else { Attr(0) };
        let mut places = vec![("/tmp", "/tmp"), ("/shm", "/dev/shm")];
        // A project below /var/tmp needs a real directory there; otherwise one place serves both names.
        let apart = self.points().any(|p| p.starts_with("/var/tmp"));
        if apart {
            places.push(("/var-tmp", "/var/tmp"));
        }
        for (name, at) in places {
            self.push(Op::Dir { at: path(&[SCRATCH, name]), mode: 0o1777 });
            self.dir(Path::new(at));
            self.push(Op::BindKnown { from: path(&[SCRATCH, name]), at: cstring(at), attr: QUIET.with(no_exec) });
        }
        self.dir(Path::new("/var"));
        if !apart {
            self.push(Op::Link { at: c"/var/tmp", target: c"/tmp" });
        }
        self.dir(Path::new("/run"));
    }

    /// Paths that must stand inside.
    fn points(&self) -> impl Iterator<Item = &PathBuf> {
        self.mount_points().chain([&self.request.cwd])
    }

    fn mount_points(&self) -> impl Iterator<Item = &PathBuf> {
        let plan = &self.request.plan;
        plan.grants.iter().map(|g| &g.path).chain(plan.sockets.iter().map(|s| &s.path))
    }

    /// Mount points below /tmp are entries of the scratch space, but not the guest's.
    fn expected_scratch_entries(&self) -> u64 {
        let below = |p: &Path| p.starts_with("/tmp") || p.starts_with("/var/tmp");
        3 + self.points().filter(|p| below(p)).map(|p| p.components().count() as u64).sum::<u64>()
    }

    fn memory(&mut self) {
        if let Some(text) = crate::limits::memory_file(&self.request.limits) {
            // The first process mounts /proc.
            self.push(Op::AwaitEarly);
            self.made_file("meminfo", text, 0o444, Path::new("/proc/meminfo"));
        }
    }

    fn made_file(&mut self, name: &str, bytes: Vec<u8>, mode: u32, at: &Path) {
        let from = path(&[MADE, "/", name]);
        self.push(Op::File { at: from, mode, bytes: arena::list(&bytes) });
        let attr = QUIET.with(Attr::READ_ONLY).with(if mode & 0o111 == 0 { Attr::NO_EXEC } else { Attr(0) });
        self.push(Op::Bind { from, at: cpath(at), attr });
        self.push(Op::RemoveFile { at: from });
    }

    fn hide(&mut self, at: &Path, kind: Kind) {
        let from = if kind == Kind::Dir { "/dir" } else { "/file" };
        let attr = QUIET.with(Attr::READ_ONLY).with(Attr::NO_EXEC);
        self.push(Op::Bind { from: path(&[MADE, from]), at: cpath(at), attr });
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
        if self.leads_to_mount_in_scratch(at) {
            self.pin(at);
        }
    }

    /// Directories of the guest's own can be moved, with what is mounted below them; but it is by their paths that we
    /// tell services of the host from the guest's own.
    fn leads_to_mount_in_scratch(&self, at: &Path) -> bool {
        let below = |top: &str| at.starts_with(top) && at != Path::new(top);
        let leads = |point: &PathBuf| point.starts_with(at) && point != at;
        (below("/tmp") || below("/var/tmp")) && self.mount_points().any(leads)
    }

    fn is_mounted(&self, at: &Path) -> bool {
        at.ancestors().any(|a| a.as_os_str() != "/tmp" && self.mounted.contains(a.as_os_str()))
    }

    fn grants(&mut self) -> Result<(), Fault> {
        let grants = self.with_workspace(self.request.plan.grants.iter().flat_map(top_level).collect());
        for grant in &grants {
            match self.workspace_at(&grant.path) {
                Some(_) => self.grant_in_workspace(grant, &grants)?,
                None => self.grant(grant)?,
            }
        }
        Ok(())
    }

    fn grant(&mut self, grant: &Grant) -> Result<(), Fault> {
        if self.is_own(&grant.path)? {
            return Ok(());
        }
        check_below_tmp(grant)?;
        if !self.is_mounted(&grant.path) {
            match grant.kind {
                Kind::Dir => self.dir(&grant.path),
                _ => self.mount_point_file(&grant.path),
            }
        }
        let attr = self.attr_of(grant);
        if !self.guest.privileged || is_system(&grant.path) {
            let from = path_of(&[OLD.as_bytes(), grant.path.as_os_str().as_bytes()]);
            self.push(Op::Bind { from, at: cpath(&grant.path), attr });
        } else {
            self.shifted(&grant.path, &grant.path, attr, &grant.rule, Purpose::Shown);
        }
        self.mounted.insert(grant.path.clone().into());
        Ok(())
    }

    /// A socket without its directory, unless a grant shows it: to be seen, and with no right to it. Connections to it are
    /// made from outside.
    fn sockets(&mut self) -> Result<(), Fault> {
        let request = self.request;
        for socket in &request.plan.sockets {
            let (path, rule) = (socket.path.clone(), socket.rule.clone());
            if self.is_own(&path)? {
                let message = format!("{rule}: {} is in a place that a guest has of its own", path.display());
                let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
                return Err(fault.hint("let the service listen elsewhere"));
            }
            if !self.is_mounted(&path) {
                self.grant(&Grant { path, kind: Kind::Socket, perms: Perms::NONE, rule })?;
            }
        }
        Ok(())
    }

    /// Places that every guest has of its own; a rule about them has nothing to add.
    fn is_own(&self, path: &Path) -> Result<bool, Fault> {
        let own = |dir: &str| path.starts_with(dir);
        if path == Path::new("/dev") || path == Path::new("/proc") {
            let message = format!("{}: a guest has one of its own; name the device or file it needs", path.display());
            return Err(Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning));
        }
        let device = DEVICES.iter().any(|name| path == Path::new("/dev").join(name));
        Ok(device || own("/proc") || own("/dev/pts") || own("/dev/shm") || own("/dev/mqueue"))
    }

    fn mount_point_file(&mut self, at: &Path) {
        if let Some(parent) = at.parent() {
            self.dir(parent);
        }
        self.push(Op::File { at: cpath(at), mode: 0o644, bytes: &[] });
    }

    fn attr_of(&self, grant: &Grant) -> Attr {
        let mut attr = Attr::NO_SUID;
        let device = grant.kind == Kind::Other
            && std::fs::symlink_metadata(&grant.path)
                .is_ok_and(|m| m.file_type().is_char_device() || m.file_type().is_block_device());
        if !device {
            attr = attr.with(Attr::NO_DEV);
        }
        let writes = !grant.perms.and(Perms::CHANGES).is_empty();
        if !writes {
            attr = attr.with(Attr::READ_ONLY);
        }
        let runs = match &self.request.plan.exec {
            ExecPlan::AllowBut(_) => grant.perms.contains(Perm::Execute),
            // Libraries must be mapped; anything else that can be mapped could be started by way of the loader.
            ExecPlan::Only { .. } => !writes && self.holds_libraries(&grant.path),
        };
        if !runs {
            attr = attr.with(Attr::NO_EXEC);
        }
        attr
    }

    fn holds_libraries(&self, path: &Path) -> bool {
        let places = ["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];
        places.iter().any(|p| path.starts_with(p)) || self.request.toolchains.iter().any(|t| path.starts_with(t))
    }

    /// A mount of `path` on which the files of its owner belong to the guest's user.
    fn shifted(&mut self, path: &Path, at: &Path, attr: Attr, rule: &str, purpose: Purpose) {
        let slot = self.mounts.len() % spawn::MOST_HANDLES;
        if slot == 0 {
            self.push(Op::ReceiveMounts);
        }
        self.mounts.push(Wanted { path: path.to_path_buf(), attr, rule: rule.to_string(), purpose });
        self.push(Op::Attach { slot, at: cpath(at) });
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

    fn covers(&mut self) {
        for mask in &self.request.plan.masks {
            self.pin_above(&mask.path);
            self.cover(mask);
        }
        for kept in &self.request.plan.kept {
            self.pin_above(kept);
            self.pin(kept);
        }
        for guard in &self.request.plan.guards {
            if self.workspace_at(Path::new(&guard.pattern)).is_none() {
                self.hide_future(&guard.pattern);
            }
        }
        self.dir(&self.request.home.clone());
    }

    /// A denied name that nobody has used yet: the directory it would appear in is shown through a layer on top in
    /// which that name is struck out. Only where the guest cannot make things itself; that case is refused before.
    fn hide_future(&mut self, pattern: &str) {
        let denied = Path::new(pattern);
        let plain = |p: &Path| !p.as_os_str().as_bytes().iter().any(|b| b":,\\*?[".contains(b));
        let Some(dir) = denied.ancestors().skip(1).find(|a| a.is_dir()) else { return };
        let Some(name) = denied.strip_prefix(dir).ok().and_then(|rest| rest.iter().next()) else { return };
        if !plain(denied) || !self.is_mounted(dir) {
            return;
        }
        let layer = self.new_layer();
        self.push(Op::StrikeOut { at: path_of(&[layer.as_bytes(), b"/", name.as_bytes()]) });
        self.overlay(&layer, dir);
    }

    fn overlay(&mut self, layer: &str, dir: &Path) {
        let options = path_of(&[b"userxattr,lowerdir=", layer.as_bytes(), b":", dir.as_os_str().as_bytes()]);
        self.push(Op::Overlay { at: cpath(dir), options, attr: QUIET.with(Attr::READ_ONLY) });
    }

    fn cover(&mut self, mask: &Mask) {
        let attr = match mask.cover {
            Cover::Hide => return self.hide(&mask.path, mask.kind),
            Cover::ReadOnly => Attr::READ_ONLY,
            Cover::NoExec => Attr::NO_EXEC,
            Cover::ReadOnlyNoExec => Attr::READ_ONLY.with(Attr::NO_EXEC),
        };
        self.rebind(&mask.path, attr);
    }

    fn rebind(&mut self, at: &Path, attr: Attr) {
        self.push(Op::Bind { from: cpath(at), at: cpath(at), attr: QUIET_KEEP.with(attr) });
    }

    /// A directory that is a mount point cannot be renamed or removed inside. Without this a guest could move the
    /// parent of a covered path away and put another tree in its place.
    fn pin_above(&mut self, covered: &Path) {
        let writable = |p: &&Path| {
            self.request
                .plan
                .grants
                .iter()
                .any(|g| p.starts_with(&g.path) && *p != g.path && !g.perms.and(Perms::CHANGES).is_empty())
        };
        let mut above: Vec<PathBuf> = covered.ancestors().skip(1).take_while(writable).map(Path::to_path_buf).collect();
        above.reverse();
        above.iter().for_each(|dir| self.pin(dir));
    }

    fn pin(&mut self, at: &Path) {
        if self.pinned.insert(at.into()) && !self.mounted.contains(at.as_os_str()) {
            self.rebind(at, Attr(0));
        }
    }

    fn lists_programs(&self) -> bool {
        matches!(self.request.plan.exec, ExecPlan::Only { .. })
    }

    fn programs(&mut self) -> Result<(), Fault> {
        match &self.request.plan.exec {
            ExecPlan::AllowBut(denied) => {
                for program in denied {
                    if self.is_mounted(&program.path) {
                        self.pin_above(&program.path);
                        self.rebind(&program.path, Attr::NO_EXEC);
                    }
                }
                Ok(())
            }
            ExecPlan::Only { programs, .. } => {
                for dir in PROGRAM_DIRS {
                    let real = std::fs::canonicalize(dir).unwrap_or_else(|_| PathBuf::from(dir));
                    if real == Path::new(dir) && self.is_mounted(&real) {
                        self.rebind(&real, Attr::NO_EXEC);
                    }
                }
                for program in programs {
                    self.program(program)?;
                }
                Ok(())
            }
        }
    }

    /// Binds a listed program executable. With a digest, its bytes are copied first: what was hashed is what runs.
    fn program(&mut self, program: &policy::Program) -> Result<(), Fault> {
        let writes = |g: &&Grant| program.path.starts_with(&g.path) && !g.perms.and(Perms::CHANGES).is_empty();
        if let (Kind::Dir, Some(grant)) = (program.kind, self.request.plan.grants.iter().find(writes)) {
            let what = program.path.display();
            let message = format!(
                "{}: {what} can be written ({}), and what is writable must not be executable",
                program.rule, grant.rule
            );
            let hint = "name the programs in it one by one, or grant no writing";
            return Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning));
        }
        if !self.is_mounted(&program.path) {
            match program.kind {
                Kind::Dir => self.dir(&program.path),
                _ => self.mount_point_file(&program.path),
            }
        }
        let Some(digest) = program.sha256 else {
            let attr = QUIET.with(Attr::READ_ONLY);
            let of_host = self.workspace_at(&program.path).is_none();
            if self.guest.privileged && of_host && !is_system(&program.path) {
                self.shifted(&program.path, &program.path, attr, &program.rule, Purpose::Shown);
            } else {
                let from = self.source(&program.path);
                self.push(Op::Bind { from, at: cpath(&program.path), attr });
            }
            self.mounted.insert(program.path.clone().into());
            return Ok(());
        };
        let bytes = self.read_verified(&program.path, digest)?;
        let name = format!("program-{}", self.ops.len());
        self.made_file(&name, bytes, 0o555, &program.path);
        self.mounted.insert(program.path.clone().into());
        Ok(())
    }

    fn read_verified(&self, path: &Path, digest: [u8; 32]) -> Result<Vec<u8>, Fault> {
        let opened = match self.workspace_at(path) {
            Some(workspace) => (workspace.open)(path),
            None => File::open(path),
        };
        let refuse = |e: io::Error| Fault::new(ErrorKind::UnsupportedPolicy, format!("{}: {e}", path.display()));
        verified(opened.map_err(refuse)?, path, digest)
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
        self.push(Op::Seal { at: c"/", attr: QUIET.with(Attr::READ_ONLY) });
        if self.request.resident {
            return self.open_places();
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

/// Rebinding keeps what the tree has and only adds.
const QUIET_KEEP: Attr = Attr(0);

/// The private /tmp may be written, and landlock's rights are inherited by what is mounted below. Mounts can take
/// away writing or running as a whole, but not single permissions.
fn check_below_tmp(grant: &Grant) -> Result<(), Fault> {
    let reads = grant.kind != Kind::Dir || grant.perms.and(Perms::READ) == Perms::READ;
    let changes = grant.perms.and(Perms::WRITE);
    let whole = changes.is_empty() || changes == Perms::WRITE || grant.kind != Kind::Dir;
    let private = grant.path.starts_with("/tmp") || grant.path.starts_with("/var/tmp");
    if !private || (reads && whole) {
        return Ok(());
    }
    let message = format!(
        "{}: {} lies below the private /tmp, where permissions cannot be granted singly",
        grant.rule,
        grant.path.display()
    );
    let hint = "grant reading, or reading and all changes; or keep the directory elsewhere";
    Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
}

pub fn of_kind(rights: u64, kind: Kind) -> u64 {
    if kind == Kind::Dir { rights } else { rights & landlock::FILE_RIGHTS }
}

/// A grant of the whole host becomes grants of what is in its root, but for the places the guest has of its own.
fn top_level(grant: &Grant) -> Vec<Grant> {
    const OWN: [&str; 4] = ["proc", "dev", "tmp", "sys"];
    if grant.path != Path::new("/") {
        return vec![grant.clone()];
    }
    let Ok(entries) = std::fs::read_dir("/") else { return Vec::new() };
    let mut grants: Vec<Grant> = entries
        .flatten()
        .filter(|e| !OWN.iter().any(|own| e.file_name() == *own))
        .filter_map(|e| {
            let kind = e.file_type().ok()?;
            let kind = match kind.is_dir() {
                true => Kind::Dir,
                false if kind.is_file() => Kind::File,
                false => return None,
            };
            Some(Grant { path: e.path(), kind, ..grant.clone() })
        })
        .collect();
    grants.sort_by(|a, b| a.path.cmp(&b.path));
    grants
}

fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|dir| path.starts_with(dir))
}

/// The bytes of a program, which must have this digest.
fn verified(mut file: File, path: &Path, digest: [u8; 32]) -> Result<Vec<u8>, Fault> {
    use sha2::Digest;
    const MOST: u64 = 1 << 30;
    let refuse = |why: &str| Fault::new(ErrorKind::UnsupportedPolicy, format!("{}: {why}", path.display()));
    if file.metadata().map_or(0, |m| m.len()) > MOST {
        return Err(refuse("larger than 1 GiB"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| refuse(&e.to_string()))?;
    let found: [u8; 32] = sha2::Sha256::digest(&bytes).into();
    if found != digest {
        let message = format!("{}: changed while the run was being prepared", path.display());
        return Err(Fault::new(ErrorKind::Conflict, message).phase(Phase::Preparation));
    }
    Ok(bytes)
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
