//! Checks of each simulated disk: every acknowledged change is there, except exactly those that decision 28 lets a
//! power failure take; the base is as before or after an approval, never between; the store opens and the journal
//! verifies.

use crate::recorder::{Moment, Recorded, Recorder, run};
use crate::story::{Step, Story};
use crate::support::tree::tree;
use crate::support::{sample, unique};
use std::fs;
use std::path::PathBuf;

/// Power failures tried on each file system.
const MOMENTS: usize = 16;

/// A directory for one recording, removed on drop.
struct Root(PathBuf);

impl Root {
    fn new() -> Root {
        let root = PathBuf::from(format!("/srv/cofferdam-test-{}-power{}", std::process::id(), unique()));
        fs::create_dir_all(&root).unwrap();
        Root(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An occupied loop device, so that the next one gets another number: after a reboot devices are numbered anew.
struct Taken(String);

impl Taken {
    fn new(root: &Root) -> Taken {
        let file = root.0.join("taken");
        fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        Taken(run("losetup", &["--find", "--show", file.to_str().unwrap()]))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.0]);
    }
}

fn fails_at_any_moment(kind: &'static str) {
    let root = Root::new();
    let story = Story { root: root.0.clone() };
    let recorder = Recorder::start(&root.0, kind);
    let steps = story.tell(&recorder);
    let (first, last) = (steps[0].at, steps[steps.len() - 1].at);
    let recorded = recorder.end(last);
    let _taken = Taken::new(&root);
    fs::write(root.0.join("boot"), "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    let flushes = recorded.flushes(first);
    assert!(flushes.len() > steps.len(), "{kind}: {} flushes", flushes.len());
    println!("{kind}: COFFERDAM_TEST_SEED={}, {} flushes", sample::seed(), flushes.len());
    // Every other case keeps only flushed writes; the rest also keep a random part of the later ones.
    for (tried, n) in sample::indices(MOMENTS, flushes.len()).enumerate() {
        let chance = (tried % 2 == 1).then_some(sample::seed() + tried as u64);
        check(&story, &recorded, &steps, Moment { sure: flushes[n], seed: chance });
    }
}

/// Invariants after a power failure at any moment.
fn check(story: &Story, recorded: &Recorded, steps: &[Step], moment: Moment) {
    let done = steps.iter().take_while(|step| step.at <= moment.sure).count();
    let (acknowledged, next) = (&steps[done - 1], steps.get(done));
    let when = format!("{moment:?}, after {:?}, before {:?}", acknowledged.name, next.map(|step| step.name));
    println!("{when}");
    let _disk = recorded.failed_at(moment);
    let was = |name: &str| steps[..done].iter().any(|step| step.name == name);
    let now = |name: &str| next.is_some_and(|step| step.name == name);
    // The first verb completes or rolls back what was interrupted.
    let listed = story.json(&["ls", "--json"]);
    let base = tree(&story.base());
    let ends = [Some(acknowledged), next].into_iter().flatten();
    let same = ends.into_iter().any(|step| step.base == base);
    assert!(same, "{when}: the base is in between: {base:#?}");
    let names: Vec<&str> = listed["sandboxes"].as_array().unwrap().iter().filter_map(|s| s["name"].as_str()).collect();
    for (name, made, gone) in [("first", "create", ""), ("forked", "fork", ""), ("second", "create another", "remove")]
    {
        match (was(made), was(gone)) {
            (true, false) if !now(gone) => assert!(names.contains(&name), "{when}: {name} is gone: {names:?}"),
            (false, _) if !now(made) => assert!(!names.contains(&name), "{when}: {name} is there: {names:?}"),
            (true, true) => assert!(!names.contains(&name), "{when}: {name} is back: {names:?}"),
            _ => {}
        }
    }
    story.ok(&["audit", "verify"]);
    let found = story.cofferdam(&["fsck", "--json"]);
    let found: serde_json::Value =
        serde_json::from_slice(&found.stdout).unwrap_or_else(|e| panic!("{when}: fsck: {e}"));
    let problems = found["problems"].as_array().unwrap();
    assert!(problems.iter().all(|p| p["collectable"] == true), "{when}: {problems:#?}");
    check_journal(story, steps, done, &when);
    if was("snapshot to disk") {
        story.ok(&["fork", "kept", "--name", "proof"]);
    }
    for name in names {
        story.ok(&["diff", name, "--stat"]);
    }
    if names_of(&listed).contains(&"first".to_owned()) {
        story.ok(&["start", "first"]);
        story.ok(&["exec", "first", "--", "sh", "-c", "echo more >> mode"]);
    }
    story.ok(&["gc"]);
    let found = story.json(&["fsck", "--json"]);
    assert_eq!(found["problems"].as_array().map(Vec::len), Some(0), "{when}: nothing is amiss after gc: {found:#}");
}

fn names_of(listed: &serde_json::Value) -> Vec<String> {
    let all = listed["sandboxes"].as_array().unwrap().iter();
    all.filter_map(|s| s["name"].as_str().map(str::to_owned)).collect()
}

/// Acknowledged verbs that wait for the disk are in the journal with their result.
fn check_journal(story: &Story, steps: &[Step], done: usize, when: &str) {
    let log = story.json(&["audit", "log", "--json"]);
    let entries = log["entries"].as_array().unwrap();
    let count = |verb: &str| entries.iter().filter(|e| e["verb"] == verb && e["step"] == "done").count();
    for (verb, names) in [
        ("create", &["create", "create another"][..]),
        ("run", &["run", "run again", "run in it"]),
        ("approve", &["approve", "approve again"]),
        ("undo", &["undo"]),
        ("reject", &["reject"]),
    ] {
        let due = steps[..done].iter().filter(|step| names.contains(&step.name)).count();
        assert!(count(verb) >= due, "{when}: {verb} is {} times in the journal, not {due}", count(verb));
    }
}

// promise 15
#[test]
fn an_ext4_disk_fails_at_any_moment() {
    fails_at_any_moment("ext4");
}

// promise 15
#[test]
fn a_btrfs_disk_fails_at_any_moment() {
    fails_at_any_moment("btrfs");
}
