//! What a sandbox's policy denies stays denied to those who come over HTTP: no name that a rule covers is moved, replaced or taken away
//! from outside, whatever the guest may not read is shown nowhere, and its neighbours can be worked with.

use crate::support::http::{Answer, Daemon};
use crate::support::{As, BOTH, Place};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};

const SECRET: &str = "canary-of-the-base";

struct World {
    place: Place,
    daemon: Daemon,
}

impl World {
    fn new(who: As, driver: &str) -> World {
        let place = Place::new(who);
        for path in [".env", "conf/key", "asked", "vault/deep/one"] {
            place.file(place.project.join(path), format!("{SECRET} {path}\n"));
        }
        for path in ["open.txt", "conf/plain", "free/file", "Makefile", "moved.txt"] {
            place.file(place.project.join(path), "open\n");
        }
        let daemon = Daemon::start(&place);
        let world = World { place, daemon };
        let deny = |path: &str| json!({ "action": "deny", "path": format!("$WORKSPACE/{path}") });
        let rules = json!([
            deny(".env"), deny("conf/key"), deny("vault"), deny("later.key"),
            { "action": "ask", "path": "$WORKSPACE/asked" },
            { "action": "deny", "path": "$WORKSPACE/Makefile", "perms": ["write_file", "truncate", "remove_file", "make_reg"] },
        ]);
        let policy = json!({ "version": 1, "extends": ["workspace-write"], "fs": { "rules": rules } });
        let ask = json!({ "name": "s", "dir": world.place.project, "policies": [policy], "driver": driver });
        world.daemon.post("/v1/sandboxes", ask).assert_ok();
        world
    }

    fn post(&self, verb: &str, ask: Value) -> Answer {
        self.daemon.post(&format!("/v1/sandboxes/s/files/{verb}"), ask)
    }

    fn rename(&self, from: &str, to: &str) -> Answer {
        self.post("rename", json!({ "from": from, "to": to, "replace": true }))
    }

    fn remove(&self, path: &str) -> Answer {
        self.post("remove", json!({ "path": path, "recursive": true }))
    }

    fn put(&self, path: &str) -> Answer {
        let at = format!("/v1/sandboxes/s/files/content?path={path}");
        self.daemon.ask("PUT", &at).body("application/octet-stream", b"mine\n").send()
    }

    fn get(&self, path: &str) -> Answer {
        self.daemon.get(&format!("/v1/sandboxes/s/files/content?path={path}"))
    }

    /// A stream with one file of this name, to the top.
    fn unpack(&self, name: &str) -> Answer {
        let dir = self.place.root.join("packed");
        let file = dir.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "mine\n").unwrap();
        let tar =
            Command::new("tar").arg("-cf-").arg("-C").arg(&dir).arg(name).stdout(Stdio::piped()).output().unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let at = "/v1/sandboxes/s/files/archive?path=.";
        self.daemon.ask("PUT", at).body("application/x-tar", &tar.stdout).send()
    }

    /// Every way to put something else in its place, or to have it under another name.
    fn attack(&self, path: &str) -> Vec<(&'static str, Answer)> {
        vec![
            ("rename", self.rename(path, "leaked")),
            ("rename onto", self.rename("free/file", path)),
            ("put", self.put(path)),
            ("append", self.append(path)),
            ("unpack", self.unpack(path)),
            ("copy onto", self.post("copy", json!({ "from": "open.txt", "to": path, "replace": true }))),
            ("copy a link onto", self.post("copy", json!({ "from": "link", "to": path, "replace": true }))),
            ("remove", self.remove(path)),
        ]
    }

    fn append(&self, path: &str) -> Answer {
        let at = format!("/v1/sandboxes/s/files/content?path={path}&append=true");
        self.daemon.ask("PUT", &at).body("application/octet-stream", b"mine\n").send()
    }

    fn run(&self, shell: &str) -> Value {
        self.daemon.post("/v1/sandboxes/s/runs?wait=30s", json!({ "shell": shell })).assert_ok()["outcome"].clone()
    }

    fn again(&self) {
        self.daemon.ask("POST", "/v1/sandboxes/s/stop").send().assert_ok();
        self.daemon.ask("POST", "/v1/sandboxes/s/start").send().assert_ok();
    }

    /// What is denied cannot be read, by anybody who is inside or acts for them, under any name.
    fn holds(&self) {
        for path in [".env", "conf/key", "vault/deep/one", "asked"] {
            self.get(path).assert_fault(403, "policy_denied");
            // Inside somebody would be asked about that one.
            assert!(path == "asked" || self.run(&format!("cat {path}"))["exit"] != json!({ "code": 0 }), "{path}");
        }
        let found = self.run(&format!("grep -rl --exclude=asked {SECRET} . 2>/dev/null; true"));
        assert_eq!(found["stdout"], "", "{found}");
        let diff = self.daemon.get("/v1/sandboxes/s/workspace/diff?all=true").text();
        assert!(!diff.contains(SECRET), "{diff}");
    }
}

#[test]
fn what_is_denied_is_neither_moved_nor_uncovered_from_outside() {
    for (who, driver) in BOTH.into_iter().flat_map(|who| [(who, "overlay"), (who, "copy")]) {
        let w = World::new(who, driver);
        assert_eq!(w.run("ln -s open.txt link && cat open.txt")["stdout"], "open\n", "the control: it works");
        w.holds();
        for path in [".env", "conf/key", "asked", "Makefile", "vault/deep/one"] {
            for (what, answer) in w.attack(path) {
                assert!([403, 404].contains(&answer.status), "{who:?} {driver}: {what} {path}: {}", answer.text());
            }
        }
        // Directories that something denied is in stay where they are, too; what else is in them may go.
        for path in ["conf", "vault"] {
            w.rename(path, "elsewhere").assert_fault(403, "policy_denied");
            w.remove(path).assert_fault(403, "policy_denied");
        }
        w.put("later.key").assert_fault(403, "policy_denied");
        w.post("mkdir", json!({ "path": "later.key" })).assert_fault(403, "policy_denied");
        w.holds();
        w.again();
        w.holds();
        // The controls: beside it all of it can be done.
        w.put("open.txt").assert_ok();
        w.append("open.txt").assert_ok();
        w.unpack("conf/new").assert_ok();
        w.rename("moved.txt", "conf/moved").assert_ok();
        w.rename("free", "freer").assert_ok();
        w.remove("freer").assert_ok();
        w.post("copy", json!({ "from": "open.txt", "to": "conf/copied" })).assert_ok();
        assert_eq!(
            w.run("cat open.txt conf/copied conf/new conf/moved; ls -d free* 2>/dev/null")["stdout"],
            "mine\nmine\nmine\nmine\nmine\nopen\n",
            "{who:?} {driver}"
        );
        for path in [".env", "conf/key"] {
            assert_eq!(
                fs::read_to_string(w.place.project.join(path)).unwrap(),
                format!("{SECRET} {path}\n"),
                "{driver}"
            );
        }
    }
}

/// Directories above are asked about before they are made, and not only what was meant.
#[test]
fn no_denied_directory_is_made_on_the_way_to_another() {
    for (who, driver) in BOTH.into_iter().flat_map(|who| [(who, "overlay"), (who, "copy")]) {
        let w = World::new(who, driver);
        let mkdir = |path: &str| w.post("mkdir", json!({ "path": path, "parents": true }));
        let put = |path: &str| w.put(&format!("{path}&parents=true"));
        w.run("ln -s later.key way");
        for path in ["later.key/deep/er", "later.key/deep", "way/deep"] {
            mkdir(path).assert_fault(403, "policy_denied");
            put(path).assert_fault(403, "policy_denied");
        }
        let there = w.run("ls -d later.key way/ 2>/dev/null; true");
        assert_eq!(there["stdout"], "", "{who:?} {driver}");
        // The control: others are made.
        mkdir("later/deep/er").assert_ok();
        put("other/deep/file").assert_ok();
        assert_eq!(w.run("ls later/deep other/deep")["stdout"], "later/deep:\ner\n\nother/deep:\nfile\n");
    }
}

/// A name that was denied before it was there, and that both the guest and the base have made since.
#[test]
fn what_the_base_has_at_a_denied_path_is_told_to_nobody_inside() {
    for who in BOTH {
        let w = World::new(who, "overlay");
        // No wall keeps a name from being made by another's; it is only refused to be written.
        w.run("echo guess > made; mv made later.key; echo more >> open.txt");
        w.place.file(w.place.project.join("later.key"), format!("{SECRET} later\n"));
        w.place.file(w.place.project.join("open.txt"), "open\nfrom the base\n");
        let token = w.daemon.token(json!({ "name": "agent", "scopes": ["agent"], "sandboxes": ["s"] }));
        let ask = |method: &str, path: &str| w.daemon.ask(method, path).bearer(&token);
        let shown = ask("GET", "/v1/sandboxes/s/workspace/diff").send().text();
        assert!(shown.contains("from the base"), "the control: what is not denied is shown: {shown}");
        assert!(!shown.contains(SECRET), "{shown}");
        w.daemon.ask("POST", "/v1/sandboxes/s/stop").send().assert_ok();
        let rebased = ask("POST", "/v1/sandboxes/s/workspace/rebase").send().assert_ok();
        let moved = rebased["files"].to_string();
        assert!(moved.contains("open.txt") && !moved.contains("later.key"), "{rebased}");
        w.daemon.ask("POST", "/v1/sandboxes/s/start").send().assert_ok();
        let found =
            w.run(&format!("cat open.txt; grep -rl --exclude=asked {SECRET} . 2>/dev/null; true"))["stdout"].clone();
        assert!(found.as_str().unwrap().contains("from the base") && !found.to_string().contains("later"), "{found}");
        let layers = Command::new("grep").args(["-rl", SECRET]).arg(w.place.state().join("layers")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&layers.stdout), "", "{who:?}");
    }
}
