//! A sandbox in which code runs, and what a call answers.

use crate::support::words::{Verbs, text};
use crate::support::{As, Place, to_the_end};
use serde_json::{Value, json};
use std::process::Output;

/// A place with the sandbox `s`.
pub struct CodeFixture {
    pub place: Place,
}

/// A call: its exit status and its document, an answer or a fault.
#[derive(Debug)]
pub struct Call {
    pub status: i32,
    pub document: Value,
}

impl CodeFixture {
    pub fn new(who: As) -> CodeFixture {
        CodeFixture::with(who, &[])
    }

    /// Makes the sandbox with flags of `create`.
    pub fn with(who: As, flags: &[&str]) -> CodeFixture {
        let place = Place::new(who);
        place.create(&[&["--name", "s"], flags].concat());
        CodeFixture { place }
    }

    /// Makes the sandbox with variables of its own.
    pub fn with_env(who: As, set: Value) -> CodeFixture {
        let place = Place::new(who);
        let policy = place.policy(json!({"version": 1, "extends": ["default"], "env": {"set": set}}));
        place.create(&["--name", "s", "-p", &policy]);
        CodeFixture { place }
    }

    /// Runs `cofferdam code FLAGS… -e TEXT` for a document.
    pub fn call(&self, flags: &[&str], code: &str) -> Call {
        let words = [&["code", "--sandbox", "s", "--json"], flags, &["-e", code]].concat();
        Call::of(&self.place.verb(&words))
    }

    /// Runs code from standard input, which has no bound as arguments have.
    pub fn call_from_input(&self, flags: &[&str], code: &[u8]) -> Call {
        let words = [&["code", "--sandbox", "s", "--json"], flags, &["-"]].concat();
        Call::of(&to_the_end(&mut self.place.cofferdam(words), code))
    }

    pub fn python(&self, code: &str) -> Call {
        self.call(&[], code)
    }

    /// Runs `cofferdam code` as a person does, without a document.
    pub fn plain(&self, flags: &[&str], code: &str) -> Output {
        self.place.verb(&[&["code", "--sandbox", "s"], flags, &["-e", code]].concat())
    }

    /// Returns the contexts by name, with state, calls and restarts.
    #[track_caller]
    pub fn contexts(&self) -> Vec<Value> {
        let listed = self.place.json(&["context", "ls", "--sandbox", "s"]);
        listed["contexts"].as_array().unwrap().clone()
    }

    #[track_caller]
    pub fn context(&self, name: &str) -> Value {
        let found = self.contexts().into_iter().find(|context| context["name"] == name);
        found.unwrap_or_else(|| panic!("no context {name}: {:?}", self.contexts()))
    }

    pub fn is_busy(&self, name: &str) -> bool {
        self.contexts().iter().any(|context| context["name"] == name && context["state"] == "busy")
    }

    /// Process ids of the guest processes whose command line has this word, as the host numbers them.
    pub fn processes(&self, word: &str) -> Vec<u32> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let cwd = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            if text(&line).contains(word) && cwd.starts_with(&self.place.project) {
                found.push(pid);
            }
        }
        found
    }
}

impl Call {
    pub fn of(output: &Output) -> Call {
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| json!(text(&output.stdout)));
        Call { status: output.status.code().unwrap_or(-1), document }
    }

    /// The call ended well.
    #[track_caller]
    pub fn ok(self) -> Call {
        assert_eq!((self.status, &self.document["outcome"]["verdict"]), (0, &json!("ok")), "{self:#?}");
        self
    }

    /// The call ended with this verdict, and the context kept its state or lost it.
    #[track_caller]
    pub fn ended(self, verdict: &str, status: i32, context_lost: bool) -> Call {
        let outcome = &self.document["outcome"];
        let seen = (&outcome["verdict"], self.status, &outcome["context_lost"]);
        assert_eq!(seen, (&json!(verdict), status, &json!(context_lost)), "{self:#?}");
        self
    }

    /// The call was refused.
    #[track_caller]
    pub fn fault(self, kind: &str) -> Call {
        assert_eq!(self.document["error_kind"], kind, "{self:#?}");
        assert!(self.document["hint"].is_string() && self.status != 0, "{self:#?}");
        self
    }

    #[track_caller]
    pub fn failed(self, error: &str) -> Call {
        assert_eq!(self.document["error"]["name"], error, "{self:#?}");
        self.ended("failed", 1, false)
    }

    pub fn stdout(&self) -> &str {
        self.document["stdout"].as_str().unwrap_or_default()
    }

    /// Plain text of the last expression's value.
    pub fn value(&self) -> &str {
        let results = self.document["results"].as_array();
        let result = results.into_iter().flatten().find(|result| result["is_result"] == true);
        result.and_then(|result| result["data"]["text/plain"].as_str()).unwrap_or_default()
    }

    pub fn message(&self) -> String {
        let said = |from: &Value| from["message"].as_str().unwrap_or_default().to_owned();
        said(&self.document) + &said(&self.document["outcome"])
    }
}
