//! Runs over HTTP: started, awaited, followed from any offset, given input, ended; and kept across a crash of the
//! daemon.

use crate::support::http::{Answer, Daemon, receive};
use crate::support::left::soon;
use crate::support::sse::{Event, events, said};
use crate::support::{As, Place, either};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A daemon with a sandbox `s`.
pub struct RunsFixture {
    pub place: Place,
    pub daemon: Daemon,
}

impl RunsFixture {
    pub fn new(who: As) -> RunsFixture {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        daemon.post("/v1/sandboxes", json!({"name": "s", "policies": ["workspace-write"]})).assert_ok();
        RunsFixture { place, daemon }
    }

    pub fn begin(&self, ask: Value) -> String {
        let begun = self.daemon.post("/v1/sandboxes/s/runs", ask).assert_ok();
        begun["run"].as_str().unwrap().to_owned()
    }

    /// Runs a shell text to its end.
    fn sh(&self, text: &str) -> Value {
        self.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({"shell": text})).assert_ok()
    }

    fn post(&self, path: &str, body: Value) -> Answer {
        self.daemon.post(path, body)
    }

    /// Output events of a run, to its end.
    fn listen(&self, run: &str, query: &str) -> Vec<Event> {
        let mut open = self.daemon.ask("GET", &format!("/v1/runs/{run}/output{query}")).open();
        events(&open.rest())
    }
}

impl Drop for RunsFixture {
    fn drop(&mut self) {
        // Keepers outlive their daemon, so the sandbox is removed explicitly.
        let _ = self.place.cofferdam(["rm", "--force", "--timeout", "0s", "s"]).output();
    }
}

#[test]
fn a_command_is_run_and_told_with_what_it_said() {
    for who in either() {
        let w = RunsFixture::new(who);
        let done = w.sh("echo out; echo err >&2; exit 3");
        let outcome = &done["outcome"];
        assert_eq!((&done["running"], &outcome["verdict"]), (&json!(false), &json!("failed")), "{done}");
        assert_eq!(outcome["exit"], json!({"code": 3}));
        assert_eq!((&outcome["stdout"], &outcome["stderr"]), (&json!("out\n"), &json!("err\n")));
        let ask = json!({"command": ["sh", "-c", "echo $X; pwd; cat"], "env": {"X": "1"}, "workdir": "/tmp"});
        let done = w.post("/v1/sandboxes/s/runs?wait=120s", ask).assert_ok();
        assert_eq!(done["outcome"]["stdout"], "1\n/tmp\n", "without input it is empty: {done}");
        // Files of one run are there for the next, and nothing lands.
        w.sh("echo kept > file");
        assert_eq!(w.sh("cat file")["outcome"]["stdout"], "kept\n");
        let limited = json!({"shell": "sleep 60", "limits": {"max_wall_ms": 300}});
        let done = w.post("/v1/sandboxes/s/runs?wait=120s", limited).assert_ok();
        assert_eq!(
            (&done["outcome"]["verdict"], &done["outcome"]["limit_kind"]),
            (&json!("limit_exceeded"), &json!("wall_ms"))
        );
        let listed = w.daemon.get("/v1/sandboxes/s/runs?limit=2").assert_ok();
        assert_eq!((listed["runs"].as_array().unwrap().len(), listed["next"].is_string()), (2, true));
        w.post("/v1/sandboxes/s/runs", json!({"command": []})).assert_fault(400, "invalid_request");
        w.post("/v1/sandboxes/s/runs", json!({"command": ["true"], "policies": ["networked"]}))
            .assert_fault(400, "invalid_request");
        w.post("/v1/sandboxes/s/runs?wait=1s", json!({"command": ["/no/such"]})).assert_fault(404, "not_found");
        w.daemon.get("/v1/runs/run_00000000000000000000000000000000").assert_fault(404, "not_found");
    }
}

#[test]
fn the_same_key_starts_one_run() {
    let w = RunsFixture::new(As::User);
    let begin = |key: &str, text: &str| {
        w.daemon
            .ask("POST", "/v1/sandboxes/s/runs?wait=120s")
            .header("idempotency-key", key)
            .json(json!({"shell": text}))
            .send()
    };
    let first = begin("k", "echo x >> times; echo done");
    assert_eq!(first.status, 201, "{first:?}");
    for _ in 0..3 {
        let again = begin("k", "echo x >> times; echo done");
        assert_eq!((again.status, &again.json()["run"]), (200, &first.json()["run"]));
        assert_eq!(again.json()["outcome"]["stdout"], "done\n");
    }
    assert_eq!(w.sh("wc -l < times")["outcome"]["stdout"].as_str().unwrap().trim(), "1");
    let fault = begin("k", "echo other").assert_fault(409, "conflict");
    assert!(fault["message"].as_str().unwrap().contains("another shell, "), "{fault}");
}

/// Concurrent runs each have their own streams, to the byte.
#[test]
fn many_run_at_once() {
    let w = RunsFixture::new(As::User);
    std::thread::scope(|scope| {
        for n in 0..12 {
            let w = &w;
            scope.spawn(move || {
                let done = w.sh(&format!("echo {n}; sleep 0.2; echo e{n} >&2; exit {n}"));
                let outcome = &done["outcome"];
                assert_eq!(
                    (&outcome["stdout"], &outcome["stderr"]),
                    (&json!(format!("{n}\n")), &json!(format!("e{n}\n")))
                );
                assert_eq!(outcome["exit"], json!({"code": n}));
            });
        }
    });
}

/// Output that is followed, cut off anywhere and resumed is complete and without repeats.
// promise 25
#[test]
fn output_is_told_from_any_offset_once() {
    let w = RunsFixture::new(As::User);
    let run = w.begin(json!({"shell": "for i in 1 2 3 4 5; do echo line $i; sleep 0.05; done; printf '\\377\\n' >&2"}));
    let all = w.listen(&run, "");
    assert_eq!(said(&all, "stdout"), "line 1\nline 2\nline 3\nline 4\nline 5\n", "{all:?}");
    let odd = all.iter().find(|e| e.name == "stderr").unwrap();
    assert_eq!((&odd.data["encoding"], &odd.data["data"]), (&json!("base64"), &json!("/wo=")));
    let last = all.last().unwrap();
    assert_eq!((last.name.as_str(), &last.data["verdict"]), ("end", &json!("ok")), "{all:?}");
    for (at, event) in all.iter().enumerate().take(all.len() - 1) {
        let rest = w.listen(&run, &format!("?from={}", event.id));
        let names: Vec<&str> = rest.iter().map(|e| e.id.as_str()).collect();
        let want: Vec<&str> = all[at + 1..].iter().map(|e| e.id.as_str()).collect();
        assert_eq!(names, want, "after {event:?}");
    }
    let ask = w.daemon.ask("GET", &format!("/v1/runs/{run}/output?from=0"));
    let resumed = events(&ask.header("last-event-id", &all[2].id).open().rest());
    assert_eq!(resumed[0].id, all[3].id, "Last-Event-ID goes before");
    w.daemon.get(&format!("/v1/runs/{run}/output?from=7")).assert_fault(400, "invalid_request");
    let all = w.listen(&run, "?encoding=base64");
    assert!(all.iter().filter(|e| e.name == "stdout").all(|e| e.data["encoding"] == "base64"));
}

/// A run ends when the last process of its tree is gone, and not before.
// promise 20
#[test]
fn the_end_comes_when_the_tree_is_gone() {
    let w = RunsFixture::new(As::User);
    // A sleep duration that identifies this test's processes.
    let length = format!("61.{}", std::process::id());
    let left = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok())
            .filter(|line| line.split(|b| *b == 0).any(|word| word == length.as_bytes()))
            .count()
    };
    let text = format!("setsid sleep {length} & sleep {length} & echo parent; while [ ! -e go ]; do sleep 0.02; done");
    let run = w.begin(json!({ "shell": text }));
    let mut open = w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open();
    assert!(open.until("parent"));
    assert!(soon(|| left() == 2), "the control: it leaves two behind");
    w.sh("touch go");
    assert!(open.until("event: end"));
    assert_eq!(left(), 0, "the end was told before all was gone");
}

/// A slow reader delays itself only.
#[test]
fn a_slow_reader_slows_only_itself() {
    let w = RunsFixture::new(As::User);
    let run = w.begin(json!({"shell": "head -c 8000000 /dev/zero | tr '\\0' x; echo; echo done >&2"}));
    let mut slow = w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open();
    assert!(slow.until("event: stdout"));
    let done = w.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
    assert_eq!(done["outcome"]["verdict"], "ok", "it ended although its output was not read");
    assert_eq!(done["outcome"]["usage"]["output_bytes"], 8_000_006);
    let quick = w.listen(&run, "");
    assert_eq!(said(&quick, "stdout").len(), 8_000_001);
    let all = events(&slow.rest());
    assert_eq!(
        (said(&all, "stdout").len(), said(&all, "stderr").as_str()),
        (8_000_001, "done\n"),
        "and it misses nothing"
    );
}

#[test]
fn input_signals_and_ends() {
    let w = RunsFixture::new(As::User);
    let input = |run: &str, query: &str, bytes: &[u8]| {
        let path = format!("/v1/runs/{run}/input{query}");
        w.daemon.ask("POST", &path).body("application/octet-stream", bytes).send()
    };
    let run = w.begin(json!({"command": ["cat"], "input": true}));
    assert_eq!(input(&run, "", b"one\n").assert_ok()["bytes"], 4);
    input(&run, "?eof=true", b"two\n").assert_ok();
    let done = w.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
    assert_eq!(done["outcome"]["stdout"], "one\ntwo\n");
    input(&run, "", b"late").assert_fault(409, "conflict");

    let run = w.begin(json!({"shell": "trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.02; done"}));
    let mut open = w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open();
    assert!(open.until("ready"));
    w.post(&format!("/v1/runs/{run}/signal"), json!({"signal": 65})).assert_fault(400, "invalid_request");
    assert_eq!(w.post(&format!("/v1/runs/{run}/signal"), json!({"signal": 10})).assert_ok()["changed"], true);
    let done = w.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
    assert_eq!(done["outcome"]["exit"], json!({"code": 7}), "{done}");
    assert_eq!(w.post(&format!("/v1/runs/{run}/signal"), json!({"signal": 10})).assert_ok()["changed"], false);

    let run = w.begin(json!({"shell": "trap '' TERM; sleep 60 & wait"}));
    assert_eq!(w.daemon.get("/v1/runs?running=true").assert_ok()["runs"][0]["run"], *run);
    assert_eq!(w.daemon.ask("POST", &format!("/v1/runs/{run}/kill")).send().assert_ok()["changed"], true);
    let done = w.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
    assert_eq!(done["running"], false, "{done}");

    let run = w.begin(json!({"shell": "echo said; sleep 60"}));
    let removed = w.daemon.ask("DELETE", &format!("/v1/runs/{run}")).send().assert_ok();
    assert_eq!((&removed["killed"], &removed["forgotten"]), (&json!(true), &json!(true)));
    w.daemon.get(&format!("/v1/runs/{run}/output")).assert_fault(404, "not_found");
    w.daemon.get(&format!("/v1/runs/{run}")).assert_ok();
}

/// A run survives the daemon's death, and a client that returns gets all of its output.
// promise 25
#[test]
fn a_run_outlives_the_daemon() {
    for who in either() {
        let mut w = RunsFixture::new(who);
        let run = w.begin(json!({"shell": "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.1; done; exit 5"}));
        let mut open = w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open();
        assert!(open.until("event: stdout"));
        w.daemon.signal("KILL");
        w.daemon.ended();
        let seen = events(&open.rest());
        w.daemon = Daemon::start(&w.place);
        let begun = Instant::now();
        w.daemon.get(&format!("/v1/runs/{run}")).assert_ok();
        assert!(begun.elapsed() < Duration::from_secs(40), "it is known at once");
        let rest = w.listen(&run, &format!("?from={}", seen.last().unwrap().id));
        let whole = said(&seen, "stdout") + &said(&rest, "stdout");
        assert_eq!(whole, "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
        assert_eq!(rest.last().unwrap().data["exit"], json!({"code": 5}));
    }
}

/// A killed keeper takes its process tree with it; the stream reports the run as lost.
// promise 25
#[test]
fn a_lost_run_is_told_as_lost() {
    let w = RunsFixture::new(As::User);
    let run = w.begin(json!({"shell": "echo before; sleep 60"}));
    let mut open = w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open();
    assert!(open.until("before"));
    let id = w.daemon.get("/v1/sandboxes/s").assert_ok()["id"].as_str().unwrap().to_owned();
    let card = std::fs::read_to_string(w.place.state().join("keepers").join(id).join("keeper.json")).unwrap();
    let card: Value = serde_json::from_str(&card).unwrap();
    let killed = std::process::Command::new("kill").args(["-KILL", &card["pid"].to_string()]).status().unwrap();
    assert!(killed.success());
    let all = events(&open.rest());
    let last = all.last().unwrap();
    assert_eq!(
        (last.name.as_str(), &last.data["verdict"], &last.data["exit"]),
        ("end", &json!("lost"), &Value::Null),
        "{all:?}"
    );
}

/// A minimal WebSocket client.
pub struct Socket(UnixStream);

impl Socket {
    pub fn open(w: &RunsFixture, run: &str, token: Option<&str>) -> Result<Socket, Answer> {
        let mut stream = w.daemon.unix();
        let auth = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!(
            "GET /v1/runs/{run}/attach HTTP/1.1\r\nhost: localhost\r\n{auth}connection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let answer = receive(&mut stream).unwrap();
        if answer.status == 101 { Ok(Socket(stream)) } else { Err(answer) }
    }

    pub fn send(&mut self, kind: u8, bytes: &[u8]) {
        let mut frame = match bytes.len() {
            short @ ..126 => vec![0x80 | kind, 0x80 | short as u8],
            long => [vec![0x80 | kind, 0xff], (long as u64).to_be_bytes().to_vec()].concat(),
        };
        frame.extend([0; 4]);
        frame.extend(bytes);
        self.0.write_all(&frame).unwrap();
    }

    pub fn say(&mut self, word: Value) {
        self.send(1, word.to_string().as_bytes());
    }

    /// The next message that is not a ping: its opcode and its bytes.
    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let mut head = [0; 2];
            self.0.read_exact(&mut head).ok()?;
            let length = match head[1] {
                126 => {
                    let mut more = [0; 2];
                    self.0.read_exact(&mut more).ok()?;
                    u64::from(u16::from_be_bytes(more))
                }
                127 => {
                    let mut more = [0; 8];
                    self.0.read_exact(&mut more).ok()?;
                    u64::from_be_bytes(more)
                }
                short => u64::from(short),
            };
            let mut bytes = vec![0; length as usize];
            self.0.read_exact(&mut bytes).ok()?;
            if head[0] & 15 != 9 {
                return Some((head[0] & 15, bytes));
            }
        }
    }

    /// Output up to a text or an event of that name.
    pub fn until(&mut self, text: &str) -> (String, Value) {
        let mut said = String::new();
        loop {
            match self.next().expect("a message") {
                (2, bytes) => said += &String::from_utf8_lossy(&bytes[9..]),
                (1, bytes) => {
                    let event: Value = serde_json::from_slice(&bytes).unwrap();
                    if event["event"] == *text {
                        return (said, event);
                    }
                }
                (_, bytes) => panic!("closed before {text}: {:?}", String::from_utf8_lossy(&bytes)),
            }
            if said.contains(text) {
                return (said, Value::Null);
            }
        }
    }
}

/// A WebSocket attaches to a run: terminal, size, keys, end.
#[test]
fn one_can_be_at_a_run_over_a_websocket() {
    let w = RunsFixture::new(As::Root);
    let ask = json!({"command": ["sh"], "terminal": {"rows": 24, "columns": 80}});
    let run = w.begin(ask);
    let mut socket = Socket::open(&w, &run, None).unwrap();
    socket.send(2, b"stty size; echo a''b\n");
    assert!(socket.until("ab").0.contains("24 80"));
    socket.say(json!({"resize": {"rows": 40, "columns": 100}}));
    socket.send(2, b"stty size; echo c''d\n");
    assert!(socket.until("cd").0.contains("40 100"));
    socket.say(json!({"nonsense": 1}));
    assert_eq!(socket.until("fault").1["fault"]["error_kind"], "invalid_request");
    // A client that leaves does not end the run, and one that comes later gets the output from the beginning.
    drop(socket);
    let mut socket = Socket::open(&w, &run, None).unwrap();
    assert!(socket.until("cd").0.contains("24 80"));
    // Keys act as on a terminal: Ctrl-C interrupts the program once it runs.
    socket.send(2, b"sh -c 'trap \"echo inter\"rupted\"; exit\" INT; echo be\"gun\"; while :; do sleep 0.02; done'\n");
    socket.until("begun");
    socket.send(2, b"\x03");
    socket.until("interrupted");
    socket.send(2, b"exit 4\n");
    let (_, end) = socket.until("end");
    assert_eq!(end["outcome"]["exit"], json!({"code": 4}), "{end}");
    assert_eq!(socket.next().unwrap().0, 8, "it is closed in order");
    // A plain GET cannot attach.
    let plain = w.daemon.get(&format!("/v1/runs/{run}/attach"));
    plain.assert_fault(426, "invalid_request");
    // A run with a pipe instead of a terminal.
    let run = w.begin(json!({"command": ["cat"], "input": true}));
    let mut socket = Socket::open(&w, &run, None).unwrap();
    socket.send(2, b"through\n");
    assert_eq!(socket.until("through\n").0, "through\n");
    socket.say(json!({"eof": true}));
    assert_eq!(socket.until("end").1["outcome"]["verdict"], "ok");
}

/// Signals overtake input that the command does not read: a command that reads nothing is the one to interrupt.
#[test]
fn a_word_is_heard_while_input_waits() {
    let w = RunsFixture::new(As::Root);
    let full = vec![b'x'; 300_000];
    let run = w.begin(json!({"shell": "trap 'exit 7' USR1; echo ready; while :; do sleep 0.02; done", "input": true}));
    let mut socket = Socket::open(&w, &run, None).unwrap();
    socket.until("ready");
    socket.send(2, &full);
    socket.say(json!({"signal": 10}));
    assert_eq!(socket.until("end").1["outcome"]["exit"], json!({"code": 7}));
    // Input that the command does read arrives before the signal.
    let text = "trap 'exit 7' USR1; echo ready; while read -r line; do echo \"got $line\"; done; sleep 20";
    let run = w.begin(json!({"shell": text, "input": true}));
    let mut socket = Socket::open(&w, &run, None).unwrap();
    socket.until("ready");
    (0..100).for_each(|n| socket.send(2, format!("{n}\n").as_bytes()));
    socket.until("got 99");
    socket.say(json!({"signal": 10}));
    assert_eq!(socket.until("end").1["outcome"]["exit"], json!({"code": 7}));
}

/// A close frame is answered: clients tell an orderly end from a broken connection by that.
#[test]
fn who_closes_is_answered_and_who_breaks_the_rules_is_told() {
    let w = RunsFixture::new(As::Root);
    let run = w.begin(json!({"shell": "echo ready; cat > got; cat got", "input": true}));
    let attached = || {
        let mut socket = Socket::open(&w, &run, None).unwrap();
        socket.until("ready");
        socket
    };
    let mut leaves = attached();
    leaves.send(2, b"sent before it left");
    leaves.send(8, &1000u16.to_be_bytes());
    assert_eq!(leaves.next(), Some((8, 1000u16.to_be_bytes().to_vec())));
    assert_eq!(leaves.next(), None, "nothing comes behind it");
    let long = (2u64 << 20).to_be_bytes();
    let frames: [(&[u8], &str); 3] = [
        (&[[0x82, 0xff].as_slice(), &long, &[0; 4]].concat(), "too long"),
        (b"\x82\x05plain", "unmasked"),
        (b"\x81\x81\0\0\0\0\xff", "utf-8"),
    ];
    for (frame, why) in frames {
        let mut breaks = attached();
        breaks.0.write_all(frame).unwrap();
        let (_, told) = breaks.until("fault");
        let message = told["fault"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
        let (kind, close) = breaks.next().unwrap();
        assert_eq!((kind, &close[..2]), (8, &1002u16.to_be_bytes()[..]), "{why}");
    }
    // The run and its other clients are unaffected.
    let mut stays = attached();
    stays.say(json!({"eof": true}));
    assert!(stays.until("end").0.ends_with("sent before it left"));
}

/// A WebSocket closes with its token and with the daemon, and gives the reason.
#[test]
fn a_websocket_closes_with_its_token_and_with_the_daemon() {
    let mut w = RunsFixture::new(As::Root);
    let run = w.begin(json!({"shell": "sleep 60"}));
    let minted = w.post("/v1/tokens", json!({"name": "x", "scopes": ["agent"], "sandboxes": ["s"]})).assert_ok();
    let mut revoked = Socket::open(&w, &run, minted["token"].as_str()).unwrap();
    let mut kept = Socket::open(&w, &run, None).unwrap();
    w.daemon.ask("DELETE", &format!("/v1/tokens/{}", minted["id"].as_str().unwrap())).send().assert_ok();
    assert_eq!(revoked.until("closing").1["reason"], "credential");
    assert_eq!(revoked.next().unwrap().0, 8);
    w.daemon.signal("TERM");
    assert_eq!(kept.until("closing").1["reason"], "shutdown");
    assert_eq!(kept.next().unwrap().0, 8);
    drop(kept);
    assert_eq!(w.daemon.ended(), Some(0));
}

/// A sandbox that is used while it is being hibernated ends up hibernated or live, and is never reported as both.
#[test]
fn who_comes_while_it_is_hibernated_wakes_it_or_is_ended() {
    let w = RunsFixture::new(As::User);
    for round in 0..25 {
        w.sh("true");
        let begun = std::thread::scope(|scope| {
            let rests = scope.spawn(|| w.post("/v1/sandboxes/s/suspend", json!({"tier": "hibernated", "grace_ms": 0})));
            let begun: Vec<Answer> =
                (0..6).map(|_| w.post("/v1/sandboxes/s/runs", json!({"shell": "sleep 600"}))).collect();
            let rested = rests.join().unwrap();
            assert!(rested.status == 200 || rested.assert_fault(409, "conflict")["retry"] == "later", "{round}");
            begun
        });
        let whole = w.daemon.get("/v1/sandboxes/s").assert_ok();
        let (live, hibernated) = (whole["live"] == true, whole["suspended"] == "hibernated");
        assert!(!(live && hibernated), "{round}: {whole}");
        for run in begun.iter().filter(|answer| answer.status == 201).map(Answer::json) {
            let now = w.daemon.get(&format!("/v1/runs/{}", run["run"].as_str().unwrap())).assert_ok();
            assert!(now["running"] == false || live, "{round}: {now}");
            w.daemon.ask("POST", &format!("/v1/runs/{}/kill", run["run"].as_str().unwrap())).send();
        }
    }
}

/// Limits that change while a sandbox becomes live hold in it, whichever comes first.
#[test]
fn what_is_changed_while_it_starts_holds() {
    let w = RunsFixture::new(As::User);
    for round in 0..20 {
        w.daemon.ask("POST", "/v1/sandboxes/s/stop?timeout=0s").send().assert_ok();
        w.daemon.ask("POST", "/v1/sandboxes/s/start").send().assert_ok();
        let most = 100 + round;
        std::thread::scope(|scope| {
            scope.spawn(|| w.sh("true"));
            std::thread::sleep(Duration::from_millis(round));
            let limits = json!({ "limits": { "max_output_bytes": most } });
            w.daemon.ask("PATCH", "/v1/sandboxes/s").json(limits).send().assert_ok();
        });
        let outcome = w.sh("head -c 100000 /dev/zero | tr '\\0' x")["outcome"].clone();
        assert_eq!(outcome["stdout"].as_str().map(str::len), Some(most as usize), "{round}: {outcome}");
    }
}

/// A suspended sandbox stands still, and continues on resume or on use.
#[test]
fn a_sandbox_rests_and_goes_on() {
    let w = RunsFixture::new(As::Root);
    let live = w.daemon.ask("POST", "/v1/sandboxes/s/start?live=true").send().assert_ok();
    assert_eq!(live["state"], "active");
    let run = w.begin(json!({"shell": "while [ ! -e go ]; do sleep 0.02; done"}));
    let rested = w.post("/v1/sandboxes/s/suspend", json!({"tier": "frozen"})).assert_ok();
    assert_eq!((&rested["reached"], &rested["changed"]), (&json!("frozen"), &json!(true)), "{rested}");
    let still = w.daemon.get(&format!("/v1/runs/{run}?wait=200ms")).assert_ok();
    assert_eq!(still["running"], true);
    assert_eq!(w.daemon.ask("POST", "/v1/sandboxes/s/resume").send().assert_ok()["was"], "frozen");
    w.sh("touch go");
    let done = w.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
    assert_eq!(done["outcome"]["verdict"], "ok", "{done}");
    let rested = w.post("/v1/sandboxes/s/suspend", json!({"tier": "hibernated"})).assert_ok();
    assert_eq!(rested["reached"], "hibernated");
    assert_eq!(w.sh("echo awake")["outcome"]["stdout"], "awake\n", "it wakes on request");
}
