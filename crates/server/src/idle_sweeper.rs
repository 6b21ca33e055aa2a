//! Closes connections to keepers and open states that have been idle for a moment.

use node::Node;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const IDLE_TIME: Duration = Duration::from_millis(400);

/// Closes idle resources of a node. Cheap to clone.
#[derive(Clone)]
pub struct Sweeper {
    node: Arc<Node>,
    is_sweeping: Arc<AtomicBool>,
}

impl Sweeper {
    pub fn new(node: Arc<Node>) -> Sweeper {
        Sweeper { node, is_sweeping: Arc::default() }
    }

    /// Starts sweeping, unless a sweep is under way, until no idle resource is left.
    pub fn sweep_soon(&self) {
        if self.is_sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let Sweeper { node, is_sweeping } = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_TIME).await;
                // Cleared before the sweep, so that a concurrent call starts a new one.
                is_sweeping.store(false, Ordering::Release);
                if node.sweep() == 0 || is_sweeping.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}
