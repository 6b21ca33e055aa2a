//! Finds batches that were cut off, and brings each to one of its two ends: landed, or as if it had never begun. Called whenever
//! the state is opened; costs one query when there is nothing to do. Killed in the middle, it goes on the next time.

use super::batch::{self, Stage, Unfinished};
use super::landing::{self, give_up};
use crate::state::State;
use store::Kept;
use terms::{ErrorKind, Fault, Phase};
use workspace::land::{Held, Landing};
use workspace::{Dir, Rel, stage, undo};

/// Looks at all of them. What cannot be finished now, because its base is away or in use, stays for later.
pub fn recover(state: &State) -> Result<(), Fault> {
    for cut_off in state.store.read(|tx| tx.list::<Unfinished>())? {
        let Some(base) = base_of(&cut_off) else { continue };
        // Whoever holds the base is landing, or is doing what we would do.
        if let Ok(Some(_held)) = Held::try_take(&base) {
            // Others may have finished it meanwhile, and others' faults are not those of the verb that is asked for.
            let _ = finish(state, &base, &cut_off.id);
        }
    }
    Ok(())
}

/// The same for one base that the caller holds: nothing may land over something that is in between.
pub fn recover_held(state: &State, base: &Dir, path: &str, _held: &Held) -> Result<(), Fault> {
    for cut_off in state.store.read(|tx| tx.list_in::<Unfinished>(path))? {
        finish(state, base, &cut_off.id)?;
    }
    Ok(())
}

fn base_of(cut_off: &Kept<Unfinished>) -> Option<Dir> {
    let batch = &cut_off.record.batch;
    let base = Dir::open(&batch.base).ok()?;
    let now = base.meta(&Rel::top()).ok()??;
    // Device numbers may change with a restart; the inode does not.
    (now.ino == batch.base_id.1).then_some(base)
}

fn finish(state: &State, base: &Dir, id: &str) -> Result<(), Fault> {
    let Some(cut_off) = state.store.read(|tx| tx.get::<Unfinished>(id))? else { return Ok(()) };
    let dir = batch::directory(state, id)?;
    match cut_off.record.stage {
        Stage::Landing if !undo::was_staged(&dir).map_err(|e| failed(id, &e))? => {
            stage::discard(base, &cut_off.record.holds, id).map_err(|e| failed(id, &e))?;
            batch::forget(state, id)?;
            give_up(state, id, "cut off before anything was changed", &undo::Landed::default())
        }
        Stage::Landing => {
            let plan = undo::read_plan(&dir, id)?;
            let mut landing = Landing::new(base, &plan);
            let can = landing.can_be_carried_out().map_err(|e| failed(id, &e))?;
            let landed = match can {
                true => landing.carry_out().and_then(|()| undo::landed(base, &dir, &plan)),
                false => Err(Fault::new(ErrorKind::Conflict, "cut off, and the base was changed since")),
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
        Stage::Tidying => {
            let plan = undo::read_plan(&dir, id)?;
            landing::tidy(state, &Landing::new(base, &plan), id);
            Ok(())
        }
    }
}

fn failed(id: &str, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("batch {id} was cut off and cannot be finished: {error}"));
    fault.hint("make its directory readable and writable again, then try again").phase(Phase::Application).subject(id)
}
