//! Defaults and ceilings of limits: values for an agent's sandbox that sets none, the largest values it may request,
//! and callers that are exempt.

use crate::support::http::{Answer, Daemon};
use crate::support::left::soon;
use crate::support::{As, Place, to_the_end};
use serde_json::{Value, json};

struct CeilingsFixture {
    daemon: Daemon,
    place: Place,
}

impl CeilingsFixture {
    fn new(who: As, config: &str) -> CeilingsFixture {
        let place = Place::new(who);
        let daemon = start(&place, config);
        CeilingsFixture { daemon, place }
    }

    /// Restarts the daemon on the same state with another configuration.
    fn again(self, config: &str) -> CeilingsFixture {
        let CeilingsFixture { daemon, place } = self;
        drop(daemon);
        let daemon = start(&place, config);
        CeilingsFixture { daemon, place }
    }

    fn agent(&self, tenant: &str) -> String {
        self.daemon.token(json!({"name": "agent", "tenant": tenant, "scopes": ["agent"]}))
    }

    fn ask(&self, token: &str, method: &str, path: &str, body: Value) -> Answer {
        self.daemon.ask(method, path).over_tcp().bearer(token).json(body).send()
    }

    fn make(&self, token: &str, body: Value) -> Answer {
        self.ask(token, "POST", "/v1/sandboxes", body)
    }

    #[track_caller]
    fn limits(&self, token: &str, name: &str) -> Value {
        let look = self.daemon.ask("GET", &format!("/v1/sandboxes/{name}")).over_tcp().bearer(token).send();
        look.assert_ok()["limits"].clone()
    }

    fn run(&self, token: &str, name: &str, body: Value) -> Answer {
        self.ask(token, "POST", &format!("/v1/sandboxes/{name}/runs?wait=120s"), body)
    }
}

fn start(place: &Place, config: &str) -> Daemon {
    let file = place.file("config.toml", config);
    Daemon::start_with(place, &["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()])
}

/// Shell text that starts `count` sleepers, prints how many exist, and kills them.
fn sleepers(count: u32) -> String {
    format!(
        "n=0; for i in $(seq {count}); do sleep 60 & p=\"$p $!\"; kill -0 $! 2> /dev/null && n=$((n+1)); done; echo $n; kill $p"
    )
}

#[track_caller]
fn is_over(answer: &Answer, kind: &str, parts: &[&str]) {
    let fault = answer.assert_fault(429, "limit_exceeded");
    assert_eq!(
        (&fault["limit_kind"], &fault["phase"], &fault["retry"]),
        (&json!(kind), &json!("admission"), &json!("never"))
    );
    parts.iter().for_each(|part| assert!(fault["message"].as_str().unwrap().contains(part), "{part}: {fault}"));
    // A retry would not help, so none is suggested.
    assert_eq!(answer.header("retry-after"), None);
}

#[test]
fn an_agent_that_names_no_limit_is_held_and_the_hosts_operator_is_not() {
    let w = CeilingsFixture::new(
        As::Root,
        "[tenant.blue.limits.default]\nmax_processes = 12\n[limits.ceiling]\nmax_processes = 16\n",
    );
    let agent = w.agent("blue");
    let made = w.make(&agent, json!({"name": "free"})).assert_ok();
    assert_eq!(made["notes"], json!([]), "{made}");
    assert_eq!(w.limits(&agent, "free")["max_processes"], 12);
    let run = w.run(&agent, "free", json!({"shell": sleepers(40)})).assert_ok();
    assert_eq!(
        (&run["outcome"]["verdict"], &run["outcome"]["limit_kind"]),
        (&json!("limit_exceeded"), &json!("processes"))
    );
    // A request at exactly the ceiling succeeds and is enforced.
    w.make(&agent, json!({"name": "most", "limits": {"max_processes": 16}})).assert_ok();
    let run = w.run(&agent, "most", json!({"shell": sleepers(10)})).assert_ok();
    assert_eq!((&run["outcome"]["verdict"], &run["outcome"]["stdout"]), (&json!("ok"), &json!("10\n")), "{run}");
    is_over(
        &w.make(&agent, json!({"limits": {"max_processes": 17}})),
        "processes",
        &["limits.max_processes", "17", "16", "this node"],
    );
    // The host's own operator is exempt.
    w.daemon.post("/v1/sandboxes", json!({"name": "own"})).assert_ok();
    assert_eq!(w.daemon.get("/v1/sandboxes/own").assert_ok()["limits"], json!({}));
    let run = w.daemon.post("/v1/sandboxes/own/runs?wait=120s", json!({"shell": sleepers(40)})).assert_ok();
    assert_eq!((&run["outcome"]["verdict"], &run["outcome"]["stdout"]), (&json!("ok"), &json!("40\n")), "{run}");
    w.daemon.post("/v1/sandboxes", json!({"limits": {"max_processes": 5000}})).assert_ok();
}

#[test]
fn every_limit_has_a_default_and_a_ceiling() {
    let amounts = "max_wall_ms = 60000\nmax_cpu_ms = 50000\nmax_memory_mb = 256\nmax_output_bytes = 4096\nmax_processes = 64\n\
                   max_open_files = 128\nmax_disk_mb = 32\nmax_files = 1000\nmax_net_bytes = 100000\ncpus = 0.5\n";
    let w = CeilingsFixture::new(As::Root, &format!("[tenant.blue.limits.ceiling]\n{amounts}"));
    let agent = w.agent("blue");
    w.make(&agent, json!({"name": "all"})).assert_ok();
    let look = w.daemon.ask("GET", "/v1/sandboxes/all").over_tcp().bearer(&agent).send().assert_ok();
    // A sandbox without a network has no network limit.
    let want = json!({"max_wall_ms": 60000, "max_cpu_ms": 50000, "max_memory_mb": 256.0, "max_output_bytes": 4096,
        "max_processes": 64, "max_open_files": 128, "max_disk_mb": 32.0, "max_files": 1000});
    assert_eq!((&look["limits"], &look["cpus"]), (&want, &json!(0.5)));
    let run = w.run(&agent, "all", json!({"shell": "echo fine; ulimit -n"})).assert_ok();
    assert_eq!(run["outcome"]["stdout"], "fine\n128\n", "{run}");
    for (field, kind, more) in [
        ("max_wall_ms", "wall_ms", json!(60001)),
        ("max_cpu_ms", "cpu_ms", json!(50001)),
        ("max_memory_mb", "memory_mb", json!(256.5)),
        ("max_output_bytes", "output_bytes", json!(4097)),
        ("max_processes", "processes", json!(65)),
        ("max_open_files", "open_files", json!(129)),
        ("max_disk_mb", "disk_mb", json!(33)),
        ("max_files", "files", json!(1001)),
    ] {
        is_over(&w.make(&agent, json!({"limits": {field: more}})), kind, &[field, &more.to_string(), "tenant blue"]);
    }
    // A sandbox with a network has one.
    let policies = json!(["workspace-write", "networked"]);
    let ask = json!({"name": "net", "tenant": "blue", "scopes": ["agent"], "policies": policies});
    let far = w.daemon.token(ask);
    let net = |bytes: u64| json!({"limits": {"max_net_bytes": bytes}, "policies": policies});
    is_over(&w.make(&far, net(100_001)), "net_bytes", &["100001", "100000"]);
    w.make(&far, json!({"name": "far", "policies": policies})).assert_ok();
    assert_eq!(w.limits(&far, "far")["max_net_bytes"], 100_000);
    is_over(&w.make(&agent, json!({"cpus": 0.75})), "cpus", &["cpus", "0.75", "0.5", "tenant blue"]);
    // A run can request no more than the ceiling, either.
    is_over(&w.run(&agent, "all", json!({"shell": "true", "limits": {"max_wall_ms": 60001}})), "wall_ms", &["60001"]);
    w.run(&agent, "all", json!({"shell": "true", "limits": {"max_wall_ms": 60000}})).assert_ok();
    // Another tenant is not affected.
    let other = w.agent("green");
    w.make(&other, json!({"limits": {"max_wall_ms": 60001, "max_files": 5000}})).assert_ok();
}

#[test]
fn tokens_have_their_own_and_the_smallest_ceiling_holds() {
    let w = CeilingsFixture::new(
        As::Root,
        "[tenant.blue.limits.ceiling]\nmax_processes = 40\n[tenant.blue.limits.default]\nmax_wall_ms = 9000\n",
    );
    let token = |limits: Value| {
        w.daemon
            .ask("POST", "/v1/tokens")
            .json(json!({"name": "t", "tenant": "blue", "scopes": ["agent"], "limits": limits}))
            .send()
    };
    let of = |limits: Value| token(limits).assert_ok()["token"].as_str().unwrap().to_owned();
    let tight = of(json!({"default": {"max_wall_ms": 5000, "max_processes": 8}, "ceiling": {"max_processes": 20}}));
    w.make(&tight, json!({"name": "tight"})).assert_ok();
    let limits = w.limits(&tight, "tight");
    assert_eq!((&limits["max_processes"], &limits["max_wall_ms"]), (&json!(8), &json!(5000)));
    is_over(&w.make(&tight, json!({"limits": {"max_processes": 21}})), "processes", &["this token"]);
    // A token's ceiling above its tenant's has no effect.
    let wide = of(json!({"ceiling": {"max_processes": 4000}}));
    is_over(&w.make(&wide, json!({"limits": {"max_processes": 41}})), "processes", &["tenant blue"]);
    w.make(&wide, json!({"name": "wide", "limits": {"max_processes": 40}})).assert_ok();
    assert_eq!(w.limits(&wide, "wide")["max_wall_ms"], 9000);
    // Token limits are listed, and a limit that cannot bind is refused.
    let listed = w.daemon.get("/v1/tokens").assert_ok()["tokens"].clone();
    assert!(listed.as_array().unwrap().iter().any(|t| t["limits"]["ceiling"]["max_processes"] == 20), "{listed}");
    let fault = token(json!({"ceiling": {"max_processes": 0}})).assert_fault(400, "invalid_request");
    assert!(fault["message"].as_str().unwrap().contains("limits.ceiling.max_processes"), "{fault}");
    token(json!({"ceiling": {"max_steps": 1}})).assert_fault(400, "invalid_request");
    let own = json!({"name": "o", "scopes": ["operator"], "limits": {"ceiling": {"max_processes": 5}}});
    w.daemon.post("/v1/tokens", own).assert_fault(400, "invalid_request");
    // The command line shows the same limits.
    let words = [
        "token",
        "create",
        "cli",
        "--scope",
        "agent",
        "--limit-ceiling",
        "memory=64m,pids=9,cpus=1",
        "--limit-default",
        "wall=2s",
        "--json",
    ];
    let made: Value = serde_json::from_slice(&to_the_end(&mut w.place.cofferdam(words), b"").stdout).unwrap();
    let want =
        json!({"default": {"max_wall_ms": 2000}, "ceiling": {"max_memory_mb": 64.0, "max_processes": 9, "cpus": 1.0}});
    assert_eq!(made["limits"], want);
}

#[test]
fn what_was_made_before_there_were_bounds_is_held_when_it_starts() {
    let w = CeilingsFixture::new(As::Root, "[limits.ceiling]\nmax_processes = 100000\n");
    let agent = w.agent("blue");
    w.make(&agent, json!({"name": "old", "limits": {"max_processes": 300}})).assert_ok();
    w.make(&agent, json!({"name": "plain"})).assert_ok();
    let w = w.again("[limits.ceiling]\nmax_processes = 100\nmax_wall_ms = 50000\n");
    // A sandbox above a lowered ceiling is refused at start until its limit is lowered; limits are never cut silently.
    for answer in [
        w.run(&agent, "old", json!({"shell": "true"})),
        w.ask(&agent, "POST", "/v1/sandboxes/old/start?live=true", json!({})),
        w.ask(&agent, "POST", "/v1/sandboxes/old/fork", json!({})),
    ] {
        is_over(&answer, "processes", &["300", "100", "this node"]);
    }
    is_over(&w.run(&agent, "plain", json!({"shell": "true"})), "processes", &["100000"]);
    let patch = |limits: Value| w.ask(&agent, "PATCH", "/v1/sandboxes/old", json!({ "limits": limits }));
    is_over(&patch(json!({"max_processes": 200})), "processes", &["200", "100"]);
    // Limits left out of a PATCH return to the default.
    patch(json!({"max_processes": 90})).assert_ok();
    let run = w.run(&agent, "old", json!({"shell": "echo held"})).assert_ok();
    assert_eq!(run["outcome"]["stdout"], "held\n", "{run}");
    let limits = w.limits(&agent, "old");
    assert_eq!((&limits["max_processes"], &limits["max_wall_ms"]), (&json!(90), &json!(50000)));
    // A fork inherits the limits.
    let forked = w.ask(&agent, "POST", "/v1/sandboxes/old/fork", json!({"name": "young"})).assert_ok();
    assert_eq!(w.limits(&agent, forked["sandboxes"][0]["id"].as_str().unwrap())["max_processes"], 90);
}

/// A sandbox that an operator bound to an agent keeps the limits that the operator chose, within the configuration.
#[test]
fn a_sandbox_that_an_operator_gave_has_what_the_operator_chose() {
    let w = CeilingsFixture::new(As::Root, "[tenant.blue.limits.ceiling]\nmax_processes = 5000\n");
    let tenant_operator = w.daemon.token(json!({"name": "lord", "tenant": "blue", "scopes": ["operator"]}));
    w.make(&tenant_operator, json!({"name": "large", "limits": {"max_processes": 4000}})).assert_ok();
    let bound = json!({"name": "a", "tenant": "blue", "scopes": ["agent"], "sandboxes": ["large"],
        "limits": {"ceiling": {"max_processes": 20}}});
    let agent = w.daemon.token(bound);
    w.run(&agent, "large", json!({"shell": "true"})).assert_ok();
    assert_eq!(w.limits(&agent, "large"), json!({"max_processes": 4000}));
    // A fork of it is the agent's own, and bound by the agent's ceiling.
    is_over(&w.ask(&agent, "POST", "/v1/sandboxes/large/fork", json!({})), "processes", &["4000", "20", "this token"]);
    w.ask(&tenant_operator, "POST", "/v1/sandboxes/large/stop?timeout=0s", json!({})).assert_ok();
    w.ask(&tenant_operator, "POST", "/v1/sandboxes/large/start", json!({})).assert_ok();
    // The configured ceiling belongs to the host and holds for every caller.
    let w = w.again("[tenant.blue.limits.ceiling]\nmax_processes = 3000\n");
    for token in [&agent, &tenant_operator] {
        is_over(&w.run(token, "large", json!({"shell": "true"})), "processes", &["4000", "3000", "tenant blue"]);
    }
    // A sandbox of the host's operator has no limits, whichever token uses it.
    w.daemon.post("/v1/sandboxes", json!({"name": "own"})).assert_ok();
    let ours = w.daemon.token(json!({"name": "b", "scopes": ["agent"], "sandboxes": ["own"]}));
    w.run(&ours, "own", json!({"shell": "true"})).assert_ok();
    assert_eq!(w.limits(&ours, "own"), json!({}));
}

/// Limits in a policy document are held to the ceiling, too.
#[test]
fn a_policy_names_limits_as_well() {
    let w = CeilingsFixture::new(As::Root, "[limits.ceiling]\nmax_processes = 50\n");
    let tenant_operator = w.daemon.token(json!({"name": "lord", "tenant": "blue", "scopes": ["operator"]}));
    let policy = |n: u64| json!({"version": 1, "extends": ["workspace-write"], "limits": {"max_processes": n}});
    is_over(&w.make(&tenant_operator, json!({"policies": [policy(51)]})), "processes", &["51", "50"]);
    w.make(&tenant_operator, json!({"name": "fits", "policies": [policy(20)]})).assert_ok();
    assert_eq!(w.limits(&tenant_operator, "fits").get("max_processes"), None, "the policy says it");
    // Built-in defaults apply to agents only.
    assert_eq!(w.limits(&tenant_operator, "fits").get("max_memory_mb"), None);
}

/// Built-in limits without any configuration: one agent cannot exhaust the host, and sees the limits that apply to it.
#[test]
fn agents_are_bound_where_nothing_is_set() {
    let w = CeilingsFixture::new(As::Root, "");
    let agent = w.agent("default");
    w.make(&agent, json!({"name": "free"})).assert_ok();
    let limits = w.limits(&agent, "free");
    let (processes, memory) = (limits["max_processes"].as_u64().unwrap(), limits["max_memory_mb"].as_f64().unwrap());
    assert!(processes >= 1024 && memory > 1.0, "{limits}");
    let shown = to_the_end(&mut w.place.cofferdam(["config", "show", "--json"]), b"");
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let of = |key: &str| shown["settings"].as_array().unwrap().iter().find(|s| s["key"] == key).unwrap().clone();
    for (key, amount) in [("max_processes", json!(processes)), ("max_memory_mb", json!(memory))] {
        let told = of(&format!("limits.ceiling.{key}"));
        assert_eq!((&told["value"], &told["origin"]["from"]), (&amount, &json!("built_in")), "{told}");
    }
    is_over(&w.make(&agent, json!({"limits": {"max_processes": processes + 1}})), "processes", &["built in"]);
    w.make(&agent, json!({"limits": {"max_processes": processes}})).assert_ok();
}

/// A host that cannot enforce a built-in limit reports that and continues; a limit that an operator set is refused
/// there.
#[test]
fn what_is_built_in_and_cannot_be_held_is_said() {
    let w = CeilingsFixture::new(As::User, "");
    let agent = w.agent("blue");
    let made = w.make(&agent, json!({"name": "free"})).assert_ok();
    let shown = to_the_end(&mut w.place.cofferdam(["config", "show"]), b"");
    let shown = String::from_utf8(shown.stdout).unwrap();
    let line = shown.lines().find(|line| line.starts_with("limits.ceiling.max_processes ")).unwrap().to_owned();
    if w.limits(&agent, "free").get("max_processes").is_some() {
        assert!(line.ends_with("built in, for agents' tokens"), "{line}");
        return;
    }
    for said in [&made["notes"].to_string(), &line] {
        assert!(said.contains("cannot") && said.contains("max_processes"), "{said}");
    }
    let run = w.run(&agent, "free", json!({"shell": "echo fine"})).assert_ok();
    assert_eq!(run["outcome"]["stdout"], "fine\n");
    let w = w.again("[limits.default]\nmax_processes = 64\n");
    w.make(&agent, json!({"name": "set"})).assert_ok();
    let fault = w.run(&agent, "set", json!({"shell": "true"})).assert_fault(501, "unsupported_limit");
    assert_eq!(fault["limit_kind"], "processes");
}

#[test]
fn what_stands_ready_gets_the_limits_of_whoever_takes_it() {
    let w = CeilingsFixture::new(As::Root, "");
    let agent = w.daemon.token(json!({"name": "agent", "tenant": "blue", "scopes": ["agent"],
        "limits": {"ceiling": {"max_processes": 16}}}));
    // A tenant's operator is bound by the configuration only.
    let tenant_operator = w.daemon.token(json!({"name": "lord", "tenant": "blue", "scopes": ["operator"]}));
    let by_tenant_operator =
        |method: &str, path: &str, body: Value| w.ask(&tenant_operator, method, path, body).assert_ok();
    by_tenant_operator("POST", "/v1/sandboxes", json!({"name": "first", "policies": ["workspace-write"]}));
    by_tenant_operator("POST", "/v1/templates", json!({"name": "deps", "from": "first"}));
    by_tenant_operator("PUT", "/v1/templates/deps/warm", json!({"keep": 2}));
    let look = || w.daemon.ask("GET", "/v1/templates/deps").over_tcp().bearer(&tenant_operator).send().assert_ok();
    assert!(soon(|| look()["warm"]["ready"] == 2), "{}", look());
    let made = w.make(&agent, json!({"name": "taken", "template": "deps"})).assert_ok();
    assert_eq!(made["warm"], true, "{made}");
    assert_eq!(w.limits(&agent, "taken")["max_processes"], 16);
    let run = w.run(&agent, "taken", json!({"shell": sleepers(40)})).assert_ok();
    assert_eq!(run["outcome"]["limit_kind"], "processes", "{run}");
    let made = by_tenant_operator("POST", "/v1/sandboxes", json!({"name": "free", "template": "deps"}));
    assert_eq!(made["warm"], true, "{made}");
    let run = w.run(&tenant_operator, "free", json!({"shell": sleepers(40)})).assert_ok();
    assert_eq!((&run["outcome"]["verdict"], &run["outcome"]["stdout"]), (&json!("ok"), &json!("40\n")), "{run}");
    by_tenant_operator("PUT", "/v1/templates/deps/warm", json!({"keep": 0}));
}
