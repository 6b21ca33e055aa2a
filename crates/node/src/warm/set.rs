//! The number of spares of a template: set and read.

use super::{MOST, fill, mark_leaving, take_away};
use crate::create::{self, rules};
use crate::snapshots::find_template;
use api::{JournalStep, Language, TemplateWarmed, WarmPool};
use runtime::Node;
use runtime::policies::{Flag, RequestedPolicy};
use serde_json::json;
use state::Caller;
use state::journal::note;
use state::pool::{Pool, Spare, SpareStage};
use store::{Kept, Tx};
use terms::{Fault, Limits, PROTOCOL_VERSION, Phase, check_amounts, least};

/// A request to keep spares of a template.
#[derive(Clone, Debug, Default)]
pub struct KeepSpares {
    pub template: String,
    /// The number of spares; 0 removes the pool.
    pub keep: u32,
    pub policies: Vec<RequestedPolicy>,
    pub flags: Vec<Flag>,
    pub limits: Limits,
    pub cpus: Option<f64>,
    /// Languages whose interpreters start as soon as a spare is claimed.
    pub languages: Vec<Language>,
}

/// Sets the number of spares and their policy and limits. Spares with other ones are removed; a daemon makes new ones.
pub fn set(node: &Node, caller: &Caller, ask: &KeepSpares) -> Result<TemplateWarmed, Fault> {
    if ask.keep > MOST {
        let fault = Fault::invalid(format!("--keep {}: at most {MOST} spares are kept for one template", ask.keep));
        return Err(fault.hint("a daemon creates new ones as they are claimed").phase(Phase::Admission));
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
        note(tx, "warm", JournalStep::Done, &template.id, caller, body)?;
        let is_other = |kept: &Kept<Pool>| {
            pool.as_ref().is_none_or(|pool| *pool != Pool { keep: pool.keep, trouble: None, ..kept.record.clone() })
        };
        if before.as_ref().is_some_and(is_other) {
            mark_leaving(tx, &template.id)?;
        }
        match (before, pool.clone()) {
            (Some(kept), Some(pool)) => tx.change(Kept { record: pool, ..kept }).map(drop)?,
            (None, Some(pool)) => tx.add(&template.id, pool).map(drop)?,
            (_, None) => tx.remove::<Pool>(&template.id).map(drop)?,
        }
        Ok(true)
    })?;
    // A sweep in between saw a marker without a pool and removed it.
    if ask.keep > 0 {
        fill::mark(&state)?;
    }
    take_away(node, caller, &state)?;
    let warm = state.store.read(|tx| warmth(tx, &template.id))?.unwrap_or_default();
    Ok(TemplateWarmed { protocol_version: PROTOCOL_VERSION, address: template.record.address(), warm, changed, notes })
}

/// Returns the policy and limits that `create` with the same options would give a sandbox.
fn pool_of(ask: &KeepSpares, caller: &Caller, ground: &state::snapshot::Ground) -> Result<(Pool, Vec<String>), Fault> {
    let wanted = create::CreateSandbox {
        policies: ask.policies.clone(),
        flags: ask.flags.clone(),
        limits: ask.limits,
        cpus: ask.cpus,
        ..create::CreateSandbox::default()
    };
    let (policy, mut notes) = rules::policy_of(&wanted, Some(ground), caller)?;
    notes.extend(rules::validate(&policy, &wanted, caller, &ground.base)?);
    let policy = serde_json::from_str(&policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    let limits = ground.limits.tightest(ask.limits);
    let mut languages = ask.languages.clone();
    languages.sort_unstable();
    languages.dedup();
    let cpus = least(ground.cpus, ask.cpus);
    Ok((Pool { keep: ask.keep, policy, limits, cpus, languages, trouble: None }, notes))
}

/// Returns the requested and the current number of spares of a template; none without a pool.
pub fn warmth(tx: &Tx<'_>, template: &str) -> Result<Option<WarmPool>, Fault> {
    let Some(Kept { record: Pool { keep, trouble, languages, .. }, .. }) = tx.get::<Pool>(template)? else {
        return Ok(None);
    };
    let ready =
        tx.list_in::<Spare>(template)?.iter().filter(|spare| spare.record.stage == SpareStage::Ready).count() as u32;
    Ok(Some(WarmPool { keep, ready, languages, trouble: trouble.filter(|_| ready < keep) }))
}
