//! A keeper that is alive and does not answer, seen through the daemon: the rest of its tenant works.

use crate::runs::RunsFixture;
use crate::support::As;
use crate::support::left::soon;
use serde_json::{Value, json};
use std::process::Command;

#[track_caller]
fn assert_soon(is: impl FnMut() -> bool) {
    assert!(soon(is), "not in time");
}

fn signal(pid: &Value, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).output().unwrap();
}

fn is_stopped(pid: &Value) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

#[test]
fn its_tenant_goes_on_beside_it() {
    let w = RunsFixture::new(As::User);
    let ids: Vec<String> = ["s", "other"]
        .iter()
        .map(|name| {
            if *name != "s" {
                w.daemon.post("/v1/sandboxes", json!({"name": name})).assert_ok();
            }
            w.daemon.ask("POST", &format!("/v1/sandboxes/{name}/start?live=true")).send().assert_ok();
            let whole = w.daemon.get(&format!("/v1/sandboxes/{name}")).assert_ok();
            whole["id"].as_str().unwrap().to_owned()
        })
        .collect();
    let run = w.begin(json!({"shell": "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two"}));
    assert!(w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open().until("one"));
    let card = std::fs::read(w.place.state().join("keepers").join(&ids[0]).join("keeper.json")).unwrap();
    let pid = serde_json::from_slice::<Value>(&card).unwrap()["pid"].clone();
    signal(&pid, "STOP");
    assert_soon(|| is_stopped(&pid));

    let row = |rows: &Value, id: &str| {
        rows.as_array().unwrap().iter().find(|row| row["id"] == *id).cloned().unwrap_or_else(|| panic!("{rows:#}"))
    };
    // The other keeper answers, on a busy host perhaps not at the first attempt.
    for path in ["/v1/sandboxes", "/v1/top"] {
        assert_soon(|| {
            let rows = w.daemon.get(path).assert_ok()["sandboxes"].clone();
            let silent = row(&rows, &ids[0]);
            assert_eq!((&silent["state"], &silent["live"]), (&json!("silent"), &json!(true)), "{path}");
            assert!(silent["silent"].as_str().unwrap().contains(&pid.to_string()), "{silent}");
            row(&rows, &ids[1])["state"] == "active"
        });
    }
    assert_soon(|| {
        let figures = w.daemon.get("/metrics").text();
        let has = |line: &str| figures.lines().any(|known| known == line);
        has("cofferdam_sandboxes{state=\"silent\"} 1") && has("cofferdam_sandboxes{state=\"active\"} 1")
    });
    assert_eq!(w.daemon.get("/v1/sandboxes/s").assert_ok()["standing"], "silent");
    assert_eq!(w.daemon.get(&format!("/v1/runs/{run}")).assert_ok()["running"], true);
    // Earlier output is read from disk, and later output is waited for.
    let mut open = w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open();
    assert!(open.until("one"));
    std::thread::scope(|scope| {
        let asks = [
            ("POST", "/v1/sandboxes/s/runs?wait=1s".to_owned(), json!({"command": ["touch", "late"]})),
            ("PATCH", "/v1/sandboxes/s".to_owned(), json!({"limits": {"max_output_bytes": 1000}})),
            ("POST", format!("/v1/runs/{run}/signal"), json!({"signal": 15})),
            ("POST", format!("/v1/runs/{run}/kill"), Value::Null),
            ("POST", "/v1/sandboxes/s/suspend".to_owned(), json!({"tier": "frozen"})),
            ("DELETE", "/v1/sandboxes/s".to_owned(), Value::Null),
            ("GET", "/v1/sandboxes/s/files/list?path=.".to_owned(), Value::Null),
        ];
        for (method, path, body) in asks {
            let (w, id) = (&w, &ids[0]);
            scope.spawn(move || {
                let ask = w.daemon.ask(method, &path);
                let ask = if body.is_null() { ask } else { ask.json(body) };
                let fault = ask.send().assert_fault(503, "unavailable");
                assert_eq!((&fault["subject"], &fault["retry"]), (&json!(id), &json!("later")), "{path} {fault}");
            });
        }
    });
    w.daemon.post("/v1/sandboxes/other/runs?wait=120s", json!({"command": ["true"]})).assert_ok();
    assert!(is_stopped(&pid), "all of this was answered while it was");

    signal(&pid, "CONT");
    assert_soon(|| w.daemon.get("/v1/sandboxes/s").assert_ok()["standing"] == "running");
    let listed = w.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({"shell": "ls; touch go"})).assert_ok();
    assert_eq!(listed["outcome"]["stdout"], "", "nothing that was refused was done later");
    assert!(open.until("two"), "who listened hears it");
    signal(&pid, "STOP");
    assert_soon(|| is_stopped(&pid));
    assert_eq!(w.daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok()["changed"], true);
    w.daemon.get("/v1/sandboxes/s").assert_fault(404, "not_found");
    let _ = w.place.cofferdam(["rm", "--force", "--timeout", "0s", "other"]).output();
}
