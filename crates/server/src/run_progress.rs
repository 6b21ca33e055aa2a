//! Progress of runs: one task per followed run holds one connection to its keeper and notifies all listeners. So the number of connections
//! to a keeper does not grow with the number of streams and waits.

use crate::readiness::{Ready, lost};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use node::Node;
use node::keeper::Follow;
use node::keeper::runs::RunRef;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use terms::Fault;
use tokio::io::Interest;
use tokio::sync::watch;

/// Poll interval for the records of a run without a keeper.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// State of a run, as listeners need it.
#[derive(Clone)]
pub enum RunState {
    /// Not read yet.
    Unknown,
    /// Running; there may be more output.
    Running,
    /// Ended: no process of its tree is left.
    Ended,
    /// The state can no longer be read.
    Failed(Refusal),
}

/// A tenant and one of its runs.
type RunKey = (String, String);

/// Runs with listeners.
#[derive(Default)]
pub struct RunProgress(Mutex<HashMap<RunKey, watch::Sender<RunState>>>);

impl RunProgress {
    /// Subscribes to a run. A known state counts as a change for the new listener.
    pub fn listen(&self, shared: &Shared, principal: &Principal, found: &RunRef) -> watch::Receiver<RunState> {
        let mut all = self.all();
        all.retain(|_, states| !states.is_closed());
        let key = (principal.tenant.clone(), found.id.clone());
        if let Some(states) = all.get(&key) {
            let mut listener = states.subscribe();
            if !matches!(*listener.borrow(), RunState::Unknown) {
                listener.mark_changed();
            }
            return listener;
        }
        let (states, listener) = watch::channel(RunState::Unknown);
        let source = FollowedRun { shared: shared.clone(), principal: principal.clone(), found: found.clone() };
        shared.tasks().spawn(source.run(states.clone()));
        all.insert(key, states);
        listener
    }

    /// Removes a run, so that the next listener starts a new task.
    fn forget(&self, key: &RunKey) {
        self.all().remove(key);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<RunKey, watch::Sender<RunState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The followed run of one task.
struct FollowedRun {
    shared: Shared,
    /// The first listener's client, whose tenant's permits are used.
    principal: Principal,
    found: RunRef,
}

impl FollowedRun {
    /// Notifies listeners until the run has ended or none is left.
    async fn run(self, states: watch::Sender<RunState>) {
        let mut follow = None;
        while !states.is_closed() {
            let state = tokio::select! {
                state = self.next(&mut follow) => state,
                () = states.closed() => return,
            };
            match state {
                Ok(is_over) => {
                    states.send_replace(if is_over { RunState::Ended } else { RunState::Running });
                    if is_over {
                        return;
                    }
                }
                Err(refusal) => {
                    self.shared.run_progress().forget(&(self.principal.tenant.clone(), self.found.id.clone()));
                    states.send_replace(RunState::Failed(refusal));
                    return;
                }
            }
        }
    }

    /// Resolves when there is news; true when the run has ended.
    async fn next(&self, follow: &mut Option<Ready<Follow>>) -> Result<bool, Refusal> {
        loop {
            if let Some(open) = follow {
                match open.until(Interest::READABLE, Follow::heard).await {
                    Ok(notice) => return Ok(notice.ended),
                    // The keeper is gone, and the records have the run's end; or it had no room for this connection, and may have later.
                    Err(_) => {
                        let was_accepted = open.get().is_accepted();
                        *follow = None;
                        if !was_accepted {
                            return self.poll_records().await;
                        }
                    }
                }
            }
            let id = self.found.id.clone();
            let connect = move |found: &RunRef, node: &Node| {
                Ok(found.keeper(node).and_then(|keeper| keeper.follow(Some(vec![id])).ok()))
            };
            match self.with(connect).await? {
                Some(made) => *follow = Some(register_duplex(made)?),
                None => return self.poll_records().await,
            }
        }
    }

    /// Reads the state from the records, where no keeper reports it.
    async fn poll_records(&self) -> Result<bool, Refusal> {
        let is_over = self.with(|found, _| Ok(found.now()?.ended_ms.is_some())).await?;
        if !is_over {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(is_over)
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RunRef, &Node) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (node, found) = (self.shared.node().clone(), self.found.clone());
        self.shared.blocking_for(&self.principal, move || work(&found, &node)).await
    }
}

/// Registers a keeper's connection for reading and writing.
pub fn register_duplex<T: std::os::fd::AsFd>(of: T) -> Result<Ready<T>, Fault> {
    Ready::new(of, Interest::READABLE | Interest::WRITABLE).map_err(|e| lost(&e))
}
