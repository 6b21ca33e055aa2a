//! Snapshots of a sandbox with a running command.

use crate::snapshots::{id_of, inside, project};
use crate::support::{As, Place, either};
use crate::words::Verbs;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that appends to two files in turn, beside a child that appends to a third, until it is killed.
fn busy(place: &Place, id: &str) -> Busy {
    let script = "(while :; do echo x >> child; done) & while :; do echo x >> a; echo x >> b; done";
    let child = place.cofferdam(["exec", id, "--", "/bin/sh", "-c", script]).stdout(Stdio::null()).spawn().unwrap();
    Busy(child)
}

fn top(place: &Place, id: &str) -> PathBuf {
    let inspected = place.json(&["inspect", id]);
    let layer = inspected["layers"].as_array().unwrap().last().unwrap().clone();
    let name = layer["id"].as_str().or(layer.as_str()).unwrap().to_owned();
    place.state().join("layers").join(name).join("up")
}

fn lines(top: &Path, file: &str) -> u64 {
    fs::metadata(top.join(file)).map_or(0, |found| found.len() / 2)
}

#[track_caller]
fn wait(until: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(180);
    while !until() {
        assert!(Instant::now() < end, "it took too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// promise 13, 17
#[test]
fn a_snapshot_of_a_running_sandbox_is_of_one_moment() {
    for who in either() {
        let (place, id) = project(who);
        let top = top(&place, &id);
        let guest = busy(&place, &id);
        wait(|| lines(&top, "b") > 10);
        for _ in 0..3 {
            let taken = place.json(&["snapshot", &id]);
            assert!(taken["held_ms"].is_u64(), "{taken}");
            let fork = place.json(&["fork", &id_of(&taken)]);
            let twin = fork["sandboxes"][0]["id"].as_str().unwrap().to_owned();
            let counts = inside(&place, &twin, "wc -l < a; wc -l < b");
            let counts: Vec<i64> = counts.lines().map(|l| l.trim().parse().unwrap()).collect();
            assert!((0..=1).contains(&(counts[0] - counts[1])), "{who:?}: {counts:?}");
            let (now, child) = (lines(&top, "a"), lines(&top, "child"));
            wait(|| lines(&top, "a") > now && lines(&top, "child") > child);
        }
        let fault = place.fault(&["restore", &id_of(&place.json(&["snapshot", &id]))], "conflict");
        assert!(fault["message"].as_str().unwrap().contains("run_"), "{fault}");
        place.fault(&["export", &id, "/dev/null"], "conflict");
        drop(guest);
    }
}

/// Kernel states of all processes of the guest.
fn states(supervisor: u32) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![supervisor];
    while let Some(pid) = waiting.pop() {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|c| c.parse::<u32>().ok()) {
            waiting.push(child);
            let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
            let line =
                |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().trim().to_owned();
            if line("NSpid:").split_whitespace().count() > 1 {
                found.push(line("State:"));
            }
        }
    }
    found
}

// promise 17
#[test]
fn who_is_killed_while_holding_a_guest_still_leaves_it_running() {
    let (place, id) = project(As::User);
    let top = top(&place, &id);
    // Enough data that the snapshot can be killed while it copies.
    inside(&place, &id, "for i in 1 2 3 4 5 6; do head -c 100000000 /dev/urandom > big$i; done");
    let guest = busy(&place, &id);
    wait(|| lines(&top, "b") > 10);
    let run = place.json(&["ps"])["runs"][0]["pid"].as_u64().unwrap() as u32;
    let still = || {
        let states = states(run);
        !states.is_empty() && states.iter().all(|s| s.starts_with('T'))
    };
    let mut snapshot = place.cofferdam(["snapshot", &id]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait(still);
    snapshot.kill().unwrap();
    snapshot.wait().unwrap();
    wait(|| !states(run).iter().any(|s| s.starts_with('T')));
    let now = lines(&top, "a");
    wait(|| lines(&top, "a") > now);
    drop(guest);
    place.audit();
    // The partial copy belongs to no record, and is collected.
    let collected = place.json(&["gc"]);
    assert!(collected.get("failed").is_none(), "{collected}");
    assert_eq!(place.layers().len(), 1);
}

#[test]
fn commands_and_snapshots_at_once_never_meet_in_one_layer() {
    let (place, id) = project(As::User);
    let again = |words: &[&str]| loop {
        let output = place.verb(words);
        if output.status.success() {
            return output;
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            ["meanwhile", "must wait", "live run", "busy", "in use"].iter().any(|w| stderr.contains(w)),
            "{stderr}"
        );
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..15).for_each(|_| drop(again(&["exec", &id, "--", "/bin/sh", "-c", "echo x >> log"]))));
        scope.spawn(|| (0..15).for_each(|_| drop(again(&["snapshot", &id]))));
    });
    assert_eq!(inside(&place, &id, "wc -l < log").trim(), "15");
    for snapshot in place.json(&["snapshot", "ls", &id])["snapshots"].as_array().unwrap() {
        // A fork re-reads every layer and compares digests.
        place.json(&["fork", snapshot["id"].as_str().unwrap()]);
    }
}
