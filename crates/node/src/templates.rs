//! Templates: snapshots with a name that other sandboxes begin from, prepared once. They carry policy and limits, and are addressed by
//! name or by `name@sha256:…`, which can never come to mean something else.

use crate::own_bases;
use crate::snapshots::fork::{Origin, in_force, origin};
use crate::snapshots::take::settle;
use crate::snapshots::{drop_unused, earlier, find_template, note};
use crate::warm::{self, Warmth};
use runtime::Node;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use state::idempotency::Once;
use state::names::check_name;
use state::pool::Pool;
use state::snapshot::{Ground, Template};
use state::{Caller, State};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase};

#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Templated {
    pub protocol_version: u32,
    pub id: String,
    /// `NAME@sha256:DIGEST`, which never means anything else.
    pub address: String,
    /// There was the same one already.
    pub unchanged: bool,
    /// An earlier request under the same key made it.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

/// Names what a snapshot or a sandbox holds.
pub fn create(
    node: &Node,
    caller: &Caller,
    name: &str,
    from: Option<&str>,
    prepared: Option<&str>,
) -> Result<Templated, Fault> {
    create_once(node, caller, name, from, prepared, None)
}

/// The same, once under a key.
pub fn create_once(
    node: &Node,
    caller: &Caller,
    name: &str,
    from: Option<&str>,
    prepared: Option<&str>,
    once: Option<&Once>,
) -> Result<Templated, Fault> {
    let state = &node.states.lend(caller)?;
    if let Some(known) = earlier(state, once)? {
        return Ok(Templated { existed: true, ..known });
    }
    check_name(name)?;
    let Origin { sandbox: of, mut ground, .. } = origin(node, state, caller, from)?;
    // What was tampered with gets no name and no digest of its own.
    ground.verified(state)?;
    // It is made once and kept long: worth the wait.
    settle(state)?;
    // Whoever begins from it looks at the base anew.
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

fn answer(kept: &Kept<Template>, unchanged: bool) -> Templated {
    let (id, address) = (kept.id.clone(), kept.record.address());
    Templated { protocol_version: terms::PROTOCOL_VERSION, id, address, unchanged, existed: false }
}

fn digest_of(ground: &Ground) -> Result<String, Fault> {
    let text = serde_json::to_vec(&(ground.digest(), &ground.base, &ground.policy, &ground.limits, ground.cpus));
    let text = text.map_err(|e| Fault::internal(e.to_string()))?;
    Ok(terms::hex::encode(Sha256::digest(&text)))
}

/// A template as it is told.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = TemplateListed)]
pub struct Described {
    pub id: String,
    pub name: String,
    /// `NAME@sha256:DIGEST`, which never means anything else.
    pub address: String,
    #[schema(value_type = String)]
    pub base: std::path::PathBuf,
    /// The command that prepared it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    pub layers: usize,
    /// Of files in all its layers.
    pub bytes: u64,
    pub created_ms: u64,
    /// What sandboxes that begin from it may do, unless they are told less.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
    /// Sandboxes that stand ready for it, where some shall.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warm: Option<Warmth>,
}

impl Described {
    pub fn of(tx: &Tx<'_>, Kept { id, record, .. }: Kept<Template>) -> Result<Described, Fault> {
        let (address, layers, bytes) = (record.address(), record.ground.layers.len(), record.ground.bytes());
        let warm = warm::warmth(tx, &id)?;
        let Template { name, prepared, created_ms, ground, .. } = record;
        let (base, policy) = (ground.base, ground.policy);
        Ok(Described { id, name, address, base, prepared, layers, bytes, created_ms, policy, warm })
    }
}

/// One of them.
pub fn describe_template(node: &Node, caller: &Caller, word: &str) -> Result<Described, Fault> {
    node.states.lend(caller)?.store.read(|tx| Described::of(tx, find_template(tx, word)?))
}

/// All templates, in the order of their names.
pub fn describe_templates(node: &Node, caller: &Caller) -> Result<Vec<Described>, Fault> {
    let mut all: Vec<Described> = node.states.lend(caller)?.store.read(|tx| {
        let all = tx.list::<Template>()?.into_iter();
        all.map(|kept| Described::of(tx, kept)).collect::<Result<_, _>>()
    })?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// What an earlier request to prepare one was answered with. A name that is taken is refused before anything is done.
pub fn earlier_template(
    node: &Node,
    caller: &Caller,
    name: &str,
    once: Option<&Once>,
) -> Result<Option<Templated>, Fault> {
    let state = &node.states.lend(caller)?;
    match earlier(state, once)? {
        Some(known) => Ok(Some(Templated { existed: true, ..known })),
        None => refuse_other(state, name).map(|()| None),
    }
}

/// Before something is prepared under a name that is taken.
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

/// Forgets a template, with what stands ready for it; sandboxes that began from it are not touched.
pub fn remove_template(node: &Node, caller: &Caller, word: &str) -> Result<String, Fault> {
    let state = &node.states.lend(caller)?;
    let kept = state.store.write(|tx| {
        let kept = find_template(tx, word)?;
        tx.remove::<Template>(&kept.id)?;
        tx.remove::<Pool>(&kept.id)?;
        warm::give_up(tx, &kept.id)?;
        let body = serde_json::json!({ "address": kept.record.address() });
        note(tx, terms::clock::now_ms(), "template_rm", &kept.id, &caller.user, body)?;
        Ok(kept)
    })?;
    warm::take_away(node, caller, state)?;
    drop_unused(state, &kept.record.ground.layers)?;
    own_bases::leave(state, &kept.record.ground.base)?;
    Ok(kept.record.address())
}
