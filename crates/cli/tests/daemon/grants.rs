//! Privileges that a credential could try to give itself: another secret, rights that were taken away, rights beyond a
//! template, objects of another owner, and amounts that lift a limit.

use crate::support::http::{Answer, Ask, Daemon, with_daemon};
use crate::support::left::soon;
use crate::support::world::{PUBLIC, World as WithNetwork};
use crate::support::{As, Place};
use serde_json::{Value, json};

struct GrantsFixture {
    place: Place,
    daemon: Daemon,
}

impl GrantsFixture {
    fn new(who: As) -> GrantsFixture {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        GrantsFixture { place, daemon }
    }

    fn ask(&self, token: Option<&str>, method: &str, path: &str, body: Value) -> Answer {
        self.line(token, method, path).json(body).send()
    }

    /// Request with a token, or as the operator where none is given.
    fn line(&self, token: Option<&str>, method: &str, path: &str) -> Ask<'_> {
        let ask = self.daemon.ask(method, path);
        match token {
            Some(token) => ask.bearer(token),
            None => ask,
        }
    }

    fn post(&self, token: Option<&str>, path: &str, body: Value) -> Answer {
        self.ask(token, "POST", path, body)
    }

    fn make(&self, body: Value) -> String {
        self.daemon.post("/v1/sandboxes", body).assert_ok()["id"].as_str().unwrap().to_owned()
    }

    fn look(&self, word: &str) -> Value {
        self.daemon.get(&format!("/v1/sandboxes/{word}")).assert_ok()
    }

    fn patch(&self, word: &str, body: Value) -> Answer {
        self.ask(None, "PATCH", &format!("/v1/sandboxes/{word}"), body)
    }

    fn run(&self, word: &str, shell: &str) -> Value {
        self.post(None, &format!("/v1/sandboxes/{word}/runs?wait=120s"), json!({"shell": shell})).assert_ok()
    }
}

/// A policy that allows one host.
fn reaching(extends: &str) -> Value {
    json!({"version": 1, "extends": [extends], "net": {"rules": [{"action": "allow", "host": "api.test"}]}})
}

const SECRETS: &str = r#"
for name in ("WEB_KEY", "TEST_KEY", "PROD_KEY"):
    assert ask("PUT", f"/v1/secrets/{name}", {"value": name.lower() + "-value"})[0] in (200, 201)
rules = {"version": 1, "extends": ["default"], "net": {"rules": [{"action": "allow", "host": "api.test"}]},
    "secrets": [{"name": "WEB_KEY", "inject": {"host": "api.test", "header": "authorization", "format": "Bearer {}"}}]}
assert ask("POST", "/v1/sandboxes", {"name": "seed", "policies": [rules]})[0] == 201
assert ask("POST", "/v1/templates", {"name": "net", "from": "seed"})[0] == 201
mapped = {"name": "mapped", "policies": [rules], "secrets": ["WEB_KEY=store:TEST_KEY"]}
assert ask("POST", "/v1/sandboxes", mapped)[0] == 201
agent = ask("POST", "/v1/tokens", {"name": "agent", "scopes": ["agent"], "sandboxes": ["mapped"]})[1]["token"]
def sent(sandbox, token):
    get = 'curl -sS -m 10 -H "Authorization: Bearer $WEB_KEY" https://api.test/'
    status, done = ask("POST", f"/v1/sandboxes/{sandbox}/runs?wait=120s", {"shell": get}, token)
    said = done["outcome"]["stdout"]
    return [name for name in ("WEB_KEY", "TEST_KEY", "PROD_KEY") if (name.lower() + "-value")[::-1] in said]
def make(token, *secrets):
    return ask("POST", "/v1/sandboxes", {"template": "net", "secrets": list(secrets)}, token)
# The policy decides which secret goes to which host, not the agent.
for word in ("WEB_KEY=store:PROD_KEY", "WEB_KEY=store:NOT_KEPT"):
    status, fault = make(agent, word)
    assert (status, fault["error_kind"]) == (403, "policy_denied"), fault
    assert "secrets: " + word in fault["message"] and "WEB_KEY=store:WEB_KEY" in fault["hint"], fault
# The controls: a secret under its own name is sent, and an operator may name another.
for words in ([], ["WEB_KEY=store:WEB_KEY"]):
    status, made = make(agent, *words)
    assert status == 201, made
    assert sent(made["id"], agent) == ["WEB_KEY"]
status, made = make(None, "WEB_KEY=store:PROD_KEY")
assert status == 201 and sent(made["id"], None) == ["PROD_KEY"], made
# A fork keeps the mapping that an operator chose.
assert sent("mapped", agent) == ["TEST_KEY"]
status, forked = ask("POST", "/v1/sandboxes/mapped/fork", {}, agent)
assert status in (200, 201), forked
assert sent(forked["sandboxes"][0]["id"], agent) == ["TEST_KEY"]
print("kept apart")
"#;

#[test]
fn no_secret_is_sent_in_the_place_of_another() {
    let world = WithNetwork::new(As::User).host(PUBLIC, "api.test").certificate(&["api.test"]);
    let world = world.server("https", PUBLIC, 443);
    assert_eq!(with_daemon(&world, SECRETS), "kept apart\n");
}

/// A snapshot from before a change does not bring removed rights back, also when its sandbox is gone.
#[test]
fn a_snapshot_gives_nothing_back() {
    let w = GrantsFixture::new(As::User);
    let wide = json!({"name": "op", "policies": [reaching("default")], "limits": {"max_processes": 64}, "cpus": 2});
    let id = w.make(wide);
    let agent = w.daemon.token(json!({"name": "agent", "scopes": ["agent"], "sandboxes": ["op"]}));
    w.post(Some(&agent), "/v1/sandboxes/op/snapshots", json!({"name": "before"})).assert_ok();
    w.patch("op", json!({"net": [], "limits": {"max_processes": 16}, "cpus": 1})).assert_ok();

    let terms = |forked: Value| {
        let made = w.look(forked["sandboxes"][0]["id"].as_str().unwrap());
        let rules = made["policy"]["net"]["rules"].as_array().map_or(0, Vec::len);
        (rules, made["limits"]["max_processes"].as_u64().unwrap(), made["cpus"].as_f64().unwrap())
    };
    let of_snapshot = |token: Option<&str>| w.post(token, "/v1/snapshots/before/fork", json!({})).assert_ok();
    let of_sandbox = |token: Option<&str>, body| w.post(token, "/v1/sandboxes/op/fork", body).assert_ok();
    assert_eq!(terms(of_snapshot(None)), (1, 64, 2.0), "the control: the host's operator has it as it was");
    assert_eq!(terms(of_snapshot(Some(&agent))), (0, 16, 1.0));
    assert_eq!(terms(of_sandbox(Some(&agent), json!({"snapshot": "before"}))), (0, 16, 1.0));
    assert_eq!(terms(of_sandbox(Some(&agent), json!({}))), (0, 16, 1.0));
    // A fork can be given no more than its origin could.
    let forked = of_snapshot(Some(&agent))["sandboxes"][0]["id"].as_str().unwrap().to_owned();
    let rules = reaching("default")["net"]["rules"].clone();
    let back = w.ask(Some(&agent), "PATCH", &format!("/v1/sandboxes/{forked}"), json!({"net": rules}));
    back.assert_fault(403, "policy_denied");
    w.daemon.ask("DELETE", &format!("/v1/sandboxes/{id}")).send().assert_ok();
    assert_eq!(terms(of_snapshot(Some(&agent))), (0, 16, 1.0), "as it was last");
}

/// Templates that a tenant's operator makes from a snapshot bring nothing back, either; up to the rights that the
/// sandbox was created with, the operator may restore them himself.
#[test]
fn a_template_of_a_snapshot_gives_nothing_back() {
    let w = GrantsFixture::new(As::User);
    let tenant_operator = w.daemon.token(json!({"name": "lord", "tenant": "blue", "scopes": ["operator"]}));
    let tenant_operator = Some(tenant_operator.as_str());
    w.post(tenant_operator, "/v1/sandboxes", json!({"name": "s", "policies": [reaching("default")]})).assert_ok();
    w.post(tenant_operator, "/v1/sandboxes/s/snapshots", json!({"name": "before"})).assert_ok();
    let patch = |word: &str, body: Value| w.ask(tenant_operator, "PATCH", &format!("/v1/sandboxes/{word}"), body);
    patch("s", json!({"net": []})).assert_ok();
    let made = w.post(tenant_operator, "/v1/templates", json!({"name": "t", "from": "before"})).assert_ok();
    let told = w.line(tenant_operator, "GET", "/v1/templates/t").send().assert_ok();
    assert_eq!((&told["id"], &told["policy"]["net"]["rules"]), (&made["id"], &json!([])), "{told}");
    let forked = w.post(tenant_operator, "/v1/snapshots/before/fork", json!({})).assert_ok();
    let forked = forked["sandboxes"][0]["id"].as_str().unwrap();
    let rules = reaching("default")["net"]["rules"].clone();
    patch(forked, json!({"net": [{"action": "allow", "host": "*"}]})).assert_fault(403, "policy_denied");
    patch(forked, json!({"net": rules})).assert_ok();
}

/// After the record with a sandbox's last rights is collected, only the host's operator can build on its snapshots.
#[test]
fn what_held_last_must_be_known() {
    let place = Place::new(As::User);
    let file = place.file("config.toml", "");
    std::fs::write(&file, "[keep]\nremoved = 1\ninterval = \"200ms\"\n").unwrap();
    let daemon = Daemon::start_with(&place, &["--config", file.to_str().unwrap()]);
    let w = GrantsFixture { place, daemon };
    let tenant_operator = w.daemon.token(json!({"name": "lord", "tenant": "blue", "scopes": ["operator"]}));
    let tenant_operator = Some(tenant_operator.as_str());
    let cycle = |name: &str| {
        w.post(tenant_operator, "/v1/sandboxes", json!({"name": name})).assert_ok();
        w.post(tenant_operator, &format!("/v1/sandboxes/{name}/snapshots"), json!({"name": format!("of-{name}")}))
            .assert_ok();
        w.line(tenant_operator, "DELETE", &format!("/v1/sandboxes/{name}")).send().assert_ok();
    };
    let fork = |name: &str| w.post(tenant_operator, &format!("/v1/snapshots/of-{name}/fork"), json!({}));
    cycle("first");
    fork("first").assert_ok();
    cycle("second");
    assert!(soon(|| fork("first").status == 403), "its record goes with the next");
    let fault = fork("first").assert_fault(403, "policy_denied");
    assert!(fault["message"].as_str().unwrap().contains("no longer recorded"), "{fault}");
    fork("second").assert_ok();
}

#[test]
fn undo_in_a_directory_takes_back_what_is_ones_own() {
    let w = GrantsFixture::new(As::User);
    let dir = w.place.project.to_str().unwrap();
    for (name, file) in [("p2", "second"), ("p1", "first")] {
        w.make(json!({"name": name, "dir": dir, "policies": ["workspace-write"]}));
        w.run(name, &format!("echo new > {file}"));
        let diff = w.daemon.get(&format!("/v1/sandboxes/{name}/workspace/diff")).assert_ok();
        let approve = json!({"digest": diff["digest"], "all": true});
        w.daemon.post(&format!("/v1/sandboxes/{name}/workspace/approve"), approve).assert_ok();
    }
    let id = |name: &str| w.look(name)["id"].clone();
    let token = |ask: Value| w.daemon.token(ask);
    let bound = token(json!({"name": "bound", "scopes": ["reviewer"], "sandboxes": ["p2"]}));
    let reviewer = token(json!({"name": "rita", "scopes": ["reviewer"]}));
    let undo = |token: &str| w.post(Some(token), "/v1/undo", json!({"of": dir}));
    // The last batch that landed belongs to another sandbox.
    assert_eq!(undo(&bound).assert_ok()["sandbox"], id("p2"));
    assert!(!w.place.project.join("second").exists() && w.place.project.join("first").exists());
    undo(&bound).assert_fault(404, "not_found");
    assert_eq!(undo(&reviewer).assert_ok()["sandbox"], id("p1"), "the control");
    assert!(!w.place.project.join("first").exists());
}

#[test]
fn a_template_gives_what_it_gives() {
    let w = GrantsFixture::new(As::User);
    w.make(json!({"name": "seed", "policies": [reaching("read-only")], "cpus": 0.5}));
    w.daemon.post("/v1/templates", json!({"name": "net", "from": "seed"})).assert_ok();
    let policies = json!(["default", "read-only", "workspace-write", "no-network"]);
    let agent = w.daemon.token(json!({"name": "agent", "scopes": ["agent"], "policies": policies}));
    let make = |token: Option<&str>, policies: Value, cpus: Value| {
        w.post(token, "/v1/sandboxes", json!({"template": "net", "policies": policies, "cpus": cpus}))
    };
    let fault = make(Some(&agent), json!(["workspace-write"]), json!(null)).assert_fault(403, "policy_denied");
    assert!(fault["message"].as_str().unwrap().contains("more than the template's policy"), "{fault}");
    assert!(fault["hint"].as_str().unwrap().contains("leave `policies` out"), "{fault}");
    // The controls: the template's own rights, fewer, and more by an operator; the policy alone was granted to the
    // agent.
    for (token, policies) in [
        (Some(agent.as_str()), json!([])),
        (Some(&agent), json!(["read-only"])),
        (Some(&agent), json!(["no-network"])),
        (None, json!(["workspace-write"])),
    ] {
        make(token, policies, json!(null)).assert_ok();
    }
    w.post(Some(&agent), "/v1/sandboxes", json!({"policies": ["workspace-write"]})).assert_ok();
    for (asked, given) in [(json!(2), 0.5), (json!(0.25), 0.25), (json!(null), 0.5)] {
        let made = make(Some(&agent), json!([]), asked).assert_ok();
        assert_eq!(w.look(made["id"].as_str().unwrap())["cpus"], given);
    }
}

/// Amounts that no mechanism could enforce are refused by name, on every route that takes one.
#[test]
fn amounts_are_checked_wherever_they_come_in() {
    let w = GrantsFixture::new(As::User);
    let dir = w.place.project.clone();
    w.make(json!({"name": "s", "cpus": 1}));
    w.daemon.post("/v1/templates", json!({"name": "t", "from": "s"})).assert_ok();
    for (field, bad) in [
        ("cpus", json!({"cpus": -100})),
        ("cpus", json!({"cpus": 0})),
        ("cpus", json!({"cpus": 1e308})),
        ("limits.max_memory_mb", json!({"limits": {"max_memory_mb": -5}})),
        ("limits.max_memory_mb", json!({"limits": {"max_memory_mb": 0}})),
        ("limits.max_memory_mb", json!({"limits": {"max_memory_mb": 1e300}})),
        ("limits.max_memory_mb", json!({"limits": {"max_memory_mb": 1e-9}})),
        ("limits.max_disk_mb", json!({"limits": {"max_disk_mb": -1}})),
        ("limits.max_processes", json!({"limits": {"max_processes": 0}})),
    ] {
        let with = |more: Value| {
            let mut body = bad.clone();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        for (method, path, body) in [
            ("POST", "/v1/sandboxes", bad.clone()),
            ("POST", "/v1/sandboxes", with(json!({"template": "t"}))),
            ("PATCH", "/v1/sandboxes/s", bad.clone()),
            ("PUT", "/v1/templates/t/warm", with(json!({"keep": 1}))),
            ("POST", "/v1/templates", json!({"name": "x", "prepare": with(json!({"command": "true"}))})),
            ("POST", "/v1/runs/explain", json!({"create": with(json!({"dir": dir})), "run": {"command": ["true"]}})),
        ] {
            let fault = w.ask(None, method, path, body).assert_fault(400, "invalid_request");
            let told = fault["message"].as_str().unwrap();
            assert!(told.starts_with(&format!("{field}: ")) && fault["hint"].is_string(), "{path}: {fault}");
        }
    }
    for limits in [json!({"max_wall_ms": 0}), json!({"max_output_bytes": 0})] {
        let ask = json!({"command": ["true"], "limits": limits});
        w.post(None, "/v1/sandboxes/s/runs", ask).assert_fault(400, "invalid_request");
    }
    let policy = json!({"version": 1, "extends": ["default"], "limits": {"max_memory_mb": -5}});
    w.post(None, "/v1/sandboxes", json!({"policies": [policy]})).assert_fault(400, "invalid_request");
    assert_eq!(w.look("s")["cpus"], 1.0, "nothing of it holds");
    // The controls: the smallest valid amounts.
    let least =
        json!({"cpus": 0.01, "limits": {"max_memory_mb": 0.000001, "max_disk_mb": 0.000001, "max_processes": 1}});
    w.daemon.post("/v1/sandboxes", least).assert_ok();
    w.patch("s", json!({"cpus": 0.5, "limits": {"max_wall_ms": 1}})).assert_ok();
}

/// A limit too small for an enclosure is a permanent refusal, without a retry.
#[test]
fn what_no_enclosure_fits_in_is_told_once_and_for_all() {
    let w = GrantsFixture::new(As::Root);
    w.make(json!({"name": "tiny", "limits": {"max_memory_mb": 0.001}}));
    w.make(json!({"name": "small", "limits": {"max_memory_mb": 64, "max_processes": 4}}));
    let run = |word: &str| w.post(None, &format!("/v1/sandboxes/{word}/runs?wait=120s"), json!({"command": ["true"]}));
    let refused = run("tiny");
    let fault = refused.assert_fault(429, "limit_exceeded");
    assert_eq!(
        (&fault["retry"], &fault["phase"], &fault["limit_kind"]),
        (&json!("never"), &json!("start"), &json!("memory_mb"))
    );
    assert_eq!(refused.header("retry-after"), None, "{refused:?}");
    assert_eq!(run("small").assert_ok()["outcome"]["verdict"], "ok", "the control");
}

/// A policy under which no command could run is refused at create.
#[test]
fn what_cannot_be_read_is_not_covered() {
    let w = GrantsFixture::new(As::User);
    for name in ["networked", "no-network", "strict"] {
        let fault = w.post(None, "/v1/sandboxes", json!({"policies": [name]})).assert_fault(403, "policy_denied");
        assert!(fault["message"].as_str().unwrap().contains("no command can work on it"), "{fault}");
        let made = w.place.cofferdam(["create", "-p", name]).current_dir(&w.place.project).output().unwrap();
        assert_eq!(made.status.code(), Some(126), "{made:?}");
    }
    assert_eq!(w.daemon.get("/v1/sandboxes").assert_ok()["sandboxes"], json!([]), "nothing was made");
    w.make(json!({"name": "s", "policies": ["default", "no-network"]}));
    assert_eq!(w.run("s", "true")["outcome"]["verdict"], "ok", "the control");
}

#[test]
fn a_change_tells_what_it_changed() {
    let w = GrantsFixture::new(As::User);
    w.make(json!({"name": "s", "policies": [reaching("default")], "limits": {"max_wall_ms": 60000}, "cpus": 1}));
    let agent = w.daemon.token(json!({"name": "agent", "scopes": ["agent"], "sandboxes": ["s"]}));
    let told = |answer: Answer| {
        let changed = answer.assert_ok();
        (changed["changed"] == true, changed["revision"].as_u64().unwrap(), changed["live"] == true)
    };
    let rules = reaching("default")["net"]["rules"].clone();
    for same in [json!({"net": rules}), json!({"limits": {"max_wall_ms": 60000}}), json!({"cpus": 1}), json!({})] {
        assert_eq!(told(w.patch("s", same.clone())), (false, 1, false), "{same}");
    }
    // Another key order is the same document.
    let spelled = json!([{"host": "api.test", "action": "allow"}]);
    assert_eq!(told(w.patch("s", json!({"net": spelled}))), (false, 1, false));
    // An agent cannot remove limits with null; an operator can, and nothing of them stays.
    for null in [json!({"limits": null}), json!({"cpus": null})] {
        w.ask(Some(&agent), "PATCH", "/v1/sandboxes/s", null).assert_fault(403, "policy_denied");
    }
    assert_eq!(told(w.patch("s", json!({"limits": null, "cpus": null}))), (true, 2, false));
    let now = w.look("s");
    assert_eq!((&now["limits"], &now["cpus"]), (&json!({}), &json!(null)), "{now}");
    assert_eq!(told(w.patch("s", json!({"net": null}))), (true, 3, false));
    assert_eq!(w.look("s")["policy"]["net"]["rules"].as_array().map_or(0, Vec::len), 0);
    w.patch("s", json!({"publish": null})).assert_fault(400, "invalid_request");
    // In a live sandbox unchanged values are no change, either.
    w.daemon.ask("POST", "/v1/sandboxes/s/start?live=true").send().assert_ok();
    for same in [json!({"net": []}), json!({"name": "s"}), json!({})] {
        assert_eq!(told(w.patch("s", same.clone())), (false, 3, true), "{same}");
    }
    assert_eq!(told(w.patch("s", json!({"limits": {"max_wall_ms": 50000}}))), (true, 4, true));
    assert_eq!(told(w.patch("s", json!({"limits": {"max_wall_ms": 50000}}))), (false, 4, true));
}

/// Removing a deny rule widens access.
#[test]
fn rules_that_deny_are_not_taken_away_by_null() {
    let w = GrantsFixture::new(As::User);
    let rules = json!([{"action": "deny", "host": "bad.test"}]);
    let open = json!({"version": 1, "extends": ["default"], "defaults": {"net": "allow"}, "net": {"rules": rules}});
    w.make(json!({"name": "s", "policies": [open]}));
    let agent = w.daemon.token(json!({"name": "agent", "scopes": ["agent"], "sandboxes": ["s"]}));
    w.ask(Some(&agent), "PATCH", "/v1/sandboxes/s", json!({"net": null})).assert_fault(403, "policy_denied");
    w.patch("s", json!({"net": null})).assert_ok();
}

#[test]
fn names_tell_nothing_of_others_and_hide_nobody() {
    let w = GrantsFixture::new(As::User);
    let token = |name: &str| w.daemon.token(json!({"name": name, "scopes": ["agent"]}));
    let (ann, bob) = (token("ann"), token("bob"));
    let make = |token: &str, body: Value| {
        w.post(Some(token), "/v1/sandboxes", body).assert_ok()["id"].as_str().unwrap().to_owned()
    };
    let (hers, his) = (make(&ann, json!({})), make(&bob, json!({})));
    let take =
        |token: &str, id: &str| w.post(Some(token), &format!("/v1/sandboxes/{id}/snapshots"), json!({"name": "n"}));
    let taken = take(&ann, &hers).assert_ok();
    let snapshot = taken["id"].as_str().unwrap();
    let fault = take(&bob, &his).assert_fault(409, "conflict");
    assert!(fault["subject"].is_null() && !fault.to_string().contains(snapshot), "{fault}");
    assert_eq!(take(&ann, &hers).assert_fault(409, "conflict")["subject"], snapshot, "the control: she has it");

    // Bob names his sandbox like the beginning of Ann's id. Callers that see both are told that it is ambiguous; each
    // owner still reaches its own.
    let (short, whole) = (&hers["sbx_".len()..][..8], &hers["sbx_".len()..]);
    let get = |token: Option<&str>, word: &str| w.line(token, "GET", &format!("/v1/sandboxes/{word}")).send();
    assert_eq!(get(None, short).assert_ok()["id"], hers.as_str(), "the control");
    let named = make(&bob, json!({"name": short}));
    get(None, short).assert_fault(400, "invalid_request");
    assert_eq!(get(Some(&bob), short).assert_ok()["id"], named.as_str());
    assert_eq!(get(Some(&ann), short).assert_ok()["id"], hers.as_str());
    make(&bob, json!({"name": whole}));
    assert_eq!(get(None, whole).assert_ok()["id"], hers.as_str(), "a whole id is one");
}
