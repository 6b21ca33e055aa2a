//! One set of behaviours over every driver.

use crate::snapshots::{FIRST, id_of, inside, project, view};
use crate::support::{As, Place};
use crate::words::Verbs;
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
