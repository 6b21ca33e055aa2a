//! Commands in a live sandbox: many at once, each with its own streams and its own end, and their output afterwards.

use crate::place::{LiveSandbox, soon};
use crate::support::terminal::at_terminal;
use crate::support::{As, Place, binary, either, to_the_end};
use crate::words::{Verbs, text};
use serde_json::{Value, json};
use std::process::Stdio;

// promise 20
#[test]
fn twenty_at_once_are_told_apart_to_the_byte() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        std::thread::scope(|scope| {
            for n in 0..20u32 {
                let live = &live;
                scope.spawn(move || {
                    let script = format!("echo out {n}; echo err {n} >&2; cat; echo {n} > file{n}; exit {n}");
                    let input = format!("in {n}\n");
                    let done = live.sh(&[], &script, input.as_bytes());
                    assert_eq!(done.status.code(), Some(n as i32), "{who:?}: {}", text(&done.stderr));
                    assert_eq!(text(&done.stdout), format!("out {n}\nin {n}\n"));
                    assert_eq!(text(&done.stderr), format!("err {n}\n"));
                });
            }
        });
        let whole = live.inspect();
        assert_eq!((&whole["standing"], &whole["live"]), (&json!("active"), &json!(true)));
        assert_eq!(whole["last_runs"].as_array().unwrap().len(), 20);
        assert_eq!(whole["pending"]["changes"], 20, "all wrote to one workspace");
        let running = || place.json(&["diff", &live.id])["running"].clone();
        assert_eq!(running(), false, "it is live, and nothing runs in it");
        let run = live.detach(&[], "sleep 60");
        assert_eq!(running(), true);
        assert!(place.verb(&["kill", &run]).status.success());
        place.audit();
    }
}

// promise 20
#[test]
fn ten_megabytes_of_bytes_arrive_as_they_are() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let source = "import sys,hashlib\nb=b''.join(hashlib.sha512(str(i).encode()).digest() for i in range(163840))\n\
                      sys.stdout.buffer.write(b)";
        place.file(place.project.join("make.py"), source);
        let want = crate::support::to_the_end(place.outside("python3").arg("make.py"), b"").stdout;
        assert_eq!(want.len(), 10 << 20);
        let got = live.sh(&[], "python3 make.py", b"");
        assert!(got.stdout == want, "{who:?}: {} bytes, not {}", got.stdout.len(), want.len());
        let run = live.detach(&[], "python3 make.py; echo done >&2");
        assert_eq!(live.outcome(&run)["usage"]["output_bytes"], (10 << 20) + 5);
        let kept = live.logs(&[&run]);
        assert!(kept.stdout == want && text(&kept.stderr) == "done\n");
        // Input comes through byte for byte as well.
        let back = live.sh(&[], "cat", &want);
        assert!(back.stdout == want, "{who:?}: {} bytes came back", back.stdout.len());
    }
}

// promise 20
#[test]
fn logs_go_on_at_any_offset() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let run = live.detach(&[], "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; printf '\\377\\376'; exit 3");
    let followed = live.logs(&["-f", &run]);
    assert_eq!(followed.stdout, b"1\n2\n3\n4\n5\n\xff\xfe");
    let pieces = live.pieces(&[&run]);
    assert_eq!(pieces.last().unwrap()["outcome"]["exit"]["code"], 3);
    let bytes = |piece: &Value| match &piece["data"] {
        Value::String(text) => text.clone().into_bytes(),
        Value::Object(_) => b"\xff\xfe".to_vec(),
        _ => Vec::new(),
    };
    let whole: Vec<u8> = pieces.iter().flat_map(bytes).collect();
    assert_eq!(whole, followed.stdout);
    for (at, piece) in pieces.iter().enumerate() {
        let offset = piece["offset"].to_string();
        assert_eq!(live.pieces(&[&run, "--from", &offset]), pieces[at..]);
    }
    let fault = place.fault(&["logs", &run, "--from", "5"], "invalid_request");
    assert!(fault["message"].as_str().unwrap().contains("begins at offset 5"), "{fault}");
    place.fault(&["logs", "run_0123456789abcdef0123456789abcdef"], "not_found");
}

// promise 20
#[test]
fn a_slow_reader_slows_only_itself() {
    let place = Place::new(As::Root);
    let live = LiveSandbox::new(&place, &[]);
    let run = live.detach(&[], "touch begun; while [ ! -e go ]; do sleep 0.05; done; head -c 8000000 /dev/zero");
    let mut slow = place.cofferdam(["logs", "-f", &run]);
    let mut slow = slow.stdout(Stdio::piped()).spawn().unwrap();
    // The reader's pipe is full long before the command is done, and nothing reads it.
    assert!(live.sh(&[], "touch go", b"").status.success());
    assert_eq!(live.outcome(&run)["exit"]["code"], 0);
    assert_eq!(live.sh(&[], "echo meanwhile", b"").stdout, b"meanwhile\n");
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut slow.stdout.take().unwrap(), &mut read).unwrap();
    assert!(slow.wait().unwrap().success());
    assert_eq!(read.len(), 8_000_000, "and it misses nothing");
}

#[test]
fn a_terminal_is_left_and_met_again() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let script = "stty size; read a; echo got $a; read b; stty size; echo then $b; exit 6";
        let words = ["exec", "-it", &live.id, "--", "sh", "-c", script];
        let left = at_terminal(
            &place,
            &words,
            json!([["expect", "31 97"], ["send", "one\n"], ["expect", "got one"], ["send", "\u{10}\u{11}"]]),
        );
        left.assert_code(0);
        let run = left.text.split("detached from ").nth(1).unwrap().split(';').next().unwrap().to_owned();
        assert_eq!(live.inspect()["standing"], "running");
        let met = at_terminal(
            &place,
            &["attach", &run],
            json!([["resize", 40, 100], ["send", "two\n"], ["expect", "then two"]]),
        );
        met.assert_code(6);
        assert!(met.text.contains("40 100"), "the size follows: {}", met.text);
        assert_eq!(live.outcome(&run)["exit"]["code"], 6);
    }
}

/// Regression: attach waited for an end that had already happened, and ignored every signal.
#[test]
fn a_run_that_has_ended_is_not_waited_for() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let attach = |run: &str, words: &[&str]| {
        let mut command = place.outside("timeout");
        command.args(["-k", "1", "20"]).arg(binary()).args([&["attach", run], words].concat());
        to_the_end(&mut command, b"")
    };
    let ended = live.detach(&[], "echo hi; exit 7");
    assert_eq!(live.outcome(&ended)["exit"]["code"], 7);
    let last = live.pieces(&[&ended]).pop().unwrap()["offset"].to_string();
    for words in [&[][..], &["--from", "0"], &["--from", &last]] {
        let told = attach(&ended, words);
        assert_eq!(told.status.code(), Some(125), "{}", text(&told.stderr));
        let said = text(&told.stderr);
        assert!(said.contains("is not running") && said.contains("`cofferdam logs`"), "{said}");
    }
    // The control, and runs that end just as a client attaches.
    for pause in ["0.5", "0.05", "0.04", "0.03", "0.02", "0.01"] {
        let going = live.detach(&[], &format!("sleep {pause}; exit 6"));
        let code = attach(&going, &[]).status.code();
        assert!(code == Some(6) || code == Some(125) && pause != "0.5", "{pause}: {code:?}");
    }
}

// promise 20
#[test]
fn signals_and_kills_reach_the_tree() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let trap = "trap 'echo caught; exit 9' TERM; touch ready$0; while :; do sleep 0.05; done";
    let run = live.detach(&[], trap);
    soon(|| live.sh(&[], "ls ready*", b"").status.success());
    place.json(&["kill", "-s", "TERM", &run]);
    let outcome = live.outcome(&run);
    assert_eq!((&outcome["exit"]["code"], &outcome["verdict"]), (&json!(9), &json!("failed")));
    assert_eq!(live.logs(&[&run]).stdout, b"caught\n");
    let deaf = live.detach(&[], "trap '' TERM; setsid sleep 4000 & sleep 4000");
    place.json(&["kill", &deaf]);
    let outcome = live.outcome(&deaf);
    assert_eq!((&outcome["exit"]["signal"], &outcome["verdict"]), (&json!(9), &json!("cancelled")));
    assert_eq!(place.verb(&["wait", &deaf]).status.code(), Some(137));
    // A repeated kill is no error, and sends nothing.
    assert_eq!(place.json(&["kill", &deaf])["runs"][0]["sent"], false);
    place.fault(&["kill", "-s", "NOTHING", &deaf], "invalid_request");
}

#[test]
fn what_is_live_can_be_reviewed_and_kept() {
    for who in either() {
        let place = Place::new(who);
        place.file(place.project.join("a"), "one\n");
        let live = LiveSandbox::new(&place, &[]);
        let run = live.detach(&[], "echo two > a; while [ ! -e go ]; do echo x >> n; sleep 0.02; done; echo end >> a");
        soon(|| text(&place.verb(&["diff", &live.id]).stdout).contains("+two"));
        let kept = place.json(&["snapshot", &live.id, "--name", "early"]);
        assert!(kept["held_ms"].is_number(), "{who:?}: what runs is held still meanwhile: {kept}");
        place.fault(&["reject", &live.id, "n"], "conflict");
        assert!(live.sh(&[], "touch go", b"").status.success());
        assert_eq!(live.outcome(&run)["success"], true, "and goes on");
        place.json(&["reject", &live.id, "n"]);
        assert_eq!(live.sh(&[], "cat a; ls", b"").stdout, b"two\nend\na\ngo\n");
        place.json(&["restore", "early"]);
        assert_eq!(live.sh(&[], "cat a", b"").stdout, b"two\n");
    }
}

#[test]
fn detached_commands_make_a_sandbox_live_on_demand() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    let live = LiveSandbox { place: &place, id };
    let run = live.detach(&[], "while [ ! -e go ]; do sleep 0.05; done; echo went");
    let rows = place.json(&["ls"])["sandboxes"].clone();
    assert_eq!((&rows[0]["state"], &rows[0]["live"]), (&json!("running"), &json!(true)));
    assert_eq!(place.json(&["ps"])["runs"][0]["run"], run.as_str());
    // Another command joins it at once, and sees the same files.
    assert!(live.sh(&[], "touch go", b"").status.success());
    assert_eq!(live.outcome(&run)["success"], true);
    // An idle keeper gives way to a verb that needs the workspace exclusively.
    let kept = place.json(&["snapshot", &live.id]);
    assert!(kept["id"].is_string());
    assert_eq!(live.inspect()["live"], false);
}
