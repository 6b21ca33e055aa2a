//! Landing of a batch: recorded as unfinished, staged, moved into place, recorded as landed, cleaned up. After a crash at any point,
//! `landing_recovery` completes the batch or rolls it back.

use crate::State;
use crate::batch::{self, Batch, BatchStage, Paths, Unfinished};
use crate::sandbox::{Anchored, Sandbox};
use api::{JournalStep, Rel};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use store::{Entry, Kept, Tx};
use terms::Fault;
use workspace::land::{BaseLock, Landing};
use workspace::plan::{Goal, Plan, Shape};
use workspace::stage::{self, BatchDirs, CheckedDrafts};
use workspace::undo::{self, Landed};
use workspace::{Dir, Stack};

/// Time to wait for other landings over the same base.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A batch to be made.
pub struct LandingJob<'a> {
    pub state: &'a State,
    pub batch: Batch,
    pub base: &'a Dir,
    /// The workspace that changes come from.
    pub view: Option<&'a Stack>,
    /// The directory of the batch that is undone.
    pub undone: Option<&'a Dir>,
    pub goals: Vec<Goal>,
}

/// Result of a landing.
pub struct LandedBatch {
    pub id: String,
    pub plan: Plan,
    pub notes: Vec<String>,
}

/// Lands the batch, or leaves the base as it was and returns the fault. `_held` proves that the caller has locked the base; `made` gives
/// the shape of a directory that is missing in the base above a goal.
pub fn land(
    job: LandingJob<'_>,
    _held: &BaseLock,
    made: &dyn Fn(&Rel) -> Result<Shape, Fault>,
) -> Result<LandedBatch, Fault> {
    let LandingJob { state, batch, base, view, undone, goals } = job;
    let id = terms::id("bat", sys::random::id_bytes());
    let drawn = CheckedDrafts::of(base, goals, made)?;
    begin(state, &id, &batch, drawn.holds())?;
    let staged = batch::directory(state, &id).and_then(|dir| {
        let plan = stage::stage(&BatchDirs { base, batch: &dir, id: &id, view, undone }, &drawn)?;
        Ok((dir, plan))
    });
    let (dir, plan) = match staged {
        Ok(staged) => staged,
        Err(fault) => return Err(abandon(state, base, &id, &drawn.holds(), fault)),
    };
    let mut landing = Landing::new(base, &plan);
    let landed = landing.carry_out().and_then(|()| undo::landed(base, &dir, &plan));
    let concluded = landed.and_then(|landed| conclude(state, &id, &plan, &landed));
    if let Err(fault) = concluded
        && !has_landed(state, &id)
    {
        return Err(take_back(state, &mut landing, &id, fault));
    }
    let notes = tidy(state, &landing, &id);
    Ok(LandedBatch { id, plan, notes })
}

fn begin(state: &State, id: &str, batch: &Batch, holds: BTreeSet<Rel>) -> Result<(), Fault> {
    state.store.write(|tx| {
        note(tx, id, batch, JournalStep::Intent, json!({"digest": batch.digest, "files": batch.files}))?;
        tx.add(id, Unfinished { batch: batch.clone(), holds, stage: BatchStage::Landing }).map(drop)
    })
}

fn unfinished(tx: &Tx<'_>, id: &str) -> Result<Kept<Unfinished>, Fault> {
    tx.get(id)?.ok_or_else(|| Fault::internal(format!("batch {id} was finished by another process")))
}

/// Records that the batch has landed, with the new known states of base files in the workspace.
pub fn conclude(state: &State, id: &str, plan: &Plan, landed: &Landed) -> Result<(), Fault> {
    state.store.write(|tx| {
        let mut kept = unfinished(tx, id)?;
        let batch = kept.record.batch.clone();
        if let Some(mut sandbox) = tx.get::<Sandbox>(&batch.sandbox)? {
            anchor(tx, &batch.sandbox, landed)?;
            sandbox.record.used_ms = terms::clock::now_ms();
            tx.change(sandbox)?;
        }
        if let Some(mut undone) =
            batch.undoes.as_deref().and_then(|other| tx.get::<Batch>(other).transpose()).transpose()?
        {
            undone.record.undone_by = Some(id.to_owned());
            tx.change(undone)?;
        }
        tx.add(id, Paths { paths: plan.items.iter().map(|item| item.at.clone()).collect() })?;
        note(tx, id, &batch, JournalStep::Done, json!({"paths": plan.items.len(), "digest": batch.digest}))?;
        tx.add(id, batch)?;
        kept.record.stage = BatchStage::Tidying;
        tx.change(kept).map(drop)
    })
}

/// Records the known states of single base files for a workspace.
fn anchor(tx: &Tx<'_>, sandbox: &str, seen: &Landed) -> Result<(), Fault> {
    let mut known = match tx.get::<Anchored>(sandbox)? {
        Some(known) => known,
        None => tx.add(sandbox, Anchored::default())?,
    };
    for (path, seen) in &seen.0 {
        known.record.anchors.set(path, *seen);
    }
    tx.change(known).map(drop)
}

/// Returns whether the batch has landed: a transaction whose commit reported an error may have succeeded all the same.
fn has_landed(state: &State, id: &str) -> bool {
    let found = state.store.read(|tx| tx.get::<Unfinished>(id));
    matches!(found, Ok(Some(kept)) if kept.record.stage == BatchStage::Tidying)
}

/// Discards the staged files, before anything has changed. On failure `landing_recovery` does it later.
fn abandon(state: &State, base: &Dir, id: &str, holds: &BTreeSet<Rel>, fault: Fault) -> Fault {
    let cleared = stage::discard(base, holds, id).map_err(|e| Fault::internal(e.to_string()));
    if cleared.and_then(|()| batch::forget(state, id)).is_ok() {
        let _ = give_up(state, id, &fault.message, &Landed::default());
    }
    fault
}

/// Rolls back a batch of which some files may be in place.
pub fn take_back(state: &State, landing: &mut Landing<'_>, id: &str, mut fault: Fault) -> Fault {
    match landing.roll_back() {
        Ok(troubles) => {
            for trouble in &troubles {
                fault.message.push_str("; ");
                fault.message.push_str(trouble);
            }
            let _ = taken_back(state, landing, id, &fault.message);
        }
        Err(e) => {
            fault.message.push_str(&format!("; and rolling it back failed: {e}"));
            fault.hint = Some("the next cofferdam command over this directory rolls it back".to_owned());
        }
    }
    fault
}

/// Cleans up after a rollback. The base is as it was; on failure `landing_recovery` finishes it later.
pub fn taken_back(state: &State, landing: &Landing<'_>, id: &str, why: &str) -> Result<(), Fault> {
    let failed = |e: std::io::Error| Fault::internal(format!("batch {id}: {e}"));
    let restored = landing.restored()?;
    landing.tidy().map_err(failed)?;
    // The record is removed before the copies: without a record the copies are not needed, and a record without copies could not be
    // completed.
    give_up(state, id, why, &restored)?;
    batch::forget(state, id)
}

pub fn give_up(state: &State, id: &str, why: &str, restored: &Landed) -> Result<(), Fault> {
    state.store.write(|tx| {
        let Some(kept) = tx.get::<Unfinished>(id)? else { return Ok(()) };
        if tx.get::<Sandbox>(&kept.record.batch.sandbox)?.is_some() {
            anchor(tx, &kept.record.batch.sandbox, restored)?;
        }
        note(tx, id, &kept.record.batch, JournalStep::Failed, json!({"message": why}))?;
        tx.remove::<Unfinished>(id).map(drop)
    })
}

/// Cleans up after a landed batch. On failure `landing_recovery` finishes it later; the batch stands.
pub fn tidy(state: &State, landing: &Landing<'_>, id: &str) -> Vec<String> {
    let Ok(notes) = landing.tidy() else { return Vec::new() };
    // Not synced: a recovery after a power failure would find nothing to do.
    let _ = state.store.write_soon(|tx| tx.remove::<Unfinished>(id));
    notes
}

fn note(tx: &Tx<'_>, id: &str, batch: &Batch, step: JournalStep, mut body: serde_json::Value) -> Result<(), Fault> {
    body["batch"] = json!(id);
    // The actor's name comes from the caller's environment; the uid comes from the kernel.
    body["uid"] = json!(rustix::process::getuid().as_raw());
    if let Some(undoes) = &batch.undoes {
        body["undoes"] = json!(undoes);
    }
    let (verb, subject, actor) = (batch.verb.name(), batch.sandbox.as_str(), batch.actor.as_str());
    tx.note(&Entry { at_ms: terms::clock::now_ms(), verb, step, subject, actor, body }).map(drop)
}
