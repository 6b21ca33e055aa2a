//! Planning: rules followed on a host become grants, covers over parts of them, and guards.
//!
//! A grant adds to the grants above it, so a denial at or above a grant is simply left out of it. A denial below
//! a grant needs a cover, and a cover takes all changes, execution, or everything: anything finer is refused.

use crate::error::PlanError;
use crate::follow::{Followed, follow};
use crate::perms::{Perm, Perms};
use crate::plan::{Cover, ExecPlan, Grant, Guard, Host, Kind, Link, Mask, Plan, Program};
use crate::resolve::{FileRule, Real, Resolved};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use terms::Action;

const EXECUTE: Perms = Perms::of(&[Perm::Execute]);

impl Resolved {
    /// What must be set up on `host` so that the kernel holds this policy.
    pub fn plan(&self, host: &dyn Host) -> Result<Plan, PlanError> {
        let followed = follow(self, host)?;
        let mut planner = Planner::new(&followed);
        planner.grants();
        planner.masks()?;
        planner.check_covered_grants()?;
        planner.guards();
        let exec = planner.exec();
        let links = planner.links(&followed);
        Ok(Plan {
            grants: planner.grants,
            masks: planner.masks,
            guards: planner.guards,
            links,
            exec,
            notes: planner.notes,
        })
    }
}

struct Planner<'a> {
    resolved: &'a Resolved,
    loaders: &'a [PathBuf],
    /// What denies permissions of files, in this plan.
    denials: Vec<FileRule>,
    grants: Vec<Grant>,
    masks: Vec<Mask>,
    guards: Vec<Guard>,
    notes: Vec<String>,
    /// Where in `grants` and `masks` a path stands: every look goes up from a path, never over all of them.
    grant_at: HashMap<PathBuf, usize>,
    mask_at: HashMap<PathBuf, usize>,
}

impl<'a> Planner<'a> {
    fn new(followed: &'a Followed) -> Planner<'a> {
        let resolved = &followed.resolved;
        let mut denials: Vec<FileRule> = resolved
            .files
            .iter()
            .filter(|r| !r.grants())
            .cloned()
            .collect();
        if resolved.policy.default_exec() == Action::Deny {
            // Only named programs run, so an exception from a named directory has to be cut out of it.
            let refused = resolved
                .programs
                .iter()
                .map(|p| &p.file)
                .filter(|r| !r.grants());
            denials.extend(refused.map(|r| FileRule {
                perms: EXECUTE,
                ..r.clone()
            }));
        }
        Planner {
            resolved,
            loaders: &followed.loaders,
            denials,
            grants: Vec::new(),
            masks: Vec::new(),
            guards: Vec::new(),
            notes: followed.notes.clone(),
            grant_at: HashMap::new(),
            mask_at: HashMap::new(),
        }
    }

    fn grants(&mut self) {
        let mut wanted: BTreeMap<PathBuf, (Kind, Vec<(Perms, String)>)> = BTreeMap::new();
        let everywhere = self.resolved.default_perms();
        if !everywhere.is_empty() {
            wanted.insert(
                PathBuf::from("/"),
                (Kind::Dir, vec![(everywhere, "defaults.fs".to_owned())]),
            );
        }
        for rule in self.resolved.file_rules().filter(|r| r.grants()) {
            for Real { path, kind } in rule.reals.iter().flatten() {
                let entry = wanted
                    .entry(path.clone())
                    .or_insert_with(|| (*kind, Vec::new()));
                entry.1.push((rule.perms, rule.label.clone()));
            }
        }
        for (path, (kind, rules)) in wanted {
            let above = self.covering(&path).map_or(Perms::NONE, |g| g.perms);
            let denied = self.denied(&path);
            let all = rules
                .iter()
                .fold(Perms::NONE, |all, (perms, _)| all.union(*perms));
            let added = all.minus(denied).minus(above);
            if all.minus(denied).is_empty() {
                let label = &rules[0].1;
                self.notes.push(format!(
                    "{label}: everything it allows at {} is denied",
                    path.display()
                ));
            }
            if added.is_empty() {
                continue;
            }
            let brought = rules
                .iter()
                .find(|(perms, _)| !perms.and(added).is_empty())
                .unwrap_or(&rules[0]);
            self.grant_at.insert(path.clone(), self.grants.len());
            self.grants.push(Grant {
                path,
                kind,
                perms: above.union(added),
                rule: brought.1.clone(),
            });
        }
    }

    fn masks(&mut self) -> Result<(), PlanError> {
        let places: BTreeSet<Real> = self
            .denials
            .iter()
            .flat_map(|r| r.reals.iter().flatten().cloned())
            .collect();
        for real in places {
            let Some(grant) = self.covering(&real.path) else {
                continue;
            };
            let here = meaning(grant.perms, real.kind);
            let lost = here.and(self.denied(&real.path));
            if lost.is_empty() {
                continue;
            }
            let cover = cover(here, lost).ok_or_else(|| self.inexpressible(&real, here, lost))?;
            if !self.is_already_covered(&real.path, cover) {
                let rule = self.denier(&real.path, lost);
                self.mask_at.insert(real.path.clone(), self.masks.len());
                self.masks.push(Mask {
                    path: real.path,
                    kind: real.kind,
                    cover,
                    rule,
                });
            }
        }
        Ok(())
    }

    /// A grant below a cover would be taken away with it: refuse rather than deny what the policy allows.
    fn check_covered_grants(&self) -> Result<(), PlanError> {
        for grant in &self.grants {
            let wanted = self.wanted(&grant.path);
            for mask in self.masks_over(&grant.path) {
                let taken = wanted.and(takes(mask.cover));
                if !taken.is_empty() {
                    return Err(PlanError {
                        rule: mask.rule.clone(),
                        message: format!(
                            "it covers {}, but {} allows {} at {} inside it",
                            mask.path.display(),
                            grant.rule,
                            taken.names().join(", "),
                            grant.path.display()
                        ),
                        hint: "deny the same permissions there too, or narrow the denial to other paths".to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    /// A denied path that is not there yet must not appear.
    fn guards(&mut self) {
        let mut wanted: BTreeSet<(String, String)> = BTreeSet::new();
        let mut notes = Vec::new();
        let programs = self
            .resolved
            .programs
            .iter()
            .map(|p| &p.file)
            .filter(|r| !r.grants());
        let programs: Vec<FileRule> = programs
            .map(|r| FileRule {
                perms: EXECUTE,
                ..r.clone()
            })
            .collect();
        for rule in self.denials.iter().chain(&programs) {
            for pattern in &rule.patterns {
                let Some(grant) = self.guarded_by(rule, pattern) else {
                    continue;
                };
                if !wanted.insert((pattern.text(), rule.label.clone())) {
                    continue;
                }
                if !grant.perms.minus(rule.perms).and(Perms::FILE).is_empty() {
                    notes.push(format!(
                        "{}: {} does not exist yet; it cannot be made at all, since a denial of {} alone cannot be held for it",
                        rule.label,
                        pattern.text(),
                        rule.perms.names().join(", ")
                    ));
                }
            }
        }
        self.notes.extend(notes);
        self.guards = wanted
            .into_iter()
            .map(|(pattern, rule)| Guard { pattern, rule })
            .collect();
    }

    /// The grant inside which `pattern` could come to name something that `rule` denies.
    fn guarded_by(&self, rule: &FileRule, pattern: &crate::glob::Pattern) -> Option<&Grant> {
        if let Some(path) = pattern.as_path() {
            let there = rule.reals.iter().flatten().any(|r| r.path == path);
            let grant = self.covering(&path)?;
            let hidden = self.masks_over(&path).any(|m| m.cover == Cover::Hide);
            let open = grant.kind == Kind::Dir && !grant.perms.and(rule.perms).is_empty();
            return (open && !there && !hidden).then_some(grant);
        }
        self.grants.iter().find(|g| {
            g.kind == Kind::Dir
                && !g.perms.and(Perms::MAKING).is_empty()
                && !g.perms.and(rule.perms).is_empty()
                && !pattern.after(&g.path).is_dead()
        })
    }

    fn exec(&mut self) -> ExecPlan {
        let named = |grants: bool| {
            self.resolved
                .programs
                .iter()
                .filter(move |p| p.file.grants() == grants)
        };
        let refused: Vec<&FileRule> = named(false).map(|p| &p.file).collect();
        if self.resolved.policy.default_exec() != Action::Deny {
            let mut programs: Vec<Program> = Vec::new();
            for rule in refused {
                let reals = rule
                    .reals
                    .iter()
                    .flatten()
                    .filter(|real| self.can_execute_near(&real.path));
                programs.extend(reals.map(|real| program(real, None, &rule.label)));
            }
            return ExecPlan::AllowBut(tidy(programs));
        }
        let mut programs: Vec<Program> = Vec::new();
        for rule in named(true) {
            let reals = rule.file.reals.iter().flatten();
            let kept =
                reals.filter(|real| self.may_execute(&real.path) && real.kind != Kind::Other);
            programs.extend(kept.map(|real| program(real, rule.sha256, &rule.file.label)));
        }
        let loaders = self
            .loaders
            .iter()
            .filter(|path| self.may_execute(path))
            .cloned()
            .collect();
        ExecPlan::Only {
            programs: tidy(programs),
            loaders,
        }
    }

    /// Links to make inside: those that lead to a grant and that no grant shows by itself.
    fn links(&self, followed: &Followed) -> Vec<Link> {
        let leads = followed
            .links
            .iter()
            .filter(|(_, real)| self.covering(real).is_some());
        let unseen =
            leads.filter(|(link, _)| self.covering(&link.at).is_none_or(|g| g.path == link.at));
        unseen
            .map(|(link, _)| link.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// The innermost grant that covers `path`; it holds the permissions of the outer ones too.
    fn covering(&self, path: &Path) -> Option<&Grant> {
        path.ancestors()
            .find_map(|above| self.grant_at.get(above))
            .map(|i| &self.grants[*i])
    }

    fn masks_over<'p>(&'p self, path: &'p Path) -> impl Iterator<Item = &'p Mask> {
        path.ancestors()
            .filter_map(|above| self.mask_at.get(above))
            .map(|i| &self.masks[*i])
    }

    fn denied(&self, path: &Path) -> Perms {
        self.denials
            .iter()
            .filter(|r| r.covers(path))
            .fold(Perms::NONE, |all, r| all.union(r.perms))
    }

    /// What the policy allows at `path`.
    fn wanted(&self, path: &Path) -> Perms {
        let rules = self
            .resolved
            .file_rules()
            .filter(|r| r.grants() && r.covers(path));
        rules
            .fold(self.resolved.default_perms(), |all, r| all.union(r.perms))
            .minus(self.denied(path))
    }

    fn denier(&self, path: &Path, lost: Perms) -> String {
        let rule = self
            .denials
            .iter()
            .find(|r| !r.perms.and(lost).is_empty() && r.covers(path));
        rule.map(|r| r.label.clone()).unwrap_or_default()
    }

    fn may_execute(&self, path: &Path) -> bool {
        self.wanted(path).contains(Perm::Execute)
    }

    /// Whether anything at, above or below `path` can be executed.
    fn can_execute_near(&self, path: &Path) -> bool {
        let near = |g: &&Grant| path.starts_with(&g.path) || g.path.starts_with(path);
        self.grants
            .iter()
            .filter(near)
            .any(|g| g.perms.contains(Perm::Execute))
    }

    /// A cover above does the same already, and no grant in between opens it again.
    fn is_already_covered(&self, path: &Path, cover: Cover) -> bool {
        let between = |mask: &Mask| {
            path.ancestors()
                .take_while(|a| *a != mask.path)
                .any(|a| self.grant_at.contains_key(a))
        };
        let same = |mask: &&Mask| takes(cover).minus(takes(mask.cover)).is_empty();
        self.masks_over(path)
            .filter(same)
            .any(|mask| !between(mask))
    }

    fn inexpressible(&self, real: &Real, here: Perms, lost: Perms) -> PlanError {
        PlanError {
            rule: self.denier(&real.path, lost),
            message: format!(
                "{}: denying {} while {} stay allowed cannot be held inside a larger grant",
                real.path.display(),
                lost.names().join(", "),
                here.minus(lost).names().join(", ")
            ),
            hint: "deny everything (leave \"perms\" out), or all of write_file, truncate, refer, make_* and remove_* together, or execute".to_owned(),
        }
    }
}

/// The permissions that mean something at a path of this kind.
fn meaning(perms: Perms, kind: Kind) -> Perms {
    match kind {
        Kind::Dir => perms,
        Kind::File | Kind::Other => perms.and(Perms::FILE),
    }
}

/// The cover that takes exactly `lost` from `here`.
fn cover(here: Perms, lost: Perms) -> Option<Cover> {
    if here == lost {
        return Some(Cover::Hide);
    }
    let changes = here.and(Perms::CHANGES);
    let read_only = changes.and(lost) == changes && !changes.is_empty();
    let no_exec = lost.contains(Perm::Execute);
    let rest = lost.minus(EXECUTE).minus(if read_only {
        Perms::CHANGES
    } else {
        Perms::NONE
    });
    match (rest.is_empty(), read_only, no_exec) {
        (false, _, _) => None,
        (true, true, true) => Some(Cover::ReadOnlyNoExec),
        (true, true, false) => Some(Cover::ReadOnly),
        (true, false, _) => Some(Cover::NoExec),
    }
}

/// What a cover takes away.
pub(crate) fn takes(cover: Cover) -> Perms {
    match cover {
        Cover::Hide => Perms::ALL,
        Cover::ReadOnly => Perms::CHANGES,
        Cover::NoExec => EXECUTE,
        Cover::ReadOnlyNoExec => Perms::CHANGES.union(EXECUTE),
    }
}

fn program(real: &Real, sha256: Option<[u8; 32]>, rule: &str) -> Program {
    Program {
        path: real.path.clone(),
        kind: real.kind,
        sha256,
        rule: rule.to_owned(),
    }
}

/// By path; of two rules about one path the one without a digest says more.
fn tidy(mut programs: Vec<Program>) -> Vec<Program> {
    programs.sort_by(|a, b| (&a.path, a.sha256, &a.rule).cmp(&(&b.path, b.sha256, &b.rule)));
    programs.dedup_by(|b, a| a.path == b.path && (a.sha256.is_none() || a.sha256 == b.sha256));
    programs
}
