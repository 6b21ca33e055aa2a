//! Whether the supervisor and a guest that it answers share a processor.

use std::time::{Duration, Instant};
use sys::notify::Listener;

/// How the calls come. One thread that makes call after call waits half as long when it shares its processor with us;
/// threads that work beside each other are held up by that, because they are drawn to one processor.
#[derive(Default)]
pub(super) struct Rhythm {
    last: Option<(i32, Instant)>,
    /// Calls of one thread in a row.
    row: u32,
    shares: bool,
}

impl Rhythm {
    pub fn heard(&mut self, listener: &Listener, tid: i32) {
        const CLOSE: Duration = Duration::from_micros(300);
        const MANY: u32 = 4;
        let now = Instant::now();
        let follows = self.last.is_some_and(|(who, at)| who == tid && now.duration_since(at) < CLOSE);
        self.row = if follows { self.row.saturating_add(1) } else { 0 };
        self.last = Some((tid, now));
        let share = self.row >= MANY;
        if share != self.shares {
            self.shares = share;
            listener.share_processor(share);
        }
    }
}
