//! Claim: gives a spare sandbox to the caller, in the transaction that would otherwise make one. The record is new and belongs to
//! the caller in every field; only the id, the layers and the keeper of the spare stay.

use super::spare_key::key_of;
use super::{Base, CreateSandbox, UnrecordedResponse, check_fields, describe, earlier, params, record};
use crate::snapshots::find_template;
use crate::stop::end_keeper;
use api::SandboxCreated;
use runtime::Node;
use runtime::keeper::Keeper;
use runtime::keeper::place::KeeperDir;
use runtime::keeper::wire::words_of;
use state::State;
use state::idempotency;
use state::pool::{Spare, SpareStage};
use state::sandbox::Sandbox;
use state::{Caller, bounds};
use std::time::Duration;
use store::{Kept, Tx};
use terms::{Fault, LimitKind, Limits};

/// Takes a spare that matches the request exactly; returns none if there is no such spare and a sandbox must be made.
pub fn claim(node: &Node, caller: &Caller, ask: &CreateSandbox) -> Result<Option<SandboxCreated>, Fault> {
    let Some(word) = &ask.template else { return Ok(None) };
    // Spares are built without any of these.
    if !ask.secrets.is_empty() || ask.events_max.is_some() || ask.report_reads || ask.ask_timeout_ms.is_some() {
        return Ok(None);
    }
    check_fields(ask)?;
    let state = node.states.open(caller)?;
    let (template, any) = state.store.read(|tx| {
        let template = find_template(tx, word)?;
        let any = spares(tx, &state, &template.id)?.next().is_some();
        Ok((template, any))
    })?;
    let ground = &template.record.ground;
    if !any {
        return Ok(None);
    }
    let base = Base::open(ask, Some(ground), None, caller)?;
    if (&base.path, base.id) != (&ground.base, ground.base_id) {
        return Ok(None);
    }
    state::directory::check_apart(&state.dir, &state.path, &base.dir, &base.path)?;
    let (mut sandbox, mut notes, _) = describe(ask, caller, &base, Some(ground))?;
    sandbox.driver = ground.driver;
    let params = params(ask, &sandbox);
    notes.extend(bounds::apply(&mut sandbox, caller)?);
    let Some(key) = key_of(&template.record.address(), &sandbox, caller)? else { return Ok(None) };
    let taken = state.store.write(|tx| {
        if let Some(known) = earlier(tx, ask, &params, caller)? {
            return Ok(Some(known));
        }
        let Some(spare) = spares(tx, &state, &template.id)?
            .find(|spare| spare.record.key == key && fits_limits(&spare.record.sandbox.limits, &sandbox.limits))
        else {
            return Ok(None);
        };
        let Kept { id, record: Spare { sandbox: stood, .. }, .. } = spare;
        let sandbox = Sandbox {
            layers: stood.layers,
            since: stood.since,
            template: stood.template,
            notes: stood.notes,
            languages: stood.languages,
            ..sandbox
        };
        // The new record refers to the same layers, so the old record is removed first.
        tx.remove::<Spare>(&id)?;
        let params = idempotency::answered(params, &UnrecordedResponse { warm: true, notes: notes.clone() })?;
        let version = record(tx, ask, caller, &id, sandbox, params, true)?;
        Ok(Some(SandboxCreated { id, version, base: base.path.clone(), existed: false, warm: true, notes }))
    })?;
    Ok(taken.map(|taken| if taken.existed { taken } else { hand_over(node, &state, taken, caller) }))
}

/// Returns true if a spare can be given these limits on memory and processes: no more than it was counted with.
fn fits_limits(stands: &Limits, wanted: &Limits) -> bool {
    let fits = |kind| match (stands.amount(kind), wanted.amount(kind)) {
        (None, _) => true,
        (Some(most), Some(wanted)) => wanted <= most,
        (Some(_), None) => false,
    };
    fits(LimitKind::MemoryMb) && fits(LimitKind::Processes)
}

/// Lists the spares that are ready and whose keeper lives.
fn spares<'a>(tx: &Tx<'_>, state: &'a State, pool: &str) -> Result<impl Iterator<Item = Kept<Spare>> + use<'a>, Fault> {
    let lives = |id: &str| KeeperDir::of(&state.path, id).card().is_some_and(|card| card.handle().is_some());
    let all = tx.list_in::<Spare>(pool)?.into_iter();
    Ok(all.filter(move |spare| spare.record.stage == SpareStage::Ready && lives(&spare.id)))
}

/// Tells the keeper of the spare its new owner. A keeper that cannot apply that ends, and the sandbox becomes live like any
/// other; the cause is reported then.
fn hand_over(node: &Node, state: &State, taken: SandboxCreated, caller: &Caller) -> SandboxCreated {
    let mut keeper = match Keeper::heard(node, &state.path, &taken.id) {
        Ok(Some(keeper)) => keeper,
        Ok(None) => return SandboxCreated { warm: false, ..taken },
        Err(fault) => {
            // The keeper holds the sandbox and would keep it from becoming live again.
            let _ = end_keeper(node, &state.path, &taken.id, Duration::ZERO, &mut Vec::new());
            return unclaimed(taken, fault);
        }
    };
    match keeper.claim(words_of(caller), caller.user.clone()) {
        Ok(()) => taken,
        Err(fault) => {
            let _ = keeper.end(&node.keepers, Duration::ZERO); // on a failure it is gone already
            unclaimed(taken, fault)
        }
    }
}

fn unclaimed(taken: SandboxCreated, fault: Fault) -> SandboxCreated {
    let mut notes = taken.notes;
    notes.push(format!("the spare could not be claimed: {}", fault.message));
    SandboxCreated { warm: false, notes, ..taken }
}
