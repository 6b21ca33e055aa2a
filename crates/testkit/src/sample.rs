//! Sampling of large test spaces. The number of cases is fixed, so that a busy machine is slower but tries no less. The
//! seed moves the sample: `tools/test` takes it from the number of commits, so that runs on successive commits cover
//! all of it. `COFFERDAM_TEST_SEED` repeats a run; `COFFERDAM_FULL=1` tries everything.

/// Returns true if everything is tried (`COFFERDAM_FULL=1`), which takes hours.
pub fn in_full() -> bool {
    std::env::var("COFFERDAM_FULL").is_ok_and(|v| v == "1")
}

/// Returns the number of tries: `some` in an ordinary run, `all` in a full one.
pub fn times(some: u64, all: u64) -> u64 {
    if in_full() { all } else { some }
}

/// Returns the seed of this run of the tests. A failure must print it.
pub fn seed() -> u64 {
    let text = std::env::var("COFFERDAM_TEST_SEED").ok();
    text.map_or(1, |text| text.parse().unwrap_or_else(|_| panic!("COFFERDAM_TEST_SEED is no number: {text:?}")))
}

/// Returns the cases of this run out of `all`: `some` of them, in strides that leave no large gap, starting where the
/// run with the previous seed ended.
pub fn indices(some: usize, all: usize) -> impl Iterator<Item = usize> {
    let tried = if in_full() { all } else { some.min(all) };
    let from = (seed() as usize).wrapping_mul(some) % all.max(1);
    let stride = stride(all);
    (from..from + tried).map(move |k| k * stride % all)
}

/// Returns a stride near the golden ratio and coprime to `all`, so that it visits each case once.
fn stride(all: usize) -> usize {
    (all * 618 / 1000..).find(|n| gcd(*n, all) == 1).unwrap_or(1)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Splitmix64: small, seeded, good enough to shuffle bytes.
pub struct Random(pub u64);

impl Random {
    #[allow(clippy::should_implement_trait)] // Endless, and no iterator.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 if there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Changes an input in one to six places: cuts, copies, flips, and inserts of `words`, of another input and of single bytes.
pub fn mutate(input: &[u8], other: &[u8], words: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(40)).min(bytes.len());
        match random.below(8) {
            0 => drop(bytes.splice(at..end, std::iter::empty())),
            1 | 2 => drop(bytes.splice(at..at, words[random.below(words.len())].iter().copied())),
            3 => {
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            4 => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(60)).min(other.len());
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
            5 => bytes.insert(at, random.next() as u8),
            6 => bytes.truncate(at.max(1)),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    bytes
}
