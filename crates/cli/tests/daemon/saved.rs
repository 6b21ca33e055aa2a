//! Keeper files on disk, damaged: cut, flipped, huge, or replaced by links and pipes. They are reported as unreadable
//! or lost, nothing is read or written elsewhere, and the daemon continues. The amount that is retained is bounded.

use crate::support::dice::Dice;
use crate::support::sse::events;
use crate::workspace_fixture::WorkspaceFixture;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SAID: &str = "what it said";
const CANARY: &str = "what another said";

fn first(log: &Path) -> PathBuf {
    log.join(format!("{:016x}.spool", 0))
}

/// Replaces a log by something else; the rest of the log is kept beside it.
fn harm(how: &str, log: &Path, foreign: &Path, dice: &mut Dice) {
    let segment = first(log);
    let bytes = fs::read(&segment).unwrap();
    // Rename is atomic: the daemon may be writing the loss of the run at this moment.
    let instead = |make: &dyn Fn(&Path)| {
        let beside = log.join("beside");
        make(&beside);
        if beside.is_dir() && !beside.is_symlink() {
            fs::remove_file(&segment).unwrap();
        }
        fs::rename(&beside, &segment).unwrap();
    };
    match how {
        "cut" => fs::write(&segment, &bytes[..dice.roll(bytes.len())]).unwrap(),
        "flipped" => {
            let mut bytes = bytes;
            for _ in 0..4 {
                let at = dice.roll(bytes.len());
                bytes[at] ^= 1 << dice.roll(8);
            }
            fs::write(&segment, bytes).unwrap();
        }
        "noise" => fs::write(&segment, (0..5000).map(|_| dice.roll(256) as u8).collect::<Vec<_>>()).unwrap(),
        "huge" => fs::OpenOptions::new().write(true).open(&segment).unwrap().set_len(1 << 40).unwrap(),
        "far" => fs::rename(&segment, log.join("ffffffffffffffff.spool")).unwrap(),
        "many" => (1..400u64).for_each(|n| fs::write(log.join(format!("{:016x}.spool", n << 24)), "").unwrap()),
        "empty" => fs::remove_file(&segment).unwrap(),
        "link" => instead(&|at| symlink(first(foreign), at).unwrap()),
        "device" => instead(&|at| symlink("/dev/zero", at).unwrap()),
        "pipe" => instead(&|at| assert!(Command::new("mkfifo").arg(at).status().unwrap().success())),
        "directory" => instead(&|at| fs::create_dir(at).unwrap()),
        "elsewhere" => {
            fs::rename(log, foreign.with_extension("aside")).unwrap();
            symlink(foreign, log).unwrap();
        }
        other => panic!("{other}"),
    }
}

const HARMS: [&str; 12] =
    ["cut", "flipped", "noise", "huge", "far", "many", "empty", "link", "device", "pipe", "directory", "elsewhere"];

// promise 25
#[test]
fn a_log_that_was_harmed_is_told_in_words_and_leads_nowhere() {
    let w = WorkspaceFixture::new();
    let id = w.make("s");
    let run = w.run("s", &format!("echo {SAID}; echo more >&2"))["run"].as_str().unwrap().to_owned();
    let other = w.run("s", &format!("echo {CANARY}"))["run"].as_str().unwrap().to_owned();
    w.daemon.ask("POST", "/v1/sandboxes/s/stop?timeout=0s").send().assert_ok();
    let logs = w.keeper(&id).join("runs");
    let (log, kept, foreign) = (logs.join(&run), w.place.root.join("kept"), w.place.root.join("foreign"));
    let copy = |from: &Path, to: &Path| {
        let _ = fs::remove_file(to);
        let _ = fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    copy(&log, &kept);
    copy(&logs.join(other), &foreign);
    assert!(w.output(&run).contains(SAID), "the control: {}", w.output(&run));
    copy(&foreign, &log);
    assert!(w.output(&run).contains(CANARY), "the control: what is really there is told");
    let mut dice = Dice::of(7, 0);
    for how in HARMS.into_iter().chain(["cut", "flipped", "noise"].into_iter().cycle().take(30)) {
        copy(&kept, &log);
        harm(how, &log, &foreign, &mut dice);
        w.own(&logs);
        let before = fs::read(first(&foreign)).unwrap();
        for path in ["/output", "/output?from=16", "?wait=1ms"].map(|end| format!("/v1/runs/{run}{end}")) {
            let text = w.daemon.ask("GET", &path).open().rest();
            assert!(!text.contains(CANARY), "{how}: {path}: {text}");
            let kinds = ["not_found", "invalid_request", "unavailable"];
            let is_told = text.starts_with("HTTP/1.1 200 ") || kinds.iter().any(|kind| text.contains(kind));
            assert!(is_told, "{how}: {path}: {text}");
        }
        assert_eq!(fs::read(first(&foreign)).unwrap(), before, "{how}");
        let known = w.daemon.get(&format!("/v1/runs/{run}")).assert_ok();
        assert_eq!(known["verdict"], "ok", "{how}: its record says how it ended");
    }
    copy(&kept, &log);
    w.own(&logs);
    assert!(w.output(&run).contains(SAID), "all is well once it is back");
}

/// A keeper is killed during a run and its log is damaged: the run is lost, and nothing is written elsewhere.
// promise 25
#[test]
fn a_run_whose_log_was_harmed_is_lost_and_nothing_is_written_elsewhere() {
    let w = WorkspaceFixture::new();
    let foreign = w.place.root.join("foreign");
    let mut dice = Dice::of(11, 0);
    for how in ["link", "elsewhere", "pipe", "noise", "far"] {
        let id = w.make(how);
        let run =
            w.daemon.post(&format!("/v1/sandboxes/{how}/runs"), json!({ "shell": format!("echo {SAID}; sleep 100") }));
        let run = run.assert_ok()["run"].as_str().unwrap().to_owned();
        let log = w.keeper(&id).join("runs").join(&run);
        until(|| fs::metadata(first(&log)).is_ok_and(|meta| meta.len() > 0));
        let card: Value = serde_json::from_slice(&fs::read(w.keeper(&id).join("keeper.json")).unwrap()).unwrap();
        assert!(Command::new("kill").args(["-KILL", &card["pid"].to_string()]).status().unwrap().success());
        let _ = fs::remove_dir_all(&foreign);
        assert!(Command::new("cp").arg("-a").arg(&log).arg(&foreign).status().unwrap().success());
        let before = fs::read(first(&foreign)).unwrap();
        harm(how, &log, &foreign, &mut dice);
        w.own(&w.keeper(&id));
        let told = w.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
        assert_eq!((&told["running"], &told["verdict"]), (&json!(false), &json!("lost")), "{how}: {told}");
        assert_eq!(fs::read(first(&foreign)).unwrap(), before, "{how}: nothing is written there");
        assert_eq!(w.run(how, "echo on")["outcome"]["stdout"], "on\n", "{how}: the sandbox goes on");
        w.daemon.ask("DELETE", &format!("/v1/sandboxes/{how}?force=true&timeout=0s")).send().assert_ok();
    }
}

/// The card names the process that keeps a sandbox. An unreadable card names no process: the sandbox counts as held,
/// and requests are refused with that reason.
// promise 25
#[test]
fn a_card_that_was_harmed_names_nobody() {
    let w = WorkspaceFixture::new();
    let id = w.make("s");
    w.daemon.ask("POST", "/v1/sandboxes/s/start?live=true").send().assert_ok();
    let card = w.keeper(&id).join("keeper.json");
    let whole = fs::read(&card).unwrap();
    let elsewhere = w.place.file("elsewhere", &whole);
    let begin = || w.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({ "command": ["true"] }));
    // Each replacement is a rename, because a keeper whose card is missing exits: no client could find it.
    let beside = w.keeper(&id).join("beside");
    let replace = || {
        w.own(&beside);
        fs::rename(&beside, &card).unwrap();
    };
    for how in ["garbage", "cut", "huge", "link", "device", "pipe"] {
        match how {
            "garbage" => fs::write(&beside, b"[[[\xff\0").unwrap(),
            "cut" => fs::write(&beside, &whole[..whole.len() - 9]).unwrap(),
            "huge" => fs::File::create(&beside).unwrap().set_len(1 << 40).unwrap(),
            "link" => symlink(&elsewhere, &beside).unwrap(),
            "device" => symlink("/dev/zero", &beside).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(&beside).status().unwrap().success()),
        }
        replace();
        let refused = begin();
        let looked = w.daemon.get("/v1/sandboxes/s");
        fs::write(&beside, &whole).unwrap();
        replace();
        refused.assert_fault(409, "conflict");
        looked.assert_ok();
        assert_eq!(begin().status, 201, "{how}: the control: the same keeper, by its own card");
    }
}

/// Output beyond the bound of one run and of all runs: dropped bytes are counted and reported, and the newest are
/// kept.
// promise 24
#[test]
fn what_is_kept_of_output_is_bounded_and_what_is_gone_is_said() {
    const ALL: u64 = 256 << 20;
    const ONE: u64 = 64 << 20;
    const EACH: u64 = 70_000_000;
    let w = WorkspaceFixture::new();
    let id = w.make("s");
    let flood = format!("head -c {EACH} /dev/zero | tr '\\0' x");
    let runs: Vec<Value> = (0..6).map(|_| w.run("s", &flood)).collect();
    let name = |run: &Value| run["run"].as_str().unwrap().to_owned();
    let logs = w.keeper(&id).join("runs");
    let sizes =
        |log: &Path| -> u64 { fs::read_dir(log).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum() };
    let there: Vec<PathBuf> = fs::read_dir(&logs).unwrap().map(|log| log.unwrap().path()).collect();
    let total: u64 = there.iter().map(|log| sizes(log)).sum();
    assert!(total <= ALL + ONE && there.iter().all(|log| sizes(log) <= ONE), "{total} in {}", there.len());
    for run in &runs {
        let outcome = &run["outcome"];
        let (said, told) =
            (outcome["usage"]["output_bytes"].as_u64(), outcome["stdout"].as_str().unwrap().len() as u64);
        assert_eq!(said, Some(EACH));
        assert_eq!(told + outcome["truncated"]["stdout"].as_u64().unwrap(), EACH, "what is not told is counted");
        assert!(
            outcome["message"].as_str().is_some_and(|text| text.contains("no longer kept")),
            "{}",
            outcome["message"]
        );
    }
    // The newest run: a gap event gives the range of dropped bytes, and the rest is complete to the byte.
    let all = events(&w.output(&name(&runs[5])));
    let gap = all.iter().find(|event| event.name == "gap").expect("a gap is told");
    let (from, to) = (gap.data["from"].as_u64().unwrap(), gap.data["to"].as_u64().unwrap());
    let pieces = all.iter().filter(|event| event.name == "stdout");
    let (count, bytes) = pieces.fold((0, 0), |(count, bytes), event| {
        (count + 1, bytes + event.data["data"].as_str().map_or(0, str::len) as u64)
    });
    let end = all.last().unwrap();
    assert!(from == 0 && end.name == "end" && bytes < EACH && count > 0, "{from} {bytes} {}", end.name);
    assert_eq!(runs[5]["outcome"]["usage"]["output_bytes"].as_u64(), Some(EACH));
    assert!(to > EACH - bytes, "what is gone is more than its bytes: each piece has a head");
    // The oldest run: its output is gone and reported so; its outcome is known.
    let gone = w.daemon.get(&format!("/v1/runs/{}/output", name(&runs[0]))).assert_fault(404, "not_found");
    assert!(gone["message"].as_str().unwrap().contains("no longer kept"), "{gone}");
    let known = w.daemon.get(&format!("/v1/runs/{}?wait=1ms", name(&runs[0]))).assert_ok();
    assert_eq!((&known["verdict"], &known["outcome"]["verdict"]), (&json!("ok"), &json!("ok")), "{known}");
    assert!(known["outcome"]["message"].as_str().unwrap().contains("no longer kept"), "{known}");
}

/// Command lines of active runs can exceed one message of a keeper; the runs are reported as running all the same.
// promise 24
#[test]
fn commands_with_endless_words_are_listed() {
    let w = WorkspaceFixture::new();
    w.make("s");
    let begin = |word: usize| {
        let ask = json!({ "command": ["/bin/sh", "-c", "read x", "sh", "w".repeat(word)], "input": true });
        w.daemon.post("/v1/sandboxes/s/runs", ask).assert_ok()["run"].as_str().unwrap().to_owned()
    };
    let at = |run: &str| w.daemon.get(&format!("/v1/runs/{run}")).assert_ok()["at"].clone();
    let plain = begin(10);
    assert_eq!(at(&plain)["input"], true, "the control");
    let long: Vec<String> = (0..10).map(|_| begin(120_000)).collect();
    for run in long.iter().chain([&plain]) {
        assert_eq!(at(run)["input"], true, "{run}");
    }
    w.daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok();
}

fn until(mut look: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if look() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it never came");
}
