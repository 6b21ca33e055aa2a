//! Records of sandboxes: base, layers, policy, limits and lifetime.

use crate::Caller;
use crate::State;
use crate::batch::Paths;
use crate::conflicted::Conflicted;
use api::{Driver, Lifecycle, OnTimeout, Rel, Service, Sharing, Tier};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use store::{JournalFilter, Kept, Record, Tx};
use terms::{ErrorKind, Fault, Limits, Phase, Retry};
use workspace::{Anchors, Dir, Stack};

/// Ids are `sbx_…`; times are milliseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sandbox {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Token that created it, if that token may use only its own sandboxes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<String>,
    /// The directory it covers: canonical, UTF-8.
    pub base: PathBuf,
    /// Device and inode of the base, so that another directory under its name is noticed.
    pub base_id: (u64, u64),
    /// The directory was created for it, and is removed when no record refers to it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub own_base: bool,
    pub driver: Driver,
    /// Ids of layers from the bottom up; the last is written to by runs.
    pub layers: Vec<String>,
    /// Creation time of its top layer: seconds and nanoseconds.
    pub since: (i64, u32),
    pub state: Lifecycle,
    /// The complete policy document of its runs, as JSON.
    pub policy: serde_json::Value,
    /// Number of the current rules and limits, counted from 1.
    #[serde(default = "first")]
    pub revision: u64,
    /// Ceiling for changes of its policy by callers without full access: the policy at creation, once it was changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ceiling: Option<serde_json::Value>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
    #[serde(default)]
    pub reserve: Vec<Rel>,
    #[serde(default)]
    pub sharing: Sharing,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub template: Option<String>,
    /// Commit of the base when the sandbox was created or last rebased.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_head: Option<String>,
    pub created_ms: u64,
    /// Time of the last run or change.
    pub used_ms: u64,
    /// Time at which it may be collected; absent for never.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    /// Time without use after which it is collected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_ms: Option<u64>,
    /// Keeps it live between start and stop, also without commands.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stays: bool,
    /// Commands that run while it is live.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub services: Vec<Service>,
    /// Ports of the host that are forwarded to ports inside while it is live: `ADDRESS:HOST:GUEST`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub publish: Vec<String>,
    /// Sources of secrets that are not stored under their own name: `NAME=store:OTHER`, or `NAME=brought:run`
    /// for values that each command's request provides. Never a value.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub secrets: Vec<String>,
    /// Size limit of the network event log, in bytes; absent if no log is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub events_max: Option<u64>,
    /// Also reports refused reads of its commands.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub report_reads: bool,
    /// Timeout of its questions, if it is not the default.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ask_timeout_ms: Option<u64>,
    /// Tier at which it was suspended and its processes ended; absent once it is resumed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub suspended: Option<Tier>,
    /// Labels of its client.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub metadata: BTreeMap<String, String>,
    /// Languages whose interpreters are started as soon as a warm sandbox is handed out.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub languages: Vec<api::Language>,
    /// Variables that its commands inherit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub env: BTreeMap<String, String>,
    /// Time from its start, or from the last change of this, to its timeout.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_ms: Option<u64>,
    /// Time of its timeout; in the past, once it was timed out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "OnTimeout::is_default", default)]
    pub on_timeout: OnTimeout,
    /// Notes for the reviewer: "found after a crash", "the machine went down while it ran".
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

impl From<Sandbox> for api::Sandbox {
    fn from(record: Sandbox) -> api::Sandbox {
        let Sandbox {
            name,
            owner,
            base,
            base_id,
            own_base,
            driver,
            layers,
            since,
            state,
            policy,
            revision,
            ceiling,
            limits,
            cpus,
            reserve,
            sharing,
            template,
            git_head,
            created_ms,
            used_ms,
            expires_ms,
            idle_ms,
            stays,
            services,
            publish,
            secrets,
            events_max,
            report_reads,
            ask_timeout_ms,
            suspended,
            metadata,
            languages: _,
            env,
            timeout_ms,
            timeout_at_ms,
            on_timeout,
            notes,
        } = record;
        api::Sandbox {
            name,
            owner,
            base,
            base_id,
            own_base,
            driver,
            layers,
            since,
            state,
            policy,
            revision,
            ceiling,
            limits,
            cpus,
            reserve,
            sharing,
            template,
            git_head,
            created_ms,
            used_ms,
            expires_ms,
            idle_ms,
            stays,
            services,
            publish,
            secrets,
            events_max,
            report_reads,
            ask_timeout_ms,
            suspended,
            metadata,
            env,
            timeout_ms,
            timeout_at_ms,
            on_timeout,
            notes,
        }
    }
}

/// Default retention of a sandbox.
pub const TTL_MS: u64 = 7 * 24 * 3_600_000;

impl Sandbox {
    /// Creates a record over a directory, without layers and with every option unset.
    pub fn new(base: PathBuf, base_id: (u64, u64), policy: serde_json::Value, at_ms: u64) -> Sandbox {
        Sandbox {
            name: None,
            owner: None,
            base,
            base_id,
            own_base: false,
            driver: Driver::Overlay,
            layers: Vec::new(),
            since: (0, 0),
            git_head: None,
            state: Lifecycle::Active,
            policy,
            revision: first(),
            ceiling: None,
            limits: Limits::default(),
            cpus: None,
            reserve: Vec::new(),
            sharing: Sharing::default(),
            template: None,
            created_ms: at_ms,
            used_ms: at_ms,
            expires_ms: None,
            idle_ms: None,
            stays: false,
            services: Vec::new(),
            publish: Vec::new(),
            secrets: Vec::new(),
            events_max: None,
            report_reads: false,
            ask_timeout_ms: None,
            suspended: None,
            metadata: BTreeMap::new(),
            languages: Vec::new(),
            env: BTreeMap::new(),
            timeout_ms: None,
            timeout_at_ms: None,
            on_timeout: OnTimeout::default(),
            notes: Vec::new(),
        }
    }

    /// Returns the variables that its commands inherit, as `NAME=VALUE`.
    pub fn variables(&self) -> impl Iterator<Item = OsString> {
        self.env.iter().map(|(name, value)| format!("{name}={value}").into())
    }

    /// Returns true once the time of its timeout is over.
    pub fn has_timed_out(&self, now_ms: u64) -> bool {
        self.timeout_at_ms.is_some_and(|at| at <= now_ms)
    }

    /// Begins the time to its timeout, if it has one.
    pub fn restart_timeout(&mut self, now_ms: u64) {
        self.timeout_at_ms = self.timeout_ms.map(|ms| now_ms.saturating_add(ms));
    }
}

fn first() -> u64 {
    1
}

impl Record for Sandbox {
    const KIND: &'static store::Kind = crate::records::kind("sandbox");

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn scope(&self) -> Option<&str> {
        self.base.to_str()
    }
}

/// A command that was run in a sandbox; ids are `run_…`. While it lives, its supervisor holds the lock of the top layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub sandbox: String,
    pub command: Vec<String>,
    /// Process that supervises it, with its start time in ticks since boot and the id of that boot.
    pub pid: u32,
    pub pid_start: u64,
    pub boot: String,
    pub started_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_ms: Option<u64>,
    /// `verdict` and exit status, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<terms::Verdict>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u8>,
    /// Name of the service, if the run is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// Digest of the request that started it under an idempotency key, to detect another request under the same key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request: Option<String>,
}

impl From<Run> for api::Run {
    fn from(record: Run) -> api::Run {
        let Run { sandbox, command, pid, pid_start, boot, started_ms, ended_ms, verdict, status, service, request } =
            record;
        api::Run { sandbox, command, pid, pid_start, boot, started_ms, ended_ms, verdict, status, service, request }
    }
}

impl Record for Run {
    const KIND: &'static store::Kind = crate::records::kind("run");

    fn scope(&self) -> Option<&str> {
        Some(&self.sandbox)
    }
}

/// Known states of single files of a sandbox's base; the id is the sandbox's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Anchored {
    pub anchors: Anchors,
}

impl Record for Anchored {
    const KIND: &'static store::Kind = crate::records::kind("anchors");
}

/// The diff of a sandbox as a whole that its user was shown last; the id is the sandbox's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reviewed {
    pub digest: String,
    /// Digest of the last diff with nothing withheld.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub all: Option<String>,
    /// The last commit inside that was shown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tip: Option<String>,
    pub at_ms: u64,
}

impl Record for Reviewed {
    const KIND: &'static store::Kind = crate::records::kind("reviewed");
}

/// Record of a removed sandbox; the id is the sandbox's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tombstone {
    pub sandbox: Sandbox,
    pub removed_ms: u64,
    pub removed_by: String,
    pub why: String,
    /// Layers that were removed with it. One that still exists was left by a crash.
    pub gone: Vec<String>,
}

impl Record for Tombstone {
    const KIND: &'static store::Kind = crate::records::kind("tombstone");

    fn scope(&self) -> Option<&str> {
        self.sandbox.base.to_str()
    }
}

/// Counts the references of records to each layer.
pub fn layers_in_use(tx: &Tx<'_>) -> Result<BTreeMap<String, u64>, Fault> {
    tx.referred_but("layers", &WITHOUT_LAYERS)
}

/// Kinds without references to layers: some are unbounded in number, and others as long as a tree has files.
/// Reading them all for each
/// removed sandbox would take minutes where there are a few hundred.
const WITHOUT_LAYERS: [&str; 5] =
    [Run::KIND.name, Tombstone::KIND.name, Anchored::KIND.name, Paths::KIND.name, Conflicted::KIND.name];

const PREFIX: &str = "sbx_";

/// Shortest prefix of an id that is accepted.
const LEAST_BEGINNING: usize = 4;

/// Resolves a sandbox: by id, by a unique prefix of one, or by name. A word that is a name and also the prefix of
/// another's id is refused
/// as ambiguous, so that no sandbox can be shadowed by a name that another user chose. Without a word, returns the
/// most recently used one
/// whose base is the current directory or the nearest above it.
pub fn find(tx: &Tx<'_>, word: Option<&str>, caller: &Caller) -> Result<Kept<Sandbox>, Fault> {
    let Some(word) = word else { return of_directory(tx, caller) };
    let seen = |kept: &Kept<Sandbox>| caller.sees_kept(kept);
    if let Some(found) = tx.get(word)?.filter(seen) {
        return Ok(found);
    }
    let mut alike = beginning_with(tx, word, caller)?;
    let named: Option<Kept<Sandbox>> = tx.get_named(word)?.filter(seen);
    match (named, alike.len(), alike.pop()) {
        // A whole id cannot be a name.
        (_, 1, Some(found)) if found.id.len() == bare(word).len() + PREFIX.len() => Ok(found),
        (Some(named), 0, _) => Ok(named),
        (Some(named), 1, Some(found)) if named.id == found.id => Ok(named),
        (Some(named), ..) => {
            let message = format!("{word:?} is the name of {}, and the id of another begins with it", named.id);
            Err(Fault::invalid(message).hint("give the complete id").phase(Phase::Admission))
        }
        (None, 1, Some(found)) => Ok(found),
        (None, 0, _) => Err(removed(tx, word, caller)?.unwrap_or_else(|| unknown(word))),
        _ => {
            let message = format!("several sandboxes begin with {word:?}");
            Err(Fault::invalid(message).hint("give more of the id").phase(Phase::Admission))
        }
    }
}

/// A sandbox as a request names it, and the version that is meant.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// Id, name or prefix; `None` for the one that covers the current directory.
    pub word: Option<String>,
    /// Version that it must still have.
    pub version: Option<u64>,
}

/// Resolves the sandbox, and refuses another version than the requested one.
pub fn pick(tx: &Tx<'_>, which: &Which, caller: &Caller) -> Result<Kept<Sandbox>, Fault> {
    let kept = find(tx, which.word.as_deref(), caller)?;
    match which.version {
        Some(version) if version != kept.version => {
            let message = format!("{} has version {}, not {version}", kept.id, kept.version);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&kept.id).phase(Phase::Admission);
            Err(fault.hint("read it again (`cofferdam inspect`), then repeat"))
        }
        _ => Ok(kept),
    }
}

/// Lists visible sandboxes whose id has this prefix, or some of them if there are several.
fn beginning_with(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Vec<Kept<Sandbox>>, Fault> {
    let beginning = bare(word);
    if beginning.len() < LEAST_BEGINNING || !beginning.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(Vec::new());
    }
    // Two are ambiguous already; for a caller that does not see all, the whole list must be filtered.
    let most = if caller.is_bound() { u32::MAX } else { 2 };
    let mut alike = tx.list_from::<Sandbox>(&format!("{PREFIX}{beginning}"), most)?;
    alike.retain(|kept| caller.sees_kept(kept));
    Ok(alike)
}

/// Builds the fault for the id of a removed sandbox.
fn removed(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Option<Fault>, Fault> {
    let seen = |gone: &Kept<Tombstone>| caller.sees(word, &gone.record.sandbox);
    let Some(tombstone) = tx.get::<Tombstone>(word)?.filter(seen) else { return collected(tx, word, caller) };
    let when = terms::clock::date(tombstone.record.removed_ms / 1000);
    let message = format!("{word} was removed on {when} by {}", tombstone.record.removed_by);
    let fault = Fault::new(ErrorKind::NotFound, message).phase(Phase::Admission).subject(word);
    Ok(Some(fault.hint("`cofferdam ls` lists the existing ones")))
}

/// Builds the same fault after the record was collected: the journal still has the removal. Only that entry counts:
/// others may name an id
/// that never existed here, such as a request for another tenant's. Bound callers do not get to know of it.
fn collected(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Option<Fault>, Fault> {
    if caller.is_bound() || !word.starts_with(PREFIX) {
        return Ok(None);
    }
    let removal =
        JournalFilter { subject: Some(word.to_owned()), verb: Some("rm".to_owned()), ..JournalFilter::default() };
    if tx.noted_after(0, &removal, 1)?.is_empty() {
        return Ok(None);
    }
    let message = format!("{word} was removed, and its record was collected");
    let fault = Fault::new(ErrorKind::NotFound, message).phase(Phase::Admission).subject(word);
    Ok(Some(fault.hint(format!("`cofferdam audit log {word}` shows its journal entries"))))
}

fn bare(word: &str) -> &str {
    word.strip_prefix(PREFIX).unwrap_or(word)
}

pub fn unknown(word: &str) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("there is no sandbox {word:?}")).phase(Phase::Admission);
    fault.hint("`cofferdam ls` lists them").subject(word)
}

fn of_directory(tx: &Tx<'_>, caller: &Caller) -> Result<Kept<Sandbox>, Fault> {
    let cwd: &Path = &caller.cwd;
    for above in cwd.ancestors() {
        let Some(base) = above.to_str() else { continue };
        let here = tx.list_in::<Sandbox>(base)?;
        let here = here.into_iter().filter(|kept| caller.sees_kept(kept));
        if let Some(found) = here.max_by_key(|s| s.record.used_ms) {
            return Ok(found);
        }
    }
    let fault = Fault::new(ErrorKind::NotFound, format!("no sandbox covers {}", cwd.display())).phase(Phase::Admission);
    Err(fault.hint("`cofferdam ls` lists all; name one"))
}

/// Returns whether a directory is the one that was covered under this device and inode. A reboot may renumber
/// devices: then the inode must
/// match, and be older than the top layer.
pub fn is_base(dir: &Dir, id: (u64, u64), since: (i64, u32)) -> io::Result<bool> {
    let Some(now) = dir.meta(&Rel::top())? else { return Ok(false) };
    Ok(now.ino == id.1 && (now.dev == id.0 || dir.born(b".").is_some_and(|born| born <= since)))
}

/// Opens the layers of a sandbox. A base that is gone, or another directory at its path, is a conflict.
pub fn stack(state: &State, sandbox: &Kept<Sandbox>) -> Result<Stack, Fault> {
    let Sandbox { base, base_id, layers, driver, since, .. } = &sandbox.record;
    let conflict = |why: String| {
        let fault = Fault::new(ErrorKind::Conflict, format!("{}: {why}", base.display())).subject(&sandbox.id);
        fault.hint("put the directory back; meanwhile, export the changes, or discard them with `cofferdam rm`")
    };
    let opened =
        Dir::open(base).map_err(|e| conflict(format!("cannot open the directory that {} covers: {e}", sandbox.id)))?;
    if !is_base(&opened, *base_id, *since).map_err(|e| conflict(e.to_string()))? {
        return Err(conflict(format!("not the directory that {} covers", sandbox.id)));
    }
    let get = |id: &String| state.layers.get(id).map_err(|e| unopened(state, sandbox, id, &e));
    let layers = layers.iter().map(get).collect::<Result<_, _>>()?;
    Ok(Stack { base: opened, driver: *driver, layers, since: *since })
}

/// Explains a missing layer: since the record was read, the sandbox was removed, or its layers were replaced.
/// Otherwise a layer that should
/// exist is missing, which is an internal fault.
fn unopened(state: &State, sandbox: &Kept<Sandbox>, layer: &str, error: &std::io::Error) -> Fault {
    match state.store.read(|tx| crate::pool::sandbox_or_spare(tx, &sandbox.id)) {
        Ok(None) => unknown(&sandbox.id),
        Ok(Some(now)) if now.record.layers != sandbox.record.layers => {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", sandbox.id));
            fault.retry(Retry::Now).hint("try again").subject(&sandbox.id).phase(Phase::Admission)
        }
        _ => Fault::internal(format!("layer {layer} of {}: {error}", sandbox.id)).subject(&sandbox.id),
    }
}
