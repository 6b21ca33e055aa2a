//! Lists of sandboxes and of their open runs, and the full description of one sandbox.

use crate::review::merge_base;
use crate::unrecorded::unrecorded;
use api::{
    BaseState, DiskUsage, LayerUsage, LiveRun, PastRun, PendingChanges, SandboxDetails, SandboxState, SandboxSummary,
};
use runtime::Node;
use runtime::keeper::client::{INSPECTION, LISTING, silence};
use runtime::keeper::services;
use runtime::keeper::survey::{Reply, SurveyedSandbox, survey};
use runtime::liveness::{self, LivenessFacts, LivenessReport};
use state::pool::{Spare, SpareStage};
use state::reservations;
use state::sandbox::{self, Anchored, Run, Sandbox, Tombstone, layers_in_use};
use state::{Caller, State};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use store::Kept;
use terms::Fault;
use workspace::diff::{Bounds, Options};
use workspace::disk_usage;
use workspace::{Anchors, Dir, Stack};

/// Time for the details of a list; sandboxes whose turn comes later have none.
const DESCRIBED: Duration = Duration::from_secs(5);

/// Adds details to a list. The cost grows with the changes in the sandboxes.
pub fn describe(node: &Node, caller: &Caller, rows: &mut [SandboxSummary]) -> Result<(), Fault> {
    let state = node.states.open(caller)?;
    let end = Instant::now() + DESCRIBED;
    for row in rows.iter_mut().filter(|row| row.state != SandboxState::Removed) {
        if Instant::now() > end {
            break;
        }
        let (kept, runs) =
            state.store.read(|tx| Ok((state::pool::sandbox_or_spare(tx, &row.id)?, tx.list_in::<Run>(&row.id)?)))?;
        let last = runs.into_iter().max_by_key(|run| run.record.started_ms);
        row.command = last.map(|run| run.record.command).unwrap_or_default();
        // Removed meanwhile.
        let Some(kept) = kept.filter(|kept| caller.sees_kept(kept)) else { continue };
        row.pending = pending(&state, &kept);
        let mut disk = DiskUsage::default();
        kept.record.layers.iter().for_each(|layer| disk += disk_usage::layer(&state.layers, layer));
        row.disk = Some(disk);
    }
    Ok(())
}

/// Lists all sandboxes, the last used first; with `all`, also spares of templates and the tombstones of removed sandboxes.
pub fn list(node: &Node, caller: &Caller, all: bool) -> Result<Vec<SandboxSummary>, Fault> {
    let state = node.states.open(caller)?;
    let now = terms::clock::now_ms();
    let (kept, spares, gone) = state.store.read(|tx| match all {
        true => Ok((tx.list::<Sandbox>()?, tx.list::<Spare>()?, tx.list::<Tombstone>()?)),
        false => Ok((tx.list::<Sandbox>()?, Vec::new(), Vec::new())),
    })?;
    let kept = kept.into_iter().filter(|s| caller.sees_kept(s));
    // A spare has no owner, so a caller who is bound to some sandboxes does not see it.
    let spares = spares.into_iter().filter(|_| !caller.is_bound());
    let gone = gone.into_iter().filter(|t| caller.sees(&t.id, &t.record.sandbox));
    let kept: Vec<Kept<Sandbox>> = kept.collect();
    let facts: Vec<LivenessFacts> = kept.iter().map(|kept| LivenessFacts::of(&state, kept)).collect();
    let looks = liveness::look_all(node, &facts);
    let mut rows: Vec<SandboxSummary> = kept.into_iter().zip(looks).map(|(kept, look)| row(kept, look, now)).collect();
    rows.extend(spares.map(|s| SandboxSummary {
        state: SandboxState::Ready,
        live: s.record.stage == SpareStage::Ready,
        notes: s.record.sandbox.template.iter().map(|address| format!("spare of {address}")).collect(),
        ..plain(Kept { id: s.id, version: s.version, record: s.record.sandbox })
    }));
    rows.extend(gone.map(|t| SandboxSummary {
        state: SandboxState::Removed,
        used_ms: t.record.removed_ms,
        expires_ms: None,
        notes: vec![format!("removed by {}: {}", t.record.removed_by, t.record.why)],
        ..plain(Kept { id: t.id, version: t.version, record: t.record.sandbox })
    }));
    rows.sort_by(|a, b| b.used_ms.cmp(&a.used_ms).then_with(|| a.id.cmp(&b.id)));
    Ok(rows)
}

/// Returns the sandbox that covers a directory, as a verb without a name would find it from there.
pub fn covering(node: &Node, caller: &Caller, dir: &Path) -> Result<SandboxSummary, Fault> {
    let state = node.states.open(caller)?;
    let there = Caller { cwd: dir.to_owned(), ..caller.clone() };
    let found = state.store.read(|tx| sandbox::find(tx, None, &there))?;
    let look = liveness::look(node, &state, &found, INSPECTION);
    Ok(row(found, look, terms::clock::now_ms()))
}

fn row(kept: Kept<Sandbox>, look: LivenessReport, now_ms: u64) -> SandboxSummary {
    let LivenessReport { standing, live, lost, silent } = look;
    let expired = expired(&kept.record, now_ms);
    SandboxSummary { state: standing, live, lost, silent, expired, ..plain(kept) }
}

fn plain(kept: Kept<Sandbox>) -> SandboxSummary {
    let Kept { id, version, record } = kept;
    let Sandbox { name, base, created_ms, used_ms, expires_ms, metadata, timeout_at_ms, notes, .. } = record;
    SandboxSummary {
        id,
        name,
        state: SandboxState::Active,
        live: false,
        lost: None,
        silent: None,
        base,
        version,
        created_ms,
        used_ms,
        expires_ms,
        metadata,
        timeout_at_ms,
        expired: None,
        notes,
        command: Vec::new(),
        pending: None,
        disk: None,
    }
}

/// Returns the reason for which a sandbox may be collected, if there is one.
pub fn expired(sandbox: &Sandbox, now_ms: u64) -> Option<String> {
    if let Some(at) = sandbox.expires_ms.filter(|at| *at <= now_ms) {
        return Some(format!("expired on {}", terms::clock::date(at / 1000)));
    }
    let idle = sandbox.idle_ms.filter(|idle| sandbox.used_ms.saturating_add(*idle) <= now_ms)?;
    Some(format!("not used since {}, for more than {} s", terms::clock::date(sandbox.used_ms / 1000), idle / 1000))
}

/// Lists open runs, oldest first.
pub fn runs(node: &Node, caller: &Caller) -> Result<Vec<LiveRun>, Fault> {
    let state = node.states.open(caller)?;
    let (open, known) = state.store.read(|tx| Ok((tx.list_open::<Run>()?, layers_in_use(tx)?)))?;
    let mut found = Vec::new();
    for run in open.into_iter().filter(|run| state::process::handle(&run.record).is_some()) {
        let Run { sandbox, command, pid, started_ms, .. } = run.record;
        let of = state.store.read(|tx| tx.get::<Sandbox>(&sandbox))?;
        let Some(of) = of.filter(|of| caller.sees_kept(of)) else { continue };
        let Sandbox { name, base, .. } = of.record;
        let (pid, silent) = (Some(pid), None);
        found.push(LiveRun { run: run.id, sandbox: Some(sandbox), name, base, pid, command, started_ms, silent });
    }
    mark_silent(node, &state, &mut found);
    if !caller.is_bound() {
        found.extend(unrecorded(&state, &known)?);
    }
    found.sort_by_key(|live| live.started_ms);
    Ok(found)
}

/// Marks the runs whose keeper does not answer.
fn mark_silent(node: &Node, state: &State, runs: &mut [LiveRun]) {
    let sandboxes: BTreeSet<String> = runs.iter().filter_map(|run| run.sandbox.clone()).collect();
    let subjects: Vec<SurveyedSandbox> = sandboxes.iter().map(|id| SurveyedSandbox::new(&state.path, id)).collect();
    for (id, reply) in sandboxes.iter().zip(survey(node, &subjects, None, LISTING)) {
        let Reply::Silent(card) = reply else { continue };
        for run in runs.iter_mut().filter(|run| run.sandbox.as_ref() == Some(id)) {
            run.silent = Some(silence(id, &card, LISTING));
        }
    }
}

/// Most entries that are counted for a description.
const COUNTED: Bounds = Bounds { entries: 100_000, path_bytes: 32 << 20 };
/// More changes than this are counted without a look for moved files.
const MOST_COMPARED: u64 = 1000;
const LAST_RUNS: u32 = 20;
const MOST_RECORDS: u32 = 1000;

pub fn inspect(node: &Node, caller: &Caller, word: Option<&str>) -> Result<SandboxDetails, Fault> {
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
    let mut disk = DiskUsage::default();
    for layer in &record.layers {
        let size = disk_usage::layer(&state.layers, layer);
        disk += size;
        layer_sizes.insert(
            layer.clone(),
            LayerUsage { size, shared: referred.get(layer).is_some_and(|records| *records > 1) },
        );
    }
    past.sort_by_key(|run| std::cmp::Reverse(run.record.started_ms));
    past.truncate(LAST_RUNS as usize);
    let going = |run: Kept<Run>| LiveRun {
        run: run.id,
        sandbox: Some(id.clone()),
        name: record.name.clone(),
        base: record.base.clone(),
        pid: Some(run.record.pid),
        command: run.record.command,
        started_ms: run.record.started_ms,
        silent: look.silent.clone(),
    };
    Ok(SandboxDetails {
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
        last_runs: past.into_iter().map(|run| PastRun { run: run.id, record: run.record.into() }).collect(),
        id,
        version,
        sandbox: record.into(),
    })
}

fn pending(state: &State, kept: &Kept<Sandbox>) -> Option<PendingChanges> {
    let stack = sandbox::stack(state, kept).ok()?;
    let anchors = state.store.read(|tx| tx.get::<Anchored>(&kept.id)).ok()?.map(|a| a.record.anchors);
    let anchors = anchors.unwrap_or_default();
    let found = workspace::diff::count(&stack, &anchors, COUNTED).ok()?;
    let drifted = match found.drifted {
        0 => 0,
        by_times => drifted(state, &kept.record, &stack, &anchors).unwrap_or(by_times),
    };
    let mut changes = found.added + found.modified + found.deleted;
    // A file that came and one that went may be one that was moved, which only a diff tells.
    if found.added > 0 && found.deleted > 0 && changes <= MOST_COMPARED {
        let options = Options { bounds: COUNTED, ..Options::default() };
        changes = workspace::diff::diff(&stack, &anchors, &options).map_or(changes, |diff| diff.files.len() as u64);
    }
    Some(PendingChanges { changes, withheld: found.withheld_files, drifted })
}

/// Returns what waits for review in a sandbox; `None` where that cannot be told now.
pub fn waiting(node: &Node, caller: &Caller, word: &str) -> Result<Option<PendingChanges>, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    Ok(pending(&state, &kept))
}

/// Counts changes on base files whose bytes differ from those that the sandbox knew, as a diff would. None if that cannot be
/// determined; then timestamps decide.
fn drifted(state: &State, sandbox: &Sandbox, stack: &Stack, anchors: &Anchors) -> Option<u64> {
    let options = Options { bounds: COUNTED, ..Options::default() };
    let mut diff = workspace::diff::diff(stack, anchors, &options).ok()?;
    merge_base::settle(state, sandbox, stack, anchors, &mut diff).ok()?;
    Some(diff.files.iter().filter(|file| file.change.drifted).count() as u64)
}

/// Returns the condition of the directory that the sandbox covers.
pub fn base_is(sandbox: &Sandbox) -> BaseState {
    let Ok(dir) = Dir::open(&sandbox.base) else { return BaseState::Gone };
    match sandbox::is_base(&dir, sandbox.base_id, sandbox.since) {
        Ok(true) => BaseState::Present,
        _ => BaseState::Replaced,
    }
}
