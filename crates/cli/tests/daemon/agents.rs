//! Tokens of scope `agent` reach the sandboxes that they created or are bound to. For another agent of the same tenant
//! these do not exist, and no other response mentions them.

use crate::support::http::{Answer, Ask, Daemon};
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

struct TwoAgents {
    place: Place,
    daemon: Daemon,
    ann: String,
    bob: String,
}

impl TwoAgents {
    fn new() -> TwoAgents {
        let place = Place::new(As::User);
        let daemon = Daemon::start_tcp(&place);
        let token = |name: &str| daemon.token(json!({"name": name, "scopes": ["agent"], "dirs": [place.project]}));
        let (ann, bob) = (token("ann"), token("bob"));
        TwoAgents { place, daemon, ann, bob }
    }

    fn ask(&self, token: &str, method: &str, path: &str) -> Ask<'_> {
        self.daemon.ask(method, path).over_tcp().bearer(token)
    }

    fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.ask(token, "POST", path).json(body).send()
    }

    fn get(&self, token: &str, path: &str) -> Answer {
        self.ask(token, "GET", path).send()
    }

    fn make(&self, token: &str, body: Value) -> String {
        self.post(token, "/v1/sandboxes", body).assert_ok()["id"].as_str().unwrap().to_owned()
    }

    /// Entries of the operator's journal for access to foreign sandboxes: actor and subject.
    fn foreign_attempts(&self) -> Vec<(String, String)> {
        let log = self.place.cofferdam(["audit", "log", "--json"]).output().unwrap();
        let log: Value = serde_json::from_slice(&log.stdout).unwrap();
        let entries = log["entries"].as_array().unwrap().iter().filter(|entry| entry["verb"] == "foreign");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        entries.map(|entry| (text(&entry["actor"]), text(&entry["subject"]))).collect()
    }

    #[track_caller]
    fn is_noted(&self, actor: &str, subject: &str) {
        let begun = Instant::now();
        while !self.foreign_attempts().iter().any(|(by, what)| by == actor && what == subject) {
            assert!(begun.elapsed() < Duration::from_secs(180), "{actor} {subject}: {:?}", self.foreign_attempts());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

// promise 23
#[test]
fn one_agents_sandboxes_are_not_there_for_another() {
    let w = TwoAgents::new();
    let project = w.place.project.clone();
    let id = w.make(&w.ann, json!({"name": "annsbox", "dir": project, "reserve": ["src"]}));
    let at = format!("/v1/sandboxes/{id}");
    let ran = w.post(&w.ann, &format!("{at}/runs?wait=120s"), json!({"shell": "echo hello > note"})).assert_ok();
    let run = ran["run"].as_str().unwrap().to_owned();
    let snapshot = w.post(&w.ann, &format!("{at}/snapshots"), json!({"name": "kept"})).assert_ok();
    let snapshot = snapshot["id"].as_str().unwrap().to_owned();
    let own = w.make(&w.bob, json!({"name": "his", "dir": project}));

    // The control: the owner, a token bound to the sandbox, a reviewer and the operator reach all of it.
    let bound = w.daemon.token(json!({"name": "carl", "scopes": ["agent"], "sandboxes": ["annsbox"]}));
    let reviewer = w.daemon.token(json!({"name": "rita", "scopes": ["reviewer"]}));
    for token in [&w.ann, &bound, &reviewer, &w.daemon.operator_token()] {
        for path in
            [&at, &format!("{at}/workspace/diff"), &format!("/v1/runs/{run}"), &format!("/v1/snapshots/{snapshot}")]
        {
            w.get(token, path).assert_ok();
        }
        let listed = w.get(token, "/v1/sandboxes").assert_ok().to_string();
        assert!(listed.contains(&id), "{listed}");
    }
    assert!(!w.get(&bound, "/v1/sandboxes").assert_ok().to_string().contains(&own), "nor has that one his");

    // Bob reaches none of it: by id, by id prefix with and without its kind, by name, percent-encoded, or inside a
    // request.
    let short = &id[..16];
    for word in [&id, short, &short[4..], "annsbox", &id.replace("sbx", "sb%78")] {
        w.get(&w.bob, &format!("/v1/sandboxes/{word}")).assert_fault(404, "not_found");
    }
    w.is_noted("bob of default", &id);
    w.is_noted("bob of default", short);
    for path in [format!("/v1/runs/{run}"), format!("/v1/runs/{run}/output"), format!("/v1/snapshots/{snapshot}")] {
        w.get(&w.bob, &path).assert_fault(404, "not_found");
    }
    for (path, body) in [
        (format!("/v1/sandboxes/{own}/restore"), json!({"snapshot": snapshot})),
        (format!("/v1/sandboxes/{own}/restore"), json!({"snapshot": "kept"})),
        (format!("/v1/sandboxes/{own}/fork"), json!({"snapshot": snapshot})),
        ("/v1/policies/explain".to_owned(), json!({"what": "/etc/passwd", "sandbox": "annsbox"})),
        ("/v1/runs/explain".to_owned(), json!({"sandbox": "annsbox", "run": {"command": ["true"]}})),
    ] {
        w.post(&w.bob, &path, body).assert_fault(404, "not_found");
    }
    w.is_noted("bob of default", &snapshot);
    w.get(&w.bob, &format!("/v1/events?sandbox={id}")).assert_fault(404, "not_found");

    // Responses about Bob's own sandbox do not mention Ann's.
    let silent =
        |text: &str| assert!(!text.contains(&id) && !text.contains("annsbox") && !text.contains(&run), "{text}");
    for path in ["/v1/sandboxes?removed=true", "/v1/runs", &format!("/v1/sandboxes/{own}/workspace/conflicts")] {
        silent(&w.get(&w.bob, path).assert_ok().to_string());
    }
    let taken = w.post(&w.bob, "/v1/sandboxes", json!({"name": "annsbox"})).assert_fault(409, "conflict");
    assert!(!taken.to_string().contains(&id), "{taken}");
    let held = json!({"dir": project, "reserve": ["src/a"]});
    silent(&w.post(&w.bob, "/v1/sandboxes", held).assert_fault(409, "conflict").to_string());
    let mut events = w.ask(&w.bob, "GET", "/v1/events?from=0").open();
    assert!(events.until(&own), "the control: his own is told");
    let told = String::from_utf8_lossy(&events.text).into_owned();
    assert!(!told.contains(&id) && !told.contains(&snapshot), "{told}");

    // A removed sandbox stays visible to its owner; a new token of the same name sees none of the owner's sandboxes.
    w.ask(&w.ann, "DELETE", &at).send().assert_ok();
    assert!(w.get(&w.ann, "/v1/sandboxes?removed=true").assert_ok().to_string().contains(&id));
    silent(&w.get(&w.bob, "/v1/sandboxes?removed=true").assert_ok().to_string());
    let again = w.daemon.token(json!({"name": "bob", "scopes": ["agent"]}));
    w.get(&again, &format!("/v1/sandboxes/{own}")).assert_fault(404, "not_found");
}

/// Idempotency keys belong to one token: the same key from another token creates another sandbox.
// promise 23
#[test]
fn keys_and_bounds_are_each_agents_own() {
    let w = TwoAgents::new();
    let make = |token: &str, key: &str| {
        w.ask(token, "POST", "/v1/sandboxes").header("idempotency-key", key).json(json!({})).send()
    };
    let id = |answer: &Answer| answer.json()["id"].as_str().unwrap().to_owned();
    let (hers, his) = (make(&w.ann, "k"), make(&w.bob, "k"));
    assert_eq!((hers.status, his.status), (201, 201));
    assert_ne!(id(&hers), id(&his));
    let again = make(&w.ann, "k");
    assert_eq!((again.status, id(&again)), (200, id(&hers)), "the control");
    // A fork belongs to the token that made it.
    let forked = w.post(&w.ann, &format!("/v1/sandboxes/{}/fork", id(&hers)), json!({})).assert_ok();
    let forked = format!("/v1/sandboxes/{}", forked["sandboxes"][0]["id"].as_str().unwrap());
    w.get(&w.ann, &forked).assert_ok();
    w.get(&w.bob, &forked).assert_fault(404, "not_found");
    // A token can be bound to existing sandboxes of its own tenant only, and only if its scope does not cover all of
    // them.
    for (scopes, sandboxes, tenant) in [
        ("agent", "nobodys", "default"),
        ("agent", &id(&hers), "a"),
        ("operator", &id(&hers), "default"),
        ("metrics", &id(&hers), "default"),
    ] {
        let ask = json!({"name": "x", "scopes": [scopes], "sandboxes": [sandboxes], "tenant": tenant});
        w.daemon.post("/v1/tokens", ask).assert_fault(400, "invalid_request");
    }
}
