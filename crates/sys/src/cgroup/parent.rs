//! Choice of the parent group, in each hierarchy, below which our groups are made.
//!
//! v1: as high as possible without escaping a limit on this process, so that a sandbox never gets more than its
//! supervisor; otherwise the directory that root delegated to us.
//!
//! v2: groups with controllers need a parent that enables these and has no member processes (the kernel's root
//! excepted), and moving a process needs write access to the nearest common ancestor. So the parent is the nearest
//! suitable ancestor of our own group, and never an ancestor of a group with a memory or cpu limit: a sandbox must not
//! get more than its supervisor. Without controllers (hybrid) any writable ancestor will do.
//!
//! Under systemd, that parent may be one of its slices, from which systemd removes controllers whenever it starts a
//! unit: limits would vanish silently. So groups are made one level deeper, in a directory that enables the controllers
//! in turn, because the kernel removes no controller from a group whose child has it enabled.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, process};

use super::dir::Dir;
use super::{DELEGATED, RUNS, SELF_LEAF};

/// Depth to which the tree is searched.
pub const MAX_DEPTH: usize = 32;

/// The reason why a limit is not available, and a fix if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    pub reason: String,
    pub fix: Option<String>,
}

/// A group below which we may make groups.
#[derive(Debug)]
pub struct ParentGroup {
    pub path: PathBuf,
    pub dir: Arc<Dir>,
    /// v2: controllers that groups made here can have.
    usable: Vec<&'static str>,
    /// v2: controllers that are not yet enabled for children, but can be.
    pending: Mutex<Vec<&'static str>>,
    /// v2: the reason why some or all controllers are unavailable.
    shortage: Option<Unavailable>,
    /// v2: this process and its helpers are the only members and must move to a leaf first.
    step_aside: bool,
    /// v2: another manager (systemd) enables controllers here as well, and may disable them.
    contested: bool,
}

/// Facts about the host, besides the tree, that the search uses.
#[derive(Clone, Debug)]
pub struct CgroupHost {
    root: PathBuf,
    uid: u32,
}

impl CgroupHost {
    pub fn new(root: &Path, uid: u32) -> CgroupHost {
        CgroupHost { root: root.to_path_buf(), uid }
    }

    fn setup(&self) -> String {
        "sudo cofferdam setup --user \"$(id -un)\"".to_owned()
    }

    fn has_systemd(&self) -> bool {
        self.root.join("run/systemd/system").exists()
    }

    /// Returns the command that gives the user a v2 group: from systemd where it runs, otherwise from root.
    fn own_group(&self) -> String {
        let user = if self.uid == 0 { "" } else { "--user " };
        if self.has_systemd() {
            format!("systemd-run {user}--scope -p Delegate=yes cofferdam …")
        } else {
            self.setup()
        }
    }
}

impl ParentGroup {
    fn v1(path: PathBuf, dir: Dir) -> ParentGroup {
        ParentGroup {
            path,
            dir: Arc::new(dir),
            usable: Vec::new(),
            pending: Mutex::default(),
            shortage: None,
            step_aside: false,
            contested: false,
        }
    }

    /// Returns the path of the directory in which groups are made.
    pub fn group_dir(&self) -> PathBuf {
        if self.contested { self.path.join(RUNS) } else { self.path.clone() }
    }

    /// Returns the parent of the shared runs directory, if there is one; that directory keeps the controllers enabled
    /// and is removed when it is empty.
    pub fn contested(&self) -> Option<Arc<Dir>> {
        self.contested.then(|| self.dir.clone())
    }

    /// v2: fails if a group made here cannot have `controller`.
    pub fn offers(&self, controller: &'static str) -> Result<(), Unavailable> {
        if self.usable.contains(&controller) {
            return Ok(());
        }
        Err(self.shortage.clone().unwrap_or_else(|| Unavailable {
            reason: format!("{} does not offer the {controller} controller", self.path.display()),
            fix: Some(format!(
                "echo +{controller} > cgroup.subtree_control in each group above {} (as root)",
                self.path.display()
            )),
        }))
    }

    /// Prepares the parent for a v2 group: enables the controllers, and moves this process to a leaf first if
    /// necessary. Returns the directory in which the group is to be made.
    pub fn prepare(&self, needed: &[&'static str]) -> io::Result<Arc<Dir>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<&str> = pending.iter().copied().filter(|c| needed.contains(c)).collect();
        if !missing.is_empty() {
            if self.step_aside {
                self.step_aside()?;
            }
            enable(&self.dir, &missing)?;
            pending.retain(|c| !needed.contains(c));
        }
        drop(pending);
        if !self.contested {
            return Ok(self.dir.clone());
        }
        let runs = self.dir.ensure(RUNS)?;
        let needed: Vec<&str> = self.usable.iter().copied().filter(|c| needed.contains(c)).collect();
        if !needed.is_empty() && enable(&runs, &needed).is_err() {
            // The controllers were disabled since they were checked.
            enable(&self.dir, &needed)?;
            enable(&runs, &needed)?;
        }
        Ok(Arc::new(runs))
    }

    fn step_aside(&self) -> io::Result<()> {
        let leaf = self.dir.ensure(SELF_LEAF)?;
        let us = process::id() as i32;
        for helper in self.dir.members()?.0.into_iter().filter(|pid| *pid != us && is_helper(*pid)) {
            // A helper that has ended meanwhile is no longer a member.
            let _ = leaf.write("cgroup.procs", &helper.to_string());
        }
        leaf.write("cgroup.procs", &us.to_string())
    }
}

/// Returns true if the process is a helper of ours: a child that runs our own program. Other members of our group must
/// not be moved.
fn is_helper(pid: i32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    if program(&pid.to_string()).is_none_or(|theirs| Some(theirs) != program("self")) {
        return false;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
    parent == Some(process::id())
}

/// Enables controllers for the children of a v2 group.
pub fn enable(dir: &Dir, controllers: &[&str]) -> io::Result<()> {
    let mut line = String::new();
    for controller in controllers {
        let _ = write!(line, "+{controller} ");
    }
    dir.write("cgroup.subtree_control", line.trim_end())
}

pub fn v1(host: &CgroupHost, mount: &Path, own: &[String], controllers: &[&str]) -> Result<ParentGroup, Unavailable> {
    let top = Dir::open(mount).map_err(|e| unreadable(mount, &e))?;
    let chain = chain(top, mount, own);
    let floor = (1..chain.len()).rev().find(|i| is_limited(&chain[*i].1, controllers, &chain[0].1)).unwrap_or(0);
    let mut refusal = io::Error::from(io::ErrorKind::NotFound);
    for (path, dir) in chain.into_iter().skip(floor) {
        match dir.may_write(".") {
            Ok(()) => return Ok(ParentGroup::v1(path, dir)),
            Err(e) => refusal = e,
        }
    }
    let delegated = mount.join(DELEGATED).join(host.uid.to_string());
    if let Ok(dir) = Dir::open(&delegated) {
        match dir.may_write(".") {
            Ok(()) => return Ok(ParentGroup::v1(delegated, dir)),
            Err(e) => refusal = e,
        }
    }
    Err(refused(host, mount, &refusal, host.setup()))
}

/// Opens the mount's root and each group down to our own, as far as possible. Never empty.
fn chain(top: Dir, mount: &Path, own: &[String]) -> Vec<(PathBuf, Dir)> {
    let mut chain = vec![(mount.to_path_buf(), top)];
    for name in own {
        let (path, dir) = &chain[chain.len() - 1];
        let Ok(child) = dir.child(name) else { break };
        let path = path.join(name);
        chain.push((path, child));
    }
    chain
}

fn is_limited(dir: &Dir, controllers: &[&str], top: &Dir) -> bool {
    controllers.iter().any(|controller| match *controller {
        // "No limit" is the largest number of pages, in bytes. Memory with swap cannot be limited below memory.
        "memory" => dir.number("memory.limit_in_bytes").is_some_and(|n| n < 1 << 62),
        "pids" => dir.number("pids.max").is_some(),
        "cpu" => dir.number("cpu.cfs_quota_us").is_some(),
        "cpuset" => dir
            .read("cpuset.cpus")
            .is_ok_and(|cpus| !cpus.trim().is_empty() && Some(cpus) != top.read("cpuset.cpus").ok()),
        _ => false,
    })
}

/// Returns the controllers that the hierarchy offers at all, and the parent group.
pub fn v2(
    host: &CgroupHost,
    mount: &Path,
    own: &[String],
    limiting: &[&'static str],
) -> (Vec<&'static str>, Result<ParentGroup, Unavailable>) {
    let top = match Dir::open(mount) {
        Ok(top) => top,
        Err(e) => return (Vec::new(), Err(unreadable(mount, &e))),
    };
    let offered = among(&top, "cgroup.controllers", limiting);
    (offered.clone(), v2_parent(host, mount, chain(top, mount, own), &offered))
}

fn v2_parent(
    host: &CgroupHost,
    mount: &Path,
    chain: Vec<(PathBuf, Dir)>,
    offered: &[&'static str],
) -> Result<ParentGroup, Unavailable> {
    let own = chain.len() - 1;
    let mut refusal = io::Error::from(io::ErrorKind::NotFound);
    let mut best: Option<ParentGroup> = None;
    let nearest_first = chain.into_iter().enumerate().rev();
    for (i, (path, dir)) in nearest_first {
        // The leaf to which this process moved stays a leaf, even if the process is alone in it.
        if path.ends_with(SELF_LEAF) {
            continue;
        }
        if let Err(e) = dir.may_write(".").and_then(|()| dir.may_write("cgroup.procs")) {
            refusal = e;
            continue;
        }
        let limited = i > 0 && has_memory_or_cpu_limit(&dir);
        let parent_group = assess(host, path, dir, i == own, offered);
        // Without controllers to enable the topmost group is best: it stays when our own group is removed.
        let better = |old: &ParentGroup| offered.is_empty() || parent_group.usable.len() > old.usable.len();
        if best.as_ref().is_none_or(better) {
            best = Some(parent_group);
        }
        let complete = |p: &ParentGroup| offered.iter().all(|c| *c == "cpuset" || p.usable.contains(c));
        if !offered.is_empty() && (limited || best.as_ref().is_some_and(complete)) {
            break;
        }
    }
    best.ok_or_else(|| {
        let delegated = mount.join(DELEGATED).join(host.uid.to_string());
        if host.uid != 0 && delegated.is_dir() {
            return outside(&delegated);
        }
        refused(host, mount, &refusal, host.own_group())
    })
}

/// Returns true if the group has a memory or cpu limit. A limit on tasks is not considered: every unit of systemd has
/// one.
fn has_memory_or_cpu_limit(dir: &Dir) -> bool {
    let limited = |file: &str| dir.read(file).is_ok_and(|text| !text.trim().is_empty() && !text.starts_with("max"));
    limited("memory.max") || limited("cpu.max")
}

fn assess(host: &CgroupHost, path: PathBuf, dir: Dir, is_own: bool, offered: &[&'static str]) -> ParentGroup {
    let mut parent_group = ParentGroup::v1(path, dir);
    if offered.is_empty() {
        return parent_group;
    }
    parent_group.contested = host.has_systemd();
    // Only the kernel's root has no cgroup.type; only that group may have both members and children with controllers.
    let kind = parent_group.dir.read("cgroup.type");
    let is_root = matches!(&kind, Err(e) if e.kind() == io::ErrorKind::NotFound);
    let is_domain = kind.is_ok_and(|k| matches!(k.trim(), "domain" | ""));
    if !is_root && !is_domain {
        parent_group.shortage = Some(Unavailable {
            reason: format!("{} is a threaded group", parent_group.path.display()),
            fix: Some(host.own_group()),
        });
        return parent_group;
    }
    let handed = among(&parent_group.dir, "cgroup.subtree_control", offered);
    let mut usable = handed.clone();
    if parent_group.dir.may_write("cgroup.subtree_control").is_ok() {
        usable = among(&parent_group.dir, "cgroup.controllers", offered);
    }
    if !is_root && usable != handed {
        let (members, any) = parent_group.dir.members().unwrap_or((Vec::new(), true));
        let us = process::id() as i32;
        let only_us = is_own && members.contains(&us) && members.iter().all(|pid| *pid == us || is_helper(*pid));
        if any && !only_us {
            usable = handed.clone();
            parent_group.shortage = Some(crowded(host, &parent_group.path));
        }
        parent_group.step_aside = any && only_us;
    }
    parent_group.pending = Mutex::new(usable.iter().copied().filter(|c| !handed.contains(c)).collect());
    parent_group.usable = usable;
    parent_group
}

fn among(dir: &Dir, file: &str, known: &[&'static str]) -> Vec<&'static str> {
    let words = dir.words(file);
    known.iter().copied().filter(|k| words.iter().any(|w| w == k)).collect()
}

fn crowded(host: &CgroupHost, path: &Path) -> Unavailable {
    Unavailable {
        reason: format!("{} holds other processes beside us, so it cannot hand out controllers", path.display()),
        fix: Some(host.own_group()),
    }
}

fn outside(delegated: &Path) -> Unavailable {
    Unavailable {
        reason: format!("{} is delegated to us, but this process was not started inside it", delegated.display()),
        fix: Some(format!("echo $$ | sudo tee {}/{SELF_LEAF}/cgroup.procs", delegated.display())),
    }
}

fn unreadable(mount: &Path, e: &io::Error) -> Unavailable {
    Unavailable { reason: format!("{} cannot be opened: {e}", mount.display()), fix: None }
}

fn refused(host: &CgroupHost, mount: &Path, e: &io::Error, fix: String) -> Unavailable {
    if e.kind() == io::ErrorKind::ReadOnlyFilesystem {
        return Unavailable {
            reason: format!("{} is mounted read-only", mount.display()),
            fix: Some(format!("mount -o remount,rw {} (as root)", mount.display())),
        };
    }
    Unavailable { reason: format!("uid {} may not make groups in {}", host.uid, mount.display()), fix: Some(fix) }
}
