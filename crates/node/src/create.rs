//! Create: a sandbox over a directory, without reading the tree in it. Every error is found before anything is made, and a new
//! sandbox is one layer and one transaction.

pub(crate) mod attributes;
mod base;
mod claim;
pub(crate) mod rules;
pub(crate) mod spare_key;

use api::{Driver, JournalStep, OnTimeout, SandboxCreated, Service, Sharing};
pub use claim::claim;
pub use state::names::{check_name, may_be_name};

use crate::own_bases;
use crate::snapshots::check_in_use;
use base::template_ground;
pub(crate) use base::{Base, NewLayers, wait_for_clock};
use policy::Policy;
use runtime::Node;
use runtime::events::{DEFAULT_MAX, LEAST_MAX};
use runtime::policies::{Flag, RequestedPolicy};
use runtime::questions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use state::sandbox::Sandbox;
use state::snapshot::Ground;
use state::{Caller, bounds, total};
use state::{idempotency, reservations};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use store::{Entry, Kept, Tx};
use terms::{ErrorKind, Fault, Limits, Phase, Retry, check_amounts, least};
pub use workspace::copy::CopyTotals;

/// Most sandboxes in one state directory.
pub const MOST_SANDBOXES: u64 = 10_000;

#[derive(Clone, Debug, Default)]
pub struct CreateSandbox {
    /// The directory to cover; the current one by default.
    pub dir: Option<PathBuf>,
    /// Covers an empty directory of its own instead, unless a template brings one.
    pub own_base: bool,
    pub name: Option<String>,
    pub reserve: Vec<OsString>,
    pub sharing: Sharing,
    pub template: Option<String>,
    pub policies: Vec<RequestedPolicy>,
    pub flags: Vec<Flag>,
    pub limits: Limits,
    pub cpus: Option<f64>,
    pub ttl_ms: Option<u64>,
    pub idle_ms: Option<u64>,
    pub metadata: BTreeMap<String, String>,
    /// Variables that its commands inherit.
    pub env: BTreeMap<String, String>,
    pub timeout_ms: Option<u64>,
    pub on_timeout: OnTimeout,
    pub key: Option<String>,
    /// The workspace driver; the best one that works by default.
    pub driver: Option<Driver>,
    /// Commands that run as long as the sandbox is live.
    pub services: Vec<Service>,
    /// Denies all changes in the directory, whatever else is allowed.
    pub read_only: bool,
    /// Sources of secrets, in the form of the record.
    pub secrets: Vec<String>,
    pub events_max: Option<u64>,
    /// Reports refused reads of its commands, too.
    pub report_reads: bool,
    /// Time that a question waits for an answer; the default time if absent.
    pub ask_timeout_ms: Option<u64>,
}

pub fn create(node: &Node, caller: &Caller, ask: &CreateSandbox) -> Result<SandboxCreated, Fault> {
    create_with_progress(node, caller, ask, &mut |_| {})
}

/// Creates a sandbox and reports the progress of a driver that copies.
pub fn create_with_progress(
    node: &Node,
    caller: &Caller,
    ask: &CreateSandbox,
    progress: &mut dyn FnMut(&CopyTotals),
) -> Result<SandboxCreated, Fault> {
    match claim(node, caller, ask)? {
        Some(claimed) => Ok(claimed),
        None => make_with_progress(node, ask, caller, progress),
    }
}

/// Makes a sandbox without taking a spare.
pub fn make(node: &Node, caller: &Caller, ask: &CreateSandbox) -> Result<SandboxCreated, Fault> {
    make_with_progress(node, ask, caller, &mut |_| {})
}

fn check_fields(ask: &CreateSandbox) -> Result<(), Fault> {
    if let Some(name) = &ask.name {
        check_name(name)?;
    }
    if let Some(key) = &ask.key {
        idempotency::check(key)?;
    }
    attributes::check_metadata(&ask.metadata)?;
    attributes::check_env(&ask.env)?;
    ask.timeout_ms.map_or(Ok(()), attributes::check_timeout)?;
    check_amounts(&ask.limits, ask.cpus)
}

fn make_with_progress(
    node: &Node,
    ask: &CreateSandbox,
    caller: &Caller,
    progress: &mut dyn FnMut(&CopyTotals),
) -> Result<SandboxCreated, Fault> {
    check_fields(ask)?;
    let state = node.states.lend(caller)?;
    let ground = template_ground(&state, ask)?;
    let id = terms::id("sbx", sys::random::id_bytes());
    let own = if ask.own_base && ground.is_none() { Some(own_bases::make(&state, &id)?) } else { None };
    let base = Base::open(ask, ground.as_ref(), own.as_ref().map(own_bases::OwnBase::path), caller)?;
    state::directory::check_apart(&state.dir, &state.path, &base.dir, &base.path)?;
    let (mut sandbox, mut notes, policy) = describe(ask, caller, &base, ground.as_ref())?;
    if ask.dir.is_none()
        && ground.is_none()
        && own.is_none()
        && base.path != caller.cwd
        && caller.cwd.starts_with(&base.path)
    {
        notes.push(runtime::run::repository::note(&base.path, &caller.cwd));
    }
    sandbox.driver = match &ground {
        Some(ground) => ground.driver,
        None => workspace::driver::choose(&base.dir, &state.layers.dir, ask.driver)?,
    };
    // The key is compared with the request itself, so that a change of an operator's defaults does not make a repeated request
    // differ.
    let params = params(ask, &sandbox);
    notes.extend(bounds::apply(&mut sandbox, caller)?);
    if let Some(known) = state.store.read(|tx| earlier(tx, ask, &params, caller))? {
        return Ok(known);
    }
    state::directory::check_space(&state.dir, &state.path)?;
    total::admit(&state.layers, &state.path, caller)?;
    total::admit_copy(&state.layers, &state.path, caller, (&base.dir, sandbox.driver))?;
    // A request that is sure to be refused leaves no trace; the transaction below checks again.
    state.store.read(|tx| admit(tx, "", &sandbox, caller))?;
    let stacked = NewLayers::make(&state, caller, &base, ask, &id, &mut sandbox, progress)?;
    // What a template names is in its layers.
    let known = |label: &str| ask.template.is_some() && label.starts_with(rules::TEMPLATE);
    match runtime::run::copy_in(&policy, known, (&stacked.top, sandbox.driver), caller) {
        Ok(told) => notes.extend(told),
        Err(fault) => {
            stacked.drop_layer(&state);
            return Err(fault);
        }
    }
    let made = state.store.write(|tx| match earlier(tx, ask, &params, caller)? {
        Some(known) => Ok(known),
        None => {
            let params = idempotency::answered(params, &UnrecordedResponse { warm: false, notes: notes.clone() })?;
            let version = record(tx, ask, caller, &id, sandbox, params, false)?;
            let (id, base) = (id.clone(), base.path.clone());
            Ok(SandboxCreated { id, version, base, existed: false, warm: false, notes })
        }
    });
    match &made {
        Ok(made) if made.id == id => {
            own.into_iter().for_each(own_bases::OwnBase::keep);
            wait_for_clock(&stacked.top)
        }
        // After a disk fault the transaction may have been recorded or not. The next read of the store tells, and gc removes what
        // has no record.
        Err(fault) if matches!(fault.error_kind, ErrorKind::Unavailable | ErrorKind::Internal) => {
            own.into_iter().for_each(own_bases::OwnBase::keep);
        }
        // Another request under the same key won, or the name or a reservation was taken meanwhile.
        _ => stacked.drop_layer(&state),
    }
    made
}

/// Returns the record of a sandbox that would be made over a directory, without layers, and the notes for a person. Refuses what
/// `create` would refuse, and makes nothing.
pub(crate) fn outline(node: &Node, ask: &CreateSandbox, caller: &Caller) -> Result<(Sandbox, Vec<String>), Fault> {
    check_fields(ask)?;
    let state = node.states.lend(caller)?;
    let base = Base::open(ask, None, None, caller)?;
    state::directory::check_apart(&state.dir, &state.path, &base.dir, &base.path)?;
    let (mut sandbox, mut notes, _) = describe(ask, caller, &base, None)?;
    notes.extend(bounds::apply(&mut sandbox, caller)?);
    state.store.read(|tx| admit(tx, "", &sandbox, caller))?;
    Ok((sandbox, notes))
}

/// Builds the record without layers, and the notes on its policy for a person.
fn describe(
    ask: &CreateSandbox,
    caller: &Caller,
    base: &Base,
    ground: Option<&Ground>,
) -> Result<(Sandbox, Vec<String>, Policy), Fault> {
    let (policy, mut notes) = rules::policy_of(ask, ground, caller)?;
    notes.extend(rules::validate(&policy, ask, caller, &base.path)?);
    let policy = if ask.read_only { rules::unchanging(&policy)? } else { policy };
    runtime::secrets::check_recorded(&ask.secrets, &policy, &caller.reach)?;
    let document = serde_json::from_str(&policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    if ask.reserve.len() > reservations::MOST {
        let message = format!("--reserve: {} paths; at most {} can be reserved", ask.reserve.len(), reservations::MOST);
        return Err(Fault::invalid(message).hint("reserve a directory above them").phase(Phase::Admission));
    }
    let reserve = ask.reserve.iter().map(|text| reservations::parse(&base.path, text)).collect::<Result<_, _>>()?;
    rules::check_services(&ask.services)?;
    if let Some(ms) = ask.ask_timeout_ms {
        questions::patience("ask_timeout_ms", ms)?;
    }
    let now = terms::clock::now_ms();
    let sandbox = Sandbox {
        name: ask.name.clone(),
        owner: caller.owner(),
        own_base: ask.own_base && ground.is_none(),
        limits: ground.map_or(ask.limits, |g| g.limits.tightest(ask.limits)),
        cpus: least(ground.and_then(|g| g.cpus), ask.cpus),
        reserve,
        sharing: ask.sharing,
        git_head: workspace::git::head(&base.path),
        expires_ms: ask.ttl_ms.map(|ttl| now.saturating_add(ttl)),
        idle_ms: ask.idle_ms,
        services: ask.services.clone(),
        secrets: ask.secrets.clone(),
        events_max: ask.events_max.map(|max| max.clamp(LEAST_MAX, DEFAULT_MAX)),
        report_reads: ask.report_reads,
        ask_timeout_ms: ask.ask_timeout_ms,
        metadata: ask.metadata.clone(),
        env: ask.env.clone(),
        timeout_ms: ask.timeout_ms,
        timeout_at_ms: ask.timeout_ms.map(|ms| now.saturating_add(ms)),
        on_timeout: ask.on_timeout,
        ..Sandbox::new(base.path.clone(), base.id, document, now)
    };
    Ok((sandbox, notes, policy))
}

/// Returns the fields of a request, for comparison with a later request under the same key.
fn params(ask: &CreateSandbox, sandbox: &Sandbox) -> Map<String, Value> {
    let Sandbox { name, base, policy, limits, cpus, reserve, sharing, .. } = sandbox;
    let all = json!({
        "directory": if sandbox.own_base { None } else { Some(base) }, "name": name, "reserve": reserve, "shared": sharing.shared, "until_stop": sharing.until_stop,
        "template": ask.template, "policy": policy, "limits": limits, "cpus": cpus, "ttl_ms": ask.ttl_ms,
        "idle_ms": ask.idle_ms, "driver": ask.driver,
    });
    let mut all = all.as_object().cloned().unwrap_or_default();
    // Absent when empty, so that requests recorded before this field existed still compare equal.
    if !ask.services.is_empty() {
        all.insert("services".into(), json!(ask.services));
    }
    if !ask.secrets.is_empty() {
        all.insert("secrets".into(), json!(ask.secrets));
    }
    if let Some(max) = ask.events_max {
        all.insert("events_max".into(), json!(max));
    }
    if ask.report_reads {
        all.insert("report_reads".into(), json!(true));
    }
    if let Some(ms) = ask.ask_timeout_ms {
        all.insert("ask_timeout_ms".into(), json!(ms));
    }
    if !ask.metadata.is_empty() {
        all.insert("metadata".into(), json!(ask.metadata));
    }
    if !ask.env.is_empty() {
        all.insert("env".into(), json!(ask.env));
    }
    if let Some(ms) = ask.timeout_ms {
        all.insert("timeout_ms".into(), json!(ms));
        all.insert("on_timeout".into(), json!(ask.on_timeout));
    }
    all
}

/// Fields of a response that no record holds, kept so that a repeated request gets the same response.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct UnrecordedResponse {
    warm: bool,
    notes: Vec<String>,
}

/// Returns the sandbox that an earlier request under the same key made.
fn earlier(
    tx: &Tx<'_>,
    ask: &CreateSandbox,
    params: &Map<String, Value>,
    caller: &Caller,
) -> Result<Option<SandboxCreated>, Fault> {
    let Some(key) = &ask.key else { return Ok(None) };
    let known =
        idempotency::known::<UnrecordedResponse>(tx, &idempotency::of(caller, key), params, terms::clock::now_ms())?;
    let Some((id, told)) = known else { return Ok(None) };
    let UnrecordedResponse { warm, notes } = told.unwrap_or_default();
    match tx.get::<Sandbox>(&id)? {
        Some(kept) => {
            let (version, base) = (kept.version, kept.record.base);
            Ok(Some(SandboxCreated { id, version, base, existed: true, warm, notes }))
        }
        None => {
            let message = format!("the idempotency key {key:?} created {id}, which was removed since");
            let fault = Fault::new(ErrorKind::Conflict, message).subject(id).phase(Phase::Admission);
            Err(fault.hint("use another key"))
        }
    }
}

/// Checks the number of sandboxes, the name and the reservations.
fn admit(tx: &Tx<'_>, id: &str, sandbox: &Sandbox, caller: &Caller) -> Result<(), Fault> {
    if tx.count::<Sandbox>()? >= MOST_SANDBOXES {
        let message = format!("there are {MOST_SANDBOXES} sandboxes already, which is the maximum");
        let fault = Fault::new(ErrorKind::LimitExceeded, message).phase(Phase::Admission);
        return Err(fault.retry(Retry::Later).hint("remove some with `cofferdam rm` or `cofferdam gc`"));
    }
    if let Some(other) = sandbox.name.as_deref().map(|name| tx.get_named::<Sandbox>(name)).transpose()?.flatten() {
        return Err(name_taken("--name", &other, caller));
    }
    reservations::check(tx, id, sandbox, caller)
}

/// A conflict over a name. Names the sandbox that has it only to a caller who may see it.
pub(crate) fn name_taken(what: &str, other: &Kept<Sandbox>, caller: &Caller) -> Fault {
    let name = other.record.name.as_deref().unwrap_or_default();
    let (whose, seen) = if caller.sees_kept(other) { (other.id.as_str(), true) } else { ("another", false) };
    let fault = Fault::new(ErrorKind::Conflict, format!("{what} {name:?}: {whose} has that name"));
    let fault = if seen { fault.subject(whose) } else { fault };
    fault.hint("choose another name, or remove that one").phase(Phase::Admission)
}

fn record(
    tx: &Tx<'_>,
    ask: &CreateSandbox,
    caller: &Caller,
    id: &str,
    sandbox: Sandbox,
    params: Map<String, Value>,
    warm: bool,
) -> Result<u64, Fault> {
    admit(tx, id, &sandbox, caller)?;
    if let Some((_, below)) = sandbox.layers.split_last().filter(|(_, below)| !below.is_empty()) {
        check_in_use(tx, below)?;
    }
    let at_ms = terms::clock::now_ms();
    let body = json!({"base": sandbox.base, "name": sandbox.name, "layers": sandbox.layers, "driver": sandbox.driver,
        "reserve": sandbox.reserve, "expires_ms": sandbox.expires_ms, "key": ask.key, "warm": warm});
    let entry = Entry { at_ms, verb: "create", step: JournalStep::Intent, subject: id, actor: &caller.user, body };
    tx.note(&entry)?;
    if let Some(key) = &ask.key {
        idempotency::keep(tx, &idempotency::of(caller, key), id, params, at_ms)?;
    }
    let version = tx.add(id, sandbox)?.version;
    tx.note(&Entry { step: JournalStep::Done, body: Value::Null, ..entry })?;
    Ok(version)
}
