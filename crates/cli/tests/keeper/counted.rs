//! Cost of a command's end: counting its changes lists the directories that changed, and not earlier changes.

use crate::place::LiveSandbox;
use crate::support::{As, Place, unique};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DIRS: u64 = 40;
const EACH: u64 = 100;

/// Attaches strace to the keeper, to count or delay its calls; returns once it is attached.
fn watch_keeper(live: &LiveSandbox<'_>, how: &[&str], log: &Path) -> Child {
    let mut strace = Command::new("/usr/bin/strace");
    strace.arg("-f").args(how).arg("-o").arg(log).args(["-p", &live.keeper().to_string()]);
    let mut strace = strace.stderr(Stdio::piped()).spawn().unwrap();
    // strace reports on stderr when it is attached.
    let mut told = [0u8; 6];
    std::io::Read::read_exact(strace.stderr.as_mut().unwrap(), &mut told).unwrap();
    strace
}

fn leave_keeper(strace: &mut Child) {
    let done = Command::new("kill").args(["-INT", &strace.id().to_string()]).status().unwrap();
    assert!(done.success());
    strace.wait().unwrap();
}

/// Runs a command while strace counts the keeper's calls. Returns its changes, the number of directory listings and
/// the number of path lookups.
fn counted(live: &LiveSandbox<'_>, script: &str) -> (Value, usize, usize) {
    let log = live.place.file(format!("calls-{}", unique()), "");
    let mut strace = watch_keeper(live, &["-e", "trace=getdents64,newfstatat,openat2"], &log);
    let run = live.detach(&[], script);
    let outcome = live.outcome(&run);
    leave_keeper(&mut strace);
    let calls = fs::read_to_string(&log).unwrap();
    assert_eq!((&outcome["verdict"], &outcome["message"]), (&Value::from("ok"), &Value::Null), "{outcome}");
    // A listing ends with an empty result.
    let lists = calls.lines().filter(|line| line.contains("getdents64(") && line.ends_with("= 0")).count();
    (outcome["changes"].clone(), lists, calls.matches("newfstatat(").count() + calls.matches("openat2(").count())
}

// promise 18
#[test]
fn a_command_that_changes_nothing_lists_nothing() {
    let place = Place::new(As::Root);
    place.file(place.project.join("old"), "old");
    let live = LiveSandbox::new(&place, &[]);
    let fill = format!(
        "for d in $(seq {DIRS}); do mkdir -p modules/$d; (cd modules/$d; for f in $(seq {EACH}); do : > $f; done); done"
    );
    let filled = live.sh(&[], &fill, b"");
    assert!(filled.status.success(), "{}", text(&filled.stderr));
    // Recent changes are listed again, so that none within one tick of the clock is missed.
    std::thread::sleep(Duration::from_millis(2500));
    let all = DIRS * EACH;
    assert!(live.sh(&[], "true", b"").status.success());
    let (changes, lists, looks) = counted(&live, "cat modules/7/7");
    assert_eq!(changes["added"], all);
    assert!(lists < DIRS as usize / 2 && looks < (all / 4) as usize, "{lists} directories, {looks} names");
    // A small change costs little and is counted: added, removed, modified in place, and reverted.
    let (changes, lists, looks) = counted(&live, "echo more > modules/3/more; rm modules/4/4; echo new > old");
    assert_eq!((&changes["added"], &changes["modified"]), (&Value::from(all), &Value::from(1)), "{changes}");
    assert!(lists < DIRS as usize / 2 && looks < (all / 4) as usize, "{lists} directories, {looks} names");
    let (last, ..) = counted(&live, "printf old > old; rm modules/3/more; chmod 700 modules/5");
    assert_eq!((&last["added"], &last["modified"]), (&Value::from(all - 1), &Value::from(0)), "{last}");
    // The control: a new keeper lists everything, and counts the same.
    place.json(&["stop", &live.id]);
    place.json(&["start", "--live", &live.id]);
    let (changes, lists, looks) = counted(&live, "true");
    assert_eq!(changes, last);
    assert!(lists > DIRS as usize && looks > all as usize, "{lists} directories, {looks} names");
}

/// Regression: a command's changes were reported as none when another command removed directories during the count.
// promise 20
#[test]
fn changes_are_counted_while_others_make_and_remove_directories() {
    let place = Place::new(As::Root);
    let live = LiveSandbox::new(&place, &[]);
    let stir = "echo kept > kept; while :; do mkdir -p a/b/c d/e; : > a/b/c/x; : > d/e/y; mv a/b d/f; rm -rf a d; done";
    let stirring = live.detach(&[], stir);
    while !live.sh(&[], "test -e kept", b"").status.success() {}
    for _ in 0..40 {
        let outcome = live.outcome(&live.detach(&[], "true"));
        assert_eq!((&outcome["verdict"], &outcome["message"]), (&Value::from("ok"), &Value::Null), "{outcome}");
        assert!(outcome["changes"]["added"].as_u64().is_some_and(|added| added >= 1), "{outcome}");
    }
    place.json(&["kill", &stirring]);
    // The control: without the other command the count is exact.
    assert!(live.sh(&[], "rm -rf a d", b"").status.success());
    assert_eq!(live.outcome(&live.detach(&[], "true"))["changes"]["added"], 1);
}

/// Regression: a request between the record of a run's end and its entry in the log got the outcome that old runs
/// have: no changes, no usage.
// promise 20
#[test]
fn an_end_that_is_written_down_is_told_whole() {
    let place = Place::new(As::Root);
    let live = LiveSandbox::new(&place, &[]);
    let log = place.file(format!("calls-{}", unique()), "");
    // The store is not written by this call; the recorder's wake-up and the log are.
    let mut strace = watch_keeper(&live, &["-e", "trace=write", "-e", "inject=write:delay_enter=200000"], &log);
    let outcome = live.outcome(&live.detach(&[], "echo new > new"));
    leave_keeper(&mut strace);
    assert!(fs::read_to_string(&log).unwrap().contains("(DELAYED)"), "the control: there was a time between the two");
    assert_eq!((&outcome["verdict"], &outcome["message"]), (&Value::from("ok"), &Value::Null), "{outcome}");
    assert_eq!(outcome["changes"]["added"], 1, "{outcome}");
}
