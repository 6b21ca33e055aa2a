//! What rests between two requests, connections to keepers and open states, is closed a moment after the last of them.

use node::Node;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(400);

/// Closes what has rested too long in a node. Cheap to clone.
#[derive(Clone)]
pub struct Sweeper {
    node: Arc<Node>,
    is_sweeping: Arc<AtomicBool>,
}

impl Sweeper {
    pub fn new(node: Arc<Node>) -> Sweeper {
        Sweeper { node, is_sweeping: Arc::default() }
    }

    /// Something was left to rest: it is looked after until nothing is.
    pub fn sweep_soon(&self) {
        if self.is_sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let Sweeper { node, is_sweeping } = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PAUSE).await;
                // Said before it is looked: whoever comes in between begins anew.
                is_sweeping.store(false, Ordering::Release);
                if node.sweep() == 0 || is_sweeping.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}
