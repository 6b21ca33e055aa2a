//! Tests on this machine's own hierarchies. Only groups made here are touched, only processes started here are killed.
//! A test that the machine or the user does not permit prints that and passes.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::super::dir::Dir;
use super::super::owner::Owner;
use super::super::*;

/// A uid that no other user of a test machine has.
const USER: u32 = 15001;
/// Set for the copy of this test binary that runs as another user or in another group.
const ROLE: &str = "COFFERDAM_CGROUP_TEST_ROLE";

fn live() -> Option<Layout> {
    let layout = Layout::detect(Path::new("/"));
    let missing = layout.capabilities().into_iter().find(|c| c.what != "cpuset" && !c.usable);
    if let Some(missing) = &missing {
        eprintln!("skipped: {missing:?}");
    }
    missing.is_none().then_some(layout)
}

fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test_{what}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn group(layout: &Layout, what: &str, want: GroupSpec) -> Group {
    Group::create(layout, &unique(what), &want).unwrap()
}

/// Starts `script` inside the group, entered by the child itself.
fn run(group: &Group, script: &str) -> Child {
    let files = group.entry_files(ChildOrigin::Outside).unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: between fork and exec only `write` is called, on descriptors that are open until `spawn` returns.
    unsafe {
        command.pre_exec(move || files.iter().try_for_each(|mut file| file.write_all(b"0")));
    }
    command.spawn().unwrap()
}

fn finish(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().unwrap();
    (output.status, String::from_utf8_lossy(&output.stdout).into_owned())
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ready(event: &EventFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: event.as_fd().as_raw_fd(), events: event.poll_mask(), revents: 0 };
    // SAFETY: one initialised entry, and the count says so.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) == 1 && poll.revents & event.poll_mask() != 0 }
}

fn event(group: &Group, kind: EventKind) -> Option<EventFd> {
    group.events().into_iter().find(|e| e.kind == kind)
}

/// Removes the group and checks that no directory is left.
fn gone(group: Group) {
    let paths: Vec<_> = group.paths().into_iter().map(Path::to_path_buf).collect();
    group.remove().unwrap();
    for path in paths {
        assert!(!path.exists(), "{} is left", path.display());
    }
}

#[test]
fn a_tree_out_of_memory_is_told_from_a_killed_one() {
    let Some(layout) = live() else { return };
    let want = || GroupSpec { memory_bytes: Some(32 << 20), kill: true, ..GroupSpec::default() };
    let small = group(&layout, "oom", want());
    let oom = event(&small, EventKind::Oom).unwrap();
    assert!(!ready(&oom, 0), "quiet before anything happened");
    // A single endless line, which tail has to keep.
    let (status, _) = finish(run(&small, "exec tail /dev/zero"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    assert!(ready(&oom, 2000));
    assert!(small.oom_kills() >= 1);
    let peak = small.usage().memory_peak.unwrap();
    assert!((30 << 20..=32 << 20).contains(&peak), "{peak}");
    gone(small);
    // Control: within the limit it passes, and an ordinary SIGKILL is not counted.
    let same = group(&layout, "fits", want());
    let (status, _) = finish(run(&same, "head -c 8000000 /dev/zero | tail -c 7000000 >/dev/null; kill -9 $$"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    assert_eq!(same.oom_kills(), 0);
    gone(same);
}

#[test]
fn exactly_the_allowed_processes_fit() {
    let Some(layout) = live() else { return };
    let script = "sleep 0.3 & sleep 0.3 & echo two; wait";
    let want = |pids| GroupSpec { pids: Some(pids), kill: true, ..GroupSpec::default() };
    let fits = group(&layout, "fits", want(3));
    let (status, out) = finish(run(&fits, script));
    assert!(status.success() && out == "two\n", "{status:?} {out}");
    assert_eq!(fits.pids_denied(), 0);
    assert_eq!(fits.usage().pids_peak.unwrap_or(3), 3);
    gone(fits);
    let tight = group(&layout, "tight", want(2));
    let pids = event(&tight, EventKind::Pids);
    let v1 = tight.v2_dir_fd().is_none() || tight.paths().len() > 1;
    assert_eq!(pids.is_none(), v1);
    assert!(pids.as_ref().is_none_or(|e| !ready(e, 0)));
    let (_, out) = finish(run(&tight, script));
    assert_ne!(out, "two\n");
    assert!(tight.pids_denied() >= 1);
    if let Some(pids) = pids {
        assert!(ready(&pids, 1000));
        pids.rearm();
        assert!(!ready(&pids, 0), "quiet again after it was read");
    }
    eventually("the rest of the tree ends", || !tight.populated());
    gone(tight);
}

#[test]
fn processor_time_is_counted_by_either_clock() {
    let Some(layout) = live() else { return };
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    for kill in [true, false] {
        let want = || GroupSpec { cpu_usage: true, kill, ..GroupSpec::default() };
        let worker = group(&layout, "busy", want());
        assert!(finish(run(&worker, busy)).0.success());
        let idler = group(&layout, "idle", want());
        assert!(finish(run(&idler, "sleep 0.2")).0.success());
        let (worked, idled) = (worker.usage().cpu_us.unwrap(), idler.usage().cpu_us.unwrap());
        assert!(worked > 30_000 && worked > 3 * idled, "worked {worked} µs, idled {idled} µs, v2 {kill}");
        gone(worker);
        gone(idler);
    }
}

#[test]
fn a_quota_slows_the_tree_down() {
    let Some(layout) = live() else { return };
    let script = "exec timeout 0.6 sh -c 'while :; do :; done'";
    let used = |cpu_quota| {
        let group =
            group(&layout, "quota", GroupSpec { cpu_quota, cpu_usage: true, kill: true, ..GroupSpec::default() });
        finish(run(&group, script));
        let used = group.usage().cpu_us.unwrap();
        gone(group);
        used
    };
    let (free, slowed) = (used(None), used(Some(0.05)));
    assert!(slowed < 60_000, "0.05 of 600 ms and slack, not {slowed} µs");
    assert!(free > slowed, "control: {free} µs without a quota");
}

#[test]
fn kill_empties_the_group_and_nothing_else() {
    let Some(layout) = live() else { return };
    let script = "for i in 1 2 3 4 5; do setsid sleep 60 & done; wait";
    // With v2 it is one write; without, one by one.
    for want in [
        GroupSpec { pids: Some(20), kill: true, ..GroupSpec::default() },
        GroupSpec { pids: Some(20), ..GroupSpec::default() },
        GroupSpec { cpu_quota: Some(1.0), ..GroupSpec::default() },
    ] {
        let victim = group(&layout, "victim", want.clone());
        let other = group(&layout, "other", want.clone());
        let (mut dying, mut living) = (run(&victim, script), run(&other, "exec sleep 60"));
        eventually("all have started", || victim.members().unwrap().len() == 6);
        let empty = victim.populated_event();
        assert_eq!(empty.is_some(), want.kill);
        victim.kill().unwrap();
        assert!(empty.as_ref().is_none_or(|e| ready(e, 5000)));
        eventually("the group is empty", || !victim.populated());
        if let Some(empty) = empty {
            empty.rearm();
            assert!(!ready(&empty, 0), "quiet again after it was read");
        }
        assert_eq!(dying.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(living.try_wait().unwrap().is_none(), "control: the neighbour lives");
        other.kill().unwrap();
        living.wait().unwrap();
        gone(victim);
        gone(other);
    }
}

#[test]
fn a_frozen_tree_stands_still_and_can_be_killed() {
    let Some(layout) = live() else { return };
    let frozen = group(&layout, "frozen", GroupSpec { kill: true, cpu_usage: true, ..GroupSpec::default() });
    let mut child = run(&frozen, "while :; do :; done");
    let clock = || frozen.usage().cpu_us.unwrap();
    eventually("it runs", || clock() > 20_000);
    frozen.freeze(true).unwrap();
    eventually("it is frozen", || frozen.frozen());
    let before = clock();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(clock(), before);
    frozen.freeze(false).unwrap();
    eventually("control: thawed, it goes on", || clock() > before + 5_000);
    frozen.freeze(true).unwrap();
    frozen.kill().unwrap();
    child.wait().unwrap();
    eventually("the group is empty", || !frozen.populated());
    gone(frozen);
}

#[test]
fn a_group_dropped_with_members_ends_them() {
    let Some(layout) = live() else { return };
    let dropped = group(&layout, "dropped", GroupSpec { pids: Some(9), kill: true, ..GroupSpec::default() });
    let paths: Vec<_> = dropped.paths().into_iter().map(Path::to_path_buf).collect();
    let mut child = run(&dropped, "exec sleep 60");
    assert!(child.try_wait().unwrap().is_none(), "control: alive before");
    drop(dropped);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(paths.iter().all(|p| !p.exists()));
}

#[test]
fn attaching_from_outside_reaches_every_hierarchy() {
    let Some(layout) = live() else { return };
    let want = GroupSpec {
        memory_bytes: Some(64 << 20),
        pids: Some(9),
        cpu_quota: Some(1.0),
        kill: true,
        ..GroupSpec::default()
    };
    let group = group(&layout, "attach", want);
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let table = || std::fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    let inside = |text: &str| text.lines().filter(|l| l.ends_with(group.name())).count();
    assert_eq!(inside(&table()), 0, "control: not there before");
    group.attach(child.id() as i32).unwrap();
    assert_eq!(inside(&table()), group.paths().len());
    group.kill().unwrap();
    child.wait().unwrap();
    gone(group);
}

#[test]
fn a_child_can_be_born_inside_v2() {
    let Some(layout) = live() else { return };
    let group = group(&layout, "born", GroupSpec { kill: true, ..GroupSpec::default() });
    let born = clone_into(Some(&group));
    assert_eq!(group.members().unwrap(), [born]);
    let outside = clone_into(None);
    assert_eq!(group.members().unwrap(), [born], "control: a plain clone is elsewhere");
    group.kill().unwrap();
    // SAFETY: `outside` is our own child and has not been waited for, so the number is still its own.
    unsafe { libc::kill(outside, libc::SIGKILL) };
    for pid in [born, outside] {
        // SAFETY: both are children of ours that no other code waits for; no status is asked for.
        assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    }
    gone(group);
}

/// libc's constant has lost its only bit to a 32-bit type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn clone_into(group: Option<&Group>) -> i32 {
    // SAFETY: zero is a valid value for every field.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(fd) = group.and_then(Group::v2_dir_fd) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = fd.as_raw_fd() as u64;
    }
    // SAFETY: without a stack of its own this is a fork; the child only sleeps until it is killed.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone3, &args, std::mem::size_of_val(&args));
        if pid == 0 {
            loop {
                libc::pause();
            }
        }
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        pid as i32
    }
}

#[test]
fn a_name_is_taken_once() {
    let Some(layout) = live() else { return };
    let want = GroupSpec { pids: Some(3), kill: true, ..GroupSpec::default() };
    let first = Group::create(&layout, "test_taken", &want).unwrap();
    assert!(matches!(Group::create(&layout, "test_taken", &want), Err(CgroupError::Io { .. })));
    assert!(first.paths().iter().all(|p| p.exists()), "the first is untouched");
    gone(first);
    gone(Group::create(&layout, "test_taken", &want).unwrap());
}

#[test]
fn groups_made_inside_go_too() {
    let Some(layout) = live() else { return };
    let outer = group(&layout, "nested", GroupSpec { kill: true, ..GroupSpec::default() });
    std::fs::create_dir_all(outer.paths()[0].join("a/b")).unwrap();
    gone(outer);
}

#[test]
fn sweep_takes_orphans_and_leaves_the_living() {
    let Some(layout) = live() else { return };
    let me = Owner::current().unwrap();
    let mine = me.group_name("x");
    let fields: Vec<&str> = mine.split('-').collect();
    let started: u64 = fields[2].parse().unwrap();
    // Our pid with another start time: an owner that is gone and whose number was used again.
    let orphan = format!("cofferdam-{}-{}-{}-orphan", fields[1], started - 1, fields[3]);
    let foreign = format!("cofferdam-{}-{}-1-foreign", fields[1], started - 1);
    let plant = |name: &str| {
        let places = ["pids", "memory"].into_iter().map(|c| layout.find(c).unwrap().1);
        for parent_group in places.chain([layout.v2().unwrap().1]) {
            parent_group.dir.make(name).unwrap();
        }
    };
    let (_, v2) = layout.v2().unwrap();
    plant(&orphan);
    plant(&foreign);
    let alive = group(&layout, "alive", GroupSpec { pids: Some(9), kill: true, ..GroupSpec::default() });
    let mut left_over = Command::new("sleep").arg("60").spawn().unwrap();
    v2.dir.child(&orphan).unwrap().write("cgroup.procs", &left_over.id().to_string()).unwrap();
    let mut living = run(&alive, "exec sleep 60");
    assert!(sweep(&layout) >= 1);
    assert_eq!(left_over.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(living.try_wait().unwrap().is_none() && alive.paths().iter().all(|p| p.exists()));
    for controller in ["pids", "memory"] {
        let dir = &layout.find(controller).unwrap().1.dir;
        assert!(dir.child(&orphan).is_err(), "{controller}");
        assert!(dir.child(&foreign).is_ok(), "a pid of another namespace is not judged");
        dir.remove(&foreign).unwrap();
    }
    v2.dir.remove(&foreign).unwrap();
    alive.kill().unwrap();
    living.wait().unwrap();
    gone(alive);
}

/// Runs the test `name` of this binary in another role; `setup` is shell that runs first, as root.
fn replay(name: &str, role: &str, uid: Option<u32>, setup: &str) {
    // The build directory may be closed to other users. Another process copies: a file that is open for writing
    // here could be inherited by a child of another test and then not be run.
    let copy = std::env::temp_dir().join(format!("cofferdam-test-{}-{}", std::process::id(), unique(role)));
    let exe = std::env::current_exe().unwrap();
    assert!(Command::new("cp").arg(exe).arg(&copy).status().unwrap().success());
    let drop = uid.map_or(String::new(), |uid| format!("setpriv --reuid {uid} --regid {uid} --clear-groups"));
    let script = format!("set -e; {setup}\nexec {drop} {} --exact --ignored --nocapture {name}", copy.display());
    let output = Command::new("/bin/sh").args(["-c", &script]).env(ROLE, role).current_dir("/").output().unwrap();
    let _ = std::fs::remove_file(&copy);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{role}: {text}");
}

fn is_role(role: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|r| r == role)
}

/// Takes the delegation back when the test fails half-way.
struct Undelegate<'a>(&'a Layout);

impl Drop for Undelegate<'_> {
    fn drop(&mut self) {
        let _ = undelegate(self.0, USER);
    }
}

#[test]
fn a_delegated_user_has_limits() {
    let Some(layout) = live() else { return };
    if super::super::raw::effective_uid() != 0 {
        return eprintln!("skipped: only root can delegate");
    }
    let path = module_path!();
    let (_, module) = path.split_once("::").unwrap();
    let without = format!("{module}::without_delegation");
    let with = format!("{module}::with_delegation");
    let _cleanup = Undelegate(&layout);
    undelegate(&layout, USER).unwrap();
    replay(&without, "without", Some(USER), ":");
    let lines = delegate(&layout, USER, USER).unwrap();
    assert_eq!(delegate(&layout, USER, USER).unwrap(), lines, "again changes nothing");
    replay(&with, "outside", Some(USER), ":");
    let v2 = &layout.hierarchies[layout.v2().unwrap().0].mount;
    let enter = format!("echo $$ > {}/cofferdam/{USER}/cofferdam-self/cgroup.procs", v2.display());
    replay(&with, "inside", Some(USER), &enter);
    assert!(!undelegate(&layout, USER).unwrap().is_empty());
    for hierarchy in &layout.hierarchies {
        assert!(!hierarchy.mount.join("cofferdam").join(USER.to_string()).exists());
    }
    replay(&without, "without", Some(USER), ":");
}

#[test]
#[ignore = "run as another user by a_delegated_user_has_limits"]
fn without_delegation() {
    assert!(is_role("without"));
    let layout = Layout::detect(Path::new("/"));
    for (want, limit) in [
        (GroupSpec { memory_bytes: Some(1 << 20), ..GroupSpec::default() }, "memory_mb"),
        (GroupSpec { pids: Some(5), ..GroupSpec::default() }, "processes"),
        (GroupSpec { kill: true, ..GroupSpec::default() }, "kill"),
    ] {
        match Group::create(&layout, "run", &want) {
            Err(CgroupError::Missing(missing)) => {
                assert_eq!(missing.limit, limit);
                assert!(missing.fix.is_some_and(|f| f.contains("cofferdam")), "{limit}");
            }
            other => panic!("{limit}: {other:?}"),
        }
    }
}

#[test]
#[ignore = "run as another user by a_delegated_user_has_limits"]
fn with_delegation() {
    let in_v2 = is_role("inside");
    assert!(in_v2 || is_role("outside"));
    let layout = Layout::detect(Path::new("/"));
    let freeze = layout.capabilities().into_iter().find(|c| c.what == "freeze").unwrap();
    assert_eq!(freeze.usable, in_v2, "{freeze:?}");
    assert_eq!(freeze.fix.is_some_and(|f| f.contains("tee")), !in_v2);
    let want = || GroupSpec {
        memory_bytes: Some(32 << 20),
        pids: Some(9),
        cpu_quota: Some(1.0),
        cpu_usage: true,
        cpus: Some(vec![0]),
        kill: true,
        survives: false,
    };
    let small = group(&layout, "user", want());
    assert!(small.pins_cpus());
    let (status, _) = finish(run(&small, "exec tail /dev/zero"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    assert!(small.oom_kills() >= 1 && small.usage().cpu_us.unwrap() > 0);
    let mut child = run(&small, "sleep 60 & sleep 60");
    eventually("all have started", || small.members().unwrap().len() == 3);
    small.kill().unwrap();
    child.wait().unwrap();
    eventually("the group is empty", || !small.populated());
    gone(small);
    // The ceiling that root set for the user is not the user's to change.
    let (_, parent_group) = layout.find("memory").unwrap();
    assert!(parent_group.dir.write("memory.limit_in_bytes", "1073741824").is_err());
    assert_eq!(sweep(&layout), 0);
}

/// hugetlb is the one controller that this machine's v2 tree has, and no limit of ours; but the rules for handing
/// controllers out are the same for all, so the real kernel is asked about them with it.
#[test]
fn v2_controllers_are_handed_out_by_a_real_kernel() {
    let Some(layout) = live() else { return };
    let (_, v2) = layout.v2().unwrap();
    let handed = v2.dir.words("cgroup.subtree_control");
    let free = v2.dir.words("cgroup.controllers").iter().any(|c| c == "hugetlb");
    if !free || super::super::raw::effective_uid() != 0 || handed.iter().any(|c| c == "hugetlb") {
        return eprintln!("skipped: no free hugetlb controller in v2");
    }
    super::super::parent::enable(&v2.dir, &["hugetlb"]).unwrap();
    let name = Owner::current().unwrap().group_name("handout");
    let scope = Arc::new(v2.dir.make(&name).unwrap());
    let path = v2.path.join(&name);
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::hand_out");
    let enter = format!("echo $$ > {}/cgroup.procs", path.display());
    let result = std::panic::catch_unwind(|| {
        // A second member: no controller can be enabled, and that is reported before the attempt.
        replay(&test, "crowded", None, &format!("{enter}; sleep 60 >/dev/null 2>&1 &"));
        scope.write("cgroup.kill", "1").unwrap();
        eventually("the crowd is gone", || scope.keyed("cgroup.events", "populated") == Some(0));
        replay(&test, "sole", None, &enter);
    });
    scope.write("cgroup.kill", "1").unwrap();
    eventually("nobody is left", || scope.keyed("cgroup.events", "populated") == Some(0));
    for child in scope.children() {
        scope.remove(&child).unwrap();
    }
    drop(scope);
    v2.dir.remove(&name).unwrap();
    v2.dir.write("cgroup.subtree_control", "-hugetlb").unwrap();
    result.unwrap();
}

#[test]
#[ignore = "run inside a group of its own by v2_controllers_are_handed_out_by_a_real_kernel"]
fn hand_out() {
    use super::super::parent::{CgroupHost, v2};
    let layout = Layout::detect(Path::new("/"));
    let mount = layout.hierarchies[layout.v2().unwrap().0].mount.clone();
    let table = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = table.lines().find_map(|l| l.strip_prefix("0::/")).unwrap().to_owned();
    let (offered, parent_group) =
        v2(&CgroupHost::new(Path::new("/"), 0), &mount, std::slice::from_ref(&own), &["hugetlb"]);
    assert_eq!(offered, ["hugetlb"]);
    let parent_group = parent_group.unwrap();
    if is_role("crowded") {
        // The kernel's root above us can hand out, so it is taken instead, and no group of ours is in the way.
        assert_eq!(parent_group.path, mount);
        let scope = Dir::open(&mount.join(&own)).unwrap();
        let busy = super::super::parent::enable(&scope, &["hugetlb"]).unwrap_err();
        assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy, "control: the kernel refuses what we did not try");
        return;
    }
    assert!(is_role("sole"));
    assert_eq!(parent_group.path, mount.join(&own));
    parent_group.prepare(&["hugetlb"]).unwrap();
    let now = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(now.contains(&format!("0::/{own}/cofferdam-self\n")), "{now}");
    assert_eq!(parent_group.dir.words("cgroup.subtree_control"), ["hugetlb"]);
    let group = parent_group.dir.make("child").unwrap();
    assert_eq!(group.words("cgroup.controllers"), ["hugetlb"]);
    drop(group);
    parent_group.dir.remove("child").unwrap();
    // From the leaf the same parent is found again, and no preparation is left to do.
    let inside = [own, "cofferdam-self".to_owned()];
    let (_, again) = v2(&CgroupHost::new(Path::new("/"), 0), &mount, &inside, &["hugetlb"]);
    let again = again.unwrap();
    assert_eq!(again.path, parent_group.path);
    again.prepare(&["hugetlb"]).unwrap();
}
