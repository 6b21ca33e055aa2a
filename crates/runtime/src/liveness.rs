//! Liveness of sandboxes: their standing, from the record, the lock of the top layer and the keeper's answer.

use crate::Node;
use crate::keeper::client::{GREETING, LISTING, silence, silent};
use crate::keeper::survey::{self, Reply, survey};
use crate::keeper::{Contact, Keeper, lost};
use api::{Lifecycle, SandboxState};
use state::State;
use state::lock::{LockAttempt, LockResult, is_held, try_lock};
use state::process::runs;
use state::sandbox::Sandbox;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::Kept;
use terms::{ErrorKind, Fault};

/// Time to wait for another verb that holds the lock of a sandbox without a run.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Locks a sandbox, waiting for other verbs, which are short, and ending an idle keeper. Does not wait for a run; a silent keeper is a
/// fault.
pub fn lock_patiently(node: &Node, state: &State, id: &str) -> Result<LockAttempt, Fault> {
    let begun = Instant::now();
    loop {
        let attempt = try_lock(state, id)?;
        let is_locked = matches!(attempt.result, LockResult::Locked(_));
        if is_locked || begun.elapsed() > PATIENCE || !state.store.read(|tx| runs(tx, id))?.is_empty() {
            return Ok(attempt);
        }
        match Keeper::contact(node, &state.path, id, GREETING) {
            Contact::Answered(keeper, _) => match keeper.end_if_idle(&node.keepers) {
                Ok(()) => continue,
                Err(fault) if fault.error_kind == ErrorKind::Conflict => return Ok(attempt),
                // The keeper exited while it was asked.
                Err(_) => {}
            },
            Contact::Silent(card) => return Err(silent(id, &card, GREETING)),
            Contact::Refused(_) | Contact::Absent => {}
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the standing of a sandbox. Its keeper has `deadline` to answer.
pub fn standing(node: &Node, state: &State, kept: &Kept<Sandbox>, deadline: Duration) -> SandboxState {
    look(node, state, kept, deadline).standing
}

/// SandboxState of a sandbox, and whether it is live.
#[derive(Clone, Debug)]
pub struct LivenessReport {
    pub standing: SandboxState,
    pub live: bool,
    /// Reason of the loss, where the sandbox is lost.
    pub lost: Option<String>,
    /// Description of a keeper that did not answer before the deadline.
    pub silent: Option<String>,
}

pub fn look(node: &Node, state: &State, kept: &Kept<Sandbox>, deadline: Duration) -> LivenessReport {
    let facts = LivenessFacts::of(state, kept);
    let reply = facts.is_held.then(|| survey(node, &[facts.subject()], None, deadline).pop()).flatten();
    facts.look(reply.unwrap_or(Reply::Absent), deadline)
}

/// Same as `look` for many sandboxes: their keepers are asked concurrently.
pub fn look_all(node: &Node, all: &[LivenessFacts]) -> Vec<LivenessReport> {
    let subjects: Vec<_> = all.iter().filter(|facts| facts.is_held).map(LivenessFacts::subject).collect();
    let mut replies = survey(node, &subjects, None, LISTING).into_iter();
    let mut reply_of = |facts: &LivenessFacts| facts.is_held.then(|| replies.next()).flatten();
    all.iter().map(|facts| facts.look(reply_of(facts).unwrap_or(Reply::Absent), LISTING)).collect()
}

/// Facts about a sandbox that need no answer of its keeper.
#[derive(Clone, Debug)]
pub struct LivenessFacts {
    state: PathBuf,
    id: String,
    lifecycle: Lifecycle,
    is_suspended: bool,
    /// Another process holds the lock of the top layer.
    is_held: bool,
}

impl LivenessFacts {
    pub fn of(state: &State, kept: &Kept<Sandbox>) -> LivenessFacts {
        LivenessFacts {
            state: state.path.clone(),
            id: kept.id.clone(),
            lifecycle: kept.record.state,
            is_suspended: kept.record.suspended.is_some(),
            is_held: is_held(state, &kept.record),
        }
    }

    /// Returns whether another process holds the lock of the top layer.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    fn subject(&self) -> survey::SurveyedSandbox {
        survey::SurveyedSandbox::new(&self.state, &self.id)
    }

    fn look(&self, reply: Reply, deadline: Duration) -> LivenessReport {
        let keeper = match reply {
            Reply::Answered(hello, _) => Some(hello),
            Reply::Silent(card) => {
                let silent = Some(silence(&self.id, &card, deadline));
                return LivenessReport { standing: SandboxState::Silent, live: true, lost: None, silent };
            }
            Reply::Absent | Reply::Refused(_) => None,
        };
        // A files-only keeper does not make the sandbox live.
        let is_held = self.is_held && !keeper.as_ref().is_some_and(|hello| hello.rests);
        let keeper = keeper.filter(|hello| !hello.rests);
        let lost = if is_held { None } else { lost::reason(&self.state, &self.id) };
        let standing = match (self.lifecycle, is_held) {
            (Lifecycle::Active, false) if self.is_suspended => SandboxState::Hibernated,
            (Lifecycle::Active, false) if lost.is_some() => SandboxState::Lost,
            (Lifecycle::Active, false) => SandboxState::Active,
            (Lifecycle::Active, true) => match &keeper {
                Some(hello) if hello.frozen => SandboxState::Frozen,
                Some(hello) if hello.running == 0 => SandboxState::Active,
                _ => SandboxState::Running,
            },
            (Lifecycle::Stopped, false) => SandboxState::Stopped,
            (Lifecycle::Stopped, true) => SandboxState::Stopping,
        };
        LivenessReport { standing, live: keeper.is_some(), lost, silent: None }
    }
}
