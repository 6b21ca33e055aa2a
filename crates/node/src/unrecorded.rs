//! Runs that have not ended, including those without a record yet, which only the lock of their layer and its metadata show.

use api::LiveRun;
use state::State;
use state::layer_meta::Meta;
use state::sandbox::layers_in_use;
use std::collections::BTreeMap;
use terms::Fault;

/// Returns the runs that have begun and are not recorded yet.
pub fn starting(state: &State) -> Result<Vec<LiveRun>, Fault> {
    unrecorded(state, &state.store.read(layers_in_use)?)
}

/// Lists runs over layers of their own that have no record: only the lock on the layer tells of them.
pub fn unrecorded(state: &State, known: &BTreeMap<String, u64>) -> Result<Vec<LiveRun>, Fault> {
    let mut found = Vec::new();
    for id in state.layer_names()?.into_iter().filter(|id| !known.contains_key(id)) {
        let Ok(layer) = state.layers.get(&id) else { continue };
        let Some(meta) = Meta::read(&layer).filter(|_| state::lock::holds(&layer)) else { continue };
        let Some(run) = meta.run_id else { continue };
        let Meta { base, pid, command, created_ms, .. } = meta;
        let (sandbox, name, silent) = (None, None, None);
        found.push(LiveRun { run, sandbox, name, base, pid, command, started_ms: created_ms, silent });
    }
    Ok(found)
}
