//! Notifies streams that a tenant's journal has grown. Entries of the daemon itself are announced at once; for entries that other processes
//! write to the same store, one task per tenant polls while there are listeners.

use crate::tasks::Tasks;
use node::audit::{JournalFilter, Tail};
use node::{Caller, Node};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Poll interval for entries of other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Concurrent readers per tenant. An entry wakes all streams of the tenant at once, and other requests need threads of the pool, too; a
/// stream that waited reads all new entries in one pass.
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
pub struct JournalListener {
    last: watch::Receiver<u64>,
    readers: Arc<Semaphore>,
}

impl JournalListener {
    /// Resolves when the journal has grown; fails when the polling task has ended.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.last.changed().await
    }

    /// Waits for a permit to read. The number of waiters is bounded by that of streams, which is limited.
    pub async fn read_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.readers.clone().acquire_owned().await.ok()
    }
}

impl Feeds {
    /// Subscribes to a tenant's journal.
    pub fn listen(&self, node: Arc<Node>, tenant: &str, caller: Caller, tasks: &Tasks) -> JournalListener {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, feed| !feed.last.is_closed());
        if let Some(feed) = all.get(tenant) {
            return JournalListener { last: feed.last.subscribe(), readers: feed.readers.clone() };
        }
        let (last, listener) = watch::channel(0);
        let (nudge, readers) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(READERS)));
        tasks.spawn(poll_journal(node, caller, last.clone(), nudge.clone()));
        all.insert(tenant.to_owned(), Feed { last, nudge, readers: readers.clone() });
        JournalListener { last: listener, readers }
    }

    /// Makes the tenant's task poll now.
    pub fn nudge(&self, tenant: &str) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = all.get(tenant) {
            feed.nudge.notify_one();
        }
    }
}

/// Polls until no listener is left. A failed read is repeated: listeners see the fault when they read themselves.
async fn poll_journal(node: Arc<Node>, caller: Caller, last: watch::Sender<u64>, nudge: Arc<Notify>) {
    let mut tail: Option<Tail> = None;
    while !last.is_closed() {
        let (node, caller, held) = (node.clone(), caller.clone(), tail.take());
        let seen = tokio::task::spawn_blocking(move || {
            let mut tail = match held {
                Some(tail) => tail,
                None => Tail::open(&node, &caller, None, JournalFilter::default())?,
            };
            tail.skip().map(|at| (tail, at))
        });
        if let Ok(Ok((held, at))) = seen.await {
            tail = Some(held);
            last.send_if_modified(|known| std::mem::replace(known, at) != at);
        }
        let _ = tokio::time::timeout(POLL_INTERVAL, nudge.notified()).await;
    }
}
