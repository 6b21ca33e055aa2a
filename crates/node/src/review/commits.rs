//! `approve --commits`: commits that were made inside become commits of the base's branch, and their files land as in any
//! approval. All of them, or nothing.

use super::approve::{LockedBase, ReviewedDiff};
use super::{ReviewScope, history, receipt};
use api::{ChangeClass, Diff, JournalStep, Receipt, Rel};
use runtime::{Node, denied};
use state::Caller;
use state::batch::Batch;
use state::landing::{self, LandingJob};
use state::sandbox::Reviewed;
use std::collections::BTreeSet;
use store::Entry;
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, Phase};
use workspace::exclude::Exclude;
use workspace::git::{Adoption, GitEnvironment};
use workspace::goal;
use workspace::select::{self, Marked, Selection};

/// Least length of the beginning of a commit's id that stands for it, and the length of one that is shown.
const SHORT: usize = 12;

pub struct ApproveCommits {
    /// Paths in it are those of files that would run on the reviewer's machine, and shall.
    pub of: ReviewScope,
    pub runs_on_host: bool,
    pub seen: ReviewedDiff,
    /// The last commit that was reviewed, for a program that was shown it.
    pub tip: Option<String>,
}

pub fn approve(node: &Node, caller: &Caller, ask: &ApproveCommits) -> Result<Receipt, Fault> {
    let state = node.states.open(caller)?;
    let (sandbox, named) = state.store.read(|tx| ask.of.find(tx, caller))?;
    let desk = LockedBase::open(node, &state, &sandbox.id)?;
    desk.approve_commits(caller, ask, &named).map_err(|fault| fault.subject(&sandbox.id))
}

impl LockedBase<'_> {
    fn approve_commits(&self, caller: &Caller, ask: &ApproveCommits, named: &[Rel]) -> Result<Receipt, Fault> {
        let tip = history::tip(&self.sandbox, &self.stack)?;
        self.check_tip(ask, &tip)?;
        if ask.tip.is_none() {
            self.check_branch(&tip)?;
        }
        let nothing = Selection {
            everything: false,
            paths: Vec::new(),
            exact: Vec::new(),
            hunks: Vec::new(),
            runs_on_host: ask.runs_on_host,
        };
        let (mut diff, ..) = self.reviewed(&ask.seen, &nothing)?;
        denied::mark(&self.sandbox, caller, &mut diff)?;
        let intake = history::open(caller, &self.sandbox, &self.stack, &tip)?;
        let surroundings = GitEnvironment { env: &caller.env };
        let mut adoption = Adoption::prepare(intake, &self.stack_base_path(), &surroundings, &self.sandbox.id)?;
        adoption.check_committed(&self.stack)?;
        let exact = self.chosen(&diff, &adoption)?;
        let open = |path: &Rel| !ask.runs_on_host && !named.contains(path);
        check_named(&diff, &adoption, &exact, &open)?;
        let wish = Selection { exact, ..nothing };
        let chosen = select::choose(&diff, &wish, &Marked::default())?;
        if chosen.picks.is_empty() {
            let fault = Fault::new(ErrorKind::Conflict, "the files of these commits have landed already");
            return Err(fault.hint("`cofferdam fetch` brings the commits; merge them with git").phase(Phase::Review));
        }
        let (goals, mut notes) = goal::goals(&chosen.picks)?;
        let batch = self.batch(caller, &diff, chosen.picks.len() as u64)?;
        let job = LandingJob {
            state: self.state,
            batch,
            base: &self.stack.base,
            view: Some(&self.stack),
            undone: None,
            goals,
        };
        let made = adoption.commits()?;
        adoption.write()?;
        let done = landing::land(job, &self.held, &|at| self.shape_of_dir(at))?;
        notes.extend(done.notes);
        self.drop_landed(&done.plan, &chosen);
        let (commit, branch, told) = adoption.finish().map_err(|fault| {
            let message = format!("{} landed, but the commits were not taken over: {}", done.id, fault.message);
            let hint =
                format!("`cofferdam fetch` brings the commits, or take it back with `cofferdam undo {}`", done.id);
            Fault { message, hint: Some(hint), ..fault }.subject(&done.id).phase(Phase::Application)
        })?;
        notes.extend(told);
        notes.push(match made.len() {
            1 => format!("1 commit of the sandbox is on {branch} now"),
            many => format!("{many} commits of the sandbox are on {branch} now"),
        });
        self.state.store.write(|tx| {
            let Some(mut kept) = tx.get::<Batch>(&done.id)? else { return Ok(()) };
            kept.record.commit = Some(commit.clone());
            tx.change(kept)?;
            let body = serde_json::json!({
                "batch": done.id, "commit": commit, "branch": branch, "tip": tip, "commits": made.len(),
            });
            let (verb, step, actor) = ("commit", JournalStep::Done, caller.user.as_str());
            let entry = Entry { at_ms: now_ms(), verb, step, subject: &self.sandbox.id, actor, body };
            tx.note(&entry).map(drop)
        })?;
        let ids = (done.id, self.sandbox.id.as_str());
        let receipt = receipt::of_landing(ids, &diff.digest, chosen, notes);
        Ok(Receipt { commit: Some(commit), ..receipt })
    }

    /// The commits are those that were shown.
    fn check_tip(&self, ask: &ApproveCommits, tip: &str) -> Result<(), Fault> {
        let shown = match (&ask.tip, &ask.seen) {
            (Some(shown), _) => Some(shown.clone()),
            (None, ReviewedDiff::Unseen) => return Ok(()),
            (None, ReviewedDiff::Last | ReviewedDiff::Digest(_)) => {
                self.state.store.read(|tx| tx.get::<Reviewed>(&self.sandbox.id))?.and_then(|kept| kept.record.tip)
            }
        };
        let message = match shown {
            Some(shown) if shown == tip || (shown.len() >= SHORT && tip.starts_with(&shown)) => return Ok(()),
            Some(shown) => format!("the commits inside end in {tip}, and {shown} was reviewed"),
            None => "these commits have not been reviewed".to_owned(),
        };
        let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
        Err(fault.hint("look at them with `cofferdam diff`, or give --commits=ID of the last one that was reviewed"))
    }

    /// The branch that was committed to inside is the one that the base has. A caller who names the last commit decides otherwise.
    fn check_branch(&self, tip: &str) -> Result<(), Fault> {
        let sandbox = &self.sandbox;
        let Some((inside, base)) = history::switched(sandbox, &self.stack)? else { return Ok(()) };
        let message =
            format!("inside, {inside} is checked out, and the base has {base}: the commits would go onto {base}");
        let word = sandbox.record.name.as_deref().unwrap_or(&sandbox.id);
        let hint = format!(
            "`cofferdam fetch {word} --as refs/heads/NAME` makes a branch of them; `cofferdam approve {word} --commits={}` takes \
             them onto {base}",
            tip.get(..SHORT).unwrap_or(tip)
        );
        Err(Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Review))
    }

    /// Paths of the diff that the commits change. A part of them that is not in the diff is in the base already.
    fn chosen(&self, diff: &Diff, adoption: &Adoption) -> Result<Vec<Rel>, Fault> {
        let paths: BTreeSet<&Rel> = adoption.paths().collect();
        let mut exact = Vec::new();
        let mut covered: BTreeSet<&Rel> = BTreeSet::new();
        for change in diff.files.iter().map(|file| &file.change) {
            let from = change.kind.from();
            match (paths.contains(&change.path), from.is_none_or(|from| paths.contains(from))) {
                (true, true) => exact.push(change.path.clone()),
                (false, _) if from.is_none_or(|from| !paths.contains(from)) => continue,
                _ => return Err(moved_in_part(&change.path, from)),
            }
            covered.extend([Some(&change.path), from].into_iter().flatten());
        }
        let rest: Vec<&Rel> = paths.into_iter().filter(|path| !covered.contains(path)).collect();
        if !rest.is_empty() {
            let all = self.diff(Exclude::Nothing)?;
            let is_held = |path: &&&Rel| all.files.iter().any(|file| file.change.path == ***path);
            if let Some(path) = rest.iter().find(is_held) {
                let message =
                    format!("{path} was committed, but is withheld from the diff, so it has not been reviewed");
                let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
                return Err(fault.hint("`cofferdam fetch` brings the commits as a reference, without their files"));
            }
        }
        Ok(exact)
    }

    fn stack_base_path(&self) -> std::path::PathBuf {
        self.sandbox.record.base.clone()
    }
}

fn moved_in_part(path: &Rel, from: Option<&Rel>) -> Fault {
    let from = from.map(Rel::to_string).unwrap_or_default();
    let message = format!("{path} was moved from {from}, and the commits have only one of the two");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
    fault.hint("commit the rest inside, or `cofferdam fetch` the commits")
}

/// Refuses what never lands, and what would run on the reviewer's machine and was not named; also where only a commit in
/// between has it, which a checkout of that commit would write.
fn check_named(diff: &Diff, adoption: &Adoption, exact: &[Rel], open: &dyn Fn(&Rel) -> bool) -> Result<(), Fault> {
    let mut unnamed = Vec::new();
    for change in diff.files.iter().map(|file| &file.change).filter(|change| exact.contains(&change.path)) {
        match &change.class {
            ChangeClass::Never { why } => {
                let message = format!("{} was committed, and never lands: {why}", change.path);
                return Err(Fault::new(ErrorKind::Conflict, message).phase(Phase::Review));
            }
            ChangeClass::RunsOnHost { why } if open(&change.path) => unnamed.push(format!("{} ({why})", change.path)),
            _ => {}
        }
    }
    let passing = adoption.passing_that_run()?;
    unnamed.extend(passing.iter().filter(|path| open(path)).map(|path| format!("{path} (in a commit in between)")));
    if unnamed.is_empty() {
        return Ok(());
    }
    let message = format!("these files of the commits would run on your machine: {}", unnamed.join(", "));
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
    Err(fault.hint("name each file, or add --runs-on-host; commits land as a whole or not at all"))
}
