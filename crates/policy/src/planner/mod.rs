//! Planning: rules resolved on a host become grants, covers over parts of them, and guards.
//!
//! A grant adds to the grants above it, so a denial at or above a grant is simply subtracted from it. A denial below a
//! grant needs a cover, and a cover takes all changes, execution, or everything: a finer denial is refused.

mod asked;
mod cover;
mod exec;
mod guards;

use self::cover::{EXECUTE, applicable, cover, perms_taken};
use crate::error::PlanError;
use crate::follow::{Followed, follow};
use crate::perms::Perms;
use crate::plan::{AskedPlace, Cover, Grant, Guard, Host, HostFileType, HostSocket, Mask, Plan, Symlink};
use crate::private::PrivateDirs;
use crate::resolve::{FileRule, RealPath, Resolved};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use terms::Action;

/// Resolves the policy on a host. The home is the sandbox's own unless a rule leads to it by way of a link, or the grants
/// leave no place for it.
fn settle(resolved: &Resolved, host: &dyn Host) -> Result<Followed, PlanError> {
    let followed = follow(resolved, host)?;
    let Some(home) = followed.resolved.private.home().map(Path::to_path_buf) else { return Ok(followed) };
    let why = match unfit(&followed, &home, host) {
        Some(why) => Some(why),
        None if followed.resolved.names_home() => None,
        None => return Ok(followed),
    };
    let mut resolved = resolved.clone();
    resolved.set_private(PrivateDirs::default());
    let mut followed = follow(&resolved, host)?;
    followed.notes.extend(why.map(|why| format!("{why}, so the sandbox has no home of its own")));
    Ok(followed)
}

/// Returns why the grants leave no place for a home of the sandbox's own: single permissions below it, where rights are
/// inherited from the home, and mounts take only all changes away; or a directory above it that has no such home.
fn unfit(followed: &Followed, home: &Path, host: &dyn Host) -> Option<String> {
    let mut planner = Planner::new(followed);
    planner.grants();
    let private = &followed.resolved.private;
    let partial = planner.grants.iter().find(|grant| private.is_in_home(&grant.path) && !grant.is_whole());
    if let Some(grant) = partial {
        let (rule, path) = (&grant.rule, grant.path.display());
        return Some(format!("{rule}: it grants single permissions at {path}, below the home"));
    }
    let is_shown = planner.grants.iter().find(|grant| home.parent().is_some_and(|above| grant.covers(above)))?;
    let is_there = host.look(home).is_some_and(|found| found.real == home && found.kind == HostFileType::Dir);
    (!is_there)
        .then(|| format!("{}: it shows {}, which has no {}", is_shown.rule, is_shown.path.display(), home.display()))
}

impl Resolved {
    /// Resolves the policy on this host: rules reach the real paths behind links; allowances of missing paths, and of
    /// programs with another digest than named, have no effect. Decisions then equal what a plan enforces.
    pub fn follow(&self, host: &dyn Host) -> Result<Resolved, PlanError> {
        settle(self, host).map(|followed| followed.resolved)
    }

    /// Computes the mounts and rules with which the kernel enforces this policy on `host`.
    pub fn plan(&self, host: &dyn Host) -> Result<Plan, PlanError> {
        let followed = settle(self, host)?;
        let mut planner = Planner::new(&followed);
        planner.grants();
        planner.masks()?;
        planner.check_covered_grants()?;
        planner.guards();
        let exec = planner.exec()?;
        let sockets = followed.resolved.reached_sockets();
        let asked = planner.asked()?;
        let kept = planner.kept();
        let links = planner.links(&followed, &sockets, &asked);
        Ok(Plan {
            grants: planner.grants,
            masks: planner.masks,
            guards: planner.guards,
            sockets,
            asked,
            kept,
            links,
            exec,
            private: followed.resolved.private.clone(),
            notes: planner.notes,
        })
    }
}

struct Planner<'a> {
    resolved: &'a Resolved,
    loaders: &'a [PathBuf],
    /// Rules that deny file permissions in this plan.
    denials: Vec<FileRule>,
    grants: Vec<Grant>,
    masks: Vec<Mask>,
    guards: Vec<Guard>,
    notes: Vec<String>,
    /// Index of paths in `grants` and `masks`: lookups go up from a path, never over all entries.
    grant_at: HashMap<PathBuf, usize>,
    mask_at: HashMap<PathBuf, usize>,
}

impl<'a> Planner<'a> {
    fn new(followed: &'a Followed) -> Planner<'a> {
        let resolved = &followed.resolved;
        let mut denials: Vec<FileRule> = resolved.files.iter().filter(|r| !r.grants()).cloned().collect();
        if resolved.policy.default_exec() == Action::Deny {
            // Only named programs run, so an exception from a named directory has to be masked in it.
            let refused = resolved.programs.iter().filter_map(|p| p.file.refuses(|path| resolved.asks_to_start(path)));
            denials.extend(refused.map(|r| FileRule { perms: EXECUTE, ..r }));
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
        let mut wanted: BTreeMap<PathBuf, (HostFileType, Vec<(Perms, String)>)> = BTreeMap::new();
        let everywhere = self.resolved.default_perms();
        if !everywhere.is_empty() {
            let tops = [PathBuf::from("/")].into_iter().chain(self.resolved.private_workspace.clone());
            let rules = vec![(everywhere, "defaults.fs".to_owned())];
            wanted.extend(tops.map(|top| (top, (HostFileType::Dir, rules.clone()))));
        }
        for rule in self.resolved.file_rules().filter(|r| r.grants()) {
            for RealPath { path, kind } in rule.reals.iter().flatten() {
                let entry = wanted.entry(path.clone()).or_insert_with(|| (*kind, Vec::new()));
                entry.1.push((rule.perms, rule.label.clone()));
            }
        }
        for (path, (kind, rules)) in wanted {
            let above = self.covering(&path).map_or(Perms::NONE, |g| g.perms);
            let denied = self.denied(&path);
            let all = rules.iter().fold(Perms::NONE, |all, (perms, _)| all.union(*perms));
            let added = all.minus(denied).minus(above);
            if all.minus(denied).is_empty() {
                let label = &rules[0].1;
                self.notes.push(format!("{label}: everything it allows at {} is denied", path.display()));
            }
            if added.is_empty() {
                continue;
            }
            let brought = rules.iter().find(|(perms, _)| !perms.and(added).is_empty()).unwrap_or(&rules[0]);
            self.grant_at.insert(path.clone(), self.grants.len());
            let (perms, rule) = (above.union(added), brought.1.clone());
            self.grants.push(Grant { path, kind, perms, rule, private: self.resolved.private.clone() });
        }
    }

    fn masks(&mut self) -> Result<(), PlanError> {
        let places: BTreeSet<RealPath> = self.denials.iter().flat_map(|r| r.reals.iter().flatten().cloned()).collect();
        for real in places {
            let Some(grant) = self.covering(&real.path) else {
                continue;
            };
            let here = applicable(grant.perms, real.kind);
            let lost = here.and(self.denied(&real.path));
            if lost.is_empty() {
                continue;
            }
            let cover = cover(here, lost).ok_or_else(|| self.inexpressible(&real, here, lost))?;
            if !self.is_already_covered(&real.path, cover) {
                let rule = self.denier(&real.path, lost);
                self.mask_at.insert(real.path.clone(), self.masks.len());
                self.masks.push(Mask { path: real.path, kind: real.kind, cover, rule });
            }
        }
        Ok(())
    }

    /// Refuses a grant below a cover: the cover would take away what the policy allows.
    fn check_covered_grants(&self) -> Result<(), PlanError> {
        for grant in &self.grants {
            let wanted = self.wanted(&grant.path);
            for mask in self.masks_over(&grant.path) {
                let taken = wanted.and(perms_taken(mask.cover));
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

    /// Returns denied sockets, or directories of such, inside writable grants: renamed, they would escape the rule.
    fn kept(&self) -> Vec<PathBuf> {
        let denied = self.resolved.sockets.iter().filter(|r| !r.grants()).flat_map(|r| r.reals.iter().flatten());
        let changes = |g: &Grant| !g.perms.and(Perms::CHANGES).is_empty();
        let movable = denied.filter(|real| self.covering(&real.path).is_some_and(changes));
        movable.map(|real| real.path.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the links to make inside: those that lead to a grant, a socket or a path that is asked about, and that
    /// no grant shows by itself.
    fn links(&self, followed: &Followed, sockets: &[HostSocket], asked: &[AskedPlace]) -> Vec<Symlink> {
        let stands = sockets.iter().map(|s| &s.path).chain(asked.iter().map(|place| &place.path));
        let shown = |real: &Path| self.covering(real).is_some() || stands.clone().any(|path| path.starts_with(real));
        let leads = followed.links.iter().filter(|met| shown(&met.real));
        let unseen = leads.filter(|met| self.covering(&met.link.at).is_none());
        unseen.map(|met| met.link.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the innermost grant that covers `path`; it includes the permissions of the outer ones.
    fn covering(&self, path: &Path) -> Option<&Grant> {
        self.resolved.private.reaching(path).find_map(|above| self.grant_at.get(above)).map(|i| &self.grants[*i])
    }

    fn masks_over<'p>(&'p self, path: &'p Path) -> impl Iterator<Item = &'p Mask> {
        path.ancestors().filter_map(|above| self.mask_at.get(above)).map(|i| &self.masks[*i])
    }

    fn denied(&self, path: &Path) -> Perms {
        self.denials.iter().filter(|r| r.covers(path)).fold(Perms::NONE, |all, r| all.union(r.perms))
    }

    /// Returns the permissions that the policy allows at `path`.
    fn wanted(&self, path: &Path) -> Perms {
        let rules = self.resolved.file_rules().filter(|r| r.grants() && r.covers(path));
        rules.fold(self.resolved.default_perms_at(path), |all, r| all.union(r.perms)).minus(self.denied(path))
    }

    fn denier(&self, path: &Path, lost: Perms) -> String {
        let rule = self.denials.iter().find(|r| !r.perms.and(lost).is_empty() && r.covers(path));
        rule.map(|r| r.label.clone()).unwrap_or_default()
    }

    /// Returns true if a cover above takes the same permissions, and no grant in between gives them back.
    fn is_already_covered(&self, path: &Path, cover: Cover) -> bool {
        let between =
            |mask: &Mask| path.ancestors().take_while(|a| *a != mask.path).any(|a| self.grant_at.contains_key(a));
        let same = |mask: &&Mask| perms_taken(cover).minus(perms_taken(mask.cover)).is_empty();
        self.masks_over(path).filter(same).any(|mask| !between(mask))
    }

    fn inexpressible(&self, real: &RealPath, here: Perms, lost: Perms) -> PlanError {
        PlanError {
            rule: self.denier(&real.path, lost),
            message: format!(
                "{}: denying {} while {} stay allowed cannot be enforced inside a larger grant",
                real.path.display(),
                lost.names().join(", "),
                here.minus(lost).names().join(", ")
            ),
            hint: "deny everything (leave \"perms\" out), or all of write_file, truncate, refer, make_* and remove_* together, or execute".to_owned(),
        }
    }
}
