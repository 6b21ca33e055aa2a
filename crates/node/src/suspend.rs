//! Suspend and resume. The answer names the tier that was reached: frozen, where all processes stay in memory, or hibernated,
//! where all runs were ended in order and services start again.

use crate::timeout;
use api::{EndedRun, JournalStep, SandboxResumed, SandboxState, SandboxSuspended, Tier};
use runtime::Node;
use runtime::keeper::client::{GREETING, Keeper};
use runtime::liveness;
use serde_json::json;
use state::admission::{Verb, check};
use state::journal::note;
use state::lock::{LockAttempt, LockResult};
use state::sandbox::Sandbox;
use state::sandbox::{Which, pick};
use state::{Caller, State};
use std::time::Duration;
use store::Kept;
use terms::{ErrorKind, Fault, Phase, Retry};

/// Suspends a sandbox down to `tier`; `grace` is the time that its commands have to end for a hibernation.
pub fn suspend(
    node: &Node,
    caller: &Caller,
    which: &Which,
    tier: Tier,
    grace: Duration,
) -> Result<SandboxSuspended, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    let standing = liveness::standing(node, &state, &kept, GREETING);
    let is_so = standing == SandboxState::Frozen && tier == Tier::Frozen;
    if !check(standing, Verb::Suspend, &kept.id)? || is_so {
        let reached = if standing == SandboxState::Frozen { Tier::Frozen } else { Tier::Hibernated };
        return Ok(answer(&kept, reached, false));
    }
    let keeper = Keeper::heard(node, &state.path, &kept.id)?;
    match (tier, keeper) {
        (Tier::Frozen, Some(keeper)) => freeze(&state, &kept, keeper, caller),
        // A sandbox that is not live has no process to freeze.
        (_, keeper) => {
            if keeper.is_none() && standing == SandboxState::Running {
                return Err(apart(&kept.id));
            }
            hibernate(node, &state, &kept, keeper, grace, caller)
        }
    }
}

fn answer(kept: &Kept<Sandbox>, reached: Tier, changed: bool) -> SandboxSuspended {
    let (id, version) = (kept.id.clone(), kept.version);
    SandboxSuspended { id, version, reached, changed, with: None, paged_out: None, ended: Vec::new() }
}

/// A run without a keeper belongs to the client that started it.
fn apart(id: &str) -> Fault {
    let message = format!("cannot suspend {id}: it is not live, and a single command of another client runs in it");
    let fault = Fault::new(ErrorKind::Conflict, message).subject(id).phase(Phase::Admission);
    fault.hint("wait for it, or end it with `cofferdam stop`")
}

/// The conflict with a command that started before the suspension was recorded.
fn used_again(id: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{id} was used again while it was suspended")).subject(id);
    fault.phase(Phase::Execution).retry(Retry::Later).hint("suspend it again when that has ended")
}

fn freeze(state: &State, kept: &Kept<Sandbox>, mut keeper: Keeper, caller: &Caller) -> Result<SandboxSuspended, Fault> {
    let froze = keeper.freeze()?;
    state
        .store
        .write(|tx| note(tx, "suspend", JournalStep::Done, &kept.id, caller, json!({ "reached": Tier::Frozen })))?;
    Ok(SandboxSuspended { with: Some(froze.with), paged_out: froze.paged_out, ..answer(kept, Tier::Frozen, true) })
}

fn hibernate(
    node: &Node,
    state: &State,
    kept: &Kept<Sandbox>,
    keeper: Option<Keeper>,
    grace: Duration,
    caller: &Caller,
) -> Result<SandboxSuspended, Fault> {
    state
        .store
        .write(|tx| note(tx, "suspend", JournalStep::Intent, &kept.id, caller, json!({ "tier": Tier::Hibernated })))?;
    let pid = keeper.as_ref().map_or(0, |keeper| keeper.card.pid);
    let left = keeper.map(|keeper| keeper.end(&node.keepers, grace)).transpose()?.unwrap_or_default();
    let ended = left.ended.into_iter().map(|(run, killed)| EndedRun { run, pid, killed }).collect();
    // The lock is held until the record is written, so that the sandbox does not become live meanwhile: a live one does not read
    // that it is hibernated.
    let LockAttempt { result: LockResult::Locked(_lock), .. } = liveness::lock_patiently(node, state, &kept.id)? else {
        return Err(used_again(&kept.id));
    };
    let now = state.store.write(|tx| {
        let mut now: Kept<Sandbox> = tx.get(&kept.id)?.ok_or_else(|| state::sandbox::unknown(&kept.id))?;
        now.record.suspended = Some(Tier::Hibernated);
        now.record.used_ms = terms::clock::now_ms();
        note(tx, "suspend", JournalStep::Done, &kept.id, caller, json!({ "reached": Tier::Hibernated }))?;
        tx.change(now)
    })?;
    Ok(SandboxSuspended { ended, ..answer(&now, Tier::Hibernated, true) })
}

/// Wakes a sandbox that is suspended; does nothing for others.
pub fn resume(node: &Node, caller: &Caller, which: &Which) -> Result<SandboxResumed, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    let standing = liveness::standing(node, &state, &kept, GREETING);
    if !check(standing, Verb::Resume, &kept.id)? {
        return Ok(SandboxResumed {
            id: kept.id,
            version: kept.version,
            was: None,
            changed: false,
            started: Vec::new(),
        });
    }
    timeout::restart(&state, &kept)?;
    let mut keeper = Keeper::ensure(node, caller, &state.path, &kept.id)?;
    let (was, started) = match standing {
        SandboxState::Frozen => {
            keeper.thaw()?;
            state
                .store
                .write(|tx| note(tx, "resume", JournalStep::Done, &kept.id, caller, json!({ "was": Tier::Frozen })))?;
            (Tier::Frozen, Vec::new())
        }
        _ => {
            let services = keeper.list()?.into_iter().filter(|run| run.service.is_some());
            (Tier::Hibernated, services.map(|run| run.run).collect())
        }
    };
    let now = state.store.read(|tx| tx.get::<Sandbox>(&kept.id))?.unwrap_or(kept);
    Ok(SandboxResumed { id: now.id, version: now.version, was: Some(was), changed: true, started })
}
