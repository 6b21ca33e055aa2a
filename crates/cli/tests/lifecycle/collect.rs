//! Garbage collection: the preview is what goes, active and wanted objects stay, and leftovers of crashes are adopted.

use super::words::{Verbs, text};
use crate::support::{As, Place, either};
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

fn items(document: &Value) -> Vec<(String, String)> {
    let word = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
    document["items"].as_array().unwrap().iter().map(|item| (word(item, "sort"), word(item, "id"))).collect()
}

// promise 18
#[test]
fn what_is_listed_is_what_goes() {
    for who in either() {
        let place = Place::new(who);
        let kept = place.create(&[]);
        let short = place.create(&["--ttl", "1ms"]);
        let idle = place.create(&["--idle", "1ms"]);
        let later = place.create(&["--ttl", "1h", "--idle", "1h"]);
        assert!(place.verb(&["exec", &short, "--", "sh", "-c", "echo 0123456789 > file"]).status.success());
        std::thread::sleep(Duration::from_millis(20));
        // An unreferenced layer, a partial one, and a foreign directory.
        let orphan = place.dir("state/layers/lay_00000000000000000000000000000000/up");
        place.file(orphan.join("file"), "x");
        place.dir("state/layers/lay_11111111111111111111111111111111");
        let foreign = place.dir("state/layers/other");
        let rows = place.json(&["ls"])["sandboxes"].as_array().unwrap().clone();
        assert_eq!(rows.iter().filter(|row| row["expired"].is_string()).count(), 2, "told before it goes");
        std::thread::sleep(Duration::from_millis(2100));
        let listed = place.json(&["gc", "--dry-run"]);
        assert_eq!(place.states().len(), 4, "{who:?}: listing takes nothing");
        let gone = place.json(&["gc"]);
        assert_eq!((&listed["items"], &listed["bytes"]), (&gone["items"], &gone["bytes"]), "{who:?}");
        let mut ids: Vec<String> = items(&gone).into_iter().map(|(_, id)| id).collect();
        ids.sort();
        let mut want = vec![short, idle, "lay_".to_owned() + &"0".repeat(32), "lay_".to_owned() + &"1".repeat(32)];
        want.sort();
        assert_eq!(ids, want);
        assert!(gone["bytes"].as_u64().unwrap() >= 4096, "{gone}");
        let mut left: Vec<String> = place.states().into_iter().map(|(id, _)| id).collect();
        left.sort();
        let mut want = vec![kept, later];
        want.sort();
        assert_eq!(left, want);
        assert!(foreign.exists());
        assert_eq!(place.layers().len(), 3);
        assert!(items(&place.json(&["gc"])).is_empty(), "once more finds nothing");
        place.audit();
    }
}

// promise 18
#[test]
fn an_expired_sandbox_is_not_collected_while_it_runs() {
    let place = Place::new(As::User);
    let id = place.create(&["--ttl", "1ms"]);
    let mut command = place.cofferdam(["exec", &id, "--", "sh", "-c", "touch begun; sleep 600"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = place.layers()[0].join("up/begun");
    while !begun.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(items(&place.json(&["gc"])).is_empty());
    assert!(child.try_wait().unwrap().is_none());
    place.json(&["stop", &id]);
    child.wait().unwrap();
    assert_eq!(items(&place.json(&["gc"])), [("expired".to_owned(), id)]);
    assert!(place.layers().is_empty());
}

/// A run killed together with its supervisor leaves its sandbox behind, which was recorded while the run went on.
// promise 18
#[test]
fn what_a_killed_run_changed_is_kept() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/file", "before\n");
        for (script, changes, content) in [("echo after > file", 1, "after\n"), ("true", 0, "before\n")] {
            let script = format!("{script}; echo ready; sleep 600");
            let mut command = place.cofferdam(["run", "--", "sh", "-c", &script]);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut ready = [0u8; 6];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
            let runs = place.json(&["ps"])["runs"].as_array().unwrap().clone();
            assert_eq!(runs.len(), 1, "{who:?}: a run is seen, recorded or not");
            assert!(runs[0]["command"].to_string().contains("sleep 600"), "{runs:?}");
            while place.states().is_empty() {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(items(&place.json(&["gc"])).is_empty(), "control: what runs is left alone");
            child.kill().unwrap();
            child.wait().unwrap();
            let mut listed = Vec::new();
            for _ in 0..200 {
                listed = items(&place.json(&["gc", "-n"]));
                if !listed.is_empty() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(items(&place.json(&["gc"])), listed, "{who:?}");
            assert_eq!((listed.len(), listed[0].0.as_str()), (1, "lost_run"), "{who:?} {listed:?}");
            let states = place.states();
            assert_eq!((states.len(), states[0].1.as_str()), (1, "active"), "{who:?}");
            assert_eq!(place.json(&["inspect", &states[0].0])["pending"]["changes"], changes);
            let seen = place.verb(&["exec", &states[0].0, "--", "cat", "file"]);
            assert_eq!(text(&seen.stdout), content, "{}", text(&seen.stderr));
            assert_eq!(fs::read_to_string(place.project.join("file")).unwrap(), "before\n");
            place.json(&["rm", &states[0].0]);
            assert!(place.layers().is_empty());
        }
    }
}

/// A lost store is rebuilt from the descriptions on disk.
#[test]
fn a_lost_store_is_made_again_from_what_lies_on_the_disk() {
    let place = Place::new(As::User);
    let id = place.create(&["--name", "fix", "--reserve", "src", "--limit", "wall=30s"]);
    assert!(place.verb(&["exec", &id, "--", "sh", "-c", "echo x > file"]).status.success());
    let before = place.json(&["inspect", &id]);
    fs::remove_file(place.state().join("store.db")).unwrap();
    let gone = place.fault(&["ls"], "unavailable");
    assert!(gone["message"].as_str().unwrap().contains("is gone"), "{gone}");
    for name in ["journal.head", "store.db-wal", "store.db-shm"] {
        fs::rename(place.state().join(name), place.root.join(name)).unwrap();
    }
    assert_eq!(items(&place.json(&["gc"]))[0].0, "adopted");
    let after = place.json(&["inspect", &id]);
    for field in ["id", "name", "base", "layers", "since", "policy", "limits", "reserve", "pending"] {
        assert_eq!(before[field], after[field], "{field}");
    }
}

/// A layer whose sandbox is recorded as removed, or as having given it up, is not a crash's leftover: it is not
/// adopted again.
#[test]
fn what_was_given_up_is_not_taken_up_again() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    assert!(place.verb(&["exec", &id, "--", "sh", "-c", "echo x > file"]).status.success());
    let layer = place.layers().remove(0);
    let copied = |from: &std::path::Path, to: &std::path::Path| {
        assert!(std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    place.dir("keep");
    copied(&layer, &place.root.join("keep"));
    place.json(&["rm", &id]);
    copied(&place.root.join("keep").join(layer.file_name().unwrap()), &layer);
    assert_eq!(items(&place.json(&["gc"]))[0].0, "dead_layer");
    assert!(place.states().is_empty() && place.layers().is_empty());
}
