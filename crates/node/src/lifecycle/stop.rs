//! Stop and start. To stop is to end what runs, whatever it did to stay: the supervisor is asked, then killed, and its guest cannot
//! outlive it.

use super::admission::{Verb, check};
use super::live::{self, Hold, Whose};
use super::reserve;
use crate::keeper::client::{GREETING, LISTING};
use crate::keeper::place::{Card, Place};
use crate::keeper::{Contact, Keeper, lost, suspend};
use crate::sandbox::{self, Lifecycle, Run, Sandbox};
use crate::state::State;
use crate::{Caller, fresh};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use store::{Entry, Kept, Step, Tx};
use terms::{ErrorKind, Fault, Phase, Retry};
use utoipa::ToSchema;
use workspace::Lock;

/// How long a killed supervisor's guest may take to vanish.
const VANISHING: Duration = Duration::from_secs(30);
const TERM: i32 = 15;
const KILL: i32 = 9;

/// One sandbox, and which version of it is meant.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// By id, name or beginning; none means the one that covers the current directory.
    pub word: Option<String>,
    /// Only if it still has this version.
    pub version: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    pub id: String,
    pub version: u64,
    pub state: Lifecycle,
    /// False when it was so already.
    pub changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ended: Vec<Ended>,
}

/// A run that was ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub run: String,
    pub pid: u32,
    /// It did not end when it was asked to.
    pub killed: bool,
}

/// Finds it, and refuses another version than the one that is meant.
pub fn pick(tx: &Tx<'_>, which: &Which, caller: &Caller) -> Result<Kept<Sandbox>, Fault> {
    let kept = sandbox::find(tx, which.word.as_deref(), caller)?;
    match which.version {
        Some(version) if version != kept.version => {
            let message = format!("{} has version {}, not {version}", kept.id, kept.version);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&kept.id).phase(Phase::Admission);
            Err(fault.hint("look at it again (`cofferdam inspect`), then repeat"))
        }
        _ => Ok(kept),
    }
}

pub fn start(which: &Which, caller: &Caller) -> Result<Moved, Fault> {
    let state = State::open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    if !check(live::standing(&state, &kept, GREETING), Verb::Start, &kept.id)? {
        return Ok(moved(kept, false, Vec::new()));
    }
    if kept.record.state == Lifecycle::Active && lost::reason(&state.path, &kept.id).is_none() {
        // It is suspended.
        let resumed = suspend::resume(which, caller)?;
        let kept = state.store.read(|tx| pick(tx, &Which { word: Some(resumed.id), version: None }, caller))?;
        return Ok(moved(kept, resumed.changed, Vec::new()));
    }
    lost::settle_open(&state, &kept.id)?;
    lost::forget(&state.path, &kept.id);
    state.store.write(|tx| {
        let mut kept = pick(tx, which, caller)?;
        kept.record.state = Lifecycle::Active;
        kept.record.used_ms = fresh::now_ms();
        // What was let go by stop may be somebody else's by now.
        reserve::check(tx, &kept.id, &kept.record, caller)?;
        note(tx, "start", Step::Intent, &kept.id, caller, Value::Null)?;
        let kept = tx.change(kept)?;
        note(tx, "start", Step::Done, &kept.id, caller, Value::Null)?;
        Ok(moved(kept, true, Vec::new()))
    })
}

/// The same, and it is live from now on until it is stopped, with its services.
pub fn start_live(which: &Which, caller: &Caller) -> Result<Moved, Fault> {
    let moved = start(which, caller)?;
    let state = State::open(caller)?;
    let (kept, changed) = state.store.write(|tx| {
        let mut kept = pick(tx, &Which { word: Some(moved.id.clone()), version: None }, caller)?;
        if kept.record.stays {
            return Ok((kept, false));
        }
        kept.record.stays = true;
        note(tx, "start", Step::Done, &kept.id, caller, json!({ "live": true }))?;
        Ok((tx.change(kept)?, true))
    })?;
    let before = Place::of(&state.path, &kept.id).has_keeper();
    Keeper::ensure(&state.path, &kept.id, caller)?.stay()?;
    Ok(Moved { version: kept.version, changed: moved.changed || changed || !before, ..moved })
}

/// `patience` is how long a command may take to end once it was asked to.
pub fn stop(which: &Which, patience: Duration, caller: &Caller) -> Result<Moved, Fault> {
    let state = State::open(caller)?;
    let kept = state.store.read(|tx| pick(tx, which, caller))?;
    // Whatever it does is ended, so that it matters little whether its keeper answers.
    if !check(live::standing(&state, &kept, LISTING), Verb::Stop, &kept.id)? {
        return Ok(moved(kept, false, Vec::new()));
    }
    // Marked first: from now on no other command starts in it. No keeper is asked while others wait for the store.
    let kept = state.store.write(|tx| {
        let mut kept = pick(tx, which, caller)?;
        note(tx, "stop", Step::Intent, &kept.id, caller, Value::Null)?;
        kept.record.state = Lifecycle::Stopped;
        (kept.record.stays, kept.record.suspended) = (false, None);
        kept.record.used_ms = fresh::now_ms();
        tx.change(kept)
    })?;
    let quiet = quiet(&state, &kept, patience);
    // That it is stopped is on the disk, and a power failure ends what runs.
    state.store.write_soon(|tx| {
        let (step, body) = match &quiet {
            Ok((ended, _)) => (Step::Done, json!({ "ended": ended })),
            Err(fault) => (Step::Failed, json!({ "message": fault.message })),
        };
        note(tx, "stop", step, &kept.id, caller, body)?;
        Ok(())
    })?;
    let (ended, _lock) = quiet?;
    Ok(moved(kept, true, ended))
}

fn moved(kept: Kept<Sandbox>, changed: bool, ended: Vec<Ended>) -> Moved {
    Moved { id: kept.id, version: kept.version, state: kept.record.state, changed, ended }
}

pub fn note(tx: &Tx<'_>, verb: &str, step: Step, subject: &str, caller: &Caller, body: Value) -> Result<u64, Fault> {
    tx.note(&Entry { at_ms: fresh::now_ms(), verb, step, subject, actor: &caller.user, body })
}

/// Ends whatever runs in a sandbox. Afterwards nobody does, and nobody can while the lock is held.
pub fn quiet(state: &State, sandbox: &Kept<Sandbox>, patience: Duration) -> Result<(Vec<Ended>, Option<Lock>), Fault> {
    let end = Instant::now() + patience + VANISHING;
    let mut ended: Vec<Ended> = Vec::new();
    loop {
        if let Hold { whose: Whose::Mine(lock), .. } = live::hold(state, &sandbox.id)? {
            lost::settle_open(state, &sandbox.id)?;
            lost::forget(&state.path, &sandbox.id);
            return Ok((ended, lock));
        }
        // Looked for before: the runs of a keeper that has to be killed are gone with it.
        let runs = state.store.read(|tx| live::runs(tx, &sandbox.id))?;
        if let Some(killed) = end_keeper(&state.path, &sandbox.id, patience, &mut ended) {
            let of_it = runs.iter().filter(|run| run.record.pid == killed.pid);
            ended.extend(of_it.map(|run| Ended { run: run.id.clone(), pid: killed.pid, killed: true }));
        }
        for run in state.store.read(|tx| live::runs(tx, &sandbox.id))? {
            let killed = end_run(&run, patience);
            if !ended.iter().any(|e| e.run == run.id) {
                ended.push(Ended { run: run.id, pid: run.record.pid, killed });
            }
        }
        if Instant::now() > end {
            let message = format!("{}: a process holds its layer and will not end", sandbox.id);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&sandbox.id).retry(Retry::Later);
            return Err(fault.hint("`cofferdam ps` shows what runs; try again").phase(Phase::Close));
        }
        // Somebody who holds the layer without a run is about to begin one, or has just ended it.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has a sandbox's keeper end all that it keeps, and then itself. One that is silent, or does not, is killed, and its guest with it;
/// which that was.
pub(crate) fn end_keeper(state: &Path, sandbox: &str, patience: Duration, ended: &mut Vec<Ended>) -> Option<Card> {
    let card = match Keeper::contact(state, sandbox, GREETING) {
        Contact::Absent => return None,
        Contact::Answered(keeper, _) => {
            let card = keeper.card.clone();
            match keeper.end(patience) {
                Ok(left) => {
                    let of = |(run, killed)| Ended { run, pid: card.pid, killed };
                    ended.extend(left.ended.into_iter().map(of));
                    return None;
                }
                Err(_) => card,
            }
        }
        Contact::Silent(card) => card,
        Contact::Refused(_) => Place::of(state, sandbox).card()?,
    };
    let handle = card.handle()?;
    sys::process::signal(handle.as_fd(), KILL);
    has_ended_within(&handle, VANISHING);
    Some(card)
}

/// Asks the supervisor to end its run, kills it when it does not, and waits until its guest is gone; whether it was killed.
fn end_run(run: &Kept<Run>, patience: Duration) -> bool {
    let Some(supervisor) = live::handle(&run.record) else { return false };
    // A guest's first process is a child of the supervisor; when it is gone, so is all that was in its namespace.
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
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
