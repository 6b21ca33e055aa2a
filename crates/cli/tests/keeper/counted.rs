//! What the end of a command costs: counting its changes lists what changed, and not what others had changed before.

use crate::place::Live;
use crate::support::{As, Place, unique};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

const DIRS: u64 = 40;
const EACH: u64 = 100;

/// Runs a command while somebody counts the keeper's calls; its changes, and how many directories were listed and names looked at.
fn counted(live: &Live<'_>, script: &str) -> (Value, usize, usize) {
    let log = live.place.file(format!("calls-{}", unique()), "");
    let mut strace = Command::new("/usr/bin/strace");
    strace
        .args(["-f", "-e", "trace=getdents64,newfstatat,openat2", "-o"])
        .arg(&log)
        .args(["-p", &live.keeper().to_string()]);
    let mut strace = strace.stderr(Stdio::piped()).spawn().unwrap();
    // It says so when it is there.
    let mut told = [0u8; 6];
    std::io::Read::read_exact(strace.stderr.as_mut().unwrap(), &mut told).unwrap();
    let run = live.detach(&[], script);
    let outcome = live.outcome(&run);
    let done = Command::new("kill").args(["-INT", &strace.id().to_string()]).status().unwrap();
    assert!(done.success());
    strace.wait().unwrap();
    let calls = fs::read_to_string(&log).unwrap();
    assert_eq!((&outcome["verdict"], &outcome["message"]), (&Value::from("ok"), &Value::Null), "{outcome}");
    // A listing ends with an empty answer.
    let lists = calls.lines().filter(|line| line.contains("getdents64(") && line.ends_with("= 0")).count();
    (outcome["changes"].clone(), lists, calls.matches("newfstatat(").count() + calls.matches("openat2(").count())
}

#[test]
fn a_command_that_changes_nothing_lists_nothing() {
    let place = Place::new(As::Root);
    place.file(place.project.join("old"), "old");
    let live = Live::new(&place, &[]);
    let fill = format!(
        "for d in $(seq {DIRS}); do mkdir -p modules/$d; (cd modules/$d; for f in $(seq {EACH}); do : > $f; done); done"
    );
    let filled = live.sh(&[], &fill, b"");
    assert!(filled.status.success(), "{}", text(&filled.stderr));
    // What has just changed is looked at again, so that nothing is missed within one tick of a clock.
    std::thread::sleep(Duration::from_millis(2500));
    let all = DIRS * EACH;
    assert!(live.sh(&[], "true", b"").status.success());
    let (changes, lists, looks) = counted(&live, "cat modules/7/7");
    assert_eq!(changes["added"], all);
    assert!(lists < DIRS as usize / 2 && looks < (all / 4) as usize, "{lists} directories, {looks} names");
    // What changes little pays for little, and is counted: added, removed, changed in place, and back again.
    let (changes, lists, looks) = counted(&live, "echo more > modules/3/more; rm modules/4/4; echo new > old");
    assert_eq!((&changes["added"], &changes["modified"]), (&Value::from(all), &Value::from(1)), "{changes}");
    assert!(lists < DIRS as usize / 2 && looks < (all / 4) as usize, "{lists} directories, {looks} names");
    let (last, ..) = counted(&live, "printf old > old; rm modules/3/more; chmod 700 modules/5");
    assert_eq!((&last["added"], &last["modified"]), (&Value::from(all - 1), &Value::from(0)), "{last}");
    // The control: a keeper that knows nothing yet looks at all of it, and finds the same.
    place.json(&["stop", &live.id]);
    place.json(&["start", "--live", &live.id]);
    let (changes, lists, looks) = counted(&live, "true");
    assert_eq!(changes, last);
    assert!(lists > DIRS as usize && looks > all as usize, "{lists} directories, {looks} names");
}
