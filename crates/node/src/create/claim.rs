//! Claim: a sandbox that stands ready becomes the caller's, in the transaction that would else make one. Its record is new and is the
//! caller's in every field; of the one that stood there only the id, the layers and the keeper stay.

use super::spare_key::key_of;
use super::{Ask, Base, Created, Told, check_words, describe, earlier, params, record};
use crate::snapshots::find_template;
use crate::stop::end_keeper;
use runtime::Node;
use runtime::keeper::Keeper;
use runtime::keeper::place::Place;
use runtime::keeper::wire::words_of;
use state::State;
use state::idempotency;
use state::pool::{Spare, Stage};
use state::sandbox::Sandbox;
use state::{Caller, bounds};
use std::time::Duration;
use store::{Kept, Tx};
use terms::{Fault, LimitKind, Limits};

/// Takes one that stands ready for just this; nothing where none does, and then one must be made.
pub fn claim(node: &Node, caller: &Caller, ask: &Ask) -> Result<Option<Created>, Fault> {
    let Some(word) = &ask.template else { return Ok(None) };
    // What stands ready was built for none of these.
    if !ask.secrets.is_empty() || ask.events_max.is_some() || ask.report_reads || ask.ask_timeout_ms.is_some() {
        return Ok(None);
    }
    check_words(ask)?;
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
    let (mut sandbox, mut notes) = describe(ask, caller, &base, Some(ground))?;
    sandbox.driver = ground.driver;
    let params = params(ask, &sandbox);
    notes.extend(bounds::apply(&mut sandbox, caller)?);
    let Some(key) = key_of(&template.record.address(), &sandbox, caller)? else { return Ok(None) };
    let taken = state.store.write(|tx| {
        if let Some(known) = earlier(tx, ask, &params, caller)? {
            return Ok(Some(known));
        }
        let Some(spare) = spares(tx, &state, &template.id)?
            .find(|spare| spare.record.key == key && leaves_room(&spare.record.sandbox.limits, &sandbox.limits))
        else {
            return Ok(None);
        };
        let Kept { id, record: Spare { sandbox: stood, .. }, .. } = spare;
        let sandbox = Sandbox {
            layers: stood.layers,
            since: stood.since,
            template: stood.template,
            notes: stood.notes,
            ..sandbox
        };
        // The new record refers to the same layers, so the old one goes first.
        tx.remove::<Spare>(&id)?;
        let params = idempotency::answered(params, &Told { warm: true, notes: notes.clone() })?;
        let version = record(tx, ask, caller, &id, sandbox, params, true)?;
        Ok(Some(Created { id, version, base: base.path.clone(), existed: false, warm: true, notes }))
    })?;
    Ok(taken.map(|taken| if taken.existed { taken } else { tell(node, &state, taken, caller) }))
}

/// Whether one that stands ready can be given these limits on memory and processes: no more than it was counted with.
fn leaves_room(stands: &Limits, wanted: &Limits) -> bool {
    let fits = |kind| match (stands.amount(kind), wanted.amount(kind)) {
        (None, _) => true,
        (Some(most), Some(wanted)) => wanted <= most,
        (Some(_), None) => false,
    };
    fits(LimitKind::MemoryMb) && fits(LimitKind::Processes)
}

/// Those that can be taken.
fn spares<'a>(tx: &Tx<'_>, state: &'a State, pool: &str) -> Result<impl Iterator<Item = Kept<Spare>> + use<'a>, Fault> {
    let lives = |id: &str| Place::of(&state.path, id).card().is_some_and(|card| card.handle().is_some());
    let all = tx.list_in::<Spare>(pool)?.into_iter();
    Ok(all.filter(move |spare| spare.record.stage == Stage::Ready && lives(&spare.id)))
}

/// Its keeper hears whose it is. One that cannot take that up leaves, and the sandbox becomes live as any other does: what hinders it
/// is told then.
fn tell(node: &Node, state: &State, taken: Created, caller: &Caller) -> Created {
    let mut keeper = match Keeper::heard(node, &state.path, &taken.id) {
        Ok(Some(keeper)) => keeper,
        Ok(None) => return Created { warm: false, ..taken },
        Err(fault) => {
            // It holds the sandbox, and would keep it from becoming live as any other.
            let _ = end_keeper(node, &state.path, &taken.id, Duration::ZERO, &mut Vec::new());
            return unclaimed(taken, fault);
        }
    };
    match keeper.claim(words_of(caller), caller.user.clone()) {
        Ok(()) => taken,
        Err(fault) => {
            let _it_is_gone_then = keeper.end(&node.keepers, Duration::ZERO);
            unclaimed(taken, fault)
        }
    }
}

fn unclaimed(taken: Created, fault: Fault) -> Created {
    let mut notes = taken.notes;
    notes.push(format!("the one that stood ready could not be taken over: {}", fault.message));
    Created { warm: false, notes, ..taken }
}
