//! diff, prune, approve, reject, undo, rebase, conflicts, provenance.

use super::remote::{Pages, Remote};
use super::{Engine, unsupported_by_daemon};
use crate::transport::Request;
use crate::wire::{BatchUndo, CommitWish, SeenBy, WorkspaceApprove, WorkspaceRebase, WorkspaceReject, WorkspaceShown};
use node::list::Whole;
use node::review::approve::{self, Seen, was_shown};
use node::review::diff::{self, Answer, MOST_FILES, Reader};
use node::review::{
    ChangeKind, Of, Receipt, Rel, check_named, conflicts, provenance, prune, rebase, reject, rel_of, told_apart, undo,
};
use node::sandbox::Which;
use std::ffi::OsStr;
use std::io::Write;
use terms::{Changes, ErrorKind, Fault, Phase};

impl Engine {
    pub fn diff(&self, ask: &diff::Ask) -> Result<Answer, Fault> {
        match self {
            Engine::Local(node, caller) => diff::diff(node, caller, ask),
            Engine::Remote(remote) => remote.diff(ask),
        }
    }

    /// Writes the diff as a patch that `git apply` takes.
    pub fn patch(&self, ask: &diff::Ask, out: &mut impl Write) -> Result<(), Fault> {
        match self {
            Engine::Local(node, caller) => diff::diff(node, caller, ask)?.patch(out),
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

    pub fn was_shown(&self, of: &Of) -> Result<bool, Fault> {
        match self {
            Engine::Local(node, caller) => was_shown(node, caller, of),
            Engine::Remote(remote) => {
                let (id, _) = remote.meant(of)?;
                remote.get(&["v1", "sandboxes", &id, "workspace", "shown"]).map(|shown: WorkspaceShown| shown.shown)
            }
        }
    }

    /// Returns the sandbox that words mean, and the paths in it.
    pub fn meant(&self, of: &Of) -> Result<(String, Vec<Rel>), Fault> {
        match self {
            Engine::Local(node, caller) => approve::meant(node, caller, of),
            Engine::Remote(remote) => remote.meant(of),
        }
    }

    pub fn approve(&self, ask: &approve::Ask) -> Result<Receipt, Fault> {
        match self {
            Engine::Local(node, caller) => approve::approve(node, caller, ask),
            Engine::Remote(remote) => remote.approve(ask),
        }
    }

    pub fn reject(&self, ask: &reject::Ask) -> Result<reject::Answer, Fault> {
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

    pub fn rebase(&self, ask: &rebase::Ask) -> Result<rebase::Answer, Fault> {
        match self {
            Engine::Local(node, caller) => rebase::rebase(node, caller, ask),
            Engine::Remote(remote) => {
                remote.post_to(&ask.which, &["workspace", "rebase"], &WorkspaceRebase { dry_run: ask.dry_run })
            }
        }
    }

    pub fn conflicts(&self, ask: &conflicts::Ask) -> Result<conflicts::Answer, Fault> {
        match self {
            Engine::Local(node, caller) => conflicts::conflicts(node, caller, ask),
            Engine::Remote(remote) => {
                remote.get(&["v1", "sandboxes", &remote.word(ask.sandbox.as_deref())?, "workspace", "conflicts"])
            }
        }
    }

    pub fn provenance(&self, path: &OsStr) -> Result<provenance::Answer, Fault> {
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

    pub fn prune(&self, which: &Which) -> Result<prune::Answer, Fault> {
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
            let why = "the workspace's top is all of it already";
            Err(unsupported_by_daemon(
                "a choice beside the whole workspace",
                why,
                "choose the one first, and then the other",
            ))
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
    fn meant(&self, of: &Of) -> Result<(String, Vec<Rel>), Fault> {
        match of {
            Of::Sandbox { which, paths } => Ok((self.word(which.word.as_deref())?, paths.clone())),
            Of::Words(words) => {
                let (found, words): (Whole, _) = told_apart(words, |word| self.inspect(word))?;
                let rel = |word| rel_of(word, &found.sandbox.base, &self.caller.cwd);
                let paths = words.iter().map(|word| rel(word)).collect::<Result<_, _>>()?;
                Ok((found.id, paths))
            }
        }
    }

    /// Reads all pages of a diff.
    fn diff(&self, ask: &diff::Ask) -> Result<Answer, Fault> {
        if ask.page.is_some() {
            return Err(unsupported_by_daemon(
                "a part of a diff",
                "its parts come one after the other",
                "ask for all of it",
            ));
        }
        let (id, paths) = self.meant(&ask.of)?;
        let page = |after: Option<&String>| -> Result<Answer, Fault> {
            let request =
                Request::get(&["v1", "sandboxes", &id, "workspace", "diff"]).query("limit", MOST_FILES.to_string());
            let request = with_paths(request, &paths).query_if("after", after);
            let request = request.query_if("all", ask.everything.then_some("true"));
            self.client.document(request.query_if("shown", (ask.reader == Reader::Person).then_some("true")))
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
            let page: Answer = self.client.document(request.query_if("after", after.as_ref()))?;
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

    fn approve(&self, ask: &approve::Ask) -> Result<Receipt, Fault> {
        let (id, mut paths) = self.meant(&ask.of)?;
        let all = is_all(&paths, ask.exact.len() + ask.hunks.len())?;
        paths.retain(|path| !path.is_top());
        let nothing = paths.is_empty() && ask.exact.is_empty() && ask.hunks.is_empty() && !ask.runs_on_host;
        let (digest, seen) = match &ask.seen {
            Seen::Digest(digest) => (Some(digest.clone()), SeenBy::Digest),
            Seen::Last => (None, SeenBy::Last),
            Seen::Unseen => (None, SeenBy::Unseen),
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
            commit: ask.commit.as_ref().map(|wish| CommitWish { message: wish.message.clone(), author: wish.author }),
        };
        let version = version_of(&ask.of);
        self.post_to(&Which { word: Some(id), version }, &["workspace", "approve"], &request)
    }

    /// Rejects changes. A daemon requires the digest of the diff that was seen; without one, the current diff is taken.
    fn reject(&self, ask: &reject::Ask) -> Result<reject::Answer, Fault> {
        let (id, mut paths) = self.meant(&ask.of)?;
        if paths.is_empty() && ask.hunks.is_empty() && !ask.everything {
            let fault = Fault::invalid("nothing was chosen to be rejected").phase(Phase::Admission);
            return Err(fault.hint("give paths, --hunk ID or --all"));
        }
        let digest = match &ask.digest {
            Some(digest) => digest.clone(),
            None => {
                let request = Request::get(&["v1", "sandboxes", &id, "workspace", "diff"]);
                let now: Answer = self.client.document(request.query("limit", "1").query("lines", "false"))?;
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

fn version_of(of: &Of) -> Option<u64> {
    match of {
        Of::Sandbox { which, .. } => which.version,
        Of::Words(_) => None,
    }
}
