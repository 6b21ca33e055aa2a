//! diff, prune, approve, reject, undo, rebase, conflicts, provenance.

use super::remote::{Pages, Remote};
use super::{Engine, unsupported_by_daemon};
use crate::transport::Request;
use api::{
    BatchUndo, ChangeKind, CommitRequest, Conflicts, Provenance, Receipt, Rel, SandboxDetails, SeenBy,
    WorkspaceApprove, WorkspaceDiff, WorkspacePruned, WorkspaceRebase, WorkspaceRebased, WorkspaceReject,
    WorkspaceRejected, WorkspaceShown,
};
use node::review::approve::{self, ReviewedDiff, was_shown};
use node::review::diff::{self, DiffReader, MOST_FILES};
use node::review::{
    ReviewScope, check_named, commits, conflicts, home, provenance, prune, rebase, reject, rel_of,
    split_sandbox_and_paths, undo,
};
use node::sandbox::Which;
use std::ffi::OsStr;
use std::io::Write;
use terms::{Changes, ErrorKind, Fault, Phase};

fn home_unsupported() -> Fault {
    unsupported_by_daemon("the home of a sandbox", "it belongs to the tenant", "run the command on the daemon's host")
}

impl Engine {
    pub fn diff(&self, ask: &diff::ReadDiff) -> Result<WorkspaceDiff, Fault> {
        match self {
            Engine::Local(node, caller) => diff::diff(node, caller, ask),
            Engine::Remote(remote) => remote.diff(ask),
        }
    }

    /// Compares a sandbox's own home with what was copied into it.
    pub fn diff_home(&self, of: &ReviewScope) -> Result<WorkspaceDiff, Fault> {
        match self {
            Engine::Local(node, caller) => home::diff(node, caller, of),
            Engine::Remote(_) => Err(home_unsupported()),
        }
    }

    /// Takes the changes of a sandbox's own home back.
    pub fn reject_home(&self, of: &ReviewScope) -> Result<String, Fault> {
        match self {
            Engine::Local(node, caller) => home::reject(node, caller, of),
            Engine::Remote(_) => Err(home_unsupported()),
        }
    }

    /// Writes the diff as a patch that `git apply` takes.
    pub fn patch(&self, ask: &diff::ReadDiff, out: &mut impl Write) -> Result<(), Fault> {
        match self {
            Engine::Local(node, caller) => diff::patch(node, caller, ask)?.write(out),
            Engine::Remote(remote) => {
                // A patch counts as shown, like the diff itself.
                let seen = remote.diff(ask)?;
                let request =
                    with_paths(Request::get(&["v1", "sandboxes", &seen.sandbox, "workspace", "patch"]), &seen.only);
                let headers = remote.client.bytes(request.query_if("all", ask.everything.then_some("true")), out)?;
                let digest = headers.get("cofferdam-digest");
                match digest.is_some_and(|digest| digest.as_bytes() == seen.diff.digest.as_bytes()) {
                    true => Ok(()),
                    false => Err(changed_meanwhile(&seen.sandbox)),
                }
            }
        }
    }

    pub fn was_shown(&self, of: &ReviewScope) -> Result<bool, Fault> {
        match self {
            Engine::Local(node, caller) => was_shown(node, caller, of),
            Engine::Remote(remote) => {
                let (id, _) = remote.meant(of)?;
                remote.get(&["v1", "sandboxes", &id, "workspace", "shown"]).map(|shown: WorkspaceShown| shown.shown)
            }
        }
    }

    /// Returns the sandbox that words mean, and the paths in it.
    pub fn meant(&self, of: &ReviewScope) -> Result<(String, Vec<Rel>), Fault> {
        match self {
            Engine::Local(node, caller) => approve::resolve(node, caller, of),
            Engine::Remote(remote) => remote.meant(of),
        }
    }

    pub fn approve(&self, ask: &approve::ApproveChanges) -> Result<Receipt, Fault> {
        match self {
            Engine::Local(node, caller) => approve::approve(node, caller, ask),
            Engine::Remote(remote) => remote.approve(ask),
        }
    }

    pub fn approve_commits(&self, ask: &commits::ApproveCommits) -> Result<Receipt, Fault> {
        match self {
            Engine::Local(node, caller) => commits::approve(node, caller, ask),
            Engine::Remote(_) => Err(unsupported_by_daemon(
                "approve --commits",
                "commits are adopted on the host of the repository",
                "approve the files, or use --commits on the daemon's host",
            )),
        }
    }

    pub fn reject(&self, ask: &reject::RejectChanges) -> Result<WorkspaceRejected, Fault> {
        match self {
            Engine::Local(node, caller) => reject::reject(node, caller, ask),
            Engine::Remote(remote) => remote.reject(ask),
        }
    }

    pub fn undo(&self, word: Option<&str>) -> Result<Receipt, Fault> {
        match self {
            Engine::Local(node, caller) => undo::undo(node, caller, word),
            Engine::Remote(remote) => {
                let of = word.map_or_else(|| remote.current_dir(), |word| Ok(word.to_owned()))?;
                remote.post(&["v1", "undo"], &BatchUndo { of })
            }
        }
    }

    pub fn rebase(&self, ask: &rebase::RebaseSandbox) -> Result<WorkspaceRebased, Fault> {
        match self {
            Engine::Local(node, caller) => rebase::rebase(node, caller, ask),
            Engine::Remote(remote) => {
                remote.post_to(&ask.which, &["workspace", "rebase"], &WorkspaceRebase { dry_run: ask.dry_run })
            }
        }
    }

    pub fn conflicts(&self, ask: &conflicts::FindConflicts) -> Result<Conflicts, Fault> {
        match self {
            Engine::Local(node, caller) => conflicts::conflicts(node, caller, ask),
            Engine::Remote(remote) => {
                remote.get(&["v1", "sandboxes", &remote.word(ask.sandbox.as_deref())?, "workspace", "conflicts"])
            }
        }
    }

    pub fn provenance(&self, path: &OsStr) -> Result<Provenance, Fault> {
        match self {
            Engine::Local(node, caller) => provenance::provenance(node, caller, path),
            Engine::Remote(remote) => {
                check_named(path)?;
                let whole = remote.caller.cwd.join(path);
                remote
                    .client
                    .document(Request::get(&["v1", "provenance"]).query("path", whole.as_os_str().as_encoded_bytes()))
            }
        }
    }

    pub fn prune(&self, which: &Which) -> Result<WorkspacePruned, Fault> {
        match self {
            Engine::Local(node, caller) => prune::prune(node, caller, which),
            Engine::Remote(remote) => {
                let word = remote.word(which.word.as_deref())?;
                let request = Request::post(&["v1", "sandboxes", &word, "workspace", "prune"]);
                remote.client.document(request.if_version(which.version))
            }
        }
    }
}

fn with_paths(request: Request, paths: &[Rel]) -> Request {
    let bytes = |path: &Rel| if path.is_top() { b".".to_vec() } else { path.as_bytes().to_vec() };
    paths.iter().fold(request, |request, path| request.query("path", bytes(path)))
}

/// True when the top of the workspace is chosen, which a daemon calls `all`. No other choice may be combined with it.
fn is_all(paths: &[Rel], others: usize) -> Result<bool, Fault> {
    match (paths.iter().any(Rel::is_top), paths.len() + others) {
        (true, 1) => Ok(true),
        (true, _) => {
            let why = "the workspace's top already covers everything";
            Err(unsupported_by_daemon("a choice beside the whole workspace", why, "approve one first, then the other"))
        }
        (false, _) => Ok(false),
    }
}

fn changed_meanwhile(sandbox: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, "the workspace changed while it was read").phase(Phase::Review);
    fault.hint("try again").subject(sandbox)
}

impl Remote {
    /// Returns the id of the sandbox, and paths relative to the top of its workspace.
    fn meant(&self, of: &ReviewScope) -> Result<(String, Vec<Rel>), Fault> {
        match of {
            ReviewScope::Sandbox { which, paths } => Ok((self.word(which.word.as_deref())?, paths.clone())),
            ReviewScope::Words(words) => {
                let (found, words): (SandboxDetails, _) = split_sandbox_and_paths(words, |word| self.inspect(word))?;
                let rel = |word| rel_of(word, &found.sandbox.base, &self.caller.cwd);
                let paths = words.iter().map(|word| rel(word)).collect::<Result<_, _>>()?;
                Ok((found.id, paths))
            }
        }
    }

    /// Reads all pages of a diff.
    fn diff(&self, ask: &diff::ReadDiff) -> Result<WorkspaceDiff, Fault> {
        if ask.page.is_some() {
            return Err(unsupported_by_daemon("a part of a diff", "pages are read in order", "read all of it"));
        }
        let (id, paths) = self.meant(&ask.of)?;
        let page = |after: Option<&String>| -> Result<WorkspaceDiff, Fault> {
            let request =
                Request::get(&["v1", "sandboxes", &id, "workspace", "diff"]).query("limit", MOST_FILES.to_string());
            let request = with_paths(request, &paths).query_if("after", after);
            let request = request.query_if("all", ask.everything.then_some("true"));
            self.client.document(request.query_if("shown", (ask.reader == DiffReader::Person).then_some("true")))
        };
        let (mut whole, mut pages) = (page(None)?, Pages::default());
        while let Some(next) = whole.next.take() {
            let more = page(Some(&next))?;
            pages.advance(Some(&next), more.next.as_ref())?;
            if more.diff.digest != whole.diff.digest {
                return Err(changed_meanwhile(&whole.sandbox));
            }
            whole.diff.files.extend(more.diff.files);
            whole.next = more.next;
        }
        Ok(whole)
    }

    /// Counts the changes of a sandbox, with those that a diff usually withholds.
    pub fn changes(&self, which: &Which) -> Result<Changes, Fault> {
        let word = self.word(which.word.as_deref())?;
        let (mut count, mut after, mut pages) = (Changes::default(), None, Pages::default());
        loop {
            let request = Request::get(&["v1", "sandboxes", &word, "workspace", "diff"]).query("all", "true");
            let request = request.query("lines", "false").query("limit", MOST_FILES.to_string());
            let page: WorkspaceDiff = self.client.document(request.query_if("after", after.as_ref()))?;
            for file in &page.diff.files {
                match file.change.kind {
                    ChangeKind::Added => count.added += 1,
                    ChangeKind::Deleted => count.deleted += 1,
                    // A rename counts as a deletion and an addition.
                    ChangeKind::Renamed { .. } => (count.added, count.deleted) = (count.added + 1, count.deleted + 1),
                    ChangeKind::Modified | ChangeKind::Mode | ChangeKind::Xattr | ChangeKind::Type => {
                        count.modified += 1
                    }
                }
            }
            if page.next.is_none() {
                return Ok(count);
            }
            pages.advance(after.as_ref(), page.next.as_ref())?;
            after = page.next;
        }
    }

    fn approve(&self, ask: &approve::ApproveChanges) -> Result<Receipt, Fault> {
        let (id, mut paths) = self.meant(&ask.of)?;
        let all = is_all(&paths, ask.exact.len() + ask.hunks.len())?;
        paths.retain(|path| !path.is_top());
        let nothing = paths.is_empty() && ask.exact.is_empty() && ask.hunks.is_empty() && !ask.runs_on_host;
        let (digest, seen) = match &ask.seen {
            ReviewedDiff::Digest(digest) => (Some(digest.clone()), SeenBy::Digest),
            ReviewedDiff::Last => (None, SeenBy::Last),
            ReviewedDiff::Unseen => (None, SeenBy::Unseen),
        };
        let request = WorkspaceApprove {
            digest,
            seen,
            // No choice means all ordinary changes.
            all: ask.everything || all || nothing,
            paths,
            exact: ask.exact.clone(),
            hunks: ask.hunks.clone(),
            runs_on_host: ask.runs_on_host,
            commit: ask
                .commit
                .as_ref()
                .map(|wish| CommitRequest { message: wish.message.clone(), author: wish.author }),
        };
        let version = version_of(&ask.of);
        self.post_to(&Which { word: Some(id), version }, &["workspace", "approve"], &request)
    }

    /// Rejects changes. A daemon requires the digest of the diff that was seen; without one, the current diff is taken.
    fn reject(&self, ask: &reject::RejectChanges) -> Result<WorkspaceRejected, Fault> {
        let (id, mut paths) = self.meant(&ask.of)?;
        if paths.is_empty() && ask.hunks.is_empty() && !ask.everything {
            let fault = Fault::invalid("no changes were selected to reject").phase(Phase::Admission);
            return Err(fault.hint("give paths, --hunk ID or --all"));
        }
        let digest = match &ask.digest {
            Some(digest) => digest.clone(),
            None => {
                let request = Request::get(&["v1", "sandboxes", &id, "workspace", "diff"]);
                let now: WorkspaceDiff = self.client.document(request.query("limit", "1").query("lines", "false"))?;
                now.diff.digest
            }
        };
        let all = ask.everything || is_all(&paths, ask.hunks.len())?;
        paths.retain(|path| !path.is_top());
        let request = WorkspaceReject { digest, all, paths, hunks: ask.hunks.clone() };
        let version = version_of(&ask.of);
        self.post_to(&Which { word: Some(id), version }, &["workspace", "reject"], &request)
    }
}

fn version_of(of: &ReviewScope) -> Option<u64> {
    match of {
        ReviewScope::Sandbox { which, .. } => which.version,
        ReviewScope::Words(_) => None,
    }
}
