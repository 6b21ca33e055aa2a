//! Signals for a command whose output no process reads any more: PIPE, then TERM and KILL. Writes to a closed pipe
//! would fail; writes that are spooled do not, and a command that ignores the first signal would never learn of it. Has
//! no clock.

use std::time::Duration;

/// Signals, and the delay of each after the first unread output.
const DUE: [(Duration, i32); 3] = [(Duration::ZERO, 13), (Duration::from_secs(1), 15), (Duration::from_secs(3), 9)];

/// Number of signals sent so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unread {
    sent: usize,
}

impl Unread {
    /// Returns the signal that is due at this time after the first unread output. Each is returned once.
    pub fn due(&mut self, since: Duration) -> Option<i32> {
        let (_, signal) = DUE.get(self.sent).filter(|(after, _)| since >= *after)?;
        self.sent += 1;
        Some(*signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_is_given_once_when_its_time_has_come() {
        let mut unread = Unread::default();
        let sent: Vec<_> = [0, 0, 999, 1000, 2000, 9000, 9000].map(|ms| unread.due(Duration::from_millis(ms))).into();
        assert_eq!(sent, [Some(13), None, None, Some(15), None, Some(9), None]);
    }
}
