//! Simulated hosts as plain files. A directory that holds `.template` behaves like a cgroup directory: a group made in
//! it gets the template's files, and removing the group takes them away.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::dir::Dir;
use super::super::*;

const TEMPLATE: &str = ".template";

/// Called by `Dir::make`.
pub fn populate(parent: &Dir, made: &Dir) -> io::Result<()> {
    let template = path_of(parent).join(TEMPLATE);
    if template.is_dir() {
        copy(&template, &path_of(made))?;
        copy(&template, &path_of(made).join(TEMPLATE))?;
    }
    Ok(())
}

/// Called by `Dir::remove`.
pub fn clear(parent: &Dir, name: &str) -> io::Result<()> {
    let parent = path_of(parent);
    if !parent.join(TEMPLATE).is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(parent.join(name))?.flatten() {
        if entry.file_name() == TEMPLATE {
            fs::remove_dir_all(entry.path())?;
        } else if entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn path_of(dir: &Dir) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.flatten() {
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// A host below a temporary directory.
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const V1_MEMORY: &[(&str, &str)] = &[
    ("memory.limit_in_bytes", "9223372036854771712\n"),
    ("memory.memsw.limit_in_bytes", "9223372036854771712\n"),
    ("memory.swappiness", "60\n"),
    ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
    ("memory.usage_in_bytes", "4096\n"),
    ("memory.max_usage_in_bytes", "8192\n"),
];
const V1_PIDS: &[(&str, &str)] = &[("pids.max", "max\n"), ("pids.events", "max 0\n"), ("pids.current", "1\n")];
const V1_CPU: &[(&str, &str)] =
    &[("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n"), ("cpuacct.usage", "5000999\n")];
const V1_CPUSET: &[(&str, &str)] = &[
    ("cpuset.cpus", "\n"),
    ("cpuset.mems", "\n"),
    ("cpuset.effective_mems", "0\n"),
    ("cpuset.effective_cpus", "0-3\n"),
];
const V2_BARE: &[(&str, &str)] = &[
    ("cgroup.type", "domain\n"),
    ("cgroup.controllers", "\n"),
    ("cgroup.subtree_control", "\n"),
    ("cgroup.threads", ""),
    ("cgroup.events", "populated 0\nfrozen 0\n"),
    ("cgroup.kill", ""),
    ("cgroup.freeze", "0\n"),
    ("cpu.stat", "usage_usec 1234\nuser_usec 1000\n"),
];
const V2_LIMITS: &[(&str, &str)] = &[
    ("memory.max", "max\n"),
    ("memory.swap.max", "max\n"),
    ("memory.oom.group", "0\n"),
    ("memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 1\n"),
    ("memory.current", "4096\n"),
    ("memory.peak", "12288\n"),
    ("pids.max", "max\n"),
    ("pids.events", "max 7\n"),
    ("pids.current", "2\n"),
    ("pids.peak", "5\n"),
    ("cpu.max", "max 100000\n"),
    ("cpuset.cpus", "\n"),
];
/// The pid of a process that is not this one; no signal is ever sent to it.
const STRANGER: &str = "1\n";

impl Tree {
    fn new(mountinfo: &str, own: &str) -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cofferdam-fake-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let tree = Tree(std::env::temp_dir().join(name));
        tree.put("proc/self/mountinfo", mountinfo);
        tree.put("proc/self/cgroup", own);
        tree
    }

    /// memory, pids, cpu with cpuacct, and cpuset.
    fn v1(own: &str) -> Tree {
        let tree = Tree::new(
            "30 1 0:1 / /cg rw - tmpfs t rw\n31 30 0:2 / /cg/memory rw - cgroup c rw,memory\n\
             32 30 0:3 / /cg/pids rw - cgroup c rw,pids\n33 30 0:4 / /cg/cpu,cpuacct rw - cgroup c rw,cpu,cpuacct\n\
             34 30 0:5 / /cg/cpuset rw - cgroup c rw,cpuset\n",
            own,
        );
        tree.group("cg/memory", &[V1_MEMORY]);
        tree.group("cg/pids", &[V1_PIDS]);
        tree.group("cg/cpu,cpuacct", &[V1_CPU]);
        tree.group("cg/cpuset", &[V1_CPUSET]);
        tree
    }

    fn hybrid() -> Tree {
        let tree = Tree::v1("4:memory:/\n3:pids:/\n2:cpu,cpuacct:/\n1:cpuset:/\n0::/\n");
        let mounts = tree.get("proc/self/mountinfo") + "35 30 0:6 / /cg/unified rw - cgroup2 c rw\n";
        tree.put("proc/self/mountinfo", &mounts);
        tree.group("cg/unified", &[V2_BARE]);
        tree.put("cg/unified/cgroup.controllers", "hugetlb\n");
        fs::remove_file(tree.0.join("cg/unified/cgroup.type")).unwrap();
        tree
    }

    /// A v2 host on which this process is in `own`; each group on the way has all controllers and enables none.
    fn v2(own: &str) -> Tree {
        let tree = Tree::new("30 1 0:1 / /cg rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n", &format!("0::{own}\n"));
        let mut path = "cg".to_owned();
        let mut below = own.split('/').filter(|n| !n.is_empty());
        loop {
            tree.group(&path, &[V2_BARE, V2_LIMITS]);
            tree.put(&format!("{path}/cgroup.controllers"), "cpuset cpu io memory pids\n");
            let Some(name) = below.next() else { break };
            path = format!("{path}/{name}");
        }
        fs::remove_file(tree.0.join("cg/cgroup.type")).unwrap();
        tree.put("cg/cgroup.procs", STRANGER);
        tree
    }

    /// A cgroup directory whose children get the same files.
    fn group(&self, path: &str, files: &[&[(&str, &str)]]) {
        for dir in [path.to_owned(), format!("{path}/{TEMPLATE}")] {
            self.put(&format!("{dir}/cgroup.procs"), "");
            self.put(&format!("{dir}/tasks"), "");
            for (name, text) in files.iter().copied().flatten() {
                self.put(&format!("{dir}/{name}"), text);
            }
        }
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap()
    }

    fn layout(&self) -> Layout {
        Layout::detect(&self.0)
    }

    /// Path of the groups, below the root.
    fn where_is(&self, group: &Group) -> Vec<String> {
        let relative = |p: &Path| p.strip_prefix(&self.0).unwrap().to_str().unwrap().to_owned();
        group.paths().into_iter().map(|p| relative(p).replace(group.name(), "G")).collect()
    }

    fn missing(&self, want: &GroupSpec) -> Missing {
        match Group::create(&self.layout(), "run", want) {
            Err(CgroupError::Missing(missing)) => missing,
            other => panic!("expected something missing, got {other:?}"),
        }
    }
}

fn all() -> GroupSpec {
    let (memory_bytes, pids, cpu_quota) = (Some(64 << 20), Some(9), Some(0.5));
    GroupSpec { memory_bytes, pids, cpu_quota, cpu_usage: true, cpus: None, kill: true, survives: false }
}

#[test]
fn v2_gets_every_limit_in_one_group() {
    let tree = Tree::v2("/");
    let layout = tree.layout();
    assert_eq!(layout.kind, HierarchyKind::V2);
    assert!(layout.capabilities().iter().all(|c| c.usable), "{:?}", layout.capabilities());
    let want = GroupSpec { cpus: Some(vec![0, 1]), ..all() };
    let group = Group::create(&layout, "run", &want).unwrap();
    assert_eq!(tree.where_is(&group), ["cg/G"]);
    assert_eq!(tree.get("cg/cgroup.subtree_control"), "+memory +pids +cpu +cpuset");
    for (file, expected) in [
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", "9"),
        ("cpu.max", "50000 100000"),
        ("cpuset.cpus", "0,1"),
    ] {
        assert_eq!(tree.get(&format!("cg/{}/{file}", group.name())), expected, "{file}");
    }
    assert!(group.pins_cpus() && group.v2_dir_fd().is_some());
    assert_eq!((group.oom_kills(), group.pids_denied()), (2, 7));
    let usage = Usage {
        cpu_us: Some(1234),
        memory_peak: Some(12288),
        memory_now: Some(4096),
        pids_now: Some(2),
        pids_peak: Some(5),
    };
    assert_eq!(group.usage(), usage);
    assert!(group.entry_files(ChildOrigin::ClonedIntoV2).unwrap().is_empty());
    assert_eq!(group.entry_files(ChildOrigin::Outside).unwrap().len(), 1);
    assert_eq!(group.events().len(), 2);
    let path = group.paths()[0].to_path_buf();
    group.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn v2_hands_out_only_what_is_wanted() {
    let tree = Tree::v2("/");
    let want = GroupSpec { pids: Some(3), ..GroupSpec::default() };
    let group = Group::create(&tree.layout(), "run", &want).unwrap();
    assert_eq!(tree.get("cg/cgroup.subtree_control"), "+pids");
    assert_eq!(group.usage().memory_now, None, "a counter that nobody asked for is not shown as zero");
}

#[test]
fn v2_kill_and_freeze_are_one_write() {
    let tree = Tree::v2("/");
    let group = Group::create(&tree.layout(), "run", &all()).unwrap();
    let file = |name: &str| tree.get(&format!("cg/{}/{name}", group.name()));
    group.freeze(true).unwrap();
    assert_eq!(file("cgroup.freeze"), "1");
    group.freeze(false).unwrap();
    assert_eq!(file("cgroup.freeze"), "0");
    group.kill().unwrap();
    assert_eq!(file("cgroup.kill"), "1");
    assert_eq!(group.kill_file(), Some(group.paths()[0].join("cgroup.kill")));
    group.attach(4242).unwrap();
    assert_eq!(file("cgroup.procs"), "4242");
    tree.put(&format!("cg/{}/cgroup.procs", group.name()), "");
}

#[test]
fn v2_old_kernels_lack_some_files() {
    let tree = Tree::v2("/");
    for file in ["memory.swap.max", "memory.oom.group", "memory.peak", "pids.peak", "cgroup.kill"] {
        fs::remove_file(tree.0.join("cg/.template").join(file)).unwrap();
    }
    let group = Group::create(&tree.layout(), "run", &all()).unwrap();
    assert_eq!((group.usage().memory_peak, group.usage().pids_peak), (None, None));
    assert_eq!(group.usage().memory_now, Some(4096), "what is there is still read");
    assert_eq!(group.kill_file(), None);
    group.kill().unwrap();
    assert_eq!(tree.get(&format!("cg/{}/pids.max", group.name())), "0", "forking is stopped before killing one by one");
}

#[test]
fn v2_takes_the_nearest_ancestor_that_can_hand_out() {
    // A terminal in a desktop session: the scope is shared with a shell, the slice above it is free.
    let tree = Tree::v2("/user.slice/user@1.service/app.slice/term.scope");
    tree.put("cg/user.slice/user@1.service/app.slice/term.scope/cgroup.procs", &format!("1\n{}\n", std::process::id()));
    let group = Group::create(&tree.layout(), "run", &all()).unwrap();
    assert_eq!(tree.where_is(&group), ["cg/user.slice/user@1.service/app.slice/G"]);
    drop(group);
    // The slice has no memory controller, its parent does.
    tree.put("cg/user.slice/user@1.service/app.slice/cgroup.controllers", "pids\n");
    let group = Group::create(&tree.layout(), "run", &all()).unwrap();
    assert_eq!(tree.where_is(&group), ["cg/user.slice/user@1.service/G"]);
}

#[test]
fn v2_sole_member_steps_aside() {
    let tree = Tree::v2("/run.scope");
    let us = std::process::id().to_string();
    tree.put("cg/run.scope/cgroup.procs", &format!("{us}\n"));
    let layout = tree.layout();
    assert!(!tree.0.join("cg/run.scope/cofferdam-self").exists(), "looking changes nothing");
    let group = Group::create(&layout, "run", &all()).unwrap();
    assert_eq!(tree.where_is(&group), ["cg/run.scope/G"]);
    assert_eq!(tree.get("cg/run.scope/cofferdam-self/cgroup.procs"), us);
    assert_eq!(tree.get("cg/run.scope/cgroup.subtree_control"), "+memory +pids +cpu");
    // The second group of the same process needs no second step.
    tree.put("cg/run.scope/cofferdam-self/cgroup.procs", "untouched");
    let second = Group::create(&layout, "second", &all()).unwrap();
    assert_eq!(tree.where_is(&second), ["cg/run.scope/G"]);
    assert_eq!(tree.get("cg/run.scope/cofferdam-self/cgroup.procs"), "untouched");
}

#[test]
fn v2_under_systemd_controllers_are_kept_by_a_directory_of_ours() {
    // systemd disables controllers of its slices whenever it starts a unit; the kernel refuses where a child has them
    // enabled.
    let tree = Tree::v2("/system.slice/some.service");
    tree.put("cg/system.slice/some.service/cgroup.procs", &format!("1\n{}\n", std::process::id()));
    tree.put("run/systemd/system/x", "");
    let layout = tree.layout();
    let group = Group::create(&layout, "run", &all()).unwrap();
    assert_eq!(tree.where_is(&group), ["cg/system.slice/cofferdam-runs/G"]);
    assert_eq!(tree.get("cg/system.slice/cofferdam-runs/cgroup.subtree_control"), "+memory +pids +cpu");
    let paths: Vec<PathBuf> = group.paths().into_iter().map(Path::to_path_buf).collect();
    assert_eq!(Group::paths_of(&layout, "run", &all()).unwrap(), paths, "known before it is made");
    assert_eq!(Group::paths_to_remove(&paths), [paths[0].clone(), tree.0.join("cg/system.slice/cofferdam-runs")]);
    let second = Group::create(&layout, "second", &all()).unwrap();
    group.remove().unwrap();
    assert_eq!(tree.where_is(&second), ["cg/system.slice/cofferdam-runs/G"], "it stays while it holds another's");
}

#[test]
fn v2_stays_inside_a_limit_that_holds_us() {
    let tree = Tree::v2("/system.slice/some.service");
    tree.put("cg/system.slice/some.service/cgroup.procs", &format!("1\n{}\n", std::process::id()));
    let parent_group = |tree: &Tree| tree.where_is(&Group::create(&tree.layout(), "run", &all()).unwrap());
    tree.put("cg/system.slice/some.service/pids.max", "4915\n");
    assert_eq!(parent_group(&tree), ["cg/system.slice/G"], "control: every unit has a limit on tasks");
    for (file, limited, unlimited) in
        [("memory.max", "1048576\n", "max\n"), ("cpu.max", "1000 100000\n", "max 100000\n")]
    {
        tree.put(&format!("cg/system.slice/some.service/{file}"), limited);
        assert!(tree.missing(&all()).reason.contains("other processes"), "{file}");
        tree.put(&format!("cg/system.slice/some.service/{file}"), unlimited);
    }
}

#[test]
fn v2_crowded_group_is_reported_with_its_fix() {
    // A container: its root is not the kernel's root, and its init is a member beside us.
    let tree = Tree::v2("/");
    tree.put("cg/cgroup.type", "domain\n");
    tree.put("cg/cgroup.procs", &format!("1\n{}\n", std::process::id()));
    tree.put("run/systemd/system/x", "");
    let missing = tree.missing(&all());
    assert_eq!(missing.limit, "memory_mb");
    assert!(missing.reason.contains("other processes"), "{missing:?}");
    assert!(missing.fix.unwrap().starts_with("systemd-run --scope -p Delegate=yes"));
    let memory = &tree.layout().capabilities()[0];
    assert!(!memory.usable && memory.fix.is_some());
    // Control: killing needs no controller and works there.
    let want = GroupSpec { kill: true, cpu_usage: true, ..GroupSpec::default() };
    let group = Group::create(&tree.layout(), "run", &want).unwrap();
    assert_eq!(group.usage().cpu_us, Some(1234));
}

#[test]
fn v1_writes_each_limit_in_its_hierarchy() {
    let tree = Tree::v1("4:memory:/\n3:pids:/\n2:cpu,cpuacct:/\n1:cpuset:/\n");
    tree.put("cg/cpuset/cpuset.effective_mems", "0-1\n");
    let layout = tree.layout();
    assert_eq!(layout.kind, HierarchyKind::V1);
    let want = GroupSpec { cpus: Some(vec![3]), ..all() };
    let group = Group::create(&layout, "run", &want).unwrap();
    assert_eq!(tree.where_is(&group), ["cg/memory/G", "cg/pids/G", "cg/cpu,cpuacct/G", "cg/cpuset/G"]);
    for (file, expected) in [
        ("memory/G/memory.limit_in_bytes", "67108864"),
        ("memory/G/memory.memsw.limit_in_bytes", "67108864"),
        ("memory/G/memory.swappiness", "0"),
        ("pids/G/pids.max", "9"),
        ("cpu,cpuacct/G/cpu.cfs_quota_us", "50000"),
        ("cpu,cpuacct/G/cpu.cfs_period_us", "100000"),
        ("cpuset/G/cpuset.mems", "0-1"),
        ("cpuset/G/cpuset.cpus", "3"),
    ] {
        assert_eq!(tree.get(&format!("cg/{}", file.replace('G', group.name()))), expected, "{file}");
    }
    assert_eq!(group.usage().cpu_us, Some(5000));
    assert_eq!(group.usage().memory_peak, Some(8192));
    assert_eq!(group.usage().pids_peak, None);
    assert!(group.v2_dir_fd().is_none());
    assert_eq!(group.freeze(true).unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert_eq!(group.entry_files(ChildOrigin::Outside).unwrap().len(), 4);
    let counters = format!("cg/memory/{}/memory.oom_control", group.name());
    tree.put(&counters, "oom_kill_disable 0\nunder_oom 1\noom_kill 3\n");
    assert_eq!(group.oom_kills(), 3);
    group.remove().unwrap();
}

#[test]
fn v1_touches_only_what_is_wanted() {
    let tree = Tree::v1("4:memory:/\n3:pids:/\n2:cpu,cpuacct:/\n1:cpuset:/\n");
    for (want, expected) in [
        (GroupSpec { memory_bytes: Some(1), ..GroupSpec::default() }, &["cg/memory/G"][..]),
        (GroupSpec { pids: Some(1), kill: true, ..GroupSpec::default() }, &["cg/pids/G"]),
        (GroupSpec { kill: true, ..GroupSpec::default() }, &["cg/pids/G"]),
        (GroupSpec { cpu_usage: true, ..GroupSpec::default() }, &["cg/cpu,cpuacct/G"]),
        (GroupSpec::default(), &[]),
    ] {
        let group = Group::create(&tree.layout(), "run", &want).unwrap();
        assert_eq!(tree.where_is(&group), expected, "{want:?}");
    }
}

#[test]
fn v1_stays_inside_a_limit_that_holds_us() {
    let tree = Tree::v1("4:memory:/outer/inner\n3:pids:/\n");
    tree.group("cg/memory/outer", &[V1_MEMORY]);
    tree.group("cg/memory/outer/inner", &[V1_MEMORY]);
    let want = GroupSpec { memory_bytes: Some(4096), ..GroupSpec::default() };
    let parent_group = |tree: &Tree| tree.where_is(&Group::create(&tree.layout(), "run", &want).unwrap());
    assert_eq!(parent_group(&tree), ["cg/memory/G"], "control: unlimited groups do not hold us");
    tree.put("cg/memory/outer/memory.limit_in_bytes", "1073741824\n");
    assert_eq!(parent_group(&tree), ["cg/memory/outer/G"]);
}

#[test]
fn hybrid_limits_in_v1_and_kills_in_v2() {
    let tree = Tree::hybrid();
    let layout = tree.layout();
    assert_eq!(layout.kind, HierarchyKind::Hybrid);
    let group = Group::create(&layout, "run", &all()).unwrap();
    assert_eq!(tree.where_is(&group), ["cg/memory/G", "cg/pids/G", "cg/cpu,cpuacct/G", "cg/unified/G"]);
    assert_eq!(group.usage().cpu_us, Some(1234), "the v2 group is the clock when it is there");
    assert_eq!(group.entry_files(ChildOrigin::ClonedIntoV2).unwrap().len(), 3);
    assert_eq!(tree.get("cg/unified/cgroup.subtree_control"), "\n", "nothing to hand out");
    group.kill().unwrap();
    assert_eq!(tree.get(&format!("cg/unified/{}/cgroup.kill", group.name())), "1");
}

#[test]
fn a_failed_limit_leaves_nothing_behind() {
    let tree = Tree::hybrid();
    fs::remove_file(tree.0.join("cg/pids/.template/pids.max")).unwrap();
    let error = Group::create(&tree.layout(), "run", &all()).unwrap_err();
    assert!(error.to_string().contains("cg/pids"), "{error}");
    for hierarchy in ["memory", "pids", "unified"] {
        let left: Vec<_> = fs::read_dir(tree.0.join("cg").join(hierarchy)).unwrap().flatten().collect();
        assert!(left.iter().all(|e| !e.file_name().to_string_lossy().starts_with(PREFIX)), "{hierarchy}: {left:?}");
    }
}

#[test]
fn a_fresh_v1_cpuset_is_filled_even_when_nobody_asks_for_it() {
    // cpu and cpuset bound to one hierarchy: an empty cpuset would refuse the child.
    let tree = Tree::new("30 1 0:1 / /cg/both rw - cgroup c rw,cpuset,cpu\n", "1:cpuset,cpu:/\n");
    tree.group("cg/both", &[V1_CPU, V1_CPUSET]);
    let want = GroupSpec { cpu_quota: Some(1.0), ..GroupSpec::default() };
    let group = Group::create(&tree.layout(), "run", &want).unwrap();
    assert_eq!(tree.get(&format!("cg/both/{}/cpuset.mems", group.name())), "0");
    assert_eq!(tree.get(&format!("cg/both/{}/cpuset.cpus", group.name())), "0-3");
    assert!(!group.pins_cpus());
}

#[test]
fn pinning_is_best_effort() {
    let tree = Tree::v2("/");
    let want = GroupSpec { cpus: Some(vec![0]), ..all() };
    assert!(Group::create(&tree.layout(), "run", &want).unwrap().pins_cpus(), "control");
    fs::remove_file(tree.0.join("cg/.template/cpuset.cpus")).unwrap();
    let group = Group::create(&tree.layout(), "run", &want).unwrap();
    assert!(!group.pins_cpus());
    assert_eq!(tree.get(&format!("cg/{}/pids.max", group.name())), "9", "the other limits hold");
}

#[test]
fn a_host_without_cgroups_says_what_is_missing() {
    let tree = Tree::new("22 1 0:1 / / rw - ext4 /dev/vda rw\n", "");
    let layout = tree.layout();
    assert_eq!(layout.kind, HierarchyKind::None);
    for capability in layout.capabilities() {
        assert!(!capability.usable && capability.reason.is_some(), "{capability:?}");
    }
    for (want, limit) in [
        (GroupSpec { memory_bytes: Some(1), ..GroupSpec::default() }, "memory_mb"),
        (GroupSpec { pids: Some(1), ..GroupSpec::default() }, "processes"),
        (GroupSpec { cpu_quota: Some(1.0), ..GroupSpec::default() }, "cpus"),
        (GroupSpec { cpu_usage: true, ..GroupSpec::default() }, "cpu_ms"),
        (GroupSpec { kill: true, ..GroupSpec::default() }, "kill"),
    ] {
        assert_eq!(tree.missing(&want).limit, limit);
    }
    assert!(Group::create(&layout, "run", &GroupSpec::default()).is_ok(), "control: nothing wanted, nothing missing");
}

#[test]
fn odd_files_are_survived() {
    let tree = Tree::v2("/a/b");
    for file in ["memory.events", "pids.events", "cpu.stat", "memory.current", "pids.peak", "cgroup.events"] {
        for garbage in ["", "max", "oom_kill", "oom_kill x\nmax -1\nusage_usec 99999999999999999999999\n", "\0\u{fffd}"]
        {
            tree.put(&format!("cg/a/b/{TEMPLATE}/{file}"), garbage);
            let want = GroupSpec { cpu_usage: false, ..all() };
            let group = Group::create(&tree.layout(), "run", &want).unwrap();
            let _ = (group.usage(), group.oom_kills(), group.pids_denied(), group.events().len());
            if file == "cgroup.events" {
                assert!(group.populated(), "what cannot be read counts as populated");
            }
        }
    }
    tree.put("proc/self/cgroup", "nonsense\n::\n0\n");
    tree.put("proc/self/mountinfo", "- cgroup2\n1 2 3 - cgroup\n\u{0} - \n");
    assert_eq!(tree.layout().kind, HierarchyKind::None);
    tree.put("proc/self/mountinfo", "30 1 0:1 / /nowhere rw - cgroup2 c rw\n");
    assert!(!tree.layout().capabilities()[0].usable);
}

#[test]
fn an_unreadable_clock_is_refused() {
    let tree = Tree::v2("/");
    tree.put(&format!("cg/{TEMPLATE}/cpu.stat"), "usage_usec ?\n");
    assert_eq!(tree.missing(&all()).limit, "cpu_ms");
    assert!(Group::create(&tree.layout(), "run", &GroupSpec { cpu_usage: false, ..all() }).is_ok(), "control");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let layout = Tree::v2("/").layout();
    for name in ["", "..", "a/b", "a\0b"] {
        assert!(matches!(Group::create(&layout, name, &all()), Err(CgroupError::Invalid(_))), "{name:?}");
    }
    for cpus in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let want = GroupSpec { cpu_quota: Some(cpus), ..GroupSpec::default() };
        assert!(matches!(Group::create(&layout, "run", &want), Err(CgroupError::Invalid(_))), "{cpus}");
    }
}

#[test]
fn delegation_on_v2_enables_controllers_down_to_the_user() {
    let tree = Tree::v2("/");
    let layout = tree.layout();
    let lines = delegate(&layout, 15002, 15002).unwrap();
    assert_eq!(lines.len(), 1);
    for dir in ["cg", "cg/cofferdam", "cg/cofferdam/15002"] {
        assert_eq!(tree.get(&format!("{dir}/cgroup.subtree_control")), "+memory +pids +cpu +cpuset", "{dir}");
    }
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &str| fs::metadata(tree.0.join(path)).unwrap().uid();
    assert_eq!(owner("cg/cofferdam/15002"), 15002);
    assert_eq!(owner("cg/cofferdam/15002/cofferdam-self/cgroup.procs"), 15002);
    assert_ne!(owner("cg/cofferdam/15002/memory.max"), 15002, "the user's own ceiling is not the user's");
    assert_ne!(owner("cg/cofferdam"), 15002);
    assert_eq!(delegate(&layout, 15002, 15002).unwrap(), lines, "again changes nothing");
    assert_eq!(undelegate(&layout, 15002).unwrap().len(), 1);
    assert!(!tree.0.join("cg/cofferdam").exists());
    assert!(undelegate(&layout, 15002).unwrap().is_empty());
}
