//! Times of one contender and what is said of them.

use serde::Serialize;
use std::time::Duration;

/// In microseconds: the time that half, 19 of 20 and 99 of 100 starts stayed within.
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

    /// The median over the rounds of how many times as long this took as the other did in the same round: what slowed a
    /// whole round down falls out.
    pub fn median_ratio(&self, other: &Samples) -> Option<f64> {
        let pairs = self.0.iter().zip(&other.0).filter(|(_, other)| !other.is_zero());
        let mut ratios: Vec<f64> = pairs.map(|(own, other)| own.as_secs_f64() / other.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len().checked_sub(1)? / 2).copied()
    }

    /// Nothing is said of nothing.
    pub fn quantiles(mut self) -> Option<Quantiles> {
        self.0.sort_unstable();
        let last = self.0.len().checked_sub(1)?;
        // The nearest rank: always a time that was really measured.
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
        // Each round against itself: the slow one in the middle says nothing of the difference.
        assert_eq!(samples(&[11, 220, 24]).median_ratio(&samples(&[10, 200, 20])), Some(1.1));
        assert_eq!(samples(&[]).median_ratio(&samples(&[])), None);
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(of(&hundred), Some((50.0, 95.0, 99.0)));
    }
}
