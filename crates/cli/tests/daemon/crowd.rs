//! Many clients of one sandbox: runs can be ended however many clients wait for them, and concurrent requests are
//! carried out or refused, never half.

use crate::runs::RunsFixture;
use crate::support::As;
use crate::support::patience::Over;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

/// Regression: each run over HTTP holds a connection to the keeper that waits for its end. At 128 of them the keeper
/// accepted no other, so that no run could be killed.
#[test]
fn what_runs_can_be_ended_however_many_wait() {
    const MANY: usize = 140;
    let w = RunsFixture::new(As::Root);
    let runs: Vec<String> = (0..MANY).map(|_| w.begin(json!({"command": ["sleep", "600"], "input": true}))).collect();
    let first = &runs[0];
    let followers: Vec<_> =
        runs.iter().map(|run| w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open()).collect();
    let given = w.daemon.ask("POST", &format!("/v1/runs/{first}/input")).body("application/octet-stream", b"x").send();
    assert_eq!(given.assert_ok()["bytes"], 1);
    assert_eq!(w.daemon.post(&format!("/v1/runs/{first}/signal"), json!({"signal": 15})).assert_ok()["changed"], true);
    let ended = w.daemon.get(&format!("/v1/runs/{first}?wait=120s")).assert_ok();
    assert_eq!(ended["outcome"]["exit"]["signal"], 15, "{ended}");
    let killed = w.daemon.ask("POST", &format!("/v1/runs/{}/kill", runs[1])).send().assert_ok();
    assert_eq!(killed["changed"], true);
    // A further run can start.
    let done = w.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({"command": ["true"]})).assert_ok();
    assert_eq!(done["outcome"]["verdict"], "ok", "{done}");
    drop(followers);
    w.daemon.ask("POST", "/v1/sandboxes/s/stop").send().assert_ok();
}

/// A restore stops an idle keeper. A run that was about to be sent to it starts with the next keeper, and a snapshot
/// whose run has ended by then leaves no layer behind.
#[test]
fn commands_and_snapshots_between_restores_are_done_or_refused() {
    const ROUNDS: usize = 60;
    let w = RunsFixture::new(As::Root);
    let shell = |text: &str| w.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({"shell": text}));
    shell("echo first > file").assert_ok();
    let first = w.daemon.post("/v1/sandboxes/s/snapshots", json!({})).assert_ok()["id"].clone();
    let over = AtomicBool::new(false);
    let refused = |status: u16, kind: &Value| status == 409 && kind == "conflict";
    std::thread::scope(|scope| {
        let until_over = |path: &'static str, body: Value| {
            let (w, over) = (&w, &over);
            scope.spawn(move || {
                let mut done = 0;
                while !over.load(Ordering::Relaxed) {
                    let answer = w.daemon.post(path, body.clone());
                    let told = answer.json();
                    assert!(answer.status < 300 || refused(answer.status, &told["error_kind"]), "{path}: {told}");
                    done += usize::from(answer.status < 300);
                }
                done
            })
        };
        let beside = [
            until_over("/v1/sandboxes/s/restore", json!({"snapshot": first, "discard": true})),
            until_over("/v1/sandboxes/s/snapshots", json!({})),
        ];
        let ends = Over(&over);
        let mut ran = 0;
        for n in 0..ROUNDS {
            let answer = shell(&format!("echo {n} > file"));
            let told = answer.json();
            assert!(answer.status < 300 || refused(answer.status, &told["error_kind"]), "{told}");
            ran += usize::from(answer.status < 300);
        }
        drop(ends);
        let done = beside.map(|thread| thread.join().unwrap());
        assert!(ran > 0 && done.iter().all(|done| *done > 0), "{ran} commands, and {done:?}");
    });
    w.daemon.ask("DELETE", "/v1/sandboxes/s?force=true").send().assert_ok();
    loop {
        let listed = w.daemon.get("/v1/snapshots?limit=1000").assert_ok();
        let listed = listed["snapshots"].as_array().unwrap();
        if listed.is_empty() {
            break;
        }
        for snapshot in listed {
            w.daemon.ask("DELETE", &format!("/v1/snapshots/{}", snapshot["id"].as_str().unwrap())).send().assert_ok();
        }
    }
    let left: Vec<_> = std::fs::read_dir(w.place.state().join("layers")).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
