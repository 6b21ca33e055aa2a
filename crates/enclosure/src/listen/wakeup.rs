//! Scheduling hint for seccomp notifications (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP).

use std::time::{Duration, Instant};
use sys::notify::Listener;

/// Detects sequential calls. A single thread that makes call after call waits half as long with synchronous wake-up,
/// which keeps it on the supervisor's processor; threads that run in parallel are slowed down by it.
#[derive(Default)]
pub(super) struct WakeupHint {
    last: Option<(i32, Instant)>,
    /// Consecutive calls of one thread.
    row: u32,
    shares: bool,
}

impl WakeupHint {
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
            listener.set_sync_wakeup(share);
        }
    }
}
