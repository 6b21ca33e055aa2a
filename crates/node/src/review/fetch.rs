//! `fetch`: brings commits that were made inside into the base's repository under a reference. Work tree, index and
//! branches stay as they are.

use super::history;
use api::{JournalStep, WorkspaceFetched};
use runtime::Node;
use serde_json::json;
use state::sandbox::{self, Sandbox, Which};
use state::{Caller, State};
use store::{Entry, Kept};
use terms::clock::now_ms;
use terms::{Fault, PROTOCOL_VERSION};
use workspace::git::{self, Fetched};

pub struct FetchCommits {
    pub which: Which,
    /// The whole name of the reference; `refs/cofferdam/NAME` where none is given.
    pub reference: Option<String>,
}

pub fn fetch(node: &Node, caller: &Caller, ask: &FetchCommits) -> Result<WorkspaceFetched, Fault> {
    let state = node.states.open(caller)?;
    let sandbox = state.store.read(|tx| sandbox::pick(tx, &ask.which, caller))?;
    let of_it = |fault: Fault| fault.subject(&sandbox.id);
    let reference = reference(ask, &sandbox)?;
    let stack = sandbox::stack(&state, &sandbox)?;
    let tip = history::tip(&sandbox, &stack)?;
    let intake = history::open(caller, &sandbox, &stack, &tip)?;
    let body = json!({ "reference": reference, "commit": tip });
    note(&state, caller, &sandbox.id, JournalStep::Intent, body.clone())?;
    let fetched = intake.fetch(&reference, &caller.user).map_err(|fault| {
        let body = json!({ "reference": reference, "error_kind": fault.error_kind, "message": fault.message });
        // The fault that brought us here says more than that it could not be noted.
        let _ = note(&state, caller, &sandbox.id, JournalStep::Failed, body);
        of_it(fault)
    })?;
    let Fetched { reference, commit, before, commits, notes } = fetched;
    note(
        &state,
        caller,
        &sandbox.id,
        JournalStep::Done,
        json!({ "reference": reference, "commit": commit, "before": before }),
    )?;
    let Kept { id, record, .. } = sandbox;
    let protocol_version = PROTOCOL_VERSION;
    Ok(WorkspaceFetched { protocol_version, sandbox: id, name: record.name, reference, commit, before, commits, notes })
}

fn reference(ask: &FetchCommits, sandbox: &Kept<Sandbox>) -> Result<String, Fault> {
    if let Some(name) = &ask.reference {
        return git::check_reference(name).map(|()| name.clone());
    }
    let of = |name: &str| Some(format!("refs/cofferdam/{name}")).filter(|name| git::check_reference(name).is_ok());
    let own = sandbox.record.name.as_deref().and_then(of).or_else(|| of(&sandbox.id));
    own.ok_or_else(|| Fault::internal("the id of the sandbox cannot be part of a reference"))
}

fn note(state: &State, caller: &Caller, id: &str, step: JournalStep, body: serde_json::Value) -> Result<(), Fault> {
    let entry = Entry { at_ms: now_ms(), verb: "fetch", step, subject: id, actor: &caller.user, body };
    state.store.write(|tx| tx.note(&entry).map(drop))
}
