//! Workspaces over HTTP: the story of a review from the first sandbox to the last fork, and what must not happen on the way.

use crate::support::http::Daemon;
use crate::support::{Place, holders};
use crate::world::World;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn digest(diff: &Value) -> &str {
    diff["digest"].as_str().unwrap()
}

/// The change of a file in a diff.
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
    let mut world = World::with_repository();
    let first = json!({ "name": "agent", "reserve": ["src"], "dir": world.place.project });
    let make = |key: &str, ask: &Value| {
        world.daemon.ask("POST", "/v1/sandboxes").header("idempotency-key", key).json(ask.clone()).send()
    };
    let id = make("story-1", &first).assert_ok()["id"].as_str().unwrap().to_owned();
    let second = json!({ "dir": world.place.project, "reserve": ["src/a"] });
    let refused = make("story-2", &second).assert_fault(409, "conflict");
    assert!(refused["message"].as_str().unwrap().contains("agent"), "it says who holds it: {refused}");
    world.create(json!({ "name": "writer", "reserve": ["docs"] }));
    assert_eq!(make("story-1", &first).assert_ok()["id"], id.as_str());
    make("story-1", &json!({ "dir": world.place.project, "name": "other" })).assert_fault(409, "conflict");

    world.exec("agent", WORK);
    let diff = world.diff("agent");
    for (path, kind) in
        [("gone.txt", json!("deleted")), ("src/new.txt", json!("added")), ("src/a.txt", json!("modified"))]
    {
        assert_eq!(file(&diff, path)["kind"], kind, "{path}");
    }
    assert_eq!(file(&diff, "src/moved.txt")["kind"], json!({ "renamed": { "from": "src/old.txt" } }));
    assert_eq!(world.git(&["status", "--porcelain"]), "", "the repository is as it was");

    // One hunk lands, and only it.
    let one = hunk(&diff, "src/a.txt", 0);
    let receipt = world.verb("agent", "approve", json!({ "digest": digest(&diff), "hunks": [one] })).assert_ok();
    assert_eq!(receipt["landed"][0]["hunks"], json!([one]), "{receipt:#}");
    let now = world.read("src/a.txt");
    assert!(now.contains("two\n") && now.contains("\n25\n"), "{now}");
    let diff = world.diff("agent");
    assert_eq!(file(&diff, "src/a.txt")["body"]["text"].as_array().unwrap().len(), 1, "the other waits");

    // Upstream changes the same file: conflict, rebase, approve, commit.
    let upstream = now.replace("\n10\n", "\nten\n");
    world.place.file(world.place.project.join("src/a.txt"), &upstream);
    let diff = world.diff("agent");
    assert_eq!(file(&diff, "src/a.txt")["drifted"], true);
    let paths = json!(["src/a.txt"]);
    let fault = world.verb("agent", "approve", json!({ "digest": digest(&diff), "paths": paths }));
    assert!(fault.assert_fault(409, "conflict")["message"].as_str().unwrap().contains("src/a.txt"));
    let rebased = world.verb("agent", "rebase", json!({})).assert_ok();
    assert_eq!((rebased["conflicts"].as_u64(), names(&rebased["files"])), (Some(0), vec!["src/a.txt"]), "{rebased:#}");

    // A daemon that is killed at any moment leaves everything as it is.
    world.daemon.child.kill().unwrap();
    world.daemon = Daemon::start(&world.place);
    let diff = world.diff("agent");
    let commit = json!({ "message": "agent: numbers", "author": "agent" });
    let ask = json!({ "digest": digest(&diff), "all": true, "commit": commit });
    let receipt = world.verb("agent", "approve", ask).assert_ok();
    let landed = world.read("src/a.txt");
    assert!(["two", "ten", "twenty-five"].iter().all(|word| landed.contains(&format!("\n{word}\n"))), "{landed}");
    let head = receipt["commit"].as_str().unwrap();
    assert_eq!(world.git(&["log", "-1", "--format=%H %cn"]).trim(), format!("{head} Ann"));
    assert!(world.git(&["log", "-1", "--format=%an"]).contains("agent"));

    let provenance = world.daemon.get("/v1/sandboxes/agent/workspace/provenance?path=src/a.txt").assert_ok();
    let batches = provenance["batches"].as_array().unwrap();
    assert!(batches.len() == 2 && batches.iter().all(|batch| batch["sandbox"] == id.as_str()), "{provenance:#}");

    let undone = world.verb("agent", "undo", json!({ "batch": receipt["batch"] })).assert_ok();
    assert_eq!(world.read("src/a.txt"), upstream);
    assert!(undone["notes"].to_string().contains(head), "the commit stays, and it is told: {undone:#}");
    world.verb("agent", "undo", json!({ "batch": receipt["batch"] })).assert_fault(409, "conflict");
    assert!(names(&world.diff("agent")["files"]).contains(&"src/new.txt"), "the changes wait again");
}

#[test]
fn snapshots_forks_and_restores() {
    let world = World::with_repository();
    let id = world.create(json!({ "name": "agent" }));
    world.exec("agent", "echo one > step.txt");
    let take = |key: &str| {
        let ask = world.daemon.ask("POST", "/v1/sandboxes/agent/snapshots").header("idempotency-key", key);
        ask.json(json!({ "name": "one" })).send()
    };
    let (taken, again) = (take("k1"), take("k1"));
    assert_eq!((taken.status, again.status), (201, 200));
    assert_eq!(again.json(), taken.json(), "the same answer under the same key");
    take("k2").assert_fault(409, "conflict");
    let other = world.daemon.ask("POST", "/v1/sandboxes/agent/snapshots").header("idempotency-key", "k1");
    let fault = other.json(json!({ "name": "two" })).send().assert_fault(409, "conflict");
    assert!(fault["message"].as_str().unwrap().contains("another name: \"one\", now \"two\""), "{fault}");

    let fork = || {
        let ask = world.daemon.ask("POST", "/v1/sandboxes/agent/fork").header("idempotency-key", "k3");
        ask.json(json!({ "count": 10, "name": "try", "snapshot": "one" })).send()
    };
    let (forked, again) = (fork(), fork());
    assert_eq!((forked.status, again.status), (201, 200));
    let forked = forked.json();
    assert_eq!(again.json(), forked);
    let forks = forked["sandboxes"].as_array().unwrap();
    assert_eq!((forks.len(), forks[9]["name"].as_str()), (10, Some("try-10")));
    for name in ["try-1", "try-10"] {
        world.exec(name, &format!("echo {name} > step.txt"));
    }
    let text = |name: &str| world.diff(name)["files"][0]["body"]["text"][0]["lines"][0]["text"].clone();
    assert_eq!((text("try-1"), text("try-10"), text("try-2")), (json!("try-1\n"), json!("try-10\n"), json!("one\n")));

    world.exec("agent", "echo two > step.txt");
    let before = world.daemon.get("/v1/sandboxes/agent");
    let version = before.header("etag").unwrap().to_owned();
    let restore = |tag: &str| {
        let ask = world.daemon.ask("POST", "/v1/sandboxes/agent/restore").header("if-match", tag);
        ask.json(json!({ "snapshot": "one" })).send()
    };
    restore("\"9999\"").assert_fault(409, "conflict");
    assert_eq!(text("agent"), json!("two\n"));
    let restored = restore(&version).assert_ok();
    assert_eq!(text("agent"), json!("one\n"));
    let kept = restored["kept"].as_str().unwrap().to_owned();
    let list = world.daemon.get("/v1/sandboxes/agent/snapshots?limit=1").assert_ok();
    let next = list["next"].as_str().unwrap();
    let rest = world.daemon.get(&format!("/v1/sandboxes/agent/snapshots?after={next}")).assert_ok();
    assert_eq!(list["snapshots"].as_array().unwrap().len() + rest["snapshots"].as_array().unwrap().len(), 2);
    assert_eq!(world.daemon.get(&format!("/v1/snapshots/{kept}")).assert_ok()["sandbox"], id.as_str());

    // What a preview lists is what is collected.
    world.daemon.ask("DELETE", "/v1/sandboxes/try-3").send().assert_ok();
    let preview = world.daemon.get("/v1/gc").assert_ok();
    let collected = world.daemon.ask("POST", "/v1/gc").send().assert_ok();
    assert_eq!(preview["items"], collected["items"]);

    // Templates: named, shown, begun from, forgotten.
    let ask = json!({ "name": "base", "from": "one" });
    let made = world.daemon.post("/v1/templates", ask.clone());
    assert_eq!((made.status, world.daemon.post("/v1/templates", ask).status), (201, 200));
    let begun = world.create(json!({ "name": "begun", "template": "base" }));
    assert_eq!(text(&begun), json!("one\n"));
    assert_eq!(world.daemon.get("/v1/templates").assert_ok()["templates"][0]["name"], "base");
    world.daemon.ask("DELETE", "/v1/templates/base").send().assert_ok();
    world.daemon.get("/v1/templates/base").assert_fault(404, "not_found");
    world.daemon.ask("DELETE", &format!("/v1/snapshots/{kept}")).send().assert_ok();
    world.daemon.get(&format!("/v1/snapshots/{kept}")).assert_fault(404, "not_found");
}

#[test]
fn a_running_sandbox_can_be_snapshotted() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    let mut run =
        world.place.cofferdam(["exec", "agent", "--", "/bin/sh", "-c", "echo early > e.txt; echo ready; read x"]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let taken = world.daemon.post("/v1/sandboxes/agent/snapshots", json!({})).assert_ok();
    assert!(taken["held_ms"].is_u64(), "{taken:#}");
    assert_eq!(world.diff("agent")["running"], true);
    let diff = world.diff("agent");
    world.verb("agent", "reject", json!({ "digest": digest(&diff), "all": true })).assert_fault(409, "conflict");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().code().is_some());
    world.verb("agent", "reject", json!({ "digest": digest(&world.diff("agent")), "all": true })).assert_ok();
}

/// F04: what was edited between the diff and the approval does not land.
#[test]
fn what_changed_after_the_review_does_not_land() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    world.exec("agent", "echo good > new.txt");
    let diff = world.diff("agent");
    world.exec("agent", "echo bad > new.txt");
    let all = |digest: &str| world.verb("agent", "approve", json!({ "digest": digest, "all": true }));
    all(digest(&diff)).assert_fault(409, "conflict");
    assert!(!world.place.project.join("new.txt").exists());
    world.verb("agent", "approve", json!({ "all": true })).assert_fault(400, "invalid_request");
    world.verb("agent", "approve", json!({ "digest": digest(&diff) })).assert_fault(400, "invalid_request");
    all(digest(&world.diff("agent"))).assert_ok();
    assert_eq!(world.read("new.txt"), "bad\n", "the control: what was seen lands");

    // Nobody is taken to have seen what a program asked for.
    world.exec("agent", "echo more > more.txt");
    world.diff("agent");
    let by_hand = world.place.cofferdam(["approve", "agent"]).stdin(Stdio::null()).output().unwrap();
    assert!(!by_hand.status.success() && !world.place.project.join("more.txt").exists(), "{by_hand:?}");
}

/// A09: the scope of an agent never approves; the reviewer's name stands in the journal.
#[test]
fn an_agent_cannot_approve() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    world.exec("agent", "echo new > new.txt");
    let token = |name: &str, scope: &str, bound: Value| {
        let dirs = [&world.place.project];
        world.daemon.token(json!({ "name": name, "scopes": [scope], "dirs": dirs, "sandboxes": bound }))
    };
    let (agent, reviewer) = (token("robot", "agent", json!(["agent"])), token("rita", "reviewer", json!([])));
    let ask = |token: &str, method: &str, path: &str, body: Option<Value>| {
        let ask = world.daemon.ask(method, path).bearer(token);
        match body {
            Some(body) => ask.json(body).send(),
            None => ask.send(),
        }
    };
    let at = |verb: &str| format!("/v1/sandboxes/agent/workspace/{verb}");
    // The control: both may look.
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
    assert!(!world.place.project.join("new.txt").exists());
    ask(&reviewer, "POST", "/v1/sandboxes/agent/snapshots", Some(json!({}))).assert_fault(403, "policy_denied");
    ask(&reviewer, "POST", &at("approve"), Some(all)).assert_ok();
    assert_eq!(world.read("new.txt"), "new\n");
    let provenance = ask(&reviewer, "GET", &at("provenance?path=new.txt"), None).assert_ok();
    assert_eq!(provenance["batches"][0]["actor"], "rita", "{provenance:#}");
    let journal = ask(&reviewer, "GET", "/v1/audit?verb=approve&step=done", None).assert_ok();
    assert_eq!(journal["entries"][0]["actor"], "rita", "{journal:#}");
    let sound = ask(&reviewer, "GET", "/v1/audit/verify", None).assert_ok();
    assert_eq!(sound["sound"], true, "{sound:#}");
}

/// Files that would run on the reviewer's machine land only when they are named, over HTTP as at the terminal.
#[test]
fn what_runs_on_the_host_must_be_named() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    world.exec(
        "agent",
        "echo 'x:' > Makefile; echo plain > plain.txt; mkdir -p node_modules/m .unheard; echo j > node_modules/m/i.js; \
         echo x > .unheard/of; printf '#!/bin/sh\\n' > tool; chmod 755 tool",
    );
    let diff = world.diff("agent");
    assert_eq!(file(&diff, "Makefile")["class"], "runs_on_host");
    let unheard = file(&diff, ".unheard/of");
    assert_eq!(
        (&unheard["class"], unheard["why"].as_str().unwrap()),
        (&json!("runs_on_host"), "new hidden directory, which tools may obey")
    );
    assert_eq!(file(&diff, "tool")["flags"], json!(["executable", "script"]), "marked, and lands with the rest");
    assert_eq!(diff["withheld"][0]["path"], "node_modules", "{diff:#}");
    let receipt = world.verb("agent", "approve", json!({ "digest": digest(&diff), "all": true })).assert_ok();
    assert_eq!(
        (names(&receipt["landed"]), names(&receipt["left"])),
        (vec!["plain.txt", "tool"], vec![".unheard/of", "Makefile"])
    );
    let diff = world.diff("agent");
    let named = json!({ "digest": digest(&diff), "exact": ["Makefile"] });
    assert_eq!(names(&world.verb("agent", "approve", named).assert_ok()["landed"]), ["Makefile"]);
    let pruned = world.daemon.ask("POST", "/v1/sandboxes/agent/workspace/prune").send().assert_ok();
    assert_eq!(pruned["files"], 1, "{pruned:#}");
}

#[test]
fn names_go_through_byte_for_byte_and_pages_make_up_the_whole() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    world.exec("agent", "for n in 1 2 3 4 5; do echo $n > \"f $n\"; done; echo odd > \"$(printf 'odd\\377')\"");
    let (mut seen, mut after, mut digests) = (Vec::new(), String::new(), Vec::new());
    loop {
        let page =
            world.daemon.get(&format!("/v1/sandboxes/agent/workspace/diff?limit=2&lines=false{after}")).assert_ok();
        seen.extend(page["files"].as_array().unwrap().iter().map(|file| file["path"].clone()));
        digests.push(digest(&page).to_owned());
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    digests.dedup();
    assert_eq!((seen.len(), digests.len()), (6, 1));
    assert_eq!(seen[5], json!({ "base64": "b2Rk/w==" }));
    let at = |query: &str| world.daemon.get(&format!("/v1/sandboxes/agent/workspace/diff?{query}"));
    assert_eq!(at("path=odd%ff").assert_ok()["files"].as_array().unwrap().len(), 1);
    assert_eq!(at("path=f%201&path=f%202").assert_ok()["files"].as_array().unwrap().len(), 2);
    for bad in ["path=%2e%2e/x", "path=/etc", "path=%00", "limit=0", "limit=10001", "after=x", "lines=maybe"] {
        at(bad).assert_fault(400, "invalid_request");
    }
    let ask = json!({ "digest": digests[0], "exact": [{ "base64": "b2Rk/w==" }] });
    world.verb("agent", "approve", ask).assert_ok();
    let landed = world.place.project.join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    assert_eq!(fs::read_to_string(landed).unwrap(), "odd\n");
    for path in ["../x", "/etc/passwd", "a//b"] {
        let ask = json!({ "digest": digests[0], "exact": [path] });
        world.verb("agent", "approve", ask).assert_fault(400, "invalid_request");
    }

    let patch = world.daemon.get("/v1/sandboxes/agent/workspace/patch");
    assert_eq!((patch.status, patch.header("content-type")), (200, Some("text/x-diff")));
    assert_eq!(patch.header("cofferdam-digest"), Some(digest(&world.diff("agent"))));
    let copy = world.place.dir("copy");
    assert!(apply(&world.place, &copy, &patch.body), "git takes the patch: {}", patch.text());
    assert_eq!(fs::read_to_string(copy.join("f 1")).unwrap(), "1\n");
}

fn apply(place: &Place, dir: &Path, patch: &[u8]) -> bool {
    let mut git: Command = place.outside("git");
    let done = crate::support::to_the_end(git.args(["apply", "-"]).current_dir(dir), patch);
    done.status.success()
}

#[test]
fn workspaces_go_out_and_come_in_as_files() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    world.exec("agent", "echo carried > carried.txt; rm gone.txt");
    let exported = world.daemon.get("/v1/sandboxes/agent/export");
    assert_eq!((exported.status, exported.header("content-type")), (200, Some("application/zstd")));
    world.daemon.get("/v1/sandboxes/nobody/export").assert_fault(404, "not_found");
    let import = |query: &str, body: &[u8]| {
        let ask = world.daemon.ask("POST", &format!("/v1/import?{query}")).header("idempotency-key", "i1");
        ask.body("application/zstd", body).send()
    };
    let onto = format!("name=copy&dir={}", world.place.project.display());
    for bad in [&b"nonsense"[..], &exported.body[..exported.body.len() / 2]] {
        import(&onto, bad).assert_fault(400, "invalid_request");
    }
    let layers = || fs::read_dir(world.place.state().join("layers")).unwrap().count();
    let before = layers();
    let (made, again) = (import(&onto, &exported.body), import(&onto, &exported.body));
    assert_eq!((made.status, again.status), (201, 200));
    assert_eq!(again.json(), made.json(), "once under its key");
    assert_eq!(layers(), before + 1, "of what was refused nothing stays");
    let diff = world.diff("copy");
    assert_eq!((digest(&diff), names(&diff["files"])), (digest(&world.diff("agent")), vec!["carried.txt", "gone.txt"]));
    world
        .daemon
        .ask("POST", "/v1/import?dir=relative")
        .body("application/zstd", &exported.body)
        .send()
        .assert_fault(400, "invalid_request");
    // Without a directory it gets an empty one of its own.
    let own =
        world.daemon.ask("POST", "/v1/import?name=own").body("application/zstd", &exported.body).send().assert_ok();
    assert_eq!(names(&world.diff(own["id"].as_str().unwrap())["files"]), ["carried.txt"]);
    // A copy takes the same file, and makes it again.
    let query = format!("/v1/import?name=plain&driver=copy&dir={}", world.place.project.display());
    world.daemon.ask("POST", &query).body("application/zstd", &exported.body).send().assert_ok();
    assert_eq!(world.daemon.get("/v1/sandboxes/plain").assert_ok()["driver"], "copy");
    assert_eq!(digest(&world.diff("plain")), digest(&world.diff("agent")));
    assert!(world.daemon.get("/v1/sandboxes/plain/export").body == exported.body, "byte for byte");
    let odd = world.daemon.ask("POST", "/v1/import?driver=odd").body("application/zstd", &exported.body).send();
    odd.assert_fault(400, "invalid_request");
}

#[test]
fn policies_are_shown_checked_and_explained() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    let list = world.daemon.get("/v1/policies").assert_ok();
    let found: Vec<&str> = list["policies"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert!(found.contains(&"default") && found.contains(&"strict"), "{list}");
    assert_eq!(world.daemon.get("/v1/policies/default").assert_ok()["policy"]["version"], 1);
    world.daemon.get("/v1/policies/nothing").assert_fault(404, "not_found");
    let check =
        |sort: &str, text: &str| world.daemon.ask("POST", "/v1/policies/check").body(sort, text.as_bytes()).send();
    check("application/json", r#"{"version": 1, "extends": ["default"]}"#).assert_ok();
    check("application/toml", "version = 1\nextends = [\"default\"]\n").assert_ok();
    for bad in [r#"{"version": 1, "extnds": []}"#, r#"{"version": 1, "version": 1}"#, "{", ""] {
        check("application/json", bad).assert_fault(400, "invalid_request");
    }
    let explain = |ask: Value| world.daemon.post("/v1/policies/explain", ask);
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

/// A14: the value of a secret is in its own file and nowhere else.
#[test]
fn a_secret_is_found_nowhere_but_in_its_file() {
    const CANARY: &str = "canary-93b1f0e7";
    let world = World::with_repository();
    let put = |name: &str, body: &str| {
        let ask = world.daemon.ask("PUT", &format!("/v1/secrets/{name}"));
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
        world.daemon.get("/v1/secrets"),
        world.daemon.get("/v1/audit"),
        world.daemon.get("/v1/secrets/API_KEY"),
    ]);
    for answer in &answers {
        assert!(!answer.text().contains(CANARY), "{}", answer.text());
    }
    assert_eq!(answers[6].assert_ok()["secrets"][0]["name"], "API_KEY");
    answers[8].assert_fault(405, "invalid_request");
    let policy = world.place.policy(json!({ "version": 1, "extends": ["default"],
        "net": { "rules": [{ "action": "allow", "host": "api.example.com", "ports": "443" }] },
        "secrets": [{ "name": "API_KEY", "inject": { "host": "api.example.com", "header": "authorization" } }] }));
    let run = world.place.sh(&["-p", &policy], "env; cat /proc/1/environ; echo; set");
    run.assert_ok();
    assert!(run.stdout().contains("cofferdam-secret-API_KEY-") && !run.story().contains(CANARY), "{}", run.story());
    assert!(!holders(&world.place.root, b"/v1/secrets/{name}").is_empty(), "the control: the log is among them");
    let holding = holders(&world.place.root, CANARY.as_bytes());
    assert_eq!(holding, [world.place.state().join("secrets/API_KEY")]);
    world.daemon.ask("DELETE", "/v1/secrets/API_KEY").send().assert_ok();
    assert!(holders(&world.place.root, CANARY.as_bytes()).is_empty());
}

#[test]
fn events_are_the_journal_and_none_is_lost_over_a_restart() {
    let mut world = World::with_repository();
    let id = world.create(json!({ "name": "agent" }));
    let mut stream = world.daemon.ask("GET", "/v1/events").open();
    assert!(stream.until("text/event-stream"));
    // Written by somebody else, beside the daemon.
    world.exec("agent", "echo x > x.txt");
    assert!(stream.until("\"verb\":\"run\"") && stream.until("\"step\":\"done\""));
    let seen: u64 = String::from_utf8_lossy(&stream.text)
        .lines()
        .filter_map(|line| line.strip_prefix("id: ")?.trim().parse().ok())
        .max()
        .unwrap();
    let mut narrow = world.daemon.ask("GET", "/v1/events?verb=diff&sandbox=agent&from=0").open();
    world.daemon.child.kill().unwrap();
    assert!(!narrow.until("\"verb\":\"diff\""), "nobody has looked yet, and the stream broke off");
    let done = world.place.cofferdam(["diff", "agent", "--name-only"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    world.daemon = Daemon::start(&world.place);
    let mut stream = world.daemon.ask("GET", "/v1/events").header("last-event-id", &seen.to_string()).open();
    assert!(stream.until("\"verb\":\"diff\""), "what happened while nobody was there is told");
    let text = String::from_utf8_lossy(&stream.text).into_owned();
    let first = text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    assert_eq!(first.trim(), (seen + 1).to_string(), "and nothing twice: {text}");
    let mut narrow = world.daemon.ask("GET", &format!("/v1/events?verb=create&sandbox={id}&from=0")).open();
    assert!(narrow.until("\"step\":\"done\"") && !String::from_utf8_lossy(&narrow.text).contains("\"verb\":\"run\""));
    world.daemon.get("/v1/events?from=1000000").assert_fault(400, "invalid_request");
    world.daemon.ask("GET", "/v1/events").header("last-event-id", "x").send().assert_fault(400, "invalid_request");
    world.daemon.get("/v1/events?sandbox=nobody").assert_fault(404, "not_found");

    let told = world.place.cofferdam(["events", "agent", "--from", "0", "--json"]).output().unwrap();
    let lines: Vec<Value> =
        String::from_utf8(told.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 2 && lines.iter().all(|entry| entry["subject"] == id.as_str()), "{lines:?}");
    let page = world.daemon.get("/v1/audit?limit=2").assert_ok();
    let next = page["next"].as_u64().unwrap();
    let rest = world.daemon.get(&format!("/v1/audit?after={next}&limit=1")).assert_ok();
    assert_eq!(rest["entries"][0]["seq"].as_u64(), Some(next + 1));
}

/// Every change is below the top, so that a name which somebody's program left empty would choose them all.
#[test]
fn an_empty_path_chooses_nothing() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    world.exec("agent", "echo new > src/new.txt; echo new > docs/new.md");
    let diff = world.diff("agent");
    for (verb, field, path) in [
        ("approve", "paths", json!("")),
        ("approve", "exact", json!("")),
        ("approve", "paths", json!({ "base64": "" })),
        ("reject", "paths", json!("")),
    ] {
        let fault = world.verb("agent", verb, json!({ "digest": digest(&diff), field: ["src/new.txt", path] }));
        let fault = fault.assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains(field), "{verb}: {fault}");
    }
    for part in ["diff?path=", "diff?path=src&path=", "patch?path", "provenance?path="] {
        let fault = world.daemon.get(&format!("/v1/sandboxes/agent/workspace/{part}"));
        let fault = fault.assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains("path: an empty path"), "{part}: {fault}");
    }
    let socket = world.daemon.socket.to_string_lossy().into_owned();
    let typed = |words: &[&str], server: Option<&str>| {
        let mut command = world.place.cofferdam(words);
        server.map(|server| command.env("COFFERDAM_SERVER", server));
        command.current_dir(&world.place.project).output().unwrap()
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
    assert_eq!(digest(&world.diff("agent")), digest(&diff), "nothing landed, and nothing is gone");
    assert_eq!(world.git(&["status", "--porcelain"]), "");
    // The control: what is named is chosen, and `.` on the command line is all below where one stands.
    let receipt = world.verb("agent", "approve", json!({ "digest": digest(&diff), "paths": ["src"] })).assert_ok();
    assert_eq!(names(&receipt["landed"]), ["src/new.txt"]);
    for server in [None, Some(socket.as_str())] {
        let shown = typed(&["diff", "agent", ".", "--name-only"], server);
        assert_eq!(String::from_utf8_lossy(&shown.stdout), "docs/new.md\n", "{shown:?}");
    }
    let done = typed(&["reject", "agent", "."], Some(&socket));
    assert!(done.status.success(), "{done:?}");
    world.exec("agent", "echo new > docs/new.md");
    let done = typed(&["approve", "agent", ".", "--unseen"], Some(&socket));
    assert!(done.status.success() && world.read("docs/new.md") == "new\n", "{done:?}");
}

/// A guest that goes down step by step has paths that the kernel takes from nobody as a whole. Landing one failed as our own mistake.
#[test]
fn a_path_longer_than_the_kernel_takes_lands_and_goes_back() {
    let world = World::with_repository();
    world.create(json!({ "name": "agent" }));
    let half = "$(printf \"$n/%.0s\" $(seq 12))";
    let deep =
        format!("n=$(printf 'd%.0s' $(seq 200)); mkdir -p {half} top/{half}; echo deep > top/{half}f; mv top {half}");
    world.exec("agent", &format!("echo new > new.txt; {deep}"));
    let ask = |verb: &str, mut body: Value| {
        body["digest"] = json!(digest(&world.diff("agent")));
        world.daemon.post(&format!("/v1/sandboxes/agent/workspace/{verb}"), body)
    };
    let long = |diff: &Value| names(&diff["files"]).into_iter().any(|path| path.len() > 4096);
    assert!(long(&world.diff("agent")), "the control");
    ask("approve", json!({ "all": true })).assert_ok();
    let find = |name: &str| {
        let out = std::process::Command::new("find").arg(&world.place.project).args(["-name", name]).output().unwrap();
        out.stdout.len()
    };
    assert!(find("f") > 4096 && find("new.txt") > 0, "both landed");
    world.daemon.post("/v1/sandboxes/agent/workspace/undo", json!({})).assert_ok();
    assert_eq!((find("f"), find("new.txt")), (0, 0), "and both went back");
    ask("reject", json!({ "all": true })).assert_ok();
    assert!(!long(&world.diff("agent")));
}
