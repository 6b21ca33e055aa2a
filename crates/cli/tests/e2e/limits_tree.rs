//! The wall limit over a process tree: every process ends, and promptly.

use crate::limits::LINGER;
use crate::support::left::soon;
use crate::support::{BOTH, Place, unique};
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Command lines of host processes that contain `mark`.
fn alive(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|e| fs::read(e.path().join("cmdline")).ok());
    lines.map(|l| String::from_utf8_lossy(&l).replace('\0', " ")).filter(|l| l.contains(mark)).collect()
}

// promise 11
#[test]
fn the_wall_limit_takes_the_whole_tree() {
    for who in BOTH {
        let place = Place::new(who);
        // On a busy machine the tree may need longer to start than a short limit permits.
        let held = ["2s", "8s", "32s"].iter().any(|limit| tree_stood_until_its_limit(&place, limit));
        assert!(held, "{who:?}: the tree never stood before its limit");
    }
}

/// Starts a tree of six sleepers under a wall limit, which must all be gone afterwards. Returns false if the limit
/// expired before all six were running.
fn tree_stood_until_its_limit(place: &Place, limit: &str) -> bool {
    let mark = format!("31557{:05}.{}", std::process::id() % 100_000, unique());
    let script = format!(
        "sleep {mark} & setsid sleep {mark} & (setsid sh -c 'trap \"\" TERM; sleep {mark} & sleep {mark}' &) \n \
         (setsid sleep {mark} </dev/null >/dev/null 2>&1 &) \n sleep {mark}"
    );
    let mut child = place.cofferdam(["run", "-t", limit, "--", "/bin/sh", "-c", &script]).spawn().unwrap();
    let mut stood = false;
    while !stood && child.try_wait().unwrap().is_none() {
        stood = alive(&mark).iter().filter(|l| l.starts_with("sleep ")).count() == 6;
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(child.wait().unwrap().code(), Some(124));
    assert!(soon(|| alive(&mark).is_empty()), "{:?}", alive(&mark));
    stood
}

/// Host pids of processes whose command line contains `mark`, the supervisor and the guest's pid 1 among them.
fn marked(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.parse::<u32>().is_ok());
    let holds = |pid: &String| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| contains(&line, mark));
    numbers.filter(holds).collect()
}

fn contains(line: &[u8], mark: &str) -> bool {
    line.windows(mark.len()).any(|part| part == mark.as_bytes())
}

/// Checks for a survivor among these pids. A process that has exited has an empty command line, reaped or not.
fn any_left(pids: &[String], mark: &str) -> bool {
    pids.iter().any(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| contains(&line, mark)))
}

const TREE: usize = 200;

/// A Python program that ignores signals, starts 200 processes that do the same, and prints a line when all are
/// running.
fn stubborn() -> String {
    format!(
        "import os, signal, sys, time\n\
         for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n\
         for n in range({TREE}):\n \
         if os.fork() == 0:\n  os.setsid()\n  time.sleep(600)\n\
         print(1, flush=True)\ntime.sleep(600)"
    )
}

/// Starts a command with a marked tree and waits for its line: the pids of the tree, or `None` if it ended before.
fn stand(command: &mut Command, mark: &str) -> (Child, Option<Vec<String>>) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let printed = child.stdout.as_mut().unwrap().read(&mut [0; 64]).unwrap_or(0) > 0;
    let tree: Vec<String> = marked(mark).into_iter().filter(|pid| *pid != child.id().to_string()).collect();
    let stands = printed && tree.len() > TREE;
    (child, stands.then_some(tree))
}

fn until_gone(tree: &[String], mark: &str) {
    let end = Instant::now() + LINGER;
    while any_left(tree, mark) {
        std::thread::sleep(Duration::from_millis(1));
        assert!(Instant::now() < end, "the tree outlives its limit");
    }
}

/// Time from the deadline until the last process of the tree was gone; `None` if a busy machine started the tree too
/// late.
fn outlived(place: &Place, limit: Duration) -> Option<Duration> {
    let mark = format!("stubborn-{}-{}", std::process::id(), unique());
    let wall = format!("{}ms", limit.as_millis());
    let begun = Instant::now();
    let mut command = place.cofferdam(["run", "-t", &wall, "--", "/usr/bin/python3", "-c", &stubborn(), &mark]);
    let (mut child, tree) = stand(&mut command, &mark);
    // Control: the complete tree was running well before the deadline.
    let tree = tree.filter(|_| begun.elapsed() + limit / 10 < limit);
    let gone = tree.as_ref().map(|tree| {
        until_gone(tree, &mark);
        Instant::now()
    });
    assert_eq!(child.wait().unwrap().code(), Some(124));
    assert!(soon(|| marked(&mark).is_empty()), "{:?}", marked(&mark));
    // The limit's clock starts later than ours, with the command, so this measures too long rather than too short.
    let gone = gone?;
    assert!(gone >= begun + limit, "ended {:?} before the limit", (begun + limit) - gone);
    Some(gone - (begun + limit))
}

/// Time the kernel takes to end the same tree outside after SIGKILL of its first process.
fn killed_outside() -> Duration {
    let mark = format!("outside-{}-{}", std::process::id(), unique());
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "/usr/bin/python3", "-c", &stubborn(), &mark]);
    let (mut child, tree) = stand(&mut command, &mark);
    let killed = Instant::now();
    child.kill().unwrap();
    until_gone(&tree.expect("control: the tree stands"), &mark);
    child.wait().unwrap();
    killed.elapsed()
}

/// A busy machine can make any attempt late; only a slow kill makes every attempt later than the kernel needs for the
/// same tree at the same moment.
// promise 8
#[test]
fn the_wall_limit_takes_two_hundred_processes_within_a_tenth_of_a_second() {
    for who in BOTH {
        let place = Place::new(who);
        let in_time = [2, 2, 4, 4, 8, 8, 16, 32].into_iter().any(|seconds| {
            let Some(late) = outlived(&place, Duration::from_secs(seconds)) else { return false };
            // On a quiet machine a tenth of a second suffices, and no comparison is needed.
            late <= Duration::from_millis(100) || {
                let outside = killed_outside();
                println!("{who:?}: {late:?}, outside {outside:?}");
                late <= Duration::from_millis(100) + 3 * outside
            }
        });
        assert!(in_time, "{who:?}: never within a tenth of a second");
    }
}
