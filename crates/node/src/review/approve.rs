//! `approve`: lands chosen changes of a sandbox on its base. Either the reviewed changes land or none.

use super::{ReviewScope, commit, merge_base, receipt, reject};
use api::{BatchVerb, Change, ChangeSide, Diff, FileDiff, FileKind, LeftChange, Receipt, Rel};
use runtime::Node;
use runtime::denied;
use runtime::liveness;
use state::batch::Batch;
use state::landing::{self, LandingJob, PATIENCE};
use state::lock::{LockAttempt, LockResult};
use state::sandbox::{self, Anchored, Reviewed, Run, Sandbox};
use state::{Caller, State};
use state::{conflicted, landing_recovery};
use std::collections::BTreeSet;
use store::Kept;
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, Phase};
use workspace::diff::Options;
use workspace::exclude::Exclude;
use workspace::land::BaseLock;
use workspace::plan::Shape;
use workspace::select::{self, Chosen, Marked, Selection};
use workspace::{Anchors, Lock, Stack, goal, undo};

/// A request to approve.
pub struct ApproveChanges {
    /// With no path and nothing else chosen, all ordinary changes are.
    pub of: ReviewScope,
    /// Explicit approval of all ordinary changes; excludes paths.
    pub everything: bool,
    /// Single changes, each by its whole path; nothing below it is included.
    pub exact: Vec<Rel>,
    pub hunks: Vec<String>,
    /// Includes changes that would run on the reviewer's machine.
    pub runs_on_host: bool,
    pub seen: ReviewedDiff,
    /// Commit what lands, if the base is in a git repository.
    pub commit: Option<commit::CommitOptions>,
}

/// The diff that was reviewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReviewedDiff {
    /// The diff with this digest.
    Digest(String),
    /// The last diff that was shown as a whole.
    Last,
    /// No review: the current changes land unseen.
    Unseen,
}

/// Approves: locks the base, takes the diff anew, compares it with the reviewed one, and lands the chosen changes.
pub fn approve(node: &Node, caller: &Caller, ask: &ApproveChanges) -> Result<Receipt, Fault> {
    let state = node.states.open(caller)?;
    let (sandbox, paths) = state.store.read(|tx| ask.of.find(tx, caller))?;
    let wish = selection(paths, ask)?;
    let desk = LockedBase::open(node, &state, &sandbox.id)?;
    desk.approve(caller, ask, &wish).map_err(|fault| fault.subject(&sandbox.id))
}

/// Returns true if the whole diff of the sandbox has been shown to a person.
pub fn was_shown(node: &Node, caller: &Caller, of: &ReviewScope) -> Result<bool, Fault> {
    let state = node.states.open(caller)?;
    state.store.read(|tx| {
        let (sandbox, _) = of.find(tx, caller)?;
        Ok(tx.get::<Reviewed>(&sandbox.id)?.is_some())
    })
}

/// Returns the part of a diff that a request would approve; none if that is nothing.
pub fn selected_changes<'a>(
    diff: &'a Diff,
    paths: Vec<Rel>,
    ask: &ApproveChanges,
) -> Result<Option<Chosen<'a>>, Fault> {
    let wish = selection(paths, ask)?;
    // A withheld file is not in the diff; the approval itself checks whether it was shown.
    if !withheld_names(diff, &wish).is_empty() {
        return Ok(None);
    }
    let chosen = select::choose(diff, &wish, &Marked::default())?;
    Ok((!chosen.picks.is_empty()).then_some(chosen))
}

/// Resolves the sandbox and the paths of a request.
pub fn resolve(node: &Node, caller: &Caller, of: &ReviewScope) -> Result<(String, Vec<Rel>), Fault> {
    let state = node.states.open(caller)?;
    state.store.read(|tx| of.find(tx, caller).map(|(sandbox, paths)| (sandbox.id, paths)))
}

/// Turns paths and flags into a selection; an empty request means all ordinary changes.
fn selection(paths: Vec<Rel>, ask: &ApproveChanges) -> Result<Selection, Fault> {
    let chosen = !paths.is_empty() || !ask.exact.is_empty() || !ask.hunks.is_empty();
    if ask.everything && chosen {
        let fault = Fault::invalid("--all is given together with a selection of changes").phase(Phase::Admission);
        return Err(fault.hint("leave --all out, or the paths"));
    }
    let everything = ask.everything || (!chosen && !ask.runs_on_host);
    let (exact, hunks) = (ask.exact.clone(), ask.hunks.clone());
    Ok(Selection { everything, paths, exact, hunks, runs_on_host: ask.runs_on_host })
}

/// A sandbox whose base is locked against other landings.
pub(super) struct LockedBase<'a> {
    pub state: &'a State,
    pub sandbox: Kept<Sandbox>,
    anchors: Anchors,
    pub stack: Stack,
    pub held: BaseLock,
    /// The lock on the sandbox; absent while a command runs in it.
    lock: Option<Lock>,
}

impl LockedBase<'_> {
    /// Locks the base, recovers a batch that another process left unfinished there, and locks the sandbox unless a command runs in it.
    pub fn open<'a>(node: &Node, state: &'a State, id: &str) -> Result<LockedBase<'a>, Fault> {
        let first = state.store.read(|tx| tx.get::<Sandbox>(id))?.ok_or_else(|| sandbox::unknown(id))?;
        let stack = sandbox::stack(state, &first)?;
        let held = BaseLock::take(&stack.base, PATIENCE)?;
        landing_recovery::recover_held(state, &stack.base, first.record.base.to_str().unwrap_or_default(), &held)?;
        // The record is read again: another landing may have finished while we waited.
        let LockAttempt { sandbox, result } = liveness::lock_patiently(node, state, id)?;
        let lock = match result {
            LockResult::Locked(lock) => lock,
            LockResult::Busy if state.store.read(|tx| state::process::runs(tx, id))?.is_empty() => {
                return Err(reject::running(id));
            }
            LockResult::Busy => None,
        };
        let anchors = state.store.read(|tx| tx.get::<Anchored>(id))?;
        let anchors = anchors.map(|kept| kept.record.anchors).unwrap_or_default();
        let stack = sandbox::stack(state, &sandbox)?;
        Ok(LockedBase { state, sandbox, anchors, stack, held, lock })
    }

    /// Lands the chosen changes. Selection, drift and commit are checked before `landing::land`; after it, landed changes leave the
    /// workspace, the rest stays reviewed, and the commit is made.
    fn approve(&self, caller: &Caller, ask: &ApproveChanges, wish: &Selection) -> Result<Receipt, Fault> {
        let (mut diff, withheld, usual) = self.reviewed(&ask.seen, wish)?;
        denied::mark(&self.sandbox, caller, &mut diff)?;
        let marked = self.unsettled(&diff)?;
        let chosen = select::choose(&diff, wish, &marked)?;
        if chosen.picks.is_empty() {
            return Err(nothing(&diff, &chosen));
        }
        if let Some(fault) = withheld.iter().find_map(|name| would_land_in_part(name, &chosen)) {
            return Err(fault);
        }
        let (goals, mut notes) = goal::goals(&chosen.picks)?;
        notes.extend(drift_elsewhere(&diff, &chosen));
        notes.extend(wish.paths.iter().filter_map(|path| landed_in_part(path, &chosen)));
        let commit =
            ask.commit.as_ref().map(|wish| commit::prepare(caller, &self.sandbox, wish, &goals)).transpose()?;
        let batch = self.batch(caller, &diff, chosen.picks.len() as u64)?;
        let LockedBase { state, stack, held, .. } = self;
        let job = LandingJob { state, batch, base: &stack.base, view: Some(stack), undone: None, goals };
        let done = landing::land(job, held, &|at| self.shape_of_dir(at))?;
        notes.extend(done.notes);
        self.drop_landed(&done.plan, &chosen);
        let partly = chosen.picks.iter().filter(|pick| pick.hunks.is_some()).map(|pick| &pick.file.change.path);
        // Where it cannot be told, the rest has to be looked at again.
        let _ = self.keep_reviewed(&diff, &usual, &partly.collect());
        let commit = commit.map(|ready| commit::finish(state, caller, ready, &done.id, &done.plan)).transpose()?;
        notes.extend(commit.iter().flat_map(|committed| committed.notes.clone()));
        let ids = (done.id, self.sandbox.id.as_str());
        let receipt = receipt::of_landing(ids, &diff.digest, chosen, notes);
        Ok(Receipt {
            inside: commit.as_ref().map(|committed| committed.inside.clone()).unwrap_or_default(),
            commit: commit.and_then(|committed| committed.commit),
            ..receipt
        })
    }

    /// Records the rest of a diff as shown where the whole was shown and only this approval came between: every file that is left must be
    /// the one that was shown. `usual` is the digest before, `partly` are files of which hunks landed.
    fn keep_reviewed(&self, shown: &Diff, usual: &str, partly: &BTreeSet<&Rel>) -> Result<(), Fault> {
        let reviewed = self.state.store.read(|tx| tx.get::<Reviewed>(&self.sandbox.id))?;
        if reviewed.is_none_or(|kept| kept.record.digest != usual) {
            return Ok(());
        }
        let anchors = self.state.store.read(|tx| tx.get::<Anchored>(&self.sandbox.id))?;
        let anchors = anchors.map(|kept| kept.record.anchors).unwrap_or_default();
        let rest = self.diff_with(&anchors, Exclude::Artefacts)?;
        let was_shown = |file: &FileDiff| {
            let (path, now) = (&file.change.path, &file.change);
            let is_known = |entry: &ChangeSide| entry.kind != FileKind::File || entry.digest.is_some();
            let same = |before: &Change| {
                before.kind == now.kind
                    && before.after == now.after
                    && (before.before == now.before || partly.contains(path))
                    && !now.drifted
                    && now.before.iter().chain(&now.after).all(is_known)
            };
            shown.files.iter().any(|known| known.change.path == *path && same(&known.change))
        };
        if !rest.files.iter().all(was_shown) {
            return Ok(());
        }
        self.state.store.write_soon(|tx| match tx.get::<Reviewed>(&self.sandbox.id)? {
            Some(mut kept) if kept.record.digest == usual => {
                kept.record.digest.clone_from(&rest.digest);
                tx.change(kept).map(drop)
            }
            _ => Ok(()),
        })
    }

    /// The diff as it is now, if it is the one that was reviewed, with the names in the wish that are withheld and the digest of the usual
    /// diff. What is withheld takes part only where it was shown itself.
    pub fn reviewed(&self, seen: &ReviewedDiff, wish: &Selection) -> Result<(Diff, Vec<Rel>, String), Fault> {
        let usual = self.diff(Exclude::Artefacts)?;
        let digest = usual.digest.clone();
        let withheld = withheld_names(&usual, wish);
        let diff = self.as_reviewed(usual, seen, &withheld)?;
        Ok((diff, withheld, digest))
    }

    fn as_reviewed(&self, usual: Diff, seen: &ReviewedDiff, withheld: &[Rel]) -> Result<Diff, Fault> {
        let (shown, shown_all) = match seen {
            ReviewedDiff::Unseen if withheld.is_empty() => return Ok(usual),
            ReviewedDiff::Unseen => return Ok(only(self.diff(Exclude::Nothing)?, &usual, withheld)),
            ReviewedDiff::Digest(digest) => (digest.clone(), Some(digest.clone())),
            ReviewedDiff::Last => self.last_shown()?,
        };
        if shown == usual.digest && withheld.is_empty() {
            return Ok(usual);
        }
        let all = self.diff(Exclude::Nothing)?;
        match (shown_all == Some(all.digest.clone()), withheld.first()) {
            // A digest tells which of the two diffs was meant; plain paths mean the usual diff and the withheld files that they
            // name.
            (true, _) if matches!(seen, ReviewedDiff::Digest(_)) => Ok(all),
            (true, Some(_)) => Ok(only(all, &usual, withheld)),
            (true, None) => Ok(usual),
            (false, Some(name)) if shown == usual.digest => Err(not_shown(name)),
            _ => Err(self.changed_since(&shown, &usual.digest)?),
        }
    }

    /// Builds the conflict. If an approval of a part of the same diff caused the difference, the message says so and blames no
    /// other writer.
    fn changed_since(&self, reviewed: &str, now: &str) -> Result<Fault, Fault> {
        let batches = self.state.store.read(|tx| tx.list::<Batch>())?;
        let ours = |batch: &Batch| batch.sandbox == self.sandbox.id && batch.digest == reviewed;
        let what = match batches.iter().any(|kept| ours(&kept.record)) {
            true => "a part of this diff has landed since it was reviewed",
            false => "the workspace changed since it was reviewed",
        };
        let short = |digest: &str| digest.chars().take(12).collect::<String>();
        let message = format!("{what}: digest {} then, {} now", short(reviewed), short(now));
        Ok(Fault::new(ErrorKind::Conflict, message).hint("review again with `cofferdam diff`").phase(Phase::Review))
    }

    pub fn diff(&self, exclude: Exclude) -> Result<Diff, Fault> {
        self.diff_with(&self.anchors, exclude)
    }

    fn diff_with(&self, anchors: &Anchors, exclude: Exclude) -> Result<Diff, Fault> {
        let options = Options { exclude, ..Options::default() };
        let mut diff = workspace::diff::diff(&self.stack, anchors, &options)?;
        merge_base::settle(self.state, &self.sandbox.record, &self.stack, anchors, &mut diff)?;
        Ok(diff)
    }

    /// Returns the files that a rebase left in conflict and that are unresolved.
    fn unsettled(&self, diff: &Diff) -> Result<Marked, Fault> {
        let open = self.state.store.read(|tx| conflicted::unresolved(tx, &self.sandbox.id, diff))?;
        Ok(open.into_iter().map(|path| (path, "a rebase left it in conflict".to_owned())).collect())
    }

    /// Returns the digests of the last diff that was shown as a whole, and of the last with nothing withheld.
    fn last_shown(&self) -> Result<(String, Option<String>), Fault> {
        let shown = self.state.store.read(|tx| tx.get::<Reviewed>(&self.sandbox.id))?;
        shown.map(|kept| (kept.record.digest, kept.record.all)).ok_or_else(|| {
            let fault = Fault::new(ErrorKind::Conflict, "this diff has not been reviewed").phase(Phase::Review);
            fault.hint("look at it with `cofferdam diff`, or give --digest D of a diff that was reviewed elsewhere, or --unseen")
        })
    }

    pub fn batch(&self, caller: &Caller, diff: &Diff, files: u64) -> Result<Batch, Fault> {
        let runs = self.state.store.read(|tx| tx.list_in::<Run>(&self.sandbox.id))?;
        let mut runs: Vec<(u64, String)> = runs.into_iter().map(|run| (run.record.started_ms, run.id)).collect();
        runs.sort();
        let skipped = runs.len().saturating_sub(MOST_RUNS);
        let Sandbox { name, base, base_id, .. } = &self.sandbox.record;
        Ok(Batch {
            verb: BatchVerb::Approve,
            sandbox: self.sandbox.id.clone(),
            sandbox_name: name.clone(),
            runs: runs.into_iter().skip(skipped).map(|(_, id)| id).collect(),
            base: base.clone(),
            base_id: *base_id,
            actor: caller.user.clone(),
            at_ms: now_ms(),
            digest: diff.digest.clone(),
            files,
            undoes: None,
            undone_by: None,
            commit: None,
            inside: Vec::new(),
        })
    }

    /// Returns the shape of a directory that lands because of a file in it: the one it has in the workspace. No diff shows such a
    /// directory by itself, so it gets no more permissions than the base directory above it.
    pub fn shape_of_dir(&self, at: &Rel) -> Result<Shape, Fault> {
        let fail = |e: std::io::Error| Fault::internal(format!("{at}: {e}"));
        let found = self.stack.meta(at).map_err(fail)?;
        let mut above = at.split().map(|(above, _)| above);
        let shared = loop {
            let Some(dir) = above else { break 0 };
            if let Some(found) = self.stack.base.meta(&dir).map_err(fail)? {
                break found.mode & 0o022;
            }
            above = dir.split().map(|(above, _)| above);
        };
        let own = found.filter(|f| f.meta.kind == FileKind::Dir).map_or(0o755, |f| f.meta.mode);
        Ok(Shape::dir(own & (0o755 | shared)))
    }

    /// Drops landed changes from the top layer, as the base now shows them. While a command runs they stay, and equal the base.
    pub fn drop_landed(&self, plan: &workspace::plan::Plan, chosen: &Chosen<'_>) {
        if self.lock.is_none() {
            return;
        }
        let partly: BTreeSet<&Rel> =
            chosen.picks.iter().filter(|p| p.hunks.is_some()).map(|p| &p.file.change.path).collect();
        let whole = plan.items.iter().map(|item| &item.at).filter(|at| !partly.contains(at));
        // The landing is done either way; a leftover in the layer equals the base.
        let _ = undo::drop_landed(&self.stack, &whole.cloned().collect::<Vec<_>>());
    }
}

/// Most runs named in a batch.
const MOST_RUNS: usize = 16;

/// Returns the selected paths that match only withheld changes. Several withheld files may be listed as the directory that holds
/// them; that directory then names all that is shown of it.
fn withheld_names(usual: &Diff, wish: &Selection) -> Vec<Rel> {
    let held = |path: &Rel| usual.withheld.iter().any(|w| path.is_at_or_below(&w.path));
    let shown = |path: &Rel| {
        let meets = |change: &Change| change.path.is_at_or_below(path) || change.kind.from() == Some(path);
        usual.files.iter().any(|file| meets(&file.change))
    };
    let named = wish.paths.iter().chain(&wish.exact);
    named.filter(|path| !path.is_top() && held(path) && !shown(path)).cloned().collect()
}

/// Returns the usual diff, with the named withheld files.
fn only(mut all: Diff, usual: &Diff, named: &[Rel]) -> Diff {
    let shown: BTreeSet<&Rel> = usual.files.iter().map(|file| &file.change.path).collect();
    let is_named = |path: &Rel| named.iter().any(|name| path.is_at_or_below(name));
    all.files.retain(|file| shown.contains(&file.change.path) || is_named(&file.change.path));
    all
}

fn not_shown(name: &Rel) -> Fault {
    let message = format!("{name} is withheld from the diff, so its content has not been reviewed");
    let hint = "look at it with `cofferdam diff --all`, then approve it by its path";
    Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Review)
}

fn drift_elsewhere(diff: &Diff, chosen: &Chosen<'_>) -> Option<String> {
    let picked: BTreeSet<&Rel> = chosen.picks.iter().map(|pick| &pick.file.change.path).collect();
    let others = diff.files.iter().filter(|file| file.change.drifted && !picked.contains(&file.change.path)).count();
    (others > 0).then(|| {
        format!("{others} files that stay were changed in the base since; `cofferdam rebase` merges those changes")
    })
}

/// A withheld tree lands whole or not at all: a Python environment without its `pyvenv.cfg` is no use.
fn would_land_in_part(dir: &Rel, chosen: &Chosen<'_>) -> Option<Fault> {
    let is_below = |path: &Rel| path != dir && path.is_at_or_below(dir);
    let stays = |left: &&LeftChange| is_below(&left.path) && left.why.ends_with(select::NEEDS_NAME);
    let lands = chosen.picks.iter().any(|pick| is_below(&pick.file.change.path));
    let staying: Vec<&LeftChange> = chosen.left.iter().filter(stays).collect();
    let first = staying.first().filter(|_| lands)?;
    let count = staying.len();
    let message =
        format!("{dir} would land in part: {count} of its files would run on your machine, such as {}", first.path);
    let hint = format!("`approve --runs-on-host` with {dir} lands all of it; nothing has landed");
    Some(Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Review))
}

/// Warns about a requested directory that lands without some of its files, which may break it: a Python environment needs its
/// `pyvenv.cfg`. Naming the directory does not select those files.
fn landed_in_part(dir: &Rel, chosen: &Chosen<'_>) -> Option<String> {
    let is_below = |path: &Rel| path != dir && path.is_at_or_below(dir);
    let stays = |left: &&LeftChange| is_below(&left.path) && left.why.ends_with(select::NEEDS_NAME);
    let lands = chosen.picks.iter().any(|pick| is_below(&pick.file.change.path));
    let staying = chosen.left.iter().filter(stays).count();
    (lands && staying > 0).then(|| {
        format!("{dir} landed in part: {staying} of its files stay, because they would run on your machine; review again with `cofferdam diff`, then `approve --runs-on-host {dir}` lets them through as well")
    })
}

fn nothing(diff: &Diff, chosen: &Chosen<'_>) -> Fault {
    if diff.files.is_empty() {
        return Fault::new(ErrorKind::NotFound, "nothing changed")
            .hint("`cofferdam diff --all` shows what is withheld")
            .phase(Phase::Review);
    }
    let named = chosen.left.iter().take(5).map(|left| format!("{}: {}", left.path, left.why)).collect::<Vec<_>>();
    let fault = Fault::new(ErrorKind::Conflict, format!("nothing can land: {}", named.join("; ")));
    fault.hint("name each file that is to land, or add --runs-on-host").phase(Phase::Review)
}
