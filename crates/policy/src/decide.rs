//! Decisions of a policy about one operation: the action, the rule, and a hint how to allow it. Over all rules that
//! match: deny, then ask, then warn, then allow, then the default.

use crate::document::{ExecRule, FsRule};
use crate::path::RulePath;
use crate::perms::{Perm, Perms};
use crate::resolve::{FileRule, Resolved};
use crate::write;
use std::path::Path;
use terms::Action;

/// Labels of the rules that end an allowance from above at a private directory.
const PRIVATE_PLACE: &str = "private /tmp";
const PRIVATE_HOME: &str = "private home";

/// The decision about one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub action: Action,
    /// The label of the rule that decided, or `defaults.fs` and the like.
    pub rule: String,
    /// Hint how to allow the operation, if it is not.
    pub hint: Option<String>,
    /// Every rule that matched, in the order of the policy.
    pub matches: Vec<Matched>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    pub rule: String,
    pub action: Action,
    /// The rule as the document has it.
    pub text: String,
}

impl Decision {
    /// Returns true if the operation is permitted without asking a person.
    pub fn allowed(&self) -> bool {
        crate::resolve::grants(self.action)
    }

    /// Decides by the strictest match, the first among equals; without a match by `default`.
    pub(crate) fn of(matches: Vec<Matched>, default: (Action, &str)) -> Decision {
        let strongest = matches.iter().rev().max_by_key(|m| m.action);
        let (action, rule) = match strongest {
            Some(m) => (m.action, m.rule.clone()),
            None => (default.0, default.1.to_owned()),
        };
        Decision { action, rule, hint: None, matches }
    }

    /// Adds the hint: `add` if no rule denies the operation, otherwise that the rule must be removed.
    pub(crate) fn with_hint(mut self, add: impl FnOnce() -> Option<String>) -> Decision {
        self.hint = match self.action {
            Action::Allow | Action::Warn => None,
            Action::Ask => {
                let how = "answer at a terminal, or with `cofferdam answer` in a live sandbox";
                Some(format!("{} asks, and the operation is refused where no answer is possible; {how}", self.rule))
            }
            Action::Deny if self.matches.is_empty() || !self.matches.iter().any(|m| m.action == Action::Deny) => add(),
            Action::Deny => Some(format!("an allow rule cannot lift {}; remove or narrow it", self.rule)),
        };
        self
    }
}

impl Resolved {
    /// Decides whether `perm` is granted at `path`, which is absolute, normalised and real.
    pub fn fs(&self, path: &Path, perm: Perm) -> Decision {
        let matches = self.file_rules().filter(|r| r.perms.contains(perm) && r.covers(path)).map(matched).collect();
        let (action, rule) = match (self.default_perms_at(path).contains(perm), perm) {
            (true, _) => (Action::Allow, "defaults.fs"),
            (false, _) if self.is_cut_off_by_private_dir(path, perm) => match self.private.is_in_home(path) {
                true => (Action::Deny, PRIVATE_HOME),
                false => (Action::Deny, PRIVATE_PLACE),
            },
            (false, Perm::Execute) if self.policy.default_exec() == Action::Deny => (Action::Deny, "defaults.exec"),
            (false, _) => (Action::Deny, "defaults.fs"),
        };
        Decision::of(matches, (action, rule)).with_hint(|| match perm {
            Perm::Execute if rule == "defaults.exec" => exec_hint(path),
            _ => self.fs_hint(path, perm),
        })
    }

    /// Returns true if a rule from above would grant `perm` at `path` without the private directory in between.
    fn is_cut_off_by_private_dir(&self, path: &Path, perm: Perm) -> bool {
        let Some(above) = self.private.place_of(path).and_then(Path::parent) else { return false };
        let from_above = |r: &FileRule| r.grants() && r.perms.contains(perm) && r.covers(above);
        self.default_perms().contains(perm) || self.file_rules().any(from_above)
    }

    /// Decides whether the program at `path` may start: `execute` must be granted there and no exec rule may deny it.
    pub fn exec(&self, path: &Path) -> Decision {
        let base = self.fs(path, Perm::Execute);
        let refusals = self.programs.iter().map(|p| &p.file).filter(|r| !r.grants() && r.covers(path)).map(matched);
        let refusals: Vec<Matched> = refusals.collect();
        let mut matches = base.matches.clone();
        // The read permission that an ask rule implies is not a second match.
        matches.retain(|m| !refusals.iter().any(|refusal| refusal.rule == m.rule));
        matches.extend(refusals);
        let decision = Decision::of(matches, (base.action, &base.rule));
        // An ask rule grants nothing: the file must be granted by other rules.
        let (needed, lacks) = match self.policy.default_exec() {
            Action::Deny => {
                let read = self.fs(path, Perm::ReadFile);
                let lacks = !read.allowed();
                (read, lacks)
            }
            _ => (base.clone(), base.action == Action::Deny),
        };
        if decision.action == Action::Ask && lacks {
            let decision = Decision { action: Action::Deny, rule: needed.rule, ..decision };
            return decision.with_hint(|| needed.hint);
        }
        decision.with_hint(|| base.hint)
    }

    /// Returns true if the program at `path` starts after a person approves: some exec rule asks, none denies, and each
    /// that asks can ask about this very file. Needs a policy that was followed on a host.
    pub fn asks_to_start(&self, path: &Path) -> bool {
        let asks = |r: &&FileRule| r.asks() && r.covers(path);
        let mut rules = self.programs.iter().map(|p| &p.file).filter(asks).peekable();
        rules.peek().is_some() && rules.all(|rule| rule.can_ask(path)) && self.exec(path).action == Action::Ask
    }
}

pub(crate) fn matched(rule: &FileRule) -> Matched {
    Matched { rule: rule.label.clone(), action: rule.action, text: rule.text.clone() }
}

impl Resolved {
    /// Returns true for directories that no hint offers: the home directory, those above it, and those right below the
    /// root, such as `/etc`.
    pub fn is_too_wide(&self, path: &Path) -> bool {
        const ROOT_AND_ONE: usize = 2;
        self.home.starts_with(path) || path.components().count() <= ROOT_AND_ONE
    }

    /// Returns how to allow that a name appears or disappears in a directory that no hint offers: only for a name that
    /// exists on the host, or is made there first.
    pub fn name_hint(&self, path: &Path, perm: Perm) -> Option<String> {
        let literal = RulePath::literal(path)?;
        let make = match perm {
            Perm::MakeDir => format!("mkdir {literal}"),
            Perm::MakeReg => format!("touch {literal}"),
            _ => return wide_hint(path.parent()?),
        };
        if self.is_too_wide(path) && perm != Perm::MakeReg {
            return wide_hint(path.parent()?);
        }
        Some(format!("it does not exist on the host: create it there with `{make}`, then run with --write {literal}"))
    }

    /// Returns the rule that allows the access, and the flag that does the same for one run.
    fn fs_hint(&self, path: &Path, perm: Perm) -> Option<String> {
        // A file right below the root is as narrow as any other.
        let may_be_a_file = perm == Perm::ReadFile && !self.home.starts_with(path);
        match self.is_too_wide(path) && !may_be_a_file {
            true => wide_hint(path),
            false => fs_hint(path, perm),
        }
    }
}

fn wide_hint(path: &Path) -> Option<String> {
    Some(format!("do not allow all of {}; name a file or directory below it", RulePath::literal(path)?))
}

/// Returns the rule that allows the access, and the flag that does the same for one run.
fn fs_hint(path: &Path, perm: Perm) -> Option<String> {
    let path = RulePath::literal(path)?;
    let (perms, flag) = match perm {
        Perm::ReadFile | Perm::ReadDir => (Perms::READ, "--read"),
        Perm::Execute => (Perms::READ.union(Perms::of(&[perm])), "--read"),
        // Creating device nodes needs a capability that no guest has.
        Perm::MakeChar | Perm::MakeBlock => return None,
        Perm::IoctlDev => {
            let perms = Perms::of(&[perm]);
            let rule = FsRule { action: Action::Allow, path, perms };
            return Some(format!("add {} to fs.rules", write::fs_rule(&rule).to_compact_json()));
        }
        _ => (Perms::READ.union(Perms::WRITE), "--write"),
    };
    let rule = FsRule { action: Action::Allow, path: path.clone(), perms };
    Some(format!("add {} to fs.rules, or run with {flag} {path}", write::fs_rule(&rule).to_compact_json()))
}

fn exec_hint(path: &Path) -> Option<String> {
    let rule = ExecRule { action: Action::Allow, path: RulePath::literal(path)?, sha256: None };
    Some(format!("add {} to exec.rules", write::exec_rule(&rule).to_compact_json()))
}
