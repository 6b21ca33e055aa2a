//! Templates: named snapshots that new sandboxes start from, prepared once. They have a policy and limits, and are addressed by
//! name or by `name@sha256:…`, which is immutable.

use crate::own_bases;
use crate::snapshots::fork::{ForkOrigin, in_force, origin};
use crate::snapshots::take::settle;
use crate::snapshots::{drop_unused, earlier, find_template, note};
use crate::warm;
use api::{TemplateCreated, TemplateSummary};
use runtime::Node;
use sha2::Digest;
use sha2::Sha256;
use state::idempotency::KeyedRequest;
use state::names::check_name;
use state::pool::Pool;
use state::snapshot::{Ground, Template};
use state::{Caller, State};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase};

/// Makes a template of a snapshot or a sandbox.
pub fn create(
    node: &Node,
    caller: &Caller,
    name: &str,
    from: Option<&str>,
    prepared: Option<&str>,
) -> Result<TemplateCreated, Fault> {
    create_once(node, caller, name, from, prepared, None)
}

/// Makes a template, at most once under a key.
pub fn create_once(
    node: &Node,
    caller: &Caller,
    name: &str,
    from: Option<&str>,
    prepared: Option<&str>,
    once: Option<&KeyedRequest>,
) -> Result<TemplateCreated, Fault> {
    let state = &node.states.lend(caller)?;
    if let Some(known) = earlier(state, once)? {
        return Ok(TemplateCreated { existed: true, ..known });
    }
    check_name(name)?;
    let ForkOrigin { sandbox: of, mut ground, .. } = origin(node, state, caller, from)?;
    // A layer that was tampered with must not get a valid digest of its own.
    ground.verified(state)?;
    // Synced: a template is made once and kept long.
    settle(state)?;
    // A new sandbox reads the base anew.
    ground.anchors = workspace::Anchors::default();
    let at_ms = terms::clock::now_ms();
    state.store.write(|tx| {
        if let Some(last) = in_force(tx, &of, caller)? {
            (ground.policy, ground.limits, ground.cpus) = (last.policy, last.limits, last.cpus);
        }
        let digest = digest_of(&ground)?;
        if let Some(there) = tx.get_named::<Template>(name)? {
            if there.record.digest == digest {
                return Ok(answer(&there, true));
            }
            return Err(taken(&there));
        }
        let template = Template {
            name: name.to_owned(),
            digest,
            prepared: prepared.map(str::to_owned),
            created_ms: at_ms,
            ground,
        };
        let kept = tx.add(&terms::id("tpl", sys::random::id_bytes()), template)?;
        note(tx, at_ms, "template", &kept.id, &caller.user, serde_json::json!({ "address": kept.record.address() }))?;
        let made = answer(&kept, false);
        once.map_or(Ok(()), |once| once.keep(tx, &kept.id, &made, at_ms))?;
        Ok(made)
    })
}

fn answer(kept: &Kept<Template>, unchanged: bool) -> TemplateCreated {
    let (id, address) = (kept.id.clone(), kept.record.address());
    TemplateCreated { protocol_version: terms::PROTOCOL_VERSION, id, address, unchanged, existed: false }
}

fn digest_of(ground: &Ground) -> Result<String, Fault> {
    let text = serde_json::to_vec(&(ground.digest(), &ground.base, &ground.policy, &ground.limits, ground.cpus));
    let text = text.map_err(|e| Fault::internal(e.to_string()))?;
    Ok(terms::hex::encode(Sha256::digest(&text)))
}

fn summary(tx: &Tx<'_>, Kept { id, record, .. }: Kept<Template>) -> Result<TemplateSummary, Fault> {
    let (address, layers, bytes) = (record.address(), record.ground.layers.len(), record.ground.bytes());
    let warm = warm::warmth(tx, &id)?;
    let Template { name, prepared, created_ms, ground, .. } = record;
    let (base, policy) = (ground.base, ground.policy);
    Ok(TemplateSummary { id, name, address, base, prepared, layers, bytes, created_ms, policy, warm })
}

/// Describes one template.
pub fn describe_template(node: &Node, caller: &Caller, word: &str) -> Result<TemplateSummary, Fault> {
    node.states.lend(caller)?.store.read(|tx| summary(tx, find_template(tx, word)?))
}

/// Describes all templates, by name.
pub fn describe_templates(node: &Node, caller: &Caller) -> Result<Vec<TemplateSummary>, Fault> {
    let mut all: Vec<TemplateSummary> = node.states.lend(caller)?.store.read(|tx| {
        let all = tx.list::<Template>()?.into_iter();
        all.map(|kept| summary(tx, kept)).collect::<Result<_, _>>()
    })?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Returns the response to an earlier request under the same key. Refuses a taken name before anything is prepared.
pub fn earlier_template(
    node: &Node,
    caller: &Caller,
    name: &str,
    once: Option<&KeyedRequest>,
) -> Result<Option<TemplateCreated>, Fault> {
    let state = &node.states.lend(caller)?;
    match earlier(state, once)? {
        Some(known) => Ok(Some(TemplateCreated { existed: true, ..known })),
        None => refuse_other(state, name).map(|()| None),
    }
}

/// Refuses a taken name before anything is prepared.
pub fn refuse_other_template(node: &Node, caller: &Caller, name: &str) -> Result<(), Fault> {
    refuse_other(&*node.states.lend(caller)?, name)
}

fn refuse_other(state: &State, name: &str) -> Result<(), Fault> {
    check_name(name)?;
    match state.store.read(|tx| tx.get_named::<Template>(name))? {
        Some(there) => Err(taken(&there)),
        None => Ok(()),
    }
}

fn taken(there: &Kept<Template>) -> Fault {
    let name = &there.record.name;
    let message = format!("there is another template named {name:?}: {}", there.record.address());
    let fault = Fault::new(ErrorKind::Conflict, message).subject(&there.id).phase(Phase::Admission);
    fault.hint(format!("choose another name, or `cofferdam template rm {name}` first"))
}

/// Removes a template and its spares; sandboxes made from it stay.
pub fn remove_template(node: &Node, caller: &Caller, word: &str) -> Result<String, Fault> {
    let state = &node.states.lend(caller)?;
    let kept = state.store.write(|tx| {
        let kept = find_template(tx, word)?;
        tx.remove::<Template>(&kept.id)?;
        tx.remove::<Pool>(&kept.id)?;
        warm::mark_leaving(tx, &kept.id)?;
        let body = serde_json::json!({ "address": kept.record.address() });
        note(tx, terms::clock::now_ms(), "template_rm", &kept.id, &caller.user, body)?;
        Ok(kept)
    })?;
    warm::take_away(node, caller, state)?;
    drop_unused(state, &kept.record.ground.layers)?;
    own_bases::leave(state, &kept.record.ground.base)?;
    Ok(kept.record.address())
}
