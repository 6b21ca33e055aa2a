//! Two sequences of numbers compared: which stretches are equal, and what stands in place of what. Never takes much more time than
//! their length asks for: stretches that have nothing unique in common and are long are told as replaced.

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices};
use std::collections::HashMap;
use std::ops::Range;

/// The longest stretch, both sides together, that is searched for its shortest difference.
const LONGEST_SEARCH: usize = 4000;

/// How often a stretch is split at what is unique in it. More only helps texts that were made to resist.
const MOST_SPLITS: u32 = 12;

/// A stretch of both sides that is still to be compared.
struct Open {
    old: Range<usize>,
    new: Range<usize>,
    splits: u32,
}

/// The difference as `similar` tells it: in order, and equal stretches never beside each other.
pub fn compare(old: &[u32], new: &[u32]) -> Vec<DiffOp> {
    let mut told = Told::default();
    // The last is the next: stretches are taken from left to right.
    let mut todo = vec![Open { old: 0..old.len(), new: 0..new.len(), splits: 0 }];
    while let Some(open) = todo.pop() {
        let head = common(old[open.old.clone()].iter(), new[open.new.clone()].iter());
        told.equal(open.old.start, open.new.start, head);
        let (old_from, new_from) = (open.old.start + head, open.new.start + head);
        let tail = common(old[old_from..open.old.end].iter().rev(), new[new_from..open.new.end].iter().rev());
        let inner =
            Open { old: old_from..open.old.end - tail, new: new_from..open.new.end - tail, splits: open.splits };
        if inner.old.is_empty() || inner.new.is_empty() {
            told.replaced(inner.old.clone(), inner.new.clone());
        } else if inner.old.len() + inner.new.len() <= LONGEST_SEARCH {
            told.searched(old, new, &inner);
        } else {
            // What follows comes after what is inside.
            let rest = Open { old: inner.old.end..open.old.end, new: inner.new.end..open.new.end, splits: 0 };
            todo.push(rest);
            match anchors(old, new, &inner) {
                anchors if anchors.is_empty() => told.replaced(inner.old, inner.new),
                anchors => split(&mut todo, &inner, &anchors),
            }
            continue;
        }
        told.equal(inner.old.end, inner.new.end, tail);
    }
    told.ops
}

fn common<'a>(a: impl Iterator<Item = &'a u32>, b: impl Iterator<Item = &'a u32>) -> usize {
    a.zip(b).take_while(|(x, y)| x == y).count()
}

/// Cuts a stretch before each of its anchors, so that each begins a stretch of its own.
fn split(todo: &mut Vec<Open>, open: &Open, anchors: &[(usize, usize)]) {
    let splits = open.splits + 1;
    let (mut old_end, mut new_end) = (open.old.end, open.new.end);
    for (old, new) in anchors.iter().rev() {
        todo.push(Open { old: *old..old_end, new: *new..new_end, splits });
        (old_end, new_end) = (*old, *new);
    }
    todo.push(Open { old: open.old.start..old_end, new: open.new.start..new_end, splits });
}

/// Items that each side has once, as far as they stand in the same order on both.
fn anchors(old: &[u32], new: &[u32], open: &Open) -> Vec<(usize, usize)> {
    if open.splits >= MOST_SPLITS {
        return Vec::new();
    }
    // How often each side has it, and where it has it last.
    let mut places: HashMap<u32, [(u32, usize); 2]> = HashMap::new();
    for (side, items, range) in [(0, old, &open.old), (1, new, &open.new)] {
        for at in range.clone() {
            let place = &mut places.entry(items[at]).or_default()[side];
            *place = (place.0 + 1, at);
        }
    }
    let once = open.old.clone().filter_map(|at| match places.get(&old[at]) {
        Some([(1, _), (1, there)]) => Some((at, *there)),
        _ => None,
    });
    longest_rising(&once.collect::<Vec<_>>())
}

/// The longest choice of pairs in which the second rises as well.
fn longest_rising(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length, the pair that such a choice can end with at the lowest; and for each pair, the one before it.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::with_capacity(pairs.len()));
    for (index, (_, there)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| pairs[*end].1 < *there);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut chosen = Vec::with_capacity(ends.len());
    let mut at = ends.last().copied();
    while let Some(index) = at {
        chosen.push(pairs[index]);
        at = before[index];
    }
    chosen.reverse();
    chosen
}

/// What is told so far.
#[derive(Default)]
struct Told {
    ops: Vec<DiffOp>,
}

impl Told {
    fn equal(&mut self, old_index: usize, new_index: usize, len: usize) {
        match self.ops.last_mut() {
            _ if len == 0 => {}
            Some(DiffOp::Equal { len: known, .. }) => *known += len,
            _ => self.ops.push(DiffOp::Equal { old_index, new_index, len }),
        }
    }

    /// One side in place of the other; joined with what stands right before it.
    fn replaced(&mut self, mut old: Range<usize>, mut new: Range<usize>) {
        if old.is_empty() && new.is_empty() {
            return;
        }
        if let Some(last) = self.ops.pop_if(|op| op.tag() != DiffTag::Equal) {
            (old.start, new.start) = (last.old_range().start, last.new_range().start);
        }
        let (old_index, new_index, old_len, new_len) = (old.start, new.start, old.len(), new.len());
        self.ops.push(match (old_len, new_len) {
            (_, 0) => DiffOp::Delete { old_index, old_len, new_index },
            (0, _) => DiffOp::Insert { old_index, new_index, new_len },
            _ => DiffOp::Replace { old_index, old_len, new_index, new_len },
        });
    }

    fn searched(&mut self, old: &[u32], new: &[u32], open: &Open) {
        for op in capture_diff_slices(Algorithm::Myers, &old[open.old.clone()], &new[open.new.clone()]) {
            let shifted = |range: Range<usize>, by: usize| range.start + by..range.end + by;
            let (o, n) = (shifted(op.old_range(), open.old.start), shifted(op.new_range(), open.new.start));
            match op.tag() {
                DiffTag::Equal => self.equal(o.start, n.start, o.len()),
                _ => self.replaced(o, n),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether the ops lead from one side to the other, over all of both.
    fn holds(old: &[u32], new: &[u32], ops: &[DiffOp]) -> bool {
        let (mut o, mut n) = (0, 0);
        for op in ops {
            let (old_range, new_range) = (op.old_range(), op.new_range());
            let fits = (old_range.start, new_range.start) == (o, n);
            let same = op.tag() != DiffTag::Equal || old[old_range.clone()] == new[new_range.clone()];
            if !fits || !same {
                return false;
            }
            (o, n) = (old_range.end, new_range.end);
        }
        (o, n) == (old.len(), new.len())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn differences_lead_from_one_side_to_the_other(
            (old, new) in (1..40u32).prop_flat_map(|kinds| {
                let side = || prop::collection::vec(0..kinds * kinds, 0..60);
                (side(), side())
            }),
            times in 1..120usize,
        ) {
            // Repeated and shifted, so that long stretches are among them.
            let long = |side: &[u32], step: usize| -> Vec<u32> {
                (0..times).flat_map(|t| side.iter().map(move |x| if t % step == 0 { x + t as u32 * 1000 } else { *x })).collect()
            };
            let (old, new) = (long(&old, 3), long(&new, 4));
            prop_assert!(holds(&old, &new, &compare(&old, &new)));
        }
    }

    #[test]
    fn long_texts_with_something_unique_are_compared_well() {
        let old: Vec<u32> = (0..50_000).collect();
        let mut new = old.clone();
        new[25_000] = 99_999;
        new.insert(40_000, 99_998);
        let changed: Vec<_> = compare(&old, &new).into_iter().filter(|op| op.tag() != DiffTag::Equal).collect();
        assert_eq!(changed.len(), 2, "{changed:?}");
    }
}
