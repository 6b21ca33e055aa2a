//! The verbs run on the recorded disk, step by step, and the base after each.

use crate::recorder::Recorder;
use crate::support::tree::{Tree, tree};
use crate::support::{binary, to_the_end};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// An acknowledged step.
pub struct Step {
    pub name: &'static str,
    /// Number of requests that the disk had received by then.
    pub at: usize,
    /// The base from then on.
    pub base: Tree,
}

/// The directory of one recording.
pub struct Story {
    pub root: PathBuf,
}

/// Runs a command as after a reboot: under another boot id, which the kernel never gives twice.
const RESTARTED: &str = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";

const EDIT: &str = "echo of the guest > changed; rm gone; mv moved fresh; mkdir -p new/deep; echo x > new/deep/file; rm -r dead; \
                    ln -s changed link; chmod 755 mode; for n in 1 2 3 4 5 6; do echo $n >> many/$n; done";
const AGAIN: &str = "echo again >> changed; mv fresh new/moved 2>/dev/null || mv moved new; rm -r many; echo y > mode";

/// Verbs in order; the sandboxes are `first` and `second`.
const STEPS: &[(&str, &[&str])] = &[
    ("create", &["create", ".", "--name", "first"]),
    ("run", &["exec", "first", "--", "sh", "-c", EDIT]),
    ("snapshot to disk", &["snapshot", "first", "--sync", "--name", "kept"]),
    ("diff", &["diff", "first"]),
    ("approve", &["approve", "first"]),
    ("undo", &["undo", "first"]),
    ("run again", &["exec", "first", "--", "sh", "-c", AGAIN]),
    ("snapshot", &["snapshot", "first", "--name", "soon"]),
    ("fork", &["fork", "kept", "--name", "forked"]),
    ("approve again", &["approve", "first", "--unseen"]),
    ("create another", &["create", ".", "--name", "second"]),
    ("run in it", &["exec", "second", "--", "sh", "-c", "echo z > z"]),
    ("reject", &["reject", "second", "--all"]),
    ("stop", &["stop", "second"]),
    ("remove", &["rm", "second"]),
    ("collect", &["gc"]),
];

impl Story {
    pub fn base(&self) -> PathBuf {
        self.root.join("disk/base")
    }

    /// Runs a verb, before the power failure or on the rebooted machine after it.
    pub fn cofferdam(&self, words: &[&str]) -> Output {
        let boot = self.root.join("boot");
        // A command gets a fresh /proc, whose mount the kernel refuses to a process with a partly covered /proc.
        let mut command = match boot.exists() && !words.contains(&"exec") {
            false => Command::new(binary()),
            true => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "/bin/sh", "-c", RESTARTED, "sh"]).arg(boot).arg(binary());
                command
            }
        };
        command.env_clear().env("HOME", &self.root).env("USER", "tester").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("COFFERDAM_STATE", self.root.join("disk/state")).env("LANG", "C.UTF-8");
        to_the_end(command.args(words).current_dir(self.base()).stdin(Stdio::null()), b"")
    }

    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.cofferdam(words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {stderr}{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(words)).unwrap()
    }

    /// Runs the verbs on a recorded disk. The first step has only a base.
    pub fn tell(&self, recorder: &Recorder) -> Vec<Step> {
        for path in ["changed", "gone", "moved", "mode", "dead/a", "dead/b/c", "many/1", "many/2", "many/7"] {
            let path = self.base().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("of the base: {}\n", path.display())).unwrap();
        }
        crate::recorder::run("sync", &["-f", self.base().to_str().unwrap()]);
        let mut steps = vec![Step { name: "nothing", at: recorder.count(), base: tree(&self.base()) }];
        for (name, words) in STEPS {
            self.ok(words);
            let mut base = tree(&self.base());
            base.retain(|path, _| !is_piece(path));
            steps.push(Step { name, at: recorder.count(), base });
        }
        steps
    }
}

pub fn is_piece(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".cofferdam-"))
}
