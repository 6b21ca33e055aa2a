//! Request rates: a token bucket for each tenant and one for the node. A full bucket holds one minute's requests and is refilled evenly.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of buckets; full ones are removed first.
const MAX_BUCKETS: usize = 4096;

#[derive(Default)]
pub struct Rate {
    buckets: Mutex<BTreeMap<String, Bucket>>,
}

struct Bucket {
    left: f64,
    since: Instant,
}

impl Rate {
    /// Takes one request from a bucket, or returns the time until the next one is available.
    pub fn take(&self, key: &str, per_minute: u64, now: Instant) -> Result<(), Duration> {
        let (most, per_second) = (per_minute as f64, per_minute as f64 / 60.0);
        if per_minute == 0 {
            return Err(Duration::from_secs(60));
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(key) {
            let minute = Duration::from_secs(60);
            buckets.retain(|_, bucket| now.duration_since(bucket.since) < minute);
        }
        let bucket = buckets.entry(key.to_owned()).or_insert(Bucket { left: most, since: now });
        bucket.left = (bucket.left + now.duration_since(bucket.since).as_secs_f64() * per_second).min(most);
        bucket.since = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - bucket.left) / per_second))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_minutes_worth_and_then_evenly() {
        let rate = Rate::default();
        let begun = Instant::now();
        assert!((0..60).all(|_| rate.take("a", 60, begun).is_ok()));
        let wait = rate.take("a", 60, begun).unwrap_err();
        assert!(wait > Duration::from_millis(900) && wait <= Duration::from_secs(1), "{wait:?}");
        assert!(rate.take("b", 60, begun).is_ok(), "another's bucket is his own");
        assert!(rate.take("a", 60, begun + Duration::from_millis(1100)).is_ok());
        assert!(rate.take("a", 60, begun + Duration::from_millis(1100)).is_err());
        let later = begun + Duration::from_secs(3600);
        assert_eq!((0..100).filter(|_| rate.take("a", 60, later).is_ok()).count(), 60);
        assert!(rate.take("z", 0, begun).is_err());
    }
}
