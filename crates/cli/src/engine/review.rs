//! diff, prune, approve, reject, undo, rebase, conflicts, provenance.

use super::there::{Parts, There};
use super::{Engine, not_there};
use client::Ask;
use node::lifecycle::list::Whole;
use node::lifecycle::stop::Which;
use node::review::approve::{self, Seen, was_shown};
use node::review::diff::{self, Answer, MOST_FILES, Reader};
use node::review::{
    ChangeKind, Of, Receipt, Rel, check_named, conflicts, provenance, prune, rebase, reject, rel_of, told_apart, undo,
};
use server::wire::{Approve, CommitWish, Rebase, Reject, SeenBy, Shown, UndoAny};
use std::ffi::OsStr;
use std::io::Write;
use terms::{Changes, ErrorKind, Fault, Phase};

impl Engine {
    pub fn diff(&self, ask: &diff::Ask) -> Result<Answer, Fault> {
        match self {
            Engine::Here(caller) => diff::diff(caller, ask),
            Engine::There(there) => there.diff(ask),
        }
    }

    /// The diff as a patch that `git apply` takes.
    pub fn patch(&self, ask: &diff::Ask, out: &mut impl Write) -> Result<(), Fault> {
        match self {
            Engine::Here(caller) => diff::diff(caller, ask)?.patch(out),
            Engine::There(there) => {
                // Whoever is given a patch is shown the diff.
                let seen = there.diff(ask)?;
                let request = chosen(Ask::get(&["v1", "sandboxes", &seen.sandbox, "workspace", "patch"]), &seen.only);
                let headers = there.client.bytes(request.query_if("all", ask.everything.then_some("true")), out)?;
                match headers
                    .get("cofferdam-digest")
                    .is_some_and(|digest| digest.as_bytes() == seen.diff.digest.as_bytes())
                {
                    true => Ok(()),
                    false => Err(moved(&seen.sandbox)),
                }
            }
        }
    }

    pub fn was_shown(&self, of: &Of) -> Result<bool, Fault> {
        match self {
            Engine::Here(caller) => was_shown(caller, of),
            Engine::There(there) => {
                let (id, _) = there.of(of)?;
                there.get(&["v1", "sandboxes", &id, "workspace", "shown"]).map(|shown: Shown| shown.shown)
            }
        }
    }

    /// The sandbox that is meant, and the paths in it.
    pub fn meant(&self, of: &Of) -> Result<(String, Vec<Rel>), Fault> {
        match self {
            Engine::Here(caller) => approve::meant(caller, of),
            Engine::There(there) => there.of(of),
        }
    }

    pub fn approve(&self, ask: &approve::Ask) -> Result<Receipt, Fault> {
        match self {
            Engine::Here(caller) => approve::approve(caller, ask),
            Engine::There(there) => there.approve(ask),
        }
    }

    pub fn reject(&self, ask: &reject::Ask) -> Result<reject::Answer, Fault> {
        match self {
            Engine::Here(caller) => reject::reject(caller, ask),
            Engine::There(there) => there.reject(ask),
        }
    }

    pub fn undo(&self, word: Option<&str>) -> Result<Receipt, Fault> {
        match self {
            Engine::Here(caller) => undo::undo(caller, word),
            Engine::There(there) => {
                let of = word.map_or_else(|| there.here(), |word| Ok(word.to_owned()))?;
                there.post(&["v1", "undo"], &UndoAny { of })
            }
        }
    }

    pub fn rebase(&self, ask: &rebase::Ask) -> Result<rebase::Answer, Fault> {
        match self {
            Engine::Here(caller) => rebase::rebase(caller, ask),
            Engine::There(there) => there.to(&ask.which, &["workspace", "rebase"], &Rebase { dry_run: ask.dry_run }),
        }
    }

    pub fn conflicts(&self, ask: &conflicts::Ask) -> Result<conflicts::Answer, Fault> {
        match self {
            Engine::Here(caller) => conflicts::conflicts(caller, ask),
            Engine::There(there) => {
                there.get(&["v1", "sandboxes", &there.word(ask.sandbox.as_deref())?, "workspace", "conflicts"])
            }
        }
    }

    pub fn provenance(&self, path: &OsStr) -> Result<provenance::Answer, Fault> {
        match self {
            Engine::Here(caller) => provenance::provenance(caller, path),
            Engine::There(there) => {
                check_named(path)?;
                let whole = there.caller.cwd.join(path);
                there
                    .client
                    .document(Ask::get(&["v1", "provenance"]).query("path", whole.as_os_str().as_encoded_bytes()))
            }
        }
    }

    pub fn prune(&self, which: &Which) -> Result<prune::Answer, Fault> {
        match self {
            Engine::Here(caller) => prune::prune(caller, which),
            Engine::There(there) => {
                let word = there.word(which.word.as_deref())?;
                let ask = Ask::post(&["v1", "sandboxes", &word, "workspace", "prune"]);
                there.client.document(ask.if_version(which.version))
            }
        }
    }
}

fn chosen(ask: Ask, paths: &[Rel]) -> Ask {
    let spelled = |path: &Rel| if path.is_top() { b".".to_vec() } else { path.as_bytes().to_vec() };
    paths.iter().fold(ask, |ask, path| ask.query("path", spelled(path)))
}

/// Whether the top is what was chosen, which a daemon calls all. It is chosen alone, or nothing tells what beside it was named.
fn is_all(paths: &[Rel], others: usize) -> Result<bool, Fault> {
    match (paths.iter().any(Rel::is_top), paths.len() + others) {
        (true, 1) => Ok(true),
        (true, _) => {
            let why = "the workspace's top is all of it already";
            Err(not_there("a choice beside the whole workspace", why, "choose the one first, and then the other"))
        }
        (false, _) => Ok(false),
    }
}

fn moved(sandbox: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, "the workspace changed while it was read").phase(Phase::Review);
    fault.hint("try again").subject(sandbox)
}

impl There {
    /// The sandbox's id, and the paths as they are called in it.
    fn of(&self, of: &Of) -> Result<(String, Vec<Rel>), Fault> {
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

    /// All pages of a diff as one.
    fn diff(&self, ask: &diff::Ask) -> Result<Answer, Fault> {
        if ask.page.is_some() {
            return Err(not_there("a part of a diff", "its parts come one after the other", "ask for all of it"));
        }
        let (id, paths) = self.of(&ask.of)?;
        let page = |after: Option<&String>| -> Result<Answer, Fault> {
            let request =
                Ask::get(&["v1", "sandboxes", &id, "workspace", "diff"]).query("limit", MOST_FILES.to_string());
            let request = chosen(request, &paths).query_if("after", after);
            let request = request.query_if("all", ask.everything.then_some("true"));
            self.client.document(request.query_if("shown", (ask.reader == Reader::Person).then_some("true")))
        };
        let (mut whole, mut parts) = (page(None)?, Parts::default());
        while let Some(next) = whole.next.take() {
            let more = page(Some(&next))?;
            parts.go_on(Some(&next), more.next.as_ref())?;
            if more.diff.digest != whole.diff.digest {
                return Err(moved(&whole.sandbox));
            }
            whole.diff.files.extend(more.diff.files);
            whole.next = more.next;
        }
        Ok(whole)
    }

    /// How much a sandbox holds, with all that is usually withheld.
    pub fn changes(&self, which: &Which) -> Result<Changes, Fault> {
        let word = self.word(which.word.as_deref())?;
        let (mut count, mut after, mut parts) = (Changes::default(), None, Parts::default());
        loop {
            let ask = Ask::get(&["v1", "sandboxes", &word, "workspace", "diff"]).query("all", "true");
            let ask = ask.query("lines", "false").query("limit", MOST_FILES.to_string());
            let page: Answer = self.client.document(ask.query_if("after", after.as_ref()))?;
            for file in &page.diff.files {
                match file.change.kind {
                    ChangeKind::Added => count.added += 1,
                    ChangeKind::Deleted => count.deleted += 1,
                    // One went, and another came.
                    ChangeKind::Renamed { .. } => (count.added, count.deleted) = (count.added + 1, count.deleted + 1),
                    ChangeKind::Modified | ChangeKind::Mode | ChangeKind::Xattr | ChangeKind::Type => {
                        count.modified += 1
                    }
                }
            }
            if page.next.is_none() {
                return Ok(count);
            }
            parts.go_on(after.as_ref(), page.next.as_ref())?;
            after = page.next;
        }
    }

    fn approve(&self, ask: &approve::Ask) -> Result<Receipt, Fault> {
        let (id, mut paths) = self.of(&ask.of)?;
        let all = is_all(&paths, ask.exact.len() + ask.hunks.len())?;
        paths.retain(|path| !path.is_top());
        let nothing = paths.is_empty() && ask.exact.is_empty() && ask.hunks.is_empty() && !ask.runs_on_host;
        let (digest, seen) = match &ask.seen {
            Seen::Digest(digest) => (Some(digest.clone()), SeenBy::Digest),
            Seen::Last => (None, SeenBy::Last),
            Seen::Unseen => (None, SeenBy::Unseen),
        };
        let wish = Approve {
            digest,
            seen,
            // Nothing chosen means all that is ordinary.
            all: ask.everything || all || nothing,
            paths,
            exact: ask.exact.clone(),
            hunks: ask.hunks.clone(),
            runs_on_host: ask.runs_on_host,
            commit: ask.commit.as_ref().map(|wish| CommitWish { message: wish.message.clone(), author: wish.author }),
        };
        let version = version_of(&ask.of);
        self.to(&Which { word: Some(id), version }, &["workspace", "approve"], &wish)
    }

    /// A daemon wants to know what was seen; where nobody says, it is what is there now.
    fn reject(&self, ask: &reject::Ask) -> Result<reject::Answer, Fault> {
        let (id, mut paths) = self.of(&ask.of)?;
        if paths.is_empty() && ask.hunks.is_empty() && !ask.everything {
            let fault = Fault::invalid("nothing was chosen to be rejected").phase(Phase::Admission);
            return Err(fault.hint("give paths, --hunk ID or --all"));
        }
        let digest = match &ask.digest {
            Some(digest) => digest.clone(),
            None => {
                let request = Ask::get(&["v1", "sandboxes", &id, "workspace", "diff"]);
                let now: Answer = self.client.document(request.query("limit", "1").query("lines", "false"))?;
                now.diff.digest
            }
        };
        let all = ask.everything || is_all(&paths, ask.hunks.len())?;
        paths.retain(|path| !path.is_top());
        let wish = Reject { digest, all, paths, hunks: ask.hunks.clone() };
        let version = version_of(&ask.of);
        self.to(&Which { word: Some(id), version }, &["workspace", "reject"], &wish)
    }
}

fn version_of(of: &Of) -> Option<u64> {
    match of {
        Of::Sandbox { which, .. } => which.version,
        Of::Words(_) => None,
    }
}
