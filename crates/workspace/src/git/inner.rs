//! Submodules: changes that landed in one are committed in its own repository, and the superproject records the new
//! commit as its gitlink. The git directory of a submodule must be the one below the superproject's `modules`: a
//! `.git` file that points elsewhere would let its author choose the repository that is committed to.

use super::commit::{Plan, Prepared, Staged, WrittenCommit, prepare_in};
use super::locate::{Repository, identity, refused, unreadable};
use super::refs::Head;
use super::settings::GitEnvironment;
use crate::dir::Dir;
use api::{Rel, SubmoduleCommit};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use terms::Fault;

/// Nesting bound of submodules.
const DEEPEST: usize = 8;

/// Submodule that gets a commit.
pub(super) struct PreparedSubmodule {
    /// Path of the submodule in the work tree of the superproject.
    pub at: Rel,
    pub prepared: Prepared,
}

impl Prepared {
    /// Prepares commits in those submodules of `links` (path to the commit that HEAD records) that contain some of
    /// `paths`.
    pub(super) fn prepare_inner(
        &mut self,
        links: &BTreeMap<Rel, String>,
        paths: &[Rel],
        surroundings: &GitEnvironment<'_>,
        plan: &Plan<'_>,
        depth: usize,
    ) -> Result<(), Fault> {
        for (at, recorded) in links {
            let own: Vec<Rel> = paths.iter().filter_map(|path| rest(at, path)).collect();
            let Some(repository) = self.repository.submodule(at)?.filter(|_| !own.is_empty()) else { continue };
            if depth >= DEEPEST {
                return Err(refused(&repository.top, &format!("submodules are nested more than {DEEPEST} deep")));
            }
            let prepared = prepare_in(repository, surroundings, plan, &own, depth + 1)?;
            if prepared.head.commit() != Some(recorded.as_str()) {
                let stood = prepared.head.commit().unwrap_or("no commit");
                self.notes
                    .push(format!("{at} was at {stood}, not at {recorded} as HEAD records: the commit includes that"));
            }
            if matches!(prepared.head, Head::Detached { .. }) {
                self.notes.push(format!(
                    "{at} is on no branch: only the submodule link refers to its commit; `git -C {at} switch -c NAME` gives it a branch"
                ));
            }
            self.inner.push(PreparedSubmodule { at: at.clone(), prepared });
        }
        Ok(())
    }

    /// True if changes in the repository at `at` are committed there.
    pub(super) fn commits_inside(&self, at: &Rel) -> bool {
        self.inner.iter().any(|inner| inner.at == *at)
    }

    pub(super) fn write_inner(&mut self, batch: &str, landed: &[Staged]) -> Result<Vec<WrittenCommit>, Fault> {
        let of = |at: &Rel| -> Vec<Staged> {
            let own = |staged: &Staged| Some(Staged { path: rest(at, &staged.path)?, digest: staged.digest.clone() });
            landed.iter().filter_map(own).collect()
        };
        self.inner.iter_mut().map(|inner| inner.prepared.write(batch, &of(&inner.at))).collect()
    }

    /// Adds gitlinks of the new commits to the scratch index and returns their paths.
    pub(super) fn link(&self, made: &[WrittenCommit]) -> Result<Vec<Rel>, Fault> {
        let (mut input, mut linked) = (Vec::new(), Vec::new());
        for (inner, made) in self.inner.iter().zip(made) {
            let Some(commit) = &made.commit else { continue };
            input.extend_from_slice(format!("160000 {commit}\t").as_bytes());
            input.extend_from_slice(inner.at.as_bytes());
            input.push(0);
            linked.push(inner.at.clone());
        }
        self.run(&["update-index", "--add", "--replace", "-z", "--index-info"], input)?;
        Ok(linked)
    }

    /// Moves the heads, submodules first: a gitlink never names a commit without a reference. If one fails, those
    /// before it are reverted.
    pub(super) fn publish(&self, made: &WrittenCommit) -> Result<(), Fault> {
        let mut done = Vec::new();
        let moved = self.inner.iter().zip(&made.inner).try_for_each(|(inner, made)| {
            inner.prepared.publish(made)?;
            done.push((inner, made));
            Ok(())
        });
        let why = format!("commit: {}", self.message.lines().next().unwrap_or_default());
        let moved = moved.and_then(|()| match &made.commit {
            Some(commit) => self.move_head(&self.head, commit, &made.who, &why),
            None => Ok(()),
        });
        moved.inspect_err(|_| done.iter().rev().for_each(|(inner, made)| inner.prepared.revert_heads(made)))
    }

    /// Reverts the heads unless they have moved on since.
    fn revert_heads(&self, made: &WrittenCommit) {
        if let (Some(commit), Some(before)) = (&made.commit, self.head.commit()) {
            let now = match &self.head {
                Head::Branch { name, .. } => Head::Branch { name: name.clone(), commit: Some(commit.clone()) },
                Head::Detached { .. } => Head::Detached { commit: commit.clone() },
            };
            // Best effort: the caller reports that there is no commit; one that others have built upon stays.
            let _ = self.move_head(&now, before, &made.who, "reset: taken back");
        }
        self.inner.iter().zip(&made.inner).for_each(|(inner, made)| inner.prepared.revert_heads(made));
    }

    /// Writes the new entries to the index of each repository.
    pub(super) fn bring_up_index(&mut self, made: &WrittenCommit) {
        for (inner, made) in self.inner.iter_mut().zip(&made.inner) {
            inner.prepared.bring_up_index(made);
            let told = std::mem::take(&mut inner.prepared.notes);
            self.notes.extend(told.into_iter().map(|note| format!("{}: {note}", inner.at)));
        }
        if made.commit.is_none() {
            return;
        }
        if let Err(fault) = self.put_into_index(&made.changed) {
            let note = format!("the index could not be updated ({}); run `git reset`", fault.message);
            self.notes.push(note);
        }
    }

    /// Commits in submodules, with paths relative to the base.
    pub(super) fn submodule_commits(&self, made: &WrittenCommit) -> Vec<SubmoduleCommit> {
        let mut told = Vec::new();
        for (inner, made) in self.inner.iter().zip(&made.inner) {
            let at = rest(&self.repository.prefix, &inner.at).unwrap_or_else(|| inner.at.clone());
            let branch = inner.prepared.head.label().to_owned();
            told.extend(made.commit.iter().map(|commit| SubmoduleCommit {
                path: at.clone(),
                commit: commit.clone(),
                branch: branch.clone(),
            }));
            let deeper = inner.prepared.submodule_commits(made);
            told.extend(
                deeper.into_iter().map(|one| SubmoduleCommit { path: super::paths::below(&at, &one.path), ..one }),
            );
        }
        told
    }
}

impl Repository {
    /// Repository of a submodule; None if it is not checked out.
    fn submodule(&self, at: &Rel) -> Result<Option<Repository>, Fault> {
        let top = self.top.join(at.as_path());
        let work = Dir::open(&self.top).map_err(|e| unreadable(&self.top, &e))?;
        if work.meta(&at.join(b".git")).map_err(|e| unreadable(&top, &e))?.is_none() {
            return Ok(None);
        }
        let found = Repository::find(&top)?.filter(|found| found.top == top);
        let found = found.ok_or_else(|| refused(&top, "its .git is not a git directory"))?;
        // A `.git` directory in place points nowhere else.
        if !found.by_file || self.keeps(&found)? {
            return Ok(Some(found));
        }
        Err(refused(&top, "its .git leads to a git directory other than the one in the superproject"))
    }

    /// True if the git directory of `inner` lies in `modules` of this one, reached without a link.
    fn keeps(&self, inner: &Repository) -> Result<bool, Fault> {
        let fail = |e: std::io::Error| unreadable(&self.own_path, &e);
        let own = std::fs::canonicalize(&self.own_path).map_err(fail)?;
        let below = inner.own_path.strip_prefix(own.join("modules")).ok();
        let Some(below) = below.and_then(|below| Rel::parse(below.as_os_str().as_bytes())) else { return Ok(false) };
        if below.is_top() || inner.own_path != inner.common_path {
            return Ok(false);
        }
        let kept = self.own.dir(&super::paths::below(&Rel::top().join(b"modules"), &below));
        let kept = kept.ok().and_then(|dir| identity(&dir));
        Ok(kept.is_some() && kept == identity(&inner.own))
    }
}

/// Remainder of a path below `at`; None if it is not below.
fn rest(at: &Rel, path: &Rel) -> Option<Rel> {
    let count = at.parts().count();
    let is_below = path.is_at_or_below(at) && path.parts().count() > count;
    is_below.then(|| path.parts().skip(count).fold(Rel::top(), |rest, part| rest.join(part)))
}
