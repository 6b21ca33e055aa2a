//! Leftovers of crashes and of other programs, present before a daemon starts: it starts, adopts or removes what
//! belongs to it, once, and touches nothing else.

use crate::support::http::Daemon;
use crate::support::{As, Place, to_the_end};
use crate::words::Verbs;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn layer(place: &Place, digit: &str, parts: &[&str]) -> PathBuf {
    let dir = place.state().join(format!("layers/lay_{}", digit.repeat(32)));
    place.dir(&dir);
    for part in parts {
        place.dir(dir.join(part));
    }
    dir
}

/// A mount, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    fn bind(what: &Path, at: &Path) -> Mounted {
        assert!(Command::new("mount").arg("--bind").args([what, at]).status().unwrap().success());
        Mounted(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Planted control groups, removed on drop.
struct Groups(Vec<PathBuf>);

impl Groups {
    fn plant(names: &[&str]) -> Groups {
        let all = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"];
        let roots = all.iter().map(Path::new).filter(|root| root.join("cgroup.procs").exists());
        let made = roots.flat_map(|root| names.iter().map(|name| root.join(name)).collect::<Vec<_>>());
        Groups(made.filter(|group| fs::create_dir(group).is_ok()).collect())
    }

    fn left(&self, name: &str) -> usize {
        self.0.iter().filter(|group| group.ends_with(name) && group.exists()).count()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.0.iter().for_each(|group| drop(fs::remove_dir(group)));
    }
}

fn items(collected: &Value) -> Vec<&str> {
    collected["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

// promise 25
#[test]
fn what_was_left_is_taken_away_once_and_nothing_else_is_touched() {
    let place = Place::new(As::Root);
    let kept = place.create(&["--name", "kept"]);
    let canary = place.file("canary/file", "precious");
    let shut = place.dir("shut");
    fs::set_permissions(&shut, std::os::unix::fs::PermissionsExt::from_mode(0o055)).unwrap();
    // Layers: complete, partial, held open, and with a foreign mount inside.
    let (whole, half) = (layer(&place, "1", &["up", "work"]), layer(&place, "2", &["work"]));
    place.file(whole.join("up/file"), "x");
    let held = layer(&place, "3", &["up", "work"]);
    let holder = fs::File::open(&held).unwrap();
    holder.lock().unwrap();
    let mounted = layer(&place, "4", &["up/below", "up/shut", "work"]);
    let canary_mount = Mounted::bind(canary.parent().unwrap(), &mounted.join("up/below"));
    let shut_mount = Mounted::bind(&shut, &mounted.join("up/shut"));
    // Keeper directory of a removed sandbox, whose card names a foreign process.
    let stray = place.state().join(format!("keepers/sbx_{}", "5".repeat(32)));
    let bystander = Command::new("sleep").arg("600").spawn().map(Bystander).unwrap();
    let card = json!({ "pid": bystander.0.id(), "pid_start": 1, "boot": "other", "version": "0", "since_ms": 0 });
    place.file(stray.join("keeper.json"), card.to_string());
    place.file(stray.join("runs/run_x/0000000000000000.spool"), "");
    place.file(place.state().join(format!("keepers/{kept}/keeper.json")), card.to_string());
    // Sockets and locks of dead processes, an unused base, a tenant without data.
    drop(std::os::unix::net::UnixListener::bind(place.state().join("cofferdam.sock")).unwrap());
    place.file(place.state().join("cofferdam.sock.lock"), "");
    place.file(place.state().join("daemon.lock"), "");
    let young = place.dir(place.state().join(format!("bases/sbx_{}", "6".repeat(32))));
    let tenant = place.dir(place.state().join("tenants/empty"));
    fs::set_permissions(&tenant, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    // Control groups of a dead cofferdam process, and foreign ones.
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap().to_string_lossy().into_owned();
    let namespace = namespace.trim_matches(|c: char| !c.is_ascii_digit());
    let ours = format!("cofferdam-{}-1-{namespace}-dead", i32::MAX);
    let theirs = format!("other-{}", std::process::id());
    let elsewhere = format!("cofferdam-{}-1-1-elsewhere", i32::MAX);
    let groups = Groups::plant(&[&ours, &theirs, &elsewhere]);

    let daemon = Daemon::start(&place);
    daemon.get("/v1/health/ready").assert_ok();
    assert_eq!(daemon.get("/v1/sandboxes/kept").assert_ok()["standing"], "lost", "its keeper is gone");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let collected = daemon.ask("POST", "/v1/gc").send().assert_ok();
    let (taken, name) = (items(&collected), |dir: &Path| dir.file_name().unwrap().to_str().unwrap().to_owned());
    for dir in [&whole, &half, &stray] {
        assert!(taken.contains(&name(dir).as_str()) && !dir.exists(), "{dir:?}: {collected:#}");
    }
    assert!(held.exists() && !taken.contains(&name(&held).as_str()), "a process holds it");
    assert!(young.exists(), "a process may be about to use it");
    let failed = collected["failed"].to_string();
    assert!(failed.contains(&name(&mounted)) && failed.contains("mounted"), "{collected:#}");
    assert_eq!(fs::read_to_string(&canary).unwrap(), "precious", "what is mounted is not ours");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&shut).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o055, "nor are its permissions");
    assert!(Path::new(&format!("/proc/{}", bystander.0.id())).exists(), "a pid alone identifies no process");
    let again = daemon.ask("POST", "/v1/gc").send().assert_ok();
    assert_eq!(items(&again), Vec::<&str>::new(), "once: {again:#}");
    drop((canary_mount, shut_mount, holder));
    daemon.ask("POST", "/v1/gc").send().assert_ok();
    assert!(place.layers().len() == 1, "{:?}", place.layers());
    daemon.post("/v1/sandboxes/kept/runs?wait=120s", json!({ "command": ["true"] })).assert_ok();
    drop(daemon);

    let repaired = to_the_end(&mut place.cofferdam(["fsck", "--repair", "--json"]), b"");
    assert!(repaired.status.success(), "{repaired:?}");
    assert!(!groups.0.is_empty(), "there are groups here");
    assert_eq!(groups.left(&ours), 0, "{:?}", groups.0);
    assert!(groups.left(&theirs) > 0 && groups.left(&elsewhere) > 0, "{:?}", groups.0);
}

struct Bystander(std::process::Child);

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A keeper that was killed between the start of a command and its record leaves its progress unknown, so the same key
/// starts no second run and gets the answer that the run was lost.
// promise 25
#[test]
fn a_run_that_was_never_recorded_is_lost_and_not_begun_twice() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({ "name": "s", "policies": ["workspace-write"] })).assert_ok();
    let begin = || {
        let ask = daemon.ask("POST", "/v1/sandboxes/s/runs?wait=120s").header("idempotency-key", "k");
        ask.json(json!({ "shell": "echo x >> times; cat times" })).send()
    };
    let first = begin();
    assert_eq!((first.status, &first.json()["outcome"]["stdout"]), (201, &json!("x\n")));
    let run = first.json()["run"].as_str().unwrap().to_owned();
    daemon.ask("POST", "/v1/sandboxes/s/stop?timeout=0s").send().assert_ok();
    daemon.ask("POST", "/v1/sandboxes/s/start").send().assert_ok();
    // State as after such a crash: the log says that the run began, and the store has no record of it.
    let sql = "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); d.execute('DELETE FROM record WHERE id = ?', (sys.argv[2],)); d.commit()";
    let mut python = place.outside("/usr/bin/python3");
    assert!(python.args(["-c", sql]).arg(place.state().join("store.db")).arg(&run).status().unwrap().success());
    for _ in 0..2 {
        let again = begin();
        let told = again.json();
        assert_eq!(
            (again.status, told["run"].as_str(), &told["verdict"]),
            (200, Some(run.as_str()), &json!("lost")),
            "{told}"
        );
    }
    let count = daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({ "shell": "cat times" })).assert_ok();
    assert_eq!(count["outcome"]["stdout"], "x\n", "it ran once");
    daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok();
    place.audit();
}
