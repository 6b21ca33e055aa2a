//! Sandboxes over HTTP, from create to delete.

use crate::support::http::Daemon;
use crate::support::{As, Place, either};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} of {value}"))
}

#[test]
fn a_sandbox_lives_over_http() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let body = json!({"dir": place.project, "name": "fix", "ttl_ms": 3_600_000, "limits": {"max_wall_ms": 5000}});
        let made = daemon.post("/v1/sandboxes", body);
        assert_eq!((made.status, made.header("etag")), (201, Some("\"1\"")), "{made:?}");
        let id = text(&made.json(), "id").to_owned();

        let looked = daemon.get(&format!("/v1/sandboxes/{id}"));
        let whole = looked.assert_ok();
        assert_eq!(looked.header("etag"), Some("\"1\""));
        assert_eq!((text(&whole, "name"), text(&whole, "standing")), ("fix", "active"));
        assert_eq!(whole["limits"]["max_wall_ms"], 5000);
        assert_eq!(whole["protocol_version"], 1);
        // Lookup by name and by id prefix, as on the command line.
        assert_eq!(daemon.get("/v1/sandboxes/fix").json()["id"], whole["id"]);
        assert_eq!(daemon.get(&format!("/v1/sandboxes/{}", &id[..12])).json()["id"], whole["id"]);

        let patch = |version: &str, body: Value| {
            daemon.ask("PATCH", &format!("/v1/sandboxes/{id}")).header("if-match", version).json(body).send()
        };
        let changed = patch("\"1\"", json!({"name": "mend", "idle_ms": 60_000, "ttl_ms": null}));
        assert_eq!(changed.header("etag"), Some("\"2\""), "{changed:?}");
        let changed = changed.assert_ok();
        assert_eq!((text(&changed, "name"), &changed["idle_ms"]), ("mend", &json!(60_000)));
        assert!(changed.get("expires_ms").is_none(), "{changed}");
        patch("\"1\"", json!({"name": "late"})).assert_fault(409, "conflict");
        patch("\"2\"", json!({"name": "sbx_0123456789abcdef"})).assert_fault(400, "invalid_request");
        assert_eq!(patch("\"2\"", json!({"name": "mend"})).assert_ok()["changed"], false);

        let stopped = daemon.ask("POST", "/v1/sandboxes/mend/stop").header("if-match", "\"2\"").send();
        assert_eq!(text(&stopped.assert_ok(), "state"), "stopped");
        daemon.ask("POST", "/v1/sandboxes/mend/start").header("if-match", "\"2\"").send().assert_fault(409, "conflict");
        let started = daemon.ask("POST", "/v1/sandboxes/mend/start").header("if-match", "\"3\"").send();
        assert_eq!(text(&started.assert_ok(), "state"), "active");

        daemon.ask("DELETE", "/v1/sandboxes/mend").header("if-match", "\"3\"").send().assert_fault(409, "conflict");
        assert_eq!(daemon.ask("DELETE", &format!("/v1/sandboxes/{id}")).send().assert_ok()["changed"], true);
        assert_eq!(daemon.ask("DELETE", &format!("/v1/sandboxes/{id}")).send().assert_ok()["changed"], false);
        daemon.get(&format!("/v1/sandboxes/{id}")).assert_fault(404, "not_found");
        let gone = daemon.get("/v1/sandboxes?removed=true").assert_ok();
        assert_eq!(gone["sandboxes"][0]["state"], "removed");
        assert!(place.project.is_dir(), "the directory it covered stays");
    }
}

/// A sandbox without a directory gets an empty base of its own, which commands can use and which is removed with it.
#[test]
fn a_sandbox_without_a_directory_gets_an_empty_one() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let body = json!({"name": "own", "policies": ["workspace-write"]});
        let made = daemon.post("/v1/sandboxes", body).assert_ok();
        let base = Path::new(text(&made, "base"));
        assert!(base.starts_with(place.state().join("bases")) && base.is_dir(), "{made}");
        let run = place.cofferdam(["exec", "own", "sh", "-c", "ls -A; echo made > here; cat here"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout), "made\n", "{run:?}");
        assert_eq!(fs::read_dir(base).unwrap().count(), 0, "nothing reaches it before it is approved");
        let fork = place.cofferdam(["fork", "own", "--name", "second"]).output().unwrap();
        assert!(fork.status.success(), "{fork:?}");
        daemon.ask("DELETE", "/v1/sandboxes/own").send().assert_ok();
        assert!(base.is_dir(), "a fork stands on it");
        daemon.ask("DELETE", "/v1/sandboxes/second").send().assert_ok();
        daemon.ask("POST", "/v1/gc").send().assert_ok();
        let snapshots = place.cofferdam(["gc"]).output().unwrap();
        assert!(snapshots.status.success());
    }
}

#[test]
fn the_same_key_makes_one_sandbox() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let make =
        |key: &str, body: Value| daemon.ask("POST", "/v1/sandboxes").header("idempotency-key", key).json(body).send();
    let first = make("k1", json!({"name": "a"}));
    let again = make("k1", json!({"name": "a"}));
    assert_eq!((first.status, again.status), (201, 200));
    assert_eq!((&again.json()["id"], &again.json()["existed"]), (&first.json()["id"], &json!(true)));
    let fault = make("k1", json!({"name": "b"})).assert_fault(409, "conflict");
    assert!(text(&fault, "message").contains("name"), "{fault}");
    assert_eq!(make("k2", json!({"name": "b"})).status, 201);
    // Concurrent requests under one key create one sandbox.
    let ids: Vec<String> = std::thread::scope(|scope| {
        let one = || text(&make("k3", json!({"ttl_ms": 1000})).assert_ok(), "id").to_owned();
        let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(fs::read_dir(place.state().join("bases")).unwrap().count(), 3, "no directory is left over");
}

#[test]
fn lists_come_in_parts_that_make_up_the_whole() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let made: Vec<String> = (0..7)
        .map(|n| text(&daemon.post("/v1/sandboxes", json!({"name": format!("s{n}")})).assert_ok(), "id").to_owned())
        .collect();
    let (mut seen, mut after) = (Vec::new(), String::new());
    for part in 0.. {
        let page = daemon.get(&format!("/v1/sandboxes?limit=3{after}")).assert_ok();
        seen.extend(page["sandboxes"].as_array().unwrap().iter().map(|row| text(row, "id").to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
        // Uses and removals in between do not shift the pages.
        daemon.ask("POST", "/v1/sandboxes/s6/stop").send().assert_ok();
        assert!(part < 5);
    }
    let (mut want, mut got) = (made, seen.clone());
    want.sort();
    got.sort();
    assert_eq!(got, want, "each once");
}

/// `?wait=` delays the response until no run is active, and at most for the given time.
#[test]
fn an_answer_waits_for_what_runs() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({"name": "w"})).assert_ok();
    let mut run = place.cofferdam(["exec", "w", "sleep", "60"]).spawn().unwrap();
    let running = || daemon.get("/v1/sandboxes/w").assert_ok()["standing"] == "running";
    while !running() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let cut = daemon.get("/v1/sandboxes/w?wait=50ms").assert_ok();
    assert_eq!(cut["standing"], "running");
    daemon.ask("DELETE", "/v1/sandboxes/w").send().assert_fault(409, "conflict");
    let after = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| daemon.get("/v1/sandboxes/w?wait=120s").assert_ok());
        daemon.ask("POST", "/v1/sandboxes/w/stop?timeout=0s").send().assert_ok();
        waiting.join().unwrap()
    });
    // The wait ends with the run; the keeper is gone only once `stop` has answered.
    assert_ne!(after["standing"], "running");
    assert_eq!(daemon.get("/v1/sandboxes/w").assert_ok()["standing"], "stopped");
    let _ = run.wait();
}

#[test]
fn a_collection_can_be_looked_at_before() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({"name": "short", "ttl_ms": 1})).assert_ok();
    daemon.post("/v1/sandboxes", json!({"name": "long"})).assert_ok();
    let plan = daemon.get("/v1/gc").assert_ok();
    assert_eq!((&plan["dry_run"], plan["items"].as_array().unwrap().len()), (&json!(true), 1), "{plan}");
    daemon.get("/v1/sandboxes/short").assert_ok();
    assert_eq!(daemon.ask("POST", "/v1/gc").send().assert_ok()["items"][0]["sort"], "expired");
    daemon.get("/v1/sandboxes/short").assert_fault(404, "not_found");
    daemon.get("/v1/sandboxes/long").assert_ok();
}

/// Regression: a base with forks or templates on it outlived its sandbox, and only a collection removed it after the
/// last of them.
#[test]
fn a_directory_of_its_own_goes_with_the_last_that_stands_on_it() {
    let place = Place::new(As::Root);
    let daemon = Daemon::start(&place);
    let bases = || std::fs::read_dir(place.state().join("bases")).unwrap().count();
    let remove = |path: String| daemon.ask("DELETE", &path).send().assert_ok();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let kept = text(&daemon.post("/v1/sandboxes", json!({})).assert_ok()["id"]);
    let id = text(&daemon.post("/v1/sandboxes", json!({})).assert_ok()["id"]);
    let forked = daemon.post(&format!("/v1/sandboxes/{id}/fork"), json!({})).assert_ok();
    daemon.post("/v1/templates", json!({"name": "t", "from": text(&forked["snapshot"])})).assert_ok();
    remove(format!("/v1/sandboxes/{id}"));
    remove(format!("/v1/snapshots/{}", text(&forked["snapshot"])));
    remove(format!("/v1/sandboxes/{}", text(&forked["sandboxes"][0]["id"])));
    assert_eq!(bases(), 2, "a template stands on it");
    remove("/v1/templates/t".to_owned());
    assert_eq!(bases(), 1);
    remove(format!("/v1/sandboxes/{kept}"));
    assert_eq!(bases(), 0);
}
