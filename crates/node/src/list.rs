//! What there is: sandboxes, runs that go on in them, and one sandbox in full.

use crate::review::merge_base;
use runtime::Node;
use runtime::keeper::client::{INSPECTION, LISTING, silence};
use runtime::keeper::services::{self, ServiceNow};
use runtime::keeper::survey::{Reply, Subject, survey};
use runtime::liveness::{self, Facts, Look};
use serde::{Deserialize, Serialize};
use state::admission::Standing;
use state::layer_meta::Meta;
use state::pool::{Spare, Stage};
use state::reservations;
use state::sandbox::{self, Anchored, Run, Sandbox, Tombstone, layers_in_use};
use state::{Caller, State};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use store::Kept;
use terms::Fault;
use utoipa::ToSchema;
use workspace::diff::{Bounds, Options};
use workspace::disk_usage::{self, Size};
use workspace::{Anchors, Dir, Stack};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Row {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub state: Standing,
    /// A keeper holds it: commands start in it at once, several at a time. Also true while that keeper is `silent`.
    #[serde(default)]
    pub live: bool,
    /// Why it lost its keeper, where it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<String>,
    /// Which keeper did not answer and for how long it was waited for, where its state is `silent`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
    #[schema(value_type = String)]
    pub base: PathBuf,
    pub version: u64,
    pub created_ms: u64,
    pub used_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    /// Why `gc` would collect it now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expired: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// All sandboxes, the one used last first; with `all`, also those that stand ready for templates and what is left of those that are
/// gone.
pub fn list(node: &Node, caller: &Caller, all: bool) -> Result<Vec<Row>, Fault> {
    let state = node.states.open(caller)?;
    let now = terms::clock::now_ms();
    let (kept, spares, gone) = state.store.read(|tx| match all {
        true => Ok((tx.list::<Sandbox>()?, tx.list::<Spare>()?, tx.list::<Tombstone>()?)),
        false => Ok((tx.list::<Sandbox>()?, Vec::new(), Vec::new())),
    })?;
    let kept = kept.into_iter().filter(|s| caller.sees_kept(s));
    // What is nobody's is not there for who has only what is theirs.
    let spares = spares.into_iter().filter(|_| !caller.is_bound());
    let gone = gone.into_iter().filter(|t| caller.sees(&t.id, &t.record.sandbox));
    let kept: Vec<Kept<Sandbox>> = kept.collect();
    let facts: Vec<Facts> = kept.iter().map(|kept| Facts::of(&state, kept)).collect();
    let looks = liveness::look_all(node, &facts);
    let mut rows: Vec<Row> = kept.into_iter().zip(looks).map(|(kept, look)| row(kept, look, now)).collect();
    rows.extend(spares.map(|s| Row {
        state: Standing::Ready,
        live: s.record.stage == Stage::Ready,
        notes: s.record.sandbox.template.iter().map(|address| format!("stands ready for {address}")).collect(),
        ..plain(Kept { id: s.id, version: s.version, record: s.record.sandbox })
    }));
    rows.extend(gone.map(|t| Row {
        state: Standing::Removed,
        used_ms: t.record.removed_ms,
        expires_ms: None,
        notes: vec![format!("removed by {}: {}", t.record.removed_by, t.record.why)],
        ..plain(Kept { id: t.id, version: t.version, record: t.record.sandbox })
    }));
    rows.sort_by(|a, b| b.used_ms.cmp(&a.used_ms).then_with(|| a.id.cmp(&b.id)));
    Ok(rows)
}

/// The sandbox that covers a directory, as whoever stands there would mean it.
pub fn covering(node: &Node, caller: &Caller, dir: &Path) -> Result<Row, Fault> {
    let state = node.states.open(caller)?;
    let there = Caller { cwd: dir.to_owned(), ..caller.clone() };
    let found = state.store.read(|tx| sandbox::find(tx, None, &there))?;
    let look = liveness::look(node, &state, &found, INSPECTION);
    Ok(row(found, look, terms::clock::now_ms()))
}

fn row(kept: Kept<Sandbox>, look: Look, now_ms: u64) -> Row {
    let Look { standing, live, lost, silent } = look;
    let expired = expired(&kept.record, now_ms);
    Row { state: standing, live, lost, silent, expired, ..plain(kept) }
}

fn plain(kept: Kept<Sandbox>) -> Row {
    let Kept { id, version, record } = kept;
    let Sandbox { name, base, created_ms, used_ms, expires_ms, notes, .. } = record;
    Row {
        id,
        name,
        state: Standing::Active,
        live: false,
        lost: None,
        silent: None,
        base,
        version,
        created_ms,
        used_ms,
        expires_ms,
        expired: None,
        notes,
    }
}

/// Why a sandbox may be collected, if it may.
pub fn expired(sandbox: &Sandbox, now_ms: u64) -> Option<String> {
    if let Some(at) = sandbox.expires_ms.filter(|at| *at <= now_ms) {
        return Some(format!("expired on {}", terms::clock::date(at / 1000)));
    }
    let idle = sandbox.idle_ms.filter(|idle| sandbox.used_ms.saturating_add(*idle) <= now_ms)?;
    Some(format!("not used since {}, for more than {} s", terms::clock::date(sandbox.used_ms / 1000), idle / 1000))
}

/// A run that goes on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Live {
    pub run: String,
    /// None while it is not known whether the run will leave anything to keep.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[schema(value_type = String)]
    pub base: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    pub command: Vec<String>,
    pub started_ms: u64,
    /// Which keeper did not answer, where that of its sandbox is silent: whether the run goes on is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
}

/// Runs that go on now, the oldest first.
pub fn runs(node: &Node, caller: &Caller) -> Result<Vec<Live>, Fault> {
    let state = node.states.open(caller)?;
    let (open, known) = state.store.read(|tx| Ok((tx.list_open::<Run>()?, layers_in_use(tx)?)))?;
    let mut found = Vec::new();
    for run in open.into_iter().filter(|run| state::process::handle(&run.record).is_some()) {
        let Run { sandbox, command, pid, started_ms, .. } = run.record;
        let of = state.store.read(|tx| tx.get::<Sandbox>(&sandbox))?;
        let Some(of) = of.filter(|of| caller.sees_kept(of)) else { continue };
        let Sandbox { name, base, .. } = of.record;
        let (pid, silent) = (Some(pid), None);
        found.push(Live { run: run.id, sandbox: Some(sandbox), name, base, pid, command, started_ms, silent });
    }
    mark_silent(node, &state, &mut found);
    if !caller.is_bound() {
        found.extend(unrecorded(&state, &known)?);
    }
    found.sort_by_key(|live| live.started_ms);
    Ok(found)
}

/// Notes which runs belong to a keeper that does not answer.
fn mark_silent(node: &Node, state: &State, runs: &mut [Live]) {
    let sandboxes: BTreeSet<String> = runs.iter().filter_map(|run| run.sandbox.clone()).collect();
    let subjects: Vec<Subject> = sandboxes.iter().map(|id| Subject::new(&state.path, id)).collect();
    for (id, reply) in sandboxes.iter().zip(survey(node, &subjects, None, LISTING)) {
        let Reply::Silent(card) = reply else { continue };
        for run in runs.iter_mut().filter(|run| run.sandbox.as_ref() == Some(id)) {
            run.silent = Some(silence(id, &card, LISTING));
        }
    }
}

/// Runs over layers of their own, which nobody knows of but the kernel: they hold a layer that has no record.
fn unrecorded(state: &State, known: &BTreeMap<String, u64>) -> Result<Vec<Live>, Fault> {
    let mut found = Vec::new();
    for id in state.layer_names()?.into_iter().filter(|id| !known.contains_key(id)) {
        let Ok(layer) = state.layers.get(&id) else { continue };
        let Some(meta) = Meta::read(&layer).filter(|_| state::lock::holds(&layer)) else { continue };
        let Some(run) = meta.run_id else { continue };
        let Meta { base, pid, command, created_ms, .. } = meta;
        let (sandbox, name, silent) = (None, None, None);
        found.push(Live { run, sandbox, name, base, pid, command, started_ms: created_ms, silent });
    }
    Ok(found)
}

/// What became of the directory that a sandbox covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BaseIs {
    Present,
    Gone,
    /// Another directory has its name.
    Replaced,
}

/// All that is known of one sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Whole {
    pub id: String,
    pub version: u64,
    pub standing: Standing,
    /// A keeper holds it: commands start in it at once, several at a time. Also true while that keeper is `silent`.
    #[serde(default)]
    pub live: bool,
    /// Why it lost its keeper, where it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<String>,
    /// Which keeper did not answer and for how long it was waited for, where it stands as `silent`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
    #[serde(flatten)]
    pub sandbox: Sandbox,
    pub base_is: BaseIs,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expired: Option<String>,
    pub holds_reservations: bool,
    pub running: Vec<Live>,
    /// How its services stand.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub services_now: Vec<ServiceNow>,
    /// What changed against the base, told without reading files unless there is drift; none where that cannot be told now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pending: Option<Pending>,
    /// What its layers take, each with who else has it.
    pub disk: Size,
    pub layer_sizes: BTreeMap<String, LayerSize>,
    /// Other records that refer to it: snapshots, batches and the like, by kind.
    pub records: BTreeMap<String, Vec<String>>,
    pub last_runs: Vec<Past>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Pending {
    pub changes: u64,
    /// Of these, on files that were changed in the base since. One that was only touched counts where nobody kept what it held.
    pub drifted: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LayerSize {
    #[serde(flatten)]
    pub size: Size,
    pub shared: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Past {
    pub run: String,
    #[serde(flatten)]
    pub record: Run,
}

/// More than this is not counted for a look at a sandbox.
const COUNTED: Bounds = Bounds { entries: 100_000, path_bytes: 32 << 20 };
const LAST_RUNS: u32 = 20;
const MOST_RECORDS: u32 = 1000;

pub fn inspect(node: &Node, caller: &Caller, word: Option<&str>) -> Result<Whole, Fault> {
    let state = node.states.open(caller)?;
    let (kept, referred, running, mut past, records) = state.store.read(|tx| {
        let kept = sandbox::find(tx, word, caller)?;
        let referred = layers_in_use(tx)?;
        let running = state::process::runs(tx, &kept.id)?;
        let past = tx.list_in::<Run>(&kept.id)?;
        let records = tx.others_in(&kept.id, MOST_RECORDS)?;
        Ok((kept, referred, running, past, records))
    })?;
    let pending = pending(&state, &kept);
    let look = liveness::look(node, &state, &kept, INSPECTION);
    let Kept { id, version, record } = kept;
    let mut layer_sizes = BTreeMap::new();
    let mut disk = Size::default();
    for layer in &record.layers {
        let size = disk_usage::layer(&state.layers, layer);
        disk += size;
        layer_sizes
            .insert(layer.clone(), LayerSize { size, shared: referred.get(layer).is_some_and(|records| *records > 1) });
    }
    past.sort_by_key(|run| std::cmp::Reverse(run.record.started_ms));
    past.truncate(LAST_RUNS as usize);
    let going = |run: Kept<Run>| Live {
        run: run.id,
        sandbox: Some(id.clone()),
        name: record.name.clone(),
        base: record.base.clone(),
        pid: Some(run.record.pid),
        command: run.record.command,
        started_ms: run.record.started_ms,
        silent: look.silent.clone(),
    };
    Ok(Whole {
        standing: look.standing,
        live: look.live,
        lost: look.lost.clone(),
        silent: look.silent.clone(),
        base_is: base_is(&record),
        expired: expired(&record, terms::clock::now_ms()),
        holds_reservations: reservations::holds(&record),
        running: running.into_iter().map(going).collect(),
        services_now: services::now(&state.path, &id, &record, look.live),
        pending,
        disk,
        layer_sizes,
        records,
        last_runs: past.into_iter().map(|run| Past { run: run.id, record: run.record }).collect(),
        id,
        version,
        sandbox: record,
    })
}

fn pending(state: &State, kept: &Kept<Sandbox>) -> Option<Pending> {
    let stack = sandbox::stack(state, kept).ok()?;
    let anchors = state.store.read(|tx| tx.get::<Anchored>(&kept.id)).ok()?.map(|a| a.record.anchors);
    let anchors = anchors.unwrap_or_default();
    let found = workspace::diff::count(&stack, &anchors, COUNTED).ok()?;
    let drifted = match found.drifted {
        0 => 0,
        by_times => drifted(state, &kept.record, &stack, &anchors).unwrap_or(by_times),
    };
    Some(Pending { changes: found.added + found.modified + found.deleted, drifted })
}

/// How many changes are on files of the base that are not what the sandbox knew, bytes and all, as a diff would tell it. Where that
/// cannot be told, times decide.
fn drifted(state: &State, sandbox: &Sandbox, stack: &Stack, anchors: &Anchors) -> Option<u64> {
    let options = Options { bounds: COUNTED, ..Options::default() };
    let mut diff = workspace::diff::diff(stack, anchors, &options).ok()?;
    merge_base::settle(state, sandbox, stack, anchors, &mut diff).ok()?;
    Some(diff.files.iter().filter(|file| file.change.drifted).count() as u64)
}

/// What became of the directory that it covers.
pub fn base_is(sandbox: &Sandbox) -> BaseIs {
    let Ok(dir) = Dir::open(&sandbox.base) else { return BaseIs::Gone };
    match sandbox::is_base(&dir, sandbox.base_id, sandbox.since) {
        Ok(true) => BaseIs::Present,
        _ => BaseIs::Replaced,
    }
}
