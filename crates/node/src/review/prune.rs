//! `prune`: takes build artefacts, caches and ignored files out of a sandbox. What is up for review is not touched.

use api::{JournalStep, SandboxState, WorkspacePruned};
use runtime::Node;
use runtime::liveness;
use serde_json::{Value, json};
use state::Caller;
use state::admission::{self, Verb};
use state::lock::{LockAttempt, LockResult};
use state::sandbox::{self, Which};
use store::Entry;
use terms::clock::now_ms;
use terms::{Fault, PROTOCOL_VERSION};

pub fn prune(node: &Node, caller: &Caller, which: &Which) -> Result<WorkspacePruned, Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| state::sandbox::pick(tx, which, caller))?;
    // Held until the end, so that no run starts to write meanwhile.
    let LockAttempt { sandbox, result } = liveness::lock_patiently(node, &state, &found.id)?;
    let standing = if matches!(result, LockResult::Busy) { SandboxState::Running } else { SandboxState::Active };
    admission::check(standing, Verb::Rewrite, &sandbox.id)?;
    let stack = sandbox::stack(&state, &sandbox)?;
    let note = |step: JournalStep, body: Value| {
        let entry = Entry { at_ms: now_ms(), verb: "prune", step, subject: &sandbox.id, actor: &caller.user, body };
        state.store.write(|tx| tx.note(&entry).map(drop))
    };
    note(JournalStep::Intent, json!({}))?;
    match workspace::diff::prune(&stack, &Default::default()) {
        Ok(removed) => {
            note(JournalStep::Done, json!({ "files": removed.files, "bytes": removed.bytes }))?;
            let (files, bytes) = (removed.files, removed.bytes);
            Ok(WorkspacePruned { protocol_version: PROTOCOL_VERSION, sandbox: sandbox.id, files, bytes })
        }
        Err(fault) => {
            note(JournalStep::Failed, json!({ "message": fault.message }))?;
            Err(fault.subject(&sandbox.id))
        }
    }
}
