//! Commits exactly the approved changes on top of HEAD. Every check is made by `prepare`, before the landing; changes
//! of other files that the user had staged stay staged. Changes in submodules are committed there (`inner.rs`) and
//! reported.
//!
//! ```text
//! prepare ─▶ (landing) ─▶ blobs ─▶ tree ─▶ commit ─▶ compare-and-swap of HEAD ─▶ the user's index
//! ```

use super::child::{Call, ScratchRepository};
use super::inner::PreparedSubmodule;
use super::locate::{Repository, refused, unreadable};
use super::message::{checked_message, with_trailers};
use super::paths::{below, digest, in_work_tree, is_of, listed};
use super::refs::{Head, is_id};
use super::settings::{GitEnvironment, GitSettings, Identity, no_identity};
use crate::dir::{Dir, Meta};
use api::{CommitAuthor, Rel, SubmoduleCommit};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use terms::{ErrorKind, Fault, Phase};

/// Message and authorship of the commit.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub message: &'a str,
    pub author: CommitAuthor,
    /// Name of the agent: the sandbox's name.
    pub agent: &'a str,
    pub sandbox: &'a str,
}

/// A path of the base and its landed state: SHA-256 of the file's bytes or of the link target; None for a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    pub path: Rel,
    pub digest: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Commit id; None without a change that git tracks, such as for directories.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// Branch name, or a note that HEAD is detached.
    pub branch: String,
    /// Commits in submodules.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inside: Vec<SubmoduleCommit>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// A commit whose preconditions were checked before the landing.
pub struct Prepared {
    pub(super) repository: Repository,
    pub(super) settings: GitSettings,
    pub(super) scratch: ScratchRepository,
    pub(super) head: Head,
    /// Tops of other repositories in the tree, whose files are not committed here.
    pub(super) others: BTreeSet<Rel>,
    /// Submodules among them that get a commit of their own.
    pub(super) inner: Vec<PreparedSubmodule>,
    pub(super) message: String,
    pub(super) author: Identity,
    pub(super) committer: Identity,
    pub(super) trailers: Vec<String>,
    pub(super) notes: Vec<String>,
}

const AGENT: &str = "Cofferdam agent";
const AGENT_MAIL: &str = "agent@cofferdam.invalid";

/// Objects that were written and are not referenced yet.
pub(super) struct WrittenCommit {
    /// Commit id; None without a change that git tracks.
    pub commit: Option<String>,
    /// Committer and time, as in the commit object.
    pub who: String,
    /// Differences from HEAD: path to mode and blob.
    pub changed: BTreeMap<Rel, (String, String)>,
    /// Objects of each submodule in `Prepared::inner`.
    pub inner: Vec<WrittenCommit>,
}

/// Files of the git directory that mark an unfinished operation.
const OPERATION_MARKERS: &[(&[u8], &str)] = &[
    (b"MERGE_HEAD", "a merge"),
    (b"CHERRY_PICK_HEAD", "a cherry-pick"),
    (b"REVERT_HEAD", "a revert"),
    (b"rebase-merge", "a rebase"),
    (b"rebase-apply", "a rebase"),
];

/// Checks everything that could prevent `paths` of the tree at `base` from being committed.
pub fn prepare(
    base: &Path,
    surroundings: &GitEnvironment<'_>,
    plan: &Plan<'_>,
    paths: &[Rel],
) -> Result<Prepared, Fault> {
    let repository = Repository::find(base)?.ok_or_else(|| {
        let fault = Fault::invalid(format!("{} is not in a git repository", base.display())).phase(Phase::Review);
        fault.hint("approve without --commit, or `git init` first")
    })?;
    prepare_in(repository, surroundings, plan, paths, 0)
}

/// Prepares a commit in a repository; `depth` is its nesting depth as a submodule.
pub(super) fn prepare_in(
    repository: Repository,
    surroundings: &GitEnvironment<'_>,
    plan: &Plan<'_>,
    paths: &[Rel],
    depth: usize,
) -> Result<Prepared, Fault> {
    let message = checked_message(plan.message)?;
    let settings = GitSettings::read(&repository, surroundings)?;
    let committer = settings.reviewer.clone().ok_or_else(no_identity)?;
    check_no_operation_in_progress(&repository)?;
    let (paths, others) = in_work_tree(&repository, paths)?;
    let scratch =
        ScratchRepository::make(settings.program.clone(), &repository, settings.sha256, settings.carried.clone())?;
    let reftable = repository.has_reftable()?;
    if reftable != settings.reftable {
        let why = "its settings and its files disagree about the reference storage";
        return Err(refused(&repository.common_path, why));
    }
    let head = if reftable { scratch.head()? } else { repository.head()? };
    let agent = Identity::new(plan.agent, AGENT_MAIL);
    let agent = agent.unwrap_or_else(|| Identity { name: AGENT.into(), email: AGENT_MAIL.into() });
    let mut trailers = Vec::new();
    if plan.author == CommitAuthor::Coauthored {
        trailers.push(format!("Co-authored-by: {} <{}>", agent.name, agent.email));
    }
    trailers.push(format!("Cofferdam-Sandbox: {}", plan.sandbox));
    let author = if plan.author == CommitAuthor::Agent { agent } else { committer.clone() };
    let (inner, notes) = (Vec::new(), Vec::new());
    let mut prepared =
        Prepared { repository, settings, scratch, head, others, inner, message, author, committer, trailers, notes };
    prepared.look_ahead(paths, surroundings, plan, depth)?;
    Ok(prepared)
}

impl Prepared {
    pub(super) fn run(&self, args: &[&str], input: Vec<u8>) -> Result<Vec<u8>, Fault> {
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        self.scratch.git(&args, Call { input, ..Call::default() })
    }

    /// Differences between HEAD and the scratch index: path to new mode and blob, mode 0 for a deletion.
    pub(super) fn differences(&self) -> Result<BTreeMap<Rel, (String, String)>, Fault> {
        let Some(commit) = self.head.commit() else { return self.everything() };
        let mut words = vec!["diff-index", "--cached", "-z", "--raw", "--no-abbrev", "--no-renames"];
        // Given explicitly, or `.gitmodules` decides which submodules are ignored.
        words.extend(["--ignore-submodules=none", commit]);
        let raw = self.run(&words, Vec::new())?;
        let fields: Vec<&[u8]> = raw.split(|b| *b == 0).collect();
        let mut found = BTreeMap::new();
        for pair in fields.chunks_exact(2) {
            let head: Vec<&str> = std::str::from_utf8(pair[0]).unwrap_or_default().split(' ').collect();
            let (Some(path), [_, mode, _, blob, status]) = (Rel::parse(pair[1]), &head[..]) else {
                return Err(Fault::internal("git diff-index gave unexpected output"));
            };
            let mode = if *status == "D" { "0" } else { mode };
            found.insert(path, (mode.to_owned(), (*blob).to_owned()));
        }
        Ok(found)
    }

    /// Entries of the scratch index, for a repository without a commit.
    fn everything(&self) -> Result<BTreeMap<Rel, (String, String)>, Fault> {
        let raw = self.run(&["ls-files", "-s", "-z"], Vec::new())?;
        let mut found = BTreeMap::new();
        for entry in raw.split(|b| *b == 0).filter(|entry| !entry.is_empty()) {
            let at = entry.iter().position(|b| *b == b'\t').unwrap_or(entry.len());
            let head: Vec<&str> = std::str::from_utf8(&entry[..at]).unwrap_or_default().split(' ').collect();
            let (Some(path), [mode, blob, _]) = (entry.get(at + 1..).and_then(Rel::parse), &head[..]) else {
                return Err(Fault::internal("git ls-files gave unexpected output"));
            };
            found.insert(path, ((*mode).to_owned(), (*blob).to_owned()));
        }
        Ok(found)
    }

    /// Commits the landed changes. A fault means that they landed and are committed neither here nor in any submodule.
    pub fn commit(mut self, batch: &str, landed: &[Staged]) -> Result<Committed, Fault> {
        let at = |staged: &Staged| Staged {
            path: below(&self.repository.prefix, &staged.path),
            digest: staged.digest.clone(),
        };
        let landed: Vec<Staged> = landed.iter().map(at).collect();
        // Objects first: they are unreferenced, and everything that can fail is tried before a branch moves.
        let made = self.write(batch, &landed)?;
        self.publish(&made)?;
        self.bring_up_index(&made);
        let inside = self.submodule_commits(&made);
        Ok(Committed { commit: made.commit, branch: self.head.label().to_owned(), inside, notes: self.notes })
    }

    /// Writes the objects of a commit; paths in `landed` are relative to the work tree.
    pub(super) fn write(&mut self, batch: &str, landed: &[Staged]) -> Result<WrittenCommit, Fault> {
        let inner = self.write_inner(batch, landed)?;
        let landed: Vec<&Staged> = landed.iter().filter(|staged| !is_of(&self.others, &staged.path)).collect();
        let (there, gone): (Vec<&Staged>, Vec<&Staged>) =
            landed.iter().copied().partition(|staged| staged.digest.is_some());
        let names = |list: &[&Staged]| -> Vec<Rel> { list.iter().map(|staged| staged.path.clone()).collect() };
        let top = Dir::open(&self.repository.top).map_err(|e| unreadable(&self.repository.top, &e))?;
        let seen = self.as_landed(&top, &there)?;
        self.run(&["update-index", "-z", "--force-remove", "--stdin"], listed(&names(&gone)))?;
        let pointed = self.add(&top, &names(&there))?;
        for (path, digest) in &pointed {
            let kept = self.repository.keep_bytes(&top, path, digest);
            kept.map_err(|e| moved(&format!("{path}, in lfs/objects of the repository: {e}")))?;
        }
        if !pointed.is_empty() {
            self.notes.push(format!("{} files are stored by git LFS; `git lfs push` uploads them", pointed.len()));
        }
        if self.as_landed(&top, &there)? != seen {
            return Err(moved("a file that landed was changed while it was committed"));
        }
        let linked = self.link(&inner)?;
        let changed = self.differences()?;
        let approved: BTreeSet<&Rel> = landed.iter().map(|staged| &staged.path).chain(&linked).collect();
        if let Some(other) = changed.keys().find(|path| !approved.contains(path)) {
            return Err(moved(&format!("{other} would be committed too, but was not approved")));
        }
        if changed.is_empty() {
            self.notes.push("nothing that git records was changed: no commit".into());
            return Ok(WrittenCommit { commit: None, who: String::new(), changed, inner });
        }
        let (commit, who) = self.make(batch)?;
        Ok(WrittenCommit { commit: Some(commit), who, changed, inner })
    }

    /// Checks that the files have the landed digests and returns their metadata.
    fn as_landed(&self, top: &Dir, there: &[&Staged]) -> Result<Vec<Meta>, Fault> {
        let mut seen = Vec::with_capacity(there.len());
        for staged in there {
            let (meta, digest) = digest(top, &staged.path).map_err(|e| moved(&format!("{}: {e}", staged.path)))?;
            if staged.digest.as_deref() != Some(digest.as_str()) {
                return Err(moved(&format!("{} is not what landed", staged.path)));
            }
            seen.push(meta);
        }
        Ok(seen)
    }

    /// Writes the commit object; also returns committer and time as in the object.
    fn make(&self, batch: &str) -> Result<(String, String), Fault> {
        let tree = id_in(&self.run(&["write-tree", "--missing-ok"], Vec::new())?)?;
        let mut args = vec!["commit-tree", tree.as_str()];
        if let Some(parent) = self.head.commit() {
            args.extend(["-p", parent]);
        }
        args.extend(["-F", "-"]);
        let args: Vec<&OsStr> = args.into_iter().map(OsStr::new).collect();
        let batch = format!("Cofferdam-Batch: {batch}");
        let trailers = self.trailers.iter().map(String::as_str).chain([batch.as_str()]);
        let input = with_trailers(&self.message, trailers).into_bytes();
        let env = vec![
            ("GIT_AUTHOR_NAME", self.author.name.clone().into()),
            ("GIT_AUTHOR_EMAIL", self.author.email.clone().into()),
            ("GIT_COMMITTER_NAME", self.committer.name.clone().into()),
            ("GIT_COMMITTER_EMAIL", self.committer.email.clone().into()),
        ];
        let commit = id_in(&self.scratch.git(&args, Call { input, env, ..Call::default() })?)?;
        let object = self.run(&["cat-file", "commit", &commit], Vec::new())?;
        let object = String::from_utf8_lossy(&object);
        let who = object.lines().find_map(|line| line.strip_prefix("committer ")).unwrap_or_default();
        Ok((commit, who.to_owned()))
    }

    /// Moves HEAD, or its branch, by compare-and-swap against `seen`.
    pub(super) fn move_head(&self, seen: &Head, to: &str, who: &str, why: &str) -> Result<(), Fault> {
        match self.settings.reftable {
            true => {
                let Identity { name, email } = self.committer.clone();
                let env = vec![("GIT_COMMITTER_NAME", name.into()), ("GIT_COMMITTER_EMAIL", email.into())];
                self.scratch.advance(seen, to, env, why)
            }
            false => self.repository.advance(seen, to, who, why),
        }
    }

    /// Writes these entries to the user's index and leaves the others.
    pub(super) fn put_into_index(&self, changed: &BTreeMap<Rel, (String, String)>) -> Result<(), Fault> {
        let env = vec![("GIT_INDEX_FILE", self.repository.own_path.join("index").into_os_string())];
        self.put_entries(changed, env)
    }

    /// Writes these entries to the scratch index and leaves the others.
    pub(super) fn put_into_scratch(&self, changed: &BTreeMap<Rel, (String, String)>) -> Result<(), Fault> {
        self.put_entries(changed, Vec::new())
    }

    fn put_entries(
        &self,
        changed: &BTreeMap<Rel, (String, String)>,
        env: Vec<(&str, std::ffi::OsString)>,
    ) -> Result<(), Fault> {
        let mut input = Vec::new();
        // Deletions first: a file may replace a directory.
        for (path, (mode, blob)) in changed
            .iter()
            .filter(|(_, (mode, _))| mode == "0")
            .chain(changed.iter().filter(|(_, (mode, _))| mode != "0"))
        {
            input.extend_from_slice(format!("{mode} {blob}\t").as_bytes());
            input.extend_from_slice(path.as_bytes());
            input.push(0);
        }
        let args = ["update-index", "--add", "--replace", "-z", "--index-info"].map(OsStr::new);
        self.scratch.git(&args, Call { input, env, ..Call::default() }).map(|_| ())
    }
}

fn check_no_operation_in_progress(repository: &Repository) -> Result<(), Fault> {
    for (name, what) in OPERATION_MARKERS {
        if repository.own.meta_of(name).map_err(|e| unreadable(&repository.own_path, &e))?.is_some() {
            let fault = refused(&repository.top, &format!("{what} is under way"));
            return Err(fault.hint("end it with git first, or approve without --commit"));
        }
    }
    Ok(())
}

pub(super) fn id_in(out: &[u8]) -> Result<String, Fault> {
    let text = String::from_utf8_lossy(out).trim().to_owned();
    match is_id(&text) {
        true => Ok(text),
        false => Err(Fault::internal(format!("git printed {text:?} instead of an id"))),
    }
}

fn moved(why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("not committed: {why}")).phase(Phase::Application);
    fault.hint("it landed; commit it with git, or undo it with `cofferdam undo`")
}
