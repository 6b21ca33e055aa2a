//! Checks of a commit before the landing: paths that belong to other repositories, and conditions that would make it
//! fail.

use super::child::Call;
use super::commit::{Plan, Prepared};
use super::locate::{Repository, refused, unreadable};
use super::paths::{at_and_above, is_kept, is_of, of_another};
use super::settings::GitEnvironment;
use crate::dir::Dir;
use api::{FileKind, Rel};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use terms::Fault;

/// Paths per command line; their total length is within the limit of every kernel.
const MOST_ARGS: usize = 400;

impl Prepared {
    pub(super) fn look_ahead(
        &mut self,
        paths: Vec<Rel>,
        surroundings: &GitEnvironment<'_>,
        plan: &Plan<'_>,
        depth: usize,
    ) -> Result<(), Fault> {
        if let Some(commit) = self.head.commit() {
            self.run(&["read-tree", commit], Vec::new())?;
        }
        let links = self.submodules(&paths)?;
        self.others.extend(links.keys().cloned());
        self.prepare_inner(&links, &paths, surroundings, plan, depth)?;
        let (others, paths): (Vec<Rel>, Vec<Rel>) = paths.into_iter().partition(|path| is_of(&self.others, path));
        self.note_others(&others, paths.is_empty() && self.inner.is_empty())?;
        self.filtered(&paths)?;
        self.check_index(&paths)?;
        self.note_uncommitted_changes(&paths)?;
        if self.settings.signs {
            self.notes.push("not signed: commit.gpgSign names a program, and none is run here".into());
        }
        Ok(())
    }

    /// Notes which files land without being committed. If that is all of them, the request is refused.
    fn note_others(&mut self, left_out: &[Rel], all: bool) -> Result<(), Fault> {
        let others: Vec<Rel> = self.others.iter().filter(|other| !self.commits_inside(other)).cloned().collect();
        for other in &others {
            let count = left_out.iter().filter(|path| path.is_at_or_below(other)).count();
            if count > 0 && all {
                return Err(of_another(&other.to_string()));
            }
            let note =
                format!("{other} is a repository of its own (a submodule): {count} files in it are not committed");
            self.notes.extend((count > 0).then(|| format!("{note}; commit them there with git")));
        }
        Ok(())
    }

    /// Submodules among the parents of these paths, with the commit that HEAD records for each.
    fn submodules(&self, paths: &[Rel]) -> Result<BTreeMap<Rel, String>, Fault> {
        let mut found = BTreeMap::new();
        let Some(commit) = self.head.commit() else { return Ok(found) };
        let above: BTreeSet<Rel> = paths.iter().flat_map(at_and_above).collect();
        let names: Vec<&OsStr> = above.iter().map(|at| OsStr::from_bytes(at.as_bytes())).collect();
        for some in names.chunks(MOST_ARGS) {
            let mut args: Vec<&OsStr> = ["ls-tree", "-z", "--full-tree", commit, "--"].map(OsStr::new).to_vec();
            args.extend(some);
            let listed = self.scratch.git(&args, Call::default())?;
            // `ls-tree` of `a/b` lists other entries of `a` as well.
            let entries = listed.split(|b| *b == 0).filter(|entry| entry.starts_with(b"160000 "));
            let inner = entries.filter_map(|entry| {
                let mut parts = entry.splitn(2, |b| *b == b'\t');
                let (head, at) = (parts.next()?, Rel::parse(parts.next()?)?);
                let id = head.rsplit(|b| *b == b' ').next()?;
                Some((at, String::from_utf8_lossy(id).into_owned()))
            });
            found.extend(inner.filter(|(at, _)| above.contains(at)));
        }
        Ok(found)
    }

    /// Checks that the user's index is readable, not locked, and without conflicts at these paths.
    fn check_index(&self, paths: &[Rel]) -> Result<(), Fault> {
        let Repository { own, own_path, .. } = &self.repository;
        let fail = |e: io::Error| unreadable(own_path, &e);
        if own.meta_of(b"index.lock").map_err(fail)?.is_some() {
            let fault = refused(&own_path.join("index.lock"), "another git process holds the lock on the index");
            return Err(fault.hint("wait for it to end; if none runs, remove the file"));
        }
        let Some(index) = own.meta_of(b"index").map_err(fail)? else { return Ok(()) };
        if index.kind != FileKind::File {
            return Err(refused(&own_path.join("index"), "is not a regular file"));
        }
        let args = ["ls-files", "-u", "-z"].map(OsStr::new);
        let env = vec![("GIT_INDEX_FILE", own_path.join("index").into_os_string())];
        let listed = self.scratch.git(&args, Call { env, ..Call::default() })?;
        let unmerged = listed.split(|b| *b == 0).filter_map(|entry| entry.split(|b| *b == b'\t').nth(1));
        let mine: BTreeSet<&[u8]> = paths.iter().map(Rel::as_bytes).collect();
        match unmerged.into_iter().find(|path| mine.contains(path)) {
            None => Ok(()),
            Some(path) => {
                let path = String::from_utf8_lossy(path).into_owned();
                Err(refused(own_path, &format!("{path} has an unresolved conflict in the index")))
            }
        }
    }

    /// Notes uncommitted changes of the reviewer in these files: they land, too, and so become part of the commit.
    fn note_uncommitted_changes(&mut self, paths: &[Rel]) -> Result<(), Fault> {
        let top = Dir::open(&self.repository.top).map_err(|e| unreadable(&self.repository.top, &e))?;
        let there: Vec<Rel> = paths.iter().filter(|path| is_kept(&top, path)).cloned().collect();
        self.add(&top, &there)?;
        let before: BTreeSet<_> = self.differences()?.into_keys().collect();
        // Resets the scratch index to HEAD.
        match self.head.commit() {
            Some(commit) => self.run(&["read-tree", commit], Vec::new())?,
            None => self.run(&["read-tree", "--empty"], Vec::new())?,
        };
        if !before.is_empty() && self.head.commit().is_some() {
            const SHOWN: usize = 5;
            let names: Vec<_> = before.iter().take(SHOWN).map(Rel::to_string).collect();
            let more = if before.len() > SHOWN { ", …" } else { "" };
            let count = before.len();
            let note = format!("{count} of the files had uncommitted changes of yours: {}{more}", names.join(", "));
            self.notes.push(note);
        }
        Ok(())
    }
}
