//! Walk over a host for the paths that match a pattern. Links are followed, so cycles are possible: a directory is
//! entered once per state of the pattern. All lookups are counted, and too many are an error.

use crate::error::PlanError;
use crate::glob::{Pattern, States};
use crate::plan::{Host, HostFileType, ResolvedPath, Symlink};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Bound on the entries that a plan visits.
const MAX_VISITED: usize = 200_000;
/// Bound on the paths that one rule may match.
const MAX_MATCHES: usize = 10_000;

/// Count of visited entries, over all rules of a plan.
#[derive(Default)]
pub(crate) struct Budget {
    visited: usize,
}

impl Budget {
    /// Counts an entry visited for `rule` below `place`.
    pub(crate) fn spend(&mut self, rule: &str, place: &Path) -> Result<(), PlanError> {
        self.visited += 1;
        match self.visited > MAX_VISITED {
            true => Err(PlanError {
                rule: rule.to_owned(),
                message: format!("{}: more than {MAX_VISITED} entries would have to be visited", place.display()),
                hint: "name a directory with less in it, or fewer levels below it".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

/// Trees that a `**` may walk.
#[derive(Clone, Copy)]
pub(crate) enum Region<'a> {
    Anywhere,
    /// Only inside these trees, and on the way to them.
    Near(&'a [PathBuf]),
}

/// Returns the paths on `host` that match `pattern`, each with the links on the way.
pub(crate) fn find(
    pattern: &Pattern,
    host: &dyn Host,
    region: Region<'_>,
    budget: &mut Budget,
    rule: &str,
) -> Result<Vec<ResolvedPath>, PlanError> {
    if let Some(path) = pattern.as_path() {
        return Ok(look(host, region, rule, &path)?.into_iter().collect());
    }
    let head = pattern.head(pattern.literal_len());
    let Some(start) = look(host, region, rule, &head)? else {
        return Ok(Vec::new());
    };
    let states = pattern.after(&head);
    if pattern.accepts(states) {
        return Ok(vec![start]);
    }
    let mut walk = PatternWalk { pattern, host, region, budget, rule, found: Vec::new(), entered: HashSet::new() };
    walk.run(start, states)?;
    Ok(walk.found)
}

/// Resolves a path. A denial near an allowance must know whether the path exists: an unseen path is not covered.
fn look(host: &dyn Host, region: Region<'_>, rule: &str, path: &Path) -> Result<Option<ResolvedPath>, PlanError> {
    let found = host.look(path);
    let hidden = if found.is_none() { host.hidden(path) } else { None };
    match hidden.filter(|(real, _)| region.must_be_known(real)) {
        Some((_, why)) => Err(unseen(rule, path, &why)),
        None => Ok(found),
    }
}

impl Region<'_> {
    fn must_be_known(&self, path: &Path) -> bool {
        matches!(self, Region::Near(roots) if touches(path, roots))
    }
}

fn unseen(rule: &str, path: &Path, why: &str) -> PlanError {
    PlanError {
        rule: rule.to_owned(),
        message: format!("{}: cannot find the paths that it denies: {why}", path.display()),
        hint: "give the directory the permission bits that it had: `cofferdam reject` takes a sandbox's change of them back".to_owned(),
    }
}

struct PatternWalk<'a> {
    pattern: &'a Pattern,
    host: &'a dyn Host,
    region: Region<'a>,
    budget: &'a mut Budget,
    rule: &'a str,
    found: Vec<ResolvedPath>,
    entered: HashSet<(PathBuf, States)>,
}

impl PatternWalk<'_> {
    fn run(&mut self, start: ResolvedPath, states: States) -> Result<(), PlanError> {
        let mut todo = vec![(start, states)];
        while let Some((dir, states)) = todo.pop() {
            if dir.kind != HostFileType::Dir || !self.may_enter(&dir.real, states) {
                continue;
            }
            if let Some(name) = self.pattern.only_next(states) {
                self.budget.spend(self.rule, &dir.real)?;
                self.visit(&dir, name, states, &mut todo)?;
                continue;
            }
            let mut names = match self.host.list(&dir.real) {
                Ok(names) => names,
                Err(why) if self.region.must_be_known(&dir.real) => return Err(unseen(self.rule, &dir.real, &why)),
                Err(_) => Vec::new(),
            };
            names.sort();
            for name in names {
                self.budget.spend(self.rule, &dir.real)?;
                self.visit(&dir, &name, states, &mut todo)?;
            }
        }
        Ok(())
    }

    fn visit(
        &mut self,
        dir: &ResolvedPath,
        name: &std::ffi::OsStr,
        states: States,
        todo: &mut Vec<(ResolvedPath, States)>,
    ) -> Result<(), PlanError> {
        let next = self.pattern.step(states, name);
        if next.is_dead() {
            return Ok(());
        }
        let Some(mut found) = look(self.host, self.region, self.rule, &dir.real.join(name))? else {
            return Ok(());
        };
        found.links = join_links(&dir.links, found.links);
        if self.pattern.accepts(next) {
            self.found.push(found);
            return match self.found.len() > MAX_MATCHES {
                true => Err(self.too_many()),
                false => Ok(()),
            };
        }
        todo.push((found, next));
        Ok(())
    }

    fn may_enter(&mut self, dir: &Path, states: States) -> bool {
        let near = match self.region {
            Region::Near(roots) if self.pattern.is_unbounded(states) => touches(dir, roots),
            _ => true,
        };
        near && self.entered.insert((dir.to_owned(), states))
    }

    fn too_many(&self) -> PlanError {
        PlanError {
            rule: self.rule.to_owned(),
            message: format!("{}: more than {MAX_MATCHES} paths match it", self.pattern.text()),
            hint: "name the directory that holds them".to_owned(),
        }
    }
}

/// Returns true if `path` is inside one of `roots` or an ancestor of one.
pub(crate) fn touches(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root) || root.starts_with(path))
}

fn join_links(before: &[Symlink], after: Vec<Symlink>) -> Vec<Symlink> {
    let mut links = before.to_vec();
    for link in after {
        if !links.contains(&link) {
            links.push(link);
        }
    }
    links
}
