//! A policy merged from several documents. Every rule keeps a label with its origin.
//!
//! Rules of merging; the grouping of documents does not change the result:
//! - rules, and paths that are copied into the home, are concatenated; an allow of one document adds to the others, a deny of any of them holds;
//! - a default is the most restrictive of all, a limit the smallest, and so is a capability's budget;
//! - `env.pass` and `degrade` keep what every document that has the key names; `env.set` keeps the later value;
//! - refused system calls and recorded events add up.
//!
//! So a denial of one document is lifted by no other, and no default, limit, passed variable or missing mechanism gets
//! looser than any document says. Unset values resolve to the safe value.

use crate::document::{Capability, Defaults, Document, Env, ExecRule, FsRule, NetRule, Secret};
use crate::env;
use crate::error::PolicyError;
use crate::node::Node;
use crate::path::RulePath;
use crate::presets::{PRESETS, preset_document};
use crate::schema::nearest;
use crate::write::{self, ObjectEntries};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use terms::{Action, Limits};

/// A rule with its origin: `default:fs.rules[3]`, `policy.json:net.rules[0]`, `--read`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled<T> {
    pub rule: T,
    pub label: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    pub defaults: Defaults,
    pub fs: Vec<Labelled<FsRule>>,
    pub net: Vec<Labelled<NetRule>>,
    pub exec: Vec<Labelled<ExecRule>>,
    pub syscalls_deny: BTreeSet<String>,
    pub env: Env,
    pub home_copy: Vec<Labelled<RulePath>>,
    pub secrets: Vec<Labelled<Secret>>,
    pub audit_events: BTreeSet<String>,
    pub limits: Limits,
    pub capabilities: BTreeMap<String, Capability>,
    pub degrade: Option<BTreeSet<String>>,
}

/// Merges documents in order, each after its presets. A preset counts once, even if it is named repeatedly.
pub fn effective(docs: &[Document]) -> Result<Policy, PolicyError> {
    let mut seen = BTreeSet::new();
    let mut policy = Policy::default();
    for doc in docs {
        policy = merge(policy, with_presets(doc, &mut seen)?);
    }
    Ok(policy)
}

/// Merges two policies; see the module's documentation.
pub fn merge(a: Policy, b: Policy) -> Policy {
    Policy {
        defaults: Defaults {
            fs: strictest(a.defaults.fs, b.defaults.fs),
            net: strictest(a.defaults.net, b.defaults.net),
            exec: strictest(a.defaults.exec, b.defaults.exec),
        },
        fs: chain(a.fs, b.fs),
        net: chain(a.net, b.net),
        exec: chain(a.exec, b.exec),
        syscalls_deny: &a.syscalls_deny | &b.syscalls_deny,
        env: env::merge(a.env, b.env),
        home_copy: chain(a.home_copy, b.home_copy),
        secrets: chain(a.secrets, b.secrets),
        audit_events: &a.audit_events | &b.audit_events,
        limits: a.limits.tightest(b.limits),
        capabilities: merge_capabilities(a.capabilities, b.capabilities),
        degrade: match (a.degrade, b.degrade) {
            (Some(a), Some(b)) => Some(&a & &b),
            (a, b) => a.or(b),
        },
    }
}

impl Policy {
    /// Returns the policy of one document without its presets.
    pub fn of(doc: &Document) -> Policy {
        Policy {
            defaults: doc.defaults,
            fs: labelled(doc, "fs.rules", &doc.fs),
            net: labelled(doc, "net.rules", &doc.net),
            exec: labelled(doc, "exec.rules", &doc.exec),
            syscalls_deny: doc.syscalls_deny.iter().cloned().collect(),
            env: doc.env.clone().map(env::tidy).unwrap_or_default(),
            home_copy: labelled(doc, "home.copy", &doc.home_copy),
            secrets: labelled(doc, "secrets", &doc.secrets),
            audit_events: doc.audit_events.iter().cloned().collect(),
            limits: doc.limits,
            capabilities: doc.capabilities.clone(),
            degrade: doc.degrade.as_ref().map(|names| names.iter().cloned().collect()),
        }
    }

    pub fn default_fs(&self) -> Action {
        self.defaults.fs.unwrap_or(Action::Deny)
    }

    pub fn default_net(&self) -> Action {
        self.defaults.net.unwrap_or(Action::Deny)
    }

    pub fn default_exec(&self) -> Action {
        self.defaults.exec.unwrap_or(Action::Allow)
    }

    /// Returns the SHA-256 of the policy's meaning: labels, order and repetition of rules do not count.
    pub fn digest(&self) -> String {
        terms::hex::encode(Sha256::digest(self.canonical().to_compact_json().as_bytes()))
    }

    /// Formats the effective policy as one document without presets; it parses back to the same policy.
    pub fn to_json(&self) -> String {
        write::document(&self.to_document("")).to_json()
    }

    /// Converts the policy to a document that extends no preset.
    pub fn to_document(&self, source: &str) -> Document {
        let bare = self.env == Env::default();
        Document {
            defaults: Defaults {
                fs: Some(self.default_fs()),
                net: Some(self.default_net()),
                exec: Some(self.default_exec()),
            },
            fs: self.fs.iter().map(|r| r.rule.clone()).collect(),
            net: self.net.iter().map(|r| r.rule.clone()).collect(),
            exec: self.exec.iter().map(|r| r.rule.clone()).collect(),
            syscalls_deny: self.syscalls_deny.iter().cloned().collect(),
            env: (!bare).then(|| self.env.clone()),
            home_copy: self.home_copy.iter().map(|path| path.rule.clone()).collect(),
            secrets: self.secrets.iter().map(|s| s.rule.clone()).collect(),
            audit_events: self.audit_events.iter().cloned().collect(),
            limits: self.limits,
            capabilities: self.capabilities.clone(),
            degrade: self.degrade.as_ref().map(|names| names.iter().cloned().collect()),
            ..Document::new(source)
        }
    }

    fn canonical(&self) -> Node {
        let mut doc = self.to_document("");
        sort_unique(&mut doc.fs);
        sort_unique(&mut doc.net);
        sort_unique(&mut doc.exec);
        sort_unique(&mut doc.home_copy);
        sort_unique(&mut doc.secrets);
        // An empty list and an absent key mean the same here: no mechanism may be missing.
        doc.degrade = Some(doc.degrade.unwrap_or_default());
        let mut out = ObjectEntries::default();
        out.put("policy", write::document(&doc));
        out.into_node()
    }
}

/// Returns the label of a rule. A flag has no list to index, so its name is the whole label.
pub(crate) fn label(doc: &Document, list: &str, index: usize) -> String {
    match doc.source.as_str() {
        "" => format!("{list}[{index}]"),
        flag if flag.starts_with("--") => flag.to_owned(),
        source => format!("{source}:{list}[{index}]"),
    }
}

fn labelled<T: Clone>(doc: &Document, list: &str, rules: &[T]) -> Vec<Labelled<T>> {
    let with_label = |(i, rule): (usize, &T)| Labelled { rule: rule.clone(), label: label(doc, list, i) };
    rules.iter().enumerate().map(with_label).collect()
}

/// Merges a document with its presets; `seen` also ends a cycle of presets.
fn with_presets(doc: &Document, seen: &mut BTreeSet<String>) -> Result<Policy, PolicyError> {
    let mut policy = Policy::default();
    for (i, name) in doc.extends.iter().enumerate() {
        let base = preset_document(name).ok_or_else(|| unknown_preset(doc, i, name))?;
        if seen.insert(name.clone()) {
            policy = merge(policy, with_presets(&base, seen)?);
        }
    }
    Ok(merge(policy, Policy::of(doc)))
}

fn unknown_preset(doc: &Document, index: usize, name: &str) -> PolicyError {
    let names = || PRESETS.iter().map(|(name, _)| *name);
    let hint = match nearest(name, names()) {
        Some(close) => format!("did you mean {close:?}?"),
        None => format!("the presets are {}", names().collect::<Vec<_>>().join(", ")),
    };
    PolicyError::without_place(&doc.source, &format!("extends[{index}]"), format!("unknown preset {name:?}")).hint(hint)
}

fn strictest(a: Option<Action>, b: Option<Action>) -> Option<Action> {
    a.max(b)
}

fn chain<T>(mut a: Vec<T>, b: Vec<T>) -> Vec<T> {
    a.extend(b);
    a
}

fn sort_unique<T: Ord>(list: &mut Vec<T>) {
    list.sort();
    list.dedup();
}

fn merge_capabilities(
    mut a: BTreeMap<String, Capability>,
    b: BTreeMap<String, Capability>,
) -> BTreeMap<String, Capability> {
    for (name, capability) in b {
        let merged = a.entry(name).or_insert(capability);
        merged.allow &= capability.allow;
        merged.budget = match (merged.budget, capability.budget) {
            (Some(x), Some(y)) => Some(x.min(y)),
            (x, y) => x.or(y),
        };
    }
    a
}
