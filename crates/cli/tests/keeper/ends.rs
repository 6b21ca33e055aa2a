//! Ends of keepers: idle, by stop, by rm and by SIGKILL; nothing is left afterwards.

use crate::place::{LiveSandbox, mark, marked, soon};
use crate::support::family::first_of;
use crate::support::{As, BOTH, Place, either};
use crate::words::{Verbs, text};
use serde_json::json;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

// promise 20
#[test]
fn a_killed_keeper_takes_its_tree_with_it_and_is_told() {
    for (n, who) in BOTH.into_iter().enumerate() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let mark = mark(n as u32);
        let run = live.detach(&[], &format!("echo begun; setsid sleep {mark} & trap '' TERM; sleep {mark}"));
        soon(|| marked(&mark) == 2);
        let mut follower = place.cofferdam(["logs", "-f", &run]);
        let follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let keeper = live.keeper().to_string();
        assert!(Command::new("kill").args(["-9", &keeper]).status().unwrap().success());
        soon(|| marked(&mark) == 0);
        // Other processes of its tree may exit a moment later, and hold the sandbox until then.
        soon(|| live.inspect()["standing"] != "running");
        let whole = live.inspect();
        assert_eq!((&whole["standing"], &whole["live"]), (&json!("lost"), &json!(false)), "{who:?}");
        assert!(whole["lost"].as_str().unwrap().contains(&keeper), "{whole}");
        assert_eq!(place.json(&["ps"])["runs"], json!([]));
        let outcome = live.outcome(&run);
        assert_eq!((&outcome["verdict"], &outcome["exit"]), (&json!("lost"), &json!(null)), "no code is invented");
        assert_eq!(place.verb(&["wait", &run]).status.code(), Some(125));
        // Followers get the end, and earlier output stays.
        let heard = follower.wait_with_output().unwrap();
        assert_eq!(text(&heard.stdout), "begun\n");
        let pieces = live.pieces(&[&run]);
        assert_eq!(pieces.last().unwrap()["outcome"]["verdict"], "lost");
        // The next command makes it live again, because it was set to stay live.
        assert_eq!(live.sh(&[], "echo again", b"").stdout, b"again\n");
        assert_eq!((&live.inspect()["standing"], &live.inspect()["live"]), (&json!("active"), &json!(true)));
        place.audit();
    }
}

/// Records of runs are not synced to disk; a reported outcome survives a kill of any process.
// promise 20
#[test]
fn what_was_told_outlives_the_keeper_that_told_it() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        for _ in 0..3 {
            let run = live.detach(&[], "echo said; exit 7");
            assert_eq!(place.verb(&["wait", &run]).status.code(), Some(7));
            let keeper = live.keeper().to_string();
            assert!(Command::new("kill").args(["-9", &keeper]).status().unwrap().success());
            let outcome = live.outcome(&run);
            assert_eq!((&outcome["verdict"], &outcome["exit"]["code"]), (&json!("failed"), &json!(7)), "{who:?}");
            assert_eq!(live.sh(&[], "echo again", b"").stdout, b"again\n");
        }
        assert!(place.verb(&["audit", "verify"]).status.success());
        place.audit();
    }
}

// promise 20
#[test]
fn the_end_of_the_first_process_is_told_as_what_it_is() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let mark = mark(20);
    let run = live.detach(&[], &format!("sleep {mark}"));
    soon(|| marked(&mark) == 1);
    let keeper = live.keeper();
    let first = first_of(keeper).expect("the guest's first process");
    assert!(Command::new("kill").args(["-9", &first.to_string()]).status().unwrap().success());
    soon(|| marked(&mark) == 0 && is_gone(keeper));
    assert_eq!(live.outcome(&run)["verdict"], "lost");
    let whole = live.inspect();
    assert_eq!(whole["standing"], "lost", "{whole}");
    assert!(!whole["lost"].as_str().unwrap().contains("keeper"), "it was not the keeper who died: {whole}");
    assert_eq!(live.sh(&[], "echo again", b"").stdout, b"again\n");
}

/// A shepherd's death ends its tree and its run as lost, and touches no other command.
// promise 20, 25
#[test]
fn the_end_of_a_shepherd_is_the_end_of_one_command() {
    for (n, who) in BOTH.into_iter().enumerate() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let marks = [mark(30 + n as u32), mark(40 + n as u32)];
        let runs = [&marks[0], &marks[1]].map(|mark| live.detach(&[], &format!("setsid sleep {mark} & sleep {mark}")));
        soon(|| marks.iter().all(|mark| marked(mark) == 2));
        let parent = |pid: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap_or("0").trim().to_owned()
        };
        let shell =
            std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok()).find(
                |pid| {
                    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    line.starts_with(b"sh\0-c\0") && text(&line).contains(&marks[0])
                },
            );
        let shepherd = parent(&shell.expect("the command"));
        // A shepherd that kills a tree of endless forks stops processes first. Killed in the middle of that, it would leave
        // the other command's processes stopped, as here; they must continue.
        let others = || {
            std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                line.starts_with(b"sleep\0") && text(&line).contains(&marks[1])
            })
        };
        others().for_each(|entry| {
            let pid = entry.file_name().into_string().unwrap();
            assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
        });
        assert!(Command::new("kill").args(["-9", &shepherd]).status().unwrap().success());
        soon(|| marked(&marks[0]) == 0);
        let outcome = live.outcome(&runs[0]);
        assert_eq!((&outcome["verdict"], &outcome["exit"]), (&json!("lost"), &json!(null)), "{who:?} {outcome}");
        assert!(outcome["message"].as_str().is_some_and(|why| why.contains("killed")), "{outcome}");
        assert_eq!(marked(&marks[1]), 2, "the other goes on");
        let stands = |entry: std::fs::DirEntry| {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            status.contains("State:\tT")
        };
        soon(|| !others().any(stands));
        assert_eq!(
            (&live.inspect()["live"], live.sh(&[], "echo here", b"").stdout),
            (&json!(true), b"here\n".to_vec())
        );
    }
}

// promise 20
#[test]
fn lost_until_started_or_stopped() {
    let place = Place::new(As::User);
    for verb in ["start", "stop"] {
        let id = place.create(&[]);
        let live = LiveSandbox { place: &place, id };
        live.detach(&[], "sleep 4000");
        assert!(Command::new("kill").args(["-9", &live.keeper().to_string()]).status().unwrap().success());
        soon(|| live.inspect()["standing"] == "lost");
        place.json(&[verb, &live.id]);
        let want = if verb == "start" { "active" } else { "stopped" };
        assert_eq!(live.inspect()["standing"], want);
        assert_eq!(live.inspect()["last_runs"][0]["verdict"], "lost");
    }
}

#[test]
fn stop_ends_all_and_the_keeper() {
    for (n, who) in BOTH.into_iter().enumerate() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let mark = mark(10 + n as u32);
        let polite = live.detach(&[], &format!("trap 'exit 8' TERM; sleep {mark} & wait"));
        let deaf = live.detach(&[], &format!("trap '' TERM; setsid sleep {mark} & while :; do sleep {mark}; done"));
        soon(|| marked(&mark) == 3);
        let (keeper, stopped) = (live.keeper(), place.json(&["stop", "-t", "1s", &live.id]));
        let ended = stopped["ended"].as_array().unwrap();
        let killed = |run: &str| ended.iter().find(|e| e["run"] == run).map(|e| e["killed"].clone());
        assert_eq!((killed(&polite), killed(&deaf)), (Some(json!(false)), Some(json!(true))), "{who:?} {stopped}");
        assert_eq!(marked(&mark), 0);
        assert!(is_gone(keeper));
        let whole = live.inspect();
        assert_eq!((&whole["standing"], &whole["live"]), (&json!("stopped"), &json!(false)));
        assert_eq!(live.outcome(&polite)["exit"]["code"], 8);
        assert_eq!(live.outcome(&deaf)["verdict"], "cancelled");
        let output = place.verb(&["exec", "-d", &live.id, "--", "true"]);
        assert!(text(&output.stderr).contains("is stopped"), "{}", text(&output.stderr));
        // A live sandbox that is removed by force leaves nothing.
        place.json(&["start", "--live", &live.id]);
        live.detach(&[], &format!("sleep {mark}"));
        place.fault(&["rm", &live.id], "conflict");
        place.json(&["rm", "--force", "-t", "0", &live.id]);
        assert_eq!(marked(&mark), 0);
        assert!(!place.state().join("keepers").join(&live.id).exists());
        assert_eq!(place.layers().len(), 0);
    }
}

/// Gone, or a zombie that its parent has not reaped.
fn is_gone(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}

// promise 20
#[test]
fn one_that_has_nothing_to_do_leaves() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    let live = LiveSandbox { place: &place, id };
    let mut keeper = place.cofferdam(["keep", &live.id, "300"]);
    let mut keeper = keeper.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut keeper.stdout.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("value"), "{said}");
    let run = live.detach(&[], "sleep 1; echo done");
    assert_eq!(live.outcome(&run)["success"], true, "it stays while something runs");
    assert!(keeper.wait().unwrap().success());
    let whole = live.inspect();
    assert_eq!((&whole["standing"], &whole["live"]), (&json!("active"), &json!(false)));
    assert_eq!(live.logs(&[&run]).stdout, b"done\n", "and what was said stays");
}

#[test]
fn a_keeper_ends_in_order_when_it_is_asked_to() {
    let place = Place::new(As::Root);
    let live = LiveSandbox::new(&place, &[]);
    let run = live.detach(&[], "trap 'echo bye; exit 0' TERM; touch ready; while :; do sleep 0.05; done");
    soon(|| live.sh(&[], "test -e ready", b"").status.success());
    let keeper = live.keeper();
    assert!(Command::new("kill").arg(keeper.to_string()).status().unwrap().success());
    soon(|| is_gone(keeper));
    assert_eq!(live.outcome(&run)["verdict"], "ok");
    assert_eq!(live.logs(&[&run]).stdout, b"bye\n");
    assert_eq!(live.inspect()["standing"], "active", "it is not lost: it said farewell");
}

// promise 20
#[test]
fn of_many_who_want_it_live_one_makes_it_so() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    let live = LiveSandbox { place: &place, id };
    let runs: Vec<String> = std::thread::scope(|scope| {
        let each = (0..8).map(|n| {
            scope.spawn({
                let live = &live;
                move || live.detach(&[], &format!("echo {n}"))
            })
        });
        let all: Vec<_> = each.collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(live.outcome(run)["success"], true);
        assert_eq!(text(&live.logs(&[run]).stdout), format!("{n}\n"));
    }
}

#[test]
fn a_state_directory_with_a_long_name_will_do() {
    let place = Place::new(As::User);
    let long = place.dir(place.root.join("x".repeat(120)).join("y".repeat(90)));
    std::fs::set_permissions(&long, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let verb = |words: &[&str]| {
        let mut command = place.cofferdam(words);
        let output = crate::support::to_the_end(command.env("COFFERDAM_STATE", Path::new(&long)), b"");
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    };
    let id = verb(&["create"]);
    let run = verb(&["exec", "-d", &id, "--", "echo", "far"]);
    verb(&["wait", &run]);
    assert_eq!(verb(&["logs", &run]), "far");
    verb(&["rm", "--force", &id]);
}

/// A client that sends requests and reads no answers delays neither commands nor the end.
// promise 20
#[test]
fn who_does_not_read_holds_up_no_end() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let keeper = live.keeper();
    let socket = place.state().join("keepers").join(&live.id).join("sock");
    let question = br#"{"ask":"list"}"#;
    let mut frame = [(question.len() as u32).to_le_bytes(), 0u32.to_le_bytes()].concat();
    frame.extend_from_slice(question);
    for _ in 0..40 {
        live.detach(&[], "true");
    }
    let mut deaf: Vec<UnixStream> = (0..4).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for stream in &mut deaf {
        stream.set_nonblocking(true).unwrap();
        // Writes until the socket is full, so that the keeper's answers wait.
        while stream.write(&frame).is_ok() {}
    }
    assert_eq!(live.sh(&[], "echo heard", b"").stdout, b"heard\n");
    place.json(&["stop", "-t", "0", &live.id]);
    assert!(is_gone(keeper));
}

/// A second stop with a shorter timeout shortens the first.
// promise 20
#[test]
fn less_patience_is_heard() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let run = live.detach(&[], "trap '' TERM; touch ready; while :; do sleep 0.1; done");
    soon(|| live.sh(&[], "test -e ready", b"").status.success());
    let mut patient = place.cofferdam(["stop", "-t", "1h", &live.id]).spawn().unwrap();
    soon(|| live.inspect()["standing"] == "stopping");
    assert!(patient.try_wait().unwrap().is_none(), "the control: the first one waits");
    place.json(&["stop", "-t", "0", &live.id]);
    soon(|| patient.try_wait().unwrap().is_some());
    assert_eq!(live.outcome(&run)["verdict"], "cancelled");
}

/// A keeper whose directory was removed can be found by no client: it exits, and its tree with it.
// promise 20
#[test]
fn without_its_place_a_keeper_ends() {
    let place = Place::new(As::User);
    let (gone, stays) = (LiveSandbox::new(&place, &[]), LiveSandbox::new(&place, &[]));
    let mark = mark(40);
    gone.detach(&[], &format!("sleep {mark}"));
    soon(|| marked(&mark) == 1);
    let (lost, kept) = (gone.keeper(), stays.keeper());
    std::fs::remove_dir_all(place.state().join("keepers").join(&gone.id)).unwrap();
    soon(|| is_gone(lost));
    soon(|| marked(&mark) == 0);
    assert!(!is_gone(kept), "the control: another one stays");
    assert_eq!(stays.sh(&[], "echo here", b"").stdout, b"here\n");
}
