//! How many shall stand ready for a template: said, and told.

use super::{MOST, fill, give_up, take_away};
use crate::create::{self, rules};
use crate::snapshots::find_template;
use runtime::Node;
use runtime::policies::{Flag, Source};
use serde::{Deserialize, Serialize};
use serde_json::json;
use state::Caller;
use state::journal::note;
use state::pool::{Pool, Spare, Stage};
use store::{Kept, Step, Tx};
use terms::{Fault, Limits, PROTOCOL_VERSION, Phase, check_amounts, least};
use utoipa::ToSchema;

/// What shall stand ready.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub template: String,
    /// None shall, with nought.
    pub keep: u32,
    pub policies: Vec<Source>,
    pub flags: Vec<Flag>,
    pub limits: Limits,
    pub cpus: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TemplateWarmed)]
pub struct Set {
    pub protocol_version: u32,
    /// `NAME@sha256:DIGEST` of the template.
    pub address: String,
    #[serde(flatten)]
    pub warm: Warmth,
    /// False when it was so already.
    pub changed: bool,
    pub notes: Vec<String>,
}

/// Sandboxes that stand ready for a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warmth {
    /// So many shall.
    pub keep: u32,
    /// So many do.
    pub ready: u32,
    /// Why there are fewer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
}

/// Says how many shall stand ready, and under what. Those that stand for something else go; new ones are made by a daemon.
pub fn set(node: &Node, caller: &Caller, ask: &Ask) -> Result<Set, Fault> {
    if ask.keep > MOST {
        let fault = Fault::invalid(format!("--keep {}: at most {MOST} stand ready for one template", ask.keep));
        return Err(fault.hint("a daemon makes new ones as they are taken").phase(Phase::Admission));
    }
    check_amounts(&ask.limits, ask.cpus)?;
    let state = node.states.open(caller)?;
    let template = state.store.read(|tx| find_template(tx, &ask.template))?;
    let (pool, notes) = match ask.keep {
        0 => (None, Vec::new()),
        _ => pool_of(ask, caller, &template.record.ground).map(|(pool, notes)| (Some(pool), notes))?,
    };
    fill::mark(&state)?;
    let changed = state.store.write(|tx| {
        let before = tx.get::<Pool>(&template.id)?;
        let same = |kept: &Kept<Pool>| pool.as_ref() == Some(&Pool { trouble: None, ..kept.record.clone() });
        let changed = match (&before, &pool) {
            (None, None) => false,
            (Some(kept), Some(_)) => !same(kept),
            _ => true,
        };
        if !changed {
            return Ok(false);
        }
        let body = json!({ "address": template.record.address(), "keep": ask.keep, "policy": pool.as_ref().map(|p| &p.policy) });
        note(tx, "warm", Step::Done, &template.id, caller, body)?;
        let is_other = |kept: &Kept<Pool>| {
            pool.as_ref().is_none_or(|pool| *pool != Pool { keep: pool.keep, trouble: None, ..kept.record.clone() })
        };
        if before.as_ref().is_some_and(is_other) {
            give_up(tx, &template.id)?;
        }
        match (before, pool.clone()) {
            (Some(kept), Some(pool)) => tx.change(Kept { record: pool, ..kept }).map(drop)?,
            (None, Some(pool)) => tx.add(&template.id, pool).map(drop)?,
            (_, None) => tx.remove::<Pool>(&template.id).map(drop)?,
        }
        Ok(true)
    })?;
    // Whoever looked in between saw a mark and no pool yet, and took the mark away.
    if ask.keep > 0 {
        fill::mark(&state)?;
    }
    take_away(node, caller, &state)?;
    let warm = state.store.read(|tx| warmth(tx, &template.id))?.unwrap_or_default();
    Ok(Set { protocol_version: PROTOCOL_VERSION, address: template.record.address(), warm, changed, notes })
}

/// The same policy and limits that `create` with these words would give a sandbox.
fn pool_of(ask: &Ask, caller: &Caller, ground: &state::snapshot::Ground) -> Result<(Pool, Vec<String>), Fault> {
    let wanted = create::Ask {
        policies: ask.policies.clone(),
        flags: ask.flags.clone(),
        limits: ask.limits,
        cpus: ask.cpus,
        ..create::Ask::default()
    };
    let (policy, mut notes) = rules::policy_of(&wanted, Some(ground), caller)?;
    notes.extend(rules::validate(&policy, &wanted, caller, &ground.base)?);
    let policy = serde_json::from_str(&policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    let limits = ground.limits.tightest(ask.limits);
    Ok((Pool { keep: ask.keep, policy, limits, cpus: least(ground.cpus, ask.cpus), trouble: None }, notes))
}

/// How many stand ready for a template, and shall; nothing where none shall.
pub fn warmth(tx: &Tx<'_>, template: &str) -> Result<Option<Warmth>, Fault> {
    let Some(Kept { record: Pool { keep, trouble, .. }, .. }) = tx.get::<Pool>(template)? else { return Ok(None) };
    let ready = tx.list_in::<Spare>(template)?.iter().filter(|spare| spare.record.stage == Stage::Ready).count() as u32;
    Ok(Some(Warmth { keep, ready, trouble: trouble.filter(|_| ready < keep) }))
}
