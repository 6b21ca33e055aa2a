//! What a command is told that speaks though nobody reads it: PIPE, then TERM and KILL. In a pipe its writes would fail; where its
//! words are kept they do not, and one that ignores the first signal would never hear of it. Has no clock.

use std::time::Duration;

/// Signals, and how long after the first unread word each is due.
const DUE: [(Duration, i32); 3] = [(Duration::ZERO, 13), (Duration::from_secs(1), 15), (Duration::from_secs(3), 9)];

/// How often a command was told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unread {
    told: usize,
}

impl Unread {
    /// The signal that is due for a word that nobody read, so long after the first such word. Each is given once.
    pub fn due(&mut self, since: Duration) -> Option<i32> {
        let (_, signal) = DUE.get(self.told).filter(|(after, _)| since >= *after)?;
        self.told += 1;
        Some(*signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_is_given_once_when_its_time_has_come() {
        let mut unread = Unread::default();
        let told: Vec<_> = [0, 0, 999, 1000, 2000, 9000, 9000].map(|ms| unread.due(Duration::from_millis(ms))).into();
        assert_eq!(told, [Some(13), None, None, Some(15), None, Some(9), None]);
    }
}
