//! Reports of refused reads and timeouts of questions for runs at a daemon. Flags act as without a daemon, and a run
//! that would not be watched as requested does not start.

use crate::fake::{Fake, whole};
use crate::support::http::Daemon;
use crate::support::{As, Place, either, to_the_end};
use serde_json::{Value, json};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn asked(place: &Place, daemon: &Daemon, args: &[&str]) -> Command {
    let mut command = place.cofferdam(args);
    command.env("COFFERDAM_SERVER", &daemon.socket);
    command
}

/// Printed JSON document and exit status.
fn json_and_code(out: &Output) -> (Value, Option<i32>) {
    let text = String::from_utf8_lossy(&out.stderr);
    let told = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {:?} {text}", out.stdout));
    (told, out.status.code())
}

fn reads_refused(outcome: &Value) -> bool {
    outcome["denials"].as_array().into_iter().flatten().any(|denial| denial["op"] == "fs.read")
}

// promise 27
#[test]
fn refused_reads_of_a_run_are_reported_where_that_is_asked_for() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        place.file("home/project/private", "hush");
        let run = |flags: &[&str], there: bool| {
            let mut command = place.cofferdam(["run", "--json", "--deny-read", "private"]);
            if there {
                command.env("COFFERDAM_SERVER", &daemon.socket);
            }
            json_and_code(&to_the_end(command.args(flags).args(["-c", "cat private || exit 5"]), b""))
        };
        for there in [false, true] {
            let (outcome, code) = run(&[], there);
            assert!(code == Some(5) && !reads_refused(&outcome), "{who:?} {there}: the control: {outcome}");
            let (outcome, code) = run(&["--report-reads"], there);
            assert!(code == Some(5) && reads_refused(&outcome), "{who:?} {there}: {outcome}");
        }
    }
}

// promise 27
#[test]
fn a_command_in_a_sandbox_is_watched_as_the_sandbox_was_made() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        place.file("home/project/private", "hush");
        let deny = ["--deny-read", "private"];
        for (name, flags) in [("plain", &[][..]), ("watched", &["--report-reads", "--ask-timeout", "5s"])] {
            let out = asked(&place, &daemon, &["create", "--name", name]).args(deny).args(flags).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
        let exec = |name: &str, flags: &[&str], there: bool| {
            let mut command = place.cofferdam(["exec", "--json"]);
            if there {
                command.env("COFFERDAM_SERVER", &daemon.socket);
            }
            json_and_code(&to_the_end(command.args(flags).args([name, "-c", "cat private; true"]), b""))
        };
        // Made live by the daemon, so that both clients talk to the same keeper.
        for name in ["plain", "watched"] {
            assert!(asked(&place, &daemon, &["start", "--live", name]).output().unwrap().status.success());
        }
        for there in [true, false] {
            let (outcome, _) = exec("watched", &["--report-reads"], there);
            assert!(reads_refused(&outcome), "{who:?} {there}: {outcome}");
            let (outcome, _) = exec("watched", &[], there);
            assert!(reads_refused(&outcome), "all of its commands are watched: {outcome}");
            let (outcome, code) = exec("plain", &[], there);
            assert!(code == Some(0) && !reads_refused(&outcome), "the control: {outcome}");
            for flags in [&["--report-reads"][..], &["--ask-timeout", "5s"]] {
                let (fault, code) = exec("plain", flags, there);
                assert_eq!((fault["error_kind"].as_str(), code), (Some("conflict"), Some(125)), "{flags:?} {fault}");
                assert!(fault["hint"].as_str().unwrap().contains("cofferdam create"), "{fault}");
            }
            for (flags, wanted) in [(["--ask-timeout", "5s"], 0), (["--ask-timeout", "6s"], 125)] {
                assert_eq!(exec("watched", &flags, there).1, Some(wanted), "{flags:?}");
            }
        }
        let runs = daemon.get("/v1/sandboxes/plain/runs").assert_ok();
        assert_eq!(runs["runs"].as_array().unwrap().len(), 2, "what was refused never began: {runs}");
        let shown = daemon.get("/v1/sandboxes/watched").assert_ok();
        assert_eq!((&shown["report_reads"], &shown["ask_timeout_ms"]), (&json!(true), &json!(5000)), "{shown}");
    }
}

/// Starts a run that raises a question; returns the question's timeout.
fn waits(place: &Place, daemon: &Daemon, flags: &[&str]) -> (u64, Value, Duration) {
    place.file("home/project/.env", "hush");
    let rule = r#"{"version":1,"extends":["default"],"fs":{"rules":[{"action":"ask","path":"$WORKSPACE/.env"}]}}"#;
    let rule = place.file("ask.json", rule);
    let mut run = asked(place, daemon, &["run", "--json", "-p", rule.to_str().unwrap()]);
    let run = run.args(flags).args(["-c", "cat .env || exit 5"]);
    let begun = Instant::now();
    let mut run = run.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let question = loop {
        let (open, _) = json_and_code(&asked(place, daemon, &["questions", "--json"]).output().unwrap());
        if let Some(question) = open["questions"].as_array().and_then(|all| all.first()) {
            break question.clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(60) && run.try_wait().unwrap().is_none(), "no question: {open}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let waits = question["deadline_ms"].as_u64().unwrap() - question["asked_ms"].as_u64().unwrap();
    if waits > 10_000 {
        let at = format!("/v1/questions/{}", question["id"].as_str().unwrap());
        daemon.post(&at, json!({"answer": "allow"})).assert_ok();
    }
    (waits, json_and_code(&run.wait_with_output().unwrap()).0, begun.elapsed())
}

// promise 27
#[test]
fn questions_of_a_run_wait_as_long_as_it_says() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let (usual, outcome, _) = waits(&place, &daemon, &[]);
        assert_eq!((usual, &outcome["stdout"]), (60_000, &json!("hush")), "the control: {outcome}");
        let (longest, outcome, _) = waits(&place, &daemon, &["--ask-timeout", "10m"]);
        assert_eq!((longest, &outcome["stdout"]), (600_000, &json!("hush")), "{outcome}");
        let (shortest, outcome, took) = waits(&place, &daemon, &["--ask-timeout", "1s"]);
        assert_eq!(
            (shortest, &outcome["exit"]["code"]),
            (1_000, &json!(5)),
            "the question was not answered: {outcome}"
        );
        assert!(took < Duration::from_secs(30), "{took:?}");
        // Bad values are refused by the client, as without a daemon, by the flag's name.
        for odd in ["999ms", "601s", "0", "soon"] {
            let run = asked(&place, &daemon, &["run", "--json", "--ask-timeout", odd, "--", "true"]).output().unwrap();
            let (fault, code) = json_and_code(&run);
            assert_eq!((fault["error_kind"].as_str(), code), (Some("invalid_request"), Some(2)), "{odd}: {fault}");
            assert!(fault["message"].as_str().unwrap().contains("--ask-timeout"), "{fault}");
        }
    }
}

// promise 27
#[test]
fn what_cannot_be_is_refused_by_the_name_of_its_field() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({"name": "box", "report_reads": true, "ask_timeout_ms": 1000})).assert_ok();
    daemon.post("/v1/sandboxes", json!({"report_reads": false, "ask_timeout_ms": 600_000})).assert_ok();
    let run = |body: Value| daemon.post("/v1/sandboxes/box/runs?wait=120s", body);
    run(json!({"command": ["true"], "report_reads": true, "ask_timeout_ms": 1000})).assert_ok();
    let huge: Value = serde_json::from_str("18446744073709551616").unwrap();
    let timeouts = [json!(0), json!(999), json!(600_001), json!(u64::MAX), json!(-1), json!(1.5), json!("1s"), huge];
    for (field, values) in [("ask_timeout_ms", &timeouts[..]), ("report_reads", &[json!(1), json!("yes"), Value::Null])]
    {
        for value in values {
            let mut make = json!({"name": "odd"});
            make[field] = value.clone();
            let fault = daemon.post("/v1/sandboxes", make).assert_fault(400, "invalid_request");
            assert!(fault["message"].as_str().unwrap().contains(field), "{field} {value}: {fault}");
            let mut ask = json!({"command": ["true"]});
            ask[field] = value.clone();
            let fault = run(ask).assert_fault(400, "invalid_request");
            assert!(fault["message"].as_str().unwrap().contains(field), "{field} {value}: {fault}");
        }
    }
    run(json!({"command": ["true"], "ask_timeout_ms": 2000})).assert_fault(409, "conflict");
    daemon.post("/v1/sandboxes", json!({"direct": true})).assert_fault(400, "invalid_request");
    run(json!({"command": ["true"], "direct": true})).assert_fault(400, "invalid_request");
    daemon.get("/v1/sandboxes/odd").assert_fault(404, "not_found");
    assert_eq!(daemon.get("/v1/sandboxes/box/runs").assert_ok()["runs"].as_array().unwrap().len(), 1);
}

/// A repeated request under one key is the same run; one that asks for another way of watching is a conflict.
#[test]
fn a_key_stands_for_how_a_run_is_watched_too() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let make = |body: Value| daemon.ask("POST", "/v1/sandboxes").header("Idempotency-Key", "k").json(body).send();
    let made = make(json!({"report_reads": true})).assert_ok();
    assert_eq!(make(json!({"report_reads": true})).assert_ok()["id"], made["id"]);
    assert!(make(json!({})).assert_fault(409, "conflict")["message"].as_str().unwrap().contains("report_reads"));
    make(json!({"report_reads": true, "ask_timeout_ms": 1000})).assert_fault(409, "conflict");
    let at = format!("/v1/sandboxes/{}/runs", made["id"].as_str().unwrap());
    let run = |body: Value| daemon.ask("POST", &at).header("Idempotency-Key", "r").json(body).send();
    let begun = run(json!({"command": ["true"]})).assert_ok();
    assert_eq!(run(json!({"command": ["true"], "report_reads": false})).assert_ok()["run"], begun["run"]);
    run(json!({"command": ["true"], "report_reads": true})).assert_fault(409, "conflict");
}

/// A daemon from before capabilities announces none, whatever it would answer to the verb itself: the client does not
/// send the verb.
// promise 27
#[test]
fn an_older_daemon_is_told_as_such_and_nothing_is_run() {
    let place = Place::new(As::User);
    let fake = Fake::start(place.root.join("old.sock"));
    place.own(&fake.socket);
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let sees = seen.clone();
    let announced: Arc<Mutex<Option<Value>>> = Arc::default();
    let announces = announced.clone();
    fake.respond_with(move |asked, out| {
        sees.lock().unwrap().push(asked.to_owned());
        if asked == "GET /v1/health" {
            let mut health = json!({"protocol_version": 1, "success": true, "status": "ok", "version": "0.1.0"});
            if let Some(capabilities) = &*announces.lock().unwrap() {
                health["capabilities"] = capabilities.clone();
            }
            return out.write_all(&whole("200 OK", "application/json", health.to_string().as_bytes()));
        }
        let fault = json!({"protocol_version": 1, "success": false, "error_kind": "conflict", "message": "asked for",
                           "retry": "never", "phase": "admission", "request_id": "req_1"});
        out.write_all(&whole("409 Conflict", "application/json", fault.to_string().as_bytes()))
    });
    let run = |flag| ["run", "--json", flag, "--", "touch", "made"];
    let exec = ["exec", "--json", "--report-reads", "box", "touch", "made"];
    let asks = [
        ("--report-reads", run("--report-reads"), "POST /v1/sandboxes"),
        ("--ask-timeout", run("--ask-timeout=5s"), "POST /v1/sandboxes"),
        ("--explain", run("--explain"), "POST /v1/runs/explain"),
        ("--report-reads", exec, "POST /v1/sandboxes/box/runs"),
    ];
    let ask = |args: [&str; 6]| {
        seen.lock().unwrap().clear();
        let (fault, code) =
            json_and_code(&place.cofferdam(args).env("COFFERDAM_SERVER", &fake.socket).output().unwrap());
        (fault, code, seen.lock().unwrap().clone())
    };
    for (flag, args, _) in asks {
        // No list, an empty list, and unknown capabilities.
        for capabilities in [None, Some(json!([])), Some(json!(["of_another_version"]))] {
            *announced.lock().unwrap() = capabilities;
            let (fault, code, seen) = ask(args);
            assert_eq!((fault["error_kind"].as_str(), code), (Some("unsupported_host"), Some(125)), "{fault}");
            let message = fault["message"].as_str().unwrap();
            assert!(message.contains(flag) && message.contains("older") && fault["hint"].is_string(), "{fault}");
            assert_eq!(seen, ["GET /v1/health"], "nothing else was asked for");
        }
    }
    *announced.lock().unwrap() = Some(json!(["report_reads", "ask_timeout", "explain_run", "of_another_version"]));
    for (_, args, verb) in asks {
        let (fault, _, seen) = ask(args);
        assert_eq!(fault["error_kind"], "conflict", "the control: {fault}");
        assert_eq!(seen, ["GET /v1/health", verb], "asked once what it can do");
    }
    assert!(!place.project.join("made").exists());
}
