//! Timeouts for `poll`, from deadlines and durations.

use rustix::event::Timespec;
use std::time::{Duration, Instant};

/// Returns the time that is left until a deadline: zero once it has passed.
pub fn time_left(deadline: Instant) -> Timespec {
    timeout(deadline.saturating_duration_since(Instant::now()))
}

/// Converts a duration. A duration longer than the kernel can count becomes the longest possible.
pub fn timeout(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_keeps_its_seconds_and_nanoseconds() {
        for (time, want) in [
            (Duration::ZERO, (0, 0)),
            (Duration::from_nanos(1), (0, 1)),
            (Duration::from_millis(1500), (1, 500_000_000)),
            (Duration::from_secs(u64::MAX), (i64::MAX, 0)),
        ] {
            let found = timeout(time);
            assert_eq!((found.tv_sec, found.tv_nsec), want, "{time:?}");
        }
    }

    #[test]
    fn nothing_is_left_of_a_deadline_that_has_passed() {
        let now = Instant::now();
        let past = time_left(now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
        assert_eq!((past.tv_sec, past.tv_nsec), (0, 0));
        assert!((58..=60).contains(&time_left(now + Duration::from_secs(60)).tv_sec));
    }
}
