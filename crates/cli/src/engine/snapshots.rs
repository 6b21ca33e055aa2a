//! snapshot, fork, restore, template, export, import.

use super::there::There;
use super::{Engine, make, not_there};
use client::{Ask, Content};
use node::lifecycle::stop::Which;
use node::snapshots::{self, Described, Forked, Imported, Listed, Onto, Restored, Since, Taken, Templated, Written};
use node::state::State;
use node::warm;
use serde::Deserialize;
use server::wire::{CreateTemplate, Fork, PolicyOf, Restore, Snapshots, Take, Template, Templates, WarmTemplate};
use std::io::{Read, Write};
use terms::{ErrorKind, Fault, Phase};

#[derive(Deserialize)]
struct Gone {
    removed: String,
}

impl Engine {
    pub fn snapshot(&self, which: &Which, name: Option<&str>, sync: bool) -> Result<Taken, Fault> {
        match self {
            Engine::Here(caller) => {
                let take = if sync { snapshots::take_to_disk } else { snapshots::take_once };
                take(&State::open(caller)?, caller, which, name, None)
            }
            Engine::There(there) => there.to(which, &["snapshots"], &Take { name: name.map(str::to_owned), sync }),
        }
    }

    /// After a snapshot was answered. What hinders it hinders nothing: it is tried again with the next one. A daemon does it by itself.
    pub fn settle(&self, taken: &Taken) {
        if let (Engine::Here(caller), true) = (self, taken.layers > snapshots::DEEP) {
            let _ = State::open(caller).and_then(|state| snapshots::squash(&state, caller, &taken.sandbox));
        }
    }

    pub fn snapshots(&self, word: Option<&str>) -> Result<Vec<Listed>, Fault> {
        let there = match (self, word) {
            (Engine::Here(caller), Some(word)) => return snapshots::list_of(&State::open(caller)?, caller, word),
            (Engine::Here(caller), None) => return snapshots::list_all(&State::open(caller)?, caller),
            (Engine::There(there), _) => there,
        };
        let ask = || match word {
            Some(word) => Ask::get(&["v1", "sandboxes", word, "snapshots"]),
            None => Ask::get(&["v1", "snapshots"]),
        };
        let mut all = there.list(ask, |part: Snapshots| (part.snapshots, part.next))?;
        all.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        Ok(all)
    }

    pub fn snapshot_remove(&self, word: &str) -> Result<String, Fault> {
        match self {
            Engine::Here(caller) => snapshots::remove(&State::open(caller)?, caller, word),
            Engine::There(there) => there.forget(&["v1", "snapshots", word]),
        }
    }

    pub fn fork(&self, word: Option<&str>, name: Option<&str>, count: u32) -> Result<Forked, Fault> {
        match self {
            Engine::Here(caller) => snapshots::fork(&State::open(caller)?, caller, word, name, count),
            Engine::There(there) => {
                let wish = Fork { snapshot: None, name: name.map(str::to_owned), count };
                there.post(&["v1", "snapshots", &there.word(word)?, "fork"], &wish)
            }
        }
    }

    /// Without a sandbox, the one that the snapshot was taken of.
    pub fn restore(&self, snapshot: &str, which: &Which, since: Since) -> Result<Restored, Fault> {
        let there = match self {
            Engine::Here(caller) => return snapshots::restore(&State::open(caller)?, caller, snapshot, which, since),
            Engine::There(there) => there,
        };
        let word = match &which.word {
            Some(word) => word.clone(),
            None => there.get(&["v1", "snapshots", snapshot]).map(|found: Listed| found.sandbox)?,
        };
        let wish = Restore { snapshot: snapshot.to_owned(), discard: matches!(since, Since::Discard) };
        there.to(&Which { word: Some(word), version: which.version }, &["restore"], &wish)
    }

    /// Refuses where another template has the name.
    pub fn refuse_other_template(&self, name: &str) -> Result<(), Fault> {
        let there = match self {
            Engine::Here(caller) => return snapshots::refuse_other_template(&State::open(caller)?, name),
            Engine::There(there) => there,
        };
        match there.get::<Template>(&["v1", "templates", name]) {
            Err(fault) if fault.error_kind == ErrorKind::NotFound => Ok(()),
            Err(fault) => Err(fault),
            Ok(there) => {
                let message = format!("the template {name:?} is there already: {}", there.template.address);
                let fault = Fault::new(ErrorKind::Conflict, message).subject(there.template.id);
                Err(fault.hint("choose another name, or remove that one").phase(Phase::Admission))
            }
        }
    }

    pub fn template_create(&self, name: &str, from: Option<&str>, prepared: Option<&str>) -> Result<Templated, Fault> {
        match self {
            Engine::Here(caller) => snapshots::create(&State::open(caller)?, caller, name, from, prepared),
            Engine::There(there) => {
                let (name, from) = (name.to_owned(), Some(there.word(from)?));
                let wish = CreateTemplate { name, from, prepared: prepared.map(str::to_owned), prepare: None };
                there.post(&["v1", "templates"], &wish)
            }
        }
    }

    pub fn templates(&self) -> Result<Vec<Described>, Fault> {
        match self {
            Engine::Here(caller) => snapshots::describe_templates(&State::open(caller)?),
            Engine::There(there) => {
                there.list(|| Ask::get(&["v1", "templates"]), |part: Templates| (part.templates, part.next))
            }
        }
    }

    pub fn template(&self, word: &str) -> Result<Described, Fault> {
        match self {
            Engine::Here(caller) => snapshots::describe_template(&State::open(caller)?, word),
            Engine::There(there) => there.get(&["v1", "templates", word]).map(|found: Template| found.template),
        }
    }

    /// How many sandboxes shall stand ready for a template, and under what.
    pub fn template_warm(&self, ask: &warm::Ask) -> Result<warm::Set, Fault> {
        let there = match self {
            Engine::Here(caller) => return warm::set(ask, caller),
            Engine::There(there) => there,
        };
        let (policies, _) = make::policies_of(&ask.policies, &ask.flags, true, there)?;
        let wish = WarmTemplate { keep: ask.keep, policies, limits: ask.limits, cpus: ask.cpus };
        there.client.document(Ask::put(&["v1", "templates", &ask.template, "warm"]).document(&wish)?)
    }

    pub fn template_remove(&self, word: &str) -> Result<String, Fault> {
        match self {
            Engine::Here(caller) => snapshots::remove_template(&State::open(caller)?, caller, word),
            Engine::There(there) => there.forget(&["v1", "templates", word]),
        }
    }

    pub fn export(&self, word: &str, out: &mut dyn Write) -> Result<Written, Fault> {
        match self {
            Engine::Here(caller) => snapshots::export(&State::open(caller)?, caller, word, out),
            Engine::There(there) => {
                let headers = there.client.bytes(Ask::get(&["v1", "snapshots", word, "export"]), out)?;
                let told =
                    headers.get("cofferdam-exported").and_then(|told| serde_json::from_slice(told.as_bytes()).ok());
                told.ok_or_else(|| Fault::new(ErrorKind::ProviderFailed, "the daemon does not say what it has written"))
            }
        }
    }

    pub fn import(&self, onto: Onto<'_>, mut input: Box<dyn Read + Send>) -> Result<Imported, Fault> {
        match self {
            Engine::Here(caller) => snapshots::import(&State::open(caller)?, caller, onto, &mut input),
            Engine::There(there) => there.import(onto, input),
        }
    }
}

impl There {
    /// Built-in policies by name, and all others as a list of documents.
    fn sources(&self, onto: &Onto<'_>) -> Result<(Option<String>, Option<String>), Fault> {
        // It goes with the head of the request: the body is the file.
        const LONGEST: usize = 8 << 10;
        let (all, notes) = make::policies_of(&onto.policies, &onto.flags, false, self)?;
        notes.iter().for_each(|note| crate::render::note(note));
        let (mut names, mut documents) = (Vec::new(), Vec::new());
        for policy in all {
            match policy {
                PolicyOf::Name(name) => names.push(name),
                document => documents.push(document),
            }
        }
        let text = serde_json::to_string(&documents).map_err(|e| Fault::internal(e.to_string()))?;
        if text.len() > LONGEST {
            let what = format!("an import under policy files and rules of more than {LONGEST} bytes");
            let hint = "name built-in policies with -p, or import it on the daemon's host without --server";
            return Err(not_there(&what, "they go with the head of the request, and its body is the file", hint));
        }
        let some = |list: bool, text: String| list.then_some(text);
        Ok((some(!names.is_empty(), names.join(",")), some(!documents.is_empty(), text)))
    }

    fn forget(&self, path: &[&str]) -> Result<String, Fault> {
        self.client.document(Ask::delete(path)).map(|gone: Gone| gone.removed)
    }

    fn import(&self, onto: Onto<'_>, input: Box<dyn Read + Send>) -> Result<Imported, Fault> {
        let (policy, documents) = self.sources(&onto)?;
        let ask = Ask::post(&["v1", "import"]).content(Content::Stream(input, "application/octet-stream"));
        let ask = ask.query_if("dir", onto.dir.map(|dir| self.whole(dir)).transpose()?);
        // A bound that somebody chose has no ratio beside it.
        let most = onto.bounds.ratio.is_none().then(|| onto.bounds.bytes.to_string());
        let ask = ask.query_if("name", onto.name).query_if("policy", policy).query_if("documents", documents);
        let driver = onto.driver.map(|driver| serde_json::to_value(driver).map_err(|e| Fault::internal(e.to_string())));
        let driver = driver.transpose()?.and_then(|driver| driver.as_str().map(str::to_owned));
        self.client.document(ask.query_if("max_bytes", most).query_if("driver", driver))
    }
}
