//! One request for a command in a sandbox of its own; input that comes with a command; the last part of what a command
//! has said so far.

use crate::runs::RunsFixture;
use crate::support::http::Daemon;
use crate::support::left::soon;
use crate::support::{As, Place, either};
use crate::words::Verbs;
use serde_json::{Value, json};

fn sandboxes(daemon: &Daemon) -> Vec<Value> {
    daemon.get("/v1/sandboxes").assert_ok()["sandboxes"].as_array().unwrap().clone()
}

#[test]
fn one_request_runs_a_command_and_leaves_nothing() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let ask = json!({"shell": "cat; echo $X > made; echo err >&2; exit 3", "env": {"X": "1"}, "stdin": "grün\n"});
        let done = daemon.post("/v1/run", ask.clone()).assert_ok();
        let outcome = &done["outcome"];
        assert_eq!((&done["status"], &done["kept"], &outcome["verdict"]), (&json!(3), &json!(false), &json!("failed")));
        assert_eq!((&outcome["stdout"], &outcome["stderr"]), (&json!("grün\n"), &json!("err\n")), "{done}");
        assert_eq!((&outcome["changes"]["added"], &outcome["stdout_encoding"]), (&json!(1), &json!("utf-8")), "{done}");
        assert_eq!(sandboxes(&daemon), [] as [Value; 0]);
        assert!(place.layers().is_empty(), "{:?}", place.layers());
        // Bytes that are no text arrive and come back as they are.
        let ask = json!({"command": ["cat"], "stdin": {"base64": "/wD+"}, "keep": true, "sandbox": {"name": "kept"}});
        let done = daemon.post("/v1/run", ask).assert_ok();
        assert_eq!(
            (&done["outcome"]["stdout"], &done["outcome"]["stdout_encoding"], &done["kept"]),
            (&json!("/wD+"), &json!("base64"), &json!(true))
        );
        assert_eq!(daemon.get("/v1/sandboxes/kept").assert_ok()["id"], done["sandbox"]);
        daemon.ask("DELETE", "/v1/sandboxes/kept?force=true&timeout=0s").send().assert_ok();
        // A limit ends it with what it said before.
        let ask = json!({"shell": "echo said; sleep 600", "limits": {"max_wall_ms": 2000}});
        let outcome = daemon.post("/v1/run", ask).assert_ok()["outcome"].clone();
        assert_eq!((&outcome["limit_kind"], &outcome["stdout"]), (&json!("wall_ms"), &json!("said\n")), "{outcome}");
        assert_eq!(sandboxes(&daemon), [] as [Value; 0]);
    }
}

#[test]
fn what_cannot_be_run_once_is_refused_before_a_sandbox_is_made() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    for (bad, what) in [
        (json!({}), "command"),
        (json!({"command": ["true"], "limits": {"max_wall_ms": 600_001}}), "limits.max_wall_ms"),
        (json!({"command": ["true"], "stdin": {"base64": "?"}}), "stdin"),
        (json!({"command": ["true"], "stdin": 1}), "stdin"),
        (json!({"command": ["true"], "sandbox": {"colour": "red"}}), "colour"),
        (json!({"command": ["true"], "sandbox": {"dir": "relative"}}), "dir"),
    ] {
        let fault = daemon.post("/v1/run", bad).assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains(what), "{fault}");
    }
    daemon.post("/v1/run", json!({"command": ["no-such-program"]})).assert_fault(404, "not_found");
    assert_eq!(sandboxes(&daemon), [] as [Value; 0]);
    assert!(place.layers().is_empty());
    // Under a key it runs once; what it said is gone with its sandbox.
    let keyed =
        |text: &str| daemon.ask("POST", "/v1/run").header("idempotency-key", "one").json(json!({"shell": text})).send();
    keyed("echo a").assert_ok();
    keyed("echo a").assert_fault(409, "conflict");
    keyed("echo b").assert_fault(409, "conflict");
}

#[test]
fn a_client_that_leaves_takes_its_sandbox_along() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let ask = daemon.ask("POST", "/v1/run").json(json!({"shell": "echo begun; sleep 600"}));
    let open = ask.open();
    assert!(soon(|| !daemon.get("/v1/runs?running=true").assert_ok()["runs"].as_array().unwrap().is_empty()));
    drop(open);
    assert!(soon(|| sandboxes(&daemon).is_empty() && place.layers().is_empty()), "{:?}", sandboxes(&daemon));
}

#[test]
fn input_comes_with_a_command_and_what_it_has_said_can_be_seen() {
    let w = RunsFixture::new(As::User);
    let big = "x".repeat(1 << 19);
    let ask = json!({"shell": "wc -c", "stdin": big});
    let done = w.daemon.post("/v1/sandboxes/s/runs?wait=120s", ask).assert_ok();
    assert_eq!(done["outcome"]["stdout"], "524288\n", "{done}");
    // With `input` more can follow.
    let run = w.begin(json!({"command": ["cat"], "stdin": "first ", "input": true}));
    let at = format!("/v1/runs/{run}");
    assert!(
        soon(|| w.daemon.get(&at).assert_ok()["tail"]["stdout"] == "first "),
        "it runs: {}",
        w.daemon.get(&at).text()
    );
    let rest = w.daemon.ask("POST", &format!("{at}/input?eof=true")).body("application/octet-stream", b"second");
    rest.send().assert_ok();
    assert!(soon(|| w.daemon.get(&at).assert_ok()["running"] == false));
    let done = w.daemon.get(&at).assert_ok();
    assert_eq!((&done["outcome"]["stdout"], &done["tail"]), (&json!("first second"), &Value::Null), "{done}");
    // A command that does not read its input ends all the same.
    let done = w.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({"command": ["true"], "stdin": big})).assert_ok();
    assert_eq!(done["outcome"]["verdict"], "ok", "{done}");
    let run = w.begin(json!({"shell": "head -c 100000 /dev/zero | tr '\\0' y; echo end; sleep 600"}));
    let at = format!("/v1/runs/{run}");
    let tail = || w.daemon.get(&at).assert_ok()["tail"].clone();
    assert!(soon(|| tail()["stdout"].as_str().is_some_and(|text| text.ends_with("yend\n"))), "{}", tail());
    assert!(tail()["stdout"].as_str().unwrap().len() <= 64 << 10 && tail()["cut"] == true);
    w.daemon.ask("DELETE", &at).send().assert_ok();
}
