//! Standard streams to the byte, exit statuses, the outcome document, signals.

use crate::support::{As, BOTH, Place, binary, either, to_the_end, unique};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Pseudo-random bytes of every value.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Polls until the condition holds, with a deadline far above what a busy machine needs.
#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !is_so() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Looks for a host process with this word among its arguments.
fn is_alive(word: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|e| fs::read(e.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|b| *b == 0).any(|arg| arg == word.as_bytes()))
}

/// Starts a run and waits for its first line, which must be `ready`.
fn start(place: &Place, args: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = place.cofferdam(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, reader)
}

#[track_caller]
fn ends(child: &mut Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the run must end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn input_from_pipe_file_and_nowhere_reaches_its_end() {
    for who in either() {
        let place = Place::new(who);
        let file = place.file("input", b"from a file\n");
        let got = to_the_end(&mut place.cofferdam(["run", "--", "cat"]), b"from a pipe\n");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"from a pipe\n"[..]));
        let got = to_the_end(place.cofferdam(["run", "--", "cat"]).stdin(File::open(&file).unwrap()), b"");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"from a file\n"[..]));
        let got = to_the_end(&mut place.cofferdam(["run", "--", "wc", "-c"]), b"");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"0\n"[..]));
        let got = to_the_end(&mut place.cofferdam(["run", "--no-stdin", "--", "cat"]), b"never seen");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b""[..]));
    }
}

#[test]
fn closed_standard_streams_do_no_harm() {
    for who in either() {
        let place = Place::new(who);
        let sh = |text: &str| to_the_end(place.outside("sh").args(["-c", text, "sh"]).arg(binary()), b"");
        let got = sh("exec \"$1\" run -- sh -c 'wc -c; echo done' <&-");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"0\ndone\n"[..]));
        assert_eq!(sh("exec \"$1\" run -- sh -c 'echo lost; exit 4' >&-").status.code(), Some(4));
        assert_eq!(sh("exec \"$1\" run -- sh -c 'echo lost >&2; exit 5' 2>&-").status.code(), Some(5));
        assert_eq!(sh("exec \"$1\" run -- sh -c 'exit 6' <&- >&- 2>&-").status.code(), Some(6));
    }
}

// promise 11
#[test]
fn large_binary_streams_are_exact_both_ways() {
    let sent = noise(50 << 20);
    for who in either() {
        let place = Place::new(who);
        let got = to_the_end(&mut place.cofferdam(["run", "--", "cat"]), &sent);
        assert_eq!(got.status.code(), Some(0));
        assert!(got.stdout == sent, "{} of {} bytes came back, or others", got.stdout.len(), sent.len());
        assert!(got.stderr.is_empty());
    }
}

// promise 11
#[test]
fn output_and_errors_stay_apart_and_exact() {
    let sent = noise(3 << 20);
    for who in either() {
        let place = Place::new(who);
        let text = "import sys\nb = sys.stdin.buffer.read()\nfor i in range(0, len(b), 7001):\n  \
            sys.stdout.buffer.write(b[i:i+7001]); sys.stderr.buffer.write(b[i:i+7001][::-1])\n";
        let got = to_the_end(&mut place.cofferdam(["run", "--", "/usr/bin/python3", "-c", text]), &sent);
        let turned: Vec<u8> = sent.chunks(7001).flat_map(|c| c.iter().rev().copied()).collect();
        assert_eq!(got.status.code(), Some(0));
        assert!(got.stdout == sent, "stdout");
        assert!(got.stderr == turned, "stderr");
    }
}

#[test]
fn a_command_that_does_not_read_its_input_is_not_held_up() {
    for who in either() {
        let place = Place::new(who);
        let got = to_the_end(&mut place.cofferdam(["run", "--", "true"]), &noise(1 << 20));
        assert_eq!(got.status.code(), Some(0));
        // The caller's input stays open: the run must not wait for its end.
        let mut child = place.cofferdam(["run", "--", "true"]).stdin(Stdio::piped()).spawn().unwrap();
        let open = child.stdin.take();
        assert_eq!(ends(&mut child).code(), Some(0));
        drop(open);
    }
}

/// A command's unread input stays in the file for the next reader, as outside. Regression: a shell loop over the lines
/// of a file ended after the first.
// promise 11
#[test]
fn what_a_command_does_not_read_of_a_file_is_left() {
    for who in either() {
        let place = Place::new(who);
        let long: String = (0..4000).map(|n| format!("line {n}\n")).collect();
        let (few, many) = (place.file("few", "1\n2\n3\n"), place.file("many", &long));
        let sh = |text: &str, input: &Path| {
            let mut shell = place.outside("bash");
            shell.args(["-c", text, "bash"]).arg(binary()).stdin(fs::File::open(input).unwrap());
            String::from_utf8(to_the_end(&mut shell, b"").stdout).unwrap()
        };
        assert_eq!(sh("while read x; do \"$1\" run -- echo $x; done", &few), "1\n2\n3\n", "{who:?}");
        assert_eq!(sh("\"$1\" run -- sh -c 'read x; echo $x'; cat", &few), "1\n2\n3\n", "{who:?}");
        assert_eq!(sh("\"$1\" run -- cat; echo end; cat", &few), "1\n2\n3\nend\n", "{who:?}");
        // Beyond one page of read-ahead: `dd` takes 10000 bytes and no more.
        let rest = sh("\"$1\" run -- dd bs=1000 count=10 iflag=fullblock status=none | wc -c; cat | wc -c", &many);
        assert_eq!(rest, format!("10000\n{}\n", long.len() - 10000), "{who:?}");
        assert_eq!(sh("\"$1\" run -- cat", &many), long, "{who:?}");
        assert_eq!(sh("\"$1\" run -- sh -c 'exec <&-; sleep 0.2'; cat", &few), "1\n2\n3\n", "{who:?}");
    }
}

/// A run whose command has closed its input does not busy-wait.
#[test]
fn a_closed_input_costs_nothing() {
    let place = Place::new(As::User);
    let mut command = place.cofferdam(["run", "--", "sh", "-c", "exec <&-; echo go; sleep 3"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut go = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut go).unwrap();
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|f| f.parse().ok()).collect();
        // User and system time; the state field is not a number and was skipped.
        fields[10] + fields[11]
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    let spent = ticks() - before;
    assert!(spent < 20, "{spent} hundredths of a second");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Regression: the pipes were owned by the supervisor's user, so a root caller's guest could not reopen them by name.
#[test]
fn the_names_of_the_standard_streams_can_be_opened() {
    for who in either() {
        let place = Place::new(who);
        let text = "cat /dev/stdin; echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/fd/0 >/dev/null";
        let got = to_the_end(&mut place.cofferdam(["run", "-c", text]), b"in\n");
        assert_eq!(String::from_utf8_lossy(&got.stderr), "err\n", "{who:?}");
        assert_eq!(String::from_utf8_lossy(&got.stdout), "in\nout\n", "{who:?}");
        assert_eq!(got.status.code(), Some(0));
    }
}

// promise 2
#[test]
fn nothing_of_the_callers_descriptors_is_open_inside() {
    for who in either() {
        let place = Place::new(who);
        let file = place.file("kept-open", "private");
        let text = "exec 5<\"$2\" 9<\"$2\"; exec \"$1\" run -- /usr/bin/python3 -c \
            'import os; print(sorted(int(n) for n in os.listdir(\"/proc/self/fd\")))'";
        let got = to_the_end(place.outside("sh").args(["-c", text, "sh"]).arg(binary()).arg(file), b"");
        assert_eq!(String::from_utf8_lossy(&got.stdout), "[0, 1, 2, 3]\n", "3 is the listing itself");
    }
}

// promise 11
#[test]
fn every_exit_code_is_passed_on() {
    for who in either() {
        let place = Place::new(who);
        for code in [0, 1, 2, 42, 100, 124, 125, 126, 127, 128, 130, 137, 143, 200, 254, 255] {
            let run = place.sh(&[], &format!("exit {code}"));
            run.assert_code(code);
            assert_eq!(run.outcome["exit"], json!({"code": code}));
            assert_eq!(run.text("/verdict"), if code == 0 { "ok" } else { "failed" });
            assert_eq!(run.outcome["success"], code == 0);
        }
    }
}

// promise 11
#[test]
fn signals_give_128_and_their_number() {
    for who in either() {
        let place = Place::new(who);
        let list = [
            (1, "SIGHUP"),
            (2, "SIGINT"),
            (6, "SIGABRT"),
            (9, "SIGKILL"),
            (10, "SIGUSR1"),
            (11, "SIGSEGV"),
            (15, "SIGTERM"),
        ];
        for (number, name) in list {
            let run = place.sh(&[], &format!("kill -{number} $$"));
            run.assert_code(128 + number);
            assert_eq!(run.outcome["exit"], json!({"signal": number, "name": name}));
            assert_eq!(run.text("/verdict"), "failed", "not cancelled");
        }
        place.sh(&[], "kill -64 $$").assert_code(192);
    }
}

// promise 11
#[test]
fn what_cannot_start_is_told_apart() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/plain", "#!/bin/sh\n");
        place.script("home/project/lost-interpreter", "#!/no/such/interpreter\n");
        place.script("home/project/garbage", "\u{1}\u{2}\u{3}garbage");
        let check = |flags: &[&str], command: &str, code: i32, kind: &str| {
            let run = place.run(flags, &[command]);
            run.assert_code(code);
            assert_eq!(run.text("/error_kind"), kind, "{command}: {}", run.story());
            assert!(run.stdout().is_empty(), "{}", run.story());
            assert!(run.stderr().starts_with("cofferdam:"), "{}", run.story());
        };
        check(&[], "no-such-program", 127, "not_found");
        check(&[], "/no/such/program", 127, "not_found");
        check(&[], "./lost-interpreter", 127, "not_found");
        check(&[], "./plain", 126, "invalid_request");
        check(&[], "/usr", 126, "invalid_request");
        check(&[], "./garbage", 126, "invalid_request");
        check(&["--deny-exec", "/usr/bin/wc"], "wc", 126, "policy_denied");
        place.run(&[], &["wc", "--version"]).assert_ok();
    }
}

// promise 11
#[test]
fn our_own_faults_are_125_and_usage_errors_2() {
    for who in either() {
        let place = Place::new(who);
        let network = place.policy(json!({"version": 1, "capabilities": {"net.fetch": {"allow": true}}}));
        let run = place.sh(&["-p", "default", "-p", &network], "echo ran");
        run.assert_code(125);
        assert_eq!(run.text("/error_kind"), "unsupported_policy");
        for flags in [
            &["-p", "no-such-preset"][..],
            &["-w", "/no/such/dir"],
            &["-w", "/etc/passwd"],
            &["-w", "/proc"],
            &["-e", "=x"],
        ] {
            let run = place.sh(flags, "echo ran");
            run.assert_code(2);
            assert_eq!(run.text("/error_kind"), "invalid_request", "{}", run.story());
            assert!(run.stdout().is_empty());
        }
        let got = to_the_end(&mut place.cofferdam(["run", "--no-such-flag", "--", "true"]), b"");
        assert_eq!(got.status.code(), Some(2));
        let got = to_the_end(&mut place.cofferdam(["run"]), b"");
        assert_eq!(got.status.code(), Some(2), "no command");
    }
}

/// Who reads a pipe is a script, a log or an agent: standard error tells there what it tells on a terminal, and standard output stays the
/// command's.
#[test]
fn a_pipe_is_told_what_a_terminal_is() {
    for who in either() {
        let place = Place::new(who);
        place.dir("home/beside");
        let refused = "echo out; echo x > ../beside/file || echo x > made";
        let slow = ["-c", "echo out; sleep 3600"];
        for (flags, command, status, told) in [
            (&["-e", "NOT_SET_HERE"][..], &["-c", refused][..], 0, &["fs.create", "--write", "1 file changed in"][..]),
            (&["-t", "2s"], &slow[..], 124, &["ended by limit wall_ms"]),
            (&["--rm", "--write", "/no/such/dir"], &["--", "echo", "out"], 0, &["/no/such/dir"]),
        ] {
            let run = |more: &[&str]| to_the_end(place.cofferdam(["run"]).args(flags).args(more).args(command), b"");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let loud = run(&[]);
            let said: Vec<String> =
                text(&loud.stderr).lines().filter(|line| line.starts_with("cofferdam:")).map(str::to_owned).collect();
            assert_eq!((loud.status.code(), text(&loud.stdout)), (Some(status), "out\n".into()), "{said:?}");
            assert!(told.iter().all(|part| said.iter().any(|line| line.contains(part))), "{told:?}: {said:?}");
            for silent in [run(&["-q"]), run(&["--json"])] {
                assert_eq!(silent.status.code(), Some(status));
                assert!(!text(&silent.stderr).contains("cofferdam:"), "{}", text(&silent.stderr));
            }
        }
    }
}

// promise 11
#[test]
fn json_holds_the_output_and_nothing_else_is_printed() {
    for who in either() {
        let place = Place::new(who);
        let text = r"printf 'one\n\001\377\376\042two'; printf 'err\342\202' >&2; exit 3";
        let got = to_the_end(&mut place.cofferdam(["run", "--json", "-c", text]), b"");
        assert_eq!(got.status.code(), Some(3));
        assert!(got.stderr.is_empty(), "{}", String::from_utf8_lossy(&got.stderr));
        let outcome: Value = serde_json::from_slice(&got.stdout).expect("valid JSON");
        // No byte is lost, and binary output is not passed off as text.
        assert_eq!((&outcome["stdout_encoding"], &outcome["stderr_encoding"]), (&json!("base64"), &json!("base64")));
        assert_eq!((&outcome["stdout"], &outcome["stderr"]), (&json!("b25lCgH//iJ0d28="), &json!("ZXJy4oI=")));
        assert_eq!(outcome["exit"], json!({"code": 3}));
        assert_eq!(outcome["protocol_version"], 1);
        assert_eq!(outcome["truncated"], json!({"stdout": 0, "stderr": 0}));
        assert!(outcome["run_id"].as_str().unwrap().starts_with("run_"));
        let got = to_the_end(&mut place.cofferdam(["run", "--json", "--", "no-such-program"]), b"");
        assert_eq!(got.status.code(), Some(127));
        let fault: Value = serde_json::from_slice(&got.stdout).expect("valid JSON");
        assert_eq!((&fault["error_kind"], &fault["success"]), (&json!("not_found"), &json!(false)));
        assert!(got.stderr.is_empty());
    }
}

// promise 11
#[test]
fn the_verdict_goes_where_it_was_asked_for() {
    for who in either() {
        let place = Place::new(who);
        let file = place.file("verdict", "");
        let sh = |text: &str| {
            fs::write(&file, "").unwrap();
            let got = to_the_end(place.outside("sh").args(["-c", text, "sh"]).arg(binary()).arg(&file), b"");
            (got, fs::read_to_string(&file).unwrap())
        };
        let (got, verdict) = sh("exec \"$1\" run --status-fd 7 -c 'echo out; echo err >&2; exit 9' 7>\"$2\"");
        assert_eq!((got.status.code(), &got.stdout[..], &got.stderr[..]), (Some(9), &b"out\n"[..], &b"err\n"[..]));
        let outcome: Value = serde_json::from_str(&verdict).expect("one document");
        assert_eq!(outcome["exit"], json!({"code": 9}));
        assert_eq!(outcome.get("stdout"), None, "the output went elsewhere");
        assert_eq!(verdict.lines().count(), 1);
        let (got, verdict) = sh("exec \"$1\" run --status-file \"$2\" -- no-such-program");
        assert_eq!(got.status.code(), Some(127));
        assert_eq!(serde_json::from_str::<Value>(&verdict).unwrap()["error_kind"], "not_found");
        // An append-mode descriptor appends to the file.
        let (_, verdict) = sh("echo before >\"$2\"; exec \"$1\" run --status-fd 7 -- true 7>>\"$2\"");
        let (before, rest) = verdict.split_once('\n').unwrap();
        assert_eq!(before, "before", "{verdict}");
        assert_eq!(serde_json::from_str::<Value>(rest).unwrap()["verdict"], "ok");
        // Both flags at once.
        let (_, verdict) = sh("exec \"$1\" run --status-fd 1 --status-file \"$2\" -- true");
        assert_eq!(serde_json::from_str::<Value>(&verdict).unwrap()["verdict"], "ok");
    }
}

/// Node gives its children sockets instead of pipes, and a path below /proc/self/fd cannot open a socket.
#[test]
fn the_verdict_can_go_to_any_open_descriptor() {
    for who in either() {
        let place = Place::new(who);
        let text = "import json, socket, subprocess, sys\n\
            a, b = socket.socketpair()\n\
            p = subprocess.run([sys.argv[1], 'run', '--status-fd', str(b.fileno()), '--', 'true'], pass_fds=[b.fileno()])\n\
            b.close()\n\
            print(p.returncode, json.loads(a.makefile().read() or '{}').get('verdict'))\n";
        let got = to_the_end(place.outside("/usr/bin/python3").args(["-c", text]).arg(binary()), b"");
        let err = String::from_utf8_lossy(&got.stderr);
        assert_eq!(String::from_utf8_lossy(&got.stdout), "0 ok\n", "{who:?}: {err}");
    }
}

#[test]
fn a_bad_place_for_the_verdict_is_refused_before_anything_runs() {
    for who in either() {
        let place = Place::new(who);
        let made = place.project.join("made");
        for flags in [["--status-fd", "77"], ["--status-file", "/no/such/dir/file"]] {
            let mut args = vec!["run", "--direct", "--write", "."];
            args.extend(flags);
            args.extend(["--", "touch", "made"]);
            let got = to_the_end(&mut place.cofferdam(&args), b"");
            assert_eq!(got.status.code(), Some(2), "{}", String::from_utf8_lossy(&got.stderr));
            assert!(!made.exists(), "nothing ran");
        }
        let text = "exec \"$1\" run --direct --status-fd 7 --write . -- touch made 7</dev/null";
        let got = to_the_end(place.outside("sh").args(["-c", text, "sh"]).arg(binary()), b"");
        assert_eq!(got.status.code(), Some(2), "a descriptor for reading");
        assert!(!made.exists());
        place.run(&["--direct", "--write", "."], &["touch", "made"]).assert_ok();
        assert!(made.exists());
    }
}

#[test]
fn shell_text_takes_arguments() {
    for who in either() {
        let place = Place::new(who);
        let text = r#"printf '%s|' "$0" "$#" "$@""#;
        let got = to_the_end(&mut place.cofferdam(["run", "-c", text, "a b", "-x", "--json"]), b"");
        assert_eq!(String::from_utf8_lossy(&got.stdout), "sh|3|a b|-x|--json|");
        let got = to_the_end(&mut place.cofferdam(["run", "-c", text, "--", "-v"]), b"");
        assert_eq!(String::from_utf8_lossy(&got.stdout), "sh|1|-v|");
    }
}

#[test]
fn the_word_run_may_be_left_out() {
    for who in either() {
        let place = Place::new(who);
        let settings = place.policy(json!({"version": 1, "extends": ["default"], "env": {"set": {"CI": "yes"}}}));
        let say = |args: &[&str]| {
            let got = to_the_end(&mut place.cofferdam(args), b"");
            assert_eq!(got.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&got.stderr));
            String::from_utf8(got.stdout).unwrap()
        };
        assert_eq!(say(&["--", "echo", "hi"]), "hi\n");
        assert_eq!(say(&["echo", "hi"]), "hi\n");
        assert_eq!(say(&["-c", "echo $1", "hi"]), "hi\n");
        assert_eq!(say(&["-s", &settings, "-c", "echo $CI"]), "yes\n");
        assert_eq!(say(&["-s", &settings, "--", "sh", "-c", "echo $CI"]), "yes\n");
        assert_eq!(say(&["-e", "A=b", "sh", "-c", "echo $A"]), "b\n");
        place.script("home/project/policy", "#!/bin/sh\necho mine\n");
        assert_eq!(say(&["--", "./policy"]), "mine\n");
        assert_eq!(say(&["run", "./policy"]), "mine\n");
    }
}

/// Regression: `-it` was rewritten in the command's own arguments.
#[test]
fn arguments_of_the_command_are_its_own() {
    let place = Place::new(BOTH[0]);
    for words in [&["-it"][..], &["-ti", "x"], &["-i", "-t"], &["--json"], &["-v", "--", "-it"], &["--status-fd", "1"]]
    {
        for dash in [&["run", "printf", "%s|"][..], &["run", "--", "printf", "%s|"], &["printf", "%s|"]] {
            let got = to_the_end(&mut place.cofferdam(dash.iter().chain(words)), b"");
            let want: String = words.iter().map(|w| format!("{w}|")).collect();
            assert_eq!(String::from_utf8_lossy(&got.stdout), want, "{dash:?} {words:?}");
        }
    }
}

#[test]
fn the_working_directory_is_where_it_says() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/sub/file", "here");
        let sub = place.project.join("sub");
        for dir in ["sub", "./sub/../sub", sub.to_str().unwrap()] {
            let run = place.run(&["-w", dir], &["sh", "-c", "pwd; cat file"]);
            run.assert_ok();
            assert_eq!(run.stdout(), format!("{}\nhere", sub.display()));
        }
        let run = place.run(&[], &["pwd"]);
        assert_eq!(run.stdout(), format!("{}\n", place.project.display()));
    }
}

#[test]
fn signals_reach_the_command() {
    for who in either() {
        let place = Place::new(who);
        for name in ["TERM", "INT", "HUP", "USR1", "QUIT", "USR2"] {
            let text = format!("trap 'echo got {name}; exit 21' {name}; echo ready; while :; do sleep 0.05; done");
            let (mut child, mut rest) = start(&place, &["run", "-c", &text]);
            kill(&child, name);
            assert_eq!(ends(&mut child).code(), Some(21), "{name}");
            let mut text = String::new();
            rest.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("got {name}\n"));
        }
    }
}

fn kill(child: &Child, name: &str) {
    let status = std::process::Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn a_command_ended_by_a_callers_signal_was_cancelled() {
    for who in either() {
        let place = Place::new(who);
        for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
            let status = place.file("status", "");
            let path = status.display().to_string();
            let (mut child, _rest) =
                start(&place, &["run", "--status-file", &path, "-c", "echo ready; exec sleep 1000"]);
            kill(&child, name);
            assert_eq!(ends(&mut child).code(), Some(128 + number), "{name}");
            let outcome: Value = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap();
            assert_eq!(outcome["verdict"], "cancelled", "{name}: {outcome:#}");
            assert_eq!(outcome["exit"]["signal"], number);
            assert_eq!(outcome["success"], false);
        }
    }
}

#[test]
fn what_is_left_in_the_background_ends_with_the_run() {
    for who in either() {
        let place = Place::new(who);
        let word = |n: u32| format!("{}.{}", 90_000 + unique(), std::process::id() * 10 + n);
        let (plain, session) = (word(1), word(2));
        let text =
            format!("sleep {plain} & setsid -f sleep {session} </dev/null >/dev/null 2>&1; echo ready; read x; exit 5");
        let mut command = place.cofferdam(["run", "-c", &text]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        for word in [&plain, &session] {
            eventually("the job runs", || is_alive(word));
        }
        drop(child.stdin.take());
        assert_eq!(ends(&mut child).code(), Some(5), "the job that holds stdout does not hold the run");
        assert!(!is_alive(&plain) && !is_alive(&session), "gone when the run says so");
    }
}

#[test]
fn a_reader_that_leaves_ends_the_command_as_it_would_outside() {
    const MINDS: &str = "
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
try:
    while True: os.write(1, b'y' * 4096)
except BrokenPipeError:
    os._exit(33)
";
    for who in either() {
        let place = Place::new(who);
        let mut child =
            place.cofferdam(["run", "--", "yes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "y\n");
        drop(reader);
        assert_eq!(ends(&mut child).code(), Some(128 + 13));
        let mut words = String::new();
        child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        assert_eq!(words, "", "nothing to say about it");
        // A command that handles EPIPE sees it, too.
        let mut child = place
            .cofferdam(["run", "--", "/usr/bin/python3", "-c", MINDS])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert_eq!(ends(&mut child).code(), Some(33));
    }
}

#[test]
fn the_wrapper_leaves_nothing_behind() {
    for who in either() {
        let place = Place::new(who);
        let before = listing(&place.home);
        place.sh(&[], "echo x > /tmp/left; echo y > left 2>/dev/null; true").assert_ok();
        assert_eq!(listing(&place.home), before);
        assert!(!Path::new("/tmp/left").exists());
    }
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        names.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            names.extend(listing(&entry.path()));
        }
    }
    names.sort();
    names
}

/// SIGTERM at any moment of the start cancels the run; it is never reported as a failure.
#[test]
fn an_end_that_is_asked_for_early_is_an_end() {
    for who in either() {
        let place = Place::new(who);
        let mut cancelled = 0;
        // Delays up to 19 ms; doubled from there where a busy machine installs the handler later.
        for wait in (0..48u64).chain((6..15).map(|power| 1 << power)) {
            if wait >= 48 && cancelled > 0 {
                break;
            }
            let mut command = place.cofferdam(["run", "--read-only", "--json", "--", "sleep", "20"]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(wait * 400));
            let ask = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
            assert!(ask.success(), "it runs until it is asked to end");
            let output = child.wait_with_output().unwrap();
            // Before the handler is installed, the signal kills the process.
            if output.status.signal() == Some(15) {
                continue;
            }
            let outcome: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
            assert_eq!(outcome["verdict"], "cancelled", "{who:?}, after {wait}: {outcome}");
            cancelled += 1;
        }
        assert!(cancelled > 0, "{who:?}: control: some were asked in time");
    }
}
