//! The sandbox's own home: what changed in it since files were copied into it, and the way back to that. Nothing of it is
//! offered for landing.

use super::ReviewScope;
use super::reject::running;
use api::{ChangeKind, JournalStep, Rel, WorkspaceDiff};
use runtime::Node;
use runtime::liveness;
use serde_json::json;
use state::Caller;
use state::lock::{LockAttempt, LockResult};
use state::sandbox;
use store::{Entry, Kept};
use terms::clock::now_ms;
use terms::{Fault, PROTOCOL_VERSION, Phase};
use workspace::Anchors;
use workspace::diff::Options;
use workspace::exclude::Exclude;

/// Compares the home with what was copied into it.
pub fn diff(node: &Node, caller: &Caller, of: &ReviewScope) -> Result<WorkspaceDiff, Fault> {
    let state = node.states.open(caller)?;
    let (sandbox, only) = state.store.read(|tx| of.find(tx, caller))?;
    refuse_paths(&only)?;
    let stack = sandbox::stack(&state, &sandbox)?;
    let unread = |e: std::io::Error| Fault::internal(format!("the home of {}: {e}", sandbox.id)).subject(&sandbox.id);
    let home = workspace::home::against_brought(&stack).map_err(unread)?;
    let options = Options { exclude: Exclude::Nothing, ..Options::default() };
    let mut diff = workspace::diff::diff(&home, &Anchors::default(), &options).map_err(|f| f.subject(&sandbox.id))?;
    // With a copying driver the mount point of the workspace is in the home itself.
    let is_way = |path: &Rel| sandbox.record.base.starts_with(caller.home.join(path.as_path()));
    diff.files.retain(|file| file.change.kind != ChangeKind::Added || !is_way(&file.change.path));
    let running = state::lock::is_held(&state, &sandbox.record);
    let Kept { id, record, .. } = sandbox;
    Ok(WorkspaceDiff {
        protocol_version: PROTOCOL_VERSION,
        sandbox: id,
        name: record.name,
        base: caller.home.clone(),
        running,
        diff,
        git: None,
        only: Vec::new(),
        next: None,
        others: Vec::new(),
    })
}

/// Takes all changes of the home back, while no command runs. Returns the sandbox.
pub fn reject(node: &Node, caller: &Caller, of: &ReviewScope) -> Result<String, Fault> {
    let state = node.states.open(caller)?;
    let (found, only) = state.store.read(|tx| of.find(tx, caller))?;
    refuse_paths(&only)?;
    let LockAttempt { sandbox, result: LockResult::Locked(_lock) } = liveness::lock_patiently(node, &state, &found.id)?
    else {
        return Err(running(&found.id));
    };
    let stack = sandbox::stack(&state, &sandbox)?;
    let note = |step, body| {
        let entry = Entry { at_ms: now_ms(), verb: "reject", step, subject: &sandbox.id, actor: &caller.user, body };
        state.store.write(|tx| tx.note(&entry).map(drop))
    };
    note(JournalStep::Intent, json!({"home": true}))?;
    if let Err(fault) = workspace::home::reset(&stack) {
        note(JournalStep::Failed, json!({"message": fault.message}))?;
        return Err(fault.subject(&sandbox.id));
    }
    note(JournalStep::Done, json!({"home": true}))?;
    Ok(sandbox.id)
}

fn refuse_paths(only: &[Rel]) -> Result<(), Fault> {
    match only.first() {
        None => Ok(()),
        Some(path) => {
            let fault = Fault::invalid(format!("{path}: --home applies to the whole home")).phase(Phase::Admission);
            Err(fault.hint("leave the path out"))
        }
    }
}
