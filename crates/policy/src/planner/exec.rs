//! Programs that the plan permits to start, at once or after approval.

use super::Planner;
use crate::error::PlanError;
use crate::perms::Perm;
use crate::plan::{ExecPlan, Grant, HostFileType, MOST_ASKED_PROGRAMS, Program};
use crate::resolve::{ProgramRule, RealPath};
use std::path::{Path, PathBuf};
use terms::Action;

impl Planner<'_> {
    pub(super) fn exec(&self) -> Result<ExecPlan, PlanError> {
        self.check_asked()?;
        let plan = match self.resolved.policy.default_exec() {
            Action::Deny => {
                let loaders = self.loaders.iter().filter(|path| self.may_execute(path)).cloned().collect();
                ExecPlan::Only { programs: tidy(self.listed()), loaders }
            }
            _ => ExecPlan::AllowBut(tidy(self.excepted())),
        };
        check(&plan)?;
        Ok(plan)
    }

    /// Returns programs that cannot be executed although grants would permit it, permanently or until approval.
    fn excepted(&self) -> Vec<Program> {
        let mut programs = Vec::new();
        for rule in self.resolved.programs.iter().filter(|p| !p.file.grants()) {
            let reals = rule.file.reals.iter().flatten().filter(|real| self.can_execute_near(&real.path));
            programs.extend(reals.map(|real| self.program(real, rule)));
        }
        programs
    }

    fn listed(&self) -> Vec<Program> {
        let mut programs = Vec::new();
        for rule in &self.resolved.programs {
            let reals = if rule.file.asks() { &rule.file.asked[..] } else { rule.file.reals.as_deref().unwrap_or(&[]) };
            let named = reals.iter().filter(|_| rule.file.grants() || rule.file.asks());
            let kept = named.filter(|real| self.may_execute(&real.path) && is_executable_kind(real.kind));
            let kept = kept.map(|real| self.program(real, rule));
            programs.extend(kept.filter(|p| p.asked || self.resolved.exec(&p.path).allowed()));
        }
        programs
    }

    fn program(&self, real: &RealPath, rule: &ProgramRule) -> Program {
        let RealPath { path, kind } = real.clone();
        let asked = self.resolved.asks_to_start(&path) && self.may_execute(&path) && is_executable_kind(kind);
        Program { path, kind, sha256: rule.sha256, rule: rule.file.label.clone(), asked }
    }

    /// Refuses to ask about a directory of which rules about files grant only parts: these must be named.
    fn check_asked(&self) -> Result<(), PlanError> {
        let needed = match self.resolved.policy.default_exec() {
            Action::Deny => Perm::ReadFile,
            _ => Perm::Execute,
        };
        for rule in self.resolved.programs.iter().map(|p| &p.file).filter(|r| r.asks()) {
            for real in rule.asked.iter().filter(|real| !self.wanted(&real.path).contains(needed)) {
                let asks = |g: &&Grant| g.perms.contains(needed) && self.resolved.exec(&g.path).action == Action::Ask;
                let Some(grant) = self.grants.iter().filter(|g| g.path.starts_with(&real.path)).find(asks) else {
                    continue;
                };
                return Err(PlanError {
                    rule: rule.label.clone(),
                    message: format!(
                        "{}: {} grants only {} of it",
                        real.path.display(),
                        grant.rule,
                        grant.path.display()
                    ),
                    hint: "ask about the programs, or about the directories that are granted".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn may_execute(&self, path: &Path) -> bool {
        self.wanted(path).contains(Perm::Execute)
    }

    /// Returns true if a file at, above or below `path` can be executed.
    fn can_execute_near(&self, path: &Path) -> bool {
        let near = |g: &&Grant| g.covers(path) || g.path.starts_with(path);
        self.grants.iter().filter(near).any(|g| g.perms.contains(Perm::Execute))
    }
}

fn is_executable_kind(kind: HostFileType) -> bool {
    matches!(kind, HostFileType::Dir | HostFileType::File)
}

/// Sorts by path and removes duplicates. Of two rules about one path the one without a digest is kept; of two that ask,
/// the one with a digest. A program inside a directory that is asked about needs no entry of its own.
fn tidy(mut programs: Vec<Program>) -> Vec<Program> {
    let first = |p: &Program| if p.asked { p.sha256.is_none() } else { p.sha256.is_some() };
    programs.sort_by(|a, b| (&a.path, first(a), a.sha256, &a.rule).cmp(&(&b.path, first(b), b.sha256, &b.rule)));
    programs.dedup_by(|b, a| a.path == b.path && (a.asked || a.sha256.is_none() || a.sha256 == b.sha256));
    // Stack of ancestors of the current program; paths below a path directly follow it.
    let mut above: Vec<(PathBuf, bool)> = Vec::new();
    programs.retain(|program| {
        while above.pop_if(|(path, _)| !program.path.starts_with(path)).is_some() {}
        let said = above.last().is_some_and(|(_, asked)| *asked && program.asked && program.sha256.is_none());
        above.push((program.path.clone(), program.asked));
        !said
    });
    programs
}

fn check(plan: &ExecPlan) -> Result<(), PlanError> {
    let root = plan.asked().find(|program| program.path == Path::new("/"));
    let (program, why) = match (root, plan.asked().nth(MOST_ASKED_PROGRAMS)) {
        (Some(root), _) => (root, "the root of the host cannot be asked about".to_owned()),
        (None, Some(last)) => (last, format!("it asks about more than {MOST_ASKED_PROGRAMS} programs")),
        (None, None) => return Ok(()),
    };
    Err(PlanError {
        rule: program.rule.clone(),
        message: format!("{}: {why}", program.path.display()),
        hint: "name the programs to be asked about, or a directory that holds them".to_owned(),
    })
}
