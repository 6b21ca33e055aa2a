//! What must be so, whatever happened.

use super::{Body, Keyed, World};
use crate::soak::killer::Killer;
use crate::support::left::{census, soon};
use crate::support::replay::{Contents, contents, journal};
use crate::support::{Place, to_the_end};
use crate::words::Verbs;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// What `fsck` finds, without control groups: other tests of this machine have theirs.
fn problems(place: &Place) -> Vec<Value> {
    let output = to_the_end(&mut place.cofferdam(["fsck", "--json"]), b"");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let all = report["problems"].as_array().unwrap_or_else(|| panic!("{output:?}")).clone();
    all.into_iter().filter(|problem| problem["kind"] != "group").collect()
}

/// To be called while nobody asks: the daemon is ready, a repeated request gets its answer again, and the records are true but for
/// what a collection takes.
pub fn after_a_restart(world: &World) {
    let ready = world.send("GET", "/v1/health/ready", None, &Body::None).flatten();
    if ready.as_ref().is_none_or(|answer| answer.status != 200) {
        world.bad(format!("not ready: {ready:?}"));
    }
    let keyed: Vec<Keyed> = world.heard.lock().unwrap().keyed.values().cloned().collect();
    keyed.iter().for_each(|keyed| repeat(world, keyed));
    let left: Vec<Value> =
        problems(&world.place).into_iter().filter(|problem| problem["collectable"] != true).collect();
    if !left.is_empty() {
        world.bad(format!("after a restart: {left:?}"));
    }
}

/// What came of a request that was answered is told again; one that was cut off gets one answer from now on.
fn repeat(world: &World, keyed: &Keyed) {
    let again = || {
        let body = Body::Json(keyed.body.clone());
        let answer = world.send("POST", &keyed.path, Some(&keyed.key), &body).flatten();
        let Some(answer) = answer else {
            world.bad(format!("{keyed:?}: no answer when asked again"));
            return None;
        };
        let said = answer.json();
        let fine = (200..300).contains(&answer.status);
        let gone = ["conflict", "not_found", "unavailable"].iter().any(|kind| said["error_kind"] == *kind);
        (!fine && !gone).then(|| world.bad(format!("{keyed:?}: asked again: {said}")));
        fine.then_some(said)
    };
    let name = |said: &Value| ["id", "run", "sandboxes"].map(|field| said[field].clone());
    let first = keyed.answer.clone().or_else(again);
    let second = again();
    match (&first, &second) {
        (Some(first), Some(second)) if name(first) != name(second) => {
            world.bad(format!("{keyed:?}: then {first}, now {second}"));
        }
        (Some(first), None) => {
            // It may be refused only when what was made is gone.
            let made = first["id"].as_str().or(first["sandbox"].as_str()).unwrap_or_default();
            let sort = if made.starts_with("snp") { "snapshots" } else { "sandboxes" };
            let there = world.send("GET", &format!("/v1/{sort}/{made}"), None, &Body::None).flatten();
            let there = !made.is_empty() && there.is_some_and(|answer| answer.status == 200);
            there.then(|| world.bad(format!("{keyed:?}: {made} is there, and it is not told so")));
        }
        _ => {}
    }
}

/// The journal is whole, tells of all that was acknowledged and of nothing that nobody asked for, and explains the directory.
pub fn sound(world: &World, first: Contents) {
    after_a_restart(world);
    let heard = world.heard.lock().unwrap();
    assert!(heard.bad.is_empty(), "{:#?}", heard.bad);
    let place = &world.place;
    place.audit();
    let (explained, told) = heard.reviews.replayed(place, first);
    assert_eq!(contents(place), explained, "the directory is what the journal explains");
    let missing: Vec<_> = heard.landed.difference(&told).collect();
    assert!(missing.is_empty(), "acknowledged, and not in the journal: {missing:?}");
    let cut = ["approve", "undo"].iter().filter_map(|verb| heard.cut.get(verb)).sum::<u32>();
    let unasked = told.difference(&heard.landed).count();
    assert!(unasked <= cut as usize, "{unasked} landed without a word, and {cut} were cut off");
    let entries = journal(place);
    let known = |id: &str| {
        let is = |entry: &Value| entry["subject"] == id || entry["body"].to_string().contains(id);
        entries.iter().any(is)
    };
    let all = heard.sandboxes.iter().chain(&heard.snapshots).chain(&heard.runs);
    let unknown: Vec<_> = all.filter(|id| !known(id)).collect();
    assert!(unknown.is_empty(), "acknowledged, and not in the journal: {unknown:?}");
}

/// When all are removed, nothing is left of them: no process, no mount, no group, no layer, nothing in the directory.
pub fn empty(world: &World, killer: Killer<'_>) {
    let place = &world.place;
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
    assert!(soon(Duration::from_secs(30), cleared), "{:?} {:?}", place.layers(), place.states());
    assert_eq!(problems(place), Vec::<Value>::new());
    assert_eq!(place.json(&["gc", "--dry-run"])["items"], json!([]));
    let all = Command::new("find").arg(&place.project).args(["-name", ".cofferdam*"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&all.stdout), "", "nothing of a batch is left in the directory");
    let left = |dir: &str| fs::read_dir(place.state().join(dir)).into_iter().flatten().flatten().collect::<Vec<_>>();
    assert!(left("keepers").is_empty(), "{:?}", left("keepers"));
    // A directory that a request was about to use is kept for some minutes; there is nothing in it.
    let cut = world.heard.lock().unwrap().cut.get("create").copied().unwrap_or_default();
    let young = left("bases");
    let empty = young.iter().all(|entry| fs::remove_dir(entry.path()).is_ok());
    assert!(empty && young.len() <= cut as usize, "{young:?}");
    let (keepers, daemon) = (killer.keepers, killer.daemon);
    drop(daemon);
    let root = place.root.to_str().unwrap();
    let gone = || census(root).is_empty() && census(&world.mark).is_empty();
    assert!(soon(Duration::from_secs(10), gone), "{:?} {:?}", census(root), census(&world.mark));
    let groups = || {
        let found =
            Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", "cofferdam-*"]).output().unwrap();
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        let of = |line: &&str| keepers.iter().any(|pid| line.contains(&format!("/cofferdam-{pid}-")));
        found.lines().filter(of).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(soon(Duration::from_secs(10), || groups().is_empty()), "{:?}", groups());
    assert!(!crate::support::left::mounts().contains(root), "no mount of ours");
    place.audit();
}
