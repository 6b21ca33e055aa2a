//! `prune`: takes build artefacts, caches and ignored files out of a sandbox. What is up for review is not touched.

use crate::Caller;
use crate::fresh::now_ms;
use crate::sandbox;
use crate::state::State;
use serde::Serialize;
use serde_json::{Value, json};
use store::{Entry, Step};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

#[derive(Serialize)]
pub struct Answer {
    pub protocol_version: u32,
    pub sandbox: String,
    pub files: u64,
    pub bytes: u64,
}

pub fn prune(caller: &Caller, word: Option<&str>) -> Result<Answer, Fault> {
    let state = State::open(caller)?;
    let sandbox = state.store.read(|tx| sandbox::find(tx, word, caller))?;
    let stack = sandbox::stack(&state, &sandbox)?;
    let note = |step: Step, body: Value| {
        let entry = Entry { at_ms: now_ms(), verb: "prune", step, subject: &sandbox.id, actor: &caller.user, body };
        state.store.write(|tx| tx.note(&entry).map(drop))
    };
    let lock = stack.layers.last().map(|top| top.lock()).transpose();
    let lock = lock.map_err(|e| Fault::internal(format!("the layer of {}: {e}", sandbox.id)))?.flatten();
    let Some(_lock) = lock else {
        let message = format!("a command is running in {}", sandbox.id);
        let fault = Fault::new(ErrorKind::Conflict, message).subject(&sandbox.id).phase(Phase::Admission);
        return Err(fault.hint("`cofferdam stop` it, or wait until it has ended"));
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
