//! Progress of runs, heard once for all listeners: one task for each run that is listened to holds one connection to its keeper, and
//! tells the listeners. So the number of connections to a keeper does not grow with the number of streams and waits.

use crate::readiness::{Ready, lost};
use crate::refuse::Refusal;
use crate::{Shared, Who};
use node::Node;
use node::keeper::Follow;
use node::keeper::runs::Found;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use terms::Fault;
use tokio::io::Interest;
use tokio::sync::watch;

/// Pause between two looks at the records of a run that no keeper tells of.
const PAUSE: Duration = Duration::from_millis(100);

/// State of a run, as far as a listener must know to read on.
#[derive(Clone)]
pub enum State {
    /// Not looked at yet.
    Unknown,
    /// It may have said more.
    Going,
    /// Nothing of its tree is left.
    Ended,
    /// It cannot be told of any more.
    Failed(Refusal),
}

/// A tenant and one of its runs.
type Key = (String, String);

/// Runs that are listened to.
#[derive(Default)]
pub struct RunProgress(Mutex<HashMap<Key, watch::Sender<State>>>);

impl RunProgress {
    /// Listens to a run. The state of a run that is listened to already counts as a change.
    pub fn listen(&self, shared: &Shared, who: &Who, found: &Found) -> watch::Receiver<State> {
        let mut all = self.all();
        all.retain(|_, states| !states.is_closed());
        let key = (who.tenant.clone(), found.id.clone());
        if let Some(states) = all.get(&key) {
            let mut listener = states.subscribe();
            if !matches!(*listener.borrow(), State::Unknown) {
                listener.mark_changed();
            }
            return listener;
        }
        let (states, listener) = watch::channel(State::Unknown);
        let source = Source { shared: shared.clone(), who: who.clone(), found: found.clone() };
        shared.tasks().spawn(source.tell(states.clone()));
        all.insert(key, states);
        listener
    }

    /// Lets the next listener begin anew.
    fn forget(&self, key: &Key) {
        self.all().remove(key);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<State>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One run that is listened to.
struct Source {
    shared: Shared,
    /// The first listener, whose tenant's turns are taken.
    who: Who,
    found: Found,
}

impl Source {
    /// Tells the listeners until the run has ended or none is left.
    async fn tell(self, states: watch::Sender<State>) {
        let mut follow = None;
        while !states.is_closed() {
            let state = tokio::select! {
                state = self.next(&mut follow) => state,
                () = states.closed() => return,
            };
            match state {
                Ok(is_over) => {
                    states.send_replace(if is_over { State::Ended } else { State::Going });
                    if is_over {
                        return;
                    }
                }
                Err(refusal) => {
                    self.shared.run_progress().forget(&(self.who.tenant.clone(), self.found.id.clone()));
                    states.send_replace(State::Failed(refusal));
                    return;
                }
            }
        }
    }

    /// Resolves when there is news: whether the run has ended.
    async fn next(&self, follow: &mut Option<Ready<Follow>>) -> Result<bool, Refusal> {
        loop {
            if let Some(open) = follow {
                match open.until(Interest::READABLE, Follow::heard).await {
                    Ok(notice) => return Ok(notice.ended),
                    // The keeper is gone, and the records tell what became of the run; or it has no room for us, and may later.
                    Err(_) => {
                        let was_accepted = open.get().is_accepted();
                        *follow = None;
                        if !was_accepted {
                            return self.look_later().await;
                        }
                    }
                }
            }
            let id = self.found.id.clone();
            let connect = move |found: &Found, node: &Node| {
                Ok(found.keeper(node).and_then(|keeper| keeper.follow(Some(vec![id])).ok()))
            };
            match self.with(connect).await? {
                Some(made) => *follow = Some(both_ways(made)?),
                None => return self.look_later().await,
            }
        }
    }

    /// The same from the records, where no keeper tells.
    async fn look_later(&self) -> Result<bool, Refusal> {
        let is_over = self.with(|found, _| Ok(found.now()?.ended_ms.is_some())).await?;
        if !is_over {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(is_over)
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Found, &Node) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (node, found) = (self.shared.node().clone(), self.found.clone());
        self.shared.blocking_for(&self.who, move || work(&found, &node)).await
    }
}

/// Registers a keeper's connection that is written to and read.
pub fn both_ways<T: std::os::fd::AsFd>(of: T) -> Result<Ready<T>, Fault> {
    Ready::new(of, Interest::READABLE | Interest::WRITABLE).map_err(|e| lost(&e))
}
