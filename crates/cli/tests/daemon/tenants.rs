//! Isolation of tenants, and the limits of an agent's token: it cannot approve, open or mint.

use crate::support::http::{Ask, Daemon};
use crate::support::{As, Place, either};
use serde_json::{Value, json};
use std::fs;

struct TenantsFixture {
    place: Place,
    daemon: Daemon,
}

impl TenantsFixture {
    fn new(who: As) -> TenantsFixture {
        let place = Place::new(who);
        let daemon = Daemon::start_tcp(&place);
        TenantsFixture { place, daemon }
    }

    fn ask(&self, token: &str, method: &str, path: &str) -> Ask<'_> {
        self.daemon.ask(method, path).over_tcp().bearer(token)
    }

    fn make(&self, token: &str, body: Value) -> crate::support::http::Answer {
        self.ask(token, "POST", "/v1/sandboxes").json(body).send()
    }
}

// promise 23
#[test]
fn tenants_do_not_see_each_other() {
    for who in either() {
        let w = TenantsFixture::new(who);
        let of = |tenant: &str| {
            w.daemon.token(json!({"name": tenant, "tenant": tenant, "scopes": ["agent", "reviewer", "operator"]}))
        };
        let (a, b) = (of("a"), of("b"));
        let made = w.make(&a, json!({"name": "mine"})).assert_ok();
        let id = made["id"].as_str().unwrap();
        assert!(made["base"].as_str().unwrap().contains("/tenants/a/bases/"), "{made}");
        w.ask(&a, "GET", &format!("/v1/sandboxes/{id}")).send().assert_ok();
        // Tenant B finds it neither by id nor by name nor in a list, and neither does the daemon's own tenant.
        for name in [id, "mine"] {
            for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/start"), ("POST", "/stop")] {
                w.ask(&b, method, &format!("/v1/sandboxes/{name}{path}")).send().assert_fault(404, "not_found");
            }
        }
        w.daemon.get(&format!("/v1/sandboxes/{id}")).assert_fault(404, "not_found");
        assert_eq!(w.ask(&b, "GET", "/v1/sandboxes?removed=true").send().assert_ok()["sandboxes"], json!([]));
        assert_eq!(w.make(&b, json!({"name": "mine"})).status, 201, "names are each tenant's own");
        w.ask(&a, "GET", &format!("/v1/sandboxes/{id}")).send().assert_ok();
        // The attempt is in the operator's journal once; one for an unused id is not.
        w.ask(&b, "GET", "/v1/sandboxes/sbx_00000000000000000000000000000000").send().assert_fault(404, "not_found");
        let attempts = || {
            let log = w.place.cofferdam(["audit", "log", "--json"]).output().unwrap();
            let log: Value = serde_json::from_slice(&log.stdout).unwrap();
            let entries = log["entries"].as_array().unwrap().clone();
            entries.into_iter().filter(|entry| entry["verb"] == "foreign").collect::<Vec<_>>()
        };
        let begun = std::time::Instant::now();
        while attempts().len() < 2 && begun.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let attempts = attempts();
        let by: Vec<&str> = attempts.iter().map(|entry| entry["actor"].as_str().unwrap()).collect();
        assert!(by.contains(&"b of b") && attempts.iter().all(|entry| entry["subject"] == *id), "{attempts:?}");
        assert_eq!(attempts.len(), 2, "one for each who tried: {attempts:?}");
    }
}

/// Directories of the host are granted by the operator only.
#[test]
fn a_tenant_has_only_directories_that_were_granted() {
    let w = TenantsFixture::new(As::User);
    let (granted, other) = (w.place.dir("granted"), w.place.dir("granted-not"));
    w.place.dir("granted/below");
    std::os::unix::fs::symlink(&other, granted.join("link")).unwrap();
    for tenant in ["default", "a"] {
        let token = w.daemon.token(json!({"name": "t", "tenant": tenant, "scopes": ["agent"], "dirs": [granted]}));
        for good in [granted.clone(), granted.join("below")] {
            assert_eq!(w.make(&token, json!({"dir": good})).status, 201);
        }
        assert_eq!(w.make(&token, json!({})).status, 201, "an empty directory is always to be had");
        for bad in [
            other.clone(),
            granted.join("link"),
            granted.join("../granted-not"),
            "/".into(),
            "/etc".into(),
            w.place.state(),
        ] {
            let fault = w.make(&token, json!({"dir": bad})).assert_fault(403, "policy_denied");
            assert!(fault["hint"].is_string());
        }
        w.make(&token, json!({"dir": "granted"})).assert_fault(400, "invalid_request");
    }
    // The daemon's own operator may name any directory; a granted one must not overlap the state directory.
    assert_eq!(w.make(&w.daemon.operator_token(), json!({"dir": other})).status, 201);
    for bad in [w.place.state(), w.place.root.clone(), "/".into()] {
        let ask = json!({"name": "t", "scopes": ["agent"], "dirs": [bad]});
        w.daemon.post("/v1/tokens", ask).assert_fault(400, "invalid_request");
    }
}

/// Policies of an agent or a tenant cannot widen what was granted.
// promise 23
#[test]
fn policies_do_not_widen_what_was_granted() {
    let w = TenantsFixture::new(As::User);
    let secret = w.place.file("home/secret", "s3cret");
    let agent = w.daemon.token(json!({"name": "agent", "scopes": ["agent"]}));
    let tenant = w.daemon.token(json!({"name": "lord", "tenant": "a", "scopes": ["operator"]}));
    let open = json!({"version": 1, "fs": {"rules": [{"action": "allow", "path": secret, "perms": ["read_file"]}]}});
    let modest = json!({"version": 1, "extends": ["default"], "limits": {"max_wall_ms": 1000}});
    assert_eq!(w.make(&agent, json!({"policies": ["default", "strict"]})).status, 201);
    assert_eq!(w.make(&tenant, json!({"policies": [modest]})).status, 201);
    assert_eq!(
        w.make(&w.daemon.operator_token(), json!({"policies": ["default", open]})).status,
        201,
        "the operator may"
    );
    for token in [&agent, &tenant] {
        w.make(token, json!({"policies": ["default", open]})).assert_fault(403, "policy_denied");
        w.make(token, json!({"policies": ["default", "networked"]})).assert_fault(403, "policy_denied");
    }
    w.make(&agent, json!({"policies": [modest]})).assert_fault(403, "policy_denied");
    let both = ["default", "networked"];
    let granted = w.daemon.token(json!({"name": "net", "scopes": ["agent"], "policies": both}));
    assert_eq!(w.make(&granted, json!({"policies": both})).status, 201);
    w.make(&agent, json!({"policies": ["../../etc/passwd"]})).assert_fault(403, "policy_denied");
}

/// An agent mints no token in any tenant; only the daemon's own operator mints for another tenant.
// promise 23
#[test]
fn agents_mint_nothing_and_tenants_mint_for_nobody() {
    let w = TenantsFixture::new(As::User);
    let ask = json!({"name": "x", "scopes": ["operator"]});
    for (tenant, scope) in
        [("default", "agent"), ("default", "reviewer"), ("a", "agent"), ("a", "reviewer"), ("a", "operator")]
    {
        let token = w.daemon.token(json!({"name": "t", "tenant": tenant, "scopes": [scope]}));
        w.ask(&token, "POST", "/v1/tokens").json(ask.clone()).send().assert_fault(403, "policy_denied");
        w.ask(&token, "GET", "/v1/tokens").send().assert_fault(403, "policy_denied");
        if scope != "operator" {
            w.ask(&token, "POST", "/v1/gc").send().assert_fault(403, "policy_denied");
        }
        if scope == "reviewer" {
            w.make(&token, json!({})).assert_fault(403, "policy_denied");
        }
    }
    let minted = w.ask(&w.daemon.operator_token(), "POST", "/v1/tokens").json(ask).send();
    assert_eq!(minted.status, 201, "{minted:?}");
    for bad in [
        json!({"name": "x", "scopes": []}),
        json!({"name": "x", "scopes": ["lord"]}),
        json!({"name": "x", "scopes": ["agent"], "tenant": "../a"}),
    ] {
        w.daemon.post("/v1/tokens", bad).assert_fault(400, "invalid_request");
    }
    assert!(!w.place.state().join("a").exists());
}

/// Environment variables of the daemon do not reach commands of another tenant.
#[test]
fn a_tenants_commands_have_nothing_of_the_daemons_environment() {
    let place = Place::new(As::User);
    let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.env("CANARY", "canary-value");
    let daemon = Daemon::spawn(&place, command);
    let token = daemon.token(json!({"name": "t", "tenant": "a", "scopes": ["operator"]}));
    let policy = json!({"version": 1, "extends": ["default"], "env": {"pass": ["CANARY", "PATH"]}});
    let made = daemon
        .ask("POST", "/v1/sandboxes")
        .over_tcp()
        .bearer(&token)
        .json(json!({"name": "e", "policies": [policy]}))
        .send();
    made.assert_ok();
    let state = place.state().join("tenants/a");
    assert_eq!(fs::metadata(&state).unwrap().permissions(), fs::metadata(place.state()).unwrap().permissions());
}

/// Environment variables of the daemon do not reach an agent in its own tenant, either: an agent does not own the
/// host. PATH contains what its policy lets it run.
#[test]
fn an_agent_of_our_own_tenant_has_nothing_of_the_daemons_environment() {
    let place = Place::new(As::User);
    let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.envs([("SHELL", "/bin/canary"), ("TERM", "canary-term"), ("LANG", "C"), ("LC_TIME", "canary")]);
    let daemon = Daemon::spawn(&place, command);
    let environment = |token: Option<&str>, name: &str| -> String {
        let post = |path: &str, body: Value| match token {
            Some(token) => daemon.ask("POST", path).over_tcp().bearer(token).json(body).send(),
            None => daemon.post(path, body),
        };
        post("/v1/sandboxes", json!({ "name": name })).assert_ok();
        let run = post(&format!("/v1/sandboxes/{name}/runs?wait=120s"), json!({ "shell": "env" }));
        run.assert_ok()["outcome"]["stdout"].as_str().unwrap().to_owned()
    };
    let own = environment(None, "own");
    for name in ["PATH", "HOME", "SHELL", "TERM", "LC_TIME"] {
        assert!(own.lines().any(|line| line.starts_with(&format!("{name}="))), "the control, {name}: {own}");
    }
    for scopes in [json!(["agent"]), json!(["agent", "reviewer"])] {
        let token = daemon.token(json!({ "name": "a", "scopes": scopes }));
        let seen = environment(Some(&token), &format!("s{}", scopes.as_array().unwrap().len()));
        let names: Vec<&str> = seen.lines().filter_map(|line| line.split('=').next()).collect();
        assert!(names.contains(&"PATH") && names.contains(&"LANG"), "{seen}");
        assert!(seen.contains("HOME=/home/agent\n"), "{seen}");
        let known = ["HOME", "PATH", "LANG", "TZ", "PWD", "SHLVL", "_", "COFFERDAM", "COFFERDAM_RUN_ID"];
        assert!(names.iter().all(|name| known.contains(name)), "{seen}");
    }
    let operator = daemon.token(json!({ "name": "o", "scopes": ["operator"] }));
    assert!(environment(Some(&operator), "operators").contains("SHELL=/bin/canary"), "who has the host has it");
}
