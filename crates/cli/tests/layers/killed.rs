//! `snapshot`, `fork` and `restore` killed or failed at any system call: each is done or not done, can be repeated, and
//! leaves nothing that `gc` does not find.

use crate::support::harm::{Harm, Walk};
use crate::support::{As, Place, binary};
use crate::words::Verbs;
use std::process::Output;

const KILL: Walk = Walk { harm: Harm::Kill, calls: "%file,%desc", points: 12 };
const CHANGING: &str = "openat,openat2,pwrite64,write,fdatasync,fsync,mkdirat,unlinkat,renameat,ftruncate,flock,fchmod";
const ERROR: Walk = Walk { harm: Harm::Error("EIO"), calls: CHANGING, points: 5 };
const FULL: Walk = Walk { harm: Harm::Error("ENOSPC"), calls: CHANGING, points: 5 };

/// A killed command prints nothing; a failed one reports the error without a panic.
fn assert_reported(output: &Output, what: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!testkit::harm::panicked(&stderr), "{what}: {stderr}");
    let code = output.status.code();
    assert!(matches!(code, None | Some(0 | 2 | 125)), "{what}: {code:?}: {stderr}");
}

/// A sandbox with a change, written to its layer as a guest would have.
fn changed(place: &Place) -> String {
    let id = place.create(&[]);
    write(place, &id, "one", "1");
    id
}

fn write(place: &Place, id: &str, name: &str, bytes: &str) {
    let inspected = place.json(&["inspect", id]);
    let layer = inspected["layers"].as_array().unwrap().last().unwrap().clone();
    let layer = layer["id"].as_str().or(layer.as_str()).unwrap().to_owned();
    place.file(place.state().join("layers").join(layer).join("up").join(name), bytes);
}

/// Content digest of a sandbox or snapshot.
fn content(place: &Place, id: &str) -> String {
    let file = place.home.join("content");
    place.json(&["export", id, file.to_str().unwrap()])["digest"].as_str().unwrap().to_owned()
}

/// Asserts that no layer is left once every listed object was removed.
fn clean(place: &Place, what: &str) {
    place.audit();
    for (id, _) in place.states() {
        place.json(&["rm", &id]);
    }
    for snapshot in place.json(&["snapshot", "ls"])["snapshots"].as_array().unwrap() {
        place.verb(&["snapshot", "rm", snapshot["id"].as_str().unwrap()]);
    }
    let collected = place.json(&["gc"]);
    assert!(collected.get("failed").is_none(), "{what}: {collected}");
    assert!(place.states().is_empty(), "{what}: {:?}", place.states());
    // A partial layer made a moment ago may still be under construction, as far as `gc` can tell.
    let left: Vec<_> = place.layers().into_iter().filter(|layer| layer.join("up").exists()).collect();
    assert!(left.is_empty(), "{what}: {left:?}");
    place.audit();
}

// promise 17
#[test]
fn snapshot_is_done_or_not_done() {
    [KILL, ERROR, FULL].into_iter().for_each(snapshot);
}

fn snapshot(walk: Walk) {
    let place = Place::new(As::User);
    let walked = walk.go(
        &place,
        || {
            let id = changed(&place);
            (id.clone(), vec!["snapshot".to_owned(), id])
        },
        |id, point, output| {
            let what = format!("snapshot with {:?} at {point:?}", walk.harm);
            assert_reported(output, &what);
            let before = content(&place, &id);
            let taken = place.json(&["snapshot", &id]);
            assert_eq!(content(&place, &id), before, "{what}");
            assert_eq!(content(&place, taken["id"].as_str().unwrap()), before, "{what}");
            clean(&place, &what);
        },
    );
    assert!(walked.tried >= 5, "{walked:?}");
}

// promise 17
#[test]
fn restore_is_done_or_not_done() {
    [KILL, ERROR, FULL].into_iter().for_each(restore);
}

fn restore(walk: Walk) {
    let place = Place::new(As::User);
    let walked = walk.go(
        &place,
        || {
            let id = changed(&place);
            let one = place.json(&["snapshot", &id])["id"].as_str().unwrap().to_owned();
            write(&place, &id, "two", "2");
            let states = (content(&place, &one), content(&place, &id));
            assert_ne!(states.0, states.1);
            ((id, one.clone(), states), vec!["restore".to_owned(), one])
        },
        |(id, one, (then, now)), point, output| {
            let what = format!("restore with {:?} at {point:?}", walk.harm);
            assert_reported(output, &what);
            let found = content(&place, &id);
            assert!(found == then || found == now, "{what}: neither here nor there");
            if found == then {
                let kept = place.json(&["snapshot", "ls", &id])["snapshots"].as_array().unwrap().clone();
                let kept = kept.iter().find(|s| s["automatic"] == true).expect("that was there is kept");
                assert_eq!(content(&place, kept["id"].as_str().unwrap()), now, "{what}");
            }
            place.json(&["restore", &one]);
            assert_eq!(content(&place, &id), then, "{what}");
            clean(&place, &what);
        },
    );
    assert!(walked.tried >= 5, "{walked:?}");
}

/// A disk error during a commit leaves open whether the record landed, so its layers must exist in either case.
// promise 15
#[test]
fn what_a_failed_commit_may_tell_of_is_not_taken_away() {
    let place = Place::new(As::User);
    let mut failed = 0;
    for call in 1..=12 {
        let id = changed(&place);
        let one = place.json(&["snapshot", &id])["id"].as_str().unwrap().to_owned();
        write(&place, &id, "two", "2");
        let states = (content(&place, &one), content(&place, &id));
        let mut traced = place.outside("/usr/bin/strace");
        traced.args(["-f", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]);
        traced.args(["-e", &format!("inject=fdatasync,fsync:error=EIO:when={call}")]);
        let output = traced.arg(binary()).args(["restore", &one]).output().unwrap();
        let what = format!("restore with a sync that fails, the {call}.");
        assert_reported(&output, &what);
        failed += i32::from(!output.status.success());
        let found = content(&place, &id);
        assert!(found == states.0 || found == states.1, "{what}: neither here nor there");
        assert_eq!(content(&place, &one), states.0, "control: the snapshot is untouched");
        clean(&place, &what);
    }
    assert!(failed > 0, "no sync failed");
}

// promise 17
#[test]
fn fork_is_done_or_not_done() {
    [KILL, ERROR, FULL].into_iter().for_each(fork);
}

fn fork(walk: Walk) {
    let place = Place::new(As::User);
    let walked = walk.go(
        &place,
        || {
            clean(&place, "before");
            let id = changed(&place);
            (id.clone(), ["fork", &id, "--count", "3"].map(str::to_owned).to_vec())
        },
        |id, point, output| {
            let what = format!("fork with {:?} at {point:?}", walk.harm);
            assert_reported(output, &what);
            let count = place.states().len();
            assert!(count == 1 || count == 4, "{what}: {count} sandboxes");
            let before = content(&place, &id);
            for (other, _) in place.states() {
                assert_eq!(content(&place, &other), before, "{what}");
            }
            clean(&place, &what);
        },
    );
    assert!(walked.tried >= 5, "{walked:?}");
}
