//! SIGKILL of cofferdam at any moment leaves no process, group, mount or file.

use crate::kernel::truth::{census, mounts, orphaned_groups, soon};
use crate::support::{As, BOTH, Place, sample, to_the_end};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A command line under strace that kills the supervisor at its `n`th call (but not its children, which strace does not
/// follow); `None` lets it live and logs its calls.
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
    left.extend((mounts(place) != mounts_before).then(|| "mounts".to_string()));
    left.extend((count(&place.root) != files).then(|| "files".to_string()));
    left
}

/// Files below a directory, except for the state directory: an interrupted run cannot prove that its layer holds no
/// change, so layers stay.
fn count(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_name() != "state");
    entries.map(|e| 1 + if e.path().is_dir() { count(&e.path()) } else { 0 }).sum()
}

// promise 11
#[test]
fn nothing_is_left_wherever_cofferdam_is_killed() {
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let log = place.file("calls", "");
        assert!(traced(&place, &binary, None, &log).status().unwrap().success(), "control: it runs under strace");
        let calls = fs::read_to_string(&log).unwrap().lines().count();
        assert!(calls > 100, "{calls} calls");
        let (mounts_before, files) = (mounts(&place), count(&place.root));
        let (mut tried, mut bad) = (0, Vec::new());
        // A sample of all calls; another seed gives another sample.
        for n in sample::indices(calls / 24, calls).map(|n| n + 1) {
            if bad.len() >= 3 {
                break;
            }
            let _ = traced(&place, &binary, Some(n), &log).status().unwrap();
            tried += 1;
            if !soon(|| leftovers(&place, &mounts_before, files).is_empty()) {
                bad.push(format!("killed at call {n} of {calls}: {:?}", leftovers(&place, &mounts_before, files)));
                // The next run removes leftovers of a dead one.
                let _ = traced(&place, &binary, None, &log).status();
            }
        }
        assert!(bad.is_empty(), "{who:?}, {tried} tried, COFFERDAM_TEST_SEED={}: {bad:#?}", sample::seed());
    }
}

/// A place with copies of the programs, so that the census finds this test's processes by path; and the copied binary.
fn with_copies(who: As) -> (Place, PathBuf) {
    let place = Place::new(who);
    let binary = place.root.join("cofferdam");
    crate::support::copy_program(crate::support::binary(), &binary);
    crate::support::copy_program("/bin/true", place.project.join("command"));
    (place, binary)
}

/// A run under strace with the given fault injection.
fn meddled(place: &Place, binary: &Path, meddling: &[&str], flags: &[&str]) -> Command {
    let mut command = place.outside("/usr/bin/strace");
    command.args(["-o", "/dev/null"]).args(meddling).arg(binary).arg("run").args(flags);
    command.arg("--").arg(place.project.join("command"));
    command
}

/// The supervisor notices the death of the setup helper and of the guest's pid 1 during setup, instead of waiting.
// promise 11
#[test]
fn whoever_is_killed_during_setup_is_missed() {
    const HELPER: &str = "the process that prepares the guest's mounts ended during setup";
    const FIRST: &str = "the guest's first process was killed during setup";
    // System calls that only the helper or only pid 1 makes.
    let deaths = [
        ("landlock_add_rule:signal=KILL:when=2", HELPER),
        ("umount2:signal=KILL:when=1", HELPER),
        // Pid 1 is then created without the helper, and killed as well.
        ("pivot_root:signal=KILL:when=1", FIRST),
        ("setresuid:signal=KILL:when=1", FIRST),
        ("capset:signal=KILL:when=1", FIRST),
        ("seccomp:signal=KILL:when=1", FIRST),
        ("landlock_restrict_self:signal=KILL:when=1", FIRST),
    ];
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let (mounts_before, files) = (mounts(&place), count(&place.root));
        let flags: &[&str] = if who == As::Root { &["-m", "64m"] } else { &[] };
        let control = to_the_end(&mut meddled(&place, &binary, &["-f", "-e", "trace=capset"], flags), b"");
        assert!(control.status.success(), "control: it runs under strace");
        for (death, message) in deaths {
            let inject = format!("inject={death}");
            let run = to_the_end(&mut meddled(&place, &binary, &["-f", "-e", &inject], flags), b"");
            let text = String::from_utf8_lossy(&run.stderr);
            assert_eq!(run.status.code(), Some(125), "{who:?}, {death}: {text}");
            assert!(text.contains(message), "{who:?}, {death}: {text}");
            let clean = soon(|| leftovers(&place, &mounts_before, files).is_empty());
            assert!(clean, "{who:?}, {death}: {:?}", leftovers(&place, &mounts_before, files));
            let layers = fs::read_dir(place.state().join("layers")).unwrap().count();
            assert_eq!(layers, 0, "{who:?}, {death}: nothing ran, and a workspace is left");
        }
    }
}

/// A pid 1 that cannot be sent its setup message is replaced instead of waited for.
// promise 11
#[test]
fn a_first_process_that_gets_no_order_is_replaced() {
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let mute = ["-e", "inject=sendto:error=ENOBUFS:when=1"];
        let run = to_the_end(&mut meddled(&place, &binary, &mute, &[]), b"");
        assert!(run.status.success(), "{who:?}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

/// Pid 1 sets its parent-death signal a moment after it was created. A supervisor killed before that still takes it
/// along.
// promise 11
#[test]
fn a_supervisor_killed_before_anybody_is_tied_to_it_leaves_nobody() {
    for who in BOTH {
        let (place, binary) = with_copies(who);
        let late = ["-f", "-e", "trace=prctl", "-e", "inject=prctl:delay_enter=3s:when=1"];
        let mut strace = meddled(&place, &binary, &late, &[]);
        let mut strace = strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let born = || in_own_pids(&census(place.root.to_str().unwrap()));
        assert!(soon(|| born().is_some()), "{who:?}: no first process came");
        // Time for pid 1 to receive its setup message.
        std::thread::sleep(Duration::from_millis(300));
        let supervisor = born().and_then(parent).expect("it is still there");
        assert!(Command::new("kill").args(["-KILL", &supervisor.to_string()]).status().unwrap().success());
        let gone = soon(|| census(place.root.to_str().unwrap()).is_empty());
        let left = census(place.root.to_str().unwrap());
        let _ = strace.kill();
        let _ = strace.wait();
        assert!(gone, "{who:?}: {left:?}");
    }
}

/// Value of a line in `/proc/PID/status`.
fn status_line(pid: i32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name).map(String::from))
}

/// The process in a pid namespace of its own: it has a number in each.
fn in_own_pids(processes: &[i32]) -> Option<i32> {
    let numbers = |pid: &i32| status_line(*pid, "NSpid:").map_or(0, |line| line.split_whitespace().count());
    let ours = numbers(&(std::process::id() as i32));
    processes.iter().copied().find(|pid| numbers(pid) > ours)
}

fn parent(pid: i32) -> Option<i32> {
    status_line(pid, "PPid:")?.trim().parse().ok()
}
