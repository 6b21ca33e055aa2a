//! Sandboxes whose keeper died without clearing its card: the reason of the loss, and the end of their open runs.

use super::place::KeeperDir;
use super::spool::SpoolWriter;
use state::State;
use state::sandbox::Run;
use std::path::Path;
use store::{Kept, Store, Tx};
use terms::{Enforcement, EnforcementLevel, Fault, Outcome, PolicyStamp, RunId, Verdict};

/// Returns the reason why a sandbox has lost its keeper, if it has.
pub fn reason(state: &Path, sandbox: &str) -> Option<String> {
    let card = KeeperDir::of(state, sandbox).card()?;
    if card.handle().is_some() {
        return None;
    }
    Some(match card.fell {
        Some(reason) => reason,
        None if card.boot != state::process::boot() => "the machine went down while it was live".to_owned(),
        None => format!("its keeper (pid {}) was killed, and everything in it ended with it", card.pid),
    })
}

/// Clears the card of a lost keeper, so that the loss is not reported again.
pub fn forget(state: &Path, sandbox: &str) {
    if reason(state, sandbox).is_some() {
        KeeperDir::of(state, sandbox).clear();
    }
}

/// Marks runs whose supervisor died before it recorded an end as lost, in their records and at the end of their spools.
pub fn settle(state: &Path, sandbox: &str) -> Result<(), Fault> {
    settle_in(&Store::open(state)?, state, sandbox)
}

pub fn settle_open(state: &State, sandbox: &str) -> Result<(), Fault> {
    settle_in(&state.store, &state.path, sandbox)
}

fn settle_in(store: &Store, state: &Path, sandbox: &str) -> Result<(), Fault> {
    let lost = |tx: &Tx<'_>| -> Result<Vec<Kept<Run>>, Fault> {
        let open = tx.list_open::<Run>()?;
        Ok(open
            .into_iter()
            .filter(|r| r.record.sandbox == sandbox && state::process::handle(&r.record).is_none())
            .collect())
    };
    if store.read(lost)?.is_empty() {
        return Ok(());
    }
    let why = reason(state, sandbox).unwrap_or_else(|| "its supervisor was killed".to_owned());
    store.write(|tx| {
        for mut run in lost(tx)? {
            close(&KeeperDir::of(state, sandbox), &run.id, sandbox, &why);
            run.record.ended_ms = Some(terms::clock::now_ms());
            run.record.verdict = Some(Verdict::Lost);
            tx.change(run)?;
        }
        Ok(())
    })
}

/// Writes an end record to the spool of a run whose keeper is gone, where there is a spool.
pub fn close(place: &KeeperDir, run: &str, sandbox: &str, why: &str) {
    let (dir, Some(id)) = (place.run(run), RunId::parse(run)) else { return };
    if !dir.is_dir() {
        return;
    }
    let stamp = PolicyStamp::default();
    let unknown =
        Enforcement { level: EnforcementLevel::Partial, missing: vec!["unknown: the keeper is gone".to_owned()] };
    let outcome = Outcome {
        message: Some(why.to_owned()),
        sandbox: Some(sandbox.to_owned()),
        ..Outcome::new(id, stamp, unknown)
    };
    let document = serde_json::to_vec(&outcome).unwrap_or_default();
    // Best effort: the record tells the same.
    let _ = SpoolWriter::take_up(&dir).and_then(|mut log| match log.is_ended() {
        true => Ok(0),
        false => log.end(terms::clock::now_ms(), &document),
    });
}
