//! Helpers to call verbs of the binary.

use crate::{Place, to_the_end};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Output;

pub trait Verbs {
    fn verb(&self, words: &[&str]) -> Output;

    /// Runs a verb that must succeed; returns its document.
    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        let output = self.verb(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stderr), text(&output.stdout));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["protocol_version"], 1, "{words:?}");
        document
    }

    /// Runs a verb that must fail; returns its fault.
    #[track_caller]
    fn fault(&self, words: &[&str], kind: &str) -> Value {
        let output = self.verb(&[words, &["--json"]].concat());
        assert!(!output.status.success(), "{words:?} must be refused");
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert_eq!(fault["error_kind"], kind, "{words:?}: {fault} {}", text(&output.stderr));
        assert!(fault["hint"].is_string(), "{words:?}: a fault says what to do: {fault}");
        fault
    }

    #[track_caller]
    fn create(&self, words: &[&str]) -> String {
        let made = self.json(&[&["create"], words].concat());
        made["id"].as_str().unwrap().to_owned()
    }

    /// Returns the states of all listed sandboxes by id.
    #[allow(dead_code)]
    #[track_caller]
    fn states(&self) -> Vec<(String, String)> {
        let rows = self.json(&["ls"])["sandboxes"].as_array().unwrap().clone();
        let word = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
        let mut states: Vec<_> = rows.iter().map(|row| (word(row, "id"), word(row, "state"))).collect();
        states.sort();
        states
    }

    /// Verifies the journal; returns the number of entries.
    #[track_caller]
    fn audit(&self) -> u64 {
        self.json(&["audit", "verify"])["entries"].as_u64().unwrap()
    }

    fn layers(&self) -> Vec<PathBuf>;
}

impl Verbs for Place {
    fn verb(&self, words: &[&str]) -> Output {
        to_the_end(&mut self.cofferdam(words), b"")
    }

    /// Returns the directories of layers on disk.
    fn layers(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.state().join("layers")).into_iter().flatten().flatten();
        entries.map(|e| e.path()).collect()
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
