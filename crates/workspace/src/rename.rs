//! Rename detection: a deleted and an added file with the same bytes, or with at least half of their text in common.

use crate::scan::Pair;
use api::{ChangeSide, FileKind, Rel};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bound on the files of either side whose texts are compared; beyond it only equal bytes are found.
const MOST_CANDIDATES: usize = 200;

/// Bound on the bytes of all texts that are read.
const MOST_TEXT: u64 = 16 << 20;

/// Bound on line lookups in all.
const MOST_LOOKS: usize = 10_000_000;

/// Similarity threshold in percent.
const ALIKE: u64 = 50;

/// Joins a deletion and an addition into a rename. `read` returns the bytes of a side if it is a small text.
pub fn detect(mut pairs: Vec<Pair>, read: impl Fn(&Pair) -> Option<Vec<u8>>) -> Vec<Pair> {
    let mut moves = Moves::default();
    moves.by_digest(&pairs);
    moves.by_text(&pairs, read);
    let mut origins: BTreeMap<usize, (Rel, Option<ChangeSide>, bool)> = BTreeMap::new();
    for (from, to) in &moves.found {
        let origin = &pairs[*from];
        origins.insert(*to, (origin.path.clone(), origin.before.clone(), origin.drifted));
    }
    for (to, (path, before, drifted)) in origins {
        let pair = &mut pairs[to];
        (pair.from, pair.before) = (Some(path), before);
        pair.drifted |= drifted;
    }
    let gone: HashSet<usize> = moves.found.iter().map(|(from, _)| *from).collect();
    let kept = pairs.into_iter().enumerate().filter(|(index, _)| !gone.contains(index));
    kept.map(|(_, pair)| pair).collect()
}

/// Renames found, as indices of pairs: from, to.
#[derive(Default)]
struct Moves {
    found: Vec<(usize, usize)>,
}

impl Moves {
    /// Unmatched deletions and unmatched additions.
    fn open(&self, pairs: &[Pair]) -> (Vec<usize>, Vec<usize>) {
        let taken: HashSet<usize> = self.found.iter().flat_map(|(from, to)| [*from, *to]).collect();
        let is_file = |entry: &ChangeSide| entry.kind == FileKind::File && entry.size > 0;
        let can_move = |pair: &Pair| {
            let one_side = pair.before.as_ref().xor(pair.after.as_ref());
            pair.trouble.is_none() && !pair.in_bare_repository && one_side.is_some_and(is_file)
        };
        let open = (0..pairs.len()).filter(|i| !taken.contains(i) && can_move(&pairs[*i]));
        open.partition(|i| pairs[*i].after.is_none())
    }

    fn by_digest(&mut self, pairs: &[Pair]) {
        let (deleted, added) = self.open(pairs);
        let mut by_digest: HashMap<&str, VecDeque<usize>> = HashMap::new();
        for index in deleted {
            if let Some(digest) = pairs[index].before.as_ref().and_then(|e| e.digest.as_deref()) {
                by_digest.entry(digest).or_default().push_back(index);
            }
        }
        for to in added {
            let digest = pairs[to].after.as_ref().and_then(|e| e.digest.as_deref());
            let Some(origins) = digest.and_then(|digest| by_digest.get_mut(digest)).filter(|o| !o.is_empty()) else {
                continue;
            };
            // Only the first candidates are searched for the same name: a tree of equal files must not cost quadratic
            // time.
            let near = origins.iter().take(MOST_CANDIDATES).position(|from| same_name(&pairs[*from], &pairs[to]));
            self.found.extend(origins.remove(near.unwrap_or(0)).map(|from| (from, to)));
        }
    }

    fn by_text(&mut self, pairs: &[Pair], read: impl Fn(&Pair) -> Option<Vec<u8>>) {
        let (deleted, added) = self.open(pairs);
        if deleted.len() > MOST_CANDIDATES || added.len() > MOST_CANDIDATES || deleted.is_empty() || added.is_empty() {
            return;
        }
        let mut left = MOST_TEXT;
        let mut texts = |indices: &[usize]| -> Vec<(usize, Text)> {
            let text = |index: &usize| {
                let bytes = read(&pairs[*index])?;
                left = left.checked_sub(bytes.len() as u64)?;
                Some((*index, Text::of(&bytes)))
            };
            indices.iter().filter_map(text).collect()
        };
        let (deleted, added) = (texts(&deleted), texts(&added));
        let (mut scores, mut looks) = (Vec::new(), 0);
        for (from, old) in &deleted {
            for (to, new) in &added {
                looks += old.lines.len().min(new.lines.len());
                if looks > MOST_LOOKS {
                    return;
                }
                let score = old.in_common(new);
                if score >= ALIKE {
                    scores.push((score, same_name(&pairs[*from], &pairs[*to]), *from, *to));
                }
            }
        }
        // Best score first; among equals, those with the same name, then by path.
        scores.sort_by_key(|(score, named, from, to)| (std::cmp::Reverse((*score, *named)), *from, *to));
        let mut taken = HashSet::new();
        for (_, _, from, to) in scores {
            if !taken.contains(&from) && !taken.contains(&to) {
                taken.extend([from, to]);
                self.found.push((from, to));
            }
        }
    }
}

fn same_name(a: &Pair, b: &Pair) -> bool {
    a.path.parts().next_back() == b.path.parts().next_back()
}

/// Multiset of lines: bytes per line hash.
struct Text {
    size: u64,
    lines: HashMap<u64, u64>,
}

impl Text {
    fn of(bytes: &[u8]) -> Text {
        let mut lines = HashMap::new();
        for line in bytes.split_inclusive(|b| *b == b'\n') {
            let mut hash = DefaultHasher::new();
            line.hash(&mut hash);
            *lines.entry(hash.finish()).or_default() += line.len() as u64;
        }
        Text { size: bytes.len() as u64, lines }
    }

    /// Share of the larger text that both have, in percent.
    fn in_common(&self, other: &Text) -> u64 {
        let larger = self.size.max(other.size);
        if larger == 0 || self.size.min(other.size) * 100 < larger * ALIKE {
            return 0;
        }
        let (few, many) = if self.lines.len() < other.lines.len() { (self, other) } else { (other, self) };
        let common: u64 = few.lines.iter().map(|(line, n)| many.lines.get(line).map_or(0, |m| *m.min(n))).sum();
        common * 100 / larger
    }
}
