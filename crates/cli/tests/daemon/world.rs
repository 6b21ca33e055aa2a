//! A place with a daemon in it, and perhaps a project with a repository: what tests of saved runs and of workspaces begin with.

use crate::support::http::{Answer, Daemon};
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub struct World {
    pub place: Place,
    pub daemon: Daemon,
}

impl World {
    /// The daemon's log is in the place, to be looked through like everything else.
    pub fn new() -> World {
        let place = Place::new(As::User);
        let mut command = place.cofferdam(["serve", "--json"]);
        command.stderr(fs::File::create(place.root.join("daemon.log")).unwrap());
        let daemon = Daemon::spawn(&place, command);
        World { place, daemon }
    }

    /// The same with a repository as the project.
    pub fn with_repository() -> World {
        let world = World::new();
        let numbers: String = (1..=30).map(|n| format!("{n}\n")).collect();
        for (path, text) in
            [("src/a.txt", numbers.as_str()), ("src/old.txt", "moved\n"), ("gone.txt", "gone\n"), ("docs/d.md", "d\n")]
        {
            world.place.file(world.place.project.join(path), text);
        }
        world.git(&["init", "-q", "-b", "main", "."]);
        world.git(&["config", "user.name", "Ann"]);
        world.git(&["config", "user.email", "ann@example.org"]);
        world.git(&["add", "."]);
        world.git(&["commit", "-q", "-m", "base"]);
        world
    }

    pub fn git(&self, args: &[&str]) -> String {
        let mut git = self.place.outside("git");
        let done = git.args(args).current_dir(&self.place.project).output().unwrap();
        assert!(done.status.success(), "git {args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// A sandbox over the project.
    pub fn create(&self, ask: Value) -> String {
        let mut whole = json!({ "dir": self.place.project });
        whole.as_object_mut().unwrap().extend(ask.as_object().unwrap().clone());
        self.daemon.post("/v1/sandboxes", whole).assert_ok()["id"].as_str().unwrap().to_owned()
    }

    /// A sandbox with a directory of its own.
    pub fn make(&self, name: &str) -> String {
        let made = self.daemon.post("/v1/sandboxes", json!({ "name": name, "policies": ["workspace-write"] }));
        made.assert_ok()["id"].as_str().unwrap().to_owned()
    }

    /// Runs a text in a sandbox to its end.
    pub fn run(&self, name: &str, shell: &str) -> Value {
        self.daemon.post(&format!("/v1/sandboxes/{name}/runs?wait=60s"), json!({ "shell": shell })).assert_ok()
    }

    /// The same with the binary alone, beside the daemon.
    pub fn exec(&self, sandbox: &str, script: &str) -> Output {
        let done = self.place.cofferdam(["exec", sandbox, "--", "/bin/sh", "-ec", script]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        done
    }

    /// What a run said as a stream, to its end; its head is in it.
    pub fn output(&self, run: &str) -> String {
        self.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open().rest()
    }

    pub fn diff(&self, sandbox: &str) -> Value {
        self.daemon.get(&format!("/v1/sandboxes/{sandbox}/workspace/diff")).assert_ok()
    }

    pub fn verb(&self, sandbox: &str, verb: &str, ask: Value) -> Answer {
        self.daemon.post(&format!("/v1/sandboxes/{sandbox}/workspace/{verb}"), ask)
    }

    /// A file of the project.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.place.project.join(path)).unwrap()
    }

    pub fn keeper(&self, id: &str) -> PathBuf {
        self.place.state().join("keepers").join(id)
    }

    /// Gives everything there to whoever runs: tests are root.
    pub fn own(&self, path: &Path) {
        assert!(Command::new("chown").args(["-hR", "1500:1500"]).arg(path).status().unwrap().success());
    }
}
