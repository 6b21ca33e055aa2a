//! Killed without warning at any moment of its life, cofferdam leaves nothing: no process, group, mount or file.

use crate::kernel::truth::{census, mounts, orphaned_groups, soon};
use crate::support::{As, BOTH, Place};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For each of the two callers.
const BUDGET: Duration = Duration::from_secs(25);

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

fn count(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| 1 + if e.path().is_dir() { count(&e.path()) } else { 0 }).sum()
}

#[test]
fn nothing_is_left_wherever_cofferdam_is_killed() {
    for who in BOTH {
        let place = Place::new(who);
        // Copies of the programs, so that the census knows this test's processes by their files.
        let binary = place.root.join("cofferdam");
        fs::copy(crate::support::binary(), &binary).unwrap();
        fs::copy("/bin/true", place.project.join("command")).unwrap();
        let log = place.file("calls", "");
        assert!(traced(&place, &binary, None, &log).status().unwrap().success(), "control: it runs under strace");
        let calls = fs::read_to_string(&log).unwrap().lines().count();
        assert!(calls > 100, "{calls} calls");
        let (mounts_before, files) = (mounts(), count(&place.root));
        // Every step-th call, then those between, until the time is up: an early end still covers the whole life.
        let end = Instant::now() + BUDGET;
        let steps = (0..8).flat_map(|offset| (0..calls).skip([0, 4, 2, 6, 1, 5, 3, 7][offset]).step_by(8));
        let (mut tried, mut bad) = (0, Vec::new());
        for n in steps.map(|n| n + 1) {
            if Instant::now() > end || bad.len() >= 3 {
                break;
            }
            let _ = traced(&place, &binary, Some(n), &log).status().unwrap();
            tried += 1;
            if !soon(Duration::from_secs(2), || leftovers(&place, &mounts_before, files).is_empty()) {
                bad.push(format!("killed at call {n} of {calls}: {:?}", leftovers(&place, &mounts_before, files)));
                // The next run sweeps up after the dead.
                let _ = traced(&place, &binary, None, &log).status();
            }
        }
        assert!(bad.is_empty(), "{who:?}, {tried} tried: {bad:#?}");
        assert!(tried * 8 >= calls, "only {tried} of {calls} calls were tried in time");
    }
}
