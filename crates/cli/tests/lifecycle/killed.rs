//! Kills and errors at every system call: the verb is carried out or not, can be repeated, and leaves nothing that
//! `gc` does not find.

use super::words::{Verbs, text};
use crate::support::harm::{Harm, Walk};
use crate::support::{As, Place, unique};

const KILL: Walk = Walk { harm: Harm::Kill, calls: "%file,%desc", points: 12 };

/// Invariants after every accident: the journal is intact, gc finds all leftovers, and the disk agrees with the
/// records.
#[track_caller]
fn check_sound(place: &Place, what: &str) {
    place.audit();
    let collected = place.json(&["gc"]);
    assert!(collected.get("failed").is_none(), "{what}: {collected}");
    // A partial layer may still be in the making, for all that gc can tell.
    let whole = |path: &&std::path::PathBuf| path.join("up").exists();
    let layers = place.layers().iter().filter(whole).count();
    assert_eq!(layers, place.states().len(), "{what}: every sandbox here has one layer");
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

// promise 15
#[test]
fn create_is_done_or_not_done() {
    let place = Place::new(As::User);
    let walked = KILL.go(
        &place,
        || {
            let key = format!("key-{}", unique());
            (key.clone(), words(&["create", "--name", &key, "--idempotency-key", &key, "--reserve", &key]))
        },
        |key, point, _| {
            let what = format!("create killed at {point:?}");
            check_sound(&place, &what);
            // A repeated request under its key succeeds, whether the first was carried out or not.
            let made = place.json(&["create", "--name", &key, "--idempotency-key", &key, "--reserve", &key]);
            place.json(&["rm", made["id"].as_str().unwrap()]);
            assert!(place.states().len() <= 1, "{what}");
        },
    );
    assert!(walked.tried >= 10, "{walked:?}");
}

// promise 15
#[test]
fn rm_is_done_or_can_be_repeated() {
    let place = Place::new(As::User);
    let walked = KILL.go(
        &place,
        || {
            let id = place.create(&[]);
            assert!(place.verb(&["exec", &id, "--", "sh", "-c", "mkdir a; echo x > a/b; echo y > c"]).status.success());
            (id.clone(), words(&["rm", &id]))
        },
        |id, point, _| {
            let what = format!("rm killed at {point:?}");
            check_sound(&place, &what);
            place.json(&["rm", &id]);
            check_sound(&place, &what);
            assert!(place.states().is_empty() && place.layers().is_empty(), "{what}");
        },
    );
    assert!(walked.tried >= 10, "{walked:?}");
}

// promise 15
#[test]
fn stop_is_done_or_can_be_repeated() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    let walked = KILL.go(
        &place,
        || {
            place.json(&["start", &id]);
            ((), words(&["stop", &id]))
        },
        |(), point, _| {
            let what = format!("stop killed at {point:?}");
            check_sound(&place, &what);
            assert_eq!(place.json(&["stop", &id])["state"], "stopped", "{what}");
        },
    );
    assert!(walked.tried >= 10, "{walked:?}");
}

// promise 15
#[test]
fn gc_is_done_or_can_be_repeated() {
    let place = Place::new(As::User);
    let kept = place.create(&[]);
    let walked = KILL.go(
        &place,
        || {
            let id = place.create(&["--ttl", "1ms"]);
            assert!(place.verb(&["exec", &id, "--", "sh", "-c", "mkdir a; echo x > a/b"]).status.success());
            let orphan = place.dir(format!("state/layers/lay_{:032x}/up", unique()));
            place.file(orphan.join("file"), "x");
            (id, words(&["gc"]))
        },
        |_, point, _| {
            let what = format!("gc killed at {point:?}");
            check_sound(&place, &what);
            assert_eq!(place.states(), [(kept.clone(), "active".to_owned())], "{what}");
        },
    );
    assert!(walked.tried >= 10, "{walked:?}");
}

/// Errors from the kernel at any call: a fault that says so, and nothing half done.
// promise 15
#[test]
fn an_error_at_any_call_is_a_fault_or_does_not_matter() {
    let place = Place::new(As::User);
    for name in ["EIO", "ENOSPC"] {
        let walk = Walk {
            harm: Harm::Error(name),
            calls: "openat,openat2,pwrite64,write,fdatasync,fsync,mkdirat,unlinkat,renameat,ftruncate,flock,fchmod",
            points: 8,
        };
        let walked = walk.go(
            &place,
            || {
                let key = format!("key-{}", unique());
                (key.clone(), words(&["create", "--idempotency-key", &key]))
            },
            |key, point, output| {
                let what = format!("create with {name} at {point:?}");
                let told = text(&output.stderr);
                assert!(!testkit::harm::panicked(&told), "{what}: {told}");
                assert!(
                    output.status.code().is_some_and(|code| [0, 2, 125, 126, 127].contains(&code)),
                    "{what}: {output:?}"
                );
                check_sound(&place, &what);
                let made = place.json(&["create", "--idempotency-key", &key]);
                place.json(&["rm", made["id"].as_str().unwrap()]);
            },
        );
        assert!(walked.tried >= 5, "{walked:?}");
    }
}

/// The oldest entries of the journal are in it or in an archived part, and never in neither; leftovers of a part are
/// removed with the next.
// promise 18
#[test]
fn the_journal_is_cut_into_parts_or_not_cut() {
    let place = Place::new(As::User);
    place.file("home/.config/cofferdam/config.toml", "[keep]\njournal = 10\n");
    let entries = || {
        let id = place.create(&[]);
        place.json(&["rm", &id]);
        place.audit()
    };
    let parts = || {
        let all = std::fs::read_dir(place.state().join("journal")).into_iter().flatten();
        let mut names: Vec<String> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    while entries() <= 12 {}
    let walked = KILL.go(
        &place,
        || {
            // Enough entries for a part, whatever the previous round did.
            let before = (0..3).map(|_| entries()).max().unwrap();
            (before, words(&["gc"]))
        },
        |before, point, _| {
            let what = format!("gc killed at {point:?} while it cut the journal");
            check_sound(&place, &what);
            assert!((0..3).map(|_| entries()).max() > Some(before), "{what}");
            place.json(&["gc"]);
            let verified = place.json(&["audit", "verify"]);
            assert!(
                verified["broken"].is_null() && verified["entries"].as_u64().unwrap() >= before,
                "{what}: {verified}"
            );
            assert_eq!(verified["archived"], verified["archived_here"], "{what}: nothing is missing");
            // Parts follow each other without a gap, and nothing else is there.
            let mut next = 1;
            for name in parts() {
                let numbers = name.strip_suffix(".jsonl").and_then(|name| name.split_once('-'));
                let (first, last) = numbers.unwrap_or_else(|| panic!("{what}: {name} is no part"));
                assert_eq!(first.parse(), Ok(next), "{what}: {:?}", parts());
                next = last.parse::<u64>().unwrap() + 1;
            }
            assert_eq!(verified["archived"], next - 1, "{what}");
        },
    );
    assert!(walked.tried >= 4 && !parts().is_empty(), "{walked:?}");
}
