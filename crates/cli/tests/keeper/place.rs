//! Fixtures: live sandboxes, their keepers, and the processes that they leave.

use crate::support::patience::PATIENCE;
use crate::support::{Place, to_the_end};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

/// A live sandbox, removed on drop.
pub struct LiveSandbox<'a> {
    pub place: &'a Place,
    pub id: String,
}

impl<'a> LiveSandbox<'a> {
    #[track_caller]
    pub fn new(place: &'a Place, words: &[&str]) -> LiveSandbox<'a> {
        let id = place.create(words);
        place.json(&["start", "--live", &id]);
        LiveSandbox { place, id }
    }

    /// `cofferdam exec FLAGS… ID -- sh -c TEXT`, to its end.
    pub fn sh(&self, flags: &[&str], text: &str, input: &[u8]) -> Output {
        let words = [&["exec"], flags, &[&self.id, "--", "sh", "-c", text]].concat();
        to_the_end(&mut self.place.cofferdam(words), input)
    }

    /// Starts a command detached and returns the id of its run.
    #[track_caller]
    pub fn detach(&self, flags: &[&str], script: &str) -> String {
        let output = self.sh(&[&["-d"], flags].concat(), script, b"");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    }

    /// Recorded output of a run.
    #[track_caller]
    pub fn logs(&self, words: &[&str]) -> Output {
        let output = self.place.verb(&[&["logs"], words].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    }

    /// Recorded output of a run as JSON documents.
    #[track_caller]
    pub fn pieces(&self, words: &[&str]) -> Vec<Value> {
        let output = self.logs(&[words, &["--json"]].concat());
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Outcome of a run, awaited.
    #[track_caller]
    pub fn outcome(&self, run: &str) -> Value {
        let output = self.place.verb(&["wait", "--timeout", "180s", "--json", run]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
    }

    pub fn inspect(&self) -> Value {
        self.place.json(&["inspect", &self.id])
    }

    /// Pid of the keeper.
    pub fn keeper(&self) -> u32 {
        let card = fs::read(self.place.state().join("keepers").join(&self.id).join("keeper.json")).unwrap();
        serde_json::from_slice::<Value>(&card).unwrap()["pid"].as_u64().unwrap() as u32
    }
}

impl Drop for LiveSandbox<'_> {
    fn drop(&mut self) {
        let _ = self.place.verb(&["rm", "--force", "-t", "0", &self.id]);
    }
}

#[track_caller]
pub fn soon(mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Number of sleep processes with the mark in their command line.
pub fn marked(mark: &str) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|e| e.path());
    let lines = all.filter_map(|path| fs::read(path.join("cmdline")).ok());
    lines.filter(|line| line.starts_with(b"sleep\0") && text(line).contains(mark)).count()
}

/// A sleep duration that identifies processes of one test.
pub fn mark(n: u32) -> String {
    format!("{}{:05}", 5000 + n, std::process::id() % 100_000)
}
