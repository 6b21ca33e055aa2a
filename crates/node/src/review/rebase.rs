//! `rebase`: brings a sandbox onto its base as it is now. Files that both changed are merged where their past is known; what
//! does not go together is left in the workspace, told, and remembered.

use super::merge_base::Past;
use runtime::Node;
use runtime::denied;
use runtime::liveness;
use serde::{Deserialize, Serialize};
use serde_json::json;
use state::conflicted::{Conflicted, Dispute};
use state::lock::{LockAttempt, LockResult};
use state::sandbox::Which;
use state::sandbox::{self, Anchored, Sandbox};
use state::{Caller, State};
use store::{Entry, Kept, Step, Tx};
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;
use workspace::diff::{Options, diff};
use workspace::exclude::Exclude;
use workspace::git::Was;
use workspace::rebase::{Rebase, now, plan};
use workspace::{Diff, Rel, sight};

pub use workspace::rebase::{Fate, Moved};

pub struct Ask {
    pub which: Which,
    /// Only tell what would be done.
    pub dry_run: bool,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Rebased)]
pub struct Answer {
    pub protocol_version: u32,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Nothing was done; it is only told.
    pub dry_run: bool,
    /// What became of each file whose base had moved; nothing else was touched.
    pub files: Vec<Moved>,
    /// How many of them do not go together with their base.
    pub conflicts: usize,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

pub fn rebase(node: &Node, caller: &Caller, ask: &Ask) -> Result<Answer, Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| state::sandbox::pick(tx, &ask.which, caller))?;
    // A guest that writes meanwhile would have its files changed under its hands.
    let LockAttempt { sandbox, result: LockResult::Locked(_lock) } = liveness::lock_patiently(node, &state, &found.id)?
    else {
        return Err(busy(&found.id));
    };
    let stack = sandbox::stack(&state, &sandbox)?;
    let anchored = state.store.read(|tx| tx.get::<Anchored>(&sandbox.id))?.map(|kept| kept.record).unwrap_or_default();
    let of_it = |fault: Fault| fault.subject(&sandbox.id);
    // Before anything is looked at: what the base changes from here on is drift again.
    let (since, head) = (now(), workspace::git::head(&sandbox.record.base));
    let options = Options { exclude: Exclude::Artefacts, ..Options::default() };
    let mut diff = diff(&stack, &anchored.anchors, &options).map_err(of_it)?;
    // What is known to hold the same bytes has nothing to be taken in.
    sight::settle(&stack, &anchored.anchors, &mut diff);
    // What never lands has nothing to be brought together; and what the guest may not read is not written where it reads.
    denied::mark(&sandbox, caller, &mut diff).map_err(of_it)?;
    let past = Past::of(&state, caller, &sandbox, &anchored.anchors, &diff).map_err(of_it)?;
    let before = |path: &Rel| match workspace::known::copy(&stack, &anchored.anchors, path) {
        Some(bytes) => Ok(Was::File(bytes)),
        None => past.of_file(path),
    };
    let rebase = plan(&stack, &diff, &anchored.anchors, &before).map_err(of_it)?;
    if !ask.dry_run {
        intend(&state, caller, &sandbox.id)?;
        let done = rebase
            .carry_out(&stack, &diff, &before)
            .and_then(|()| state.store.write(|tx| keep(tx, caller, &sandbox, &rebase, &diff, (since, head.clone()))));
        if let Err(fault) = done {
            return Err(of_it(failed(&state, caller, &sandbox.id, fault)));
        }
        // A note that stays behind is known for what it is the next time.
        let _ = Rebase::forget(&stack);
    }
    Ok(Answer {
        protocol_version: PROTOCOL_VERSION,
        sandbox: sandbox.id,
        name: sandbox.record.name,
        dry_run: ask.dry_run,
        conflicts: rebase.conflicts().count(),
        files: rebase.moved,
        notes: past.notes,
    })
}

fn busy(sandbox: &str) -> Fault {
    let message = format!("{sandbox} is in use: a command runs in it, or another verb changes it");
    let fault = Fault::new(ErrorKind::Conflict, message).subject(sandbox).phase(Phase::Admission);
    fault.hint("wait for it to end, or `cofferdam stop` it")
}

fn note(tx: &Tx<'_>, caller: &Caller, id: &str, step: Step, body: serde_json::Value) -> Result<(), Fault> {
    let entry = Entry { at_ms: now_ms(), verb: "rebase", step, subject: id, actor: &caller.user, body };
    tx.note(&entry).map(drop)
}

fn intend(state: &State, caller: &Caller, id: &str) -> Result<(), Fault> {
    state.store.write(|tx| note(tx, caller, id, Step::Intent, json!({})))
}

fn failed(state: &State, caller: &Caller, id: &str, fault: Fault) -> Fault {
    let body = json!({ "error_kind": fault.error_kind, "message": fault.message });
    // The fault that brought us here says more than that it could not be noted.
    let _ = state.store.write(|tx| note(tx, caller, id, Step::Failed, body));
    fault
}

/// What the sandbox knows of its base from now on, and what is in dispute.
fn keep(
    tx: &Tx<'_>,
    caller: &Caller,
    sandbox: &Kept<Sandbox>,
    rebase: &Rebase,
    diff: &Diff,
    (since, head): ((i64, u32), Option<String>),
) -> Result<(), Fault> {
    let id = &sandbox.id;
    // Its layers are held; what else others wrote of it meanwhile stays.
    let mut changed = tx.get::<Sandbox>(id)?.ok_or_else(|| sandbox::unknown(id))?;
    (changed.record.since, changed.record.git_head, changed.record.used_ms) = (since, head, now_ms());
    tx.change(changed)?;
    tx.remove::<Anchored>(id)?;
    tx.add(id, Anchored { anchors: rebase.anchors.clone() })?;
    let mut disputes = tx.get::<Conflicted>(id)?.map(|kept| kept.record).unwrap_or_default();
    let open: Vec<String> =
        diff.files.iter().filter(|f| disputes.is_conflicted(f)).map(|f| f.change.path.to_string()).collect();
    disputes.paths.retain(|path, _| open.contains(path));
    for Moved { path, fate, digest } in &rebase.moved {
        match fate {
            Fate::Conflict { marks, .. } => {
                disputes.paths.insert(path.to_string(), Dispute { digest: digest.clone(), marks: *marks })
            }
            _ => disputes.paths.remove(&path.to_string()),
        };
    }
    tx.remove::<Conflicted>(id)?;
    if !disputes.paths.is_empty() {
        tx.add(id, disputes)?;
    }
    let count = |wanted: fn(&Fate) -> bool| rebase.moved.iter().filter(|moved| wanted(&moved.fate)).count();
    let body = json!({
        "merged": count(|fate| *fate == Fate::Merged),
        "kept": count(|fate| *fate == Fate::Kept),
        "dropped": count(|fate| *fate == Fate::Dropped),
        "conflicts": rebase.conflicts().count(),
    });
    note(tx, caller, id, Step::Done, body)
}
