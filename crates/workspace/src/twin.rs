//! Names that differ on Linux and collide on systems that fold case or normalise Unicode.

use std::collections::{BTreeMap, BTreeSet};
use unicode_normalization::UnicodeNormalization;

/// Names of `added` that collide with another one in `all`.
pub fn among(added: &[&[u8]], all: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    for name in all {
        *times.entry(fold(name)).or_default() += 1;
    }
    let has_twin = |name: &&&[u8]| times.get(&fold(name)).is_some_and(|n| *n > 1);
    added.iter().filter(has_twin).map(|name| name.to_vec()).collect()
}

/// A name as the most lenient file systems fold it: NFKC and lower case.
pub fn fold(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.nfkc().flat_map(char::to_lowercase).nfkc().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 13
    #[test]
    fn twins_are_found_in_case_and_composition() {
        let all: BTreeSet<Vec<u8>> =
            ["README", "readme", "a", "b", "caf\u{e9}", "cafe\u{301}"].iter().map(|n| n.as_bytes().to_vec()).collect();
        let found = among(&[b"readme", b"a", "cafe\u{301}".as_bytes()], &all);
        let found: Vec<_> = found.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        assert_eq!(found, ["cafe\u{301}", "readme"]);
    }
}
