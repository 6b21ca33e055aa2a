//! `approve`: lets chosen changes of a sandbox through to its base. What lands is what was reviewed, or nothing.

use super::receipt::{LandedChange, Receipt, bounded};
use super::{Of, Reviewed, commit, merge_base, reject};
use runtime::Node;
use runtime::denied;
use runtime::liveness;
use state::batch::{Batch, Verb};
use state::landing::{self, Job, PATIENCE};
use state::lock::{LockAttempt, LockResult};
use state::sandbox::{self, Anchored, Run, Sandbox};
use state::{Caller, State};
use state::{conflicted, landing_recovery};
use std::collections::BTreeSet;
use store::Kept;
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use workspace::diff::Options;
use workspace::exclude::Exclude;
use workspace::land::Held;
use workspace::plan::Shape;
use workspace::select::{self, Chosen, Marked, Selection};
use workspace::{Anchors, Change, Diff, FileKind, Lock, Rel, Stack, goal, undo};

pub struct Ask {
    /// With no path and nothing else chosen, all ordinary changes are.
    pub of: Of,
    /// All ordinary changes, said in so many words; no path is then given.
    pub everything: bool,
    /// Single changes, each by the whole path of its own; nothing below it is meant.
    pub exact: Vec<Rel>,
    pub hunks: Vec<String>,
    /// Also what would run on the reviewer's machine.
    pub runs_on_host: bool,
    pub seen: Seen,
    /// Commit what lands, if the base is in a git repository.
    pub commit: Option<commit::Wish>,
}

/// What was reviewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The diff with this digest.
    Digest(String),
    /// The last that was shown as a whole.
    Last,
    /// Nothing; whatever is there shall land.
    Unseen,
}

pub fn approve(node: &Node, caller: &Caller, ask: &Ask) -> Result<Receipt, Fault> {
    let state = node.states.open(caller)?;
    let (sandbox, paths) = state.store.read(|tx| ask.of.find(tx, caller))?;
    let wish = selection(paths, ask)?;
    let desk = Desk::open(node, &state, &sandbox.id)?;
    desk.approve(caller, ask, &wish).map_err(|fault| fault.subject(&sandbox.id))
}

/// Whether somebody has been shown the whole diff of the sandbox that is meant.
pub fn was_shown(node: &Node, caller: &Caller, of: &Of) -> Result<bool, Fault> {
    let state = node.states.open(caller)?;
    state.store.read(|tx| {
        let (sandbox, _) = of.find(tx, caller)?;
        Ok(tx.get::<Reviewed>(&sandbox.id)?.is_some())
    })
}

/// What an ask would let through of a diff, with the paths that it means; none where that is nothing.
pub fn covered<'a>(diff: &'a Diff, paths: Vec<Rel>, ask: &Ask) -> Result<Option<Chosen<'a>>, Fault> {
    let wish = selection(paths, ask)?;
    // What is withheld is not in the diff; whether it was shown, the approval says.
    if !withheld_names(diff, &wish).is_empty() {
        return Ok(None);
    }
    let chosen = select::choose(diff, &wish, &Marked::default())?;
    Ok((!chosen.picks.is_empty()).then_some(chosen))
}

/// The sandbox that is meant, and the paths in it.
pub fn meant(node: &Node, caller: &Caller, of: &Of) -> Result<(String, Vec<Rel>), Fault> {
    let state = node.states.open(caller)?;
    state.store.read(|tx| of.find(tx, caller).map(|(sandbox, paths)| (sandbox.id, paths)))
}

/// Paths and flags as a selection; nothing said means all that is ordinary.
fn selection(paths: Vec<Rel>, ask: &Ask) -> Result<Selection, Fault> {
    let chosen = !paths.is_empty() || !ask.exact.is_empty() || !ask.hunks.is_empty();
    if ask.everything && chosen {
        let fault = Fault::invalid("all changes are asked for, and some are chosen").phase(Phase::Admission);
        return Err(fault.hint("leave --all out, or the paths"));
    }
    let everything = ask.everything || (!chosen && !ask.runs_on_host);
    let (exact, hunks) = (ask.exact.clone(), ask.hunks.clone());
    Ok(Selection { everything, paths, exact, hunks, runs_on_host: ask.runs_on_host })
}

/// A sandbox whose base is held: nobody else lands there meanwhile, and nothing is in between.
struct Desk<'a> {
    state: &'a State,
    sandbox: Kept<Sandbox>,
    anchors: Anchors,
    stack: Stack,
    held: Held,
    /// None while a command runs in the sandbox.
    lock: Option<Lock>,
}

impl Desk<'_> {
    fn open<'a>(node: &Node, state: &'a State, id: &str) -> Result<Desk<'a>, Fault> {
        let first = state.store.read(|tx| tx.get::<Sandbox>(id))?.ok_or_else(|| sandbox::unknown(id))?;
        let stack = sandbox::stack(state, &first)?;
        let held = Held::take(&stack.base, PATIENCE)?;
        landing_recovery::recover_held(state, &stack.base, first.record.base.to_str().unwrap_or_default(), &held)?;
        // What others landed while we waited is known only now.
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
        Ok(Desk { state, sandbox, anchors, stack, held, lock })
    }

    fn approve(&self, caller: &Caller, ask: &Ask, wish: &Selection) -> Result<Receipt, Fault> {
        let mut diff = self.reviewed(&ask.seen, wish)?;
        denied::mark(&self.sandbox, caller, &mut diff)?;
        let marked = self.unsettled(&diff)?;
        let chosen = select::choose(&diff, wish, &marked)?;
        if chosen.picks.is_empty() {
            return Err(nothing(&diff, &chosen));
        }
        let (goals, mut notes) = goal::goals(&chosen.picks)?;
        notes.extend(drift_elsewhere(&diff, &chosen));
        notes.extend(wish.paths.iter().filter_map(|path| landed_in_part(path, &chosen)));
        let commit =
            ask.commit.as_ref().map(|wish| commit::prepare(caller, &self.sandbox, wish, &goals)).transpose()?;
        let batch = self.batch(caller, &diff, chosen.picks.len() as u64)?;
        let Desk { state, stack, held, .. } = self;
        let job = Job { state, batch, base: &stack.base, view: Some(stack), undone: None, goals };
        let done = landing::land(job, held, &|at| self.shape_of_dir(at))?;
        notes.extend(done.notes);
        self.drop_landed(&done.plan, &chosen);
        let commit = commit.map(|ready| commit::finish(state, caller, ready, &done.id, &done.plan)).transpose()?;
        notes.extend(commit.iter().flat_map(|committed| committed.notes.clone()));
        let landed = LandedChange::all(&chosen);
        let (left, left_more) = bounded(chosen.left);
        Ok(Receipt {
            protocol_version: PROTOCOL_VERSION,
            success: true,
            batch: done.id,
            sandbox: self.sandbox.id.clone(),
            digest: diff.digest.clone(),
            landed,
            left,
            left_more,
            notes,
            inside: commit.as_ref().map(|committed| committed.inside.clone()).unwrap_or_default(),
            commit: commit.and_then(|committed| committed.commit),
            undoes: None,
        })
    }

    /// The diff as it is now, if it is the one that was reviewed. What is withheld takes part only where it was shown itself.
    fn reviewed(&self, seen: &Seen, wish: &Selection) -> Result<Diff, Fault> {
        let usual = self.diff(Exclude::Artefacts)?;
        let withheld = withheld_names(&usual, wish);
        let (shown, shown_all) = match seen {
            Seen::Unseen if withheld.is_empty() => return Ok(usual),
            Seen::Unseen => return Ok(only(self.diff(Exclude::Nothing)?, &usual, &withheld)),
            Seen::Digest(digest) => (digest.clone(), Some(digest.clone())),
            Seen::Last => self.last_shown()?,
        };
        if shown == usual.digest && withheld.is_empty() {
            return Ok(usual);
        }
        let all = self.diff(Exclude::Nothing)?;
        match (shown_all == Some(all.digest.clone()), withheld.first()) {
            // A digest says which of the two was meant; words alone mean what is not withheld, but for what they name.
            (true, _) if matches!(seen, Seen::Digest(_)) => Ok(all),
            (true, Some(_)) => Ok(only(all, &usual, &withheld)),
            (true, None) => Ok(usual),
            (false, Some(name)) if shown == usual.digest => Err(not_shown(name)),
            _ => Err(self.changed_since(&shown, &usual.digest)?),
        }
    }

    /// Who approved a part of a diff knows why the rest is another one, and need not look for somebody who changed it.
    fn changed_since(&self, reviewed: &str, now: &str) -> Result<Fault, Fault> {
        let batches = self.state.store.read(|tx| tx.list::<Batch>())?;
        let ours = |batch: &Batch| batch.sandbox == self.sandbox.id && batch.digest == reviewed;
        let what = match batches.iter().any(|kept| ours(&kept.record)) {
            true => "a part of this diff has landed since it was reviewed",
            false => "the workspace changed since it was reviewed",
        };
        let short = |digest: &str| digest.chars().take(12).collect::<String>();
        let message = format!("{what}: digest {} then, {} now", short(reviewed), short(now));
        Ok(Fault::new(ErrorKind::Conflict, message).hint("look again with `cofferdam diff`").phase(Phase::Review))
    }

    fn diff(&self, exclude: Exclude) -> Result<Diff, Fault> {
        let options = Options { exclude, ..Options::default() };
        let mut diff = workspace::diff::diff(&self.stack, &self.anchors, &options)?;
        merge_base::settle(self.state, &self.sandbox.record, &self.stack, &self.anchors, &mut diff)?;
        Ok(diff)
    }

    /// Files that a rebase left in conflict, and that nobody has settled.
    fn unsettled(&self, diff: &Diff) -> Result<Marked, Fault> {
        let open = self.state.store.read(|tx| conflicted::unresolved(tx, &self.sandbox.id, diff))?;
        Ok(open.into_iter().map(|path| (path, "a rebase left it in conflict".to_owned())).collect())
    }

    /// The digests of the last diff that was shown as a whole, and of the last with nothing withheld.
    fn last_shown(&self) -> Result<(String, Option<String>), Fault> {
        let shown = self.state.store.read(|tx| tx.get::<Reviewed>(&self.sandbox.id))?;
        shown.map(|kept| (kept.record.digest, kept.record.all)).ok_or_else(|| {
            let fault = Fault::new(ErrorKind::Conflict, "nobody has been shown this diff").phase(Phase::Review);
            fault.hint("look at it with `cofferdam diff`, or give --digest D of a diff that was reviewed elsewhere, or --unseen")
        })
    }

    fn batch(&self, caller: &Caller, diff: &Diff, files: u64) -> Result<Batch, Fault> {
        let runs = self.state.store.read(|tx| tx.list_in::<Run>(&self.sandbox.id))?;
        let mut runs: Vec<(u64, String)> = runs.into_iter().map(|run| (run.record.started_ms, run.id)).collect();
        runs.sort();
        let skipped = runs.len().saturating_sub(MOST_RUNS);
        let Sandbox { name, base, base_id, .. } = &self.sandbox.record;
        Ok(Batch {
            verb: Verb::Approve,
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

    /// A directory that comes because something in it does looks as it does in the workspace. No diff shows it by itself, so it
    /// gives nobody more rights than the directory of the base that it comes into.
    fn shape_of_dir(&self, at: &Rel) -> Result<Shape, Fault> {
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

    /// What has landed no longer needs to be kept apart. While a command runs it stays, and equals the base.
    fn drop_landed(&self, plan: &workspace::plan::Plan, chosen: &Chosen<'_>) {
        if self.lock.is_none() {
            return;
        }
        let partly: BTreeSet<&Rel> =
            chosen.picks.iter().filter(|p| p.hunks.is_some()).map(|p| &p.file.change.path).collect();
        let whole = plan.items.iter().map(|item| &item.at).filter(|at| !partly.contains(at));
        // It has landed either way; what is left behind is no change.
        let _ = undo::drop_landed(&self.stack, &whole.cloned().collect::<Vec<_>>());
    }
}

/// So many runs are named in a batch.
const MOST_RUNS: usize = 16;

/// Paths of a wish that meet nothing but what a diff withholds. Several files that are withheld may be told by the directory
/// that they are in; that directory names what is shown of it.
fn withheld_names(usual: &Diff, wish: &Selection) -> Vec<Rel> {
    let held = |path: &Rel| usual.withheld.iter().any(|w| path.is_at_or_below(&w.path));
    let shown = |path: &Rel| {
        let meets = |change: &Change| change.path.is_at_or_below(path) || change.kind.from() == Some(path);
        usual.files.iter().any(|file| meets(&file.change))
    };
    let named = wish.paths.iter().chain(&wish.exact);
    named.filter(|path| !path.is_top() && held(path) && !shown(path)).cloned().collect()
}

/// What the usual diff shows, and of what it withholds only what is named.
fn only(mut all: Diff, usual: &Diff, named: &[Rel]) -> Diff {
    let shown: BTreeSet<&Rel> = usual.files.iter().map(|file| &file.change.path).collect();
    let is_named = |path: &Rel| named.iter().any(|name| path.is_at_or_below(name));
    all.files.retain(|file| shown.contains(&file.change.path) || is_named(&file.change.path));
    all
}

fn not_shown(name: &Rel) -> Fault {
    let message = format!("{name} is withheld from the diff, and nobody has been shown what is in it");
    let hint = "look at it with `cofferdam diff --all`, then approve it by its path";
    Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Review)
}

fn drift_elsewhere(diff: &Diff, chosen: &Chosen<'_>) -> Option<String> {
    let picked: BTreeSet<&Rel> = chosen.picks.iter().map(|pick| &pick.file.change.path).collect();
    let others = diff.files.iter().filter(|file| file.change.drifted && !picked.contains(&file.change.path)).count();
    (others > 0)
        .then(|| format!("{others} files that stay were changed in the base since; `cofferdam rebase` takes that in"))
}

/// A directory that was asked for and lands without some of its files may not work as it is: a Python environment needs its
/// `pyvenv.cfg`. Naming the directory does not name them.
fn landed_in_part(dir: &Rel, chosen: &Chosen<'_>) -> Option<String> {
    let is_below = |path: &Rel| path != dir && path.is_at_or_below(dir);
    let stays = |left: &&select::Left| is_below(&left.path) && left.why.ends_with(select::NEEDS_NAME);
    let lands = chosen.picks.iter().any(|pick| is_below(&pick.file.change.path));
    let staying = chosen.left.iter().filter(stays).count();
    (lands && staying > 0).then(|| {
        format!("{dir} landed in part: {staying} of its files stay, because they would run on your machine; look again with `cofferdam diff`, then `approve --runs-on-host {dir}` lets them through as well")
    })
}

fn nothing(diff: &Diff, chosen: &Chosen<'_>) -> Fault {
    if diff.files.is_empty() {
        return Fault::new(ErrorKind::NotFound, "nothing changed")
            .hint("`cofferdam diff --all` shows what is withheld")
            .phase(Phase::Review);
    }
    let named = chosen.left.iter().take(5).map(|left| format!("{}: {}", left.path, left.why)).collect::<Vec<_>>();
    let fault = Fault::new(ErrorKind::Conflict, format!("nothing of this lands: {}", named.join("; ")));
    fault.hint("name each file that shall, or add --runs-on-host").phase(Phase::Review)
}
