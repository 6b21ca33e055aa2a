//! The list of refusals of one run: equal refusals are counted together, and the list is bounded. Beside it, advice on
//! failures that are no refusals.

use std::collections::HashMap;
use terms::{Action, Actor, Denial};

/// Distinct refusals that are kept; more are only counted.
const MOST: usize = 256;
/// Notes that are kept.
const MOST_NOTES: usize = 16;
const LONGEST_NOTE: usize = 1024;
/// Longest target kept, in bytes.
const LONGEST: usize = 4096;

/// A refusal to count.
pub struct RefusedOperation<'a> {
    pub op: &'a str,
    pub target: &'a str,
    pub rule: &'a str,
    pub action: Action,
    pub hint: Option<String>,
    pub quiet: bool,
}

#[derive(Default)]
pub struct Denials {
    list: Vec<Denial>,
    index: HashMap<(String, String, String), usize>,
    dropped: u64,
    notes: Vec<String>,
}

impl Denials {
    /// Counts a refusal. `Some` when it is the first of its kind. `actor` is called until it names a process.
    pub fn add(&mut self, refusal: RefusedOperation<'_>, actor: impl FnOnce() -> Actor) -> Option<&Denial> {
        let RefusedOperation { op, target, rule, action, hint, quiet } = refusal;
        let target: String = shorten(target);
        let key = (op.to_string(), target.clone(), rule.to_string());
        if let Some(&at) = self.index.get(&key) {
            let known = &mut self.list[at];
            known.count += 1;
            if known.pid == 0 {
                Actor { pid: known.pid, exe: known.exe } = actor();
            }
            return None;
        }
        if self.list.len() >= MOST {
            self.dropped += 1;
            return None;
        }
        let Actor { pid, exe } = actor();
        self.index.insert(key, self.list.len());
        self.list.push(Denial { op: op.into(), target, rule: rule.into(), action, count: 1, pid, exe, hint, quiet });
        self.list.last()
    }

    /// Returns the refusals so far.
    pub fn list(&self) -> &[Denial] {
        &self.list
    }

    /// Keeps a note, once.
    pub fn advise(&mut self, note: &str) {
        let note = shorten_to(note, LONGEST_NOTE);
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Drops a note that proved wrong.
    pub fn withdraw(&mut self, note: &str) {
        self.notes.retain(|kept| kept != note);
    }

    /// True when an operation was refused that no rule calls expected, as opposed to allowed with a warning.
    pub fn any_refused(&self) -> bool {
        self.dropped > 0 || self.list.iter().any(Denial::is_refusal)
    }

    /// Returns the last program that was refused.
    pub fn refused_program(&self) -> Option<&Denial> {
        self.list.iter().rev().find(|d| d.op == "exec" && matches!(d.action, Action::Deny | Action::Ask))
    }

    pub fn into_parts(self) -> (Vec<Denial>, u64, Vec<String>) {
        (self.list, self.dropped, self.notes)
    }
}

fn shorten(text: &str) -> String {
    shorten_to(text, LONGEST)
}

fn shorten_to(text: &str, longest: usize) -> String {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}
