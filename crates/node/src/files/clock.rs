//! How long something may go on: for a time, and no longer than somebody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether somebody waits for what is being done. All clones are one.
#[derive(Clone, Debug, Default)]
pub struct Interest(Arc<AtomicBool>);

impl Interest {
    /// Nobody waits any more.
    pub fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) struct Clock {
    end: Instant,
    interest: Interest,
}

impl Clock {
    pub fn new(patience: Duration, interest: &Interest) -> Clock {
        Clock { end: Instant::now() + patience, interest: interest.clone() }
    }

    pub fn is_over(&self) -> bool {
        self.interest.0.load(Ordering::Relaxed) || Instant::now() >= self.end
    }
}
