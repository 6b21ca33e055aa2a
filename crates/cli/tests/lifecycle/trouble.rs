//! A full, read-only or broken disk: typed faults, nothing lost, and verbs that free space still work.

use super::words::{Verbs, text};
use crate::support::{As, Place, USER, binary, to_the_end};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// State directory on a file system of its own.
struct OwnDisk(PathBuf);

impl OwnDisk {
    fn new(place: &Place, options: &str) -> OwnDisk {
        let dir = place.state();
        fs::create_dir_all(&dir).unwrap();
        assert!(
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&dir).status().unwrap().success()
        );
        chown(&dir, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        OwnDisk(dir)
    }

    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }

    fn fill(&self) -> PathBuf {
        let path = self.0.join("fill");
        let mut file = fs::File::create(&path).unwrap();
        for size in [1 << 20, 4096] {
            let chunk = vec![1u8; size];
            while file.write_all(&chunk).is_ok() {}
        }
        path
    }
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

// promise 19
#[test]
fn on_a_full_disk_one_can_look_stop_and_remove() {
    let place = Place::new(As::User);
    let disk = OwnDisk::new(&place, "size=96m");
    let (first, second) = (place.create(&["--name", "first"]), place.create(&["--ttl", "1ms"]));
    let fill = disk.fill();
    let refused = place.fault(&["create"], "limit_exceeded");
    assert_eq!((&refused["limit_kind"], &refused["phase"]), (&"disk_mb".into(), &"admission".into()));
    assert_eq!(place.states().len(), 2);
    place.json(&["inspect", &first]);
    place.json(&["ps"]);
    place.audit();
    place.json(&["stop", &first]);
    place.json(&["rm", &first]);
    assert_eq!(place.json(&["gc"])["items"][0]["id"], second.as_str());
    assert!(place.states().is_empty() && place.layers().is_empty());
    fs::remove_file(fill).unwrap();
    place.create(&["--name", "first"]);
    place.audit();
}

/// A small disk has space for final records, too, and reserves it again when some is free.
#[test]
fn what_a_command_fills_a_small_disk_with_can_be_removed() {
    let place = Place::new(As::User);
    let _disk = OwnDisk::new(&place, "size=6m");
    for round in 0..2 {
        let id = place.create(&[]);
        let filled = to_the_end(&mut place.cofferdam(["exec", &id, "--", "sh", "-c", "cat /dev/zero > f"]), b"");
        let said = text(&filled.stderr);
        assert!(said.contains("No space left") && !said.contains("recorded"), "{round}: {said}");
        place.json(&["inspect", &id]);
        place.json(&["rm", &id]);
        place.json(&["gc"]);
        assert!(place.states().is_empty() && place.layers().is_empty());
    }
    place.audit();
}

/// The first run, with no space left to record its sandbox: the caller is told so, in a pipe, too, and finds the
/// changes again when there is space.
// promise 19
#[test]
fn a_first_run_that_cannot_be_written_down_is_told() {
    let place = Place::new(As::User);
    let disk = OwnDisk::new(&place, "size=96m");
    place.file("home/project/file", "text\n");
    let mut command = place.cofferdam(["run", "-c", "echo changed > file; echo go; read x"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut go = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut go).unwrap();
    // The supervisor, which watches the disk, would end the run before the disk is quite full.
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    let fill = disk.fill();
    signal("-CONT");
    let said = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("could not be recorded") && said.contains("`cofferdam gc`"), "{said:?}");
    assert!(place.states().is_empty(), "nothing is recorded yet");
    let refused = place.fault(&["create"], "limit_exceeded");
    assert!(refused["hint"].as_str().unwrap().contains("free some space"), "{refused}");
    fs::remove_file(fill).unwrap();
    place.json(&["gc"]);
    let ids: Vec<String> = place.states().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 1);
    let shown = to_the_end(&mut place.cofferdam(["diff", &ids[0]]), b"");
    assert!(text(&shown.stdout).contains("+changed"), "{}", text(&shown.stderr));
}

#[test]
fn a_disk_without_inodes_is_told() {
    let place = Place::new(As::User);
    let _disk = OwnDisk::new(&place, "size=96m,nr_inodes=1000");
    let refused = place.fault(&["create"], "limit_exceeded");
    assert!(refused["message"].as_str().unwrap().contains("inode"), "{refused}");
    place.json(&["ls"]);
}

#[test]
fn a_read_only_disk_can_be_looked_at() {
    let place = Place::new(As::User);
    let disk = OwnDisk::new(&place, "size=96m");
    let id = place.create(&[]);
    disk.remount("ro");
    assert_eq!(place.states(), [(id.clone(), "active".to_owned())]);
    place.audit();
    for words in [&["create"][..], &["stop", &id], &["rm", &id]] {
        place.fault(words, "unavailable");
    }
    disk.remount("rw");
    place.json(&["rm", &id]);
}

/// The disk reports once that it could not store data: the failure is passed on.
// promise 19
#[test]
fn a_failed_sync_is_told() {
    let place = Place::new(As::User);
    let meddled = |words: &[&str], inject: &str| {
        let mut command = place.outside("/usr/bin/strace");
        command.args(["-o", "/dev/null", "-e", &format!("inject=fsync,fdatasync:error=EIO{inject}")]);
        to_the_end(command.arg(binary()).args(words).arg("--json"), b"")
    };
    // The first sync of each verb, later ones, then all of them. Some of SQLite's own may fail without harm.
    for verb in ["create", "stop", "start", "rm"] {
        for (inject, matters) in [(":when=1", true), (":when=2", false), (":when=3", false), ("", true)] {
            let id = place.create(&[]);
            if verb == "start" {
                place.json(&["stop", &id]);
            }
            let words = if verb == "create" { vec![verb] } else { vec![verb, &id] };
            let output = meddled(&words, inject);
            assert!(!(matters && output.status.success()), "{verb} {inject}: a failed sync was reported as success");
            if !output.status.success() {
                let fault: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
                assert_eq!(fault["error_kind"], "unavailable", "{verb}: {fault} {}", text(&output.stderr));
                assert!(fault["hint"].as_str().unwrap().contains("disk"), "{fault}");
            }
            // Records and layers agree, whether the change was stored or not.
            place.audit();
            place.json(&["gc"]);
            assert_eq!(place.layers().len(), place.states().len(), "{verb} {inject}");
            for (id, _) in place.states() {
                assert!(place.json(&["inspect", &id])["pending"].is_object(), "{verb} {inject}");
                place.json(&["rm", &id]);
            }
        }
    }
}

// promise 19
#[test]
fn a_state_directory_that_others_can_read_is_refused() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    fs::set_permissions(place.state(), fs::Permissions::from_mode(0o755)).unwrap();
    let refused = place.fault(&["ls"], "unavailable");
    assert!(refused["message"].as_str().unwrap().contains("chmod 700"), "{refused}");
    fs::set_permissions(place.state(), fs::Permissions::from_mode(0o700)).unwrap();
    chown(place.state(), Some(0), Some(0)).unwrap();
    place.fault(&["ls"], "unavailable");
    chown(place.state(), Some(USER), Some(USER)).unwrap();
    assert_eq!(place.states(), [(id, "active".to_owned())]);
}

/// Tampering with the journal is reported with the entry's number and exit status 1.
// promise 19
#[test]
fn a_journal_that_was_cut_is_told() {
    let place = Place::new(As::User);
    place.create(&[]);
    let copy = place.root.join("copy");
    fs::create_dir(&copy).unwrap();
    let files = ["store.db", "store.db-wal"];
    for name in files {
        fs::copy(place.state().join(name), copy.join(name)).unwrap();
    }
    place.create(&[]);
    assert_eq!(place.audit(), 4, "control: as written it is sound");
    // An older copy of the whole database: a valid chain that lacks its end.
    for name in files {
        fs::copy(copy.join(name), place.state().join(name)).unwrap();
        chown(place.state().join(name), Some(USER), Some(USER)).unwrap();
    }
    fs::remove_file(place.state().join("store.db-shm")).unwrap();
    let output = place.verb(&["audit", "verify"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).starts_with("entry 3 was changed"), "{}", text(&output.stdout));
}
