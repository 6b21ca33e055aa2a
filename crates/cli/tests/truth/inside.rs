//! A sandbox over a test project, helpers to look into it, and the tools that `tools/test` installs.

use crate::support::{Place, to_the_end};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A sandbox made with `cofferdam create`; every `exec` mounts its layers again.
pub struct Inside<'a> {
    pub place: &'a Place,
    pub id: String,
}

impl<'a> Inside<'a> {
    pub fn new(place: &'a Place) -> Inside<'a> {
        Inside::by(place, "auto")
    }

    /// A sandbox with the given driver.
    pub fn by(place: &'a Place, driver: &str) -> Inside<'a> {
        let id = stdout_of(&mut place.cofferdam(["create", "--driver", driver]), "create").trim().to_owned();
        Inside { place, id }
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.place.cofferdam(["exec", &self.id, "--"]);
        command.args(words);
        command
    }

    /// Output of a command, which must succeed.
    #[track_caller]
    pub fn stdout_of(&self, words: &[&str]) -> String {
        stdout_of(&mut self.command(words), "exec")
    }

    #[track_caller]
    pub fn python(&self, text: &str, words: &[&str]) -> String {
        self.stdout_of(&[&["/usr/bin/python3", "-c", text], words].concat())
    }

    #[track_caller]
    pub fn snapshot(&self) {
        stdout_of(&mut self.place.cofferdam(["snapshot", &self.id]), "snapshot");
    }

    /// The complete diff, with nothing withheld.
    #[track_caller]
    pub fn diff(&self) -> Value {
        let text = stdout_of(&mut self.place.cofferdam(["diff", &self.id, "--json", "--all"]), "diff");
        serde_json::from_str(&text).unwrap()
    }
}

/// Runs Python outside, as the test's user, in the project.
#[track_caller]
pub fn python_outside(place: &Place, text: &str, words: &[&str]) -> String {
    stdout_of(place.outside("/usr/bin/python3").args(["-c", text]).args(words), "python3")
}

#[track_caller]
pub fn stdout_of(command: &mut Command, what: &str) -> String {
    let output = to_the_end(command, b"");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Copies a tool into the project, executable for all.
pub fn bring(place: &Place, tool: &str) -> String {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(tool);
    let copy = place.project.join(tool);
    let copied = fs::copy(&installed, &copy);
    copied.unwrap_or_else(|e| panic!("{}: {e}; tools/test installs it", installed.display()));
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    place.own(&copy);
    copy.to_string_lossy().into_owned()
}
