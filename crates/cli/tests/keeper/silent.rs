//! Keepers that are alive and do not answer: stopped, swapped out or stuck in the kernel. Lists continue without them,
//! requests to them are refused in time, and they can be killed.

use crate::place::{LiveSandbox, soon};
use crate::support::{As, Place, either};
use crate::words::{Verbs, text};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// Stops a keeper with SIGSTOP until dropped.
struct Stopped(u32);

impl Stopped {
    #[track_caller]
    fn new(live: &LiveSandbox<'_>) -> Stopped {
        let stopped = Stopped(live.keeper());
        signal(stopped.0, "STOP");
        soon(|| stopped.is_stopped());
        stopped
    }

    /// True while the keeper is stopped. Checked after an answer, to prove that it came without the keeper.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).output().unwrap();
}

fn of<'a>(rows: &'a Value, field: &str, id: &str) -> &'a Value {
    rows.as_array().unwrap().iter().find(|row| row[field] == *id).unwrap_or_else(|| panic!("{id}: {rows:#}"))
}

#[test]
fn listings_go_on_beside_it_and_mark_it() {
    for who in either() {
        let place = Place::new(who);
        let (stuck, also, busy, idle) = (
            LiveSandbox::new(&place, &[]),
            LiveSandbox::new(&place, &[]),
            LiveSandbox::new(&place, &[]),
            LiveSandbox::new(&place, &[]),
        );
        let (held, other) = (stuck.detach(&[], "sleep 100"), busy.detach(&[], "sleep 100"));
        let stopped = [Stopped::new(&stuck), Stopped::new(&also)];
        let all_stopped = || stopped.iter().all(Stopped::is_stopped);
        // Other keepers answer, on a busy host perhaps not at the first attempt.
        soon(|| {
            let rows = place.json(&["ls"])["sandboxes"].clone();
            for (live, keeper) in [(&stuck, &stopped[0]), (&also, &stopped[1])] {
                let row = of(&rows, "id", &live.id);
                assert_eq!((&row["state"], &row["live"]), (&json!("silent"), &json!(true)), "{who:?}");
                assert!(row["silent"].as_str().unwrap().contains(&format!("pid {}", keeper.0)), "{row}");
            }
            of(&rows, "id", &busy.id)["state"] == "running" && of(&rows, "id", &idle.id)["state"] == "active"
        });
        soon(|| {
            let rows = place.json(&["top"])["sandboxes"].clone();
            let row = of(&rows, "id", &stuck.id);
            assert_eq!((&row["state"], &row["runs"]), (&json!("silent"), &json!(1)), "{who:?}");
            // Figures from the kernel need no keeper.
            assert!(row["processes"].as_u64().unwrap() > 1 && row["memory_bytes"].as_u64().unwrap() > 0, "{row}");
            let row = of(&rows, "id", &busy.id);
            row["state"] == "running" && row["runs"] == 1 && row["net_bytes"].is_u64()
        });
        soon(|| {
            let runs = place.json(&["ps"])["runs"].clone();
            assert!(of(&runs, "run", &held)["silent"].is_string(), "{runs:#}");
            of(&runs, "run", &other)["silent"].is_null()
        });
        let whole = stuck.inspect();
        assert_eq!((&whole["standing"], &whole["running"][0]["run"]), (&json!("silent"), &json!(held)));
        let table = place.verb(&["ls"]);
        assert!(text(&table.stdout).contains("silent") && text(&table.stderr).contains("did not answer"));
        assert!(text(&place.verb(&["ps"]).stdout).contains("(silent)"));
        place.json(&["gc"]);
        assert_eq!(place.json(&["fsck"])["problems"], json!([]));
        assert!(all_stopped(), "{who:?}: all of this was answered while they were");
        // After SIGCONT the state is as before.
        drop(stopped);
        soon(|| {
            let rows = place.json(&["ls"])["sandboxes"].clone();
            of(&rows, "id", &stuck.id)["state"] == "running" && of(&rows, "id", &also.id)["state"] == "active"
        });
        assert_eq!(stuck.sh(&[], "echo here", b"").stdout, b"here\n");
    }
}

#[test]
fn what_is_asked_of_it_is_refused_in_time_and_not_done_later() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let run = live.detach(&[], "while [ ! -e end ]; do sleep 0.05; done");
    let stopped = Stopped::new(&live);
    let id = live.id.as_str();
    let within = format!("{id}:file");
    let verbs: &[&[&str]] = &[
        // `--json` stands first here: appended after `-c`, it would be the shell's `$0`.
        &["exec", "--json", id, "--", "sh", "-c", "touch done"],
        &["kill", &run],
        &["files", "ls", &within],
        &["suspend", id],
        &["resume", id],
        &["start", id],
        &["rm", id],
    ];
    std::thread::scope(|scope| {
        for words in verbs {
            let (place, words) = (&place, *words);
            scope.spawn(move || {
                let fault = place.fault(words, "unavailable");
                assert_eq!((&fault["subject"], &fault["retry"]), (&json!(id), &json!("later")), "{words:?} {fault}");
                let hint = fault["hint"].as_str().unwrap();
                assert!(hint.contains("stop") && hint.contains("rm --force"), "{words:?}: {hint}");
            });
        }
    });
    assert!(stopped.is_stopped(), "all of it was refused while it was");
    drop(stopped);
    // The control: the active run continues, and no refused request was kept for later.
    assert_eq!(live.sh(&[], "ls; touch end", b"").stdout, b"");
    assert_eq!(live.outcome(&run)["success"], true);
}

#[test]
fn it_can_be_stopped_and_removed() {
    for who in either() {
        let place = Place::new(who);
        let (stops, goes) = (LiveSandbox::new(&place, &[]), LiveSandbox::new(&place, &[]));
        let runs = [&stops, &goes].map(|live| live.detach(&[], "echo kept > file; touch ready; sleep 100"));
        for live in [&stops, &goes] {
            soon(|| live.sh(&[], "test -e ready", b"").status.success());
        }
        let stopped = [Stopped::new(&stops), Stopped::new(&goes)];
        let (halted, removed) = std::thread::scope(|scope| {
            let halted = scope.spawn(|| place.json(&["stop", "-t", "0", &stops.id]));
            let removed = scope.spawn(|| place.json(&["rm", "--force", "-t", "0", &goes.id])["removed"][0].clone());
            (halted.join().unwrap(), removed.join().unwrap())
        });
        for (done, run) in [(&halted, &runs[0]), (&removed, &runs[1])] {
            assert_eq!((&done["changed"], &done["ended"][0]["run"]), (&json!(true), &json!(run)), "{who:?} {done}");
            assert_eq!(done["ended"][0]["killed"], true, "{done}");
        }
        for keeper in &stopped {
            assert!(!std::path::Path::new(&format!("/proc/{}/cwd", keeper.0)).exists(), "{who:?}: it is gone");
        }
        assert_eq!(stops.inspect()["standing"], "stopped");
        assert_eq!(stops.outcome(&runs[0])["verdict"], "lost", "its end is unknown");
        place.fault(&["inspect", &goes.id], "not_found");
        // Files that it had written are there.
        place.json(&["start", &stops.id]);
        assert_eq!(stops.sh(&[], "cat file", b"").stdout, b"kept\n", "{who:?}");
    }
}

/// Sends a frame to a keeper's socket, as a client does.
fn send(socket: &mut UnixStream, ask: Value) {
    let text = ask.to_string();
    let head = [(text.len() as u32).to_le_bytes(), 0u32.to_le_bytes()].concat();
    socket.write_all(&[&head, text.as_bytes()].concat()).unwrap();
}

/// A client that timed out was told that no command started; the command must not start when the keeper continues.
#[test]
fn a_command_whose_asker_gave_up_is_not_begun() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let dir = File::open(place.state().join("keepers").join(&live.id)).unwrap();
    let asked = |file: &str| {
        let mut socket = UnixStream::connect(format!("/proc/self/fd/{}/sock", dir.as_raw_fd())).unwrap();
        send(&mut socket, json!({"ask": "start", "command": ["touch", file], "actor": "test"}));
        socket
    };
    let stopped = Stopped::new(&live);
    drop(asked("left"));
    let stays = asked("stayed");
    drop(stopped);
    soon(|| live.sh(&[], "test -e stayed", b"").status.success());
    drop(stays);
    assert_eq!(live.sh(&[], "ls", b"").stdout, b"stayed\n");
}

/// Unanswered list requests leave their connections behind; with the backlog full, the keeper still counts as silent
/// and can be killed.
#[test]
fn however_often_it_was_asked_it_can_be_ended() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let stopped = Stopped::new(&live);
    let dir = File::open(place.state().join("keepers").join(&live.id)).unwrap();
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/sock", dir.as_raw_fd())).unwrap();
    let mut held = Vec::new();
    let full = loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        match connect(&socket, &address) {
            Ok(()) => held.push(socket),
            Err(e) => break e,
        }
    };
    assert_eq!(full, rustix::io::Errno::AGAIN);
    assert_eq!(live.inspect()["standing"], "silent");
    assert_eq!(place.json(&["stop", "-t", "0", &live.id])["changed"], true);
    assert!(!stopped.is_stopped() && live.inspect()["standing"] == "stopped");
}
