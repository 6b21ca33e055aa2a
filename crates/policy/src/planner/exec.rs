//! Which programs the plan lets start.

use super::Planner;
use crate::perms::Perm;
use crate::plan::{ExecPlan, Grant, Kind, Program};
use crate::resolve::{FileRule, Real};
use std::path::Path;
use terms::Action;

impl Planner<'_> {
    pub(super) fn exec(&self) -> ExecPlan {
        let named = |grants: bool| self.resolved.programs.iter().filter(move |p| p.file.grants() == grants);
        let refused: Vec<&FileRule> = named(false).map(|p| &p.file).collect();
        if self.resolved.policy.default_exec() != Action::Deny {
            let mut programs: Vec<Program> = Vec::new();
            for rule in refused {
                let reals = rule.reals.iter().flatten().filter(|real| self.can_execute_near(&real.path));
                programs.extend(reals.map(|real| program(real, None, &rule.label)));
            }
            return ExecPlan::AllowBut(tidy(programs));
        }
        let mut programs: Vec<Program> = Vec::new();
        for rule in named(true) {
            let reals = rule.file.reals.iter().flatten();
            let kept = reals.filter(|real| self.may_execute(&real.path) && matches!(real.kind, Kind::Dir | Kind::File));
            programs.extend(kept.map(|real| program(real, rule.sha256, &rule.file.label)));
        }
        let loaders = self.loaders.iter().filter(|path| self.may_execute(path)).cloned().collect();
        ExecPlan::Only { programs: tidy(programs), loaders }
    }

    fn may_execute(&self, path: &Path) -> bool {
        self.wanted(path).contains(Perm::Execute)
    }

    /// Whether anything at, above or below `path` can be executed.
    fn can_execute_near(&self, path: &Path) -> bool {
        let near = |g: &&Grant| path.starts_with(&g.path) || g.path.starts_with(path);
        self.grants.iter().filter(near).any(|g| g.perms.contains(Perm::Execute))
    }
}

fn program(real: &Real, sha256: Option<[u8; 32]>, rule: &str) -> Program {
    Program { path: real.path.clone(), kind: real.kind, sha256, rule: rule.to_owned() }
}

/// By path; of two rules about one path the one without a digest says more.
fn tidy(mut programs: Vec<Program>) -> Vec<Program> {
    programs.sort_by(|a, b| (&a.path, a.sha256, &a.rule).cmp(&(&b.path, b.sha256, &b.rule)));
    programs.dedup_by(|b, a| a.path == b.path && (a.sha256.is_none() || a.sha256 == b.sha256));
    programs
}
