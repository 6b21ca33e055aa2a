//! Quotas of a tenant and of the whole node, and fairness between tenants.

use crate::support::http::{Answer, Daemon};
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

struct QuotasFixture {
    daemon: Daemon,
    blue: String,
    green: String,
    place: Place,
}

impl QuotasFixture {
    fn new(config: &str) -> QuotasFixture {
        QuotasFixture::of(As::User, config)
    }

    fn of(who: As, config: &str) -> QuotasFixture {
        let place = Place::new(who);
        let file = place.file("config.toml", "");
        fs::write(&file, config).unwrap();
        let flags = ["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()];
        let daemon = Daemon::start_with(&place, &flags);
        let token =
            |tenant: &str| daemon.token(json!({"name": tenant, "tenant": tenant, "scopes": ["agent", "reviewer"]}));
        let (blue, green) = (token("blue"), token("green"));
        QuotasFixture { daemon, blue, green, place }
    }

    fn make(&self, token: &str, body: Value) -> Answer {
        self.daemon.ask("POST", "/v1/sandboxes").over_tcp().bearer(token).json(body).send()
    }
}

#[track_caller]
fn is_over(answer: &Answer, kind: &str, whose: &str) {
    let fault = answer.assert_fault(429, "limit_exceeded");
    assert_eq!(
        (&fault["limit_kind"], &fault["phase"], &fault["retry"]),
        (&json!(kind), &json!("admission"), &json!("later"))
    );
    assert!(fault["message"].as_str().unwrap().contains(whose), "{fault}");
    assert!(answer.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
}

// promise 24
#[test]
fn sandboxes_are_counted_for_each_tenant_and_for_the_node() {
    let w = QuotasFixture::new("[quota]\nsandboxes = 4\n[tenant.blue.quota]\nsandboxes = 2\n");
    let first = w.make(&w.blue, json!({})).assert_ok();
    w.make(&w.blue, json!({})).assert_ok();
    is_over(&w.make(&w.blue, json!({})), "sandboxes", "tenant blue");
    // Another tenant is not affected until the node's quota is reached.
    w.make(&w.green, json!({})).assert_ok();
    w.make(&w.green, json!({})).assert_ok();
    is_over(&w.make(&w.green, json!({})), "sandboxes", "this node");
    // A fork counts as creating sandboxes.
    let id = first["id"].as_str().unwrap();
    let fork = w.daemon.ask("POST", &format!("/v1/sandboxes/{id}/fork")).over_tcp().bearer(&w.blue);
    is_over(&fork.json(json!({})).send(), "sandboxes", "tenant blue");
    let remove = w.daemon.ask("DELETE", &format!("/v1/sandboxes/{id}")).over_tcp().bearer(&w.blue);
    remove.send().assert_ok();
    w.make(&w.blue, json!({})).assert_ok();
}

// promise 24
#[test]
fn many_at_once_do_not_slip_past() {
    let w = QuotasFixture::new("[tenant.blue.quota]\nsandboxes = 3\n");
    let made: Vec<u16> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..12).map(|_| scope.spawn(|| w.make(&w.blue, json!({})).status)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let count = |status| made.iter().filter(|one| **one == status).count();
    assert_eq!((count(201), count(429)), (3, 9), "{made:?}");
}

// promise 24
#[test]
fn requests_are_counted_by_the_minute() {
    let w = QuotasFixture::new("[tenant.blue.quota]\nrequests_per_minute = 5\n");
    let look = |token: &str| w.daemon.ask("GET", "/v1/sandboxes").over_tcp().bearer(token).send();
    (0..5).for_each(|_| drop(look(&w.blue).assert_ok()));
    is_over(&look(&w.blue), "requests_per_minute", "tenant blue");
    (0..20).for_each(|_| drop(look(&w.green).assert_ok()));
    w.daemon.get("/v1/sandboxes").assert_ok();
}

#[test]
fn what_layers_take_is_measured() {
    let w = QuotasFixture::new("[tenant.blue.quota]\ndisk = \"1m\"\n");
    let made = w.make(&w.blue, json!({"policies": ["workspace-write"]})).assert_ok();
    let tenant = w.place.state().join("tenants/blue");
    let mut fill =
        w.place.cofferdam(["exec", made["id"].as_str().unwrap(), "sh", "-c", "head -c 3000000 /dev/urandom > big"]);
    let filled = fill.env("COFFERDAM_STATE", &tenant).output().unwrap();
    assert!(filled.status.success(), "{filled:?}");
    // Disk measurements are cached, and the first was made while the layers were empty. A new daemon measures again.
    let file = w.place.file("again.toml", "");
    fs::write(&file, "[tenant.blue.quota]\ndisk = \"1m\"\n").unwrap();
    let QuotasFixture { daemon, place, blue, green } = w;
    drop(daemon);
    let flags = ["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let w = QuotasFixture { daemon: Daemon::start_with(&place, &flags), place, blue, green };
    is_over(&w.make(&w.blue, json!({})), "disk_mb", "tenant blue");
    w.make(&w.green, json!({})).assert_ok();
}

/// Unlinked files that a command holds open are in no layer that could be walked.
#[test]
fn what_has_no_name_is_measured() {
    let quota = "[tenant.blue.quota]\ndisk = \"1m\"\n";
    let w = QuotasFixture::new(quota);
    let made = w.make(&w.blue, json!({"policies": ["workspace-write"]})).assert_ok();
    let (id, tenant) = (made["id"].as_str().unwrap().to_owned(), w.place.state().join("tenants/blue"));
    let verb = |place: &Place, words: &[&str]| {
        let done = place.cofferdam(words).env("COFFERDAM_STATE", &tenant).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    };
    let script = "import os,time; f=os.open('.',os.O_TMPFILE|os.O_RDWR); os.write(f,b'z'*3000000); print('held',flush=True); time.sleep(300)";
    let run = verb(&w.place, &["exec", "-d", &id, "/usr/bin/python3", "-c", script]);
    let end = Instant::now() + Duration::from_secs(180);
    while !verb(&w.place, &["logs", &run]).contains("held") {
        assert!(Instant::now() < end, "not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A new daemon has no cached measurement.
    let QuotasFixture { daemon, place, blue, green } = w;
    drop(daemon);
    let file = place.file("again.toml", quota);
    let flags = ["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let w = QuotasFixture { daemon: Daemon::start_with(&place, &flags), place, blue, green };
    is_over(&w.make(&w.blue, json!({})), "disk_mb", "tenant blue");
    w.make(&w.green, json!({})).assert_ok();
    verb(&w.place, &["rm", "--force", "-t", "0", &id]);
}

/// Memory and processor limits of live sandboxes count toward the quota; a sandbox without a limit exceeds any quota.
// promise 24
#[test]
fn memory_and_processors_are_counted_while_sandboxes_live() {
    let w = QuotasFixture::of(As::Root, "[tenant.blue.quota]\nmemory = \"100m\"\ncpus = 1\n");
    let make = |token: &str, name: &str, memory: u64, cpus: f64| {
        w.make(token, json!({"name": name, "limits": {"max_memory_mb": memory}, "cpus": cpus})).assert_ok();
    };
    let run = |token: &str, name: &str| {
        let ask = w.daemon.ask("POST", &format!("/v1/sandboxes/{name}/runs")).over_tcp().bearer(token);
        ask.json(json!({"shell": "sleep 60"})).send()
    };
    for (name, memory, cpus) in [("one", 64, 0.5), ("large", 64, 0.25), ("busy", 16, 0.75), ("small", 16, 0.25)] {
        make(&w.blue, name, memory, cpus);
    }
    w.make(&w.blue, json!({"name": "boundless"})).assert_ok();
    assert_eq!(run(&w.blue, "one").status, 201);
    is_over(&run(&w.blue, "large"), "memory_mb", "tenant blue");
    is_over(&run(&w.blue, "busy"), "cpus", "tenant blue");
    let fault = run(&w.blue, "boundless");
    assert!(fault.status >= 400 && fault.json()["hint"].as_str().unwrap().contains("max_memory_mb"), "{fault:?}");
    // Sandboxes within the quota continue, and another tenant is not affected.
    assert_eq!(run(&w.blue, "small").status, 201);
    make(&w.green, "large", 512, 2.0);
    assert_eq!(run(&w.green, "large").status, 201);
    let stop = w.daemon.ask("POST", "/v1/sandboxes/one/stop?timeout=0s").over_tcp().bearer(&w.blue);
    stop.send().assert_ok();
    assert_eq!(run(&w.blue, "large").status, 201);
}

/// File verbs need quota like any other use of a keeper; a repeated request under an idempotency key needs none.
// promise 20
#[test]
fn room_is_needed_for_what_is_new_alone() {
    let w = QuotasFixture::new("[tenant.blue.quota]\nsandboxes = 2\nlive_sandboxes = 1\nruns = 1\n");
    let ask = |method: &str, path: &str| w.daemon.ask(method, path).over_tcp().bearer(&w.blue);
    let make =
        |key: &str| ask("POST", "/v1/sandboxes").header("idempotency-key", key).json(json!({"name": key})).send();
    assert_eq!((make("one").status, make("two").status), (201, 201));
    is_over(&make("three"), "sandboxes", "tenant blue");
    let again = make("one");
    assert_eq!((again.status, &again.json()["existed"]), (200, &json!(true)), "{again:?}");
    let other = ask("POST", "/v1/sandboxes").header("idempotency-key", "one").json(json!({"name": "four"})).send();
    other.assert_fault(409, "conflict");

    let run =
        |body: Value, key: &str| ask("POST", "/v1/sandboxes/one/runs").header("idempotency-key", key).json(body).send();
    let body = json!({"shell": "sleep 60", "env": {"A": "1"}, "limits": {"max_wall_ms": 60000}});
    let first = run(body.clone(), "k");
    assert_eq!(first.status, 201, "{first:?}");
    // The quota is used up, and the repeated request is answered all the same; a different one under the same key is
    // refused.
    let again = run(body.clone(), "k");
    assert_eq!((again.status, &again.json()["run"]), (200, &first.json()["run"]), "{again:?}");
    let mut others = vec![json!({"shell": "sleep 60"}), json!({"command": ["sleep 60"]})];
    for (field, value) in
        [("env", json!({"A": "2"})), ("workdir", json!("src")), ("input", json!(true)), ("limits", json!({}))]
    {
        let mut other = body.clone();
        other[field] = value;
        others.push(other);
    }
    for other in others {
        let fault = run(other, "k").assert_fault(409, "conflict");
        assert!(!fault["message"].to_string().contains("sleep"), "{fault}");
    }
    let look = |name: &str| ask("GET", &format!("/v1/sandboxes/{name}/files/list?path=.")).send();
    look("one").assert_ok();
    is_over(&look("two"), "live_sandboxes", "tenant blue");
    ask("POST", "/v1/sandboxes/one/stop?timeout=0s").send().assert_ok();
    look("two").assert_ok();
}

/// Watches of one tenant cannot use up all that the daemon offers.
// promise 24
#[test]
fn no_tenant_has_all_watches() {
    let w = QuotasFixture::new("");
    let mut open = Vec::new();
    for token in [&w.blue, &w.green] {
        w.make(token, json!({"name": "s"})).assert_ok();
    }
    let watch = |token: &str| w.daemon.ask("GET", "/v1/sandboxes/s/files/watch?path=.").over_tcp().bearer(token);
    for _ in 0..32 {
        let mut stream = watch(&w.blue).open();
        assert!(stream.until("event: ready"), "{}", String::from_utf8_lossy(&stream.text));
        open.push(stream);
    }
    watch(&w.blue).send().assert_fault(429, "limit_exceeded");
    assert!(watch(&w.green).open().until("event: ready"), "the control: another has his");
}

/// Snapshots and templates have quotas like sandboxes; snapshots that other verbs take implicitly count, too.
// promise 24
#[test]
fn snapshots_and_templates_are_counted() {
    let w = QuotasFixture::new(
        "[quota]\ntemplates = 1\nsnapshots = 5\n[tenant.blue.quota]\nsnapshots = 2\ntemplates = 1\n",
    );
    let lord = |tenant: &str| w.daemon.token(json!({"name": "lord", "tenant": tenant, "scopes": ["operator"]}));
    let (blue, green) = (lord("blue"), lord("green"));
    let ask = |token: &str, method: &str, path: &str, body: Value| {
        w.daemon.ask(method, path).over_tcp().bearer(token).json(body).send()
    };
    let take = |token: &str, key: &str| {
        let ask = w.daemon.ask("POST", "/v1/sandboxes/s/snapshots").over_tcp().bearer(token);
        ask.header("idempotency-key", key).json(json!({})).send()
    };
    for token in [&blue, &green] {
        w.make(token, json!({"name": "s"})).assert_ok();
    }
    let first = take(&blue, "1").assert_ok();
    take(&blue, "2").assert_ok();
    is_over(&take(&blue, "3"), "snapshots", "tenant blue");
    assert_eq!(take(&blue, "2").assert_ok()["sandbox"], first["sandbox"], "what was done under a key needs no room");
    // Verbs that take a snapshot implicitly are refused as well; verbs that start from an existing one are not.
    is_over(&ask(&blue, "POST", "/v1/sandboxes/s/fork", json!({})), "snapshots", "tenant blue");
    let id = first["id"].as_str().unwrap();
    is_over(&ask(&blue, "POST", "/v1/sandboxes/s/restore", json!({"snapshot": id})), "snapshots", "tenant blue");
    ask(&blue, "POST", "/v1/sandboxes/s/restore", json!({"snapshot": id, "discard": true})).assert_ok();
    ask(&blue, "POST", "/v1/sandboxes/s/fork", json!({"snapshot": id})).assert_ok();
    ask(&blue, "POST", &format!("/v1/snapshots/{id}/fork"), json!({})).assert_ok();
    is_over(&ask(&blue, "POST", "/v1/snapshots/s/fork", json!({})), "snapshots", "tenant blue");
    // Templates have a quota per tenant and for the node.
    let name =
        |token: &str, name: &str, from: &str| ask(token, "POST", "/v1/templates", json!({"name": name, "from": from}));
    is_over(&name(&blue, "t", "s"), "snapshots", "tenant blue");
    name(&blue, "t", id).assert_ok();
    is_over(&name(&blue, "other", id), "templates", "tenant blue");
    assert_eq!(name(&blue, "t", id).assert_ok()["unchanged"], true, "the same again is none");
    is_over(&name(&green, "t", "s"), "templates", "this node");
    let prepared = json!({"name": "p", "prepare": {"command": "true"}});
    is_over(&ask(&green, "POST", "/v1/templates", prepared), "templates", "this node");
    (0..3).for_each(|n| drop(take(&green, &n.to_string()).assert_ok()));
    is_over(&take(&green, "more"), "snapshots", "this node");
    // A removal frees quota.
    w.daemon.ask("DELETE", &format!("/v1/snapshots/{id}")).over_tcp().bearer(&blue).send().assert_ok();
    take(&blue, "4").assert_ok();
}

/// Watches and archives remain for a third tenant when two others take all they can get.
// promise 24
#[test]
fn two_greedy_tenants_leave_some_to_a_third() {
    let w = QuotasFixture::new("");
    let red = w.daemon.token(json!({"name": "red", "tenant": "red", "scopes": ["agent"]}));
    let ask = |token: &str, path: &str| w.daemon.ask("GET", path).over_tcp().bearer(token);
    for token in [&w.blue, &w.green, &red] {
        w.make(token, json!({"name": "s"})).assert_ok();
        let fill = json!({"shell": "head -c 30000000 /dev/zero > big; mkdir small; echo x > small/file"});
        let run = w.daemon.ask("POST", "/v1/sandboxes/s/runs?wait=120s").over_tcp().bearer(token).json(fill).send();
        assert_eq!(run.assert_ok()["outcome"]["verdict"], "ok");
    }
    let mut open = Vec::new();
    let mut all_of = |token: &str, path: &str, begun: &str, most: usize| {
        let mut have = 0;
        while have < most {
            let mut stream = ask(token, path).open();
            if !stream.until(begun) {
                break;
            }
            open.push(stream);
            have += 1;
        }
        have
    };
    let watch = "/v1/sandboxes/s/files/watch?path=.";
    let have = [&w.blue, &w.green].map(|token| all_of(token, watch, "event: ready", 64));
    assert_eq!(have, [32, 16]);
    assert!(ask(&red, watch).open().until("event: ready"), "a third has his");
    // Unread archives stay open for as long as their clients keep the connection.
    let have = [(&w.blue, 8), (&w.green, 4)]
        .map(|(token, most)| all_of(token, "/v1/sandboxes/s/files/archive?path=.", "200 OK", most));
    assert_eq!(have, [8, 4]);
    std::thread::scope(|scope| {
        for token in [&w.blue, &w.green] {
            scope.spawn(|| ask(token, "/v1/sandboxes/s/files/archive?path=small").send());
        }
        let whole = ask(&red, "/v1/sandboxes/s/files/archive?path=small").send();
        assert_eq!(whole.status, 200, "{whole:?}");
        drop(open);
    });
}
