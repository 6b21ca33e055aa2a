//! Samples of one contender and their statistics.

use serde::Serialize;
use std::time::Duration;

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Returns the median of the per-round ratios to another contender: a slow-down of a whole round cancels out.
    pub fn median_ratio(&self, other: &Samples) -> Option<f64> {
        let pairs = self.0.iter().zip(&other.0).filter(|(_, other)| !other.is_zero());
        let mut ratios: Vec<f64> = pairs.map(|(own, other)| own.as_secs_f64() / other.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len().checked_sub(1)? / 2).copied()
    }

    /// Computes the percentiles; `None` without samples.
    pub fn quantiles(mut self) -> Option<Quantiles> {
        self.0.sort_unstable();
        let last = self.0.len().checked_sub(1)?;
        // Nearest rank: always a measured time.
        let rank = |percent: usize| self.0[(self.0.len() * percent).div_ceil(100).saturating_sub(1).min(last)];
        let us = |took: Duration| (took.as_nanos() as f64 / 100.0).round() / 10.0;
        Some(Quantiles { p50: us(rank(50)), p95: us(rank(95)), p99: us(rank(99)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_times() {
        let of = |list: &[u64]| {
            let mut samples = Samples::default();
            list.iter().for_each(|us| samples.add(Duration::from_micros(*us)));
            samples.quantiles().map(|q| (q.p50, q.p95, q.p99))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[7]), Some((7.0, 7.0, 7.0)));
        assert_eq!(of(&[3, 1, 2]), Some((2.0, 3.0, 3.0)));
        let samples = |list: &[u64]| Samples(list.iter().map(|us| Duration::from_micros(*us)).collect());
        // Each round is compared with itself: the slow one in the middle does not affect the ratio.
        assert_eq!(samples(&[11, 220, 24]).median_ratio(&samples(&[10, 200, 20])), Some(1.1));
        assert_eq!(samples(&[]).median_ratio(&samples(&[])), None);
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(of(&hundred), Some((50.0, 95.0, 99.0)));
    }
}
