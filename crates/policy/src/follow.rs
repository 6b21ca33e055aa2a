//! Resolution of a policy's paths on one host. Allowances become the real paths that exist; denials keep their patterns
//! and add the real paths behind links.

use crate::error::PlanError;
use crate::glob::Pattern;
use crate::perms::{Perm, Perms};
use crate::plan::{Host, HostFileType, ResolvedPath, Symlink};
use crate::resolve::{FileRule, ProgramRule, RealPath, Resolved};
use crate::walk::{Budget, Region, find};
use std::path::{Path, PathBuf};
use terms::Action;

/// A policy resolved on a host, with further input for the plan.
pub(crate) struct Followed {
    pub(crate) resolved: Resolved,
    pub(crate) links: Vec<FollowedLink>,
    pub(crate) loaders: Vec<PathBuf>,
    pub(crate) notes: Vec<String>,
}

/// A symbolic link on the way to a real path that a rule allows.
pub(crate) struct FollowedLink {
    pub(crate) link: Symlink,
    pub(crate) real: PathBuf,
    rule: String,
}

pub(crate) fn follow(resolved: &Resolved, host: &dyn Host) -> Result<Followed, PlanError> {
    let (budget, beneath) = (Budget::default(), Budget::default());
    let mut follower = LinkFollower { host, budget, beneath, links: Vec::new(), notes: Vec::new() };
    let mut out = resolved.clone();
    out.implied.clear();
    out.private_workspace = out.private_workspace.filter(|island| follower.is_real_dir(island));
    for rule in out.files.iter_mut().filter(|r| r.grants()) {
        follower.allowance(rule)?;
    }
    for program in out.programs.iter_mut().filter(|p| p.file.grants() || p.file.asks()) {
        follower.program(program)?;
    }
    for rule in out.sockets.iter_mut().filter(|r| r.grants() || r.asks()) {
        follower.allowance(rule)?;
    }
    for rule in out.files.iter_mut().filter(|r| r.asks()) {
        follower.allowance(rule)?;
    }
    follower.drop_planted_links(&mut out);
    let loaders = follower.loaders(&mut out)?;
    out.implied.extend(asked_programs(&out));
    let roots = allowed_roots(&out);
    let programs = out.programs.iter_mut().map(|p| &mut p.file);
    for rule in out.files.iter_mut().chain(programs).chain(&mut out.sockets).filter(|r| !r.grants()) {
        // A path that a rule asks about is denied until it is approved, on every route to it.
        rule.asked = rule.reals.take().unwrap_or_default();
        follower.denial(rule, &roots)?;
    }
    follower.sockets(&mut out)?;
    let programs = out.programs.iter_mut().map(|p| &mut p.file);
    for rule in out.files.iter_mut().chain(programs).chain(&mut out.sockets).filter(|r| r.asks()) {
        rule.asked.retain(|real| real.kind != HostFileType::Other);
        let reals = rule.reals.take().unwrap_or_default();
        rule.reals = Some(tidy(reals.into_iter().chain(rule.asked.iter().cloned()).collect()));
    }
    Ok(Followed { resolved: out, links: follower.links, loaders, notes: follower.notes })
}

pub(crate) struct LinkFollower<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) budget: Budget,
    /// Budget for lookups in the host without the guests' changes.
    beneath: Budget,
    links: Vec<FollowedLink>,
    notes: Vec<String>,
}

impl LinkFollower<'_> {
    fn allowance(&mut self, rule: &mut FileRule) -> Result<(), PlanError> {
        let found = find(&rule.patterns[0], self.host, Region::Anywhere, &mut self.budget, &rule.label)?;
        if found.is_empty() {
            self.note(format!("{}: {} does not exist, so the rule has no effect", rule.label, rule.patterns[0].text()));
        }
        let head = self.head_of(&rule.patterns[0]);
        let named = found.into_iter().filter(|f| head.as_ref().is_none_or(|head| rule.leads_to(head, &f.real)));
        let mut reals: Vec<RealPath> = named.map(|f| self.keep(f, &rule.label)).collect();
        reals.extend(self.private_workspace_below(rule, &reals));
        rule.reals = Some(tidy(reals));
        Ok(())
    }

    /// Returns the real path of the part before the first wildcard. A plain path has none: it names its target.
    fn head_of(&self, pattern: &Pattern) -> Option<PathBuf> {
        let wild = pattern.as_path().is_none();
        wild.then(|| self.host.look(&pattern.head(pattern.literal_len()))).flatten().map(|found| found.real)
    }

    /// Returns the workspace if it lies in a private directory below one of `reals`, which would cover it without that
    /// directory.
    fn private_workspace_below(&self, rule: &FileRule, reals: &[RealPath]) -> Option<RealPath> {
        let island = rule.private_workspace.as_ref().filter(|island| self.is_real_dir(island))?;
        let above = |real: &RealPath| island.starts_with(&real.path) && !rule.private.reaches(&real.path, island);
        reals.iter().any(above).then(|| RealPath { path: island.clone(), kind: HostFileType::Dir })
    }

    fn is_real_dir(&self, path: &Path) -> bool {
        self.host.look(path).is_some_and(|found| found.kind == HostFileType::Dir && found.real == path)
    }

    fn program(&mut self, program: &mut ProgramRule) -> Result<(), PlanError> {
        self.allowance(&mut program.file)?;
        let Some(wanted) = program.sha256 else {
            return Ok(());
        };
        let reals = program.file.reals.take().unwrap_or_default();
        let (good, bad): (Vec<RealPath>, Vec<RealPath>) =
            reals.into_iter().partition(|real| self.host.sha256(&real.path) == Some(wanted));
        program.file.reals = Some(good);
        for real in bad {
            let (label, path) = (&program.file.label, real.path.display());
            self.note(format!("{label}: {path} does not have the digest named, so it may not run"));
        }
        Ok(())
    }

    /// Drops links that a run could have planted, which must not redirect an allowance: a link in the workspace, or in
    /// a tree that the policy permits to change, is followed only within that tree.
    fn drop_planted_links(&mut self, out: &mut Resolved) {
        let trees = self.writable_trees(out);
        let leaves = |tree: &PathBuf, met: &FollowedLink| met.link.at.starts_with(tree) && !met.real.starts_with(tree);
        let planted = |met: &FollowedLink| trees.iter().any(|tree| leaves(tree, met));
        let (bad, good) = std::mem::take(&mut self.links).into_iter().partition(planted);
        self.links = good;
        let bad: Vec<FollowedLink> = bad;
        let programs = out.programs.iter_mut().map(|p| &mut p.file);
        let opens = |r: &&mut FileRule| r.grants() || r.asks();
        for rule in out.files.iter_mut().chain(programs).chain(&mut out.sockets).filter(opens) {
            for met in bad.iter().filter(|met| met.rule == rule.label) {
                // A rule that names the real path itself needs no link.
                let direct = rule.patterns[0].covers(&met.real);
                let reals = rule.reals.get_or_insert_default();
                if !direct && reals.iter().any(|r| r.path == met.real) {
                    reals.retain(|r| r.path != met.real);
                    let (label, at, real) = (&rule.label, met.link.at.display(), met.real.display());
                    self.note(format!(
                        "{label}: {at} is a link to {real} in a place that runs may change, so it is not followed"
                    ));
                }
            }
        }
    }

    /// Returns trees whose content may come from a run, this one or an earlier one.
    fn writable_trees(&self, out: &Resolved) -> Vec<PathBuf> {
        let workspace = self.host.look(&out.workspace).map(|found| found.real);
        let rules = out.file_rules().filter(|r| r.grants() && !r.perms.and(Perms::CHANGES).is_empty());
        let written = rules.flat_map(|r| r.reals.iter().flatten().map(|real| real.path.clone()));
        workspace.into_iter().chain(written).collect()
    }

    /// Adds rules for dynamic loaders: a dynamically linked program starts through its loader, which must be readable
    /// and executable.
    fn loaders(&mut self, out: &mut Resolved) -> Result<Vec<PathBuf>, PlanError> {
        let mut loaders: Vec<PathBuf> = Vec::new();
        for program in out.programs.iter().filter(|p| p.file.grants() || p.file.asks()) {
            let files = self.files_of(program)?;
            for loader in files.iter().filter_map(|file| self.host.loader(file)) {
                let Some(found) = self.host.look(&loader).filter(|f| f.kind == HostFileType::File) else {
                    continue;
                };
                if loaders.contains(&found.real) {
                    continue;
                }
                if !is_system_path(&found.real) {
                    let (label, path) = (&program.file.label, found.real.display());
                    self.note(format!(
                        "{label}: a program of it names the loader {path}, which needs a rule of its own"
                    ));
                    continue;
                }
                let real = self.keep(found, &program.file.label);
                loaders.push(real.path.clone());
                out.implied.push(FileRule {
                    patterns: Pattern::literal(&real.path).into_iter().collect(),
                    reals: Some(vec![real]),
                    ..loader_rule(&program.file)
                });
            }
        }
        loaders.sort();
        Ok(loaders)
    }

    /// Returns the files that a program rule permits to run: those below it, if it names a directory.
    fn files_of(&mut self, program: &ProgramRule) -> Result<Vec<PathBuf>, PlanError> {
        let mut files = Vec::new();
        let mut dirs = Vec::new();
        for real in program.file.reals.iter().flatten() {
            match real.kind {
                HostFileType::Dir => dirs.push(real.path.clone()),
                _ => files.push(real.path.clone()),
            }
        }
        while let Some(dir) = dirs.pop() {
            for name in self.host.list(&dir).unwrap_or_default() {
                self.budget.spend(&program.file.label, &dir)?;
                let path = dir.join(&name);
                match self.host.look(&path) {
                    // The target of a link is below the directory too, or not named by the rule.
                    Some(found) if found.real != path => {}
                    Some(found) if found.kind == HostFileType::Dir => dirs.push(path),
                    Some(found) if found.kind == HostFileType::File => files.push(path),
                    _ => {}
                }
            }
        }
        Ok(files)
    }

    fn denial(&mut self, rule: &mut FileRule, roots: &[PathBuf]) -> Result<(), PlanError> {
        let written = rule.patterns[0].clone();
        let mut found = find(&written, self.host, Region::Near(roots), &mut self.budget, &rule.label)?;
        rule.patterns = vec![written.clone()];
        rule.patterns.extend(rebased(self.host, &written).filter(|real| *real != written));
        if let Some(beneath) = self.host.beneath() {
            // A guest that removes a link in its layer must not thereby lift a denial that leads through it.
            let there = find(&written, beneath, Region::Near(roots), &mut self.beneath, &rule.label)?;
            let still = |was: ResolvedPath| self.host.look(&was.real).filter(|now| now.real == was.real);
            found.extend(there.into_iter().filter_map(still));
            let real = rebased(beneath, &written).filter(|real| !rule.patterns.contains(real));
            rule.patterns.extend(real);
        }
        rule.reals = Some(tidy(found.into_iter().map(|f| RealPath { path: f.real, kind: f.kind }).collect()));
        Ok(())
    }

    pub(crate) fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn keep(&mut self, found: ResolvedPath, rule: &str) -> RealPath {
        for link in found.links {
            let (real, rule) = (found.real.clone(), rule.to_owned());
            self.links.push(FollowedLink { link, real, rule });
        }
        RealPath { path: found.real, kind: found.kind }
    }
}

/// Returns the pattern with the links of its existing head resolved. An existing path is resolved as a whole elsewhere,
/// so only the directories above its last component count here.
fn rebased(host: &dyn Host, pattern: &Pattern) -> Option<Pattern> {
    let literal = pattern.literal_len().min(pattern.len().saturating_sub(1));
    (1..=literal).rev().find_map(|count| {
        let found = host.look(&pattern.head(count))?;
        pattern.rebased(count, &found.real)
    })
}

/// Returns a rule with the permissions that a program's loader needs.
fn loader_rule(rule: &FileRule) -> FileRule {
    let action = if rule.asks() { Action::Allow } else { rule.action };
    FileRule { action, perms: Perms::of(&[Perm::ReadFile, Perm::Execute]), ..rule.clone() }
}

/// Returns execute rules for programs that are asked about, where only named programs run: the kernel must permit their
/// execution, and another mechanism blocks it until approval. No other permission is granted: a file that is not
/// readable is not asked about.
fn asked_programs(out: &Resolved) -> Vec<FileRule> {
    if out.policy.default_exec() != Action::Deny {
        return Vec::new();
    }
    let asks = out.programs.iter().map(|p| &p.file).filter(|r| r.asks());
    let readable = |real: &&RealPath| out.fs(&real.path, Perm::ReadFile).allowed();
    let kept = |rule: &FileRule| rule.reals.iter().flatten().filter(readable).cloned().collect();
    let execute = Perms::of(&[Perm::Execute]);
    asks.map(|rule| FileRule { perms: execute, reals: Some(kept(rule)), ..loader_rule(rule) }).collect()
}

/// Returns true for a path owned by the system. A program's file names its loader, and a run may have written that
/// file: a loader elsewhere is not trusted, or a program could "name" a secret file.
fn is_system_path(path: &Path) -> bool {
    ["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"].iter().any(|dir| path.starts_with(dir))
}

/// Returns the trees in which a rule allows access, or may after approval.
fn allowed_roots(resolved: &Resolved) -> Vec<PathBuf> {
    if !resolved.default_perms().is_empty() {
        return vec![PathBuf::from("/")];
    }
    let rules = resolved.file_rules().chain(&resolved.sockets).filter(|r| r.grants() || r.asks());
    let reals = rules.flat_map(|r| r.reals.iter().flatten());
    let mut roots: Vec<PathBuf> = reals.map(|r| r.path.clone()).collect();
    roots.sort();
    roots.dedup_by(|b, a| b.starts_with(&*a));
    roots
}

pub(crate) fn tidy(mut reals: Vec<RealPath>) -> Vec<RealPath> {
    reals.sort();
    reals.dedup();
    reals
}
