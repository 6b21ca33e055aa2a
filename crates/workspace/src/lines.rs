//! Diff of two sequences of line numbers: equal and replaced ranges. Near-linear time: long ranges without a unique
//! common element are reported as replaced.

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices};
use std::collections::HashMap;
use std::ops::Range;

/// Longest range, both sides together, that is searched for a shortest edit script.
const LONGEST_SEARCH: usize = 4000;

/// Bound on recursive splits at unique elements. More only helps adversarial texts.
const MOST_SPLITS: u32 = 12;

/// Range of both sides still to be compared.
struct OpenRange {
    old: Range<usize>,
    new: Range<usize>,
    splits: u32,
}

/// Difference as operations of `similar`: in order, and equal ranges never adjacent.
pub fn compare(old: &[u32], new: &[u32]) -> Vec<DiffOp> {
    let mut script = EditScript::default();
    // A stack: ranges are processed from left to right.
    let mut todo = vec![OpenRange { old: 0..old.len(), new: 0..new.len(), splits: 0 }];
    while let Some(open) = todo.pop() {
        let head = common(old[open.old.clone()].iter(), new[open.new.clone()].iter());
        script.equal(open.old.start, open.new.start, head);
        let (old_from, new_from) = (open.old.start + head, open.new.start + head);
        let tail = common(old[old_from..open.old.end].iter().rev(), new[new_from..open.new.end].iter().rev());
        let inner =
            OpenRange { old: old_from..open.old.end - tail, new: new_from..open.new.end - tail, splits: open.splits };
        if inner.old.is_empty() || inner.new.is_empty() {
            script.replaced(inner.old.clone(), inner.new.clone());
        } else if inner.old.len() + inner.new.len() <= LONGEST_SEARCH {
            script.searched(old, new, &inner);
        } else {
            // Pushed first: the rest is processed after the inner range.
            let rest = OpenRange { old: inner.old.end..open.old.end, new: inner.new.end..open.new.end, splits: 0 };
            todo.push(rest);
            match anchors(old, new, &inner) {
                anchors if anchors.is_empty() => script.replaced(inner.old, inner.new),
                anchors => split(&mut todo, &inner, &anchors),
            }
            continue;
        }
        script.equal(inner.old.end, inner.new.end, tail);
    }
    script.ops
}

fn common<'a>(a: impl Iterator<Item = &'a u32>, b: impl Iterator<Item = &'a u32>) -> usize {
    a.zip(b).take_while(|(x, y)| x == y).count()
}

/// Splits a range before each anchor, so that each anchor starts a range of its own.
fn split(todo: &mut Vec<OpenRange>, open: &OpenRange, anchors: &[(usize, usize)]) {
    let splits = open.splits + 1;
    let (mut old_end, mut new_end) = (open.old.end, open.new.end);
    for (old, new) in anchors.iter().rev() {
        todo.push(OpenRange { old: *old..old_end, new: *new..new_end, splits });
        (old_end, new_end) = (*old, *new);
    }
    todo.push(OpenRange { old: open.old.start..old_end, new: open.new.start..new_end, splits });
}

/// Elements that are unique on each side, as far as their order agrees (patience diff).
fn anchors(old: &[u32], new: &[u32], open: &OpenRange) -> Vec<(usize, usize)> {
    if open.splits >= MOST_SPLITS {
        return Vec::new();
    }
    // Count on each side, and the last index.
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

/// Longest increasing subsequence of pairs by the second component.
fn longest_rising(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length, the pair with the lowest end; for each pair, its predecessor.
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

/// Operations so far.
#[derive(Default)]
struct EditScript {
    ops: Vec<DiffOp>,
}

impl EditScript {
    fn equal(&mut self, old_index: usize, new_index: usize, len: usize) {
        match self.ops.last_mut() {
            _ if len == 0 => {}
            Some(DiffOp::Equal { len: known, .. }) => *known += len,
            _ => self.ops.push(DiffOp::Equal { old_index, new_index, len }),
        }
    }

    /// Adds a replacement and merges it with an adjacent one.
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

    fn searched(&mut self, old: &[u32], new: &[u32], open: &OpenRange) {
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

    /// True if the operations transform one side into the other and cover both.
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
            // Repeated and shifted, so that long ranges occur.
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
