//! Fixture with a daemon and, on request, a project with a git repository, for tests of saved runs and of workspaces.

use crate::support::http::{Answer, Daemon};
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub struct WorkspaceFixture {
    pub place: Place,
    pub daemon: Daemon,
}

impl WorkspaceFixture {
    /// Starts a daemon whose log is inside the test's directory, to be searched like the other files.
    pub fn new() -> WorkspaceFixture {
        let place = Place::new(As::User);
        let mut command = place.cofferdam(["serve", "--json"]);
        command.stderr(fs::File::create(place.root.join("daemon.log")).unwrap());
        let daemon = Daemon::spawn(&place, command);
        WorkspaceFixture { place, daemon }
    }

    /// Adds a git repository as the project.
    pub fn with_repository() -> WorkspaceFixture {
        let fixture = WorkspaceFixture::new();
        let numbers: String = (1..=30).map(|n| format!("{n}\n")).collect();
        for (path, text) in
            [("src/a.txt", numbers.as_str()), ("src/old.txt", "moved\n"), ("gone.txt", "gone\n"), ("docs/d.md", "d\n")]
        {
            fixture.place.file(fixture.place.project.join(path), text);
        }
        fixture.git(&["init", "-q", "-b", "main", "."]);
        fixture.git(&["config", "user.name", "Ann"]);
        fixture.git(&["config", "user.email", "ann@example.org"]);
        fixture.git(&["add", "."]);
        fixture.git(&["commit", "-q", "-m", "base"]);
        fixture
    }

    pub fn git(&self, args: &[&str]) -> String {
        let mut git = self.place.outside("git");
        let done = git.args(args).current_dir(&self.place.project).output().unwrap();
        assert!(done.status.success(), "git {args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Creates a sandbox over the project.
    pub fn create(&self, ask: Value) -> String {
        let mut whole = json!({ "dir": self.place.project });
        whole.as_object_mut().unwrap().extend(ask.as_object().unwrap().clone());
        self.daemon.post("/v1/sandboxes", whole).assert_ok()["id"].as_str().unwrap().to_owned()
    }

    /// Creates a sandbox with an empty base of its own.
    pub fn make(&self, name: &str) -> String {
        let made = self.daemon.post("/v1/sandboxes", json!({ "name": name, "policies": ["workspace-write"] }));
        made.assert_ok()["id"].as_str().unwrap().to_owned()
    }

    /// Runs a shell text in a sandbox to its end.
    pub fn run(&self, name: &str, shell: &str) -> Value {
        self.daemon.post(&format!("/v1/sandboxes/{name}/runs?wait=120s"), json!({ "shell": shell })).assert_ok()
    }

    /// Runs a script by the binary alone, beside the daemon.
    pub fn exec(&self, sandbox: &str, script: &str) -> Output {
        let done = self.place.cofferdam(["exec", sandbox, "--", "/bin/sh", "-ec", script]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        done
    }

    /// Output stream of a run to its end, with the HTTP head.
    pub fn output(&self, run: &str) -> String {
        self.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open().rest()
    }

    pub fn diff(&self, sandbox: &str) -> Value {
        self.daemon.get(&format!("/v1/sandboxes/{sandbox}/workspace/diff")).assert_ok()
    }

    pub fn verb(&self, sandbox: &str, verb: &str, ask: Value) -> Answer {
        self.daemon.post(&format!("/v1/sandboxes/{sandbox}/workspace/{verb}"), ask)
    }

    /// Reads a file of the project.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.place.project.join(path)).unwrap()
    }

    pub fn keeper(&self, id: &str) -> PathBuf {
        self.place.state().join("keepers").join(id)
    }

    /// Gives a tree to the user that the daemon runs as: tests are root.
    pub fn own(&self, path: &Path) {
        assert!(Command::new("chown").args(["-hR", "1500:1500"]).arg(path).status().unwrap().success());
    }
}
