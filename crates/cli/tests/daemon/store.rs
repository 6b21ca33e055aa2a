//! The store is locked, missing, damaged, unreadable or of another version, under a running daemon and under one that
//! starts. Requests are refused with a hint, readiness is false, and everything works again once the store does.

use crate::support::family::first_of;
use crate::support::http::Daemon;
use crate::support::left::soon;
use crate::support::{As, Place, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct StoreFixture {
    place: Place,
    daemon: Daemon,
    token: String,
}

impl StoreFixture {
    fn new() -> StoreFixture {
        let place = Place::new(As::User);
        let daemon = Daemon::start_tcp(&place);
        let token = daemon.operator_token();
        daemon.post("/v1/sandboxes", json!({ "name": "kept" })).assert_ok();
        StoreFixture { place, daemon, token }
    }

    /// Request over TCP, so that the token must be looked up.
    fn get(&self, path: &str) -> crate::support::http::Answer {
        self.daemon.ask("GET", path).over_tcp().bearer(&self.token).send()
    }

    /// Requests fail with the reason, and the daemon stays alive.
    #[track_caller]
    fn is_down(&self, status: u16, kind: &str, says: &str) {
        self.daemon.ask("GET", "/v1/health/live").over_tcp().send().assert_ok();
        for answer in [
            self.daemon.ask("GET", "/v1/health/ready").over_tcp().send(),
            self.get("/v1/sandboxes"),
            self.daemon.ask("POST", "/v1/sandboxes").over_tcp().bearer(&self.token).json(json!({})).send(),
        ] {
            let fault = answer.assert_fault(status, kind);
            assert!(fault["message"].as_str().unwrap().contains(says), "{fault}");
        }
    }

    #[track_caller]
    fn is_up(&self) {
        self.daemon.ask("GET", "/v1/health/ready").over_tcp().send().assert_ok();
        let names = self.get("/v1/sandboxes").assert_ok();
        assert!(names["sandboxes"].as_array().unwrap().iter().any(|row| row["name"] == "kept"), "{names}");
    }

    fn move_store(&self, from: &str, to: &str) {
        for end in ["", "-wal", "-shm"] {
            let state = self.place.state();
            let _ = fs::rename(state.join(format!("{from}{end}")), state.join(format!("{to}{end}")));
        }
    }

    fn sql(&self, text: &str) {
        let code = format!(
            "import sqlite3; d=sqlite3.connect('{}'); d.executescript(\"{text}\")",
            self.place.state().join("store.db").display()
        );
        assert!(self.place.outside("/usr/bin/python3").args(["-c", &code]).status().unwrap().success());
    }
}

/// A daemon that cannot start gives the reason.
#[track_caller]
fn will_not_start(place: &Place, kind: &str, says: &str) {
    let output = to_the_end(&mut place.cofferdam(["serve", "--json"]), b"");
    let fault: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!((output.status.code(), &fault["error_kind"]), (Some(125), &json!(kind)), "{output:?}");
    assert!(fault["message"].as_str().unwrap().contains(says) && fault["hint"].is_string(), "{fault}");
}

/// A foreign process that holds a write transaction open.
struct Writer(Child);

impl Writer {
    fn begin(place: &Place) -> Writer {
        let code = "import sqlite3,sys,time; d=sqlite3.connect(sys.argv[1],isolation_level=None); d.execute('BEGIN IMMEDIATE'); print('held',flush=True); time.sleep(60)";
        let mut command = place.outside("/usr/bin/python3");
        command.args(["-c", code]).arg(place.state().join("store.db"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Writer(child)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// promise 25
#[test]
fn a_store_that_somebody_holds_is_waited_for_and_not_forever() {
    let w = StoreFixture::new();
    let make = || w.daemon.post("/v1/sandboxes", json!({}));
    let writer = Writer::begin(&w.place);
    std::thread::scope(|scope| {
        let refused = scope.spawn(make);
        // Readers do not wait.
        while !refused.is_finished() {
            w.is_up();
            std::thread::sleep(Duration::from_millis(200));
        }
        let fault = refused.join().unwrap().assert_fault(503, "unavailable");
        assert_eq!(fault["retry"], "later", "{fault}");
        let waits = scope.spawn(make);
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished());
        drop(writer);
        assert_eq!(waits.join().unwrap().status, 201, "it was waited for");
    });
}

/// A failed keeper stays until its end is recorded. A run requested meanwhile is refused with the cause and may be
/// retried.
#[test]
fn a_sandbox_that_falls_says_so_until_it_is_gone_and_starts_anew() {
    let w = StoreFixture::new();
    let run = |text: &str| w.daemon.post("/v1/sandboxes/kept/runs?wait=120s", json!({ "shell": text }));
    let begun = w.daemon.post("/v1/sandboxes/kept/runs", json!({ "shell": "sleep 600" })).assert_ok();
    let id = w.daemon.get("/v1/sandboxes/kept").assert_ok()["id"].as_str().unwrap().to_owned();
    let card = fs::read(w.place.state().join("keepers").join(id).join("keeper.json")).unwrap();
    let keeper = serde_json::from_slice::<Value>(&card).unwrap()["pid"].as_u64().unwrap() as u32;
    let first = first_of(keeper).expect("the guest's first process").to_string();
    let writer = Writer::begin(&w.place);
    assert!(Command::new("kill").args(["-KILL", &first]).status().unwrap().success());
    let said =
        |word: &str| run("echo early").assert_fault(503, "unavailable")["message"].as_str().unwrap().contains(word);
    assert!(soon(|| said("first process was killed")), "{}", run("true").text());
    let froze = w.daemon.post("/v1/sandboxes/kept/suspend", json!({ "tier": "frozen" }));
    froze.assert_fault(503, "unavailable");
    drop(writer);
    let lost = w.daemon.get(&format!("/v1/runs/{}?wait=120s", begun["run"].as_str().unwrap())).assert_ok();
    assert_eq!(lost["outcome"]["verdict"], "lost", "{lost}");
    let control = || run("echo anew");
    assert!(soon(|| control().status < 300), "{}", control().text());
    assert_eq!(control().assert_ok()["outcome"]["stdout"], "anew\n");
}

// promise 25
#[test]
fn a_store_that_is_gone_or_shut_is_told_and_comes_back() {
    let w = StoreFixture::new();
    w.is_up();
    w.move_store("store.db", "away.db");
    w.is_down(503, "unavailable", "is gone");
    assert!(!w.place.state().join("store.db").exists(), "no empty one takes its place");
    w.move_store("away.db", "store.db");
    w.is_up();
    // Another file in its place is another store: tokens that it does not contain are invalid.
    let copy = w.place.root.join("home/copy.db");
    let other = to_the_end(w.place.cofferdam(["backup"]).arg(&copy), b"");
    assert!(other.status.success(), "{other:?}");
    w.move_store("store.db", "away.db");
    fs::copy(&copy, w.place.state().join("store.db")).unwrap();
    w.place.own(&w.place.state().join("store.db"));
    let id = w.token.split('_').nth(1).unwrap();
    let revoked = to_the_end(&mut w.place.cofferdam(["token", "rm", &format!("tok_{id}")]), b"");
    assert!(revoked.status.success(), "{revoked:?}");
    w.get("/v1/sandboxes").assert_fault(401, "unauthenticated");
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(w.place.state().join(format!("store.db{end}")));
    }
    w.move_store("away.db", "store.db");
    w.is_up();
    let store = w.place.state().join("store.db");
    let shut = |mode: u32| fs::set_permissions(w.place.state(), fs::Permissions::from_mode(mode)).unwrap();
    shut(0o755);
    w.is_down(503, "unavailable", "other users can access it");
    shut(0o700);
    w.is_up();
    let StoreFixture { place, daemon, .. } = w;
    drop(daemon);
    fs::set_permissions(&store, fs::Permissions::from_mode(0o000)).unwrap();
    will_not_start(&place, "unavailable", "store.db");
    fs::rename(&store, place.state().join("away.db")).unwrap();
    will_not_start(&place, "unavailable", "is gone");
}

// promise 25
#[test]
fn a_damaged_store_is_told_and_a_copy_brings_it_back() {
    let w = StoreFixture::new();
    let copy = w.place.root.join("home/copy.db");
    assert!(w.place.cofferdam(["backup"]).arg(&copy).stdout(Stdio::null()).status().unwrap().success());
    // Pages after the first are overwritten: reads return garbage.
    w.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    let store = w.place.state().join("store.db");
    let mut bytes = fs::read(&store).unwrap();
    bytes[4096..].fill(0x5a);
    fs::write(&store, &bytes).unwrap();
    for end in ["-wal", "-shm"] {
        let _ = fs::remove_file(w.place.state().join(format!("store.db{end}")));
    }
    w.daemon.ask("GET", "/v1/health/live").over_tcp().send().assert_ok();
    let ready = w.daemon.ask("GET", "/v1/health/ready").over_tcp().send();
    assert!(ready.status >= 500, "{ready:?}");
    assert!(ready.json()["hint"].as_str().unwrap().contains("good copy"), "{ready:?}");
    let StoreFixture { place, daemon, .. } = w;
    drop(daemon);
    let found = to_the_end(&mut place.cofferdam(["fsck", "--json"]), b"");
    assert!(!found.status.success(), "{found:?}");
    let restored = to_the_end(place.cofferdam(["backup", "--json", "--restore"]).arg(&copy), b"");
    assert!(restored.status.success(), "{restored:?}");
    let daemon = Daemon::start(&place);
    daemon.get("/v1/health/ready").assert_ok();
    daemon.get("/v1/sandboxes/kept").assert_ok();
}

// promise 25
#[test]
fn a_newer_store_is_refused_and_an_older_one_brought_up() {
    let w = StoreFixture::new();
    w.sql("PRAGMA user_version = 99");
    w.is_down(501, "unsupported_host", "newer version");
    w.sql("PRAGMA user_version = 2");
    w.is_up();
    // Schema version 1, restored under a running daemon.
    w.sql("DROP TABLE key; DROP INDEX record_open; PRAGMA user_version = 1");
    w.is_up();
    assert!(w.place.state().join("store.db.schema-1").exists(), "with a copy of what was");
    let keyed = w.daemon.ask("POST", "/v1/sandboxes").header("idempotency-key", "k").json(json!({}));
    assert_eq!((keyed.send().status, keyed.send().status), (201, 200));
    w.sql("PRAGMA user_version = 99");
    let StoreFixture { place, daemon, .. } = w;
    drop(daemon);
    will_not_start(&place, "unsupported_host", "newer version");
}
