//! Revise: new network rules and limits for a sandbox. A caller who may not widen can only narrow them; a tenant's operator may
//! widen them up to the sandbox's ceiling. In a live sandbox they are put in force first and recorded then; if either fails,
//! neither takes effect.

use super::Widening;
use api::SandboxChange;
use policy::{Format, NetTarget, Policy};
use runtime::Node;
use runtime::keeper::Keeper;
use runtime::keeper::wire::Revision;
use runtime::policies;
use serde_json::{Value, json};
use state::State;
use state::sandbox::Sandbox;
use state::sandbox::{Which, pick};
use state::{Caller, Reach, bounds};
use store::Kept;
use terms::{ErrorKind, Fault, Limits, Phase, Retry, check_amounts};

/// Most rules in one request.
const MOST_RULES: usize = 1024;

/// The new policy and limits of a sandbox.
pub(super) struct Revised {
    id: String,
    policy: Value,
    ceiling: Value,
    limits: Limits,
    cpus: Option<f64>,
    revision: u64,
}

/// Checks the request and returns the new policy and limits, or none if it changes neither.
pub(super) fn prepare(
    state: &State,
    which: &Which,
    (ask, widening): (&SandboxChange, Widening),
    caller: &Caller,
) -> Result<Option<Revised>, Fault> {
    if ask.net.is_none() && ask.limits.is_none() && ask.cpus.is_none() {
        return Ok(None);
    }
    check_amounts(&ask.limits.unwrap_or_default(), ask.cpus.flatten())?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    let record = &kept.record;
    let now = read(&kept.id, &record.policy)?;
    let (document, then) = match &ask.net {
        None => (record.policy.clone(), read(&kept.id, &record.policy)?),
        Some(rules) => with_rules(&kept, rules)?,
    };
    let (mut limits, mut cpus) = (ask.limits.unwrap_or(record.limits), ask.cpus.unwrap_or(record.cpus));
    let is_about_limits = ask.limits.is_some() || ask.cpus.is_some();
    if is_about_limits {
        bounds::fill_change(record, &mut limits, &mut cpus, caller);
    }
    let is_host = widening == Widening::Allowed && caller.reach == Reach::All;
    let ceiling = record.ceiling.clone().unwrap_or_else(|| record.policy.clone());
    if !is_host {
        let (most, why) = match widening {
            Widening::Allowed => (read(&kept.id, &ceiling)?, "its policy at creation"),
            Widening::Refused => (read(&kept.id, &record.policy)?, "its current policy"),
        };
        policies::within(&most, &then, why)?;
        within_limits(record, &limits, cpus)?;
    }
    if is_about_limits {
        bounds::check_change(record, &limits, cpus, caller)?;
    }
    check_sockets(&now, &then)?;
    let mut whole = then.clone();
    let around = policies::surroundings(&mut whole, caller, &record.base, None);
    let resolved = policy::resolve(&whole, &around.context).map_err(Fault::from)?;
    policies::check_supported(&resolved, true)?;
    let holds = (now.digest(), record.limits, record.cpus) == (then.digest(), limits, cpus);
    // The policy that the host's operator sets becomes the ceiling for other callers.
    if holds && (!is_host || read(&kept.id, &ceiling)?.digest() == then.digest()) {
        return Ok(None);
    }
    Ok(Some(Revised {
        id: kept.id,
        ceiling: if is_host { document.clone() } else { ceiling },
        policy: document,
        limits,
        cpus,
        revision: record.revision + 1,
    }))
}

fn read(id: &str, policy: &Value) -> Result<Policy, Fault> {
    let document = policy::parse(&policy.to_string(), Format::Json, id).map_err(Fault::from)?;
    policy::effective(&[document]).map_err(Fault::from)
}

/// Returns the sandbox's policy with other network rules.
fn with_rules(kept: &Kept<Sandbox>, rules: &[Value]) -> Result<(Value, Policy), Fault> {
    if rules.len() > MOST_RULES {
        let message = format!("net: {} rules; at most {MOST_RULES} are allowed", rules.len());
        return Err(Fault::invalid(message).phase(Phase::Admission));
    }
    let mut document = kept.record.policy.clone();
    document["net"] = json!({ "rules": rules });
    let policy = read("net", &document)?;
    Ok((document, policy))
}

fn within_limits(record: &Sandbox, limits: &Limits, cpus: Option<f64>) -> Result<(), Fault> {
    let more = |what: &str| {
        let message = format!("{what}: this would allow more than now");
        let fault = Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Admission);
        Err(fault.hint("keep each limit, at most at its current value; an operator may raise it"))
    };
    if record.limits.tightest(*limits) != *limits {
        return more("limits");
    }
    match (record.cpus, cpus) {
        (Some(_), None) => more("cpus"),
        (Some(now), Some(then)) if then > now => more("cpus"),
        _ => Ok(()),
    }
}

/// Refuses new socket rules: sockets of the host are shown by mounts, which are made when the sandbox becomes live.
fn check_sockets(now: &Policy, then: &Policy) -> Result<(), Fault> {
    let sockets = |policy: &Policy| {
        let rules = policy.net.iter().map(|labelled| labelled.rule.clone());
        rules.filter(|rule| matches!(rule.to, NetTarget::Unix(_))).collect::<Vec<_>>()
    };
    match sockets(now) == sockets(then) {
        true => Ok(()),
        false => {
            let message = "net: rules about sockets of the host (proto unix) cannot be changed";
            Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint("keep them as they are").phase(Phase::Admission))
        }
    }
}

impl Revised {
    /// Puts policy and limits in force if the sandbox is live, and returns whether it is.
    pub(super) fn put_in_force(&self, node: &Node, caller: &Caller) -> Result<bool, Fault> {
        let dir = state::directory::prepare(caller)?.0;
        let Some(mut keeper) = Keeper::heard(node, &dir, &self.id)? else { return Ok(false) };
        let Revised { revision, policy, limits, cpus, .. } = self;
        keeper.revise(Revision { revision: *revision, policy: policy.clone(), limits: *limits, cpus: *cpus })?;
        Ok(true)
    }

    /// Restores the policy and limits of the record after the new ones could not be written to it.
    pub(super) fn take_back(&self, node: &Node, state: &State, caller: &Caller) {
        let Ok(Some(kept)) = state.store.read(|tx| tx.get::<Sandbox>(&self.id)) else { return };
        let Sandbox { revision, policy, limits, cpus, .. } = kept.record;
        let Ok((dir, ..)) = state::directory::prepare(caller) else { return };
        if let Ok(Some(mut keeper)) = Keeper::heard(node, &dir, &self.id) {
            // If this fails, the keeper has ended and its rules with it, or it has just stopped answering.
            let _ = keeper.revise(Revision { revision, policy, limits, cpus });
        }
    }

    pub(super) fn put(&self, kept: &mut Kept<Sandbox>) -> Result<(), Fault> {
        // Other fields that were changed meanwhile keep their new values.
        if kept.record.revision + 1 != self.revision {
            let message = format!("cannot change {}: another request changed its rules or limits meanwhile", kept.id);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&kept.id).phase(Phase::Admission);
            return Err(fault.retry(Retry::Now).hint("read it again, then repeat"));
        }
        let record = &mut kept.record;
        (record.policy, record.ceiling) = (self.policy.clone(), Some(self.ceiling.clone()));
        (record.limits, record.cpus, record.revision) = (self.limits, self.cpus, self.revision);
        Ok(())
    }
}
