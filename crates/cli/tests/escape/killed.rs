//! Killed without warning at any moment of its life, cofferdam leaves nothing: no process, group, mount or file.

use crate::kernel::truth::{census, mounts, orphaned_groups, soon};
use crate::support::{As, BOTH, Place, sample, to_the_end};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The command line that kills the supervisor (not its children, which strace is not told to follow) at its `n`th
/// call; `None` lets it live and writes down its calls.
fn traced(place: &Place, binary: &Path, kill_at: Option<usize>, log: &Path) -> Command {
    let mut command = place.outside("/usr/bin/strace");
    command.arg("-o").arg(if kill_at.is_some() { Path::new("/dev/null") } else { log });
    if let Some(n) = kill_at {
        command.args(["-e", "trace=all", "-e", &format!("inject=all:signal=KILL:when={n}")]);
    }
    command.arg(binary).arg("run");
    // An ordinary user has memory groups only where root delegated them.
    if place.who == As::Root {
        command.args(["-m", "64m"]);
    }
    command.arg("--").arg(place.project.join("command")).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn leftovers(place: &Place, mounts_before: &str, files: usize) -> Vec<String> {
    let mut left = Vec::new();
    let processes = census(place.root.to_str().unwrap());
    left.extend((!processes.is_empty()).then(|| format!("processes {processes:?}")));
    let groups = orphaned_groups();
    left.extend((!groups.is_empty()).then(|| format!("groups {groups:?}")));
    left.extend((mounts() != mounts_before).then(|| "mounts".to_string()));
    left.extend((count(&place.root) != files).then(|| "files".to_string()));
    left
}

/// But for the layers of workspaces: nobody can tell that a run which was cut off changed nothing worth keeping.
fn count(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_name() != "state");
    entries.map(|e| 1 + if e.path().is_dir() { count(&e.path()) } else { 0 }).sum()
}

#[test]
fn nothing_is_left_wherever_cofferdam_is_killed() {
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let log = place.file("calls", "");
        assert!(traced(&place, &binary, None, &log).status().unwrap().success(), "control: it runs under strace");
        let calls = fs::read_to_string(&log).unwrap().lines().count();
        assert!(calls > 100, "{calls} calls");
        let (mounts_before, files) = (mounts(), count(&place.root));
        let (mut tried, mut bad) = (0, Vec::new());
        // An eighth of all calls, and another eighth with the next seed.
        for n in sample::indices(calls / 8, calls).map(|n| n + 1) {
            if bad.len() >= 3 {
                break;
            }
            let _ = traced(&place, &binary, Some(n), &log).status().unwrap();
            tried += 1;
            if !soon(Duration::from_secs(20), || leftovers(&place, &mounts_before, files).is_empty()) {
                bad.push(format!("killed at call {n} of {calls}: {:?}", leftovers(&place, &mounts_before, files)));
                // The next run sweeps up after the dead.
                let _ = traced(&place, &binary, None, &log).status();
            }
        }
        assert!(bad.is_empty(), "{who:?}, {tried} tried, COFFERDAM_TEST_SEED={}: {bad:#?}", sample::seed());
    }
}

/// A place with copies of the programs, so that the census knows this test's processes by their files; and the one copy.
fn with_copies(who: As) -> (Place, PathBuf) {
    let place = Place::new(who);
    let binary = place.root.join("cofferdam");
    fs::copy(crate::support::binary(), &binary).unwrap();
    fs::copy("/bin/true", place.project.join("command")).unwrap();
    (place, binary)
}

/// A run under strace, which does as told to the calls of whoever it follows.
fn meddled(place: &Place, binary: &Path, meddling: &[&str], flags: &[&str]) -> Command {
    let mut command = place.outside("/usr/bin/strace");
    command.args(["-o", "/dev/null"]).args(meddling).arg(binary).arg("run").args(flags);
    command.arg("--").arg(place.project.join("command"));
    command
}

/// Nobody waits for the dead: neither for the helper that makes a guest's places nor for its first process.
#[test]
fn whoever_is_killed_during_setup_is_missed() {
    const HELPER: &str = "the process that makes the guest's places ended during setup";
    const FIRST: &str = "the guest's first process was killed during setup";
    // Calls that one of the two makes and nobody else.
    let deaths = [
        ("landlock_add_rule:signal=KILL:when=2", HELPER),
        ("umount2:signal=KILL:when=1", HELPER),
        // Then the first process is made in the old way, and killed too.
        ("pivot_root:signal=KILL:when=1", FIRST),
        ("setresuid:signal=KILL:when=1", FIRST),
        ("capset:signal=KILL:when=1", FIRST),
        ("seccomp:signal=KILL:when=1", FIRST),
        ("landlock_restrict_self:signal=KILL:when=1", FIRST),
    ];
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let (mounts_before, files) = (mounts(), count(&place.root));
        let flags: &[&str] = if who == As::Root { &["-m", "64m"] } else { &[] };
        let control = to_the_end(&mut meddled(&place, &binary, &["-f", "-e", "trace=capset"], flags), b"");
        assert!(control.status.success(), "control: it runs under strace");
        for (death, told) in deaths {
            let (begun, inject) = (Instant::now(), format!("inject={death}"));
            let run = to_the_end(&mut meddled(&place, &binary, &["-f", "-e", &inject], flags), b"");
            let (text, took) = (String::from_utf8_lossy(&run.stderr), begun.elapsed());
            assert_eq!(run.status.code(), Some(125), "{who:?}, {death}: {text}");
            assert!(text.contains(told), "{who:?}, {death}: {text}");
            assert!(took < Duration::from_secs(30), "{who:?}, {death}: took {took:?}");
            let clean = soon(Duration::from_secs(20), || leftovers(&place, &mounts_before, files).is_empty());
            assert!(clean, "{who:?}, {death}: {:?}", leftovers(&place, &mounts_before, files));
            let layers = fs::read_dir(place.state().join("layers")).unwrap().count();
            assert_eq!(layers, 0, "{who:?}, {death}: nothing ran, and a workspace is left");
        }
    }
}

/// A first process that cannot be told what it is for is not waited for: another is made.
#[test]
fn a_first_process_that_gets_no_order_is_replaced() {
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let mute = ["-e", "inject=sendto:error=ENOBUFS:when=1"];
        let run = to_the_end(&mut meddled(&place, &binary, &mute, &[]), b"");
        assert!(run.status.success(), "{who:?}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

/// The first process is tied to the supervisor a moment after it was made. Killed before, the supervisor takes it along all
/// the same.
#[test]
fn a_supervisor_killed_before_anybody_is_tied_to_it_leaves_nobody() {
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let late = ["-f", "-e", "trace=prctl", "-e", "inject=prctl:delay_enter=3s:when=1"];
        let mut strace = meddled(&place, &binary, &late, &[]);
        let mut strace = strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let born = || in_own_pids(&census(place.root.to_str().unwrap()));
        assert!(soon(Duration::from_secs(30), || born().is_some()), "{who:?}: no first process came");
        // By now it has its order, or will soon.
        std::thread::sleep(Duration::from_millis(300));
        let supervisor = born().and_then(parent).expect("it is still there");
        assert!(Command::new("kill").args(["-KILL", &supervisor.to_string()]).status().unwrap().success());
        let gone = soon(Duration::from_secs(30), || census(place.root.to_str().unwrap()).is_empty());
        let left = census(place.root.to_str().unwrap());
        let _ = strace.kill();
        let _ = strace.wait();
        assert!(gone, "{who:?}: {left:?}");
    }
}

/// A line of a process's status, without its name.
fn status_line(pid: i32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name).map(String::from))
}

/// The one that has a pid namespace of its own: numbers in both.
fn in_own_pids(processes: &[i32]) -> Option<i32> {
    let numbers = |pid: &i32| status_line(*pid, "NSpid:").map_or(0, |line| line.split_whitespace().count());
    let ours = numbers(&(std::process::id() as i32));
    processes.iter().copied().find(|pid| numbers(pid) > ours)
}

fn parent(pid: i32) -> Option<i32> {
    status_line(pid, "PPid:")?.trim().parse().ok()
}
