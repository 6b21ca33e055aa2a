//! Backups of the store, older and newer stores, and `fsck`.

use crate::daemon::{Daemon, Running};
use crate::support::{As, Place, either, to_the_end};
use serde_json::Value;
use std::fs;

/// Runs a verb with `--json`; returns its exit status and its document.
fn ask(place: &Place, args: &[&str]) -> (i32, Value) {
    let output = to_the_end(place.cofferdam(args).arg("--json"), b"");
    let document = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap_or(-1), document)
}

#[track_caller]
fn done(place: &Place, args: &[&str]) -> Value {
    let (code, document) = ask(place, args);
    assert_eq!(code, 0, "{args:?}: {document:#}");
    document
}

fn problems(document: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    document["problems"].as_array().unwrap().iter().map(|p| (text(&p["kind"]), text(&p["id"]))).collect()
}

// promise 26
#[test]
fn a_copy_brings_back_what_was_there() {
    for who in either() {
        let place = Place::new(who);
        let kept = done(&place, &["create"])["id"].as_str().unwrap().to_owned();
        let file = place.root.join("home/copy.db");
        let file = file.to_str().unwrap();
        let made = done(&place, &["backup", file]);
        assert!(made["entries"].as_u64().unwrap() > 0);
        assert_eq!(ask(&place, &["backup", file]).1["error_kind"], "conflict", "nothing is written over");
        let lost = done(&place, &["create"])["id"].as_str().unwrap().to_owned();
        let restored = done(&place, &["backup", "--restore", file]);
        assert!(restored["entries_before"].as_u64() > restored["entries"].as_u64());
        assert!(fs::metadata(restored["before"].as_str().unwrap()).unwrap().is_dir());
        assert_eq!(done(&place, &["inspect", &kept])["id"], kept.as_str());
        assert_eq!(ask(&place, &["inspect", &lost]).1["error_kind"], "not_found");
        done(&place, &["audit", "verify"]);
        // Layers created after the backup are reported as leftovers, and gc removes them.
        let (code, found) = ask(&place, &["fsck"]);
        assert!(code == 1 && problems(&found).iter().all(|(kind, _)| kind == "layer"), "{found:#}");
        let (code, found) = ask(&place, &["fsck", "--repair"]);
        assert_eq!(code, 0, "{found:#}");
        assert_eq!(ask(&place, &["backup", "--restore", "/nowhere"]).0, 2);
    }
}

#[test]
fn nothing_is_put_back_under_what_runs() {
    let place = Place::new(As::User);
    let id = done(&place, &["create"])["id"].as_str().unwrap().to_owned();
    let file = place.root.join("home/copy.db");
    let file = file.to_str().unwrap();
    done(&place, &["backup", file]);
    let mut run = Running::begin(place.cofferdam(["exec", &id, "--", "sleep", "60"]));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(180);
    while done(&place, &["ps"])["runs"].as_array().is_none_or(Vec::is_empty) {
        assert!(std::time::Instant::now() < deadline, "the run begins");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (_, refused) = ask(&place, &["backup", "--restore", file]);
    assert_eq!(refused["error_kind"], "conflict", "{refused:#}");
    // A backup can be made meanwhile.
    done(&place, &["backup", &format!("{file}-2")]);
    done(&place, &["stop", &id, "-t", "0"]);
    run.0.wait().unwrap();
    // A restore is refused under a daemon, too, wherever its socket is.
    let socket = place.state().join("other.sock");
    let daemon = Daemon::start(&place, &["--socket", socket.to_str().unwrap()], &[]);
    let (_, refused) = ask(&place, &["backup", "--restore", file]);
    assert!(refused["message"].as_str().is_some_and(|said| said.contains("the daemon uses")), "{refused:#}");
    done(&place, &["backup", &format!("{file}-3")]);
    daemon.end();
    done(&place, &["backup", "--restore", file]);
}

/// `fsck` reports nothing for a sound state, and each planted flaw by its name and nothing else.
#[test]
fn every_planted_flaw_is_found() {
    for who in either() {
        let place = Place::new(who);
        let id = done(&place, &["create"])["id"].as_str().unwrap().to_owned();
        place.cofferdam(["exec", &id, "--", "touch", "new"]).status().unwrap();
        let found = done(&place, &["fsck"]);
        assert_eq!((&found["sandboxes"], &found["layers"]), (&1.into(), &1.into()), "{found:#}");
        let layer = done(&place, &["inspect", &id])["layers"][0].as_str().unwrap().to_owned();
        let layers = place.state().join("layers");
        let flaw = |kind: &str, id: &str| {
            let (code, found) = ask(&place, &["fsck"]);
            assert_eq!((code, problems(&found)), (1, vec![(kind.to_owned(), id.to_owned())]), "{found:#}");
        };
        // A missing layer.
        fs::rename(layers.join(&layer), place.root.join("away")).unwrap();
        flaw("missing_layer", &layer);
        fs::rename(place.root.join("away"), layers.join(&layer)).unwrap();
        // A layer without a record.
        let stray = format!("lay_{}", "0".repeat(32));
        place.dir(layers.join(&stray).join("up"));
        place.dir(layers.join(&stray).join("work"));
        flaw("layer", &stray);
        fs::remove_dir_all(layers.join(&stray)).unwrap();
        // A missing base directory.
        fs::rename(&place.project, place.home.join("elsewhere")).unwrap();
        let mut outside = place.cofferdam(["fsck", "--json"]);
        let output = to_the_end(outside.current_dir(&place.home), b"");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(problems(&found), [("base".to_owned(), id.clone())]);
        fs::rename(place.home.join("elsewhere"), &place.project).unwrap();
        // A keeper directory of an unknown sandbox.
        let stray = format!("sbx_{}", "0".repeat(32));
        let card = r#"{"pid":1,"pid_start":1,"boot":"b","version":"0","since_ms":0}"#;
        place.file(place.state().join("keepers").join(&stray).join("keeper.json"), card);
        flaw("keeper", &stray);
        fs::remove_dir_all(place.state().join("keepers").join(&stray)).unwrap();
        // A write that was cut short.
        place.file(place.state().join("journal.head.part"), "");
        flaw("file", "journal.head.part");
        fs::remove_file(place.state().join("journal.head.part")).unwrap();
        // A changed entry of the journal.
        let sql = "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); d.execute(sys.argv[2]); d.commit()";
        let edit = |sql_text: &str| {
            let store = place.state().join("store.db");
            let mut python = place.outside("/usr/bin/python3");
            assert!(python.args(["-c", sql]).arg(store).arg(sql_text).status().unwrap().success());
        };
        edit("UPDATE journal SET actor = actor || 'x' WHERE seq = 2");
        flaw("journal", "2");
        edit("UPDATE journal SET actor = substr(actor, 1, length(actor) - 1) WHERE seq = 2");
        done(&place, &["fsck"]);
    }
}

// promise 26
#[test]
fn an_older_store_is_brought_up_with_a_copy_kept_and_a_newer_one_refused() {
    let place = Place::new(As::User);
    done(&place, &["create"]);
    let version = |n: &str, sql: &str| {
        let text = format!(
            "import sqlite3; d=sqlite3.connect('{}'); d.executescript(\"{sql}; PRAGMA user_version = {n}\")",
            place.state().join("store.db").display()
        );
        assert!(place.outside("/usr/bin/python3").args(["-c", &text]).status().unwrap().success());
    };
    // Schema version 1.
    version("1", "DROP TABLE key; DROP INDEX record_open");
    assert_eq!(done(&place, &["ls"])["sandboxes"].as_array().unwrap().len(), 1);
    assert!(place.state().join("store.db.schema-1").exists());
    done(&place, &["audit", "verify"]);
    done(&place, &["fsck"]);
    version("99", "");
    let (code, refused) = ask(&place, &["ls"]);
    assert_eq!((code, &refused["error_kind"]), (125, &"unsupported_host".into()), "{refused:#}");
    assert!(refused["message"].as_str().unwrap().contains("newer version"));
}
