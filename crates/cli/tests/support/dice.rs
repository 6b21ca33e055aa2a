//! Numbers that look like chance, the same for the same seed; and rounds of what is done by them.

use std::time::{Duration, Instant};

pub struct Dice(pub u64);

impl Dice {
    /// One of many who roll with the same seed.
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
        // Mostly one of the last.
        let last = from.len().min(4);
        let far = if self.roll(4) == 0 { from.len() } else { last };
        (!from.is_empty()).then(|| from[from.len() - 1 - self.roll(far)].clone())
    }
}

/// One round after another, each with a seed of its own, until `COFFERDAM_SOAK_SECONDS` are over; there is always one.
/// `COFFERDAM_SOAK_SEED` is the first seed, and each is printed, so that a failure can be had again.
pub fn rounds(whole: Duration, seed: u64, round: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let whole = number("COFFERDAM_SOAK_SECONDS").map_or(whole, Duration::from_secs);
    let first = number("COFFERDAM_SOAK_SEED").unwrap_or(seed);
    let begun = Instant::now();
    for seed in first.. {
        println!("COFFERDAM_SOAK_SEED={seed} after {:?}", begun.elapsed());
        round(seed);
        if begun.elapsed() >= whole {
            break;
        }
    }
}
