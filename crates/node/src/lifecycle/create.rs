//! Create: a sandbox over a directory, without a look at the tree in it. Everything that can be wrong is found before
//! anything is made, and what is made is one layer and one transaction.

use super::meta::{Meta, drop_layer};
use super::{keys, reserve};
use crate::policies::{self, Flag, Source};
use crate::sandbox::{Lifecycle, Sandbox, Sharing};
use crate::state::{self, State};
use crate::{Caller, fresh};
use enclosure::LocalHost;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::{Entry, Step, Tx};
use terms::{ErrorKind, Fault, LimitKind, Limits, Phase};
use workspace::{Dir, Driver, Layer, Lock, Rel};

/// Sandboxes that one state directory may hold.
pub const MOST_SANDBOXES: u64 = 10_000;
/// What must stay free on the disk that holds the layers: so many bytes, and one part in so many.
const LEAST_FREE: u64 = 64 << 20;
const LEAST_PART: u64 = 100;
/// And so many files must fit on it.
const LEAST_INODES: u64 = 1024;
const LONGEST_NAME: usize = 64;

#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The directory to cover; the current one where none is given.
    pub dir: Option<PathBuf>,
    pub name: Option<String>,
    pub reserve: Vec<OsString>,
    pub sharing: Sharing,
    pub template: Option<String>,
    pub policies: Vec<Source>,
    pub flags: Vec<Flag>,
    pub limits: Limits,
    pub cpus: Option<f64>,
    pub ttl_ms: Option<u64>,
    pub idle_ms: Option<u64>,
    pub key: Option<String>,
    /// The best that works, where none is given.
    pub driver: Option<Driver>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Created {
    pub id: String,
    pub version: u64,
    pub base: PathBuf,
    /// An earlier request under the same key made it.
    pub existed: bool,
    pub notes: Vec<String>,
}

pub fn create(ask: &Ask, caller: &Caller) -> Result<Created, Fault> {
    if let Some(name) = &ask.name {
        check_name(name)?;
    }
    if let Some(key) = &ask.key {
        keys::check(key)?;
    }
    let base = Base::open(ask, caller)?;
    let (mut sandbox, notes) = describe(ask, caller, &base)?;
    let state = State::open(caller)?;
    state::check_apart(&state.dir, &state.path, &base.dir, &base.path)?;
    let params = params(ask, &sandbox);
    if let Some(known) = state.store.read(|tx| earlier(tx, ask, &params))? {
        return Ok(known);
    }
    check_space(&state)?;
    // Those that are sure to be refused leave no trace; the transaction below asks again.
    state.store.read(|tx| admit(tx, "", &sandbox))?;
    let id = terms::id("sbx", fresh::random());
    let (layer, lock) = make_layer(&state, &base, &mut sandbox, &id)?;
    let made = state.store.write(|tx| match earlier(tx, ask, &params)? {
        Some(known) => Ok(known),
        None => record(tx, ask, caller, &id, sandbox, params).map(|version| {
            let (id, base) = (id.clone(), base.path.clone());
            Created { id, version, base, existed: false, notes }
        }),
    });
    if !made.as_ref().is_ok_and(|made| made.id == id) {
        // Somebody else was quicker, or has what is wanted. What cannot be taken away now is left for gc.
        let _ = drop_layer(&state.layers, &layer.id);
    }
    drop(lock);
    if made.is_ok() {
        wait_for_clock(&layer);
    }
    made
}

/// The directory that is covered.
struct Base {
    path: PathBuf,
    dir: Dir,
    id: (u64, u64),
}

impl Base {
    fn open(ask: &Ask, caller: &Caller) -> Result<Base, Fault> {
        let asked = caller.cwd.join(ask.dir.as_deref().unwrap_or(Path::new(".")));
        let refuse = |why: &str| {
            let fault = Fault::invalid(format!("{}: {why}", asked.display())).phase(Phase::Admission);
            fault.hint("name a directory that exists and that you may read")
        };
        let path = std::fs::canonicalize(&asked).map_err(|e| refuse(&e.to_string()))?;
        if path.to_str().is_none() {
            return Err(refuse("its path is not UTF-8"));
        }
        let dir = Dir::open(&path).map_err(|e| refuse(&e.to_string()))?;
        let meta = dir.meta(&Rel::top()).map_err(|e| refuse(&e.to_string()))?;
        let id = meta.map(|meta| (meta.dev, meta.ino)).ok_or_else(|| refuse("it is gone"))?;
        Ok(Base { path, dir, id })
    }
}

/// A name must be told from an id, from a flag and from other names by eye.
pub fn check_name(name: &str) -> Result<(), Fault> {
    let refuse = |why: &str| {
        let fault = Fault::invalid(format!("--name {name:?}: {why}")).phase(Phase::Admission);
        Err(fault.hint("use letters, digits, `.`, `_` and `-`, e.g. fix-login"))
    };
    let looks_like_id = name.split_once('_').is_some_and(|(prefix, rest)| {
        prefix.len() == 3 && rest.len() >= 8 && rest.bytes().all(|b| b.is_ascii_hexdigit())
    });
    match name {
        "" => refuse("empty"),
        _ if name.len() > LONGEST_NAME => refuse("longer than 64 bytes"),
        _ if name.starts_with('-') => refuse("begins with a dash"),
        _ if name.chars().any(|c| workspace::name::is_invisible(c) || c.is_whitespace()) => {
            refuse("holds a character that cannot be seen")
        }
        _ if name.contains('/') => refuse("holds a slash"),
        _ if looks_like_id => refuse("looks like an id"),
        _ => Ok(()),
    }
}

/// The record, but for its layers; and what a person should know of its policy.
fn describe(ask: &Ask, caller: &Caller, base: &Base) -> Result<(Sandbox, Vec<String>), Fault> {
    if let Some(template) = &ask.template {
        let fault = Fault::new(ErrorKind::NotFound, format!("there is no template {template:?}"));
        return Err(fault.hint("`cofferdam template ls` lists them").phase(Phase::Admission));
    }
    let (policy, mut notes) = policies::effective(&ask.policies, &ask.flags, caller)?;
    notes.extend(validate(&policy, ask, caller, &base.path)?);
    let document = serde_json::from_str(&policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    if ask.reserve.len() > reserve::MOST {
        let message = format!("--reserve: {} paths; at most {} can be reserved", ask.reserve.len(), reserve::MOST);
        return Err(Fault::invalid(message).hint("reserve a directory above them").phase(Phase::Admission));
    }
    let reserve = ask.reserve.iter().map(|text| reserve::parse(&base.path, text)).collect::<Result<_, _>>()?;
    let now = fresh::now_ms();
    let sandbox = Sandbox {
        name: ask.name.clone(),
        base: base.path.clone(),
        base_id: base.id,
        driver: ask.driver.unwrap_or(Driver::Overlay),
        layers: Vec::new(),
        since: (0, 0),
        state: Lifecycle::Active,
        policy: document,
        limits: ask.limits,
        cpus: ask.cpus,
        reserve,
        sharing: ask.sharing,
        template: None,
        git_head: None,
        created_ms: now,
        used_ms: now,
        expires_ms: ask.ttl_ms.map(|ttl| now.saturating_add(ttl)),
        idle_ms: ask.idle_ms,
        notes: Vec::new(),
    };
    Ok((sandbox, notes))
}

/// Whether runs could be made under the policy here: found now, not at the first command.
fn validate(policy: &policy::Policy, ask: &Ask, caller: &Caller, base: &Path) -> Result<Vec<String>, Fault> {
    let mut policy = policy.clone();
    let around = policies::surroundings(&mut policy, caller, base, None);
    let resolved = policy::resolve(&policy, &around.context)?;
    policies::check_supported(&resolved, true)?;
    let host = LocalHost::default();
    let plan = resolved.plan(&host)?;
    let limits = resolved.limits().tightest(ask.limits);
    if !resolved.degrade().any(|name| name.starts_with("max_")) {
        enclosure::check_limits(&limits, &plan, resolved.needs_network().is_some(), Some(base))?;
    }
    Ok(around.notes)
}

/// What a request is, field by field, for comparison with another under the same key.
fn params(ask: &Ask, sandbox: &Sandbox) -> Map<String, Value> {
    let Sandbox { name, base, policy, limits, cpus, reserve, sharing, .. } = sandbox;
    let all = json!({
        "directory": base, "name": name, "reserve": reserve, "shared": sharing.shared, "until_stop": sharing.until_stop,
        "template": ask.template, "policy": policy, "limits": limits, "cpus": cpus, "ttl_ms": ask.ttl_ms,
        "idle_ms": ask.idle_ms, "driver": ask.driver,
    });
    all.as_object().cloned().unwrap_or_default()
}

/// What an earlier request under the same key made.
fn earlier(tx: &Tx<'_>, ask: &Ask, params: &Map<String, Value>) -> Result<Option<Created>, Fault> {
    let Some(key) = &ask.key else { return Ok(None) };
    let Some(id) = keys::known(tx, key, params, fresh::now_ms())? else { return Ok(None) };
    match tx.get::<Sandbox>(&id)? {
        Some(kept) => {
            let (version, base) = (kept.version, kept.record.base);
            Ok(Some(Created { id, version, base, existed: true, notes: Vec::new() }))
        }
        None => {
            let message = format!("the key {key:?} made {id}, which was removed since");
            let fault = Fault::new(ErrorKind::Conflict, message).subject(id).phase(Phase::Admission);
            Err(fault.hint("take another key"))
        }
    }
}

/// What other sandboxes leave room for.
fn admit(tx: &Tx<'_>, id: &str, sandbox: &Sandbox) -> Result<(), Fault> {
    if tx.count::<Sandbox>()? >= MOST_SANDBOXES {
        let message = format!("there are {MOST_SANDBOXES} sandboxes, which is the most there can be");
        let fault = Fault::new(ErrorKind::LimitExceeded, message).phase(Phase::Admission);
        return Err(fault.hint("remove some with `cofferdam rm` or `cofferdam gc`"));
    }
    if let Some(other) = sandbox.name.as_deref().map(|name| tx.get_named::<Sandbox>(name)).transpose()?.flatten() {
        let message = format!("--name {:?}: {} has that name", other.record.name.unwrap_or_default(), other.id);
        let fault = Fault::new(ErrorKind::Conflict, message).subject(other.id).phase(Phase::Admission);
        return Err(fault.hint("choose another name, or remove that one"));
    }
    reserve::check(tx, id, sandbox)
}

/// The disk that holds the layers must keep some space, for what is there already and for everybody else.
pub fn check_space(state: &State) -> Result<(), Fault> {
    let now =
        rustix::fs::fstatvfs(&state.dir).map_err(|e| Fault::internal(format!("{}: {e}", state.path.display())))?;
    let (free, all) = (now.f_bavail.saturating_mul(now.f_frsize), now.f_blocks.saturating_mul(now.f_frsize));
    let inodes = now.f_files == 0 || now.f_favail >= LEAST_INODES;
    if free >= LEAST_FREE && free >= all / LEAST_PART && inodes {
        return Ok(());
    }
    let what = if inodes { format!("{} MiB free", free >> 20) } else { "hardly an inode free".to_owned() };
    let message = format!("{}: its file system has {what}", state.path.display());
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb).phase(Phase::Admission);
    Err(fault.hint("free some with `cofferdam gc` or `cofferdam rm`, or set COFFERDAM_STATE to another place"))
}

/// The layer that its runs write to, with what it is for beside it.
fn make_layer(state: &State, base: &Base, sandbox: &mut Sandbox, id: &str) -> Result<(Layer, Lock), Fault> {
    let fail = |e: std::io::Error| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("{}: a new layer: {e}", state.path.display()));
        fault.phase(Phase::Preparation).hint("the state directory must be writable, with space left")
    };
    let (layer, lock) = state.layers.make(&base.dir, fresh::random()).map_err(fail)?;
    sandbox.layers = vec![layer.id.clone()];
    let filled = (|| {
        sandbox.since = layer.made_at().map_err(fail)?;
        if sandbox.driver != Driver::Overlay {
            workspace::copy::populate(&base.dir, &layer.up, sandbox.driver, &mut |_| {})?;
        }
        Meta::of(id, sandbox).write(&layer).map_err(fail)
    })();
    match filled {
        Ok(()) => Ok((layer, lock)),
        Err(fault) => {
            let _ = drop_layer(&state.layers, &layer.id);
            Err(fault)
        }
    }
}

fn record(
    tx: &Tx<'_>,
    ask: &Ask,
    caller: &Caller,
    id: &str,
    sandbox: Sandbox,
    params: Map<String, Value>,
) -> Result<u64, Fault> {
    admit(tx, id, &sandbox)?;
    let at_ms = fresh::now_ms();
    let body = json!({"base": sandbox.base, "name": sandbox.name, "layers": sandbox.layers, "driver": sandbox.driver,
        "reserve": sandbox.reserve, "expires_ms": sandbox.expires_ms, "key": ask.key});
    let entry = Entry { at_ms, verb: "create", step: Step::Intent, subject: id, actor: &caller.user, body };
    tx.note(&entry)?;
    if let Some(key) = &ask.key {
        keys::keep(tx, key, id, params, at_ms)?;
    }
    let version = tx.add(id, sandbox)?.version;
    tx.note(&Entry { step: Step::Done, body: Value::Null, ..entry })?;
    Ok(version)
}

/// Until the clock that files are stamped by has moved: a change of the base right after this is later than the layer.
pub fn wait_for_clock(layer: &Layer) {
    let Ok(made) = layer.made_at() else { return };
    // Ticks are 1 to 10 ms apart.
    for _ in 0..50 {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        if (now.tv_sec, now.tv_nsec as u32) > made {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_told_from_ids_flags_and_one_another() {
        for good in ["fix", "fix-login_2", "ÄÖ", "a.b", "sbx_work", "deadbeef", &"x".repeat(64)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-f", "a b", "a\nb", "a/b", "sbx_0123456789", "a\u{202e}b", "a\u{200b}", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
