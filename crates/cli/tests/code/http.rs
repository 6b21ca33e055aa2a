//! Code over HTTP: a stream of events or one document, contexts, tenants, and a daemon that is killed during a call.

use crate::fixture::CodeFixture;
use crate::support::As;
use crate::support::http::Daemon;
use crate::support::left::soon;
use crate::support::sse::events;
use crate::support::{either, words::Verbs};
use serde_json::{Value, json};

// promise 29
#[test]
fn a_call_is_a_stream_in_the_order_of_writing_or_one_document() {
    for who in either() {
        let f = CodeFixture::new(who);
        let daemon = Daemon::start(&f.place);
        let code = "import sys, os\nfor n in range(3):\n    print('out', n); print('err', n, file=sys.stderr)\nos.write(1, b'raw\\n')\ndisplay(7)\n6 * 7";
        let request = json!({"code": code});
        let ask =
            daemon.ask("POST", "/v1/sandboxes/s/code").json(request.clone()).header("accept", "text/event-stream");
        let seen = events(&ask.open().rest());
        let names: Vec<&str> = seen.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(
            (names[0], names[names.len() - 3..].to_vec()),
            ("started", vec!["display", "result", "end"]),
            "{seen:#?}"
        );
        let written: String = seen.iter().filter_map(|event| event.data["text"].as_str()).collect();
        assert_eq!(written, "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\nraw\n");
        assert_eq!(seen.last().unwrap().data["verdict"], "ok");
        let whole = daemon.post("/v1/sandboxes/s/code", request).assert_ok();
        assert_eq!((&whole["protocol_version"], &whole["stdout"]), (&json!(1), &json!("out 0\nout 1\nout 2\nraw\n")));
        assert_eq!(whole["results"][1], json!({"is_result": true, "data": {"text/plain": "42"}}));
        assert_eq!(whole["outcome"]["execution_count"], 2);
        // A failure is an answer, not a status.
        let failed = daemon.post("/v1/sandboxes/s/code", json!({"code": "1/0"})).assert_ok();
        assert_eq!(
            (&failed["error"]["name"], &failed["outcome"]["verdict"]),
            (&json!("ZeroDivisionError"), &json!("failed"))
        );
    }
}

// promise 29
#[test]
fn bad_requests_name_their_field() {
    let f = CodeFixture::new(As::User);
    let daemon = Daemon::start(&f.place);
    let bad = |body: Value, status, kind: &str| daemon.post("/v1/sandboxes/s/code", body).assert_fault(status, kind);
    bad(json!({"code": "1", "language": "cobol"}), 400, "invalid_request");
    bad(json!({"code": 1}), 400, "invalid_request");
    bad(json!({"code": "1", "langauge": "python"}), 400, "invalid_request");
    bad(json!({"code": "1", "limits": {"max_memory_mb": 64}}), 501, "unsupported_limit");
    bad(json!({"code": "1", "queue_ms": 600_001}), 400, "invalid_request");
    bad(json!({"code": "1", "context": "../x"}), 400, "invalid_request");
    daemon.post("/v1/sandboxes/gone/code", json!({"code": "1"})).assert_fault(404, "not_found");
    daemon
        .ask("POST", "/v1/sandboxes/s/code")
        .body("application/json", b"{\"code\": \"\xff\"}")
        .send()
        .assert_fault(400, "invalid_request");
    daemon.post("/v1/sandboxes/s/contexts/none/interrupt", json!({})).assert_fault(404, "not_found");
    daemon.post("/v1/sandboxes/s/contexts/none/resume", json!({})).assert_fault(404, "not_found");
    assert_eq!(daemon.post("/v1/sandboxes/s/code", json!({"code": "1"})).assert_ok()["outcome"]["verdict"], "ok");
}

// promise 29
#[test]
fn contexts_over_http() {
    let f = CodeFixture::new(As::User);
    let daemon = Daemon::start(&f.place);
    let made = daemon.post("/v1/sandboxes/s/contexts", json!({"name": "a", "env": {"MODE": "x"}}));
    assert_eq!((made.status, &made.json()["state"]), (201, &json!("idle")));
    daemon.post("/v1/sandboxes/s/contexts", json!({"name": "a"})).assert_fault(409, "conflict");
    let value = |code: &str| daemon.post("/v1/sandboxes/s/code", json!({"code": code, "context": "a"})).assert_ok();
    assert_eq!(value("import os; os.environ['MODE']")["results"][0]["data"]["text/plain"], "'x'");
    let listed = daemon.get("/v1/sandboxes/s/contexts").assert_ok();
    let rings = &listed["contexts"][0]["rings"];
    assert!(
        rings["from_worker"]["frames"].as_u64() > Some(1) && rings["capacity_bytes"].as_u64() > Some(0),
        "{listed:#}"
    );
    let whole = daemon.post("/v1/sandboxes/s/contexts/a/check", json!({"code": "def f():"})).assert_ok();
    assert_eq!(whole["status"], "incomplete");
    daemon.post("/v1/sandboxes/s/contexts/a/restart", json!({})).assert_ok();
    assert_eq!(value("os")["error"]["name"], "NameError");
    let text = daemon.ask("GET", "/metrics").send().text();
    let line = "cofferdam_code_calls_total{language=\"python\",verdict=\"ok\"} 1";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("cofferdam_code_output_bytes_total{language=\"python\"} "), "{text}");
    let top = f.place.json(&["top"]);
    let code = &top["sandboxes"][0]["code"];
    assert!(code["contexts"] == 1 && code["busy"] == 0 && code["messages"].as_u64() > Some(1), "{top:#}");
    let table = String::from_utf8(f.place.verb(&["top"]).stdout).unwrap();
    assert!(table.contains("CODE") && table.contains("1, 0 busy, "), "{table}");
    daemon.ask("DELETE", "/v1/sandboxes/s/contexts/a").send().assert_ok();
    assert_eq!(daemon.get("/v1/sandboxes/s/contexts").assert_ok()["contexts"], json!([]));
}

// promise 29
#[test]
fn a_client_that_leaves_cancels_its_call() {
    let f = CodeFixture::new(As::User);
    let daemon = Daemon::start(&f.place);
    daemon.post("/v1/sandboxes/s/code", json!({"code": "kept = 5"})).assert_ok();
    let ask = daemon
        .ask("POST", "/v1/sandboxes/s/code")
        .json(json!({"code": "print('begun', flush=True)\nwhile True: pass"}));
    let mut stream = ask.header("accept", "text/event-stream").open();
    assert!(stream.until("begun"));
    drop(stream);
    let after =
        daemon.post("/v1/sandboxes/s/code", json!({"code": "kept", "limits": {"max_wall_ms": 20000}})).assert_ok();
    assert_eq!(after["results"][0]["data"]["text/plain"], "5", "{after:#}");
}

// promise 29
#[test]
fn a_killed_daemon_loses_nothing_of_a_call() {
    let f = CodeFixture::new(As::User);
    let mut daemon = Daemon::start(&f.place);
    // More than the rings hold: the interpreter waits until there is a reader again.
    let code = "print('begun', flush=True)\nkept = 5\nfor n in range(300000): print(f'{n:09}')\n'end'";
    let ask = daemon.ask("POST", "/v1/sandboxes/s/code").json(json!({"code": code}));
    let mut stream = ask.header("accept", "text/event-stream").open();
    assert!(stream.until("begun"));
    daemon.signal("KILL");
    daemon.ended();
    let before = events(&stream.rest());
    drop(daemon);
    let daemon = Daemon::start(&f.place);
    let resumed = daemon
        .ask("POST", "/v1/sandboxes/s/contexts/python/resume")
        .json(json!({}))
        .header("accept", "text/event-stream");
    let after = events(&resumed.open().rest());
    assert_eq!(
        (after[0].name.as_str(), &after.last().unwrap().data["verdict"]),
        ("started", &json!("ok")),
        "{:?}",
        after.last()
    );
    let value = after.iter().find(|event| event.name == "result").unwrap();
    assert_eq!(value.data["data"]["text/plain"], "'end'");
    // What the old daemon had taken and not delivered is gone; what comes after it is whole, in order and to the end.
    let text: String =
        after.iter().filter(|event| event.name == "stdout").filter_map(|event| event.data["text"].as_str()).collect();
    let lines: Vec<&str> = text.lines().collect();
    let whole: Vec<u32> = lines[1..].iter().map(|line| line.parse().unwrap()).collect();
    assert!(
        whole.windows(2).all(|pair| pair[1] == pair[0] + 1) && whole.last() == Some(&299_999),
        "{} lines",
        whole.len()
    );
    assert!(!before.is_empty());
    let kept = daemon.post("/v1/sandboxes/s/code", json!({"code": "kept"})).assert_ok();
    assert_eq!(kept["results"][0]["data"]["text/plain"], "5", "the interpreter outlives the daemon");
}

// promise 29
#[test]
fn a_tenant_reaches_its_own_contexts_alone() {
    let f = CodeFixture::new(As::Root);
    let daemon = Daemon::start_tcp(&f.place);
    daemon.post("/v1/sandboxes/s/code", json!({"code": "secret = 1"})).assert_ok();
    let other = daemon.token(json!({"name": "a", "tenant": "other", "scopes": ["agent"]}));
    let reviewer = daemon.token(json!({"name": "r", "tenant": "other", "scopes": ["reviewer"]}));
    let ask = |token: &str, method: &str, path: &str, body: Value| {
        daemon.ask(method, path).over_tcp().bearer(token).json(body).send()
    };
    ask(&other, "POST", "/v1/sandboxes/s/code", json!({"code": "secret"})).assert_fault(404, "not_found");
    ask(&other, "POST", "/v1/sandboxes/s/contexts/python/interrupt", json!({})).assert_fault(404, "not_found");
    ask(&other, "POST", "/v1/sandboxes/s/contexts/python/resume", json!({})).assert_fault(404, "not_found");
    let removed = daemon.ask("DELETE", "/v1/sandboxes/s/contexts/python").over_tcp().bearer(&other).send();
    removed.assert_fault(404, "not_found");
    let made = ask(&other, "POST", "/v1/sandboxes", json!({"name": "s"})).assert_ok();
    assert!(made["id"].is_string());
    let own = ask(&other, "POST", "/v1/sandboxes/s/code", json!({"code": "secret"})).assert_ok();
    assert_eq!(own["error"]["name"], "NameError", "a name is each tenant's own: {own:#}");
    ask(&reviewer, "POST", "/v1/sandboxes/s/code", json!({"code": "1"})).assert_fault(403, "policy_denied");
}

// promise 29
#[test]
fn a_daemon_that_stops_says_that_the_call_goes_on() {
    let f = CodeFixture::new(As::User);
    let mut daemon = Daemon::start(&f.place);
    let ask = daemon
        .ask("POST", "/v1/sandboxes/s/code")
        .json(json!({"code": "import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('on')\n'end'"}));
    let mut stream = ask.header("accept", "text/event-stream").open();
    assert!(stream.until("begun"));
    daemon.signal("TERM");
    daemon.ended();
    drop(daemon);
    let daemon = Daemon::start(&f.place);
    assert!(soon(|| f.place.json(&["context", "ls", "--sandbox", "s"])["contexts"][0]["state"].is_string()));
    let resumed = daemon.post("/v1/sandboxes/s/contexts/python/resume", json!({}));
    // The drain may have waited for the call's end.
    if resumed.status == 200 {
        let rest = resumed.json();
        assert_eq!(rest["outcome"]["verdict"], "ok", "{rest:#}");
    }
}

// promise 29
#[test]
fn a_warm_sandbox_has_its_interpreter_when_it_is_handed_out() {
    let place = crate::support::Place::new(As::Root);
    let daemon = Daemon::start(&place);
    let cli = |words: &[&str]| assert!(place.verb(words).status.success(), "{words:?}");
    cli(&["create", "--name", "first", "--policy", "workspace-write"]);
    cli(&["template", "create", "deps", "--from", "first"]);
    let request = json!({"keep": 1, "languages": ["python", "python"]});
    let set = daemon.ask("PUT", "/v1/templates/deps/warm").json(request).send().assert_ok();
    assert_eq!(set["languages"], json!(["python"]), "{set:#}");
    assert!(soon(|| daemon.get("/v1/templates/deps").assert_ok()["warm"]["ready"] == 1));
    let made = daemon.post("/v1/sandboxes", json!({"template": "deps", "name": "w"})).json();
    assert_eq!(made["warm"], true, "{made:#}");
    let contexts = || daemon.get("/v1/sandboxes/w/contexts").assert_ok()["contexts"].clone();
    assert!(soon(|| contexts()[0]["name"] == "python"), "{:#}", contexts());
    assert_eq!(contexts()[0]["calls"], 0, "nothing has run in it");
    let run = contexts()[0]["run"].clone();
    let first = daemon.post("/v1/sandboxes/w/code", json!({"code": "6 * 7"})).assert_ok();
    assert_eq!(first["results"][0]["data"]["text/plain"], "42");
    assert_eq!(contexts()[0]["run"], run, "the first call has that interpreter");
    // The control: a sandbox that is made as usual has none before its first call.
    cli(&["create", "--name", "usual"]);
    assert_eq!(daemon.get("/v1/sandboxes/usual/contexts").assert_ok()["contexts"], json!([]));
    let bad = json!({"keep": 1, "languages": ["cobol"]});
    daemon.ask("PUT", "/v1/templates/deps/warm").json(bad).send().assert_fault(400, "invalid_request");
}
