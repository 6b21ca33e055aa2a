//! A run that goes on is a sandbox: it is looked at, listed and stopped from outside while its command runs.

use super::words::{Verbs, text};
use crate::support::left::soon;
use crate::support::{BOTH, Place, either, to_the_end};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// Starts a run that writes `made` and sleeps; waits until it is listed with a sandbox.
fn start(place: &Place, flags: &[&str]) -> (Child, Value) {
    let mut command = place.cofferdam(["run"]);
    command.args(flags).args(["-c", "echo x > made; echo said; exec sleep 3600"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let runs = || place.json(&["ps"])["runs"].as_array().unwrap().clone();
    let of_child = |run: &&Value| run["pid"] == child.id() && run["sandbox"].is_string();
    assert!(soon(|| runs().iter().any(|run| of_child(&run))), "{:?}", runs());
    let run = runs().iter().find(of_child).unwrap().clone();
    let made = || String::from_utf8(place.verb(&["diff", "--name-only", run["sandbox"].as_str().unwrap()]).stdout);
    assert!(soon(|| made().unwrap() == "made\n"));
    (child, run)
}

fn end(mut child: Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    child.wait().unwrap();
}

// promise 18
#[test]
fn verbs_find_a_run_while_it_goes_on() {
    for who in BOTH {
        let place = Place::new(who);
        for flags in [&["--name", "dev"][..], &[]] {
            let (child, run) = start(&place, flags);
            let id = run["sandbox"].as_str().unwrap();
            let word = flags.last().copied().unwrap_or(id);
            assert_eq!(place.states(), [(id.to_owned(), "running".to_owned())], "{who:?}");
            let whole = place.json(&["inspect", word]);
            assert_eq!((&whole["id"], &whole["running"][0]["run"]), (&run["sandbox"], &run["run"]), "{whole}");
            // A second command, and the output of the first, are refused with what to do instead.
            let busy = place.verb(&["exec", "--json", word, "--", "true"]);
            let busy: Value = serde_json::from_slice(&busy.stdout).unwrap();
            assert!(busy["message"].as_str().unwrap().contains(run["run"].as_str().unwrap()), "{busy}");
            let known = flags.last().copied().unwrap_or(&id[..12]);
            assert!(busy["hint"].as_str().unwrap().contains(&format!("cofferdam diff {known}`")), "{busy}");
            assert_eq!(busy["error_kind"], "conflict");
            for verb in ["logs", "attach"] {
                let refused = place.verb(&[verb, run["run"].as_str().unwrap()]);
                let why = text(&refused.stderr);
                assert!(
                    !refused.status.success() && why.contains("terminal or pipe that it was started"),
                    "{verb}: {why}"
                );
                assert!(why.contains("cofferdam run --live"), "{why}");
            }
            place.fault(&["rm", word], "conflict");
            let stopped = place.json(&["stop", "-t", "500ms", word]);
            assert_eq!(stopped["ended"][0]["run"], run["run"], "{stopped}");
            end(child);
            let past = &place.json(&["inspect", id])["last_runs"][0];
            assert!(past["ended_ms"].is_u64(), "{past}");
            assert_eq!(text(&place.verb(&["diff", "--name-only", id]).stdout), "made\n");
            place.json(&["rm", id]);
        }
        assert!(place.layers().is_empty(), "{:?}", place.layers());
        place.audit();
    }
}

// promise 18
#[test]
fn in_a_live_run_others_work_beside_its_command() {
    for who in BOTH {
        let place = Place::new(who);
        let script = "echo \"$KEY\" > key; echo said; until test -e go; do sleep 0.1; done; echo over; exit 3";
        let mut command = place.cofferdam(["run", "--live", "--name", "dev", "--secret", "KEY@api.example.com"]);
        command.args(["--secret", "KEY=env:OTHER", "-c", script]).env("OTHER", "the-real-value");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert!(soon(|| text(&place.verb(&["logs", "dev"]).stdout) == "said\n"), "{who:?}");
        let attach = ["attach", "--no-stdin", "--from", "0", "dev"];
        let mut watched = place.cofferdam(attach).stdout(Stdio::piped()).spawn().unwrap();
        let mut shown = BufReader::new(watched.stdout.take().unwrap());
        let mut said = String::new();
        shown.read_line(&mut said).unwrap();
        let seen = place.verb(&["exec", "dev", "--", "sh", "-c", "cat key; ls; touch go"]);
        let seen = text(&seen.stdout);
        assert!(seen.starts_with("cofferdam-secret-KEY-") && seen.contains("key\n"), "{seen}");
        shown.read_to_string(&mut said).unwrap();
        assert_eq!((said.as_str(), watched.wait().unwrap().code()), ("said\nover\n", Some(3)), "{who:?}");
        let ended = child.wait_with_output().unwrap();
        let told = text(&ended.stderr);
        assert_eq!((text(&ended.stdout).as_str(), ended.status.code()), ("said\nover\n", Some(3)), "{told}");
        assert!(told.contains("2 files changed in dev (kept 7 days)"), "{told}");
        assert_eq!(text(&place.verb(&["diff", "--name-only", "dev"]).stdout), "go\nkey\n");
        // Later commands run in it as in any sandbox, and without changes or with --rm nothing is left.
        let later = to_the_end(place.cofferdam(["exec", "dev", "--", "ls"]).env("KEY", "the-real-value"), b"");
        assert_eq!(text(&later.stdout), "go\nkey\n", "{}", text(&later.stderr));
        place.json(&["rm", "dev"]);
        for words in [&["run", "--live", "--", "true"][..], &["run", "--live", "--rm", "-c", "echo x > made"]] {
            assert!(place.verb(words).status.success());
            assert_eq!(place.states(), [], "{words:?}");
        }
        // By configuration; a flag that a live run does not have comes first.
        for (flags, is_live) in [(&[][..], true), (&["--events", "events"], false)] {
            let mut command = place.cofferdam(["run"]);
            command.args(flags).args(["-c", "echo said; exec sleep 3600"]).env("COFFERDAM_RUN_LIVE", "true");
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            assert!(soon(|| place.states().len() == 1), "{flags:?}");
            let id = place.states()[0].0.clone();
            assert!(soon(|| place.verb(&["logs", &id]).status.success() || !is_live), "{flags:?}");
            assert_eq!(place.verb(&["exec", &id, "--", "true"]).status.success(), is_live, "{flags:?}");
            place.json(&["stop", &id]);
            child.wait().unwrap();
            assert!(!is_live || place.states().is_empty(), "{flags:?}: {:?}", place.states());
            place.verb(&["rm", &id]);
        }
        // In the background the same, without a terminal to stay at.
        let run = text(&place.verb(&["run", "-d", "--name", "far", "-c", "echo begun; exec sleep 3600"]).stdout);
        assert!(soon(|| text(&place.verb(&["logs", run.trim()]).stdout) == "begun\n"));
        assert!(place.verb(&["exec", "far", "--", "true"]).status.success());
        assert_eq!(place.json(&["stop", "far"])["ended"][0]["run"], run.trim());
        place.audit();
    }
}

/// A run that leaves nothing also leaves no record, however long it was; and a short one opens no database.
#[test]
fn a_run_without_changes_leaves_nothing() {
    for who in either() {
        let place = Place::new(who);
        place.run(&[], &["true"]).assert_ok();
        assert!(!place.state().join("state.db").exists(), "a short run without changes opens no database");
        let child = place.cofferdam(["run", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
        assert!(soon(|| place.states().len() == 1));
        place.verb(&["diff"]);
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success());
        assert_eq!((place.states(), place.layers()), (Vec::new(), Vec::new()), "{who:?}");
        for (flags, left) in [(&["--rm"][..], 0), (&[], 1)] {
            let mut command = place.cofferdam(["run"]);
            command.args(flags).args(["-c", "cat > got"]);
            let child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            assert!(soon(|| place.states().len() == 1), "{flags:?}");
            child.wait_with_output().unwrap();
            assert_eq!((place.states().len(), place.layers().len()), (left, left), "{who:?} {flags:?}");
        }
        place.audit();
    }
}

/// Without a name, `diff` shows the run that goes on, and not an older sandbox of the directory.
#[test]
fn the_diff_of_a_directory_is_that_of_the_run_that_goes_on() {
    for who in either() {
        let place = Place::new(who);
        place.sh(&["--name", "older"], "echo x > older").assert_ok();
        let (child, run) = start(&place, &[]);
        let shown = place.verb(&["diff", "--name-only"]);
        assert_eq!(text(&shown.stdout), "made\n", "{who:?}");
        assert!(text(&shown.stderr).contains("older"), "{}", text(&shown.stderr));
        let whole = text(&place.verb(&["diff"]).stdout);
        assert!(whole.contains("older") && whole.contains("running"), "{whole}");
        end(child);
        let named = text(&place.verb(&["diff", "older"]).stdout);
        assert!(named.contains("approve with: cofferdam approve older\n"), "{named}");
        assert!(text(&place.verb(&["diff", "--stat", "older"]).stdout).contains("(older) over "));
        let id = run["sandbox"].as_str().unwrap();
        assert!(text(&place.verb(&["diff"]).stdout).contains(&format!("cofferdam approve {}\n", &id[..12])));
    }
}

#[test]
fn a_run_goes_on_in_the_last_sandbox() {
    for who in either() {
        let place = Place::new(who);
        let run = |words: &[&str]| to_the_end(place.cofferdam(["run"]).args(words), b"");
        let none = run(&["--continue", "--", "true"]);
        assert!(text(&none.stderr).contains("start with a run without --continue"), "{none:?}");
        assert_eq!(none.status.code(), Some(125));
        let told = text(&run(&["-c", "echo 1 > installed"]).stderr);
        assert!(told.contains("run --continue"), "{told}");
        assert!(run(&["--continue", "-c", "cat installed"]).status.success(), "{who:?}");
        assert!(!run(&["--", "cat", "installed"]).status.success(), "control: a run of its own");
        assert!(run(&["--name", "dev", "-c", "echo 2 > second"]).status.success());
        let named = [&["--continue=dev", "cat", "second"][..], &["--continue", "dev", "--", "cat", "second"]];
        for words in named.into_iter().chain([&["--continue", "dev", "-c", "cat second"][..]]) {
            let done = run(words);
            assert_eq!(text(&done.stdout), "2\n", "{words:?}: {}", text(&done.stderr));
        }
        assert_eq!(place.json(&["ls"])["sandboxes"].as_array().unwrap().len(), 2, "{who:?}");
        for flag in ["--rm", "--name=x", "--read-only", "--fresh"] {
            assert_eq!(run(&["--continue", flag, "--", "true"]).status.code(), Some(2), "{flag}");
        }
        // By configuration; what the line asks for comes first.
        let run = |words: &[&str]| {
            let mut command = place.cofferdam(["run"]);
            to_the_end(command.env("COFFERDAM_RUN_CONTINUE", "true").args(words), b"")
        };
        assert!(run(&["cat", "second"]).status.success());
        assert!(!run(&["--fresh", "cat", "second"]).status.success());
        assert!(!run(&["--rm", "cat", "second"]).status.success());
    }
}
