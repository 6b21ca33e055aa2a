//! What became of sandboxes whose keeper is gone without a word: it is seen by the card that it left behind.

use super::place::Place;
use super::spool::Writer;
use crate::fresh;
use crate::lifecycle::live;
use crate::run::Written;
use crate::sandbox::Run;
use crate::state::State;
use std::path::Path;
use store::{Kept, Store, Tx};
use terms::{Enforcement, ErrorKind, Fault, Level, Outcome, PolicyStamp, RunId, Verdict};

/// Why a sandbox has lost its keeper, if it has.
pub fn reason(state: &Path, sandbox: &str) -> Option<String> {
    let card = Place::of(state, sandbox).card()?;
    if card.handle().is_some() {
        return None;
    }
    Some(match card.fell {
        Some(reason) => reason,
        None if card.boot != live::boot() => "the machine went down while it was live".to_owned(),
        None => format!("its keeper (pid {}) was killed, and everything in it ended with it", card.pid),
    })
}

/// It is known now, and no longer told.
pub fn forget(state: &Path, sandbox: &str) {
    if reason(state, sandbox).is_some() {
        Place::of(state, sandbox).clear();
    }
}

/// Runs whose supervisor is gone and wrote no end have been lost; so it is written, in the records and at the end of what they said.
pub fn settle(state: &Path, sandbox: &str) -> Result<(), Fault> {
    settle_in(&Store::open(state)?, state, sandbox)
}

pub fn settle_open(state: &State, sandbox: &str) -> Result<(), Fault> {
    settle_in(&state.store, &state.path, sandbox)
}

fn settle_in(store: &Store, state: &Path, sandbox: &str) -> Result<(), Fault> {
    let lost = |tx: &Tx<'_>| -> Result<Vec<Kept<Run>>, Fault> {
        let open = tx.list_open::<Run>()?;
        Ok(open.into_iter().filter(|r| r.record.sandbox == sandbox && live::handle(&r.record).is_none()).collect())
    };
    if store.read(lost)?.is_empty() {
        return Ok(());
    }
    let why = reason(state, sandbox).unwrap_or_else(|| "its supervisor was killed".to_owned());
    store.write(|tx| {
        for mut run in lost(tx)? {
            close(&Place::of(state, sandbox), &run.id, sandbox, &why);
            run.record.ended_ms = Some(fresh::now_ms());
            run.record.verdict = Some(Verdict::Lost);
            tx.change(run)?;
        }
        Ok(())
    })
}

/// Writes down a run that was begun and never recorded.
pub(super) fn never_recorded(state: &Path, place: &Place, written: &Written<'_>) -> Result<(), Fault> {
    let why = "its keeper was killed while it began";
    Store::open(state)?.write(|tx| {
        if tx.get::<Run>(written.run)?.is_some() {
            return Ok(());
        }
        written.begin(tx)?;
        written.fail(tx, &Fault::new(ErrorKind::Unavailable, why))
    })?;
    close(place, written.run, &written.sandbox, why);
    Ok(())
}

/// Puts an end to what a run has said, where it has said anything.
fn close(place: &Place, run: &str, sandbox: &str, why: &str) {
    let (dir, Some(id)) = (place.run(run), RunId::parse(run)) else { return };
    if !dir.is_dir() {
        return;
    }
    let stamp = PolicyStamp::default();
    let unknown = Enforcement { level: Level::Partial, missing: vec!["unknown: the keeper is gone".to_owned()] };
    let outcome = Outcome {
        message: Some(why.to_owned()),
        sandbox: Some(sandbox.to_owned()),
        ..Outcome::new(id, stamp, unknown)
    };
    let document = serde_json::to_vec(&outcome).unwrap_or_default();
    let _the_record_says_it_too = Writer::take_up(&dir).and_then(|mut log| match log.is_ended() {
        true => Ok(0),
        false => log.end(fresh::now_ms(), &document),
    });
}
