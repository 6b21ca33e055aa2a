//! Peers of a keeper's socket: clients talk only to the process on its card, ids that are no run are refused, and an
//! older keeper is recognised before it gets a request that it would carry out wrongly.

use crate::place::LiveSandbox;
use crate::support::http::Daemon;
use crate::support::{As, Place, binary, either};
use crate::words::{Verbs, text};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn socket(live: &LiveSandbox<'_>) -> PathBuf {
    live.place.state().join("keepers").join(&live.id).join("sock")
}

/// A listener in the keeper's place.
struct Impostor(UnixListener);

impl Impostor {
    fn at(path: &Path) -> Impostor {
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        Impostor(listener)
    }

    /// Number of connections, and the bytes that they sent.
    fn heard(&self) -> (usize, Vec<u8>) {
        let (mut came, mut said) = (0, Vec::new());
        while let Ok((mut stream, _)) = self.0.accept() {
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            came += 1;
            let _ = stream.read_to_end(&mut said); // the peer may have reset the connection
        }
        (came, said)
    }
}

// promise 20
#[test]
fn whoever_listens_is_the_process_on_the_card() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let run = live.detach(&[], "sleep 1000");
        let (sock, aside) = (socket(&live), socket(&live).with_extension("true"));
        assert_eq!(live.inspect()["live"], true, "the control");
        fs::rename(&sock, &aside).unwrap();
        let impostor = Impostor::at(&sock);
        // A signal for a command is never sent to its keeper instead, which would end everything that it keeps.
        for signal in ["USR1", "TERM", "KILL"] {
            let refused = place.verb(&["kill", "-s", signal, &run]);
            assert!(!refused.status.success(), "{who:?}: {signal}: {refused:?}");
        }
        place.verb(&["wait", "--timeout", "100ms", &run]);
        place.verb(&["ps"]);
        assert!(place.json(&["inspect", &live.id])["live"] != true, "{who:?}: an impostor is no keeper");
        let (came, said) = impostor.heard();
        assert!(came > 0, "{who:?}: the control: a client connected");
        assert_eq!(text(&said), "", "{who:?}: and said nothing to it");
        drop(impostor);
        fs::remove_file(&sock).unwrap();
        fs::rename(&aside, &sock).unwrap();
        assert_eq!(live.inspect()["live"], true, "{who:?}");
        assert_eq!(live.sh(&[], "echo true", b"").stdout, b"true\n");
        assert!(place.verb(&["kill", &run]).status.success());
        // A card that names another live process, which does not listen there, counts as no keeper.
        let path = sock.with_file_name("keeper.json");
        let card = fs::read(&path).unwrap();
        let mut other: Value = serde_json::from_slice(&card).unwrap();
        other["pid"] = json!(std::process::id());
        fs::write(&path, other.to_string()).unwrap();
        assert!(live.inspect()["live"] != true, "{who:?}");
        fs::write(&path, card).unwrap();
        assert_eq!(live.inspect()["live"], true, "{who:?}");
    }
}

/// Sends a request to a keeper and returns its answer.
fn ask(stream: &mut UnixStream, question: &Value) -> Value {
    let json = question.to_string().into_bytes();
    let head = [(json.len() as u32).to_le_bytes(), 0u32.to_le_bytes()].concat();
    stream.write_all(&[head, json].concat()).unwrap();
    let mut head = [0; 8];
    match stream.read_exact(&mut head) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Value::Null,
        read => read.unwrap(),
    }
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).unwrap();
    serde_json::from_slice(&answer).unwrap()
}

/// Every path below a directory.
fn names(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        all.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            all.extend(names(&entry.path()));
        }
    }
    all.sort();
    all
}

// promise 20
#[test]
fn what_is_no_run_is_refused_by_its_keeper() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let other = LiveSandbox::new(&place, &[]);
    let foreign = other.detach(&[], "echo theirs");
    assert_eq!(other.outcome(&foreign)["verdict"], "ok");
    let mut stream = UnixStream::connect(socket(&live)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let start = |run: &str| json!({"ask": "start", "run": run, "command": ["touch", "made"], "actor": "tester"});
    let hex = "0123456789abcdef".repeat(2);
    let bad = [
        String::new(),
        ".".into(),
        "..".into(),
        "run_".into(),
        "../../planted".into(),
        format!("../{hex}"),
        format!("run_{hex}/.."),
        format!("run_{hex}/../../../planted"),
        format!("/run_{hex}"),
        format!("run_{hex}\0"),
        format!("run_{hex}\n"),
        format!("run_{}", hex.to_uppercase()),
        format!("run_{}", "0".repeat(31)),
        format!("run_{}", "0".repeat(33)),
        format!("run_{}", "a".repeat(200_000)),
        live.id.clone(),
    ];
    let before = names(&place.state().join("keepers"));
    for run in &bad {
        let shown: String = run.chars().take(60).collect();
        let answer = ask(&mut stream, &start(run));
        assert_eq!(answer["fault"]["error_kind"], "invalid_request", "{shown:?}: {answer}");
        for question in [
            json!({"ask": "wait", "run": run, "timeout_ms": 0}),
            json!({"ask": "signal", "run": run, "signal": 15}),
            json!({"ask": "kill", "run": run}),
            json!({"ask": "input", "run": run}),
            json!({"ask": "resize", "run": run, "rows": 1, "columns": 1}),
        ] {
            let answer = ask(&mut stream, &question);
            assert_eq!(answer["fault"]["error_kind"], "not_found", "{shown:?} {}: {answer}", question["ask"]);
        }
    }
    assert_eq!(names(&place.state().join("keepers")), before, "nothing was made");
    // A run of another sandbox is not found and not overwritten.
    let answer = ask(&mut stream, &json!({"ask": "wait", "run": foreign, "timeout_ms": 0}));
    assert_eq!(answer["fault"]["error_kind"], "not_found", "{answer}");
    let answer = ask(&mut stream, &start(&foreign));
    assert!(answer["fault"].is_object(), "{answer}");
    assert_eq!(other.logs(&[&foreign]).stdout, b"theirs\n");
    assert_eq!(place.json(&["inspect", &other.id])["last_runs"][0]["run"], foreign.as_str());
    place.audit();
    // The control: a new id.
    let mut stream = UnixStream::connect(socket(&live)).unwrap();
    let run = format!("run_{hex}");
    let answer = ask(&mut stream, &start(&run));
    assert_eq!(answer["value"]["run"], run.as_str(), "{answer}");
    assert_eq!(live.outcome(&run)["verdict"], "ok");
    assert!(live.sh(&[], "test -e made", b"").status.success());
}

/// Builds an older keeper: the same binary with one word of its self-description overwritten.
fn older(place: &Place, word: &str) -> PathBuf {
    let path = place.root.join("older");
    // Written by another process: an executable that a child of this one still has open for writing cannot be started.
    let replace = "import os, sys; old, new, word = sys.argv[1], sys.argv[2], sys.argv[3].encode(); bytes = open(old, 'rb').read()
assert word in bytes; open(new, 'wb').write(bytes.replace(word, b'_' * len(word))); os.chmod(new, 0o755)";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", replace]).args([binary(), &path]).arg(word);
    assert!(python.status().unwrap().success());
    path
}

/// Starts this program as a sandbox's keeper.
fn kept_by(place: &Place, program: PathBuf, sandbox: &str) -> Child {
    let mut keeper = place.outside(program);
    let mut keeper = keeper.args(["keep", sandbox, "600000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    keeper.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("value"), "{said}");
    keeper
}

/// An older keeper would start the command and ignore how it is to be watched.
// promise 27
#[test]
fn an_older_keeper_gets_no_command_that_counts_on_being_watched() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let make = json!({"name": "s", "report_reads": true, "ask_timeout_ms": 5000});
    let id = daemon.post("/v1/sandboxes", make).assert_ok()["id"].as_str().unwrap().to_owned();
    let mut keeper = kept_by(&place, older(&place, "heeds_watch"), &id);
    let run = |ask: Value| daemon.post("/v1/sandboxes/s/runs?wait=120s", ask);
    let wishes = [json!({"report_reads": true}), json!({"ask_timeout_ms": 5000})];
    let asks = wishes.map(|mut wish| {
        wish["shell"] = json!("touch begun");
        wish
    });
    for _ in 0..2 {
        run(json!({"shell": "true"})).assert_ok();
        for ask in &asks {
            let fault = run(ask.clone()).assert_fault(501, "unsupported_host");
            assert!(fault["hint"].as_str().unwrap().contains("cofferdam stop"), "{fault}");
        }
    }
    // Clients without a daemon refuse it, too.
    let here = place.cofferdam(["exec", "--json", "--report-reads", "s", "--", "touch", "begun"]).output().unwrap();
    assert_eq!(here.status.code(), Some(125), "{here:?}");
    assert_eq!(run(json!({"shell": "test -e begun"})).assert_ok()["outcome"]["exit"], json!({"code": 1}));
    // The control: a current keeper.
    daemon.ask("POST", "/v1/sandboxes/s/stop?timeout=0s").send().assert_ok();
    keeper.wait().unwrap();
    daemon.ask("POST", "/v1/sandboxes/s/start").send().assert_ok();
    for ask in asks {
        assert_eq!(run(ask).assert_ok()["outcome"]["verdict"], "ok");
    }
}

// promise 20
#[test]
fn an_older_keeper_gets_no_command_with_input() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let id = daemon.post("/v1/sandboxes", json!({"name": "s"})).assert_ok()["id"].as_str().unwrap().to_owned();
    let mut keeper = kept_by(&place, older(&place, "counts_input"), &id);
    let run = |ask: Value| daemon.post("/v1/sandboxes/s/runs?wait=120s", ask);
    let count = || daemon.get("/v1/sandboxes/s/runs").assert_ok()["runs"].as_array().unwrap().len();
    // Requests that it supports are carried out, every time.
    for n in 1..=3 {
        let done = run(json!({"shell": "echo said"})).assert_ok();
        assert_eq!((&done["outcome"]["stdout"], count()), (&json!("said\n"), n), "{done}");
        for more in [json!({"input": true}), json!({"terminal": {"rows": 24, "columns": 80}})] {
            let mut ask = json!({"shell": "touch begun"});
            ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let fault = run(ask).assert_fault(501, "unsupported_host");
            assert!(fault["message"].as_str().unwrap().contains("does not count"), "{fault}");
            assert_eq!(count(), n, "nothing began");
        }
    }
    assert_eq!(run(json!({"shell": "test -e begun"})).assert_ok()["outcome"]["exit"], json!({"code": 1}));
    // The control: a current keeper.
    daemon.ask("POST", "/v1/sandboxes/s/stop?timeout=0s").send().assert_ok();
    keeper.wait().unwrap();
    daemon.ask("POST", "/v1/sandboxes/s/start").send().assert_ok();
    let begun = daemon.post("/v1/sandboxes/s/runs", json!({"shell": "cat", "input": true})).assert_ok();
    let run = begun["run"].as_str().unwrap();
    let input = format!("/v1/runs/{run}/input?eof=true");
    daemon.ask("POST", &input).body("application/octet-stream", b"given").send().assert_ok();
    let done = daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
    assert_eq!(done["outcome"]["stdout"], "given", "{done}");
    daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok();
}
