//! Workspaces over HTTP: a review from the first sandbox to the last fork, and its failure cases.

use crate::support::http::Daemon;
use crate::support::{Place, holders};
use crate::workspace_fixture::WorkspaceFixture;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn digest(diff: &Value) -> &str {
    diff["digest"].as_str().unwrap()
}

/// A file's change in a diff.
#[track_caller]
fn file<'a>(diff: &'a Value, path: &str) -> &'a Value {
    let found = diff["files"].as_array().unwrap().iter().find(|file| file["path"] == path);
    found.unwrap_or_else(|| panic!("{path} is not in {diff:#}"))
}

fn hunk(diff: &Value, path: &str, number: usize) -> String {
    file(diff, path)["body"]["text"][number]["id"].as_str().unwrap().to_owned()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect()
}

const WORK: &str = "sed -i -e '2s/.*/two/' -e '25s/.*/twenty-five/' src/a.txt; echo new > src/new.txt; rm gone.txt; \
                    mv src/old.txt src/moved.txt; (sleep 1000 &)";

#[test]
fn the_story_of_a_review() {
    let mut fixture = WorkspaceFixture::with_repository();
    let first = json!({ "name": "agent", "reserve": ["src"], "dir": fixture.place.project });
    let make = |key: &str, ask: &Value| {
        fixture.daemon.ask("POST", "/v1/sandboxes").header("idempotency-key", key).json(ask.clone()).send()
    };
    let id = make("story-1", &first).assert_ok()["id"].as_str().unwrap().to_owned();
    let second = json!({ "dir": fixture.place.project, "reserve": ["src/a"] });
    let refused = make("story-2", &second).assert_fault(409, "conflict");
    assert!(refused["message"].as_str().unwrap().contains("agent"), "it says who holds it: {refused}");
    fixture.create(json!({ "name": "writer", "reserve": ["docs"] }));
    assert_eq!(make("story-1", &first).assert_ok()["id"], id.as_str());
    make("story-1", &json!({ "dir": fixture.place.project, "name": "other" })).assert_fault(409, "conflict");

    fixture.exec("agent", WORK);
    let diff = fixture.diff("agent");
    for (path, kind) in
        [("gone.txt", json!("deleted")), ("src/new.txt", json!("added")), ("src/a.txt", json!("modified"))]
    {
        assert_eq!(file(&diff, path)["kind"], kind, "{path}");
    }
    assert_eq!(file(&diff, "src/moved.txt")["kind"], json!({ "renamed": { "from": "src/old.txt" } }));
    assert_eq!(fixture.git(&["status", "--porcelain"]), "", "the repository is as it was");

    // A single hunk lands.
    let one = hunk(&diff, "src/a.txt", 0);
    let receipt = fixture.verb("agent", "approve", json!({ "digest": digest(&diff), "hunks": [one] })).assert_ok();
    assert_eq!(receipt["landed"][0]["hunks"], json!([one]), "{receipt:#}");
    let now = fixture.read("src/a.txt");
    assert!(now.contains("two\n") && now.contains("\n25\n"), "{now}");
    let diff = fixture.diff("agent");
    assert_eq!(file(&diff, "src/a.txt")["body"]["text"].as_array().unwrap().len(), 1, "the other waits");

    // Upstream changes the same file: conflict, rebase, approve, commit.
    let upstream = now.replace("\n10\n", "\nten\n");
    fixture.place.file(fixture.place.project.join("src/a.txt"), &upstream);
    let diff = fixture.diff("agent");
    assert_eq!(file(&diff, "src/a.txt")["drifted"], true);
    let paths = json!(["src/a.txt"]);
    let fault = fixture.verb("agent", "approve", json!({ "digest": digest(&diff), "paths": paths }));
    assert!(fault.assert_fault(409, "conflict")["message"].as_str().unwrap().contains("src/a.txt"));
    let rebased = fixture.verb("agent", "rebase", json!({})).assert_ok();
    assert_eq!((rebased["conflicts"].as_u64(), names(&rebased["files"])), (Some(0), vec!["src/a.txt"]), "{rebased:#}");

    // A daemon that is killed leaves the state unchanged.
    fixture.daemon.child.kill().unwrap();
    fixture.daemon = Daemon::start(&fixture.place);
    let diff = fixture.diff("agent");
    let commit = json!({ "message": "agent: numbers", "author": "agent" });
    let ask = json!({ "digest": digest(&diff), "all": true, "commit": commit });
    let receipt = fixture.verb("agent", "approve", ask).assert_ok();
    let landed = fixture.read("src/a.txt");
    assert!(["two", "ten", "twenty-five"].iter().all(|word| landed.contains(&format!("\n{word}\n"))), "{landed}");
    let head = receipt["commit"].as_str().unwrap();
    assert_eq!(fixture.git(&["log", "-1", "--format=%H %cn"]).trim(), format!("{head} Ann"));
    assert!(fixture.git(&["log", "-1", "--format=%an"]).contains("agent"));

    let provenance = fixture.daemon.get("/v1/sandboxes/agent/workspace/provenance?path=src/a.txt").assert_ok();
    let batches = provenance["batches"].as_array().unwrap();
    assert!(batches.len() == 2 && batches.iter().all(|batch| batch["sandbox"] == id.as_str()), "{provenance:#}");

    let undone = fixture.verb("agent", "undo", json!({ "batch": receipt["batch"] })).assert_ok();
    assert_eq!(fixture.read("src/a.txt"), upstream);
    assert!(undone["notes"].to_string().contains(head), "the commit stays, and it is told: {undone:#}");
    fixture.verb("agent", "undo", json!({ "batch": receipt["batch"] })).assert_fault(409, "conflict");
    assert!(names(&fixture.diff("agent")["files"]).contains(&"src/new.txt"), "the changes wait again");
}

#[test]
fn snapshots_forks_and_restores() {
    let fixture = WorkspaceFixture::with_repository();
    let id = fixture.create(json!({ "name": "agent" }));
    fixture.exec("agent", "echo one > step.txt");
    let take = |key: &str| {
        let ask = fixture.daemon.ask("POST", "/v1/sandboxes/agent/snapshots").header("idempotency-key", key);
        ask.json(json!({ "name": "one" })).send()
    };
    let (taken, again) = (take("k1"), take("k1"));
    assert_eq!((taken.status, again.status), (201, 200));
    assert_eq!(again.json(), taken.json(), "the same answer under the same key");
    take("k2").assert_fault(409, "conflict");
    let other = fixture.daemon.ask("POST", "/v1/sandboxes/agent/snapshots").header("idempotency-key", "k1");
    let fault = other.json(json!({ "name": "two" })).send().assert_fault(409, "conflict");
    assert!(fault["message"].as_str().unwrap().contains("another name: \"one\", now \"two\""), "{fault}");

    let fork = || {
        let ask = fixture.daemon.ask("POST", "/v1/sandboxes/agent/fork").header("idempotency-key", "k3");
        ask.json(json!({ "count": 10, "name": "try", "snapshot": "one" })).send()
    };
    let (forked, again) = (fork(), fork());
    assert_eq!((forked.status, again.status), (201, 200));
    let forked = forked.json();
    assert_eq!(again.json(), forked);
    let forks = forked["sandboxes"].as_array().unwrap();
    assert_eq!((forks.len(), forks[9]["name"].as_str()), (10, Some("try-10")));
    for name in ["try-1", "try-10"] {
        fixture.exec(name, &format!("echo {name} > step.txt"));
    }
    let text = |name: &str| fixture.diff(name)["files"][0]["body"]["text"][0]["lines"][0]["text"].clone();
    assert_eq!((text("try-1"), text("try-10"), text("try-2")), (json!("try-1\n"), json!("try-10\n"), json!("one\n")));

    fixture.exec("agent", "echo two > step.txt");
    let before = fixture.daemon.get("/v1/sandboxes/agent");
    let version = before.header("etag").unwrap().to_owned();
    let restore = |tag: &str| {
        let ask = fixture.daemon.ask("POST", "/v1/sandboxes/agent/restore").header("if-match", tag);
        ask.json(json!({ "snapshot": "one" })).send()
    };
    restore("\"9999\"").assert_fault(409, "conflict");
    assert_eq!(text("agent"), json!("two\n"));
    let restored = restore(&version).assert_ok();
    assert_eq!(text("agent"), json!("one\n"));
    let kept = restored["kept"].as_str().unwrap().to_owned();
    let list = fixture.daemon.get("/v1/sandboxes/agent/snapshots?limit=1").assert_ok();
    let next = list["next"].as_str().unwrap();
    let rest = fixture.daemon.get(&format!("/v1/sandboxes/agent/snapshots?after={next}")).assert_ok();
    assert_eq!(list["snapshots"].as_array().unwrap().len() + rest["snapshots"].as_array().unwrap().len(), 2);
    assert_eq!(fixture.daemon.get(&format!("/v1/snapshots/{kept}")).assert_ok()["sandbox"], id.as_str());

    // The preview lists exactly what is collected.
    fixture.daemon.ask("DELETE", "/v1/sandboxes/try-3").send().assert_ok();
    let preview = fixture.daemon.get("/v1/gc").assert_ok();
    let collected = fixture.daemon.ask("POST", "/v1/gc").send().assert_ok();
    assert_eq!(preview["items"], collected["items"]);

    // Templates: created, shown, used, removed.
    let ask = json!({ "name": "base", "from": "one" });
    let made = fixture.daemon.post("/v1/templates", ask.clone());
    assert_eq!((made.status, fixture.daemon.post("/v1/templates", ask).status), (201, 200));
    let begun = fixture.create(json!({ "name": "begun", "template": "base" }));
    assert_eq!(text(&begun), json!("one\n"));
    assert_eq!(fixture.daemon.get("/v1/templates").assert_ok()["templates"][0]["name"], "base");
    fixture.daemon.ask("DELETE", "/v1/templates/base").send().assert_ok();
    fixture.daemon.get("/v1/templates/base").assert_fault(404, "not_found");
    fixture.daemon.ask("DELETE", &format!("/v1/snapshots/{kept}")).send().assert_ok();
    fixture.daemon.get(&format!("/v1/snapshots/{kept}")).assert_fault(404, "not_found");
}

#[test]
fn a_running_sandbox_can_be_snapshotted() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    let mut run =
        fixture.place.cofferdam(["exec", "agent", "--", "/bin/sh", "-c", "echo early > e.txt; echo ready; read x"]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let taken = fixture.daemon.post("/v1/sandboxes/agent/snapshots", json!({})).assert_ok();
    assert!(taken["held_ms"].is_u64(), "{taken:#}");
    assert_eq!(fixture.diff("agent")["running"], true);
    let diff = fixture.diff("agent");
    fixture.verb("agent", "reject", json!({ "digest": digest(&diff), "all": true })).assert_fault(409, "conflict");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().code().is_some());
    fixture.verb("agent", "reject", json!({ "digest": digest(&fixture.diff("agent")), "all": true })).assert_ok();
}

/// Edits between the diff and the approval do not land.
// promise 14
#[test]
fn what_changed_after_the_review_does_not_land() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    fixture.exec("agent", "echo good > new.txt");
    let diff = fixture.diff("agent");
    fixture.exec("agent", "echo bad > new.txt");
    let all = |digest: &str| fixture.verb("agent", "approve", json!({ "digest": digest, "all": true }));
    all(digest(&diff)).assert_fault(409, "conflict");
    assert!(!fixture.place.project.join("new.txt").exists());
    fixture.verb("agent", "approve", json!({ "all": true })).assert_fault(400, "invalid_request");
    fixture.verb("agent", "approve", json!({ "digest": digest(&diff) })).assert_fault(400, "invalid_request");
    all(digest(&fixture.diff("agent"))).assert_ok();
    assert_eq!(fixture.read("new.txt"), "bad\n", "the control: what was seen lands");

    // A diff that a program requested does not count as seen by a person.
    fixture.exec("agent", "echo more > more.txt");
    fixture.diff("agent");
    let by_hand = fixture.place.cofferdam(["approve", "agent"]).stdin(Stdio::null()).output().unwrap();
    assert!(!by_hand.status.success() && !fixture.place.project.join("more.txt").exists(), "{by_hand:?}");
}

/// An agent's scope never approves; the journal names the reviewer.
// promise 23
#[test]
fn an_agent_cannot_approve() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    fixture.exec("agent", "echo new > new.txt");
    let token = |name: &str, scope: &str, bound: Value| {
        let dirs = [&fixture.place.project];
        fixture.daemon.token(json!({ "name": name, "scopes": [scope], "dirs": dirs, "sandboxes": bound }))
    };
    let (agent, reviewer) = (token("robot", "agent", json!(["agent"])), token("rita", "reviewer", json!([])));
    let ask = |token: &str, method: &str, path: &str, body: Option<Value>| {
        let ask = fixture.daemon.ask(method, path).bearer(token);
        match body {
            Some(body) => ask.json(body).send(),
            None => ask.send(),
        }
    };
    let at = |verb: &str| format!("/v1/sandboxes/agent/workspace/{verb}");
    // The control: both may read the diff.
    let diff = ask(&agent, "GET", &at("diff"), None).assert_ok();
    ask(&reviewer, "GET", &at("diff"), None).assert_ok();
    let all = json!({ "digest": digest(&diff), "all": true });
    for (verb, body) in [("approve", all.clone()), ("reject", all.clone()), ("undo", json!({}))] {
        ask(&agent, "POST", &at(verb), Some(body)).assert_fault(403, "policy_denied");
    }
    for (method, path, body) in [
        ("GET", "/v1/audit", None),
        ("POST", "/v1/templates", Some(json!({ "name": "t", "from": "agent" }))),
        ("PUT", "/v1/secrets/A", Some(json!({ "value": "x" }))),
    ] {
        ask(&agent, method, path, body).assert_fault(403, "policy_denied");
    }
    assert!(!fixture.place.project.join("new.txt").exists());
    ask(&reviewer, "POST", "/v1/sandboxes/agent/snapshots", Some(json!({}))).assert_fault(403, "policy_denied");
    ask(&reviewer, "POST", &at("approve"), Some(all)).assert_ok();
    assert_eq!(fixture.read("new.txt"), "new\n");
    let provenance = ask(&reviewer, "GET", &at("provenance?path=new.txt"), None).assert_ok();
    assert_eq!(provenance["batches"][0]["actor"], "rita", "{provenance:#}");
    let journal = ask(&reviewer, "GET", "/v1/audit?verb=approve&step=done", None).assert_ok();
    assert_eq!(journal["entries"][0]["actor"], "rita", "{journal:#}");
    let sound = ask(&reviewer, "GET", "/v1/audit/verify", None).assert_ok();
    assert_eq!(sound["sound"], true, "{sound:#}");
}

/// Files of the class `runs on your machine` land only when they are named, over HTTP as at the terminal.
#[test]
fn what_runs_on_the_host_must_be_named() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    fixture.exec(
        "agent",
        "echo 'x:' > Makefile; echo plain > plain.txt; mkdir -p node_modules/m .unheard; echo j > node_modules/m/i.js; \
         echo x > .unheard/of; printf '#!/bin/sh\\n' > tool; chmod 755 tool",
    );
    let diff = fixture.diff("agent");
    assert_eq!(file(&diff, "Makefile")["class"], "runs_on_host");
    let unheard = file(&diff, ".unheard/of");
    assert_eq!(
        (&unheard["class"], unheard["why"].as_str().unwrap()),
        (&json!("runs_on_host"), "new hidden directory, which tools may obey")
    );
    assert_eq!(file(&diff, "tool")["flags"], json!(["executable", "script"]), "marked, and lands with the rest");
    assert_eq!(diff["withheld"][0]["path"], "node_modules", "{diff:#}");
    let receipt = fixture.verb("agent", "approve", json!({ "digest": digest(&diff), "all": true })).assert_ok();
    assert_eq!(
        (names(&receipt["landed"]), names(&receipt["left"])),
        (vec!["plain.txt", "tool"], vec![".unheard/of", "Makefile"])
    );
    let diff = fixture.diff("agent");
    let named = json!({ "digest": digest(&diff), "exact": ["Makefile"] });
    assert_eq!(names(&fixture.verb("agent", "approve", named).assert_ok()["landed"]), ["Makefile"]);
    let pruned = fixture.daemon.ask("POST", "/v1/sandboxes/agent/workspace/prune").send().assert_ok();
    assert_eq!(pruned["files"], 1, "{pruned:#}");
}

#[test]
fn names_go_through_byte_for_byte_and_pages_make_up_the_whole() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    fixture.exec("agent", "for n in 1 2 3 4 5; do echo $n > \"f $n\"; done; echo odd > \"$(printf 'odd\\377')\"");
    let (mut seen, mut after, mut digests) = (Vec::new(), String::new(), Vec::new());
    loop {
        let page =
            fixture.daemon.get(&format!("/v1/sandboxes/agent/workspace/diff?limit=2&lines=false{after}")).assert_ok();
        seen.extend(page["files"].as_array().unwrap().iter().map(|file| file["path"].clone()));
        digests.push(digest(&page).to_owned());
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    digests.dedup();
    assert_eq!((seen.len(), digests.len()), (6, 1));
    assert_eq!(seen[5], json!({ "base64": "b2Rk/w==" }));
    let at = |query: &str| fixture.daemon.get(&format!("/v1/sandboxes/agent/workspace/diff?{query}"));
    assert_eq!(at("path=odd%ff").assert_ok()["files"].as_array().unwrap().len(), 1);
    assert_eq!(at("path=f%201&path=f%202").assert_ok()["files"].as_array().unwrap().len(), 2);
    for bad in ["path=%2e%2e/x", "path=/etc", "path=%00", "limit=0", "limit=10001", "after=x", "lines=maybe"] {
        at(bad).assert_fault(400, "invalid_request");
    }
    let ask = json!({ "digest": digests[0], "exact": [{ "base64": "b2Rk/w==" }] });
    fixture.verb("agent", "approve", ask).assert_ok();
    let landed = fixture.place.project.join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    assert_eq!(fs::read_to_string(landed).unwrap(), "odd\n");
    for path in ["../x", "/etc/passwd", "a//b"] {
        let ask = json!({ "digest": digests[0], "exact": [path] });
        fixture.verb("agent", "approve", ask).assert_fault(400, "invalid_request");
    }

    let patch = fixture.daemon.get("/v1/sandboxes/agent/workspace/patch");
    assert_eq!((patch.status, patch.header("content-type")), (200, Some("text/x-diff")));
    assert_eq!(patch.header("cofferdam-digest"), Some(digest(&fixture.diff("agent"))));
    let copy = fixture.place.dir("copy");
    assert!(apply(&fixture.place, &copy, &patch.body), "git takes the patch: {}", patch.text());
    assert_eq!(fs::read_to_string(copy.join("f 1")).unwrap(), "1\n");
}

fn apply(place: &Place, dir: &Path, patch: &[u8]) -> bool {
    let mut git: Command = place.outside("git");
    let done = crate::support::to_the_end(git.args(["apply", "-"]).current_dir(dir), patch);
    done.status.success()
}

#[test]
fn workspaces_go_out_and_come_in_as_files() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    fixture.exec("agent", "echo carried > carried.txt; rm gone.txt");
    let exported = fixture.daemon.get("/v1/sandboxes/agent/export");
    assert_eq!((exported.status, exported.header("content-type")), (200, Some("application/zstd")));
    fixture.daemon.get("/v1/sandboxes/nobody/export").assert_fault(404, "not_found");
    let import = |query: &str, body: &[u8]| {
        let ask = fixture.daemon.ask("POST", &format!("/v1/import?{query}")).header("idempotency-key", "i1");
        ask.body("application/zstd", body).send()
    };
    let onto = format!("name=copy&dir={}", fixture.place.project.display());
    for bad in [&b"nonsense"[..], &exported.body[..exported.body.len() / 2]] {
        import(&onto, bad).assert_fault(400, "invalid_request");
    }
    let layers = || fs::read_dir(fixture.place.state().join("layers")).unwrap().count();
    let before = layers();
    let (made, again) = (import(&onto, &exported.body), import(&onto, &exported.body));
    assert_eq!((made.status, again.status), (201, 200));
    assert_eq!(again.json(), made.json(), "once under its key");
    assert_eq!(layers(), before + 1, "of what was refused nothing stays");
    let diff = fixture.diff("copy");
    assert_eq!(
        (digest(&diff), names(&diff["files"])),
        (digest(&fixture.diff("agent")), vec!["carried.txt", "gone.txt"])
    );
    fixture
        .daemon
        .ask("POST", "/v1/import?dir=relative")
        .body("application/zstd", &exported.body)
        .send()
        .assert_fault(400, "invalid_request");
    // An import without a directory gets an empty base of its own.
    let own =
        fixture.daemon.ask("POST", "/v1/import?name=own").body("application/zstd", &exported.body).send().assert_ok();
    assert_eq!(names(&fixture.diff(own["id"].as_str().unwrap())["files"]), ["carried.txt"]);
    // The `copy` driver imports the same archive, with the same diff.
    let query = format!("/v1/import?name=plain&driver=copy&dir={}", fixture.place.project.display());
    fixture.daemon.ask("POST", &query).body("application/zstd", &exported.body).send().assert_ok();
    assert_eq!(fixture.daemon.get("/v1/sandboxes/plain").assert_ok()["driver"], "copy");
    assert_eq!(digest(&fixture.diff("plain")), digest(&fixture.diff("agent")));
    assert!(fixture.daemon.get("/v1/sandboxes/plain/export").body == exported.body, "byte for byte");
    let odd = fixture.daemon.ask("POST", "/v1/import?driver=odd").body("application/zstd", &exported.body).send();
    odd.assert_fault(400, "invalid_request");
}

#[test]
fn policies_are_shown_checked_and_explained() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    let list = fixture.daemon.get("/v1/policies").assert_ok();
    let found: Vec<&str> = list["policies"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert!(found.contains(&"default") && found.contains(&"strict"), "{list}");
    assert_eq!(fixture.daemon.get("/v1/policies/default").assert_ok()["policy"]["version"], 1);
    fixture.daemon.get("/v1/policies/nothing").assert_fault(404, "not_found");
    let check =
        |sort: &str, text: &str| fixture.daemon.ask("POST", "/v1/policies/check").body(sort, text.as_bytes()).send();
    check("application/json", r#"{"version": 1, "extends": ["default"]}"#).assert_ok();
    check("application/toml", "version = 1\nextends = [\"default\"]\n").assert_ok();
    for bad in [r#"{"version": 1, "extnds": []}"#, r#"{"version": 1, "version": 1}"#, "{", ""] {
        check("application/json", bad).assert_fault(400, "invalid_request");
    }
    let explain = |ask: Value| fixture.daemon.post("/v1/policies/explain", ask);
    let inside = explain(json!({ "what": "./src/a.txt", "sandbox": "agent" })).assert_ok();
    assert!(inside["changes"].as_str().unwrap().contains("workspace"), "{inside:#}");
    let host = explain(json!({ "what": "example.org:443", "preset": "default" })).assert_ok();
    assert_eq!(host["decisions"][0]["action"], "deny", "{host:#}");
    let policy =
        json!({ "version": 1, "net": { "rules": [{ "action": "allow", "host": "example.org", "ports": "443" }] } });
    let allowed = explain(json!({ "what": "example.org:443", "policy": policy })).assert_ok();
    assert_eq!(allowed["decisions"][0]["action"], "allow", "{allowed:#}");
    explain(json!({ "what": "x", "sandbox": "nobody" })).assert_fault(404, "not_found");
    explain(json!({ "what": "x", "sandbox": "agent", "preset": "default" })).assert_fault(400, "invalid_request");
}

/// The value of a secret is in its own file and nowhere else.
// promise 23
#[test]
fn a_secret_is_found_nowhere_but_in_its_file() {
    const CANARY: &str = "canary-93b1f0e7";
    let fixture = WorkspaceFixture::with_repository();
    let put = |name: &str, body: &str| {
        let ask = fixture.daemon.ask("PUT", &format!("/v1/secrets/{name}"));
        ask.body("application/json", body.as_bytes()).send()
    };
    let mut answers = vec![put("API_KEY", &json!({ "value": CANARY }).to_string())];
    assert_eq!(answers[0].assert_ok()["existed"], false);
    for bad in [
        format!("\"{CANARY}\""),
        format!("{{\"value\": [\"{CANARY}\"]}}"),
        format!("{{\"value\": \"{CANARY}\", \"{CANARY}\": 1}}"),
        format!("{{\"value\": \"{CANARY}"),
        format!("{{\"value\": \"{CANARY}\\n\"}}"),
    ] {
        let answer = put("OTHER", &bad);
        answer.assert_fault(400, "invalid_request");
        answers.push(answer);
    }
    answers.extend([
        fixture.daemon.get("/v1/secrets"),
        fixture.daemon.get("/v1/audit"),
        fixture.daemon.get("/v1/secrets/API_KEY"),
    ]);
    for answer in &answers {
        assert!(!answer.text().contains(CANARY), "{}", answer.text());
    }
    assert_eq!(answers[6].assert_ok()["secrets"][0]["name"], "API_KEY");
    answers[8].assert_fault(405, "invalid_request");
    let policy = fixture.place.policy(json!({ "version": 1, "extends": ["default"],
        "net": { "rules": [{ "action": "allow", "host": "api.example.com", "ports": "443" }] },
        "secrets": [{ "name": "API_KEY", "inject": { "host": "api.example.com", "header": "authorization" } }] }));
    let run = fixture.place.sh(&["-p", &policy], "env; cat /proc/1/environ; echo; set");
    run.assert_ok();
    assert!(run.stdout().contains("cofferdam-secret-API_KEY-") && !run.story().contains(CANARY), "{}", run.story());
    assert!(!holders(&fixture.place.root, b"/v1/secrets/{name}").is_empty(), "the control: the log is among them");
    let holding = holders(&fixture.place.root, CANARY.as_bytes());
    assert_eq!(holding, [fixture.place.state().join("secrets/API_KEY")]);
    fixture.daemon.ask("DELETE", "/v1/secrets/API_KEY").send().assert_ok();
    assert!(holders(&fixture.place.root, CANARY.as_bytes()).is_empty());
}

// promise 19
#[test]
fn events_are_the_journal_and_none_is_lost_over_a_restart() {
    let mut fixture = WorkspaceFixture::with_repository();
    let id = fixture.create(json!({ "name": "agent" }));
    let mut stream = fixture.daemon.ask("GET", "/v1/events").open();
    assert!(stream.until("text/event-stream"));
    // Entries by another process beside the daemon are streamed, too.
    fixture.exec("agent", "echo x > x.txt");
    assert!(stream.until("\"verb\":\"run\"") && stream.until("\"step\":\"done\""));
    let seen: u64 = String::from_utf8_lossy(&stream.text)
        .lines()
        .filter_map(|line| line.strip_prefix("id: ")?.trim().parse().ok())
        .max()
        .unwrap();
    let mut narrow = fixture.daemon.ask("GET", "/v1/events?verb=diff&sandbox=agent&from=0").open();
    fixture.daemon.child.kill().unwrap();
    assert!(!narrow.until("\"verb\":\"diff\""), "no diff yet, and the stream broke off");
    let done = fixture.place.cofferdam(["diff", "agent", "--name-only"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    fixture.daemon = Daemon::start(&fixture.place);
    let mut stream = fixture.daemon.ask("GET", "/v1/events").header("last-event-id", &seen.to_string()).open();
    assert!(stream.until("\"verb\":\"diff\""), "entries without a subscriber are streamed later");
    let text = String::from_utf8_lossy(&stream.text).into_owned();
    let first = text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    assert_eq!(first.trim(), (seen + 1).to_string(), "and nothing twice: {text}");
    let mut narrow = fixture.daemon.ask("GET", &format!("/v1/events?verb=create&sandbox={id}&from=0")).open();
    assert!(narrow.until("\"step\":\"done\"") && !String::from_utf8_lossy(&narrow.text).contains("\"verb\":\"run\""));
    fixture.daemon.get("/v1/events?from=1000000").assert_fault(400, "invalid_request");
    fixture.daemon.ask("GET", "/v1/events").header("last-event-id", "x").send().assert_fault(400, "invalid_request");
    fixture.daemon.get("/v1/events?sandbox=nobody").assert_fault(404, "not_found");

    let told = fixture.place.cofferdam(["events", "agent", "--from", "0", "--json"]).output().unwrap();
    let lines: Vec<Value> =
        String::from_utf8(told.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 2 && lines.iter().all(|entry| entry["subject"] == id.as_str()), "{lines:?}");
    let page = fixture.daemon.get("/v1/audit?limit=2").assert_ok();
    let next = page["next"].as_u64().unwrap();
    let rest = fixture.daemon.get(&format!("/v1/audit?after={next}&limit=1")).assert_ok();
    assert_eq!(rest["entries"][0]["seq"].as_u64(), Some(next + 1));
}

/// An empty path would match every change, as all are below the top: a name that a client's program left empty would
/// choose them all.
#[test]
fn an_empty_path_chooses_nothing() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    fixture.exec("agent", "echo new > src/new.txt; echo new > docs/new.md");
    let diff = fixture.diff("agent");
    for (verb, field, path) in [
        ("approve", "paths", json!("")),
        ("approve", "exact", json!("")),
        ("approve", "paths", json!({ "base64": "" })),
        ("reject", "paths", json!("")),
    ] {
        let fault = fixture.verb("agent", verb, json!({ "digest": digest(&diff), field: ["src/new.txt", path] }));
        let fault = fault.assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains(field), "{verb}: {fault}");
    }
    for part in ["diff?path=", "diff?path=src&path=", "patch?path", "provenance?path="] {
        let fault = fixture.daemon.get(&format!("/v1/sandboxes/agent/workspace/{part}"));
        let fault = fault.assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains("path: an empty path"), "{part}: {fault}");
    }
    let socket = fixture.daemon.socket.to_string_lossy().into_owned();
    let typed = |words: &[&str], server: Option<&str>| {
        let mut command = fixture.place.cofferdam(words);
        server.map(|server| command.env("COFFERDAM_SERVER", server));
        command.current_dir(&fixture.place.project).output().unwrap()
    };
    for server in [None, Some(socket.as_str())] {
        for words in [
            &["approve", "agent", "", "--unseen"][..],
            &["reject", "agent", ""],
            &["diff", "agent", ""],
            &["diff", "agent", "src", ""],
            &["diff", ""],
            &["provenance", ""],
        ] {
            let done = typed(words, server);
            assert_eq!(done.status.code(), Some(2), "{server:?} {words:?}: {done:?}");
        }
    }
    assert_eq!(digest(&fixture.diff("agent")), digest(&diff), "nothing landed, and nothing is gone");
    assert_eq!(fixture.git(&["status", "--porcelain"]), "");
    // The control: a named path is chosen, and `.` on the command line means everything below the current directory.
    let receipt = fixture.verb("agent", "approve", json!({ "digest": digest(&diff), "paths": ["src"] })).assert_ok();
    assert_eq!(names(&receipt["landed"]), ["src/new.txt"]);
    for server in [None, Some(socket.as_str())] {
        let shown = typed(&["diff", "agent", ".", "--name-only"], server);
        assert_eq!(String::from_utf8_lossy(&shown.stdout), "docs/new.md\n", "{shown:?}");
    }
    let done = typed(&["reject", "agent", "."], Some(&socket));
    assert!(done.status.success(), "{done:?}");
    fixture.exec("agent", "echo new > docs/new.md");
    let done = typed(&["approve", "agent", ".", "--unseen"], Some(&socket));
    assert!(done.status.success() && fixture.read("docs/new.md") == "new\n", "{done:?}");
}

/// Regression: a guest that descends step by step can create paths longer than PATH_MAX. Landing one failed with an
/// internal fault.
#[test]
fn a_path_longer_than_the_kernel_takes_lands_and_goes_back() {
    let fixture = WorkspaceFixture::with_repository();
    fixture.create(json!({ "name": "agent" }));
    let half = "$(printf \"$n/%.0s\" $(seq 12))";
    let deep =
        format!("n=$(printf 'd%.0s' $(seq 200)); mkdir -p {half} top/{half}; echo deep > top/{half}f; mv top {half}");
    fixture.exec("agent", &format!("echo new > new.txt; {deep}"));
    let ask = |verb: &str, mut body: Value| {
        body["digest"] = json!(digest(&fixture.diff("agent")));
        fixture.daemon.post(&format!("/v1/sandboxes/agent/workspace/{verb}"), body)
    };
    let long = |diff: &Value| names(&diff["files"]).into_iter().any(|path| path.len() > 4096);
    assert!(long(&fixture.diff("agent")), "the control");
    ask("approve", json!({ "all": true })).assert_ok();
    let find = |name: &str| {
        let out =
            std::process::Command::new("find").arg(&fixture.place.project).args(["-name", name]).output().unwrap();
        out.stdout.len()
    };
    assert!(find("f") > 4096 && find("new.txt") > 0, "both landed");
    fixture.daemon.post("/v1/sandboxes/agent/workspace/undo", json!({})).assert_ok();
    assert_eq!((find("f"), find("new.txt")), (0, 0), "and both went back");
    ask("reject", json!({ "all": true })).assert_ok();
    assert!(!long(&fixture.diff("agent")));
}
