//! Templates: snapshots with a name that other sandboxes begin from, prepared once. They carry policy and limits, and are addressed by
//! name or by `name@sha256:…`, which can never come to mean something else.

use super::fork::{Origin, grow, in_force, origin};
use super::take::settle;
use super::{Ground, check_name, drop_unused, earlier, note};
use crate::lifecycle::bases;
use crate::lifecycle::keys::Once;
use crate::state::State;
use crate::warm::{self, Pool, Warmth};
use crate::{Caller, fresh};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::Path;
use store::{Kept, Record, Tx};
use terms::{ErrorKind, Fault, Phase};
use workspace::Lock;

/// Ids are `tpl_…`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Template {
    pub name: String,
    /// Over its layers, policy and limits.
    pub digest: String,
    /// The command that prepared it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    pub created_ms: u64,
    #[serde(flatten)]
    pub ground: Ground,
}

impl Record for Template {
    const KIND: &'static str = "template";

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

impl Template {
    /// The address that never means anything else.
    pub fn address(&self) -> String {
        format!("{}@sha256:{}", self.name, self.digest)
    }
}

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
    state: &State,
    caller: &Caller,
    name: &str,
    from: Option<&str>,
    prepared: Option<&str>,
) -> Result<Templated, Fault> {
    create_once(state, caller, name, from, prepared, None)
}

/// The same, once under a key.
pub fn create_once(
    state: &State,
    caller: &Caller,
    name: &str,
    from: Option<&str>,
    prepared: Option<&str>,
    once: Option<&Once>,
) -> Result<Templated, Fault> {
    if let Some(known) = earlier(state, once)? {
        return Ok(Templated { existed: true, ..known });
    }
    check_name(name)?;
    let Origin { sandbox: of, mut ground, .. } = origin(state, caller, from)?;
    // What was tampered with gets no name and no digest of its own.
    ground.verified(state)?;
    // It is made once and kept long: worth the wait.
    settle(state)?;
    // Whoever begins from it looks at the base anew.
    ground.anchors = workspace::Anchors::default();
    let at_ms = fresh::now_ms();
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
        let kept = tx.add(&terms::id("tpl", fresh::random()), template)?;
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
    Ok(Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// By name, by `name@sha256:…` (the whole digest or its beginning), or by id.
pub fn find_template(tx: &Tx<'_>, word: &str) -> Result<Kept<Template>, Fault> {
    let (name, digest) = match word.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (word, None),
    };
    let found = match tx.get_named::<Template>(name)? {
        Some(found) => Some(found),
        None => tx.get::<Template>(name)?,
    };
    let found = found.ok_or_else(|| {
        let fault = Fault::new(ErrorKind::NotFound, format!("there is no template {name:?}")).subject(name);
        fault.hint("`cofferdam template ls` lists them").phase(Phase::Admission)
    })?;
    let Some(digest) = digest else { return Ok(found) };
    let wanted = digest.strip_prefix("sha256:").filter(|d| d.len() >= 12);
    match wanted.is_some_and(|d| found.record.digest.starts_with(d)) {
        true => Ok(found),
        false => {
            let message = format!("the template {name:?} is not {digest} but sha256:{}", found.record.digest);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&found.id).phase(Phase::Admission);
            Err(fault.hint("leave the digest out to take it as it is now"))
        }
    }
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
pub fn describe_template(state: &State, word: &str) -> Result<Described, Fault> {
    state.store.read(|tx| Described::of(tx, find_template(tx, word)?))
}

/// All templates, in the order of their names.
pub fn describe_templates(state: &State) -> Result<Vec<Described>, Fault> {
    let mut all: Vec<Described> = state.store.read(|tx| {
        let all = tx.list::<Template>()?.into_iter();
        all.map(|kept| Described::of(tx, kept)).collect::<Result<_, _>>()
    })?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// What an earlier request to prepare one was answered with. A name that is taken is refused before anything is done.
pub fn earlier_template(state: &State, name: &str, once: Option<&Once>) -> Result<Option<Templated>, Fault> {
    match earlier(state, once)? {
        Some(known) => Ok(Some(Templated { existed: true, ..known })),
        None => refuse_other_template(state, name).map(|()| None),
    }
}

/// Before something is prepared under a name that is taken.
pub fn refuse_other_template(state: &State, name: &str) -> Result<(), Fault> {
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

/// Where a new sandbox begins.
#[derive(Debug)]
pub struct Seed {
    /// What stands in the record of the sandbox.
    pub template: String,
    pub ground: Ground,
    /// The whole stack, its top made just now; held until the sandbox is recorded.
    pub layers: Vec<String>,
    pub lock: Lock,
}

/// A stack for a new sandbox over `base`, which must be the directory that the template was made of. Who does not record
/// a sandbox with it takes the last of its layers away again.
pub fn from_template(state: &State, word: &str, base: Option<&Path>) -> Result<Seed, Fault> {
    let kept = state.store.read(|tx| find_template(tx, word))?;
    let ground = kept.record.ground.clone();
    if let Some(other) = base.filter(|b| *b != ground.base) {
        let message =
            format!("the template {} is of {}, not of {}", kept.record.name, ground.base.display(), other.display());
        let fault = Fault::new(ErrorKind::Conflict, message).subject(&kept.id).phase(Phase::Admission);
        return Err(fault.hint("leave the directory out, or prepare a template of that one"));
    }
    let base = ground.base()?;
    let frozen = ground.verified(state)?;
    let (layers, lock) = grow(state, &ground, &frozen, &base)?;
    Ok(Seed { template: kept.record.address(), ground, layers, lock })
}

/// Forgets a template, with what stands ready for it; sandboxes that began from it are not touched.
pub fn remove_template(state: &State, caller: &Caller, word: &str) -> Result<String, Fault> {
    let kept = state.store.write(|tx| {
        let kept = find_template(tx, word)?;
        tx.remove::<Template>(&kept.id)?;
        tx.remove::<Pool>(&kept.id)?;
        warm::give_up(tx, &kept.id)?;
        let body = serde_json::json!({ "address": kept.record.address() });
        note(tx, fresh::now_ms(), "template_rm", &kept.id, &caller.user, body)?;
        Ok(kept)
    })?;
    warm::take_away(state, caller)?;
    drop_unused(state, &kept.record.ground.layers)?;
    bases::leave(state, &kept.record.ground.base)?;
    Ok(kept.record.address())
}
