//! One set of behaviours over every driver.

use crate::snapshots::{FIRST, id_of, inside, project, view};
use crate::support::{As, Place};
use crate::words::{Verbs, text};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What every driver does alike.
fn conforms(place: &Place, driver: &str) {
    let what = format!("{:?} {driver}", place.who);
    place.file("home/project/kept", "base\n");
    place.file("home/project/changed", "base\n");
    place.file("home/project/dir/one", "1\n");
    place.script("home/project/tool", "#!/bin/sh\necho tool\n");
    std::os::unix::fs::symlink("kept", place.project.join("to_kept")).unwrap();
    let id = place.create(&["--driver", driver]);
    assert_eq!(
        inside(place, &id, "cat kept to_kept dir/one; ./tool; pwd"),
        format!("base\nbase\n1\ntool\n{}\n", place.project.display()),
        "{what}"
    );
    inside(place, &id, FIRST);
    let first = view(place, &id);
    let diff = place.json(&["diff", &id]);
    let paths: Vec<&str> = diff["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["changed", "dir/one", "kept", "link", "made/empty", "new"], "{what}: {diff}");
    assert_eq!(fs::read_to_string(place.project.join("changed")).unwrap(), "base\n", "{what}: the base is untouched");
    assert!(place.project.join("dir/one").exists() && !place.project.join("new").exists(), "{what}");
    let one = id_of(&place.json(&["snapshot", &id]));
    inside(place, &id, "echo second > changed; rm -rf dir; echo more > more");
    let second = view(place, &id);
    let kept = place.json(&["restore", &one])["kept"].as_str().unwrap().to_owned();
    assert_eq!(view(place, &id), first, "{what}: restored");
    place.json(&["restore", &kept]);
    assert_eq!(view(place, &id), second, "{what}: and forth");
    let forks = place.json(&["fork", &one, "--count", "2"]);
    let fork = |n: usize| forks["sandboxes"][n]["id"].as_str().unwrap().to_owned();
    inside(place, &fork(0), "echo own > own");
    assert_eq!(view(place, &fork(1)), first, "{what}: forked");
    assert_eq!(view(place, &id), second, "{what}");
    for id in [id, fork(0), fork(1)] {
        place.json(&["rm", &id]);
    }
    for snapshot in place.json(&["snapshot", "ls"])["snapshots"].as_array().unwrap() {
        // What was automatic may have gone with its sandbox.
        place.verb(&["snapshot", "rm", snapshot["id"].as_str().unwrap()]);
    }
    place.json(&["gc"]);
    assert!(place.layers().is_empty(), "{what}: {:?}", place.layers());
    place.audit();
}

#[test]
fn layers_of_overlayfs_conform_for_root_and_for_users() {
    conforms(&Place::new(As::Root), "overlay");
    conforms(&Place::new(As::User), "overlay");
}

#[test]
fn copies_conform_for_root_and_for_users() {
    conforms(&Place::new(As::Root), "copy");
    conforms(&Place::new(As::User), "copy");
}

/// A file system of its own below a test's place; gone with it.
struct Disk(PathBuf);

impl Disk {
    fn new(kind: &str) -> Disk {
        let at = PathBuf::from(format!("/srv/cofferdam-test-{}-{kind}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        let image = at.with_extension("img");
        fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        let run = |program: &str, words: &[&str]| {
            let output = Command::new(program).args(words).arg(&image).output().unwrap();
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run(&format!("mkfs.{kind}"), &["-q"]);
        let done = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at).status().unwrap();
        assert!(done.success(), "{kind} can be mounted");
        Disk(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_file(self.0.with_extension("img"));
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn shared_copies_conform_where_the_file_system_has_them() {
    for kind in ["xfs", "btrfs"] {
        let disk = Disk::new(kind);
        for who in [As::Root, As::User] {
            conforms(&Place::within(who, &disk.0), "reflink");
        }
    }
    // Where it has them not, the driver is refused and says why.
    let (place, _) = project(As::User);
    let fault = place.fault(&["create", "--driver", "reflink"], "unsupported_host");
    assert!(fault["message"].as_str().unwrap().contains("cannot be shared"), "{fault}");
}

/// Memory that keeps no attributes of users: overlayfs takes no changes there.
struct Memory(PathBuf);

impl Memory {
    fn new() -> Memory {
        let at = PathBuf::from(format!("/srv/cofferdam-test-{}-ramfs", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        let done = Command::new("mount").args(["-t", "ramfs", "-o", "mode=755", "none"]).arg(&at).status().unwrap();
        assert!(done.success(), "ramfs can be mounted");
        Memory(at)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_run_copies_a_small_directory_where_no_layer_can_be_and_refuses_a_large_one() {
    let memory = Memory::new();
    let place = Place::within(As::User, &memory.0);
    place.file("home/project/changed", "base\n");
    let run = |words: &[&str]| place.verb(&[&["run"][..], words].concat());
    let edit = ["--json", "--", "/bin/sh", "-c", "cat changed; echo guest > changed; echo new > new"];
    let output = run(&edit);
    assert!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["changes"], serde_json::json!({"added": 1, "modified": 1, "deleted": 0}), "{outcome}");
    assert_eq!(fs::read_to_string(place.project.join("changed")).unwrap(), "base\n", "nothing landed");
    let id = outcome["sandbox"].as_str().unwrap();
    let whole = place.json(&["inspect", id]);
    assert_eq!((&whole["driver"], &whole["pending"]["changes"]), (&"copy".into(), &2.into()), "{whole}");
    let idle: serde_json::Value = serde_json::from_slice(&run(&["--json", "--", "true"]).stdout).unwrap();
    assert!(idle["sandbox"].is_null() && place.layers().len() == 1, "what changed nothing is dropped: {idle}");
    let fault = run(&["--driver", "overlay", "--json", "--", "true"]);
    assert_eq!(fault.status.code(), Some(125), "what is asked for and cannot be is refused");
    let many = place.dir("home/project/many");
    (0..50_001).for_each(|n| drop(fs::File::create(many.join(n.to_string())).unwrap()));
    let fault: serde_json::Value = serde_json::from_slice(&run(&["--json", "--", "true"]).stdout).expect("a document");
    let hint = fault["hint"].as_str().unwrap();
    assert_eq!(fault["error_kind"], "unsupported_host", "{fault}");
    assert!(["--read-only", "--direct", "--driver copy"].iter().all(|way| hint.contains(way)), "{hint}");
    assert!(run(&["--read-only", "--", "true"]).status.success(), "control, as the hint says");
    assert!(run(&["--driver", "copy", "--", "true"]).status.success(), "control, as the hint says");
    // Root's guests are nobody, which takes a file system whose owners can be shifted. This one's cannot, and that is told.
    let place = Place::within(As::Root, &memory.0);
    let output = place.verb(&["run", "--json", "--", "true"]);
    let fault: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(fault["error_kind"], "unsupported_host", "{fault}");
    assert!(place.layers().is_empty(), "and nothing stays behind");
}
