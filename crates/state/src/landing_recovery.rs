//! Recovery of interrupted batches: each is completed or rolled back. Called whenever the state is opened; costs one query when there is
//! nothing to do. Killed in the middle, it continues the next time.

use crate::State;
use crate::batch::{self, BatchStage, Unfinished};
use crate::landing::{self, give_up};
use api::Rel;
use store::Kept;
use terms::{ErrorKind, Fault, Phase};
use workspace::land::{BaseLock, Landing};
use workspace::{Dir, stage, undo};

/// Recovers all batches. Those whose base is missing or locked now stay for later.
pub fn recover(state: &State) -> Result<(), Fault> {
    for cut_off in state.store.read(|tx| tx.list::<Unfinished>())? {
        let Some(base) = base_of(&cut_off) else { continue };
        // The holder of the base's lock is landing, or is recovering already.
        if let Ok(Some(_held)) = BaseLock::try_take(&base) {
            // Another process may have finished it meanwhile, and a fault here is not one of the present verb.
            let _ = finish(state, &base, &cut_off.id);
        }
    }
    Ok(())
}

/// Recovers the batches of a base that the caller has locked: nothing may land over an intermediate state.
pub fn recover_held(state: &State, base: &Dir, path: &str, _held: &BaseLock) -> Result<(), Fault> {
    for cut_off in state.store.read(|tx| tx.list_in::<Unfinished>(path))? {
        finish(state, base, &cut_off.id)?;
    }
    Ok(())
}

fn base_of(cut_off: &Kept<Unfinished>) -> Option<Dir> {
    let batch = &cut_off.record.batch;
    let base = Dir::open(&batch.base).ok()?;
    let now = base.meta(&Rel::top()).ok()??;
    // Device numbers may change with a reboot; the inode does not.
    (now.ino == batch.base_id.1).then_some(base)
}

fn finish(state: &State, base: &Dir, id: &str) -> Result<(), Fault> {
    let Some(cut_off) = state.store.read(|tx| tx.get::<Unfinished>(id))? else { return Ok(()) };
    let dir = batch::directory(state, id)?;
    match cut_off.record.stage {
        BatchStage::Landing if !undo::was_staged(&dir).map_err(|e| failed(id, &e))? => {
            stage::discard(base, &cut_off.record.holds, id).map_err(|e| failed(id, &e))?;
            batch::forget(state, id)?;
            give_up(state, id, "interrupted before anything was changed", &undo::Landed::default())
        }
        BatchStage::Landing => {
            let plan = undo::read_plan(&dir, id)?;
            let mut landing = Landing::new(base, &plan);
            let can = landing.can_be_carried_out().map_err(|e| failed(id, &e))?;
            let landed = match can {
                true => landing.carry_out().and_then(|()| undo::landed(base, &dir, &plan)),
                false => Err(Fault::new(ErrorKind::Conflict, "interrupted, and the base was changed since")),
            };
            match landed {
                Ok(landed) => {
                    landing::conclude(state, id, &plan, &landed)?;
                    landing::tidy(state, &landing, id);
                    Ok(())
                }
                Err(fault) => {
                    let troubles = landing.roll_back().map_err(|e| failed(id, &e))?;
                    let why: Vec<String> = std::iter::once(fault.message).chain(troubles).collect();
                    landing::taken_back(state, &landing, id, &why.join("; "))
                }
            }
        }
        BatchStage::Tidying => {
            let plan = undo::read_plan(&dir, id)?;
            landing::tidy(state, &Landing::new(base, &plan), id);
            Ok(())
        }
    }
}

fn failed(id: &str, error: &std::io::Error) -> Fault {
    let fault =
        Fault::new(ErrorKind::Unavailable, format!("batch {id} was interrupted and cannot be finished: {error}"));
    fault.hint("make its directory readable and writable again, then try again").phase(Phase::Application).subject(id)
}
