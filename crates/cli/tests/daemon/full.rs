//! Full disk under the daemon, of bytes or of inodes. Reads, stops and removals are served; requests that need space
//! are refused with the reason; and with space again everything continues.

use crate::support::http::Daemon;
use crate::support::left::soon;
use crate::support::{As, Place, either, to_the_end};
use crate::words::Verbs;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// State directory on a small ext4 image.
struct Disk {
    state: PathBuf,
    image: PathBuf,
}

impl Disk {
    fn new(place: &Place, files: &str) -> Disk {
        Disk::at(place, place.state(), files)
    }

    /// Small disk for the layers only: records, sockets and run output have space elsewhere.
    fn of_layers(place: &Place, files: &str) -> Disk {
        let layers = place.state().join("layers");
        fs::create_dir(&layers).unwrap();
        Disk::at(place, layers, files)
    }

    fn at(place: &Place, state: PathBuf, files: &str) -> Disk {
        let image = place.root.join("disk.img");
        fs::File::create(&image).unwrap().set_len(160 << 20).unwrap();
        let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-N", files]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&state));
        fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        place.own(&state);
        Disk { state, image }
    }

    /// State directory on tmpfs, where a directory takes no space: run output is the first to find none.
    fn in_memory(place: &Place) -> Disk {
        let state = place.state();
        let mut mount = Command::new("mount");
        let made = mount.args(["-t", "tmpfs", "-o", "size=96m,mode=700", "tmpfs"]).arg(&state).status();
        assert!(made.unwrap().success());
        place.own(&state);
        fs::create_dir(state.join("lost+found")).unwrap();
        Disk { state, image: PathBuf::new() }
    }

    /// State directory on a small tmpfs, on which nothing is yet.
    fn small(place: &Place) -> Disk {
        let state = place.state();
        let mut mount = Command::new("mount");
        let options = "size=32m,nr_inodes=4000,mode=700";
        assert!(mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&state).status().unwrap().success());
        place.own(&state);
        let lost = state.join("lost+found");
        fs::create_dir(&lost).unwrap();
        Disk { state, image: PathBuf::new() }
    }

    /// Fills every remaining byte.
    fn fill_bytes(&self) {
        let mut file = fs::File::create(self.state.join("lost+found/fill")).unwrap();
        for size in [1 << 20, 4096, 1] {
            let chunk = vec![1u8; size];
            while file.write_all(&chunk).is_ok() {}
        }
    }

    /// Uses up every remaining inode.
    fn fill_files(&self) {
        let dir = self.state.join("lost+found/fill");
        fs::create_dir(&dir).unwrap();
        let mut n = 0;
        while fs::File::create(dir.join(n.to_string())).is_ok() {
            n += 1;
        }
    }

    fn clear(&self) {
        let fill = self.state.join("lost+found/fill");
        let _ = fs::remove_dir_all(&fill);
        let _ = fs::remove_file(&fill);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.state).status();
        let _ = fs::remove_file(&self.image);
    }
}

fn full(files: &str, fill: fn(&Disk)) {
    let place = Place::new(As::User);
    let disk = Disk::new(&place, files);
    let mut daemon = Daemon::start(&place);
    let make = |daemon: &Daemon, name: &str| {
        daemon.post("/v1/sandboxes", json!({ "name": name, "policies": ["workspace-write"] }))
    };
    for name in ["a", "b", "c"] {
        make(&daemon, name).assert_ok();
    }
    let sh = |daemon: &Daemon, text: &str| daemon.post("/v1/sandboxes/a/runs?wait=120s", json!({ "shell": text }));
    sh(&daemon, "echo kept > file").assert_ok();
    let busy = daemon.post("/v1/sandboxes/a/runs", json!({ "shell": "while :; do echo line; sleep 0.02; done" }));
    let busy = busy.assert_ok()["run"].as_str().unwrap().to_owned();
    fill(&disk);
    let look = |daemon: &Daemon| {
        for path in ["/v1/sandboxes", "/v1/sandboxes/a", "/v1/runs", "/v1/audit", "/v1/audit/verify", "/v1/gc"] {
            daemon.get(path).assert_ok();
        }
        let file = daemon.get("/v1/sandboxes/a/files/content?path=file");
        assert_eq!((file.status, file.text().as_str()), (200, "kept\n"), "{file:?}");
    };
    let refuses = |daemon: &Daemon| {
        let refused = make(daemon, "more").assert_fault(429, "limit_exceeded");
        assert_eq!(refused["limit_kind"], "disk_mb", "{refused}");
        let written = daemon.ask("PUT", "/v1/sandboxes/a/files/content?path=big");
        let refused = written.body("application/octet-stream", &vec![7; 1 << 20]).send();
        assert!(refused.status >= 400 && refused.json()["error_kind"] != "internal", "{refused:?}");
    };
    look(&daemon);
    refuses(&daemon);
    daemon.ask("POST", "/v1/sandboxes/b/stop?timeout=0s").send().assert_ok();
    daemon.ask("DELETE", "/v1/sandboxes/b").send().assert_ok();
    daemon.ask("POST", &format!("/v1/runs/{busy}/kill")).send().assert_ok();
    let done = daemon.get(&format!("/v1/runs/{busy}?wait=120s")).assert_ok();
    assert_eq!(done["running"], false, "{done}");
    // A daemon that starts on the full disk behaves the same.
    daemon.signal("KILL");
    daemon.ended();
    daemon = Daemon::start(&place);
    fill_again(&disk, fill);
    look(&daemon);
    refuses(&daemon);
    daemon.ask("DELETE", "/v1/sandboxes/c").send().assert_ok();
    disk.clear();
    assert!(soon(|| make(&daemon, "more").status == 201), "there is space again");
    let done = sh(&daemon, "cat file; echo more > other; cat other").assert_ok();
    assert_eq!(done["outcome"]["stdout"], "kept\nmore\n", "{done}");
    daemon.ask("DELETE", "/v1/sandboxes/a?force=true&timeout=0s").send().assert_ok();
    daemon.ask("DELETE", "/v1/sandboxes/more").send().assert_ok();
    daemon.ask("POST", "/v1/gc").send().assert_ok();
    drop(daemon);
    assert!(place.layers().is_empty(), "{:?}", place.layers());
    place.audit();
    let sound = place.verb(&["fsck", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&sound.stdout).unwrap();
    let own = report["problems"].as_array().unwrap().iter().filter(|problem| problem["kind"] != "group");
    assert_eq!(own.count(), 0, "{report:#}");
    drop(disk);
}

/// Fills the space that was freed meanwhile.
fn fill_again(disk: &Disk, fill: fn(&Disk)) {
    disk.clear();
    fill(disk);
}

/// Output and end of a run must be stored for a daemon to report them; what a full disk did not take is reported as
/// lost.
#[test]
fn output_that_a_full_disk_did_not_take_is_told_as_lost() {
    let place = Place::new(As::User);
    let disk = Disk::in_memory(&place);
    let daemon = Daemon::start(&place);
    let id = daemon.post("/v1/sandboxes", json!({ "policies": ["workspace-write"] })).assert_ok()["id"].clone();
    let said = || {
        let mut command = place.cofferdam(["exec", id.as_str().unwrap(), "--", "echo", "hello"]);
        to_the_end(command.env("COFFERDAM_SERVER", &daemon.socket), b"")
    };
    assert_eq!(said().stdout, b"hello\n", "the control");
    let lost = || {
        fill_again(&disk, Disk::fill_bytes);
        let begun = Instant::now();
        let said = said();
        let told = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(begun.elapsed() < Duration::from_secs(180), "it does not wait for what cannot come: {told}");
        said.status.code() == Some(125) && told.contains("could not be written to disk")
    };
    // Reserved space is used up first.
    assert!((0..20).any(|_| lost()));
    daemon.ask("DELETE", &format!("/v1/sandboxes/{}?force=true&timeout=0s", id.as_str().unwrap())).send().assert_ok();
    drop(daemon);
    drop(disk);
}

/// Where nothing was ever recorded, and there is no room to do it, there is nothing to list, and that is told.
#[test]
fn a_disk_that_is_full_at_first_use_can_be_listed_and_collected() {
    for fill in [Disk::fill_bytes as fn(&Disk), Disk::fill_files] {
        let place = Place::new(As::User);
        let disk = Disk::small(&place);
        let verb = |words: &[&str]| {
            let mut command = place.cofferdam(words);
            let output = to_the_end(command.current_dir(&place.project), b"");
            let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            (output.status.code(), told)
        };
        fill(&disk);
        let (code, listed) = verb(&["ls", "--json"]);
        assert_eq!((code, &listed["sandboxes"]), (Some(0), &json!([])), "{listed}");
        assert_eq!(verb(&["gc", "--json"]).0, Some(0));
        let (code, fault) = verb(&["rm", "a", "--json"]);
        assert_eq!((code, &fault["error_kind"]), (Some(125), &json!("not_found")), "{fault}");
        let (code, fault) = verb(&["create", "--name", "a", "--json"]);
        let kind = fault["error_kind"].as_str().unwrap_or_default();
        assert!(code == Some(125) && ["unavailable", "limit_exceeded"].contains(&kind), "{fault}");
        disk.clear();
        assert_eq!(verb(&["create", "--name", "a"]).0, Some(0), "the control");
        // And where something was recorded, it can be removed.
        fill(&disk);
        let (code, listed) = verb(&["ls", "--json"]);
        assert_eq!((code, &listed["sandboxes"][0]["name"]), (Some(0), &json!("a")), "{listed}");
        assert_eq!(verb(&["rm", "a"]).0, Some(0));
        assert_eq!(verb(&["gc"]).0, Some(0));
        assert_eq!(verb(&["ls", "--json"]).1["sandboxes"], json!([]));
        drop(disk);
    }
}

/// The kernel silently mounts an overlay read-only if it cannot create its work directory. A sandbox started in that
/// state would stay read-only when there is space again.
#[test]
fn no_sandbox_starts_whose_workspace_cannot_take_changes() {
    for who in either() {
        let place = Place::new(who);
        let disk = Disk::of_layers(&place, "2048");
        let daemon = Daemon::start(&place);
        let names = ["live", "files", "exec", "control"];
        for name in names {
            daemon.post("/v1/sandboxes", json!({ "name": name })).assert_ok();
        }
        let start = |name: &str| daemon.ask("POST", &format!("/v1/sandboxes/{name}/start?live=true")).send();
        let run = |name: &str, text: &str| {
            daemon.post(&format!("/v1/sandboxes/{name}/runs?wait=120s"), json!({ "shell": text }))
        };
        let put = |name: &str| {
            let asked = daemon.ask("PUT", &format!("/v1/sandboxes/{name}/files/content?path=put"));
            asked.body("application/octet-stream", b"bytes").send()
        };
        let make_dir = || daemon.post("/v1/sandboxes/files/files/mkdir", json!({ "path": "made" }));
        start("control").assert_ok();
        disk.fill_files();
        let refused = [start("live"), start("live"), run("live", "true"), put("files"), make_dir()];
        for answer in refused {
            let fault = answer.assert_fault(503, "unavailable");
            let message = fault["message"].as_str().unwrap();
            let layers = disk.state.to_str().unwrap();
            assert!(message.contains("file system with its layers") && message.contains(layers), "{who:?}: {fault}");
            assert!(message.contains(" 0 files free") && fault["retry"] == "later", "{who:?}: {fault}");
        }
        for words in [&["exec", "exec", "--", "true"][..], &["run", "--", "true"]] {
            let said = to_the_end(&mut place.cofferdam(words), b"");
            let told = String::from_utf8_lossy(&said.stderr).into_owned();
            assert_eq!(said.status.code(), Some(125), "{who:?} {words:?}: {told}");
            assert!(told.contains("files free") || told.contains("No space left"), "{who:?} {words:?}: {told}");
        }
        // A sandbox that was live before continues, and its command sees ENOSPC.
        let done = run("control", "cat < /dev/null && echo read; echo new > new").assert_ok();
        assert_eq!(done["outcome"]["stdout"], "read\n", "{who:?}: {done}");
        assert!(done["outcome"]["stderr"].as_str().unwrap().contains("No space left"), "{who:?}: {done}");
        put("control").assert_fault(503, "unavailable");
        disk.clear();
        start("live").assert_ok();
        for name in names {
            let done = run(name, "echo new > new && cat new").assert_ok();
            assert_eq!(done["outcome"]["stdout"], "new\n", "{who:?} {name}: {done}");
            put(name).assert_ok();
        }
        make_dir().assert_ok();
        for name in names {
            daemon.ask("DELETE", &format!("/v1/sandboxes/{name}?force=true&timeout=0s")).send().assert_ok();
        }
        drop(daemon);
        drop(disk);
    }
}

// promise 25
#[test]
fn a_full_disk_stops_what_wants_more_and_nothing_else() {
    full("4096", Disk::fill_bytes);
}

// promise 25
#[test]
fn a_disk_without_inodes_stops_what_wants_more_and_nothing_else() {
    full("2048", Disk::fill_files);
}
