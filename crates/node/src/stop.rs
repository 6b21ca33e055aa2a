//! Stop and start. A stop ends every process of a sandbox: the supervisor is asked, then killed, and its guest cannot outlive it.

use crate::suspend;
use api::{EndedRun, JournalStep, Lifecycle, SandboxStateChanged};
use runtime::Node;
use runtime::keeper::client::{GREETING, LISTING};
use runtime::keeper::place::{Card, KeeperDir};
use runtime::keeper::{Contact, Keeper, lost};
use runtime::liveness;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use state::admission::{Verb, check};
use state::journal::note;
use state::lock::{LockAttempt, LockResult};
use state::reservations;
use state::sandbox::{Run, Sandbox, Which, pick};
use state::{Caller, State};
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use store::Kept;
use terms::{ErrorKind, Fault, Phase, Retry};
use workspace::Lock;

/// Most time for the guest of a killed supervisor to end.
const VANISHING: Duration = Duration::from_secs(30);
const TERM: i32 = 15;
const KILL: i32 = 9;

pub fn start(node: &Node, caller: &Caller, which: &Which) -> Result<SandboxStateChanged, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    if !check(liveness::standing(node, &state, &kept, GREETING), Verb::Start, &kept.id)? {
        return Ok(moved(kept, false, Vec::new()));
    }
    if kept.record.state == Lifecycle::Active && lost::reason(&state.path, &kept.id).is_none() {
        // The sandbox is suspended.
        let resumed = suspend::resume(node, caller, which)?;
        let kept = state.store.read(|tx| pick(tx, &Which { word: Some(resumed.id), version: None }, caller))?;
        return Ok(moved(kept, resumed.changed, Vec::new()));
    }
    lost::settle_open(&state, &kept.id)?;
    lost::forget(&state.path, &kept.id);
    state.store.write(|tx| {
        let mut kept = pick(tx, which, caller)?;
        kept.record.state = Lifecycle::Active;
        kept.record.used_ms = terms::clock::now_ms();
        kept.record.restart_timeout(kept.record.used_ms);
        // Another sandbox may have reserved the paths that stop released.
        reservations::check(tx, &kept.id, &kept.record, caller)?;
        note(tx, "start", JournalStep::Intent, &kept.id, caller, Value::Null)?;
        let kept = tx.change(kept)?;
        note(tx, "start", JournalStep::Done, &kept.id, caller, Value::Null)?;
        Ok(moved(kept, true, Vec::new()))
    })
}

/// Starts a sandbox and keeps it live until it is stopped, with its services.
pub fn start_live(node: &Node, caller: &Caller, which: &Which) -> Result<SandboxStateChanged, Fault> {
    let moved = start(node, caller, which)?;
    let state = node.states.open(caller)?;
    let (kept, changed) = state.store.write(|tx| {
        let mut kept = pick(tx, &Which { word: Some(moved.id.clone()), version: None }, caller)?;
        if kept.record.stays {
            return Ok((kept, false));
        }
        kept.record.stays = true;
        note(tx, "start", JournalStep::Done, &kept.id, caller, json!({ "live": true }))?;
        Ok((tx.change(kept)?, true))
    })?;
    let before = KeeperDir::of(&state.path, &kept.id).has_keeper();
    Keeper::ensure(node, caller, &state.path, &kept.id)?.stay()?;
    Ok(SandboxStateChanged { version: kept.version, changed: moved.changed || changed || !before, ..moved })
}

/// Stops a sandbox. `patience` is the time that a command has to end after the request.
pub fn stop(node: &Node, caller: &Caller, which: &Which, patience: Duration) -> Result<SandboxStateChanged, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    // All runs are ended, whether the keeper answers or not.
    if !check(liveness::standing(node, &state, &kept, LISTING), Verb::Stop, &kept.id)? {
        return Ok(moved(kept, false, Vec::new()));
    }
    // Marked first, so that no other command starts in it. No keeper is asked while the store is locked.
    let kept = state.store.write(|tx| {
        let mut kept = pick(tx, which, caller)?;
        note(tx, "stop", JournalStep::Intent, &kept.id, caller, Value::Null)?;
        kept.record.state = Lifecycle::Stopped;
        (kept.record.stays, kept.record.suspended) = (false, None);
        kept.record.used_ms = terms::clock::now_ms();
        tx.change(kept)
    })?;
    let end_runs = end_runs(node, &state, &kept, patience);
    // The mark is on the disk, and a power failure ends all runs.
    state.store.write_soon(|tx| {
        let (step, body) = match &end_runs {
            Ok((ended, _)) => (JournalStep::Done, json!({ "ended": ended })),
            Err(fault) => (JournalStep::Failed, json!({ "message": fault.message })),
        };
        note(tx, "stop", step, &kept.id, caller, body)?;
        Ok(())
    })?;
    let (ended, _lock) = end_runs?;
    Ok(moved(kept, true, ended))
}

fn moved(kept: Kept<Sandbox>, changed: bool, ended: Vec<EndedRun>) -> SandboxStateChanged {
    SandboxStateChanged { id: kept.id, version: kept.version, state: kept.record.state, changed, ended }
}

/// Ends every run in a sandbox. No other can start while the lock is held.
pub fn end_runs(
    node: &Node,
    state: &State,
    sandbox: &Kept<Sandbox>,
    patience: Duration,
) -> Result<(Vec<EndedRun>, Option<Lock>), Fault> {
    let end = Instant::now() + patience + VANISHING;
    let mut ended: Vec<EndedRun> = Vec::new();
    loop {
        let attempt = match state::lock::try_lock(state, &sandbox.id) {
            // A run that leaves nothing removes its sandbox once its command has ended.
            Err(fault) if fault.error_kind == ErrorKind::NotFound && !ended.is_empty() => return Ok((ended, None)),
            attempt => attempt?,
        };
        if let LockAttempt { result: LockResult::Locked(lock), .. } = attempt {
            lost::settle_open(state, &sandbox.id)?;
            lost::forget(&state.path, &sandbox.id);
            return Ok((ended, lock));
        }
        // Listed first: the runs of a keeper that has to be killed are gone with it.
        let runs = state.store.read(|tx| state::process::runs(tx, &sandbox.id))?;
        if let Some(killed) = end_keeper(node, &state.path, &sandbox.id, patience, &mut ended) {
            let of_it = runs.iter().filter(|run| run.record.pid == killed.pid);
            ended.extend(of_it.map(|run| EndedRun { run: run.id.clone(), pid: killed.pid, killed: true }));
        }
        for run in state.store.read(|tx| state::process::runs(tx, &sandbox.id))? {
            let killed = end_run(&run, patience);
            if !ended.iter().any(|e| e.run == run.id) {
                ended.push(EndedRun { run: run.id, pid: run.record.pid, killed });
            }
        }
        if Instant::now() > end {
            let message = format!("{}: a process holds its layer and does not end", sandbox.id);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&sandbox.id).retry(Retry::Later);
            return Err(fault.hint("`cofferdam ps` shows what runs; try again").phase(Phase::Close));
        }
        // A process that holds the layer without a run is about to start one, or has just ended it.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has a sandbox's keeper end all its runs, which are added to `ended`, and then itself. A silent keeper, or one that stays, is killed,
/// and its guest with it. Returns the card of a killed keeper.
pub(crate) fn end_keeper(
    node: &Node,
    state: &Path,
    sandbox: &str,
    patience: Duration,
    ended: &mut Vec<EndedRun>,
) -> Option<Card> {
    let card = match Keeper::contact(node, state, sandbox, GREETING) {
        Contact::Absent => return None,
        Contact::Answered(keeper, _) => {
            let card = keeper.card.clone();
            match keeper.end(&node.keepers, patience) {
                Ok(left) => {
                    let of = |(run, killed)| EndedRun { run, pid: card.pid, killed };
                    ended.extend(left.ended.into_iter().map(of));
                    return None;
                }
                Err(_) => card,
            }
        }
        Contact::Silent(card) => card,
        Contact::Refused(_) => KeeperDir::of(state, sandbox).card()?,
    };
    let handle = card.handle()?;
    sys::process::signal(handle.as_fd(), KILL);
    has_ended_within(&handle, VANISHING);
    Some(card)
}

/// Asks the supervisor to end its run, kills it after `patience`, and waits until its guest is gone; returns whether it was
/// killed.
fn end_run(run: &Kept<Run>, patience: Duration) -> bool {
    let Some(supervisor) = state::process::handle(&run.record) else { return false };
    // The guest's first process is a child of the supervisor; its end is the end of its namespace.
    let children = children(run.record.pid);
    sys::process::signal(supervisor.as_fd(), TERM);
    let in_time = has_ended_within(&supervisor, patience);
    if !in_time {
        sys::process::signal(supervisor.as_fd(), KILL);
        has_ended_within(&supervisor, VANISHING);
    }
    for child in children {
        has_ended_within(&child, VANISHING);
    }
    !in_time
}

fn children(pid: u32) -> Vec<OwnedFd> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let numbers: Vec<i32> = lists
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|n| n.parse().ok())
        .collect();
    numbers.into_iter().filter_map(Pid::from_raw).filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

fn has_ended_within(process: &OwnedFd, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = sys::deadline::time_left(end);
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
