//! `rebase`: brings a sandbox up to date with its base. Files changed on both sides are merged if their merge base is known;
//! conflicts stay in the workspace, are reported, and are recorded.

use super::merge_base::MergeBases;
use api::{Diff, JournalStep, RebaseFate, RebasedFile, Rel, WorkspaceRebased};
use runtime::Node;
use runtime::denied;
use runtime::liveness;
use serde_json::json;
use state::conflicted::{Conflicted, Dispute};
use state::lock::{LockAttempt, LockResult};
use state::sandbox::Which;
use state::sandbox::{self, Anchored, Sandbox};
use state::{Caller, State};
use store::{Entry, Kept, Tx};
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use workspace::diff::{Options, diff};
use workspace::exclude::Exclude;
use workspace::git::CommittedFile;
use workspace::rebase::{Rebase, now, plan};
use workspace::sight;

pub struct RebaseSandbox {
    pub which: Which,
    /// Reports the result without writing it.
    pub dry_run: bool,
}

pub fn rebase(node: &Node, caller: &Caller, ask: &RebaseSandbox) -> Result<WorkspaceRebased, Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| state::sandbox::pick(tx, &ask.which, caller))?;
    // A guest that writes meanwhile would have its files changed under it.
    let LockAttempt { sandbox, result: LockResult::Locked(_lock) } = liveness::lock_patiently(node, &state, &found.id)?
    else {
        return Err(busy(&found.id));
    };
    let stack = sandbox::stack(&state, &sandbox)?;
    let anchored = state.store.read(|tx| tx.get::<Anchored>(&sandbox.id))?.map(|kept| kept.record).unwrap_or_default();
    let of_it = |fault: Fault| fault.subject(&sandbox.id);
    // Read before the comparison: later changes of the base are drift again.
    let (since, head) = (now(), workspace::git::head(&sandbox.record.base));
    let options = Options { exclude: Exclude::Artefacts, ..Options::default() };
    let mut diff = diff(&stack, &anchored.anchors, &options).map_err(of_it)?;
    // Files with the same known contents have nothing to merge.
    sight::settle(&stack, &anchored.anchors, &mut diff);
    // Files that never land need no merge; and the contents of files that the guest may not read must not be written to files
    // that it may.
    denied::mark(&sandbox, caller, &mut diff).map_err(of_it)?;
    let past = MergeBases::of(&state, caller, &sandbox, &anchored.anchors, &diff).map_err(of_it)?;
    let before = |path: &Rel| match workspace::known::copy(&stack, &anchored.anchors, path) {
        Some(bytes) => Ok(CommittedFile::File(bytes)),
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
        // A note that stays is recognized as finished by the next rebase.
        let _ = Rebase::forget(&stack);
    }
    Ok(WorkspaceRebased {
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

fn note(tx: &Tx<'_>, caller: &Caller, id: &str, step: JournalStep, body: serde_json::Value) -> Result<(), Fault> {
    let entry = Entry { at_ms: now_ms(), verb: "rebase", step, subject: id, actor: &caller.user, body };
    tx.note(&entry).map(drop)
}

fn intend(state: &State, caller: &Caller, id: &str) -> Result<(), Fault> {
    state.store.write(|tx| note(tx, caller, id, JournalStep::Intent, json!({})))
}

fn failed(state: &State, caller: &Caller, id: &str, fault: Fault) -> Fault {
    let body = json!({ "error_kind": fault.error_kind, "message": fault.message });
    // The fault that is returned matters more than a failure to record it.
    let _ = state.store.write(|tx| note(tx, caller, id, JournalStep::Failed, body));
    fault
}

/// Records the new knowledge of the base, and the files in dispute.
fn keep(
    tx: &Tx<'_>,
    caller: &Caller,
    sandbox: &Kept<Sandbox>,
    rebase: &Rebase,
    diff: &Diff,
    (since, head): ((i64, u32), Option<String>),
) -> Result<(), Fault> {
    let id = &sandbox.id;
    // The layers are locked; other fields that were changed meanwhile keep their new values.
    let mut changed = tx.get::<Sandbox>(id)?.ok_or_else(|| sandbox::unknown(id))?;
    (changed.record.since, changed.record.git_head, changed.record.used_ms) = (since, head, now_ms());
    tx.change(changed)?;
    tx.remove::<Anchored>(id)?;
    tx.add(id, Anchored { anchors: rebase.anchors.clone() })?;
    let mut disputes = tx.get::<Conflicted>(id)?.map(|kept| kept.record).unwrap_or_default();
    let open: Vec<String> =
        diff.files.iter().filter(|f| disputes.is_conflicted(f)).map(|f| f.change.path.to_string()).collect();
    disputes.paths.retain(|path, _| open.contains(path));
    for RebasedFile { path, fate, digest } in &rebase.moved {
        match fate {
            RebaseFate::Conflict { marks, .. } => {
                disputes.paths.insert(path.to_string(), Dispute { digest: digest.clone(), marks: *marks })
            }
            _ => disputes.paths.remove(&path.to_string()),
        };
    }
    tx.remove::<Conflicted>(id)?;
    if !disputes.paths.is_empty() {
        tx.add(id, disputes)?;
    }
    let count = |wanted: fn(&RebaseFate) -> bool| rebase.moved.iter().filter(|moved| wanted(&moved.fate)).count();
    let body = json!({
        "merged": count(|fate| *fate == RebaseFate::Merged),
        "kept": count(|fate| *fate == RebaseFate::Kept),
        "dropped": count(|fate| *fate == RebaseFate::Dropped),
        "conflicts": rebase.conflicts().count(),
    });
    note(tx, caller, id, JournalStep::Done, body)
}
