//! Progress of a long job: one line on a terminal that is overwritten and erased at the end; no output elsewhere.

use super::table::bytes;
use node::create::CopyTotals;
use std::io::Write;
use std::time::{Duration, Instant};

/// Delay before the first line; shorter jobs print none.
const PATIENCE: Duration = Duration::from_millis(300);

pub struct ProgressLine {
    watched: bool,
    begun: Instant,
    shown: bool,
}

impl ProgressLine {
    pub fn new() -> ProgressLine {
        ProgressLine { watched: crate::render::can_draw(&std::io::stderr()), begun: Instant::now(), shown: false }
    }

    pub fn show(&mut self, now: &CopyTotals) {
        if self.watched && self.begun.elapsed() >= PATIENCE {
            self.shown = true;
            let _ = write!(std::io::stderr(), "\r\x1b[Kcopying: {} files, {}", now.files, bytes(now.bytes));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
