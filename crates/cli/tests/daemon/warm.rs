//! Spares of a template's pool: handed out whole and to one caller, replenished, never shared and never left behind.

use crate::support::http::{Answer, Daemon, with_daemon};
use crate::support::left::soon;
use crate::support::world::{PUBLIC, World as WithNetwork};
use crate::support::{As, Place, binary, either};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// A daemon with the template `deps`, which holds the file `made`.
struct PoolFixture {
    daemon: Daemon,
    place: Place,
}

impl PoolFixture {
    fn new(who: As, flags: &[&str]) -> PoolFixture {
        let place = Place::new(who);
        let daemon = Daemon::start_with(&place, flags);
        let w = PoolFixture { daemon, place };
        w.cli(&["create", "--name", "first", "--policy", "workspace-write"]);
        w.cli(&["exec", "first", "--", "sh", "-c", "echo prepared > made"]);
        w.cli(&["template", "create", "deps", "--from", "first"]);
        w.cli(&["rm", "first"]);
        w
    }

    #[track_caller]
    fn cli(&self, words: &[&str]) -> String {
        let mut command = self.place.cofferdam(words);
        let done = command.current_dir(&self.place.project).output().unwrap();
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn warm(&self, body: Value) -> Value {
        self.daemon.ask("PUT", "/v1/templates/deps/warm").json(body).send().assert_ok()
    }

    /// Ids of the spares.
    fn spares(&self) -> BTreeSet<String> {
        let rows = self.daemon.get("/v1/sandboxes?removed=true").assert_ok()["sandboxes"].clone();
        let ready = rows.as_array().unwrap().iter().filter(|row| row["state"] == "ready" && row["live"] == true);
        ready.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }

    #[track_caller]
    fn until_ready(&self, count: u64) -> BTreeSet<String> {
        let told = || self.daemon.get("/v1/templates/deps").assert_ok();
        assert!(soon(|| told()["warm"]["ready"] == count), "{}", told());
        self.spares()
    }

    fn create(&self, body: Value) -> Answer {
        self.daemon.post("/v1/sandboxes", body)
    }

    fn keeper(&self, id: &str) -> Option<u64> {
        let card = fs::read(self.place.state().join("keepers").join(id).join("keeper.json")).ok()?;
        serde_json::from_slice::<Value>(&card).ok()?["pid"].as_u64()
    }

    /// Keepers that are alive.
    fn keepers(&self) -> Vec<String> {
        let dir = self.place.state().join("keepers");
        let names = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
        names.filter(|id| self.keeper(id).is_some_and(|pid| PathBuf::from(format!("/proc/{pid}")).exists())).collect()
    }

    #[track_caller]
    fn is_sound(&self) {
        let found: Value = serde_json::from_str(&self.cli(&["fsck", "--json"])).unwrap();
        assert_eq!(found["problems"], json!([]), "{found:#}");
    }
}

// promise 18
#[test]
fn what_stands_ready_is_taken_over_whole() {
    for who in either() {
        let w = PoolFixture::new(who, &[]);
        w.warm(json!({"keep": 1}));
        let before = w.until_ready(1);
        let id = before.first().unwrap().clone();
        let pid = w.keeper(&id).unwrap();
        // A spare has no owner: no verb finds it, and lists show it only with `removed=true`.
        w.daemon.get(&format!("/v1/sandboxes/{id}")).assert_fault(404, "not_found");
        w.daemon.ask("POST", &format!("/v1/sandboxes/{id}/stop")).send().assert_fault(404, "not_found");
        w.daemon.post(&format!("/v1/sandboxes/{id}/runs"), json!({"command": ["true"]})).assert_fault(404, "not_found");
        let run = w.place.cofferdam(["exec", &id, "true"]).output().unwrap();
        assert_eq!(run.status.code(), Some(125), "{run:?}");
        assert_eq!(w.daemon.get("/v1/sandboxes").assert_ok()["sandboxes"], json!([]));
        assert!(w.cli(&["template", "ls"]).contains(" 1/1 "));
        // Another policy or another limit needs a sandbox of its own.
        let cold = w.create(json!({"template": "deps", "policies": ["no-network"], "limits": {"max_wall_ms": 5000}}));
        assert_eq!((cold.status, &cold.json()["warm"]), (201, &json!(false)), "{cold:?}");
        // Settings for reports or questions that differ from the spare's need one, too.
        for more in [json!({"report_reads": true}), json!({"ask_timeout_ms": 5000})] {
            let mut body = json!({"template": "deps"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(w.create(body).assert_ok()["warm"], json!(false), "{more}");
        }
        assert_eq!(w.spares(), before);

        let body = json!({"template": "deps", "name": "mine", "ttl_ms": 3_600_000, "reserve": ["src"],
            "services": [{"name": "greet", "command": "echo hello from $WHOSE; sleep 1000", "env": {"WHOSE": "mine"}}]});
        let made = w.create(body).assert_ok();
        assert_eq!((&made["warm"], &made["id"]), (&json!(true), &json!(id)), "{made}");
        assert_eq!(w.keeper(&id), Some(pid), "the keeper is the one that stood there");
        let whole = w.daemon.get("/v1/sandboxes/mine").assert_ok();
        assert_eq!((&whole["id"], &whole["live"], &whole["version"]), (&json!(id), &json!(true), &json!(1)), "{whole}");
        assert!(whole["expires_ms"].is_u64() && whole["holds_reservations"] == true, "{whole}");
        let run = w.daemon.ask("POST", "/v1/sandboxes/mine/runs?wait=120s");
        let run = run.json(json!({"shell": "cat made; echo $GIVEN; ls", "env": {"GIVEN": "by me"}})).send().assert_ok();
        assert_eq!(run["outcome"]["stdout"], "prepared\nby me\nmade\n", "{run:#}");
        assert_eq!(w.keeper(&id), Some(pid));
        let running = || w.daemon.get("/v1/sandboxes/mine").assert_ok()["running"].clone();
        assert!(soon(|| running().as_array().unwrap().len() == 1), "its service runs: {}", running());
        let greets = running()[0]["run"].as_str().unwrap().to_owned();
        assert!(soon(|| w.cli(&["logs", &greets]) == "hello from mine\n"));

        // The next spare is a new one; a used one never returns to the pool.
        let next = w.until_ready(1);
        assert!(!next.contains(&id), "{next:?}");
        w.cli(&["rm", "-f", "mine"]);
        let other: Value = serde_json::from_str(&w.cli(&["create", "--template", "deps", "--json"])).unwrap();
        assert!(next.contains(other["id"].as_str().unwrap()) && other["warm"] == true, "{other}");
        assert!(!w.until_ready(1).contains(&id));
        w.is_sound();
    }
}

// promise 18
#[test]
fn of_many_who_ask_one_has_it() {
    let mut w = PoolFixture::new(As::User, &[]);
    w.warm(json!({"keep": 1}));
    let id = w.until_ready(1).pop_first().unwrap();
    // Without a daemon the pool is not replenished.
    w.daemon.child.kill().unwrap();
    w.daemon.child.wait().unwrap();
    let made: Vec<Value> = std::thread::scope(|scope| {
        let one = || serde_json::from_str(&w.cli(&["create", "--template", "deps", "--json"])).unwrap();
        let all: Vec<_> = (0..6).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let ids: BTreeSet<&str> = made.iter().map(|one| one["id"].as_str().unwrap()).collect();
    let warm: Vec<&str> =
        made.iter().filter(|one| one["warm"] == true).map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), warm), (6, vec![id.as_str()]), "{made:?}");
    assert_eq!(w.cli(&["exec", &id, "--", "cat", "made"]), "prepared\n");
}

/// Regression: the daemon looks for pools only if a marker file exists. A look between the creation of the marker and
/// of the pool found no pool, removed the marker, and never looked again.
#[test]
fn a_pool_that_is_slow_to_come_is_found() {
    let w = PoolFixture::new(As::Root, &[]);
    let mut slow = w.place.outside("strace");
    slow.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=openat", "-e", "inject=openat:delay_exit=4000000:when=1"]);
    slow.arg("-P").arg(w.place.state().join("pools")).arg(binary()).args(["template", "warm", "deps", "--keep", "1"]);
    let done = slow.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    w.until_ready(1);
}

// promise 18
#[test]
fn a_daemon_that_was_killed_finds_them_again() {
    for who in either() {
        let mut w = PoolFixture::new(who, &[]);
        w.warm(json!({"keep": 3}));
        // Killed while the pool fills, and again when it is full.
        assert!(soon(|| !w.spares().is_empty()));
        for _ in 0..2 {
            w.daemon.child.kill().unwrap();
            w.daemon.child.wait().unwrap();
            w.daemon = Daemon::start(&w.place);
            let stand = w.until_ready(3);
            assert!(soon(|| w.keepers().len() == 3), "{:?}", w.keepers());
            assert_eq!(w.keepers().into_iter().collect::<BTreeSet<_>>(), stand);
        }
        // A spare whose keeper dies is not handed out, and is replaced.
        let all = w.spares();
        let dead = all.first().unwrap();
        kill(w.keeper(dead).unwrap());
        assert!(soon(|| w.spares().len() == 3 && !w.spares().contains(dead)), "{:?}", w.spares());
        // The pool is emptied with `keep: 0` and with the removal of the template.
        w.warm(json!({"keep": 0}));
        assert!(w.keepers().is_empty() && w.daemon.get("/v1/templates/deps").assert_ok()["warm"].is_null());
        w.warm(json!({"keep": 2}));
        let before = w.until_ready(2);
        // Another policy replaces the spares.
        w.warm(json!({"keep": 2, "limits": {"max_wall_ms": 60_000}}));
        assert!(w.until_ready(2).is_disjoint(&before));
        let made = w.create(json!({"template": "deps", "limits": {"max_wall_ms": 60_000}})).assert_ok();
        assert_eq!(made["warm"], true, "{made}");
        w.daemon.ask("DELETE", "/v1/templates/deps").send().assert_ok();
        assert!(soon(|| w.spares().is_empty()), "{:?}", w.spares());
        w.cli(&["rm", "-f", made["id"].as_str().unwrap()]);
        assert!(w.keepers().is_empty(), "{:?}", w.keepers());
        // A daemon that was killed while creating a spare leaves a layer for gc, and nothing else.
        let layers = || fs::read_dir(w.place.state().join("layers")).unwrap().count();
        let is_clean = || {
            w.cli(&["gc"]);
            layers() == 0
        };
        assert!(soon(is_clean), "{} layers are left", layers());
        w.is_sound();
    }
}

fn kill(pid: u64) {
    let sent = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

// promise 18
#[test]
fn tenants_have_their_own_within_their_quotas() {
    let place = Place::new(As::Root);
    let config = "[warm]\nmax = 3\n[tenant.blue.quota]\nlive_sandboxes = 2\nmemory = \"512m\"\n";
    let file = place.file("config.toml", config);
    let daemon = Daemon::start_with(&place, &["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()]);
    let of = |tenant: &str| daemon.token(json!({"name": tenant, "tenant": tenant, "scopes": ["agent", "operator"]}));
    let (blue, green) = (of("blue"), of("green"));
    let ask = |token: &str, method: &str, path: &str, body: Value| {
        daemon.ask(method, path).over_tcp().bearer(token).json(body).send()
    };
    let look = |token: &str| daemon.ask("GET", "/v1/templates/deps").over_tcp().bearer(token).send().assert_ok();
    for token in [&blue, &green] {
        let limits = json!({"max_memory_mb": 256});
        ask(token, "POST", "/v1/sandboxes", json!({"name": "first", "limits": limits})).assert_ok();
        ask(token, "POST", "/v1/templates", json!({"name": "deps", "from": "first"})).assert_ok();
    }
    ask(&blue, "PUT", "/v1/templates/deps/warm", json!({"keep": 65})).assert_fault(400, "invalid_request");
    let agent = daemon.token(json!({"name": "a", "tenant": "blue", "scopes": ["agent"]}));
    ask(&agent, "PUT", "/v1/templates/deps/warm", json!({"keep": 1})).assert_fault(403, "policy_denied");
    // Tenant blue may have two live sandboxes; its pool stops at that.
    ask(&blue, "PUT", "/v1/templates/deps/warm", json!({"keep": 4})).assert_ok();
    let is_full = |token: &str, ready: u64, why: &str| {
        let warm = look(token)["warm"].clone();
        warm["ready"] == ready && warm["trouble"].as_str().is_some_and(|told| told.contains(why))
    };
    assert!(soon(|| is_full(&blue, 2, "tenant blue")), "{}", look(&blue));
    // Tenant green gets none of blue's spares, and fills its own pool up to the node's bound.
    let cold = ask(&green, "POST", "/v1/sandboxes", json!({"template": "deps"})).assert_ok();
    assert_eq!(cold["warm"], false, "{cold}");
    ask(&green, "PUT", "/v1/templates/deps/warm", json!({"keep": 4})).assert_ok();
    assert!(soon(|| is_full(&green, 1, "warm.max")), "{}", look(&green));
    // A further live sandbox exceeds the quota; a spare is counted already.
    let other = ask(&blue, "POST", "/v1/sandboxes", json!({"limits": {"max_memory_mb": 16}})).assert_ok();
    let start = format!("/v1/sandboxes/{}/start?live=true", other["id"].as_str().unwrap());
    daemon.ask("POST", &start).over_tcp().bearer(&blue).send().assert_fault(429, "limit_exceeded");
    for (token, tenant) in [(&blue, "blue"), (&green, "green")] {
        let made = ask(token, "POST", "/v1/sandboxes", json!({"template": "deps"})).assert_ok();
        assert_eq!(made["warm"], true, "{made}");
        let home = place.state().join("tenants").join(tenant).join("keepers").join(made["id"].as_str().unwrap());
        assert!(home.is_dir(), "{made}");
    }
}

/// Secrets for spares. The test server returns the header reversed, so that masking does not hide it.
const SECRETS: &str = r#"
try:
    assert ask("PUT", "/v1/secrets/TOKEN", {"value": "what-was-kept-first"})[0] in (200, 201)
    rules = {"version": 1, "extends": ["default"], "net": {"rules": [{"action": "allow", "host": "api.test"}]},
        "secrets": [{"name": "TOKEN", "inject": {"host": "api.test", "header": "authorization", "format": "Bearer {}"}}]}
    assert ask("POST", "/v1/sandboxes", {"name": "first", "policies": [rules]})[0] == 201
    assert ask("POST", "/v1/templates", {"name": "deps", "from": "first"})[0] == 201
    assert ask("PUT", "/v1/templates/deps/warm", {"keep": 1})[0] == 200
    deadline = time.monotonic() + 60
    while ask("GET", "/v1/templates/deps")[1]["warm"]["ready"] < 1:
        assert time.monotonic() < deadline, ask("GET", "/v1/templates/deps")
        time.sleep(0.05)
    assert ask("PUT", "/v1/secrets/TOKEN", {"value": "what-is-kept-now"})[0] in (200, 201)
    status, made = ask("POST", "/v1/sandboxes", {"template": "deps", "name": "mine"})
    assert made["warm"] is True, made
    status, run = ask("POST", "/v1/sandboxes/mine/runs?wait=120s", {"shell":
        'echo $TOKEN; curl -sS -m 10 -H "Authorization: Bearer $TOKEN" https://api.test/'})
    said = run["outcome"]["stdout"]
    assert said.startswith("cofferdam-secret-TOKEN-"), run
    assert "what-is-kept-now"[::-1] in said and "what-was-kept-first"[::-1] not in said, run
    print("now")
finally:
    subprocess.run([cofferdam, "template", "warm", "deps", "--keep", "0"], capture_output=True)
"#;

// promise 18
#[test]
fn secrets_are_those_of_the_one_who_takes_it() {
    let world = WithNetwork::new(As::User).host(PUBLIC, "api.test").certificate(&["api.test"]);
    assert_eq!(with_daemon(&world.server("https", PUBLIC, 443), SECRETS), "now\n");
}

/// A repeated request gets the first response (`warm: true`), also when the pool is empty by then.
#[test]
fn what_was_taken_over_is_told_so_again() {
    let w = PoolFixture::new(As::User, &[]);
    w.warm(json!({"keep": 1}));
    w.until_ready(1);
    let create = || {
        let ask = w.daemon.ask("POST", "/v1/sandboxes").header("idempotency-key", "k");
        ask.json(json!({"template": "deps", "name": "mine"})).send()
    };
    let first = create();
    assert_eq!((first.status, &first.json()["warm"]), (201, &json!(true)), "{first:?}");
    w.warm(json!({"keep": 0}));
    let again = create();
    let mut wanted = first.json();
    wanted["existed"] = json!(true);
    wanted["version"] = again.json()["version"].clone();
    assert_eq!((again.status, again.json()), (200, wanted));
}
