//! Create, list, inspect, start, remove; versions and idempotency keys.

use super::words::{Verbs, text};
use crate::support::{As, BOTH, Place, binary, either, to_the_end};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

#[test]
fn a_sandbox_from_create_to_rm() {
    for who in either() {
        let place = Place::new(who);
        let id = place.create(&["--name", "fix", "--ttl", "7d", "--limit", "wall=30s", "--deny-write", "src"]);
        assert!(id.starts_with("sbx_") && id.len() == 36);
        assert_eq!(place.states(), [(id.clone(), "active".to_owned())]);
        let whole = place.json(&["inspect", "fix"]);
        assert_eq!(
            (&whole["id"], &whole["version"], &whole["standing"]),
            (&id.clone().into(), &1.into(), &"active".into())
        );
        assert_eq!(whole["base"], place.project.to_str().unwrap());
        assert_eq!(whole["limits"]["max_wall_ms"], 30_000);
        assert_eq!(whole["pending"]["changes"], 0);
        assert!(whole["policy"].to_string().contains("src"), "the whole policy is kept");
        for (verb, state, version) in
            [("stop", "stopped", 2), ("stop", "stopped", 2), ("start", "active", 3), ("start", "active", 3)]
        {
            let moved = place.json(&[verb, &id]);
            assert_eq!(
                (moved["state"].as_str(), moved["version"].as_u64()),
                (Some(state), Some(version)),
                "{who:?} {verb}"
            );
        }
        // Any id prefix is accepted; without one, the current directory selects the sandbox.
        place.json(&["stop", &id[..10]]);
        place.json(&["start"]);
        let removed = place.json(&["rm", &id]);
        assert_eq!(removed["removed"][0]["changed"], true);
        assert_eq!(place.json(&["rm", &id])["removed"][0]["changed"], false, "once more is the same");
        assert!(place.states().is_empty() && place.layers().is_empty());
        let all = place.json(&["ls", "--all"]);
        assert_eq!(all["sandboxes"][0]["state"], "removed");
        let gone = place.fault(&["inspect", &id], "not_found");
        assert!(gone["message"].as_str().unwrap().contains("was removed"), "{gone}");
        place.fault(&["stop", "fix"], "not_found");
        place.create(&["--name", "fix"]);
        // create, two stops, two starts, rm and create, each with intent and result
        assert_eq!(place.audit(), 14, "{who:?}");
    }
}

#[test]
fn what_is_listed_is_for_people_and_for_programs() {
    let place = Place::new(As::User);
    let id = place.create(&["--name", "fix"]);
    let lines = text(&place.verb(&["ls"]).stdout);
    assert!(lines.starts_with("ID ") && lines.contains(&id[..16]) && lines.contains("fix"), "{lines}");
    let log = text(&place.verb(&["audit", "log", "fix"]).stdout);
    assert!(log.contains(" tester create intent ") && log.contains(" create done "), "{log}");
    assert_eq!(place.json(&["audit", "log", "-n", "1"])["entries"].as_array().unwrap().len(), 1);
    assert_eq!(text(&place.verb(&["audit", "verify"]).stdout), "2 entries, all unchanged\n");
}

// promise 19
#[test]
fn everything_that_is_kept_is_the_callers_alone() {
    for who in BOTH {
        let place = Place::new(who);
        place.create(&[]);
        let owner = if who == As::Root { 0 } else { crate::support::USER };
        let mode = |path: &str| {
            let meta = fs::metadata(place.state().join(path)).unwrap();
            assert_eq!(meta.uid(), owner, "{path}");
            meta.permissions().mode() & 0o777
        };
        for (path, want) in
            [("", 0o700), ("layers", 0o700), ("store.db", 0o600), ("store.db-wal", 0o600), ("journal.head", 0o600)]
        {
            assert_eq!(mode(path), want, "{path}");
        }
    }
}

// promise 18
#[test]
fn a_version_that_is_not_the_one_is_a_conflict() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    let conflict = place.fault(&["stop", &id, "--if-version", "7"], "conflict");
    assert_eq!(conflict["subject"], id.as_str());
    place.json(&["stop", &id, "--if-version", "1"]);
    place.fault(&["rm", &id, "--if-version", "1"], "conflict");
    place.fault(&["start", &id, "--if-version", "1"], "conflict");
    place.json(&["start", &id, "--if-version", "2"]);
    place.json(&["rm", &id, "--if-version", "3"]);
}

// promise 18
#[test]
fn a_key_means_one_request() {
    let place = Place::new(As::User);
    let first = place.json(&["create", "--idempotency-key", "k", "--name", "a", "--reserve", "src"]);
    let again = place.json(&["create", "--idempotency-key", "k", "--name", "a", "--reserve", "src"]);
    assert_eq!((&first["id"], &first["existed"], &again["existed"]), (&again["id"], &false.into(), &true.into()));
    let flags: [(&str, &[&str]); 6] = [
        ("name", &["--name", "b", "--reserve", "src"]),
        ("reserve", &["--name", "a"]),
        ("ttl_ms", &["--name", "a", "--reserve", "src", "--ttl", "1h"]),
        ("policy", &["--name", "a", "--reserve", "src", "--deny-read", "x"]),
        ("limits", &["--name", "a", "--reserve", "src", "--limit", "wall=1s"]),
        ("directory", &["--name", "a", "--reserve", "src", "sub"]),
    ];
    place.dir("home/project/sub");
    for (field, words) in flags {
        let fault = place.fault(&[&["create", "--idempotency-key", "k"], words].concat(), "conflict");
        assert!(fault["message"].as_str().unwrap().contains(&format!("another {field}")), "{field}: {fault}");
        assert_eq!(fault["subject"], first["id"]);
    }
    assert_eq!(place.layers().len(), 1, "what is refused leaves nothing");
    place.json(&["rm", first["id"].as_str().unwrap()]);
    place.fault(&["create", "--idempotency-key", "k", "--name", "a", "--reserve", "src"], "conflict");
    place.fault(&["create", "--idempotency-key", "a b"], "invalid_request");
}

/// Fifty concurrent requests under one key create one sandbox, and each gets its id.
// promise 18
#[test]
fn a_key_means_one_sandbox_however_many_ask() {
    let place = Place::new(As::User);
    let ids: Vec<String> = std::thread::scope(|scope| {
        let ask = || place.create(&["--idempotency-key", "storm"]);
        let asked: Vec<_> = (0..50).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!((place.states().len(), place.layers().len()), (1, 1));
}

#[test]
fn bad_requests_are_named_and_leave_nothing() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/file", "x");
        place.create(&["--name", "taken"]);
        let cases: [(&[&str], &str, &str); 14] = [
            (&["missing"], "invalid_request", "missing"),
            (&["file"], "invalid_request", "file"),
            (&["--name", ""], "invalid_request", "name"),
            (&["--name=-x"], "invalid_request", "does not begin with a letter"),
            (&["--name", "a b"], "invalid_request", "name"),
            (&["--name", "sbx_0123456789ab"], "invalid_request", "looks like an id"),
            (&["--name", "taken"], "conflict", "has that name"),
            (&["--ttl", "soon"], "invalid_request", "--ttl"),
            (&["--reserve", "../up"], "invalid_request", "--reserve"),
            (&["--reserve", "/etc"], "invalid_request", "--reserve"),
            (&["-p", "no-such-preset"], "invalid_request", "no-such-preset"),
            (&["--limit", "wall=fast"], "invalid_request", "wall"),
            (&["--template", "none"], "not_found", "none"),
            (&["--limit", "max_net_bytes=5"], "unsupported_limit", "network"),
        ];
        for (words, kind, says) in cases {
            let fault = place.fault_of(&[&["create"], words].concat(), kind);
            assert!(fault.contains(says), "{who:?} {words:?}: {fault}");
        }
        assert_eq!((place.states().len(), place.layers().len()), (1, 1), "{who:?}");
        place.fault(&["inspect", "nothing"], "not_found");
        place.fault(&["stop", "sbx_0000"], "not_found");
        place.create(&["--name", "free", "--reserve", "."]);
    }
}

/// The state directory and directories that guests write to never overlap, under any name.
// promise 12, 18
#[test]
fn the_state_and_a_workspace_never_lie_in_one_another() {
    for who in either() {
        let place = Place::new(who);
        let apart = place.create(&[]);
        let (state, root) = (place.state(), place.root.clone());
        let link = place.root.join("link");
        symlink(&root, &link).unwrap();
        for dir in [state.clone(), state.join("layers"), root.clone(), link, "/".into(), place.layers()[0].join("up")] {
            let fault = place.fault(&["create", dir.to_str().unwrap()], "invalid_request");
            assert!(fault["message"].as_str().unwrap().contains("the state directory"), "{who:?} {dir:?}: {fault}");
        }
        assert_eq!(place.states(), [(apart, "active".to_owned())]);
    }
}

#[test]
fn a_base_that_is_gone_or_replaced_is_told() {
    let place = Place::new(As::User);
    let base = place.dir("home/other");
    let id = place.create(&[base.to_str().unwrap()]);
    assert_eq!(place.json(&["inspect", &id])["base_is"], "present");
    fs::rename(&base, place.home.join("moved")).unwrap();
    assert_eq!(place.json(&["inspect", &id])["base_is"], "gone");
    place.dir("home/other");
    assert_eq!(place.json(&["inspect", &id])["base_is"], "replaced");
    let refused = place.verb(&["exec", &id, "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    place.json(&["rm", &id]);
    assert!(place.layers().is_empty());
}

/// A change of the base right after create is newer than the workspace, and reported as drift.
// promise 14
#[test]
fn a_change_right_after_create_is_drift() {
    let place = Place::new(As::User);
    let file = place.file("home/project/file", "before\n");
    for n in 0..10 {
        let id = place.create(&[]);
        fs::write(&file, format!("{n}\n")).unwrap();
        let wrote = place.verb(&["exec", &id, "--", "sh", "-c", "echo inside > file"]);
        assert!(wrote.status.success(), "{}", text(&wrote.stderr));
        let whole = place.json(&["inspect", &id]);
        assert_eq!((&whole["pending"]["changes"], &whole["pending"]["drifted"]), (&1.into(), &1.into()));
        place.json(&["rm", &id]);
    }
    let id = place.create(&[]);
    assert!(place.verb(&["exec", &id, "--", "sh", "-c", "echo inside > file"]).status.success());
    assert_eq!(place.json(&["inspect", &id])["pending"]["drifted"], 0, "control: what did not change is no drift");
}

/// Create does not walk the tree, so its cost does not grow with it.
// promise 18
#[test]
fn create_costs_the_same_over_any_tree() {
    let place = Place::new(As::User);
    let many = place.dir("home/many");
    for d in 0..40 {
        let dir = place.dir(many.join(d.to_string()));
        (0..500).for_each(|f| fs::write(dir.join(f.to_string()), "x").unwrap());
    }
    // Counts system calls, because load does not change their number.
    let calls = |dir: &str| {
        let log = place.file("calls", "");
        let mut command = place.outside("/usr/bin/strace");
        command.args(["-f", "-qq", "-o"]).arg(&log).arg(binary()).args(["create", dir]);
        assert!(to_the_end(&mut command, b"").status.success());
        fs::read_to_string(&log).unwrap().lines().count()
    };
    place.create(&["."]);
    let (few, many) = (calls("."), calls(many.to_str().unwrap()));
    println!("{few} calls over an empty tree, {many} over 20,000 files");
    assert!(few > 100 && many < few + 100, "{few} calls over an empty tree, {many} over 20,000 files");
}

/// A fault, with or without a hint.
fn fault_any(place: &Place, words: &[&str], kind: &str) -> serde_json::Value {
    let output = place.verb(&[words, &["--json"]].concat());
    let fault: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(fault["error_kind"], kind, "{words:?}: {fault} {}", text(&output.stderr));
    fault
}

trait Texts {
    fn fault_of(&self, words: &[&str], kind: &str) -> String;
}

impl Texts for Place {
    fn fault_of(&self, words: &[&str], kind: &str) -> String {
        fault_any(self, words, kind)["message"].as_str().unwrap().to_owned()
    }
}
