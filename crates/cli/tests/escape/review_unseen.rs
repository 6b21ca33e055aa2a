//! Attacks on a reviewer through what a diff does not show: withheld files, modes of directories, changes after the
//! diff. Each has a control that must land.

use crate::support::{As, BOTH, Place, to_the_end};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

pub struct Desk {
    pub place: Place,
}

impl Desk {
    /// A project with these files, and a sandbox over it in which a guest has run `work`.
    pub fn new(place: Place, files: &[(&str, &str)], work: &str) -> Desk {
        for (path, text) in files {
            place.file(place.project.join(path), text);
        }
        let desk = Desk { place };
        desk.ok(&["create", ".", "--name", "agent"]);
        desk.guest(work);
        desk
    }

    pub fn guest(&self, work: &str) {
        self.ok(&["exec", "agent", "--", "sh", "-c", work]);
    }

    pub fn cofferdam(&self, words: &[&str]) -> Output {
        to_the_end(self.place.cofferdam(words).current_dir(&self.place.project), b"")
    }

    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.cofferdam(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn fault(&self, words: &[&str]) -> Value {
        let output = self.cofferdam(words);
        assert!(!output.status.success(), "{words:?} succeeded");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.place.project.join(path)).is_ok()
    }
}

/// Ignored files are summarised by directory; approving the directory does not approve them.
// promise 14
#[test]
fn what_is_withheld_does_not_land_with_the_directory_it_is_in() {
    const WORK: &str = "cd src; echo new > shown; for i in 1 2 3 4 5 6 7 8 9; do echo x > $i.log; done
        mkdir -p node_modules/evil; echo evil > node_modules/evil/index.js";
    for who in BOTH {
        let desk = Desk::new(Place::new(who), &[(".gitignore", "*.log\n"), ("src/shown", "old\n")], WORK);
        desk.ok(&["diff", "agent"]);
        desk.ok(&["approve", "agent", "src"]);
        assert_eq!(fs::read_to_string(desk.place.project.join("src/shown")).unwrap(), "new\n", "control");
        assert!(!desk.has("src/1.log") && !desk.has("src/node_modules"), "a withheld file landed");
        // By its own path, too, a withheld file lands only after a diff has shown its content.
        for path in ["src/node_modules", "src/1.log"] {
            let fault = desk.fault(&["approve", "agent", path, "--json"]);
            assert_eq!(fault["error_kind"], "conflict", "{fault}");
        }
        desk.ok(&["diff", "agent", "--all"]);
        desk.guest("echo worse > src/node_modules/evil/index.js");
        let fault = desk.fault(&["approve", "agent", "src/node_modules", "--json"]);
        assert_eq!(fault["error_kind"], "conflict", "it changed since: {fault}");
        desk.ok(&["diff", "agent", "--all"]);
        desk.ok(&["approve", "agent", "src/node_modules"]);
        assert!(desk.has("src/node_modules/evil/index.js"), "control: shown, named and unchanged");
        assert!(!desk.has("src/1.log"), "and nothing but that");
    }
}

/// A directory created for a file in it is no change of its own, and gives other users no access.
// promise 14
#[test]
fn a_directory_that_comes_along_gives_nobody_rights() {
    const WORK: &str = "umask 0; mkdir -p a/b ours/c empty; echo x > a/b/file; echo x > ours/c/file; chmod 1777 a
        touch open; umask 022; touch closed";
    for who in BOTH {
        let place = Place::new(who);
        let ours = place.dir(place.project.join("ours"));
        place.file(ours.join("kept"), "x\n");
        fs::set_permissions(&ours, fs::Permissions::from_mode(0o775)).unwrap();
        let desk = Desk::new(place, &[], WORK);
        let shown = desk.ok(&["diff", "agent"]);
        let line = |path: &str| shown.lines().find(|line| line.starts_with(&format!("added {path}"))).unwrap();
        assert!(line("empty").contains("0777") && line("open").contains("0666"), "{shown}");
        assert!(!line("closed").contains('0'), "control: {shown}");
        desk.ok(&["approve", "agent"]);
        let mode = |path: &str| fs::metadata(desk.place.project.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("a"), mode("a/b")), (0o755, 0o755));
        assert_eq!(mode("ours/c"), 0o775, "control: as far as the directory above lets others write");
        assert_eq!(mode("empty"), 0o777, "control: an empty one is shown, with its bits");
    }
}

/// The USER variable is only a claim; the journal also records the uid of the approver.
#[test]
fn the_journal_knows_who_approved_whatever_the_environment_says() {
    for who in BOTH {
        let desk = Desk::new(Place::new(who), &[], "echo x > file");
        desk.ok(&["diff", "agent"]);
        let mut command = desk.place.cofferdam(["approve", "agent"]);
        let output = to_the_end(command.env("USER", "somebody-else").current_dir(&desk.place.project), b"");
        assert!(output.status.success() && desk.has("file"));
        let log: Value = serde_json::from_str(&desk.ok(&["audit", "log", "--json"])).unwrap();
        let entries = log["entries"].as_array().unwrap();
        let done = entries.iter().find(|e| e["verb"] == "approve" && e["step"] == "done").unwrap();
        let expected = if matches!(who, As::Root) { 0 } else { 1500 };
        assert_eq!(done["body"]["uid"], expected, "{done}");
        desk.ok(&["audit", "verify"]);
    }
}

/// An unchanged size and unchanged times do not hide a change made after the diff.
// promise 14
#[test]
fn a_change_after_the_look_is_found_whatever_its_times_say() {
    const FORGE: &str = "touch -r file /tmp/times; printf evil > file; touch -r /tmp/times file";
    for who in BOTH {
        let desk = Desk::new(Place::new(who), &[("file", "base\n")], "printf good > file");
        desk.ok(&["diff", "agent"]);
        desk.guest(FORGE);
        let fault = desk.fault(&["approve", "agent", "--json"]);
        assert_eq!(fault["error_kind"], "conflict", "{fault}");
        assert_eq!(fs::read_to_string(desk.place.project.join("file")).unwrap(), "base\n");
        desk.ok(&["diff", "agent"]);
        desk.ok(&["approve", "agent"]);
        assert_eq!(fs::read_to_string(desk.place.project.join("file")).unwrap(), "evil", "control: shown, it lands");
    }
}
