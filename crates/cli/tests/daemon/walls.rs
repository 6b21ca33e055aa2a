//! Denials of a sandbox's policy hold for callers over HTTP: no path that a rule covers is moved, replaced or removed
//! from outside, paths that the guest may not read are never shown, and their neighbours stay usable.

use crate::support::http::{Answer, Daemon};
use crate::support::{As, BOTH, Place, either};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const SECRET: &str = "canary-of-the-base";

struct DenialsFixture {
    place: Place,
    daemon: Daemon,
}

impl DenialsFixture {
    fn new(who: As, driver: &str) -> DenialsFixture {
        let place = Place::new(who);
        for path in [".env", "conf/key", "asked", "vault/deep/one"] {
            place.file(place.project.join(path), format!("{SECRET} {path}\n"));
        }
        for path in ["open.txt", "conf/plain", "free/file", "Makefile", "moved.txt"] {
            place.file(place.project.join(path), "open\n");
        }
        let daemon = Daemon::start(&place);
        let fixture = DenialsFixture { place, daemon };
        let deny = |path: &str| json!({ "action": "deny", "path": format!("$WORKSPACE/{path}") });
        let rules = json!([
            deny(".env"), deny("conf/key"), deny("vault"), deny("later.key"),
            { "action": "ask", "path": "$WORKSPACE/asked" },
            { "action": "deny", "path": "$WORKSPACE/Makefile", "perms": ["write_file", "truncate", "remove_file", "make_reg"] },
        ]);
        let policy = json!({ "version": 1, "extends": ["workspace-write"], "fs": { "rules": rules } });
        let ask = json!({ "name": "s", "dir": fixture.place.project, "policies": [policy], "driver": driver });
        fixture.daemon.post("/v1/sandboxes", ask).assert_ok();
        fixture
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

    /// Uploads an archive with one file of this name to the top directory.
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

    /// Every way to replace a path or to get it under another name.
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
        self.daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({ "shell": shell })).assert_ok()["outcome"].clone()
    }

    fn again(&self) {
        self.daemon.ask("POST", "/v1/sandboxes/s/stop").send().assert_ok();
        self.daemon.ask("POST", "/v1/sandboxes/s/start").send().assert_ok();
    }

    /// Denied paths are unreadable under any name, from inside and through the file verbs.
    fn holds(&self) {
        for path in [".env", "conf/key", "vault/deep/one", "asked"] {
            self.get(path).assert_fault(403, "policy_denied");
            // Inside, `asked` would raise a question.
            assert!(path == "asked" || self.run(&format!("cat {path}"))["exit"] != json!({ "code": 0 }), "{path}");
        }
        let found = self.run(&format!("grep -rl --exclude=asked {SECRET} . 2>/dev/null; true"));
        assert_eq!(found["stdout"], "", "{found}");
        let diff = self.daemon.get("/v1/sandboxes/s/workspace/diff?all=true").text();
        assert!(!diff.contains(SECRET), "{diff}");
    }
}

// promise 1
#[test]
fn what_is_denied_is_neither_moved_nor_uncovered_from_outside() {
    for (who, driver) in BOTH.into_iter().flat_map(|who| [(who, "overlay"), (who, "copy")]) {
        let w = DenialsFixture::new(who, driver);
        assert_eq!(w.run("ln -s open.txt link && cat open.txt")["stdout"], "open\n", "the control: it works");
        w.holds();
        for path in [".env", "conf/key", "asked", "Makefile", "vault/deep/one"] {
            for (what, answer) in w.attack(path) {
                assert!([403, 404].contains(&answer.status), "{who:?} {driver}: {what} {path}: {}", answer.text());
            }
        }
        // Directories that contain a denied path cannot be moved or removed; their other entries can.
        for path in ["conf", "vault"] {
            w.rename(path, "elsewhere").assert_fault(403, "policy_denied");
            w.remove(path).assert_fault(403, "policy_denied");
        }
        w.put("later.key").assert_fault(403, "policy_denied");
        w.post("mkdir", json!({ "path": "later.key" })).assert_fault(403, "policy_denied");
        w.holds();
        w.again();
        w.holds();
        // The controls: everything works beside the denied paths.
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

/// Parent directories are checked before they are created, not only the target.
#[test]
fn no_denied_directory_is_made_on_the_way_to_another() {
    for (who, driver) in BOTH.into_iter().flat_map(|who| [(who, "overlay"), (who, "copy")]) {
        let w = DenialsFixture::new(who, driver);
        let mkdir = |path: &str| w.post("mkdir", json!({ "path": path, "parents": true }));
        let put = |path: &str| w.put(&format!("{path}&parents=true"));
        w.run("ln -s later.key way");
        for path in ["later.key/deep/er", "later.key/deep", "way/deep"] {
            mkdir(path).assert_fault(403, "policy_denied");
            put(path).assert_fault(403, "policy_denied");
        }
        let there = w.run("ls -d later.key way/ 2>/dev/null; true");
        assert_eq!(there["stdout"], "", "{who:?} {driver}");
        // The control: other directories are created.
        mkdir("later/deep/er").assert_ok();
        put("other/deep/file").assert_ok();
        assert_eq!(w.run("ls later/deep other/deep")["stdout"], "later/deep:\ner\n\nother/deep:\nfile\n");
    }
}

/// A denied path that did not exist at first, and that both guest and base have created since.
// promise 1
#[test]
fn what_the_base_has_at_a_denied_path_is_told_to_nobody_inside() {
    for who in either() {
        let w = DenialsFixture::new(who, "overlay");
        // No mechanism keeps the guest from renaming another file to that name; only writing it is refused.
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

/// A project, with sandboxes created by the command line.
struct CommandLineFixture(Place);

impl CommandLineFixture {
    fn new(who: As) -> CommandLineFixture {
        let place = Place::new(who);
        for path in ["keys/plain", "real/k", "theenv", "top.pem", "deploy/key"] {
            place.file(place.project.join(path), format!("{SECRET} {path}\n"));
        }
        place.file(place.project.join("open/file"), "open\n");
        for (at, to) in [("lnk", "real"), (".env", "theenv")] {
            std::os::unix::fs::symlink(to, place.project.join(at)).unwrap();
            if who == As::User {
                std::os::unix::fs::lchown(place.project.join(at), Some(1500), Some(1500)).unwrap();
            }
        }
        CommandLineFixture(place)
    }

    fn create(&self, name: &str, driver: &str, rules: Value) {
        let policy = self.0.root.join(format!("{name}.json"));
        let document = json!({ "version": 1, "extends": ["workspace-write"], "fs": { "rules": rules } });
        fs::write(&policy, document.to_string()).unwrap();
        let made =
            self.0.cofferdam(["create", "--name", name, "--driver", driver, "-p"]).arg(&policy).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }

    /// Runs a command in an enclosure of its own; returns its output.
    fn exec(&self, name: &str, script: &str) -> String {
        let mut command = self.0.cofferdam(["exec", "--workdir", "/tmp", name, "--", "/bin/sh", "-c", script]);
        let done = command.env("D", &self.0.project).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
    }

    /// Runs `does` in the guest, then `reads` in a later run: the denied content never appears.
    #[track_caller]
    fn is_kept(&self, name: &str, does: &str, reads: &str) {
        let d = self.0.project.display();
        let control = self.exec(name, &format!("cd {d}; cat open/file; {reads}; {does}"));
        assert!(control.contains("open\n") && !control.contains(SECRET), "{name}: the control: {control}");
        let again = self.exec(name, &format!("cd {d}; chmod 755 . keys; cd {d}; {reads}"));
        assert!(!again.contains(SECRET), "{name}: {does}: {again}");
    }
}

/// Mounts for denials are planned at each start. Earlier changes of a guest to its layers cannot hide a denied path
/// from the planner: if it cannot look, the sandbox does not start.
// promise 1
#[test]
fn what_a_guest_changes_takes_no_denial_away() {
    let deny = |path: &str| json!([{ "action": "deny", "path": format!("$WORKSPACE/{path}") }]);
    for (who, driver) in BOTH.into_iter().flat_map(|who| [(who, "overlay"), (who, "copy")]) {
        let w = CommandLineFixture::new(who);
        w.create("shut", driver, deny("keys/plain"));
        w.is_kept("shut", "chmod 000 keys", "cat keys/plain");
        w.create("pattern", driver, deny("**/plain"));
        w.is_kept("pattern", "chmod 000 keys", "cat keys/plain");
        w.create("listed", driver, deny("**/plain"));
        w.is_kept("listed", "chmod 311 keys", "cat keys/plain");
        w.create("top", driver, deny("top.pem"));
        for shut in ["chmod 444 .", "chmod 000 ."] {
            w.is_kept("top", shut, "cat top.pem");
        }
        w.create("linked", driver, deny("lnk/k"));
        w.is_kept("linked", "rm lnk", "cat real/k");
        w.create("relinked", driver, deny("lnk/*"));
        w.is_kept("relinked", "rm lnk; ln -s open lnk", "cat real/k");
        w.create("ending", driver, deny(".env"));
        w.is_kept("ending", "rm .env", "cat theenv");
        // Rejecting the change makes the sandbox usable again.
        if who == As::User {
            let refused = w.exec("shut", "true");
            assert!(refused.contains("cannot find") && refused.contains("reject"), "{refused}");
            let back = w.0.cofferdam(["reject", "shut", "keys"]).output().unwrap();
            assert!(back.status.success(), "{back:?}");
            let again = w.exec("shut", &format!("cd {}; cat open/file; cat keys/plain", w.0.project.display()));
            assert!(again.contains("open\n") && !again.contains(SECRET), "{again}");
        }
        // A denial through a link from outside the project holds, too; an unreadable directory in which nothing is
        // allowed does not matter.
        let home = w.0.project.parent().unwrap();
        // The link is there already in the round of the second driver.
        let _ = std::os::unix::fs::symlink(w.0.project.join("real"), home.join("way"));
        w.create("from-home", driver, json!([{ "action": "deny", "path": format!("{}/way/k", home.display()) }]));
        w.is_kept("from-home", "chmod 000 real", "chmod 755 real; cat real/k");
        w.0.file(home.join("shut/inner/file"), "shut\n");
        fs::set_permissions(home.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
        w.create("elsewhere", driver, json!([{ "action": "deny", "path": format!("{}/shut/**", home.display()) }]));
        assert_eq!(w.exec("elsewhere", "echo starts"), "starts\n", "{who:?}");
        w.create("control", driver, deny("keys/plain"));
        let d = w.0.project.display();
        w.exec("control", &format!("cd {d}; chmod 700 open; mv lnk kept"));
        assert!(w.exec("control", &format!("cd {d}; cat open/file; cat kept/k")).contains(&format!("open\n{SECRET}")));
    }
}

// promise 1
#[test]
fn a_directory_of_very_many_names_hides_no_denial() {
    let w = CommandLineFixture::new(As::User);
    w.create("many", "overlay", json!([{ "action": "deny", "path": "$WORKSPACE/**/plain" }]));
    let fill = "python3 -c 'import os\nfor n in range(100100): os.close(os.open(\"keys/!%06d\" % n, os.O_CREAT))'";
    w.is_kept("many", fill, "cat keys/plain");
    let refused = w.exec("many", "true");
    assert!(refused.contains("more than 100000 names"), "{refused}");
}

/// Paths under an `ask` rule and targets of denied links are shown to callers who may answer, or to no caller.
// promise 1
#[test]
fn what_waits_for_an_answer_is_not_told_to_who_cannot_give_it() {
    for who in either() {
        let w = CommandLineFixture::new(who);
        let daemon = Daemon::start(&w.0);
        w.create("asked", "copy", json!([{ "action": "ask", "path": "$WORKSPACE/deploy" }]));
        w.create("linked", "copy", json!([{ "action": "deny", "path": "$WORKSPACE/.env" }]));
        for path in ["deploy/key", "theenv", "open/file"] {
            std::thread::sleep(std::time::Duration::from_millis(20));
            w.0.file(w.0.project.join(path), format!("{SECRET} anew\n"));
        }
        let scopes =
            |scope: &str| daemon.token(json!({ "name": scope, "scopes": [scope], "sandboxes": ["asked", "linked"] }));
        let (agent, reviewer) = (scopes("agent"), scopes("reviewer"));
        for name in ["asked", "linked"] {
            let hidden = if name == "asked" { "deploy/key" } else { "theenv" };
            for what in ["workspace/diff", "workspace/patch", "export"] {
                let answer = daemon.ask("GET", &format!("/v1/sandboxes/{name}/{what}")).bearer(&agent).send();
                let text = answer.text();
                assert!(!text.contains(&format!("{SECRET} {hidden}")), "{who:?} {name} {what}: {text}");
            }
            let rebased = daemon.ask("POST", &format!("/v1/sandboxes/{name}/workspace/rebase")).bearer(&agent).send();
            assert!(!rebased.text().contains(hidden), "{}", rebased.text());
        }
        let shown = daemon.ask("GET", "/v1/sandboxes/asked/workspace/diff").bearer(&reviewer).send().text();
        assert!(shown.contains(SECRET), "the control: who may answer sees it: {shown}");
    }
}
