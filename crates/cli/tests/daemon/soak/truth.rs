//! Invariants that hold after any sequence of requests and kills.

use super::{Body, KeyedRequest, Soak};
use crate::soak::killer::Killer;
use crate::support::left::{census, soon};
use crate::support::replay::{Contents, contents, journal};
use crate::support::{Place, to_the_end};
use crate::words::Verbs;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// Findings of `fsck` without control groups: other tests on this host have theirs.
fn problems(place: &Place) -> Vec<Value> {
    let output = to_the_end(&mut place.cofferdam(["fsck", "--json"]), b"");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let all = report["problems"].as_array().unwrap_or_else(|| panic!("{output:?}")).clone();
    all.into_iter().filter(|problem| problem["kind"] != "group").collect()
}

/// Checks after a restart, while clients are paused: the daemon is ready, a repeated request gets its response again,
/// and the records are true except for what a collection removes.
pub fn after_a_restart(soak: &Soak) {
    let ready = soak.send("GET", "/v1/health/ready", None, &Body::None).flatten();
    if ready.as_ref().is_none_or(|answer| answer.status != 200) {
        soak.report_violation(format!("not ready: {ready:?}"));
    }
    let keyed: Vec<KeyedRequest> = soak.record.lock().unwrap().keyed.values().cloned().collect();
    keyed.iter().for_each(|keyed| repeat(soak, keyed));
    let left: Vec<Value> = problems(&soak.place).into_iter().filter(|problem| problem["collectable"] != true).collect();
    if !left.is_empty() {
        soak.report_violation(format!("after a restart: {left:?}"));
    }
}

/// An answered request gets the same result again; one that was cut off gets one consistent answer from now on.
fn repeat(soak: &Soak, keyed: &KeyedRequest) {
    let again = || {
        let body = Body::Json(keyed.body.clone());
        let answer = soak.send("POST", &keyed.path, Some(&keyed.key), &body).flatten();
        let Some(answer) = answer else {
            soak.report_violation(format!("{keyed:?}: no answer when asked again"));
            return None;
        };
        let said = answer.json();
        let fine = (200..300).contains(&answer.status);
        let gone = ["conflict", "not_found", "unavailable"].iter().any(|kind| said["error_kind"] == *kind);
        (!fine && !gone).then(|| soak.report_violation(format!("{keyed:?}: asked again: {said}")));
        fine.then_some(said)
    };
    let name = |said: &Value| ["id", "run", "sandboxes"].map(|field| said[field].clone());
    let first = keyed.answer.clone().or_else(again);
    let second = again();
    match (&first, &second) {
        (Some(first), Some(second)) if name(first) != name(second) => {
            soak.report_violation(format!("{keyed:?}: then {first}, now {second}"));
        }
        (Some(first), None) => {
            // A refusal is right only if the created object is gone.
            let made = first["id"].as_str().or(first["sandbox"].as_str()).unwrap_or_default();
            let sort = if made.starts_with("snp") { "snapshots" } else { "sandboxes" };
            let there = soak.send("GET", &format!("/v1/{sort}/{made}"), None, &Body::None).flatten();
            let there = !made.is_empty() && there.is_some_and(|answer| answer.status == 200);
            there.then(|| soak.report_violation(format!("{keyed:?}: {made} is there, and it is not told so")));
        }
        _ => {}
    }
}

/// The journal is complete, contains everything acknowledged and nothing that was not requested, and explains the
/// directory.
pub fn sound(soak: &Soak, first: Contents) {
    after_a_restart(soak);
    let record = soak.record.lock().unwrap();
    assert!(record.violations.is_empty(), "{:#?}", record.violations);
    let place = &soak.place;
    place.audit();
    let (explained, told) = record.reviews.replayed(place, first);
    assert_eq!(contents(place), explained, "the directory is what the journal explains");
    let missing: Vec<_> = record.landed.difference(&told).collect();
    assert!(missing.is_empty(), "acknowledged, and not in the journal: {missing:?}");
    let cut = ["approve", "undo"].iter().filter_map(|verb| record.cut.get(verb)).sum::<u32>();
    let unasked = told.difference(&record.landed).count();
    assert!(unasked <= cut as usize, "{unasked} landed without a word, and {cut} were cut off");
    let entries = journal(place);
    let known = |id: &str| {
        let is = |entry: &Value| entry["subject"] == id || entry["body"].to_string().contains(id);
        entries.iter().any(is)
    };
    let all = record.sandboxes.iter().chain(&record.snapshots).chain(&record.runs);
    let unknown: Vec<_> = all.filter(|id| !known(id)).collect();
    assert!(unknown.is_empty(), "acknowledged, and not in the journal: {unknown:?}");
}

/// After all sandboxes are removed, nothing is left of them: no process, mount, control group, layer or file in the
/// directory.
pub fn empty(soak: &Soak, killer: Killer<'_>) {
    let place = &soak.place;
    let cleared = || {
        for (id, _) in place.states() {
            to_the_end(&mut place.cofferdam(["rm", "--force", "-t", "0", &id]), b"");
        }
        for shot in place.json(&["snapshot", "ls"])["snapshots"].as_array().unwrap() {
            place.json(&["snapshot", "rm", shot["id"].as_str().unwrap()]);
        }
        let collected = place.json(&["gc"]);
        collected.get("failed").is_none() && place.layers().is_empty() && place.states().is_empty()
    };
    assert!(soon(cleared), "{:?} {:?}", place.layers(), place.states());
    assert_eq!(problems(place), Vec::<Value>::new());
    assert_eq!(place.json(&["gc", "--dry-run"])["items"], json!([]));
    let all = Command::new("find").arg(&place.project).args(["-name", ".cofferdam*"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&all.stdout), "", "nothing of a batch is left in the directory");
    let left = |dir: &str| fs::read_dir(place.state().join(dir)).into_iter().flatten().flatten().collect::<Vec<_>>();
    assert!(left("keepers").is_empty(), "{:?}", left("keepers"));
    // A base directory for a request in progress is kept for some minutes; it is empty.
    let cut = soak.record.lock().unwrap().cut.get("create").copied().unwrap_or_default();
    let young = left("bases");
    let empty = young.iter().all(|entry| fs::remove_dir(entry.path()).is_ok());
    assert!(empty && young.len() <= cut as usize, "{young:?}");
    let (keepers, daemon) = (killer.keepers, killer.daemon);
    drop(daemon);
    let root = place.root.to_str().unwrap();
    let gone = || census(root).is_empty() && census(&soak.mark).is_empty();
    assert!(soon(gone), "{:?} {:?}", census(root), census(&soak.mark));
    let groups = || {
        let found =
            Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", "cofferdam-*"]).output().unwrap();
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        let of = |line: &&str| keepers.iter().any(|pid| line.contains(&format!("/cofferdam-{pid}-")));
        found.lines().filter(of).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(soon(|| groups().is_empty()), "{:?}", groups());
    assert!(!crate::support::left::mounts(place).contains(root), "no mount of ours");
    place.audit();
}
