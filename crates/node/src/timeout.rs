//! Timeouts of sandboxes: which are due, and what is done then. The daemon looks; a sandbox that times out while no daemon runs is
//! dealt with by the next one.

use crate::{remove, stop, suspend};
use api::{Lifecycle, OnTimeout, Tier};
use runtime::Node;
use state::sandbox::{Sandbox, Which};
use state::{Caller, State};
use std::time::Duration;
use store::Kept;
use terms::Fault;

/// Time for a command to end before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Lists the sandboxes that have a timeout, with its time.
pub fn all(node: &Node, caller: &Caller) -> Result<Vec<(String, u64)>, Fault> {
    let state = node.states.open(caller)?;
    let all = state.store.read(|tx| tx.list::<Sandbox>())?;
    Ok(all.into_iter().filter_map(|kept| Some((kept.id, kept.record.timeout_at_ms?))).collect())
}

/// Times a sandbox out if its time is over. Returns when to look again; none where it has no timeout.
pub fn enforce(node: &Node, caller: &Caller, id: &str) -> Result<Option<u64>, Fault> {
    let state = node.states.open(caller)?;
    let Some(kept) = state.store.read(|tx| tx.get::<Sandbox>(id))? else { return Ok(None) };
    drop(state);
    let (Some(at), Some(ms)) = (kept.record.timeout_at_ms, kept.record.timeout_ms) else { return Ok(None) };
    let now = terms::clock::now_ms();
    if at > now {
        return Ok(Some(at));
    }
    let which = Which { word: Some(kept.id), version: None };
    // If it is started or woken, its time begins anew and ends later than this.
    let next = Some(now.saturating_add(ms));
    match kept.record.on_timeout {
        // Nothing runs in it.
        OnTimeout::Kill | OnTimeout::Suspend if kept.record.state == Lifecycle::Stopped => {}
        OnTimeout::Kill => stop::stop(node, caller, &which, GRACE).map(drop)?,
        OnTimeout::Suspend => suspend::suspend(node, caller, &which, Tier::Frozen, GRACE).map(drop)?,
        OnTimeout::Remove => {
            remove::remove(node, caller, &which, Some(GRACE))?;
            return Ok(None);
        }
    }
    Ok(next)
}

/// Begins the time of a sandbox anew that was timed out and is used again.
pub(crate) fn restart(state: &State, kept: &Kept<Sandbox>) -> Result<(), Fault> {
    if !kept.record.has_timed_out(terms::clock::now_ms()) {
        return Ok(());
    }
    state.store.write(|tx| {
        let Some(mut kept) = tx.get::<Sandbox>(&kept.id)? else { return Ok(()) };
        kept.record.restart_timeout(terms::clock::now_ms());
        tx.change(kept).map(drop)
    })
}
