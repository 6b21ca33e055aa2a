//! Change: what can be said anew of a sandbox that is there: its name, and how long it is kept.

use super::create::check_name;
use super::stop::{Which, note, pick};
use crate::sandbox::Sandbox;
use crate::state::State;
use crate::{Caller, fresh};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use store::Step;
use terms::{ErrorKind, Fault, Phase};
use utoipa::ToSchema;

/// What is left out stays as it is; `null` takes it away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SandboxChange)]
pub struct Ask {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub name: Option<Option<String>>,
    /// May be collected after so long, from now on.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub ttl_ms: Option<Option<u64>>,
    /// May be collected when unused for so long.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub idle_ms: Option<Option<u64>>,
}

/// `null` is something else than nothing.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    pub id: String,
    pub version: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_ms: Option<u64>,
    /// False when it was so already.
    pub changed: bool,
}

pub fn change(which: &Which, ask: &Ask, caller: &Caller) -> Result<Changed, Fault> {
    if let Some(Some(name)) = &ask.name {
        check_name(name)?;
    }
    let state = State::open(caller)?;
    state.store.write(|tx| {
        let mut kept = pick(tx, which, caller)?;
        let before = (kept.record.name.clone(), kept.record.expires_ms, kept.record.idle_ms);
        let now = fresh::now_ms();
        if let Some(name) = &ask.name {
            kept.record.name = name.clone();
        }
        if let Some(ttl) = ask.ttl_ms {
            kept.record.expires_ms = ttl.map(|ttl| now.saturating_add(ttl));
        }
        if let Some(idle) = ask.idle_ms {
            kept.record.idle_ms = idle;
        }
        let changed = before != (kept.record.name.clone(), kept.record.expires_ms, kept.record.idle_ms);
        if changed {
            let other = kept.record.name.as_deref().map(|name| tx.get_named::<Sandbox>(name)).transpose()?.flatten();
            if let Some(other) = other.filter(|other| other.id != kept.id) {
                let message = format!("name: {} has that name", other.id);
                let fault = Fault::new(ErrorKind::Conflict, message).subject(other.id).phase(Phase::Admission);
                return Err(fault.hint("choose another name"));
            }
            kept.record.used_ms = now;
            note(tx, "change", Step::Done, &kept.id, caller, json!(ask))?;
            kept = tx.change(kept)?;
        }
        let Sandbox { name, expires_ms, idle_ms, .. } = kept.record;
        Ok(Changed { id: kept.id, version: kept.version, name, expires_ms, idle_ms, changed })
    })
}
