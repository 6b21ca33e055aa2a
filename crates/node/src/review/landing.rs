//! How a batch lands, whatever it is made of: recorded as unfinished, staged, put in place, recorded as landed, cleared up.
//! Cut off anywhere, `recover` finds what is unfinished and brings it to one of its two ends.

use super::batch::{self, Batch, Paths, Stage, Unfinished};
use crate::fresh;
use crate::sandbox::{Anchored, Sandbox};
use crate::state::State;
use serde_json::json;
use std::time::Duration;
use store::{Entry, Kept, Step, Tx};
use terms::Fault;
use workspace::land::{Held, Landing};
use workspace::plan::{Goal, Plan, Shape};
use workspace::stage::{self, Site};
use workspace::undo::{self, Landed};
use workspace::{Dir, Rel, Stack};

/// How long other approvals over the same base are waited for.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A batch to be made.
pub struct Job<'a> {
    pub state: &'a State,
    pub batch: Batch,
    pub base: &'a Dir,
    /// The workspace that changes come from.
    pub view: Option<&'a Stack>,
    /// The directory of the batch that is undone.
    pub undone: Option<&'a Dir>,
    pub goals: Vec<Goal>,
}

/// What came of it.
pub struct Done {
    pub id: String,
    pub plan: Plan,
    pub notes: Vec<String>,
}

/// Lands it, or leaves the base as it was and says why. The caller holds the base.
pub fn land(job: Job<'_>, _held: &Held, made: &dyn Fn(&Rel) -> Result<Shape, Fault>) -> Result<Done, Fault> {
    let Job { state, batch, base, view, undone, goals } = job;
    let id = terms::id("bat", fresh::random());
    begin(state, &id, &batch)?;
    let made = batch::directory(state, &id).and_then(|dir| {
        let plan = stage::stage(&Site { base, batch: &dir, id: &id, view, undone }, goals, made)?;
        advance(state, &id, Stage::Landing)?;
        Ok((dir, plan))
    });
    let (dir, plan) = match made {
        Ok(made) => made,
        Err(fault) => return Err(abandon(state, base, &id, fault)),
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
    Ok(Done { id, plan, notes })
}

fn begin(state: &State, id: &str, batch: &Batch) -> Result<(), Fault> {
    state.store.write(|tx| {
        note(tx, id, batch, Step::Intent, json!({"digest": batch.digest, "files": batch.files}))?;
        tx.add(id, Unfinished { batch: batch.clone(), stage: Stage::Staging }).map(drop)
    })
}

fn advance(state: &State, id: &str, stage: Stage) -> Result<(), Fault> {
    state.store.write(|tx| {
        let mut kept = unfinished(tx, id)?;
        kept.record.stage = stage;
        tx.change(kept).map(drop)
    })
}

fn unfinished(tx: &Tx<'_>, id: &str) -> Result<Kept<Unfinished>, Fault> {
    tx.get(id)?.ok_or_else(|| Fault::internal(format!("batch {id} was finished by somebody else")))
}

/// Records that it has landed, with what the workspace now knows of its base.
pub fn conclude(state: &State, id: &str, plan: &Plan, landed: &Landed) -> Result<(), Fault> {
    state.store.write(|tx| {
        let mut kept = unfinished(tx, id)?;
        let batch = kept.record.batch.clone();
        if let Some(mut sandbox) = tx.get::<Sandbox>(&batch.sandbox)? {
            let mut known = match tx.get::<Anchored>(&batch.sandbox)? {
                Some(known) => known,
                None => tx.add(&batch.sandbox, Anchored::default())?,
            };
            for (path, seen) in &landed.0 {
                known.record.anchors.set(path, *seen);
            }
            tx.change(known)?;
            sandbox.record.used_ms = fresh::now_ms();
            tx.change(sandbox)?;
        }
        if let Some(mut undone) =
            batch.undoes.as_deref().and_then(|other| tx.get::<Batch>(other).transpose()).transpose()?
        {
            undone.record.undone_by = Some(id.to_owned());
            tx.change(undone)?;
        }
        tx.add(id, Paths { paths: plan.items.iter().map(|item| item.at.clone()).collect() })?;
        note(tx, id, &batch, Step::Done, json!({"paths": plan.items.len(), "digest": batch.digest}))?;
        tx.add(id, batch)?;
        kept.record.stage = Stage::Tidying;
        tx.change(kept).map(drop)
    })
}

/// A transaction whose end failed may have landed all the same.
fn has_landed(state: &State, id: &str) -> bool {
    let found = state.store.read(|tx| tx.get::<Unfinished>(id));
    matches!(found, Ok(Some(kept)) if kept.record.stage == Stage::Tidying)
}

/// Nothing has changed yet: what was staged goes. What cannot be cleared away now is cleared away by `recover`.
pub fn abandon(state: &State, base: &Dir, id: &str, fault: Fault) -> Fault {
    let cleared = batch::directory(state, id)
        .and_then(|dir| stage::discard(base, &dir, id).map_err(|e| Fault::internal(e.to_string())));
    if cleared.and_then(|()| batch::forget(state, id)).is_ok() {
        let _ = give_up(state, id, &fault.message);
    }
    fault
}

/// Some of it may be in place: it is taken back.
pub fn take_back(state: &State, landing: &mut Landing<'_>, id: &str, mut fault: Fault) -> Fault {
    match landing.roll_back() {
        Ok(troubles) => {
            for trouble in &troubles {
                fault.message.push_str("; ");
                fault.message.push_str(trouble);
            }
            let tidied = landing.tidy().is_ok() && batch::forget(state, id).is_ok();
            if tidied {
                let _ = give_up(state, id, &fault.message);
            }
        }
        Err(e) => {
            fault.message.push_str(&format!("; and taking it back failed: {e}"));
            fault.hint = Some("the next cofferdam command over this directory takes it back".to_owned());
        }
    }
    fault
}

pub fn give_up(state: &State, id: &str, why: &str) -> Result<(), Fault> {
    state.store.write(|tx| {
        let Some(kept) = tx.get::<Unfinished>(id)? else { return Ok(()) };
        note(tx, id, &kept.record.batch, Step::Failed, json!({"message": why}))?;
        tx.remove::<Unfinished>(id).map(drop)
    })
}

/// Clears up after a batch that landed. What fails here is done by `recover` later; the batch stands.
pub fn tidy(state: &State, landing: &Landing<'_>, id: &str) -> Vec<String> {
    let Ok(notes) = landing.tidy() else { return Vec::new() };
    let _ = state.store.write(|tx| tx.remove::<Unfinished>(id));
    notes
}

fn note(tx: &Tx<'_>, id: &str, batch: &Batch, step: Step, mut body: serde_json::Value) -> Result<(), Fault> {
    body["batch"] = json!(id);
    if let Some(undoes) = &batch.undoes {
        body["undoes"] = json!(undoes);
    }
    let (verb, subject, actor) = (batch.verb.name(), batch.sandbox.as_str(), batch.actor.as_str());
    tx.note(&Entry { at_ms: fresh::now_ms(), verb, step, subject, actor, body }).map(drop)
}
