//! Paths for which a person is asked. The guest itself cannot reach them: the plan denies them like any denial. The
//! supervisor opens an approved file and passes the descriptor.

use super::Planner;
use crate::error::PlanError;
use crate::perms::{Perm, Perms};
use crate::plan::{AskedPlace, HostFileType, MOST_ASKED};
use crate::resolve::{FileRule, RealPath};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use terms::Action;

const CHANGES: Perms = Perms::of(&[Perm::WriteFile, Perm::Truncate, Perm::MakeReg]);

impl Planner<'_> {
    pub(super) fn asked(&mut self) -> Result<Vec<AskedPlace>, PlanError> {
        let mut found: BTreeMap<PathBuf, AskedPlace> = BTreeMap::new();
        for rule in self.resolved.files.iter().filter(|r| r.asks()) {
            for real in rule.asked.iter().filter(|real| matches!(real.kind, HostFileType::Dir | HostFileType::File)) {
                let asks = |perms: Perms| perms.and(rule.perms).iter().any(|perm| self.asks(&real.path, perm));
                let (reads, changes) = (asks(Perms::READ), asks(CHANGES));
                if !reads && !changes {
                    continue;
                }
                if real.path == Path::new("/") {
                    return Err(too_much(rule, "the root of the host cannot be asked about"));
                }
                let known = found.entry(real.path.clone()).or_insert_with(|| self.place(real, rule));
                (known.reads, known.changes) = (known.reads | reads, known.changes | changes);
                if found.len() > MOST_ASKED {
                    return Err(too_much(rule, &format!("it asks about more than {MOST_ASKED} paths")));
                }
            }
        }
        Ok(found.into_values().collect())
    }

    fn asks(&self, path: &Path, perm: Perm) -> bool {
        self.resolved.fs(path, perm).action == Action::Ask
    }

    fn place(&self, real: &RealPath, rule: &FileRule) -> AskedPlace {
        let hides = |r: &&FileRule| r.action == Action::Deny && r.perms.contains(Perm::ReadFile);
        let below = |path: &PathBuf| path.starts_with(&real.path) && *path != real.path;
        let denied = self.resolved.files.iter().filter(hides).flat_map(|r| r.reals.iter().flatten());
        let mut hidden: Vec<PathBuf> = denied.map(|real| real.path.clone()).filter(below).collect();
        hidden.sort();
        hidden.dedup();
        AskedPlace {
            path: real.path.clone(),
            kind: real.kind,
            rule: rule.label.clone(),
            reads: false,
            changes: false,
            hidden,
        }
    }
}

fn too_much(rule: &FileRule, why: &str) -> PlanError {
    PlanError {
        rule: rule.label.clone(),
        message: format!("{}: {why}", rule.patterns[0].text()),
        hint: "name fewer directories or files".to_owned(),
    }
}
