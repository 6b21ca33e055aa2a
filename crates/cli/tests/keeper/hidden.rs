//! The state directory is closed to guests under any rule: by a directory above it, by one inside it, and by a socket.

use crate::place::LiveSandbox;
use crate::support::http::Daemon;
use crate::support::{Place, either};
use crate::words::{Verbs, text};
use serde_json::{Value, json};

/// Prints which parts of a state directory are visible, and whether a keeper's socket accepts a connection.
const SEEK: &str = r#"
import os, socket, sys
around, state, keeper = sys.argv[1:4]
def tried(what, how):
    try: return f"{what} {how()}"
    except OSError as e: return f"{what} no"
def opened(name):
    with open(os.path.join(state, name), "rb") as f: return f.read(16)
def connected():
    s = socket.socket(socket.AF_UNIX); s.connect(keeper); return "in"
def written():
    with open(os.path.join(state, "planted"), "w") as f: f.write("x")
    return "planted"
print("around", sorted(n for n in os.listdir(around) if n in ("home", "beside")))
print(tried("beside", lambda: open(os.path.join(around, "beside")).read()))
for line in [tried("list", lambda: [n for n in os.listdir(state) if n != "bases"]), tried("canary", lambda: opened("canary")),
             tried("store", lambda: opened("store.db")), tried("plant", written), tried("keeper", connected)]:
    print(line)
"#;

#[track_caller]
fn is_hidden(said: &str, around: bool) {
    let list = said.lines().find(|line| line.starts_with("list")).unwrap_or_default();
    assert!(list == "list no" || list == "list []", "{said}");
    for what in ["canary no", "store no", "plant no", "keeper no"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    // The control: a file beside it is visible.
    assert_eq!(said.contains("around ['beside', 'home']\nbeside to be seen"), around, "{said}");
}

// promise 2
#[test]
fn no_rule_opens_the_state_directory() {
    for who in either() {
        let place = Place::new(who);
        place.file("beside", "to be seen");
        place.file("state/canary", "canary");
        let live = LiveSandbox::new(&place, &[]);
        let (around, state) = (place.root.to_str().unwrap(), place.state());
        let keeper = state.join("keepers").join(&live.id).join("sock");
        assert!(keeper.exists());
        let (state, keeper) = (state.to_str().unwrap(), keeper.to_str().unwrap());
        let seek = ["/usr/bin/python3", "-c", SEEK, around, state, keeper];
        let above = ["--read", "--write"].map(|flag| vec![flag, around]);
        let whole = place.policy(json!({"version": 1, "defaults": {"fs": "allow", "exec": "allow"}}));
        let both = vec!["--read", around, "--write", state, "--read", keeper];
        for flags in above.into_iter().chain([vec!["-p", &whole], both]) {
            let run = place.run(&flags, &seek);
            is_hidden(&run.assert_ok().stdout(), true);
        }
        // A rule that names only the state directory shows nothing of it, and a socket inside is refused.
        let run = place.run(&["--read", state, "--write", state], &["/bin/ls", "-A", state]);
        assert!(!run.stdout().contains("canary") && !run.stdout().contains("store"), "{}", run.story());
        let refused =
            place.cofferdam(["run", "--json", "--net", &format!("unix:{keeper}"), "--", "true"]).output().unwrap();
        let fault: Value = serde_json::from_slice(&refused.stdout).unwrap_or_default();
        assert_eq!(fault["error_kind"], "policy_denied", "{who:?} {fault} {}", text(&refused.stderr));
        let service = place.run(&["--net", "unix:/nonexistent"], &["/bin/true"]);
        assert_eq!(service.code(), 0, "the control: {}", service.story());
        assert!(!place.state().join("planted").exists());
        assert_eq!(live.sh(&[], "echo here", b"").stdout, b"here\n", "its keeper stands");
        drop(live);
        assert!(place.verb(&["ls"]).status.success());
    }
}

/// A sandbox whose own directory is inside the state directory works there and sees nothing else of it; the same holds
/// for a tenant's sandbox.
// promise 2
#[test]
fn one_that_lies_in_it_has_its_own_directory_alone() {
    for who in either() {
        let place = Place::new(who);
        place.file("beside", "to be seen");
        place.file("state/canary", "canary");
        let daemon = Daemon::start(&place);
        let (around, state) = (place.root.to_str().unwrap(), place.state());
        let opens = json!({"version": 1, "extends": ["default"], "fs": {"rules": [
            {"action": "allow", "path": around, "perms": ["read_file", "read_dir", "write_file", "make_reg"]}]}});
        daemon.post("/v1/sandboxes", json!({"name": "other"})).assert_ok();
        daemon.post("/v1/sandboxes", json!({"name": "own", "policies": [opens]})).assert_ok();
        daemon.ask("POST", "/v1/sandboxes/other/start?live=true").send().assert_ok();
        let other = daemon.get("/v1/sandboxes/other").assert_ok();
        let keeper = state.join("keepers").join(other["id"].as_str().unwrap()).join("sock");
        let command = json!(["/usr/bin/python3", "-c", SEEK, around, state, keeper]);
        let done = daemon.post("/v1/sandboxes/own/runs?wait=120s", json!({"command": command})).assert_ok();
        is_hidden(done["outcome"]["stdout"].as_str().unwrap(), true);
        let work = format!(
            "echo mine > file; cat file; pwd; cat {around}/beside; ls -A {0} {0}/bases 2>&-; true",
            state.display()
        );
        let done = daemon.post("/v1/sandboxes/own/runs?wait=120s", json!({"shell": work})).assert_ok();
        let said = done["outcome"]["stdout"].as_str().unwrap();
        assert_eq!(
            said.replace(&format!("{}:\n", state.display()), ""),
            "mine\n/workspace\nto be seen",
            "{who:?}: its own directory and no other"
        );
        for name in ["own", "other"] {
            daemon.ask("DELETE", &format!("/v1/sandboxes/{name}?force=true&timeout=0s")).send().assert_ok();
        }
    }
}
