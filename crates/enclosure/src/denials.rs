//! The list of refusals of one run: equal refusals are counted together, and the list is bounded.

use std::collections::HashMap;
use terms::{Action, Actor, Denial};

/// Distinct refusals that are kept; more are only counted.
const MOST: usize = 256;
/// Longest target kept, in bytes.
const LONGEST: usize = 4096;

#[derive(Default)]
pub struct Denials {
    list: Vec<Denial>,
    index: HashMap<(String, String, String), usize>,
    dropped: u64,
}

impl Denials {
    /// Counts a refusal. `Some` when it is the first of its kind. `actor` is called until it names a process.
    pub fn add(
        &mut self,
        op: &str,
        target: &str,
        rule: &str,
        action: Action,
        hint: Option<String>,
        actor: impl FnOnce() -> Actor,
    ) -> Option<&Denial> {
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
        self.list.push(Denial { op: op.into(), target, rule: rule.into(), action, count: 1, pid, exe, hint });
        self.list.last()
    }

    /// True when an operation was refused, as opposed to allowed with a warning.
    pub fn any_refused(&self) -> bool {
        self.dropped > 0 || self.list.iter().any(|d| matches!(d.action, Action::Deny | Action::Ask))
    }

    /// Returns the last program that was refused.
    pub fn refused_program(&self) -> Option<&Denial> {
        self.list.iter().rev().find(|d| d.op == "exec" && matches!(d.action, Action::Deny | Action::Ask))
    }

    pub fn into_parts(self) -> (Vec<Denial>, u64) {
        (self.list, self.dropped)
    }
}

fn shorten(text: &str) -> String {
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}
