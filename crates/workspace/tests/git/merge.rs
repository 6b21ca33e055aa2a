//! Text merges compared with `git merge-file`.

use crate::fixture::GitFixture;
use proptest::prelude::*;
use workspace::merge::{LARGEST, Merged, merge};

/// Git's result: merged text and number of conflicts.
fn by_git(fixture: &GitFixture, old: &[u8], ours: &[u8], theirs: &[u8]) -> (Vec<u8>, i32) {
    for (name, text) in [("old", old), ("ours", ours), ("theirs", theirs)] {
        std::fs::write(fixture.project.join(name), text).unwrap();
    }
    let args = ["merge-file", "-p", "-q", "-L", "workspace", "-L", "old", "-L", "base", "ours", "old", "theirs"];
    let output = fixture.try_git(&fixture.project, &args);
    (output.stdout, output.status.code().unwrap())
}

/// Edits: line, number of lines to remove, number of lines to insert.
fn edits() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    proptest::collection::vec((0usize..40, 0usize..4, 0usize..4), 0..5)
}

fn edited(old: &[String], edits: &[(usize, usize, usize)], mut word: impl FnMut(usize) -> String) -> Vec<String> {
    let mut lines = old.to_vec();
    for (at, gone, fresh) in edits {
        let at = (*at).min(lines.len());
        let gone = (*gone).min(lines.len() - at);
        let put: Vec<String> = (0..*fresh).map(&mut word).collect();
        lines.splice(at..at + gone, put);
    }
    lines
}

fn text(lines: &[String], ends: bool) -> Vec<u8> {
    let text: String = lines.iter().map(|l| format!("{l}\n")).collect();
    if ends { text.into_bytes() } else { text.trim_end_matches('\n').as_bytes().to_vec() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Unique lines make the alignment unambiguous: the same text as git's, or a conflict in both.
    // promise 17
    #[test]
    fn merges_are_those_of_git(count in 0usize..40, mine in edits(), other in edits(), shared in edits(), ends in any::<bool>()) {
        let fixture = GitFixture::empty();
        let old: Vec<String> = (0..count).map(|n| format!("line {n}")).collect();
        let both = |by: &str, more: &[(usize, usize, usize)]| {
            let mut n = 0;
            let same = edited(&old, &shared, |_| { n += 1; format!("shared {n}") });
            let mut n = 0;
            edited(&same, more, |_| { n += 1; format!("{by} {n}") })
        };
        let (old, ours, theirs) = (text(&old, true), text(&both("ours", &mine), true), text(&both("theirs", &other), ends));
        let (git, conflicts) = by_git(&fixture, &old, &ours, &theirs);
        match merge(Some(&old), &ours, &theirs) {
            Merged::Clean(text) => {
                prop_assert_eq!(conflicts, 0);
                prop_assert_eq!(String::from_utf8(text), String::from_utf8(git));
            }
            Merged::Conflict { places, .. } => prop_assert!(conflicts > 0 && places > 0),
            Merged::Unmergeable => prop_assert!(false, "text is text"),
        }
    }

    /// Repeated lines allow several correct alignments; no line may be lost or invented.
    // promise 17
    #[test]
    fn merges_lose_nothing(old in "[ab\n]{0,30}", ours in "[abc\n]{0,30}", theirs in "[abd\n]{0,30}") {
        let (old, ours, theirs) = (old.as_bytes(), ours.as_bytes(), theirs.as_bytes());
        prop_assert_eq!(merge(Some(old), old, theirs), Merged::Clean(theirs.to_vec()));
        prop_assert_eq!(merge(Some(old), ours, old), Merged::Clean(ours.to_vec()));
        prop_assert_eq!(merge(Some(old), ours, ours), Merged::Clean(ours.to_vec()));
        for result in [merge(Some(old), ours, theirs), merge(None, ours, theirs)] {
            let (Merged::Clean(text) | Merged::Conflict { text, .. }) = result else { continue };
            let lines: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
            for line in ours.split(|b| *b == b'\n').filter(|l| l.contains(&b'c')) {
                prop_assert!(lines.contains(&line));
            }
            for line in theirs.split(|b| *b == b'\n').filter(|l| l.contains(&b'd')) {
                prop_assert!(lines.contains(&line));
            }
        }
    }
}

#[test]
fn a_conflict_shows_both_sides_between_marks() {
    let merged = merge(Some(b"a\nb\nc\n"), b"a\nours\nc\n", b"a\ntheirs\nc");
    let text = "a\n<<<<<<< workspace\nours\nc\n=======\ntheirs\nc\n>>>>>>> base\n";
    assert_eq!(merged, Merged::Conflict { text: text.into(), places: 1 });
    let unknown = merge(None, b"a\nx\nz\n", b"a\ny\nz\n");
    let text = "a\n<<<<<<< workspace\nx\n=======\ny\n>>>>>>> base\nz\n";
    assert_eq!(unknown, Merged::Conflict { text: text.into(), places: 1 });
}

#[test]
fn what_is_no_text_is_not_mixed() {
    let (old, ours, theirs) = (b"\0old".as_slice(), b"\0ours".as_slice(), b"\0theirs".as_slice());
    assert_eq!(merge(Some(old), ours, theirs), Merged::Unmergeable);
    assert_eq!(merge(Some(old), old, theirs), Merged::Clean(theirs.to_vec()));
    let large = vec![b'\n'; LARGEST + 1];
    assert_eq!(merge(Some(b""), &large, b"x\n"), Merged::Unmergeable);
}

// promise 13
#[test]
fn large_texts_take_bounded_time() {
    let lines = |word: &str, step: usize| -> Vec<u8> {
        (0..200_000)
            .map(|n| if n % step == 0 { format!("{word}{n}\n") } else { format!("{n}\n") })
            .collect::<String>()
            .into()
    };
    let begun = std::time::Instant::now();
    let old = lines("", 1);
    let merged = merge(Some(&old), &lines("o", 1), &lines("t", 1));
    assert!(matches!(merged, Merged::Conflict { .. }));
    // Every 1,000th line by one side, every 1,001st by the other: 400 edits, which conflict only where they touch.
    let merged = merge(Some(&old), &lines("o", 1000), &lines("t", 1001));
    assert!(matches!(merged, Merged::Conflict { places, .. } if places < 3), "0 is in both");
    assert!(begun.elapsed().as_secs() < 300, "{:?}", begun.elapsed());
}
