//! The verb `change`: sets the name, retention, network rules, limits and published ports of an
//! existing sandbox. In a live sandbox, rules, limits and ports take effect at once.

mod ports;
mod revise;

use self::ports::Ports;
use self::revise::Revised;
use crate::create::{attributes, name_taken};
use api::{JournalStep, SandboxChange, SandboxChanged};
use runtime::Node;
use runtime::keeper::place::KeeperDir;
use serde_json::json;
use state::journal::note;
use state::names::check_name;
use state::sandbox::Sandbox;
use state::sandbox::{Which, pick};
use state::{Caller, State};
use terms::Fault;

/// Bound on what a change of rules and limits may allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Widening {
    /// Up to the sandbox's ceiling: what it was created with, or what the host's own user set
    /// later. The host's own user has no ceiling.
    Allowed,
    /// Nothing beyond the current rules and limits.
    Refused,
}

pub fn change(
    node: &Node,
    caller: &Caller,
    which: &Which,
    ask: &SandboxChange,
    widening: Widening,
) -> Result<SandboxChanged, Fault> {
    if let Some(Some(name)) = &ask.name {
        check_name(name)?;
    }
    ask.metadata.as_ref().map_or(Ok(()), attributes::check_metadata)?;
    ask.timeout_ms.flatten().map_or(Ok(()), attributes::check_timeout)?;
    let state = node.states.open(caller)?;
    let revised = revise::prepare(&state, which, (ask, widening), caller)?;
    let ports = ports::prepare(&state, which, (ask, widening), caller)?;
    let mut live = match &revised {
        Some(revised) => revised.put_in_force(node, caller)?,
        None => false,
    };
    let take_back = || revised.iter().filter(|_| live).for_each(|revised| revised.take_back(node, &state, caller));
    let mut open = match &ports {
        Some(ports) => ports.put_in_force(node, &state).inspect_err(|_| take_back())?,
        None => false,
    };
    let changed = store_change(&state, which, ask, caller, (revised.as_ref(), ports.as_ref())).inspect_err(|_| {
        take_back();
        ports.iter().filter(|_| open).for_each(|ports| ports.take_back(node, &state));
    })?;
    // A sandbox that became live meanwhile has read the old record.
    if let Some(revised) = revised.as_ref().filter(|_| !live) {
        live = revised.put_in_force(node, caller)?;
    }
    if let Some(ports) = ports.as_ref().filter(|_| !open) {
        open = ports.put_in_force(node, &state)?;
    }
    // Without new rules or ports nothing was sent to a keeper; `live` then says whether there is
    // one.
    let asks_nothing = revised.is_none() && ports.is_none();
    let live = live || open || asks_nothing && KeeperDir::of(&state.path, &changed.id).has_keeper();
    Ok(SandboxChanged { live, ..changed })
}

fn store_change(
    state: &State,
    which: &Which,
    ask: &SandboxChange,
    caller: &Caller,
    (revised, ports): (Option<&Revised>, Option<&Ports>),
) -> Result<SandboxChanged, Fault> {
    state.store.write(|tx| {
        let mut kept = pick(tx, which, caller)?;
        let named = |record: &Sandbox| (record.name.clone(), record.metadata.clone());
        let timed = |record: &Sandbox| {
            (record.expires_ms, record.idle_ms, record.timeout_ms, record.timeout_at_ms, record.on_timeout)
        };
        let before = (named(&kept.record), timed(&kept.record));
        if let Some(revised) = revised {
            revised.put(&mut kept)?;
        }
        if let Some(ports) = ports {
            ports.put(&mut kept)?;
        }
        let now = terms::clock::now_ms();
        if let Some(name) = &ask.name {
            kept.record.name = name.clone();
        }
        if let Some(ttl) = ask.ttl_ms {
            kept.record.expires_ms = ttl.map(|ttl| now.saturating_add(ttl));
        }
        if let Some(idle) = ask.idle_ms {
            kept.record.idle_ms = idle;
        }
        if let Some(metadata) = &ask.metadata {
            kept.record.metadata.clone_from(metadata);
        }
        if let Some(timeout) = ask.timeout_ms {
            kept.record.timeout_ms = timeout;
            kept.record.restart_timeout(now);
        }
        if let Some(on_timeout) = ask.on_timeout {
            kept.record.on_timeout = on_timeout;
        }
        let changed = revised.is_some() || ports.is_some() || before != (named(&kept.record), timed(&kept.record));
        if changed {
            let other = kept.record.name.as_deref().map(|name| tx.get_named::<Sandbox>(name)).transpose()?.flatten();
            if let Some(other) = other.filter(|other| other.id != kept.id) {
                return Err(name_taken("name", &other, caller));
            }
            kept.record.used_ms = now;
            note(tx, "change", JournalStep::Done, &kept.id, caller, json!(ask))?;
            kept = tx.change(kept)?;
        }
        let (id, version) = (kept.id, kept.version);
        let Sandbox { name, expires_ms, idle_ms, timeout_at_ms, revision, publish, .. } = kept.record;
        let live = false;
        Ok(SandboxChanged { id, version, name, expires_ms, idle_ms, timeout_at_ms, revision, publish, live, changed })
    })
}
