//! The wall limit over a tree of processes: all of it ends, and soon.

use crate::limits::LINGER;
use crate::support::left::soon;
use crate::support::{BOTH, Place, unique};
use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Processes of the host whose arguments hold `mark`.
fn alive(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|e| fs::read(e.path().join("cmdline")).ok());
    lines.map(|l| String::from_utf8_lossy(&l).replace('\0', " ")).filter(|l| l.contains(mark)).collect()
}

#[test]
fn the_wall_limit_takes_the_whole_tree() {
    for who in BOTH {
        let place = Place::new(who);
        // A busy machine needs longer to start the tree than a short limit leaves it.
        let held = ["2s", "8s", "32s"].iter().any(|limit| tree_stood_until_its_limit(&place, limit));
        assert!(held, "{who:?}: the tree never stood before its limit");
    }
}

/// Starts a tree of six sleepers under a wall limit. All must be gone afterwards; false where the limit came before all six stood.
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
    assert!(soon(Duration::from_secs(20), || alive(&mark).is_empty()), "{:?}", alive(&mark));
    stood
}

/// Pids, as the host numbers them, whose arguments hold `mark`; our own and the guest's first process do too.
fn marked(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.parse::<u32>().is_ok());
    let holds = |pid: &String| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| contains(&line, mark));
    numbers.filter(holds).collect()
}

fn contains(line: &[u8], mark: &str) -> bool {
    line.windows(mark.len()).any(|part| part == mark.as_bytes())
}

/// Whether any of these still runs. One that has ended has no arguments any more, reaped or not.
fn any_left(pids: &[String], mark: &str) -> bool {
    pids.iter().any(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| contains(&line, mark)))
}

/// One tree of 200 stubborn processes under a limit: how long after the deadline its last process was gone, or nothing if
/// the machine was too busy for it to stand in time.
fn outlived(place: &Place, limit: Duration) -> Option<Duration> {
    const TREE: usize = 200;
    let mark = format!("stubborn-{}-{}", std::process::id(), unique());
    let text = format!(
        "import os, signal, sys, time\n\
         for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n\
         for n in range({TREE}):\n \
         if os.fork() == 0:\n  os.setsid()\n  time.sleep(600)\n\
         print(1, flush=True)\ntime.sleep(600)"
    );
    let wall = format!("{}ms", limit.as_millis());
    let mut c = place.cofferdam(["run", "-t", &wall, "--", "/usr/bin/python3", "-c", &text, &mark]);
    let begun = Instant::now();
    let mut child = c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = [0; 64];
    let told = child.stdout.as_mut().unwrap().read(&mut line).unwrap_or(0) > 0;
    let tree: Vec<String> = marked(&mark).into_iter().filter(|pid| *pid != child.id().to_string()).collect();
    // The control: all of them were there, and some time before the deadline.
    let stood = told && tree.len() > TREE && begun.elapsed() + Duration::from_millis(200) < limit;
    while any_left(&tree, &mark) {
        std::thread::sleep(Duration::from_millis(1));
        assert!(begun.elapsed() < limit + LINGER, "the tree outlives its limit");
    }
    let gone = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(124));
    assert_eq!(marked(&mark), Vec::<String>::new());
    // The clock of the limit starts after ours did, when the command starts: this counts too long rather than too short.
    let late = gone.saturating_duration_since(begun + limit);
    assert!(!stood || gone >= begun + limit, "ended {:?} before the limit", (begun + limit) - gone);
    stood.then_some(late)
}

/// The best of five tries counts: a busy machine makes any of them late, only a slow kill makes all of them.
#[test]
fn the_wall_limit_takes_two_hundred_processes_within_a_tenth_of_a_second() {
    for who in BOTH {
        let place = Place::new(who);
        // What others do on this machine makes it later, never earlier: one try in time shows what we need.
        let tries = (0..15).filter_map(|_| outlived(&place, Duration::from_secs(2)));
        let in_time =
            tries.inspect(|late| println!("{who:?}: {late:?}")).any(|late| late <= Duration::from_millis(100));
        assert!(in_time, "{who:?}: never within a tenth of a second");
    }
}
