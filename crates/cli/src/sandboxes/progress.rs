//! How far a long job has come: one line on a terminal that is written over and wiped at the end, and nothing anywhere else.

use super::table::bytes;
use node::lifecycle::create::Copied;
use std::io::Write;
use std::time::{Duration, Instant};

/// Jobs that are over before it say nothing.
const PATIENCE: Duration = Duration::from_millis(300);

pub struct Line {
    watched: bool,
    begun: Instant,
    shown: bool,
}

impl Line {
    pub fn new() -> Line {
        Line { watched: crate::render::can_draw(&std::io::stderr()), begun: Instant::now(), shown: false }
    }

    pub fn show(&mut self, now: &Copied) {
        if self.watched && self.begun.elapsed() >= PATIENCE {
            self.shown = true;
            let _ = write!(std::io::stderr(), "\r\x1b[Kcopying: {} files, {}", now.files, bytes(now.bytes));
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
