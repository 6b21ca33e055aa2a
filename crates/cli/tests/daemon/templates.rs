//! Templates over HTTP.

use crate::support::http::Daemon;
use crate::support::{Place, either};
use serde_json::{Value, json};

/// A prepare command fills a template; one that fails leaves neither a template nor a sandbox.
#[test]
fn templates_are_prepared_over_http() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/input", "base\n");
        let daemon = Daemon::start(&place);
        let prepare = |key: &str, body: Value| {
            daemon.ask("POST", "/v1/templates").header("idempotency-key", key).json(body).send()
        };
        let good = json!({"name": "deps", "prepare": {"dir": place.project, "policies": ["workspace-write"],
            "command": "cat input > made; echo more >> made", "limits": {"max_wall_ms": 60_000}}});
        let made = prepare("k1", good.clone());
        assert_eq!(made.status, 201, "{made:?}");
        let again = prepare("k1", good.clone());
        assert_eq!((again.status, again.json()), (200, made.json()), "once under a key");
        prepare("k2", good).assert_fault(409, "conflict");
        let told = daemon.get("/v1/templates/deps").assert_ok();
        assert!(told["prepared"].as_str().unwrap().starts_with("cat input"), "{told}");
        let bad =
            json!({"name": "bad", "prepare": {"dir": place.project, "command": "echo said; echo why >&2; exit 3"}});
        let fault = prepare("k3", bad).assert_fault(409, "conflict");
        let message = fault["message"].as_str().unwrap();
        assert!(message.contains("status 3") && message.contains("why"), "{fault}");
        daemon.get("/v1/templates/bad").assert_fault(404, "not_found");
        for wrong in [json!({"name": "x"}), json!({"name": "x", "from": "a", "prepare": {"command": "true"}})] {
            daemon.post("/v1/templates", wrong).assert_fault(400, "invalid_request");
        }
        assert_eq!(daemon.get("/v1/sandboxes").assert_ok()["sandboxes"], json!([]), "none stays");
        let from = daemon.post("/v1/sandboxes", json!({"template": "deps", "name": "from"})).assert_ok();
        assert_eq!(from["warm"], false, "{from}");
        let run = daemon.ask("POST", "/v1/sandboxes/from/runs?wait=120s").json(json!({"command": ["cat", "made"]}));
        assert_eq!(run.send().assert_ok()["outcome"]["stdout"], "base\nmore\n");
        // A snapshot with `sync` is listed like any other.
        let taken = daemon.post("/v1/sandboxes/from/snapshots", json!({"name": "kept", "sync": true})).assert_ok();
        assert_eq!(daemon.get("/v1/snapshots/kept").assert_ok()["id"], taken["id"]);
    }
}
