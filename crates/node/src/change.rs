//! Change: what can be said anew of a sandbox that is there: its name, how long it is kept, its network rules, its limits and the ports
//! of the host that lead inside. The last three hold at once where it is live.

mod ports;
mod revise;

use self::ports::Ports;
use self::revise::Revised;
use crate::create::name_taken;
use runtime::Node;
use runtime::keeper::place::Place;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use state::journal::note;
use state::names::check_name;
use state::sandbox::Sandbox;
use state::sandbox::{Which, pick};
use state::{Caller, State};
use store::Step;
use terms::{Fault, Limits};
use utoipa::ToSchema;

/// What is left out stays as it is; `null` takes it away: of `net` all rules, of `limits` all that were given. `publish` is a change
/// itself, and has no `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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
    /// The network rules from now on, in place of all that there are. They can only take away, but for an operator.
    #[serde(default, deserialize_with = "or_none", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub net: Option<Vec<serde_json::Value>>,
    /// The limits from now on, in place of all that were given with it; those of its policy hold as well.
    #[serde(default, deserialize_with = "or_none", skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 0.01, maximum = 4096)]
    pub cpus: Option<Option<f64>>,
    /// Ports of the host that lead inside as long as it is live. An operator of the host adds some; who runs commands can remove them.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub publish: Option<Publish>,
    /// Whoever asks may also allow more.
    #[serde(skip)]
    pub may_widen: bool,
}

/// `[ADDRESS:]HOST:GUEST` each; 127.0.0.1 where no address is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = PublishChange)]
pub struct Publish {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Connections to them are broken off. The port inside can be left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// `null` is something else than nothing.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// `null` is none of them.
fn or_none<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from).map(|given| Some(given.unwrap_or_default()))
}

fn stated<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
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
    /// Counts changes of its network rules and limits.
    pub revision: u64,
    /// Ports of the host that lead inside.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub publish: Vec<String>,
    /// It is live, and all of this holds for what runs in it already.
    pub live: bool,
    /// False when it was so already.
    pub changed: bool,
}

pub fn change(node: &Node, caller: &Caller, which: &Which, ask: &Ask) -> Result<Changed, Fault> {
    if let Some(Some(name)) = &ask.name {
        check_name(name)?;
    }
    let state = node.states.open(caller)?;
    let revised = revise::prepare(&state, which, ask, caller)?;
    let ports = ports::prepare(&state, which, ask, caller)?;
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
    // One that became live meanwhile has read the record as it was.
    if let Some(revised) = revised.as_ref().filter(|_| !live) {
        live = revised.put_in_force(node, caller)?;
    }
    if let Some(ports) = ports.as_ref().filter(|_| !open) {
        open = ports.put_in_force(node, &state)?;
    }
    // What asks nothing of a guest holds in any.
    let asks_nothing = revised.is_none() && ports.is_none();
    let live = live || open || asks_nothing && Place::of(&state.path, &changed.id).has_keeper();
    Ok(Changed { live, ..changed })
}

fn store_change(
    state: &State,
    which: &Which,
    ask: &Ask,
    caller: &Caller,
    (revised, ports): (Option<&Revised>, Option<&Ports>),
) -> Result<Changed, Fault> {
    state.store.write(|tx| {
        let mut kept = pick(tx, which, caller)?;
        let before = (kept.record.name.clone(), kept.record.expires_ms, kept.record.idle_ms);
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
        let changed = revised.is_some()
            || ports.is_some()
            || before != (kept.record.name.clone(), kept.record.expires_ms, kept.record.idle_ms);
        if changed {
            let other = kept.record.name.as_deref().map(|name| tx.get_named::<Sandbox>(name)).transpose()?.flatten();
            if let Some(other) = other.filter(|other| other.id != kept.id) {
                return Err(name_taken("name", &other, caller));
            }
            kept.record.used_ms = now;
            note(tx, "change", Step::Done, &kept.id, caller, json!(ask))?;
            kept = tx.change(kept)?;
        }
        let (id, version) = (kept.id, kept.version);
        let Sandbox { name, expires_ms, idle_ms, revision, publish, .. } = kept.record;
        Ok(Changed { id, version, name, expires_ms, idle_ms, revision, publish, live: false, changed })
    })
}
