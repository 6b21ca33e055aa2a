//! Labels, variables and timeouts of sandboxes.

use crate::support::http::Daemon;
use crate::support::left::soon;
use crate::support::{As, Place};
use serde_json::{Value, json};

fn create(daemon: &Daemon, ask: Value) -> Value {
    daemon.post("/v1/sandboxes", ask).assert_ok()
}

fn look(daemon: &Daemon, name: &str) -> Value {
    daemon.get(&format!("/v1/sandboxes/{name}")).assert_ok()
}

fn remove(daemon: &Daemon, name: &str) {
    daemon.ask("DELETE", &format!("/v1/sandboxes/{name}?force=true&timeout=0s")).send().assert_ok();
}

#[test]
fn sandboxes_are_found_by_their_labels_and_pass_on_their_variables() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    create(
        &daemon,
        json!({"name": "a", "metadata": {"job": "17", "team": "red"}, "env": {"GREETING": "hello", "X": "1"}}),
    );
    create(&daemon, json!({"name": "b", "metadata": {"job": "17"}}));
    create(&daemon, json!({"name": "c"}));
    let found = |filter: &str| -> Vec<String> {
        let listed = daemon.get(&format!("/v1/sandboxes{filter}")).assert_ok();
        let rows = listed["sandboxes"].as_array().unwrap();
        let mut names: Vec<String> = rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(found(""), ["a", "b", "c"]);
    assert_eq!(found("?metadata=job%3D17"), ["a", "b"]);
    assert_eq!(found("?metadata=job%3D17%26team%3Dred"), ["a"]);
    assert_eq!(found("?metadata=job%3D1"), [] as [&str; 0]);
    daemon.get("/v1/sandboxes?metadata=job").assert_fault(400, "invalid_request");
    let changed = |ask| daemon.ask("PATCH", "/v1/sandboxes/c").json(ask).send();
    assert_eq!(changed(json!({"metadata": {"job": "1"}})).assert_ok()["changed"], true);
    assert_eq!(changed(json!({"metadata": {"job": "1"}})).assert_ok()["changed"], false);
    assert_eq!(found("?metadata=job%3D1"), ["c"]);
    changed(json!({"metadata": null})).assert_ok();
    assert_eq!(found("?metadata=job%3D1"), [] as [&str; 0]);
    // A command's own variables come before the sandbox's.
    let ask = json!({"shell": "echo $GREETING $X", "env": {"X": "2"}});
    let done = daemon.post("/v1/sandboxes/a/runs?wait=120s", ask).assert_ok();
    assert_eq!(done["outcome"]["stdout"], "hello 2\n", "{done}");
    for (bad, what) in [
        (json!({"metadata": {"": "x"}}), "metadata"),
        (json!({"metadata": {"a": "x".repeat(1025)}}), "metadata"),
        (json!({"env": {"A=B": "x"}}), "env"),
        (json!({"env": {"A": "\0"}}), "env"),
        (json!({"env": {"A": "x".repeat(70_000)}}), "env"),
        (json!({"timeout_ms": 10}), "timeout_ms"),
        (json!({"timeout_ms": 1000, "on_timeout": "explode"}), "on_timeout"),
    ] {
        let fault = daemon.post("/v1/sandboxes", bad).assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains(what), "{fault}");
    }
    ["a", "b", "c"].iter().for_each(|name| remove(&daemon, name));
}

#[test]
fn a_timeout_kills_suspends_or_removes_and_can_be_extended() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let hour = 3_600_000;
    for on_timeout in ["kill", "suspend", "remove"] {
        create(&daemon, json!({"name": on_timeout, "timeout_ms": hour, "on_timeout": on_timeout}));
    }
    create(&daemon, json!({"name": "extended", "timeout_ms": hour}));
    let begin = |name: &str| {
        let begun = daemon.post(&format!("/v1/sandboxes/{name}/runs"), json!({"shell": "echo x > x; sleep 600"}));
        begun.assert_ok()["run"].as_str().unwrap().to_owned()
    };
    let runs: Vec<String> = ["kill", "suspend", "remove", "extended"].map(begin).into();
    let set = |name: &str, ms: u64| {
        let changed = daemon.ask("PATCH", &format!("/v1/sandboxes/{name}")).json(json!({"timeout_ms": ms})).send();
        changed.assert_ok()["timeout_at_ms"].as_u64().unwrap()
    };
    let before = look(&daemon, "extended")["timeout_at_ms"].as_u64().unwrap();
    assert!(set("extended", 2 * hour) >= before + hour);
    for name in ["kill", "suspend", "remove"] {
        set(name, 1000);
    }
    assert!(soon(|| look(&daemon, "kill")["standing"] == "stopped"), "{}", look(&daemon, "kill"));
    assert!(soon(|| look(&daemon, "suspend")["standing"] == "frozen"), "{}", look(&daemon, "suspend"));
    assert!(soon(|| daemon.get("/v1/sandboxes/remove").status == 404));
    assert_eq!(look(&daemon, "extended")["standing"], "running", "the control");
    let ended = daemon.get(&format!("/v1/runs/{}", runs[0])).assert_ok();
    assert_eq!(ended["verdict"], "cancelled", "{ended}");
    let file = daemon.get("/v1/sandboxes/kill/files/content?path=x");
    assert_eq!((file.status, file.text().as_str()), (200, "x\n"), "its changes stay");
    // Used again, each gets its time anew.
    set("suspend", hour);
    daemon.post("/v1/sandboxes/suspend/runs?wait=120s", json!({"command": ["true"]})).assert_ok();
    assert_eq!(daemon.get(&format!("/v1/runs/{}", runs[1])).assert_ok()["running"], true);
    let timed_out = look(&daemon, "kill")["timeout_at_ms"].as_u64().unwrap();
    daemon.ask("POST", "/v1/sandboxes/kill/start").send().assert_ok();
    assert!(look(&daemon, "kill")["timeout_at_ms"].as_u64().unwrap() >= timed_out + 1000);
    ["kill", "suspend", "extended"].iter().for_each(|name| remove(&daemon, name));
}

#[test]
fn a_daemon_that_was_killed_leaves_the_timeout_to_the_next() {
    let place = Place::new(As::User);
    let mut daemon = Daemon::start(&place);
    create(&daemon, json!({"name": "s", "timeout_ms": 1000, "on_timeout": "kill"}));
    let at = look(&daemon, "s")["timeout_at_ms"].as_u64().unwrap();
    daemon.signal("KILL");
    daemon.ended();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(soon(|| now() > at), "it times out while there is no daemon");
    daemon = Daemon::start(&place);
    assert!(soon(|| look(&daemon, "s")["standing"] == "stopped"));
    remove(&daemon, "s");
}
