//! After a restart of the machine, once: a power failure may have taken the names of layers that records speak of, since a snapshot and a
//! fork do not wait until a fresh layer has its name on the disk. Such a layer held nothing that anybody was promised; it is made
//! again, empty, and the sandbox says so. A snapshot that had bytes in it is refused by its digest.

use super::live;
use crate::fresh;
use crate::sandbox::Sandbox;
use crate::state::State;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{Entry, Kept, Record, Step};
use terms::Fault;
use workspace::{Dir, Driver};

/// The boot in which the state was looked at last; there is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Boot {
    boot: String,
}

impl Record for Boot {
    const KIND: &'static str = "boot";
}

const LAST: &str = "last";

/// Called whenever the state is opened; costs one look where the machine was not restarted since.
pub fn look(state: &State) -> Result<(), Fault> {
    let now = live::boot();
    let last = state.store.read(|tx| tx.get::<Boot>(LAST))?;
    if last.is_some_and(|last| last.record.boot == now) {
        return Ok(());
    }
    for sandbox in state.store.read(|tx| tx.list::<Sandbox>())? {
        make_again(state, &sandbox)?;
    }
    // Where nothing can be written it is looked at again the next time.
    let _ = state.store.write_soon(|tx| {
        tx.remove::<Boot>(LAST)?;
        tx.add(LAST, Boot { boot: now }).map(drop)
    });
    Ok(())
}

fn make_again(state: &State, sandbox: &Kept<Sandbox>) -> Result<(), Fault> {
    // A copy is the whole tree: none can be made again without its bytes. Without its base nothing works in it anyway.
    let Some(base) = Dir::open(&sandbox.record.base).ok().filter(|_| sandbox.record.driver == Driver::Overlay) else {
        return Ok(());
    };
    let again = |id: &&String| state.layers.make_again(&base, id).unwrap_or(false);
    let made: Vec<&String> = sandbox.record.layers.iter().filter(again).collect();
    if made.is_empty() {
        return Ok(());
    }
    let at_ms = fresh::now_ms();
    state.store.write(|tx| {
        let Some(mut kept) = tx.get::<Sandbox>(&sandbox.id)? else { return Ok(()) };
        let when = fresh::date(at_ms / 1000);
        kept.record.notes.push(format!("{} of its layers were gone after a restart, seen on {when}", made.len()));
        tx.change(kept)?;
        let body = json!({ "layers": made });
        let (verb, step, subject, actor) = ("layer_lost", Step::Done, sandbox.id.as_str(), "cofferdam");
        tx.note(&Entry { at_ms, verb, step, subject, actor, body }).map(drop)
    })
}
