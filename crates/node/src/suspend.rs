//! Suspend and resume. How far a sandbox is suspended is a tier, and the answer says which was reached, never more: frozen, where
//! everything stands still in memory; or hibernated, where everything was ended in order and services start again.

use crate::ended::Ended;
use runtime::Node;
use runtime::keeper::client::{GREETING, Keeper};
use runtime::liveness;
use serde::{Deserialize, Serialize};
use serde_json::json;
use state::admission::{Standing, Verb, check};
use state::journal::note;
use state::lock::{LockAttempt, LockResult};
use state::sandbox::{Sandbox, Tier};
use state::sandbox::{Which, pick};
use state::{Caller, State};
use std::time::Duration;
use store::{Kept, Step};
use terms::{ErrorKind, Fault, Phase, Retry};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Suspended {
    pub id: String,
    pub version: u64,
    pub reached: Tier,
    /// False when it was so already.
    pub changed: bool,
    /// What froze it: "cgroup" or "signals".
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub with: Option<String>,
    /// Bytes of its memory that the kernel took back; none where it cannot be asked to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub paged_out: Option<u64>,
    /// Runs that were ended for it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ended: Vec<Ended>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Resumed {
    pub id: String,
    pub version: u64,
    /// How far it was suspended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub was: Option<Tier>,
    /// False when it was not suspended.
    pub changed: bool,
    /// Runs of services that were started for it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub started: Vec<String>,
}

/// Suspends a sandbox, as far as `tier` says; `grace` is how long its commands have to end where they must.
pub fn suspend(node: &Node, caller: &Caller, which: &Which, tier: Tier, grace: Duration) -> Result<Suspended, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    let standing = liveness::standing(node, &state, &kept, GREETING);
    let is_so = standing == Standing::Frozen && tier == Tier::Frozen;
    if !check(standing, Verb::Suspend, &kept.id)? || is_so {
        let reached = if standing == Standing::Frozen { Tier::Frozen } else { Tier::Hibernated };
        return Ok(answer(&kept, reached, false));
    }
    let keeper = Keeper::heard(node, &state.path, &kept.id)?;
    match (tier, keeper) {
        (Tier::Frozen, Some(keeper)) => freeze(&state, &kept, keeper, caller),
        // One that is not live has no process, and so there is nothing to stand still.
        (_, keeper) => {
            if keeper.is_none() && standing == Standing::Running {
                return Err(apart(&kept.id));
            }
            hibernate(node, &state, &kept, keeper, grace, caller)
        }
    }
}

fn answer(kept: &Kept<Sandbox>, reached: Tier, changed: bool) -> Suspended {
    let (id, version) = (kept.id.clone(), kept.version);
    Suspended { id, version, reached, changed, with: None, paged_out: None, ended: Vec::new() }
}

/// What runs there without a keeper belongs to whoever started it.
fn apart(id: &str) -> Fault {
    let message = format!("{id} is not live: a single command runs in it, for whoever started it");
    let fault = Fault::new(ErrorKind::Conflict, message).subject(id).phase(Phase::Admission);
    fault.hint("wait for it, or end it with `cofferdam stop`")
}

/// Somebody was quicker than the record.
fn used_again(id: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{id} was used again while it was suspended")).subject(id);
    fault.phase(Phase::Execution).retry(Retry::Later).hint("suspend it again when that has ended")
}

fn freeze(state: &State, kept: &Kept<Sandbox>, mut keeper: Keeper, caller: &Caller) -> Result<Suspended, Fault> {
    let froze = keeper.freeze()?;
    state.store.write(|tx| note(tx, "suspend", Step::Done, &kept.id, caller, json!({ "reached": Tier::Frozen })))?;
    Ok(Suspended { with: Some(froze.with), paged_out: froze.paged_out, ..answer(kept, Tier::Frozen, true) })
}

fn hibernate(
    node: &Node,
    state: &State,
    kept: &Kept<Sandbox>,
    keeper: Option<Keeper>,
    grace: Duration,
    caller: &Caller,
) -> Result<Suspended, Fault> {
    state.store.write(|tx| note(tx, "suspend", Step::Intent, &kept.id, caller, json!({ "tier": Tier::Hibernated })))?;
    let pid = keeper.as_ref().map_or(0, |keeper| keeper.card.pid);
    let left = keeper.map(|keeper| keeper.end(&node.keepers, grace)).transpose()?.unwrap_or_default();
    let ended = left.ended.into_iter().map(|(run, killed)| Ended { run, pid, killed }).collect();
    // Until it is written down nobody makes it live again: one that is live does not know that it is hibernated.
    let LockAttempt { result: LockResult::Locked(_lock), .. } = liveness::lock_patiently(node, state, &kept.id)? else {
        return Err(used_again(&kept.id));
    };
    let now = state.store.write(|tx| {
        let mut now: Kept<Sandbox> = tx.get(&kept.id)?.ok_or_else(|| state::sandbox::unknown(&kept.id))?;
        now.record.suspended = Some(Tier::Hibernated);
        now.record.used_ms = terms::clock::now_ms();
        note(tx, "suspend", Step::Done, &kept.id, caller, json!({ "reached": Tier::Hibernated }))?;
        tx.change(now)
    })?;
    Ok(Suspended { ended, ..answer(&now, Tier::Hibernated, true) })
}

/// Wakes a sandbox that is suspended; nothing to do for others.
pub fn resume(node: &Node, caller: &Caller, which: &Which) -> Result<Resumed, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    let standing = liveness::standing(node, &state, &kept, GREETING);
    if !check(standing, Verb::Resume, &kept.id)? {
        return Ok(Resumed { id: kept.id, version: kept.version, was: None, changed: false, started: Vec::new() });
    }
    let mut keeper = Keeper::ensure(node, caller, &state.path, &kept.id)?;
    let (was, started) = match standing {
        Standing::Frozen => {
            keeper.thaw()?;
            state.store.write(|tx| note(tx, "resume", Step::Done, &kept.id, caller, json!({ "was": Tier::Frozen })))?;
            (Tier::Frozen, Vec::new())
        }
        _ => {
            let services = keeper.list()?.into_iter().filter(|run| run.service.is_some());
            (Tier::Hibernated, services.map(|run| run.run).collect())
        }
    };
    let now = state.store.read(|tx| tx.get::<Sandbox>(&kept.id))?.unwrap_or(kept);
    Ok(Resumed { id: now.id, version: now.version, was: Some(was), changed: true, started })
}
