//! Tells streams that a tenant's journal has grown. Entries of the daemon itself are known at once; for those that others write to the
//! same store one task of each tenant looks, as long as there are listeners.

use crate::tasks::Tasks;
use node::audit::{Tail, Wanted};
use node::{Caller, Node};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Pause between two looks at the store for entries of others.
const PAUSE: Duration = Duration::from_millis(250);

/// Streams of a tenant that read at a time. An entry wakes all of them at once, and the turns for verbs are for others, too; a stream
/// that waited finds all that came meanwhile at once.
const READERS: usize = 4;

/// Feeds of all tenants with listeners.
#[derive(Default)]
pub struct Feeds(Mutex<HashMap<String, Feed>>);

struct Feed {
    last: watch::Sender<u64>,
    nudge: Arc<Notify>,
    readers: Arc<Semaphore>,
}

/// A listener to one tenant's journal.
pub struct Ear {
    last: watch::Receiver<u64>,
    readers: Arc<Semaphore>,
}

impl Ear {
    /// Resolves when the journal has grown; an error when the task that looks has ended.
    pub async fn grown(&mut self) -> Result<(), watch::error::RecvError> {
        self.last.changed().await
    }

    /// As many wait as there are streams, which are counted.
    pub async fn turn_to_read(&self) -> Option<OwnedSemaphorePermit> {
        self.readers.clone().acquire_owned().await.ok()
    }
}

impl Feeds {
    /// Listens to a tenant's journal.
    pub fn listen(&self, node: Arc<Node>, tenant: &str, caller: Caller, tasks: &Tasks) -> Ear {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, feed| !feed.last.is_closed());
        if let Some(feed) = all.get(tenant) {
            return Ear { last: feed.last.subscribe(), readers: feed.readers.clone() };
        }
        let (last, listener) = watch::channel(0);
        let (nudge, readers) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(READERS)));
        tasks.spawn(look(node, caller, last.clone(), nudge.clone()));
        all.insert(tenant.to_owned(), Feed { last, nudge, readers: readers.clone() });
        Ear { last: listener, readers }
    }

    /// Has the tenant's journal looked at now.
    pub fn nudge(&self, tenant: &str) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = all.get(tenant) {
            feed.nudge.notify_one();
        }
    }
}

/// Looks until no listener is left. A store that cannot be read now is tried again: listeners find out when they read.
async fn look(node: Arc<Node>, caller: Caller, last: watch::Sender<u64>, nudge: Arc<Notify>) {
    let mut tail: Option<Tail> = None;
    while !last.is_closed() {
        let (node, caller, held) = (node.clone(), caller.clone(), tail.take());
        let seen = tokio::task::spawn_blocking(move || {
            let mut tail = match held {
                Some(tail) => tail,
                None => Tail::open(&node, &caller, None, Wanted::default())?,
            };
            tail.skip().map(|at| (tail, at))
        });
        if let Ok(Ok((held, at))) = seen.await {
            tail = Some(held);
            last.send_if_modified(|known| std::mem::replace(known, at) != at);
        }
        let _ = tokio::time::timeout(PAUSE, nudge.notified()).await;
    }
}
