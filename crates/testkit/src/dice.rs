//! Seeded pseudo-random numbers, and rounds of randomised operations.

use super::sample;

pub struct Dice(pub u64);

impl Dice {
    /// Returns the generator of one of many participants with the same seed.
    pub fn of(seed: u64, number: usize) -> Dice {
        Dice(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((number as u64 + 1) << 32))
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        // Prefers one of the last entries.
        let last = from.len().min(4);
        let far = if self.roll(4) == 0 { from.len() } else { last };
        (!from.is_empty()).then(|| from[from.len() - 1 - self.roll(far)].clone())
    }
}

/// Runs rounds with a seed each, the first from this run's seed; each is printed, so that a failure can be repeated.
pub fn rounds(some: u64, all: u64, round: impl Fn(u64)) {
    let first = sample::seed();
    for seed in first..first + sample::times(some, all) {
        println!("COFFERDAM_TEST_SEED={seed}");
        round(seed);
    }
}
