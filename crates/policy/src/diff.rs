//! Comparison of two policies rule by rule: what the second allows more, less, or differently. The comparison is
//! textual; a new rule inside an existing allowance still counts as more.

use crate::document::Capability;
use crate::env::PASSED;
use crate::node::Node;
use crate::policy::{Labelled, Policy};
use crate::write::{self, ObjectEntries};
use std::collections::{BTreeMap, BTreeSet};
use terms::{Action, LimitKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    More,
    Less,
    Different,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub effect: Effect,
    /// The part of the document: `fs.rules`, `limits.max_wall_ms`.
    pub place: String,
    /// `added {…}`, `removed {…}`, `30000 → 60000`.
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    pub changes: Vec<Change>,
}

/// Compares `b` with `a`: what it allows more, less or differently.
pub fn diff(a: &Policy, b: &Policy) -> Diff {
    let mut diff = Diff::default();
    for (name, old, new) in [
        ("defaults.fs", a.default_fs(), b.default_fs()),
        ("defaults.net", a.default_net(), b.default_net()),
        ("defaults.exec", a.default_exec(), b.default_exec()),
    ] {
        if old != new {
            let effect = if new < old { Effect::More } else { Effect::Less };
            diff.put(effect, name, format!("{} → {}", old.name(), new.name()));
        }
    }
    diff.rules("fs.rules", &a.fs, &b.fs, |r| (r.action, write::fs_rule(r)));
    diff.rules("net.rules", &a.net, &b.net, |r| (r.action, write::net_rule(r)));
    diff.rules("exec.rules", &a.exec, &b.exec, |r| (r.action, write::exec_rule(r)));
    diff.rules("home.copy", &a.home_copy, &b.home_copy, |path| (Action::Allow, Node::text(path.to_string())));
    diff.rules("secrets", &a.secrets, &b.secrets, |s| (Action::Allow, write::secret(s)));
    diff.names("syscalls.deny", &a.syscalls_deny, &b.syscalls_deny, (Effect::Less, Effect::More));
    diff.names("env.pass", &passed(a), &passed(b), (Effect::More, Effect::Less));
    diff.names("audit.events", &a.audit_events, &b.audit_events, (Effect::Different, Effect::Different));
    let missing = |p: &Policy| p.degrade.clone().unwrap_or_default();
    diff.names("degrade", &missing(a), &missing(b), (Effect::More, Effect::Less));
    diff.variables(&a.env.set, &b.env.set);
    diff.limits(a, b);
    diff.capabilities(&a.capabilities, &b.capabilities);
    diff.changes.sort_by_key(|change| change.effect);
    diff
}

impl Diff {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub fn to_text(&self) -> String {
        if self.is_empty() {
            return "no difference\n".to_owned();
        }
        let mut out = String::new();
        for (effect, title) in
            [(Effect::More, "allows more:"), (Effect::Less, "allows less:"), (Effect::Different, "differs:")]
        {
            let changes: Vec<&Change> = self.changes.iter().filter(|c| c.effect == effect).collect();
            if !changes.is_empty() {
                out.push_str(&format!("{title}\n"));
                changes.iter().for_each(|c| out.push_str(&format!("  {}: {}\n", c.place, c.text)));
            }
        }
        out
    }

    pub fn to_json(&self) -> String {
        let list = |effect: Effect| {
            let changes = self.changes.iter().filter(|c| c.effect == effect).map(|c| {
                let mut out = ObjectEntries::default();
                out.put("place", Node::text(&c.place));
                out.put("text", Node::text(&c.text));
                out.into_node()
            });
            Node::List(changes.collect())
        };
        let mut out = ObjectEntries::default();
        out.put("more", list(Effect::More));
        out.put("less", list(Effect::Less));
        out.put("different", list(Effect::Different));
        out.into_node().to_json()
    }

    fn put(&mut self, effect: Effect, place: &str, text: impl Into<String>) {
        self.changes.push(Change { effect, place: place.to_owned(), text: text.into() });
    }

    fn rules<T>(&mut self, place: &str, a: &[Labelled<T>], b: &[Labelled<T>], write: impl Fn(&T) -> (Action, Node)) {
        let texts = |rules: &[Labelled<T>]| -> BTreeMap<String, Action> {
            let written = rules.iter().map(|r| write(&r.rule));
            written.map(|(action, node)| (node.to_compact_json(), action)).collect()
        };
        let (old, new) = (texts(a), texts(b));
        let opens = |action: &Action| matches!(action, Action::Allow | Action::Warn);
        for (text, action) in new.iter().filter(|(text, _)| !old.contains_key(*text)) {
            let effect = if opens(action) { Effect::More } else { Effect::Less };
            self.put(effect, place, format!("added {text}"));
        }
        for (text, action) in old.iter().filter(|(text, _)| !new.contains_key(*text)) {
            let effect = if opens(action) { Effect::Less } else { Effect::More };
            self.put(effect, place, format!("removed {text}"));
        }
    }

    /// Compares two sets of names; `effects` are those of an added and of a removed name.
    fn names(&mut self, place: &str, a: &BTreeSet<String>, b: &BTreeSet<String>, effects: (Effect, Effect)) {
        for name in b.difference(a) {
            self.put(effects.0, place, format!("added {name}"));
        }
        for name in a.difference(b) {
            self.put(effects.1, place, format!("removed {name}"));
        }
    }

    fn variables(&mut self, a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) {
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for name in names {
            let text = match (a.get(name), b.get(name)) {
                (old, new) if old == new => continue,
                (None, Some(new)) => format!("added {name}={new}"),
                (Some(_), None) => format!("removed {name}"),
                (old, new) => format!("{name}: {} → {}", old.map_or("", |v| v), new.map_or("", |v| v)),
            };
            self.put(Effect::Different, "env.set", text);
        }
    }

    fn limits(&mut self, a: &Policy, b: &Policy) {
        for kind in LimitKind::ALL {
            let amount = |p: &Policy| write::limit(&p.limits, kind);
            let number = |node: &Option<Node>| match node {
                Some(Node::Int(n)) => *n as f64,
                Some(Node::Float(n)) => *n,
                _ => f64::INFINITY,
            };
            let (old, new) = (amount(a), amount(b));
            if old != new {
                let effect = if number(&new) > number(&old) { Effect::More } else { Effect::Less };
                let text = |node: &Option<Node>| node.as_ref().map_or("none".to_owned(), Node::to_compact_json);
                self.put(effect, &format!("limits.max_{}", kind.name()), format!("{} → {}", text(&old), text(&new)));
            }
        }
        let (old, new) = (a.limits.on_output_limit, b.limits.on_output_limit);
        if old != new {
            self.put(Effect::Different, "limits.on_output_limit", format!("{old:?} → {new:?}").to_lowercase());
        }
    }

    fn capabilities(&mut self, a: &BTreeMap<String, Capability>, b: &BTreeMap<String, Capability>) {
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for name in names {
            let calls = |map: &BTreeMap<String, Capability>| match map.get(name) {
                Some(c) if c.allow => c.budget.unwrap_or(u64::MAX),
                _ => 0,
            };
            let (old, new) = (calls(a), calls(b));
            if old != new {
                let effect = if new > old { Effect::More } else { Effect::Less };
                let text = |n: u64| {
                    if n == u64::MAX { "any number".to_owned() } else { n.to_string() }
                };
                self.put(effect, &format!("capabilities.{name}"), format!("{} → {} calls", text(old), text(new)));
            }
        }
    }
}

fn passed(policy: &Policy) -> BTreeSet<String> {
    match &policy.env.pass {
        Some(names) => names.iter().cloned().collect(),
        None => PASSED.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[cfg(test)]
#[path = "diff_test.rs"]
mod test;
