//! Guards: patterns of denied paths that do not exist yet.

use super::Planner;
use super::cover::EXECUTE;
use crate::glob::Pattern;
use crate::perms::{Perm, Perms};
use crate::plan::{Cover, Grant, Guard, HostFileType};
use crate::resolve::FileRule;
use std::collections::BTreeMap;

impl Planner<'_> {
    /// Collects the guards: a denied path that does not exist must not be created.
    pub(super) fn guards(&mut self) {
        let mut wanted: BTreeMap<(String, String), (bool, bool)> = BTreeMap::new();
        let mut notes = Vec::new();
        let programs = self.resolved.programs.iter().map(|p| &p.file).filter(|r| !r.grants());
        let programs: Vec<FileRule> = programs.map(|r| FileRule { perms: EXECUTE, ..r.clone() }).collect();
        for rule in self.denials.iter().chain(&programs) {
            for pattern in &rule.patterns {
                let Some(grant) = self.guarded_by(rule, pattern) else {
                    notes.extend(self.pattern_note(rule, pattern));
                    continue;
                };
                let (hides, bars) = (rule.perms.contains(Perm::ReadFile), rule.perms.contains(Perm::Execute));
                if wanted.insert((pattern.text(), rule.label.clone()), (hides, bars)).is_some() {
                    continue;
                }
                if !grant.perms.minus(rule.perms).and(Perms::FILE).is_empty() {
                    notes.push(format!(
                        "{}: {} does not exist yet; it cannot be created at all, because a denial of {} alone cannot be enforced for it",
                        rule.label,
                        pattern.text(),
                        rule.perms.names().join(", ")
                    ));
                }
            }
        }
        self.notes.extend(notes);
        let guard = |((pattern, rule), (hides, bars))| Guard { pattern, rule, hides, bars };
        self.guards = wanted.into_iter().map(guard).collect();
    }

    /// Returns the note that a pattern, unlike a plain name, cannot be whited out beforehand.
    fn pattern_note(&self, rule: &FileRule, pattern: &Pattern) -> Option<String> {
        let shown = |g: &Grant| {
            g.kind == HostFileType::Dir && !g.perms.and(rule.perms).is_empty() && !pattern.after(&g.path).is_dead()
        };
        let wild = pattern.as_path().is_none();
        (wild && self.grants.iter().any(shown)).then(|| {
            let (label, text) = (&rule.label, pattern.text());
            format!("{label}: {text} covers the existing files; files that are created outside under such a name meanwhile are not covered")
        })
    }

    /// Returns the grant inside which a path that `rule` denies could be created.
    fn guarded_by(&self, rule: &FileRule, pattern: &Pattern) -> Option<&Grant> {
        if let Some(path) = pattern.as_path() {
            let there = rule.reals.iter().flatten().any(|r| r.path == path);
            let grant = self.covering(&path)?;
            let hidden = self.masks_over(&path).any(|m| m.cover == Cover::Hide);
            let open = grant.kind == HostFileType::Dir && !grant.perms.and(rule.perms).is_empty();
            return (open && !there && !hidden).then_some(grant);
        }
        self.grants.iter().find(|g| {
            g.kind == HostFileType::Dir
                && !g.perms.and(Perms::MAKING).is_empty()
                && !g.perms.and(rule.perms).is_empty()
                && !pattern.after(&g.path).is_dead()
        })
    }
}
