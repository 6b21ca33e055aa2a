//! Recovery after a reboot, once: a power failure may have lost the directory entries of layers that records name, since a snapshot and a
//! fork do not sync a fresh layer's entry. Such a layer held nothing that was reported as durable; it is created again, empty, and the
//! sandbox gets a note. A snapshot that had content is refused by its digest.

use crate::State;
use crate::process;
use crate::sandbox::Sandbox;
use api::{Driver, JournalStep};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{Entry, Kept, Record};
use terms::Fault;
use workspace::Dir;

/// Boot id of the last check; a single record.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Boot {
    boot: String,
}

impl Record for Boot {
    const KIND: &'static store::Kind = crate::records::kind("boot");
}

const LAST: &str = "last";

/// Recreates lost layers once after a reboot; costs one read where there was none.
pub fn restore_layers(state: &State) -> Result<(), Fault> {
    let now = process::boot();
    let last = state.store.read(|tx| tx.get::<Boot>(LAST))?;
    if last.is_some_and(|last| last.record.boot == now) {
        return Ok(());
    }
    for sandbox in state.store.read(|tx| tx.list::<Sandbox>())? {
        make_again(state, &sandbox)?;
    }
    // On failure the check is repeated the next time.
    let _ = state.store.write_soon(|tx| {
        tx.remove::<Boot>(LAST)?;
        tx.add(LAST, Boot { boot: now }).map(drop)
    });
    Ok(())
}

fn make_again(state: &State, sandbox: &Kept<Sandbox>) -> Result<(), Fault> {
    // A copy is the whole tree and cannot be recreated without its bytes. Without its base a sandbox does not work anyway.
    let Some(base) = Dir::open(&sandbox.record.base).ok().filter(|_| sandbox.record.driver == Driver::Overlay) else {
        return Ok(());
    };
    let again = |id: &&String| state.layers.make_again(&base, id).unwrap_or(false);
    let made: Vec<&String> = sandbox.record.layers.iter().filter(again).collect();
    if made.is_empty() {
        return Ok(());
    }
    let at_ms = terms::clock::now_ms();
    state.store.write(|tx| {
        let Some(mut kept) = tx.get::<Sandbox>(&sandbox.id)? else { return Ok(()) };
        let when = terms::clock::date(at_ms / 1000);
        kept.record.notes.push(format!("{} of its layers were gone after a restart, seen on {when}", made.len()));
        tx.change(kept)?;
        let body = json!({ "layers": made });
        let (verb, step, subject, actor) = ("layer_lost", JournalStep::Done, sandbox.id.as_str(), "cofferdam");
        tx.note(&Entry { at_ms, verb, step, subject, actor, body }).map(drop)
    })
}
