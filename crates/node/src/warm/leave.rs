//! Removal of spares. They are marked in the transaction that makes them unwanted, so that no `create` takes one that is being
//! removed; then their keepers end, their layers are removed, and their records last.

use crate::stop::end_keeper;
use api::JournalStep;
use runtime::Node;
use runtime::keeper::place::KeeperDir;
use serde_json::{Value, json};
use state::journal::note;
use state::layer_meta::drop_layer;
use state::pool::{Pool, Spare, SpareStage};
use state::{Caller, State};
use std::time::{Duration, Instant};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Most time for a keeper to end.
const LEAVING: Duration = Duration::from_secs(30);
/// Most time for a spare to become ready.
const COMING_MS: u64 = 120_000;

/// Marks all spares of a template for removal.
pub(crate) fn mark_leaving(tx: &Tx<'_>, pool: &str) -> Result<(), Fault> {
    for mut spare in tx.list_in::<Spare>(pool)? {
        spare.record.stage = SpareStage::Leaving;
        tx.change(spare)?;
    }
    Ok(())
}

/// Returns the reason for which a spare cannot be used, if there is one. Reads only records and the kernel, so that `gc` can call
/// it, too.
pub(crate) fn idle(tx: &Tx<'_>, state: &State, spare: &Kept<Spare>) -> Result<Option<&'static str>, Fault> {
    let lives = KeeperDir::of(&state.path, &spare.id).card().is_some_and(|card| card.handle().is_some());
    let old = spare.record.sandbox.created_ms.saturating_add(COMING_MS) < terms::clock::now_ms();
    Ok(match spare.record.stage {
        SpareStage::Leaving => Some("it is no longer needed"),
        _ if tx.get::<Pool>(&spare.record.pool)?.is_none() => Some("no pool needs it"),
        SpareStage::Ready if !lives => Some("its keeper is gone"),
        SpareStage::Coming if !lives && old => Some("it never became live"),
        _ => None,
    })
}

/// Removes all unusable spares; returns their number.
pub fn take_away(node: &Node, caller: &Caller, state: &State) -> Result<u64, Fault> {
    let useless = state.store.read(|tx| {
        let mut found = Vec::new();
        for spare in tx.list::<Spare>()? {
            if idle(tx, state, &spare)?.is_some() {
                found.push(spare.id);
            }
        }
        Ok(found)
    })?;
    let mut gone = 0;
    for id in useless {
        gone += u64::from(drop_spare(node, state, &id, caller)?);
    }
    Ok(gone)
}

/// Removes a spare, usable or not; returns false if it is in use or gone already.
pub(crate) fn drop_spare(node: &Node, state: &State, id: &str, caller: &Caller) -> Result<bool, Fault> {
    let marked = state.store.write(|tx| {
        let Some(mut spare) = tx.get::<Spare>(id)? else { return Ok(None) };
        if spare.record.stage == SpareStage::Leaving {
            return Ok(Some(spare));
        }
        spare.record.stage = SpareStage::Leaving;
        tx.change(spare).map(Some)
    })?;
    let Some(spare) = marked else { return Ok(false) };
    let top = spare.record.sandbox.layers.last().and_then(|id| state.layers.get(id).ok());
    let end = Instant::now() + LEAVING;
    // Held during the removal, so that no keeper starts on the layers.
    let _lock = loop {
        match top.as_ref().map(|layer| layer.lock()) {
            None => break None,
            Some(Ok(Some(lock))) => break Some(lock),
            _ if Instant::now() > end => return Err(stuck(id)),
            _ => {}
        }
        end_keeper(node, &state.path, id, Duration::ZERO, &mut Vec::new());
        std::thread::sleep(Duration::from_millis(10));
    };
    let referred = state.store.read(|tx| tx.referred("layers"))?;
    for layer in crate::remove::alone(&spare.record.sandbox, &referred) {
        drop_layer(&state.layers, layer).map_err(|e| Fault::internal(format!("{layer}: {e}")).subject(id))?;
    }
    KeeperDir::of(&state.path, id).remove();
    state.store.write(|tx| {
        note(tx, "spare_rm", JournalStep::Done, id, caller, json!({ "pool": spare.record.pool }))?;
        tx.remove::<Spare>(id)
    })
}

fn stuck(id: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{id}: a process holds its layer and does not end"));
    fault.subject(id).retry(Retry::Later).phase(Phase::Close).hint("try again; `cofferdam gc` also removes it")
}

/// The journal body of a spare that is made.
pub(super) fn body(pool: &str, address: &str) -> Value {
    json!({ "pool": pool, "template": address })
}
