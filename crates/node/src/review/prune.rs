//! `prune`: takes build artefacts, caches and ignored files out of a sandbox. What is up for review is not touched.

use runtime::Node;
use runtime::liveness;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use state::Caller;
use state::admission::{self, Standing, Verb};
use state::lock::{LockAttempt, LockResult};
use state::sandbox::{self, Which};
use store::{Entry, Step};
use terms::clock::now_ms;
use terms::{Fault, PROTOCOL_VERSION};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Pruned)]
pub struct Answer {
    pub protocol_version: u32,
    pub sandbox: String,
    /// How many files were taken out.
    pub files: u64,
    pub bytes: u64,
}

pub fn prune(node: &Node, caller: &Caller, which: &Which) -> Result<Answer, Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| state::sandbox::pick(tx, which, caller))?;
    // Held until the end: nobody begins to write meanwhile.
    let LockAttempt { sandbox, result } = liveness::lock_patiently(node, &state, &found.id)?;
    let standing = if matches!(result, LockResult::Busy) { Standing::Running } else { Standing::Active };
    admission::check(standing, Verb::Rewrite, &sandbox.id)?;
    let stack = sandbox::stack(&state, &sandbox)?;
    let note = |step: Step, body: Value| {
        let entry = Entry { at_ms: now_ms(), verb: "prune", step, subject: &sandbox.id, actor: &caller.user, body };
        state.store.write(|tx| tx.note(&entry).map(drop))
    };
    note(Step::Intent, json!({}))?;
    match workspace::diff::prune(&stack, &Default::default()) {
        Ok(removed) => {
            note(Step::Done, json!({ "files": removed.files, "bytes": removed.bytes }))?;
            let (files, bytes) = (removed.files, removed.bytes);
            Ok(Answer { protocol_version: PROTOCOL_VERSION, sandbox: sandbox.id, files, bytes })
        }
        Err(fault) => {
            note(Step::Failed, json!({ "message": fault.message }))?;
            Err(fault.subject(&sandbox.id))
        }
    }
}
