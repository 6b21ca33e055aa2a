//! Squashing of deep stacks: merges all frozen layers of a sandbox into one with the same contents. Snapshots keep their layers.

use super::take::{below, fresh_layer, sealed, settle};
use super::{discard, drop_unused, note, running};
use api::Driver;
use runtime::Node;
use state::sandbox::{self, Sandbox};
use state::{Caller, State};
use terms::{ErrorKind, Fault};
use workspace::{Dir, copy, manifest, sight};

/// Depth above which a stack is merged when there is time.
pub const DEEP: usize = 32;
/// Largest depth of a stack.
pub const DEEPEST: usize = 64;

/// Merges the frozen layers of a sandbox and returns whether there was something to merge. Skips a sandbox with a live run.
pub fn squash(node: &Node, caller: &Caller, id: &str) -> Result<bool, Fault> {
    merge(node, &*node.states.lend(caller)?, caller, id)
}

/// Merges in a state that is open.
pub fn merge(node: &Node, state: &State, caller: &Caller, id: &str) -> Result<bool, Fault> {
    let (sandbox, top, lock) = running::lock(node, state, id)?;
    let Some(_lock) = lock else { return Err(running::busy(state, &sandbox, "merging its layers")) };
    if sandbox.record.driver != Driver::Overlay || sandbox.record.layers.len() < 3 {
        return Ok(false);
    }
    let frozen = below(state, &sandbox.record)?;
    let mut layers = Vec::new();
    for one in &frozen {
        let layer = state.layers.get(&one.id).map_err(|e| state::snapshot::lost(&one.id, &e))?;
        // A layer that was tampered with must not become part of a merged one with a valid digest.
        manifest::verify(&layer, &one.digest, workspace::Marks::of(sandbox.record.driver))?;
        layers.push(layer);
    }
    let (merged, _held) = fresh_layer(state, &top)?;
    let ups: Vec<&Dir> = layers.iter().map(|l| &l.up).collect();
    let marks = workspace::Marks::of(sandbox.record.driver);
    let copied = copy::layers(&ups, &merged.up).and_then(|_| workspace::home::merge(&layers, &merged, marks));
    let seal = copied.and_then(|()| sealed(&merged, sandbox.record.driver));
    let _ = sight::carry_over(&layers, &merged); // without the digests, timestamps decide about drift
    // Without the mark, git's objects are not shown inside any more.
    let _ = workspace::git::carry_seed(&layers, &merged);
    // Synced first: the layers that it replaces are removed, and may be on the disk already.
    let seal = seal.and_then(|seal| settle(state).map(|()| seal));
    let recorded = seal.and_then(|seal| {
        state.store.write(|tx| {
            let mut now = tx.get::<Sandbox>(&sandbox.id)?.ok_or_else(|| sandbox::unknown(&sandbox.id))?;
            if now.record.layers != sandbox.record.layers {
                return Err(Fault::new(ErrorKind::Conflict, format!("{id} was changed meanwhile")).hint("try again"));
            }
            now.record.layers = vec![merged.id.clone(), top.id.clone()];
            tx.change(now)?;
            let body = serde_json::json!({ "merged": frozen.len(), "layer": merged.id, "digest": seal.digest });
            tx.add(&merged.id, seal)?;
            note(tx, terms::clock::now_ms(), "squash", &sandbox.id, &caller.user, body)
        })
    });
    if let Err(fault) = recorded {
        discard(state, &merged.id);
        return Err(fault.subject(id));
    }
    drop_unused(state, &sandbox.record.layers)?;
    Ok(true)
}
