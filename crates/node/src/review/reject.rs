//! `reject`: discards chosen changes of a sandbox, so that the workspace shows its base there.

use super::ReviewScope;
use super::receipt::bounded;
use api::{JournalStep, WorkspaceRejected};
use runtime::Node;
use runtime::liveness;
use serde_json::json;
use state::Caller;
use state::lock::{LockAttempt, LockResult};
use state::sandbox::{self, Anchored};
use store::Entry;
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use workspace::diff::Options;
use workspace::select::{self, Selection};

pub struct RejectChanges {
    pub of: ReviewScope,
    pub hunks: Vec<String>,
    /// Rejects all changes, if neither paths nor hunks are given.
    pub everything: bool,
    /// Digest of the reviewed diff, if it must match.
    pub digest: Option<String>,
}

pub fn reject(node: &Node, caller: &Caller, ask: &RejectChanges) -> Result<WorkspaceRejected, Fault> {
    let state = node.states.open(caller)?;
    let (found, paths) = state.store.read(|tx| ask.of.find(tx, caller))?;
    let LockAttempt { sandbox, result: LockResult::Locked(_lock) } = liveness::lock_patiently(node, &state, &found.id)?
    else {
        return Err(running(&found.id));
    };
    let anchors = state.store.read(|tx| tx.get::<Anchored>(&sandbox.id))?;
    let anchors = anchors.map(|kept| kept.record.anchors).unwrap_or_default();
    let wish = Selection { everything: ask.everything, paths, hunks: ask.hunks.clone(), ..Selection::default() };
    if wish.is_empty() {
        let fault = Fault::invalid("no changes were selected to reject").phase(Phase::Admission);
        return Err(fault.hint("give paths, --hunk ID or --all"));
    }
    let stack = sandbox::stack(&state, &sandbox)?;
    let diff = workspace::diff::diff(&stack, &anchors, &Options::default()).map_err(|f| f.subject(&sandbox.id))?;
    if ask.digest.as_ref().is_some_and(|digest| *digest != diff.digest) {
        let fault = Fault::new(ErrorKind::Conflict, "the workspace changed since it was reviewed").phase(Phase::Review);
        return Err(fault.hint("review again with `cofferdam diff`").subject(&sandbox.id));
    }
    let chosen = select::choose_to_drop(&diff, &wish).map_err(|f| f.subject(&sandbox.id))?;
    let note = |step, body| {
        let entry = Entry { at_ms: now_ms(), verb: "reject", step, subject: &sandbox.id, actor: &caller.user, body };
        match step {
            // Until the end a power failure may revert both the entry and the change.
            JournalStep::Intent => state.store.write_soon(|tx| tx.note(&entry).map(drop)),
            JournalStep::Done | JournalStep::Failed => state.store.write(|tx| tx.note(&entry).map(drop)),
        }
    };
    note(JournalStep::Intent, json!({"digest": diff.digest, "changes": chosen.picks.len()}))?;
    if let Err(fault) = workspace::reject::reject(&stack, &chosen) {
        note(JournalStep::Failed, json!({"message": fault.message}))?;
        return Err(fault.subject(&sandbox.id));
    }
    note(JournalStep::Done, json!({"changes": chosen.picks.len()}))?;
    let rejected = super::receipt::landed_changes(&chosen);
    let (left, more) = bounded(chosen.left);
    let left_more = (more > 0).then_some(more);
    Ok(WorkspaceRejected {
        protocol_version: PROTOCOL_VERSION,
        success: true,
        sandbox: sandbox.id,
        rejected,
        left,
        left_more,
    })
}

pub(super) fn running(sandbox: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("a command is running in {sandbox}")).phase(Phase::Review);
    fault.hint("wait for it, or `cofferdam stop` it").subject(sandbox)
}
