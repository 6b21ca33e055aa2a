//! Connection pool of a node to its keepers, and the keepers that the node started. A daemon that starts commands one after another in a
//! sandbox skips the lookup and the greeting. A pooled connection leads to the process that it was made to, and is closed with it. The pool
//! is small, and its entries expire soon.

use super::client::Keeper;
use crate::keeper_dir::place::KeeperDir;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use sys::host::{BoundedResource, bound};

/// Bounds on pooled connections: in all, and to one keeper.
const MOST: usize = 64;
const EACH: usize = 4;
/// Time after which a pooled connection expires.
const LONGEST: Duration = Duration::from_millis(400);

/// The keepers of one node. Clones share the pool; two nodes share nothing.
#[derive(Clone, Debug, Default)]
pub struct Keepers(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Connections are pooled.
    keeps_open: bool,
    resting: Mutex<Vec<(Instant, Keeper)>>,
    /// Keepers that this node started. They outlive it, but are its child processes while it lives.
    children: Mutex<Vec<Child>>,
    /// Open-file limit that the process was started with, where it raises its own.
    descriptors: Option<u64>,
}

impl Keepers {
    /// Creates a pool that closes every connection at once, for a process that does not change its open-file limit.
    pub fn closing() -> Keepers {
        Keepers::default()
    }

    /// Creates a pool that keeps connections. Keepers are started with the open-file limit that holds now.
    pub fn resting() -> Keepers {
        let descriptors = bound(BoundedResource::OpenFiles).current;
        Keepers(Arc::new(Inner { keeps_open: true, descriptors, ..Inner::default() }))
    }

    /// Returns a connection to the pool after its last answer.
    pub fn rest(&self, keeper: Keeper) {
        if !self.0.keeps_open {
            return;
        }
        self.with(|all| {
            let same = |(_, other): &&(Instant, Keeper)| other.place.dir == keeper.place.dir;
            if all.iter().filter(same).count() >= EACH {
                return;
            }
            if all.len() >= MOST {
                all.remove(0);
            }
            all.push((Instant::now(), keeper));
        });
    }

    /// Takes the most recently used connection, if it leads to the process on the present card.
    pub fn take(&self, state: &Path, sandbox: &str) -> Option<Keeper> {
        let place = KeeperDir::of(state, sandbox);
        let rested = self.with(|all| {
            let at = all.iter().rposition(|(_, keeper)| keeper.place.dir == place.dir)?;
            Some(all.remove(at).1)
        });
        rested.filter(|keeper| place.card().as_ref() == Some(&keeper.card))
    }

    /// Closes the pooled connections to a keeper that is told to end.
    pub(super) fn forget(&self, place: &KeeperDir) {
        self.with(|all| all.retain(|(_, keeper)| keeper.place.dir != place.dir));
    }

    /// Closes expired connections, and returns how many remain.
    pub fn sweep(&self) -> usize {
        self.with(|all| {
            all.retain(|(since, _)| since.elapsed() < LONGEST);
            all.len()
        })
    }

    /// Open-file limit that a keeper is started with, where it differs from that of this process.
    pub(super) fn descriptors(&self) -> Option<u64> {
        self.0.descriptors
    }

    /// Adds a child process to be reaped.
    pub(super) fn adopt(&self, child: Child) {
        if let Ok(mut children) = self.0.children.lock() {
            children.push(child);
        }
    }

    /// Reaps children that have exited.
    pub(super) fn reap(&self) {
        if let Ok(mut children) = self.0.children.lock() {
            children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<(Instant, Keeper)>) -> T) -> T {
        work(&mut self.0.resting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
