//! Deadline and cancellation of a long operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Cancellation flag that its clones share.
#[derive(Clone, Debug, Default)]
pub struct Interest(Arc<AtomicBool>);

impl Interest {
    /// Cancels: the caller no longer waits.
    pub fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) struct Deadline {
    end: Instant,
    interest: Interest,
}

impl Deadline {
    pub fn new(patience: Duration, interest: &Interest) -> Deadline {
        Deadline { end: Instant::now() + patience, interest: interest.clone() }
    }

    pub fn is_over(&self) -> bool {
        self.interest.0.load(Ordering::Relaxed) || Instant::now() >= self.end
    }
}
