//! Where in a hierarchy our groups go.
//!
//! v1: as high as possible without leaving a limit that holds us, so that a sandbox never gets more than its
//! supervisor; else the directory that root delegated to us.
//!
//! v2: groups with controllers need a parent that hands these out and has no member processes (the kernel's root
//! excepted), and moving a process needs write access to the nearest common ancestor. So the parent is the nearest
//! ancestor of our own group that fits, and never one above a group whose memory or processor time is limited: a sandbox
//! must not get more than its supervisor. Without controllers (hybrid) any writable ancestor will do.
//!
//! Where systemd runs, that parent may be a slice of its, from which it takes controllers back whenever it starts a unit:
//! limits would vanish without a word. So groups are made one level deeper, in a directory that hands the controllers on,
//! for the kernel takes none away from a group whose child hands it on.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, process};

use super::dir::Dir;
use super::{DELEGATED, RUNS, SELF_LEAF};

/// Deeper than this we do not look.
pub const MAX_DEPTH: usize = 32;

/// Why something cannot be had, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub reason: String,
    pub fix: Option<String>,
}

/// A directory in which we may make groups.
#[derive(Debug)]
pub struct Place {
    pub path: PathBuf,
    pub dir: Arc<Dir>,
    /// v2: what groups made here can have.
    usable: Vec<&'static str>,
    /// v2: what the directory does not hand out yet, but would.
    pending: Mutex<Vec<&'static str>>,
    /// v2: why there is nothing, or not everything.
    shortage: Option<Lack>,
    /// v2: we and our helpers are the only members and must move to a leaf first.
    step_aside: bool,
    /// v2: somebody else hands out controllers here as well, and may take them back.
    contested: bool,
}

/// What the search needs to know about the host besides the tree itself.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    uid: u32,
}

impl Host {
    pub fn new(root: &Path, uid: u32) -> Host {
        Host { root: root.to_path_buf(), uid }
    }

    fn setup(&self) -> String {
        "sudo cofferdam setup --user \"$(id -un)\"".to_owned()
    }

    fn has_systemd(&self) -> bool {
        self.root.join("run/systemd/system").exists()
    }

    /// How to get a v2 group of one's own: from systemd where it runs, else from root.
    fn own_group(&self) -> String {
        let user = if self.uid == 0 { "" } else { "--user " };
        if self.has_systemd() {
            format!("systemd-run {user}--scope -p Delegate=yes cofferdam …")
        } else {
            self.setup()
        }
    }
}

impl Place {
    fn v1(path: PathBuf, dir: Dir) -> Place {
        Place {
            path,
            dir: Arc::new(dir),
            usable: Vec::new(),
            pending: Mutex::default(),
            shortage: None,
            step_aside: false,
            contested: false,
        }
    }

    /// The directory that groups are made in.
    pub fn home(&self) -> PathBuf {
        if self.contested { self.path.join(RUNS) } else { self.path.clone() }
    }

    /// What keeps controllers here, and goes when nothing is left in it.
    pub fn contested(&self) -> Option<Arc<Dir>> {
        self.contested.then(|| self.dir.clone())
    }

    /// v2: can a group made here have `controller`?
    pub fn offers(&self, controller: &'static str) -> Result<(), Lack> {
        if self.usable.contains(&controller) {
            return Ok(());
        }
        Err(self.shortage.clone().unwrap_or_else(|| Lack {
            reason: format!("{} does not offer the {controller} controller", self.path.display()),
            fix: Some(format!(
                "echo +{controller} > cgroup.subtree_control in each group above {} (as root)",
                self.path.display()
            )),
        }))
    }

    /// Before a v2 group is made: hand its controllers out, and step aside for that if we must. Gives the directory that
    /// it is to be made in.
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
            // Taken back since we looked.
            enable(&self.dir, &needed)?;
            enable(&runs, &needed)?;
        }
        Ok(Arc::new(runs))
    }

    fn step_aside(&self) -> io::Result<()> {
        let leaf = self.dir.ensure(SELF_LEAF)?;
        let us = process::id() as i32;
        for helper in self.dir.members()?.0.into_iter().filter(|pid| *pid != us && is_helper(*pid)) {
            // One that has ended meanwhile is no member any more.
            let _ = leaf.write("cgroup.procs", &helper.to_string());
        }
        leaf.write("cgroup.procs", &us.to_string())
    }
}

/// A helper of ours, which runs our own program: whoever else is in our group is not to be moved.
fn is_helper(pid: i32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    if program(&pid.to_string()).is_none_or(|theirs| Some(theirs) != program("self")) {
        return false;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
    parent == Some(process::id())
}

/// Hands controllers out to the children of a v2 group.
pub fn enable(dir: &Dir, controllers: &[&str]) -> io::Result<()> {
    let mut line = String::new();
    for controller in controllers {
        let _ = write!(line, "+{controller} ");
    }
    dir.write("cgroup.subtree_control", line.trim_end())
}

pub fn v1(host: &Host, mount: &Path, own: &[String], controllers: &[&str]) -> Result<Place, Lack> {
    let top = Dir::open(mount).map_err(|e| unreadable(mount, &e))?;
    let chain = chain(top, mount, own);
    let floor = (1..chain.len()).rev().find(|i| is_limited(&chain[*i].1, controllers, &chain[0].1)).unwrap_or(0);
    let mut refusal = io::Error::from(io::ErrorKind::NotFound);
    for (path, dir) in chain.into_iter().skip(floor) {
        match dir.may_write(".") {
            Ok(()) => return Ok(Place::v1(path, dir)),
            Err(e) => refusal = e,
        }
    }
    let delegated = mount.join(DELEGATED).join(host.uid.to_string());
    if let Ok(dir) = Dir::open(&delegated) {
        match dir.may_write(".") {
            Ok(()) => return Ok(Place::v1(delegated, dir)),
            Err(e) => refusal = e,
        }
    }
    Err(refused(host, mount, &refusal, host.setup()))
}

/// The mount's root and each group down to our own, as far as they can be opened. Never empty.
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

/// Returns what the hierarchy offers at all, and the place.
pub fn v2(
    host: &Host,
    mount: &Path,
    own: &[String],
    limiting: &[&'static str],
) -> (Vec<&'static str>, Result<Place, Lack>) {
    let top = match Dir::open(mount) {
        Ok(top) => top,
        Err(e) => return (Vec::new(), Err(unreadable(mount, &e))),
    };
    let offered = among(&top, "cgroup.controllers", limiting);
    (offered.clone(), v2_place(host, mount, chain(top, mount, own), &offered))
}

fn v2_place(host: &Host, mount: &Path, chain: Vec<(PathBuf, Dir)>, offered: &[&'static str]) -> Result<Place, Lack> {
    let own = chain.len() - 1;
    let mut refusal = io::Error::from(io::ErrorKind::NotFound);
    let mut best: Option<Place> = None;
    let nearest_first = chain.into_iter().enumerate().rev();
    for (i, (path, dir)) in nearest_first {
        // Where we stepped aside to is a leaf for good, however alone we are in it.
        if path.ends_with(SELF_LEAF) {
            continue;
        }
        if let Err(e) = dir.may_write(".").and_then(|()| dir.may_write("cgroup.procs")) {
            refusal = e;
            continue;
        }
        let limited = i > 0 && holds_us(&dir);
        let place = assess(host, path, dir, i == own, offered);
        // With nothing to hand out the topmost is best: it stays when our own group goes.
        let better = |old: &Place| offered.is_empty() || place.usable.len() > old.usable.len();
        if best.as_ref().is_none_or(better) {
            best = Some(place);
        }
        let complete = |p: &Place| offered.iter().all(|c| *c == "cpuset" || p.usable.contains(c));
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

/// Every unit of systemd has a limit on tasks, so that one says nothing.
fn holds_us(dir: &Dir) -> bool {
    let limited = |file: &str| dir.read(file).is_ok_and(|text| !text.trim().is_empty() && !text.starts_with("max"));
    limited("memory.max") || limited("cpu.max")
}

fn assess(host: &Host, path: PathBuf, dir: Dir, is_own: bool, offered: &[&'static str]) -> Place {
    let mut place = Place::v1(path, dir);
    if offered.is_empty() {
        return place;
    }
    place.contested = host.has_systemd();
    // Only the kernel's own root has no type; it alone may have members and children with controllers.
    let kind = place.dir.read("cgroup.type");
    let is_root = matches!(&kind, Err(e) if e.kind() == io::ErrorKind::NotFound);
    let is_domain = kind.is_ok_and(|k| matches!(k.trim(), "domain" | ""));
    if !is_root && !is_domain {
        place.shortage =
            Some(Lack { reason: format!("{} is a threaded group", place.path.display()), fix: Some(host.own_group()) });
        return place;
    }
    let handed = among(&place.dir, "cgroup.subtree_control", offered);
    let mut usable = handed.clone();
    if place.dir.may_write("cgroup.subtree_control").is_ok() {
        usable = among(&place.dir, "cgroup.controllers", offered);
    }
    if !is_root && usable != handed {
        let (members, any) = place.dir.members().unwrap_or((Vec::new(), true));
        let us = process::id() as i32;
        let only_us = is_own && members.contains(&us) && members.iter().all(|pid| *pid == us || is_helper(*pid));
        if any && !only_us {
            usable = handed.clone();
            place.shortage = Some(crowded(host, &place.path));
        }
        place.step_aside = any && only_us;
    }
    place.pending = Mutex::new(usable.iter().copied().filter(|c| !handed.contains(c)).collect());
    place.usable = usable;
    place
}

fn among(dir: &Dir, file: &str, known: &[&'static str]) -> Vec<&'static str> {
    let words = dir.words(file);
    known.iter().copied().filter(|k| words.iter().any(|w| w == k)).collect()
}

fn crowded(host: &Host, path: &Path) -> Lack {
    Lack {
        reason: format!("{} holds other processes beside us, so it cannot hand out controllers", path.display()),
        fix: Some(host.own_group()),
    }
}

fn outside(delegated: &Path) -> Lack {
    Lack {
        reason: format!("{} is delegated to us, but this process was not started inside it", delegated.display()),
        fix: Some(format!("echo $$ | sudo tee {}/{SELF_LEAF}/cgroup.procs", delegated.display())),
    }
}

fn unreadable(mount: &Path, e: &io::Error) -> Lack {
    Lack { reason: format!("{} cannot be opened: {e}", mount.display()), fix: None }
}

fn refused(host: &Host, mount: &Path, e: &io::Error, fix: String) -> Lack {
    if e.kind() == io::ErrorKind::ReadOnlyFilesystem {
        return Lack {
            reason: format!("{} is mounted read-only", mount.display()),
            fix: Some(format!("mount -o remount,rw {} (as root)", mount.display())),
        };
    }
    Lack { reason: format!("uid {} may not make groups in {}", host.uid, mount.display()), fix: Some(fix) }
}
