//! Input of a run over HTTP: delivered once, however often it is sent, and with an EOF that the command sees.

use crate::runs::{RunsFixture, Socket};
use crate::support::http::Answer;
use crate::support::{As, either};
use serde_json::{Value, json};

impl RunsFixture {
    fn give(&self, run: &str, query: &str, bytes: &[u8]) -> Answer {
        let path = format!("/v1/runs/{run}/input?{query}");
        self.daemon.ask("POST", &path).body("application/octet-stream", bytes).send()
    }

    fn ended(&self, run: &str) -> Value {
        let done = self.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
        assert_eq!(done["running"], false, "{done}");
        done["outcome"].clone()
    }
}

/// The response to the last body can be lost like any other, so sending it again must be safe.
#[test]
fn the_last_body_can_be_sent_again() {
    for who in either() {
        let w = RunsFixture::new(who);
        let run =
            w.begin(json!({"shell": "cat > got; while [ ! -e go ]; do sleep 0.02; done; cat got", "input": true}));
        let first = w.give(&run, "eof=true&writer=w&offset=0", b"abc").assert_ok();
        assert_eq!((&first["offset"], &first["eof"]), (&json!(3), &json!(true)));
        assert_eq!(w.give(&run, "eof=true&writer=w&offset=0", b"abc").assert_ok(), first);
        assert_eq!(w.give(&run, "eof=true&writer=w&offset=3", b"").assert_ok()["eof"], true);
        // A different body is refused, and so is another writer.
        w.give(&run, "eof=true&writer=w&offset=0", b"abcd").assert_fault(409, "conflict");
        w.give(&run, "eof=true&writer=v&offset=0", b"abc").assert_fault(409, "conflict");
        w.give(&run, "eof=true", b"abc").assert_fault(409, "conflict");
        w.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({"command": ["touch", "go"]})).assert_ok();
        assert_eq!(w.ended(&run)["stdout"], "abc");
        // A repeated last body is accepted after the run has ended, too.
        assert_eq!(w.give(&run, "eof=true&writer=w&offset=0", b"abc").assert_ok(), first);
        w.give(&run, "eof=true&writer=w&offset=0", b"abcd").assert_fault(409, "conflict");
    }
}

/// In the middle of a line VEOF only ends the line, so EOF needs more than that character.
#[test]
fn a_terminal_ends_wherever_its_line_is() {
    let w = RunsFixture::new(As::User);
    let size = json!({"rows": 24, "columns": 80});
    for (pieces, said) in [
        (vec![&b"no newline"[..]], "no newline"),
        (vec![b"a line\n"], "a line\r\n"),
        (vec![b"no ", b"newline"], "no newline"),
        (vec![b"gone\x15"], ""),
        (vec![], ""),
    ] {
        let run = w.begin(json!({"command": ["cat"], "terminal": size, "input": true}));
        for piece in &pieces {
            w.give(&run, "", piece).assert_ok();
        }
        w.give(&run, "eof=true", b"").assert_ok();
        let outcome = w.ended(&run);
        assert_eq!(outcome["verdict"], "ok", "{pieces:?}: {outcome}");
        assert!(outcome["stdout"].as_str().unwrap().ends_with(said), "{pieces:?}: {outcome}");
    }
    // A program may have set another VEOF character; in raw mode it reads the usual one.
    for (mode, read) in [("eof ^A", "cat"), ("raw -echo", "head -c 5 | od -An -tx1")] {
        let text = format!("stty {mode}; echo ready; {read}");
        let run = w.begin(json!({"shell": text, "terminal": size, "input": true}));
        assert!(w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open().until("ready"));
        w.give(&run, "eof=true", b"four").assert_ok();
        let outcome = w.ended(&run);
        assert_eq!(outcome["verdict"], "ok", "{mode}: {outcome}");
        let shown = outcome["stdout"].as_str().unwrap();
        assert!(mode.starts_with("eof") || shown.contains("66 6f 75 72 04"), "{shown}");
    }
}

#[test]
fn only_a_terminal_has_a_size() {
    let w = RunsFixture::new(As::User);
    let size = json!({"rows": 40, "columns": 100});
    let ask = json!({"shell": "read line; stty size", "terminal": {"rows": 24, "columns": 80}, "input": true});
    let run = w.begin(ask);
    let resize = |run: &str| w.daemon.post(&format!("/v1/runs/{run}/resize"), size.clone());
    assert_eq!(resize(&run).assert_ok()["changed"], true);
    w.give(&run, "", b"\n").assert_ok();
    assert!(w.ended(&run)["stdout"].as_str().unwrap().contains("40 100"));
    assert_eq!(resize(&run).assert_ok()["changed"], false, "it is over");

    let run = w.begin(json!({"command": ["cat"], "input": true}));
    let fault = resize(&run).assert_fault(409, "conflict");
    assert!(fault["message"].as_str().unwrap().contains("has no terminal"), "{fault}");
    w.give(&run, "eof=true", b"").assert_ok();
    assert_eq!(w.ended(&run)["verdict"], "ok");
}

/// Input, a terminal resize, a signal or an attaching client thaws a frozen command.
#[test]
fn whoever_speaks_to_a_frozen_command_wakes_it() {
    const ECHO: &str = "echo ready; while read line; do echo got $line; done; echo over";
    const ASKED: &str = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    const SIZE: &str = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    for who in either() {
        let w = RunsFixture::new(who);
        let token = w.daemon.token(json!({"name": "agent", "scopes": ["agent"], "sandboxes": ["s"]}));
        let standing = || w.daemon.get("/v1/sandboxes/s").assert_ok()["standing"].clone();
        let freeze = || {
            let done = w.daemon.post("/v1/sandboxes/s/suspend", json!({"tier": "frozen"})).assert_ok();
            assert_eq!((&done["reached"], standing()), (&json!("frozen"), json!("frozen")), "{who:?}");
        };
        let begin = |ask: Value| {
            let run = w.begin(ask);
            assert!(w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open().until("ready"));
            run
        };
        let says = |run: &str, text: &str| w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open().until(text);

        let run = begin(json!({"shell": ECHO, "input": true}));
        freeze();
        // The control: reading state or output thaws nothing.
        w.daemon.get(&format!("/v1/runs/{run}")).assert_ok();
        assert!(says(&run, "ready") && standing() == "frozen", "{who:?}");
        w.give(&run, "writer=w&offset=0", b"a line\n").assert_ok();
        assert!(says(&run, "got a line"), "{who:?}");
        assert_eq!(standing(), "running");
        // A repeated body that was accepted before thaws nothing.
        freeze();
        w.give(&run, "writer=w&offset=0", b"a line\n").assert_ok();
        assert_eq!(standing(), "frozen", "{who:?}");
        w.give(&run, "eof=true&writer=w&offset=7", b"").assert_ok();
        assert_eq!(w.ended(&run)["stdout"], "ready\ngot a line\nover\n", "{who:?}");

        let run = begin(json!({ "shell": ASKED }));
        freeze();
        let sent = w.daemon.post(&format!("/v1/runs/{run}/signal"), json!({"signal": 15})).assert_ok();
        assert_eq!((&sent["changed"], &w.ended(&run)["stdout"]), (&json!(true), &json!("ready\nasked\n")), "{who:?}");

        let terminal = json!({"rows": 24, "columns": 80});
        let run = begin(json!({"shell": SIZE, "terminal": terminal, "input": true}));
        freeze();
        w.daemon.post(&format!("/v1/runs/{run}/resize"), json!({"rows": 33, "columns": 111})).assert_ok();
        assert!(says(&run, "33 111"), "{who:?}");
        w.daemon.ask("POST", &format!("/v1/runs/{run}/kill")).send().assert_ok();

        // The same over a WebSocket: attaching thaws it, and so does every message.
        let run = begin(json!({"shell": ECHO, "input": true}));
        freeze();
        let mut socket = Socket::open(&w, &run, Some(&token)).unwrap();
        assert_eq!(standing(), "running", "{who:?}");
        freeze();
        socket.send(2, b"typed\n");
        socket.until("got typed");
        freeze();
        socket.say(json!({"signal": 2}));
        assert_eq!(socket.until("end").1["outcome"]["exit"]["signal"], 2, "{who:?}");
    }
}
