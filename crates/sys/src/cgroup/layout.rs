//! The cgroup hierarchies of this host: which are mounted, where in them this process is, and where it may make groups.
//! Detection costs two reads under /proc, and a few accesses in a hierarchy when it is first used; it changes nothing.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::parent::{self, CgroupHost, ParentGroup, Unavailable};
use super::{Missing, raw};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HierarchyKind {
    /// v1 controllers beside a v2 tree.
    Hybrid,
    V1,
    V2,
    /// No cgroup filesystem is mounted.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub what: &'static str,
    pub usable: bool,
    pub reason: Option<String>,
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

#[derive(Debug)]
pub struct Hierarchy {
    pub version: Version,
    pub mount: PathBuf,
    host: CgroupHost,
    /// v1: controllers that we use and that are bound to this hierarchy.
    bound: Vec<&'static str>,
    /// The group of this process, as components below the mount's root.
    own: Vec<String>,
    found: OnceLock<Assessment>,
}

#[derive(Debug)]
struct Assessment {
    controllers: Vec<&'static str>,
    parent_group: Result<ParentGroup, Unavailable>,
}

impl Hierarchy {
    /// Returns the controllers that we use and that are bound to this hierarchy (v1) or offered at its root (v2).
    pub fn controllers(&self) -> &[&'static str] {
        match self.version {
            Version::V1 => &self.bound,
            Version::V2 => &self.found().controllers,
        }
    }

    /// Returns the group below which new groups can be made.
    pub fn parent_group(&self) -> Result<&ParentGroup, Unavailable> {
        self.found().parent_group.as_ref().map_err(Unavailable::clone)
    }

    fn found(&self) -> &Assessment {
        self.found.get_or_init(|| {
            let (controllers, parent_group) = match self.version {
                Version::V1 => (Vec::new(), parent::v1(&self.host, &self.mount, &self.own, &self.bound)),
                Version::V2 => parent::v2(&self.host, &self.mount, &self.own, &LIMITING),
            };
            Assessment { controllers, parent_group }
        })
    }
}

#[derive(Debug)]
pub struct Layout {
    pub kind: HierarchyKind,
    pub(super) hierarchies: Vec<Hierarchy>,
    root: PathBuf,
}

/// The controllers that we use, by their v1 names.
pub const USED: [&str; 5] = ["memory", "pids", "cpu", "cpuacct", "cpuset"];
/// Controllers that we use and that exist in v2; processor time is counted there without a controller.
pub const LIMITING: [&str; 4] = ["memory", "pids", "cpu", "cpuset"];

/// Bound on the bytes read of a file under /proc; later mounts are not seen.
const MAX_PROC: usize = 4 * 1024 * 1024;

impl Layout {
    /// Reads the hierarchies of this host. `root` is `/`, or a copied tree in tests:
    /// `<root>/proc/self/{mountinfo,cgroup}` and the mounts below it.
    pub fn detect(root: &Path) -> Layout {
        let mounts = parse_mounts(&read(&root.join("proc/self/mountinfo")));
        let own = read(&root.join("proc/self/cgroup"));
        let host = CgroupHost::new(root, raw::effective_uid());
        let hierarchy = |mount: Mount| Hierarchy {
            version: mount.version,
            mount: below(root, &mount.point),
            host: host.clone(),
            own: own_path(&own, &mount),
            bound: mount.controllers,
            found: OnceLock::new(),
        };
        let hierarchies: Vec<Hierarchy> = mounts.into_iter().map(hierarchy).collect();
        let has = |version| hierarchies.iter().any(|h| h.version == version);
        let kind = match (has(Version::V1), has(Version::V2)) {
            (true, true) => HierarchyKind::Hybrid,
            (true, false) => HierarchyKind::V1,
            (false, true) => HierarchyKind::V2,
            (false, false) => HierarchyKind::None,
        };
        Layout { kind, hierarchies, root: root.to_path_buf() }
    }

    /// Returns, for each of memory, pids, cpu, cpuacct, cpuset, freeze and kill, whether it is available, and if not,
    /// the reason and a fix.
    pub fn capabilities(&self) -> Vec<Capability> {
        let mut list: Vec<Capability> = USED.into_iter().map(|what| capability(what, self.serving(what))).collect();
        list.push(capability("freeze", self.v2().map(drop)));
        list.push(match (self.v2(), self.any_v1()) {
            (Err(_), Some(_)) => Capability {
                what: "kill",
                usable: true,
                reason: Some("by repeated SIGKILL over the v1 member list, as no v2 group can be made".into()),
                fix: None,
            },
            (unified, _) => capability("kill", unified.map(drop)),
        });
        list
    }

    /// Finds the hierarchy that serves `what`, if a group can be made there with it.
    pub(super) fn find(&self, what: &'static str) -> Result<(usize, &ParentGroup), Unavailable> {
        let numbered = || self.hierarchies.iter().enumerate();
        if let Some((i, v1)) = numbered().find(|(_, h)| h.version == Version::V1 && h.bound.contains(&what)) {
            return v1.parent_group().map(|p| (i, p));
        }
        let Some((i, v2)) = numbered().find(|(_, h)| h.version == Version::V2) else {
            return Err(self.unmounted(what));
        };
        if !v2.controllers().contains(&what) {
            return Err(self.unmounted(what));
        }
        let parent_group = v2.parent_group()?;
        parent_group.offers(what).map(|()| (i, parent_group))
    }

    pub(super) fn v2(&self) -> Result<(usize, &ParentGroup), Unavailable> {
        let mut all = self.hierarchies.iter().enumerate();
        match all.find(|(_, h)| h.version == Version::V2) {
            Some((i, h)) => h.parent_group().map(|p| (i, p)),
            None => Err(Unavailable {
                reason: "no cgroup v2 hierarchy is mounted".into(),
                fix: Some(
                    "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified (as root)"
                        .into(),
                ),
            }),
        }
    }

    /// Finds a v1 hierarchy to list members by, where there is no v2; pids first, whose limit stops forking.
    pub(super) fn any_v1(&self) -> Option<usize> {
        let usable = |what| self.find(what).ok().map(|(i, _)| i);
        let v1 = |i: &usize| self.hierarchies[*i].version == Version::V1;
        ["pids", "memory", "cpu", "cpuacct"].into_iter().filter_map(usable).find(v1)
    }

    fn serving(&self, what: &'static str) -> Result<(), Unavailable> {
        if what == "cpuacct" && self.v2().is_ok() {
            return Ok(());
        }
        self.find(what).map(drop)
    }

    fn unmounted(&self, what: &str) -> Unavailable {
        let known = read(&self.root.join("proc/cgroups"));
        let in_kernel = known.is_empty() || known.lines().any(|l| l.split_whitespace().next() == Some(what));
        let (reason, fix) = match (in_kernel, self.kind) {
            (false, _) => (format!("the kernel has no {what} controller, or it was disabled at boot"), None),
            (true, HierarchyKind::V2) => (
                format!("the {what} controller is not offered to this cgroup namespace"),
                Some(format!("enable +{what} for this container in the parent cgroup, on the container host")),
            ),
            (true, HierarchyKind::None) => (
                "no cgroup filesystem is mounted".to_owned(),
                Some("mount -t cgroup2 cgroup2 /sys/fs/cgroup (as root)".to_owned()),
            ),
            (true, _) => (
                format!("no mounted hierarchy has the {what} controller"),
                Some(format!(
                    "mkdir -p /sys/fs/cgroup/{what} && mount -t cgroup -o {what} {what} /sys/fs/cgroup/{what} (as root)"
                )),
            ),
        };
        Unavailable { reason, fix }
    }
}

impl Unavailable {
    pub fn of(self, limit: &'static str) -> Missing {
        Missing { limit, reason: self.reason, fix: self.fix }
    }
}

fn capability(what: &'static str, found: Result<(), Unavailable>) -> Capability {
    let usable = found.is_ok();
    let (reason, fix) = found.err().map_or((None, None), |lack| (Some(lack.reason), lack.fix));
    Capability { what, usable, reason, fix }
}

#[derive(Debug, PartialEq)]
struct Mount {
    version: Version,
    /// The group of the hierarchy that is mounted here.
    group: String,
    point: String,
    controllers: Vec<&'static str>,
}

/// Parses mountinfo into one entry per hierarchy; v1 hierarchies without a controller of ours are left out. A later
/// mount on the same point hides an earlier one; of two mounts of one hierarchy the first is kept.
fn parse_mounts(mountinfo: &str) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for line in mountinfo.lines() {
        let Some(mount) = parse_mount(line) else {
            continue;
        };
        mounts.retain(|m| m.point != mount.point);
        let seen = |m: &Mount| m.version == mount.version && m.controllers == mount.controllers;
        let of_use = mount.version == Version::V2 || !mount.controllers.is_empty();
        if of_use && !mounts.iter().any(seen) {
            mounts.push(mount);
        }
    }
    mounts
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let version = match right.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options: Vec<&str> = right.nth(1).unwrap_or("").split(',').collect();
    let mut left = left.split(' ').skip(3);
    let group = unescape(left.next()?);
    let point = unescape(left.next()?);
    let controllers = match version {
        Version::V1 => USED.into_iter().filter(|c| options.contains(c)).collect(),
        Version::V2 => Vec::new(),
    };
    Some(Mount { version, group, point, controllers })
}

/// Decodes the octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |t, (from, to)| t.replace(from, to))
}

/// Returns the group of this process below the mount's root, as components; also empty if the process is outside the
/// mounted subtree.
fn own_path(table: &str, mount: &Mount) -> Vec<String> {
    let line = table.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match mount.version {
            Version::V1 => names.split(',').any(|n| mount.controllers.contains(&n)),
            Version::V2 => id == "0" && names.is_empty(),
        };
        ours.then_some(path)
    });
    let group = mount.group.trim_end_matches('/');
    let inside = line.unwrap_or("/").strip_prefix(group).filter(|p| p.is_empty() || p.starts_with('/'));
    let parts: Vec<String> = inside.unwrap_or("").split('/').filter(|c| !c.is_empty()).map(str::to_owned).collect();
    let odd = parts.len() > parent::MAX_DEPTH || parts.iter().any(|c| c == "..");
    if odd { Vec::new() } else { parts }
}

fn below(root: &Path, absolute: &str) -> PathBuf {
    root.join(absolute.trim_start_matches('/'))
}

/// Reads a file under /proc. After an error, the lines read so far are still used.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        // The kernel prints at most this much per read.
        let mut chunk = [0; 4096];
        while let Ok(n @ 1..) = file.read(&mut chunk) {
            bytes.extend_from_slice(&chunk[..n]);
            if bytes.len() >= MAX_PROC {
                break;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_apart() {
        let v1 = |c: &[&'static str], point: &str| Mount {
            version: Version::V1,
            group: "/".into(),
            point: point.into(),
            controllers: c.to_vec(),
        };
        for (line, expected) in [
            ("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw", None),
            (
                "32 31 0:29 / /c/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
                Some(v1(&["cpu", "cpuacct"], "/c/cpu,cpuacct")),
            ),
            ("32 31 0:29 / /a\\040b rw - cgroup cgroup rw,memory", Some(v1(&["memory"], "/a b"))),
            ("32 31 0:29 / /sys/s rw - cgroup cgroup rw,name=systemd", Some(v1(&[], "/sys/s"))),
            ("", None),
            ("1 - cgroup", None),
            ("1 2 3 - cgroup2", None),
        ] {
            assert_eq!(parse_mount(line), expected, "{line}");
        }
    }

    #[test]
    fn later_mounts_hide_earlier_ones() {
        let text = "1 0 0:1 / /m rw - cgroup x rw,memory\n2 0 0:2 / /m rw - cgroup x rw,pids\n3 0 0:2 / /again rw - cgroup x rw,pids\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 1);
        assert_eq!((mounts[0].point.as_str(), &mounts[0].controllers[..]), ("/m", &["pids"][..]));
    }

    #[test]
    fn our_own_place_is_found_inside_the_mount() {
        let mount = |group: &str| Mount {
            version: Version::V1,
            group: group.into(),
            point: "/m".into(),
            controllers: vec!["memory"],
        };
        let table = "5:cpu:/other\n4:memory:/docker/abc/x\n0::/v2\n";
        for (group, expected) in
            [("/", &["docker", "abc", "x"][..]), ("/docker/abc", &["x"]), ("/docker/ab", &[]), ("/elsewhere", &[])]
        {
            assert_eq!(own_path(table, &mount(group)), expected, "{group}");
        }
        assert!(own_path("4:memory:/../../x\n", &mount("/")).is_empty());
        assert!(own_path("garbage", &mount("/")).is_empty());
    }
}
