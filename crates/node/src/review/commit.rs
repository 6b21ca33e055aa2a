//! A git commit of a landing. Everything that can be refused is refused before the landing; later failures become notes.

use api::{CommitAuthor, FileKind, JournalStep, Rel};
use serde_json::json;
use state::batch::Batch;
use state::sandbox::Sandbox;
use state::{Caller, State};
use store::{Entry, Kept};
use terms::clock::now_ms;
use terms::{Fault, Phase};
use workspace::git::{self, Committed, GitEnvironment, Plan as Words, Prepared, Staged};
use workspace::plan::{Goal, Plan};

/// Commit options of the reviewer.
#[derive(Clone, Debug)]
pub struct CommitOptions {
    pub message: String,
    pub author: CommitAuthor,
}

/// Checks the commit before the landing, with all its goals.
pub fn prepare(
    caller: &Caller,
    sandbox: &Kept<Sandbox>,
    wish: &CommitOptions,
    goals: &[Goal],
) -> Result<Prepared, Fault> {
    let Kept { id, record, .. } = sandbox;
    let agent = record.name.as_deref().unwrap_or_default();
    let words = Words { message: &wish.message, author: wish.author, agent, sandbox: id };
    let is_dir = |goal: &&Goal| goal.want.as_ref().is_some_and(|(shape, _)| shape.kind == FileKind::Dir);
    let paths: Vec<Rel> = goals.iter().filter(|goal| !is_dir(goal)).map(|goal| goal.at.clone()).collect();
    git::prepare(&record.base, &GitEnvironment { env: &caller.env }, &words, &paths).map_err(|fault| fault.subject(id))
}

/// Commits after the landing. A fault says that the changes landed without a commit.
pub fn finish(
    state: &State,
    caller: &Caller,
    prepared: Prepared,
    batch: &str,
    plan: &Plan,
) -> Result<Committed, Fault> {
    let committed = prepared.commit(batch, &landed(plan)).map_err(|fault| {
        let message = format!("{batch} landed, but is not committed: {}", fault.message);
        let hint = format!("commit it with git, or take it back with `cofferdam undo {batch}`");
        Fault { message, hint: Some(hint), ..fault }.subject(batch).phase(Phase::Application)
    })?;
    state.store.write(|tx| {
        let Some(mut kept) = tx.get::<Batch>(batch)? else { return Ok(()) };
        kept.record.commit = committed.commit.clone();
        kept.record.inside = committed.inside.clone();
        let sandbox = kept.record.sandbox.clone();
        tx.change(kept)?;
        let mut body = json!({ "batch": batch, "commit": committed.commit, "branch": committed.branch });
        if !committed.inside.is_empty() {
            body["inside"] = json!(committed.inside);
        }
        let (verb, step, actor) = ("commit", JournalStep::Done, caller.user.as_str());
        tx.note(&Entry { at_ms: now_ms(), verb, step, subject: &sandbox, actor, body }).map(drop)
    })?;
    Ok(committed)
}

/// Lists landed files and links with their contents, and removed paths. Git tracks no directories.
fn landed(plan: &Plan) -> Vec<Staged> {
    let staged = plan.items.iter().filter_map(|item| {
        let kept = |kind: FileKind| matches!(kind, FileKind::File | FileKind::Symlink);
        let digest = item.after.as_ref().filter(|after| kept(after.kind)).map(|after| after.digest.clone());
        match digest {
            Some(Some(digest)) => Some(Staged { path: item.at.clone(), digest: Some(digest) }),
            Some(None) => None,
            // Git ignores a removed directory, but a file that became a directory is removed.
            None => {
                let was = item.before.as_ref().is_some_and(|before| kept(before.kind));
                was.then(|| Staged { path: item.at.clone(), digest: None })
            }
        }
    });
    staged.collect()
}
