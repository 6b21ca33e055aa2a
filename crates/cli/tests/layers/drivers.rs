//! The same behaviour with every driver.

use crate::snapshots::{FIRST, id_of, inside, project, view};
use crate::support::{As, Place};
use crate::words::{Verbs, text};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Behaviour that every driver must show.
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
        // Automatic snapshots may have been removed with their sandbox.
        place.verb(&["snapshot", "rm", snapshot["id"].as_str().unwrap()]);
    }
    place.json(&["gc"]);
    assert!(place.layers().is_empty(), "{what}: {:?}", place.layers());
    place.audit();
}

/// Rewrites files with other bytes of the same length and restores their times; swaps two directories.
const HIDDEN: &str = "for f in hidden sub/hidden; do touch -r $f ref; printf 'BASE\\n' > $f; touch -r ref $f; done; rm ref; \
    mv left over; mv right left; mv over right; touch -r kept ref; chmod 600 kept; chmod 644 kept; touch -r ref kept; rm ref";

/// Times set by a guest hide no change, also not from forks of its workspace.
fn sees_hidden_changes(place: &Place, driver: &str) {
    let what = format!("{:?} {driver}", place.who);
    for name in ["hidden", "sub/hidden", "kept", "left/same", "right/same", "left/alike", "right/alike"] {
        let bytes = if name == "left/same" { "left\n" } else { "base\n" };
        let file = place.file(format!("home/project/{name}"), bytes);
        fs::File::options().write(true).open(file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let output = place.verb(&["run", "--driver", driver, "--json", "--", "/bin/sh", "-c", HIDDEN]);
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["changes"]["modified"], 4, "{what}: {outcome}");
    let id = outcome["sandbox"].as_str().expect("it is kept");
    let seen = |id: &str| {
        let diff = place.json(&["diff", id]);
        diff["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = ["hidden", "left/same", "right/same", "sub/hidden"];
    assert_eq!(seen(id), all, "{what}: and what has the same bytes is none of them");
    assert_eq!(place.json(&["inspect", id])["pending"]["changes"], 4, "{what}");
    let fork = place.json(&["fork", id])["sandboxes"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(seen(&fork), all, "{what}: a fork");
    inside(place, &fork, "printf base\\\\n > hidden; touch -d @0 hidden");
    assert_eq!(seen(&fork), &all[1..], "{what}: what is again as it was is no change");
    place.json(&["restore", place.json(&["snapshot", id])["id"].as_str().unwrap()]);
    assert_eq!(seen(id), all, "{what}: restored");
}

/// Every kind of change, with fixed times.
const EVERYTHING: &str = "echo first > changed; rm dir/one; echo new > new; mkdir -p made/empty made/full; echo x > made/full/x; \
    ln -s kept link; chmod 755 kept; rm -r remade; mkdir remade; mkdir remade/deep; echo only > remade/only; rm file; mkdir file; \
    rm -r tree; echo file > tree; printf '\\377' > bytes; mkfifo pipe; chmod 700 shut; mv moved there; chmod 600 back; chmod 644 back; \
    python3 -c 'import os; os.setxattr(\"kept\", \"user.colour\", b\"red\")'; touch -r hidden ref; printf 'BASE\\n' > hidden; touch -r ref hidden; rm ref; \
    touch -h -d @1000000000 changed new made/full/x link remade/only tree bytes stamped";

/// Exports of the same changes are identical under every driver, and each driver imports the others' files.
fn exports_alike(place: &Place, drivers: &[&str]) {
    let names =
        ["kept", "changed", "dir/one", "dir/two", "remade/deep/x", "remade/y", "file", "tree/x", "back", "hidden"];
    for name in names.into_iter().chain(["moved/a", "moved/b/c", "shut/x", "stamped", "untouched/x"]) {
        let file = place.file(format!("home/project/{name}"), "base\n");
        fs::File::options().write(true).open(file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let export = |id: &str| {
        let output = place.verb(&["export", id, "-"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    };
    let mut files = Vec::new();
    let mut views = Vec::new();
    for driver in drivers {
        let id = place.create(&["--driver", driver]);
        inside(place, &id, EVERYTHING);
        files.push(export(&id));
        views.push(view(place, &id));
        let snapshot = id_of(&place.json(&["snapshot", &id]));
        let fork = place.json(&["fork", &snapshot])["sandboxes"][0]["id"].as_str().unwrap().to_owned();
        assert!(export(&snapshot) == files[0] && export(&fork) == files[0], "{driver}: snapshots and forks");
    }
    let what = format!("{:?} {drivers:?}", place.who);
    assert!(files.windows(2).all(|two| two[0] == two[1]), "{what}: the same bytes");
    let file = place.file("home/all.cofferdam", &files[0]);
    place.file("home/other/remade/hidden", "x");
    place.file("home/other/dir/stays", "x");
    for (driver, view_before) in drivers.iter().zip(&views) {
        let import =
            |onto: &str| id_of(&place.json(&["import", file.to_str().unwrap(), "--onto", onto, "--driver", driver]));
        let id = import(".");
        assert_eq!(place.json(&["inspect", &id])["driver"], **driver);
        assert_eq!(&view(place, &id), view_before, "{what}: taken by {driver}");
        assert!(export(&id) == files[0], "{what}: and written again by {driver}");
        let there = import("../other");
        assert_eq!(
            inside(place, &there, "ls remade dir; cat new"),
            "dir:\nstays\n\nremade:\ndeep\nonly\nnew\n",
            "{driver}"
        );
    }
}

// promise 12
#[test]
fn layers_of_overlayfs_conform_for_root_and_for_users() {
    for who in [As::Root, As::User] {
        conforms(&Place::new(who), "overlay");
        sees_hidden_changes(&Place::new(who), "overlay");
    }
}

// promise 12
#[test]
fn copies_conform_for_root_and_for_users() {
    for who in [As::Root, As::User] {
        conforms(&Place::new(who), "copy");
        sees_hidden_changes(&Place::new(who), "copy");
        exports_alike(&Place::new(who), &["overlay", "copy"]);
    }
}

/// A file system on a loop device, unmounted on drop.
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

/// Regression: btrfs reports written blocks up to half a minute late and entries never, and no usage was measured until
/// then.
fn space_and_entries_are_counted(place: &Place) {
    let run = |limit: &str, script: &str| {
        let output = place.verb(&["run", "--json", "--limit", limit, "--", "/bin/sh", "-c", script]);
        let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (outcome["verdict"].clone(), outcome["limit_kind"].clone(), place.project.display().to_string())
    };
    for (limit, kind, within, beyond) in [
        ("disk=20m", "disk_mb", "head -c 5000000 /dev/zero > few", "head -c 60000000 /dev/zero > many"),
        ("files=200", "files", "touch $(seq 100)", "touch $(seq 1000)"),
    ] {
        let (verdict, _, at) = run(limit, &format!("{within}; sleep 0.3"));
        assert_eq!(verdict, "ok", "{at}: {within}");
        let (verdict, hit, at) = run(limit, &format!("{beyond}; sleep 20"));
        assert_eq!((verdict, hit), ("limit_exceeded".into(), kind.into()), "{at}: {beyond}");
    }
}

// promise 12
#[test]
fn shared_copies_conform_where_the_file_system_has_them() {
    for kind in ["xfs", "btrfs"] {
        let disk = Disk::new(kind);
        space_and_entries_are_counted(&Place::within(As::Root, &disk.0));
        for who in [As::Root, As::User] {
            conforms(&Place::within(who, &disk.0), "reflink");
            sees_hidden_changes(&Place::within(who, &disk.0), "reflink");
            exports_alike(&Place::within(who, &disk.0), &["overlay", "reflink", "copy"]);
        }
    }
    // On a file system without reflinks the driver is refused with the reason.
    let (place, _) = project(As::User);
    let fault = place.fault(&["create", "--driver", "reflink"], "unsupported_host");
    assert!(fault["message"].as_str().unwrap().contains("cannot share"), "{fault}");
}

/// A ramfs, which has no user extended attributes, so that overlayfs cannot write there.
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
    // Root's guests run under another uid, which needs an id-mapped mount. This file system has none, and the fault
    // says so.
    let place = Place::within(As::Root, &memory.0);
    let output = place.verb(&["run", "--json", "--", "true"]);
    let fault: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(fault["error_kind"], "unsupported_host", "{fault}");
    assert!(place.layers().is_empty(), "and nothing stays behind");
}
