//! Corner cases of the API that clients hit: output that is not UTF-8, long waits, names, file modes, and empty
//! bodies.

use crate::support::http::Daemon;
use crate::support::{As, BOTH, Place, to_the_end};
use serde_json::{Value, json};
use std::fs;

struct SandboxFixture {
    daemon: Daemon,
    place: Place,
}

impl SandboxFixture {
    fn new(who: As) -> SandboxFixture {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        daemon.post("/v1/sandboxes", json!({"name": "s", "policies": ["workspace-write"]})).assert_ok();
        SandboxFixture { daemon, place }
    }
}

/// `printf '\377\376\0'`, and text that is not ASCII.
const SAYS: &str = r"printf '\377\376\0'; echo grün >&2";

#[track_caller]
fn is_exact(outcome: &Value) {
    assert_eq!((&outcome["stdout"], &outcome["stdout_encoding"]), (&json!("//4A"), &json!("base64")), "{outcome}");
    assert_eq!((&outcome["stderr"], &outcome["stderr_encoding"]), (&json!("grün\n"), &json!("utf-8")), "{outcome}");
    assert_eq!(outcome["truncated"], json!({"stdout": 0, "stderr": 0}));
}

#[test]
fn output_is_exact_on_every_door() {
    for who in BOTH {
        let w = SandboxFixture::new(who);
        let run = w.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({ "shell": SAYS })).assert_ok();
        is_exact(&run["outcome"]);
        let again = w.daemon.get(&format!("/v1/runs/{}?wait=0s", run["run"].as_str().unwrap())).assert_ok();
        is_exact(&again["outcome"]);
        // The binary without a daemon, in a live sandbox and outside one; and as a client.
        let exec = to_the_end(&mut w.place.cofferdam(["exec", "s", "--json", "-c", SAYS]), b"");
        is_exact(&serde_json::from_slice(&exec.stdout).unwrap());
        let alone = to_the_end(w.place.cofferdam(["run", "--json", "-c", SAYS]).current_dir(&w.place.project), b"");
        is_exact(&serde_json::from_slice(&alone.stdout).unwrap());
        if who == As::Root {
            let server = w.daemon.socket.to_str().unwrap();
            let far = to_the_end(&mut w.place.cofferdam(["exec", "--server", server, "s", "--json", "-c", SAYS]), b"");
            is_exact(&serde_json::from_slice(&far.stdout).unwrap());
        }
    }
}

#[test]
fn a_long_wait_is_waited_or_refused_and_never_cut() {
    let w = SandboxFixture::new(As::User);
    let wait = |time: &str| w.daemon.post(&format!("/v1/sandboxes/s/runs?wait={time}"), json!({"shell": "echo here"}));
    for good in ["120s", "10m", "600000ms"] {
        assert_eq!(wait(good).assert_ok()["outcome"]["stdout"], "here\n", "{good}");
    }
    let run = wait("10m").assert_ok()["run"].as_str().unwrap().to_owned();
    let routes = ["/v1/sandboxes/s/runs", &format!("/v1/runs/{run}"), "/v1/sandboxes/s", "/v1/sandboxes/s/questions"];
    for (at, route) in routes.iter().enumerate() {
        let ask = w.daemon.ask(if at == 0 { "POST" } else { "GET" }, &format!("{route}?wait=601s"));
        let ask = if at == 0 { ask.json(json!({"shell": "true"})) } else { ask };
        let fault = ask.send().assert_fault(400, "invalid_request");
        let message = fault["message"].as_str().unwrap();
        assert!(message.contains("wait") && message.contains("601s") && message.contains("10m"), "{route}: {fault}");
    }
}

#[test]
fn names_can_stand_in_an_address() {
    let w = SandboxFixture::new(As::User);
    w.daemon.post("/v1/sandboxes/s/snapshots", json!({"name": "kept"})).assert_ok();
    let good = format!("a.b_c-2{}", "x".repeat(57));
    for good in [good.as_str(), "grün", "2"] {
        w.daemon.post("/v1/sandboxes", json!({ "name": good })).assert_ok();
        let path = good.replace('ü', "%C3%BC");
        assert_eq!(w.daemon.get(&format!("/v1/sandboxes/{path}")).assert_ok()["name"], good);
    }
    let snapshot = |name: &str| w.daemon.post("/v1/sandboxes/s/snapshots", json!({ "name": name }));
    snapshot("v1.2").assert_ok();
    for bad in [".", "..", "a/b", "%2f", "a%2fb", "a\nb", "-f", "_x", ".x", "", "a b", "sbx_1", &format!("{good}x")] {
        for answer in [
            w.daemon.post("/v1/sandboxes", json!({ "name": bad })),
            w.daemon.ask("PATCH", "/v1/sandboxes/s").json(json!({ "name": bad })).send(),
            snapshot(bad),
            w.daemon.post("/v1/sandboxes/s/fork", json!({ "name": bad })),
            w.daemon.post("/v1/templates", json!({ "name": bad, "from": "s" })),
            w.daemon.post("/v1/tokens", json!({ "name": bad, "scopes": ["agent"] })),
        ] {
            let fault = answer.assert_fault(400, "invalid_request");
            assert!(fault["message"].as_str().unwrap().contains("name"), "{bad:?}: {fault}");
        }
        let tenant = json!({ "name": "t", "tenant": bad, "scopes": ["agent"] });
        if bad != "_x" && bad != "sbx_1" {
            w.daemon.post("/v1/tokens", tenant).assert_fault(400, "invalid_request");
        }
    }
}

#[test]
fn modes_are_octal_text_everywhere() {
    let w = SandboxFixture::new(As::User);
    let at = |verb: &str| format!("/v1/sandboxes/s/files/{verb}");
    let put = |mode: &str| {
        let ask = w.daemon.ask("PUT", &format!("{}?path=f{mode}", at("content")));
        ask.body("application/octet-stream", b"x").send()
    };
    assert_eq!(put("&mode=640").assert_ok()["mode"], "640");
    assert_eq!(put("&mode=0755").assert_ok()["mode"], "755");
    put("&mode=9").assert_fault(400, "invalid_request");
    put("&mode=493x").assert_fault(400, "invalid_request");
    let chmod = |mode: Value| w.daemon.post(&at("chmod"), json!({ "path": "f", "mode": mode }));
    assert_eq!(chmod(json!("600")).assert_ok()["mode"], "600");
    let made = w.daemon.post(&at("mkdir"), json!({"path": "d", "mode": "0750"})).assert_ok();
    assert_eq!(made["mode"], "750");
    // JSON numbers are refused: they could be meant as octal or decimal.
    for number in [json!(493), json!(755), json!(0), json!(-1), json!(6.5)] {
        let fault = chmod(number.clone()).assert_fault(400, "invalid_request");
        let message = fault["message"].as_str().unwrap();
        assert!(message.contains("mode") && message.contains("octal digits as text"), "{number}: {fault}");
    }
    let fault = chmod(json!("4755")).assert_fault(400, "invalid_request");
    assert!(fault["message"].as_str().unwrap().contains("4755"), "{fault}");
    let listed = w.daemon.get(&format!("{}?path=.", at("list"))).assert_ok();
    let modes: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|entry| entry["mode"].clone()).collect();
    assert_eq!(modes, [json!("750"), json!("600")], "{listed}");
    // The diff uses the same notation.
    let diff = w.daemon.get("/v1/sandboxes/s/workspace/diff").assert_ok().to_string();
    assert!(diff.contains(r#""mode":"600""#), "{diff}");
}

#[test]
fn a_body_that_says_nothing_is_none() {
    let w = SandboxFixture::new(As::User);
    let post = |verb: &str| w.daemon.ask("POST", &format!("/v1/sandboxes/s/{verb}"));
    for verb in ["start", "stop", "start", "resume"] {
        post(verb).send().assert_ok();
        post(verb).json(json!({})).send().assert_ok();
        post(verb).bare(b"{}").send().assert_ok();
        post(verb).bare(b" {\n} ").send().assert_ok();
    }
    let run = w.daemon.post("/v1/sandboxes/s/runs", json!({"shell": "sleep 60"})).assert_ok();
    let kill = format!("/v1/runs/{}/kill", run["run"].as_str().unwrap());
    w.daemon.ask("POST", &kill).json(json!({})).send().assert_ok();
    // Unknown fields are refused by name, and so are bodies that are not a JSON object.
    let fault = post("start").json(json!({"live": true})).send().assert_fault(400, "invalid_request");
    assert!(fault["message"].as_str().unwrap().contains("\"live\""), "{fault}");
    for odd in [&b"[]"[..], b"null", b"{", b"x", b"{}{}"] {
        post("start").body("application/json", odd).send().assert_fault(400, "invalid_request");
    }
    post("start").bare(format!("{{{}}}", " ".repeat(2000)).as_bytes()).send().assert_fault(400, "invalid_request");
    // Body types that an HTML form can send are refused.
    for sort in ["text/plain", "application/x-www-form-urlencoded"] {
        assert_eq!(post("start").body(sort, b"{}").send().status, 415, "{sort}");
    }
    assert_eq!(w.daemon.ask("GET", "/v1/sandboxes").bare(b"{}").send().status, 415);
    // Raw bytes need no content type.
    let put = w.daemon.ask("PUT", "/v1/sandboxes/s/files/content?path=bytes").bare(b"\xff{}");
    assert_eq!(put.send().assert_ok()["size"], 3);
    assert_eq!(w.daemon.get("/v1/sandboxes/s/files/content?path=bytes").body, b"\xff{}");
    let put = w.daemon.ask("PUT", "/v1/sandboxes/s/files/content?path=coded").header("content-encoding", "gzip");
    assert_eq!(put.bare(b"x").send().status, 415);
    let put = w.daemon.ask("PUT", "/v1/sandboxes/s/files/content?path=form").body("text/plain", b"x");
    assert_eq!(put.send().status, 415);
    assert!(!fs::exists(w.place.project.join("form")).unwrap());
}
