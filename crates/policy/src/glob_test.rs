use super::*;
use crate::path::RulePath;
use proptest::prelude::*;
use std::os::unix::ffi::OsStrExt;

fn pattern(text: &str) -> Pattern {
    RulePath::parse(text).unwrap().on(Path::new("/")).unwrap()
}

#[test]
fn covering() {
    for (text, path, covered) in [
        ("/a", "/a", true),
        ("/a", "/a/b", true),
        ("/a", "/ab", false),
        ("/a", "/", false),
        ("/", "/", true),
        ("/", "/x/y", true),
        ("/a/*", "/a", false),
        ("/a/*", "/a/b", true),
        ("/a/*", "/a/b/c", true),
        ("/a/*.txt", "/a/b.txt/c", true),
        ("/a/*.txt", "/a/b.txtx", false),
        ("/a/?", "/a/é", true),
        ("/a/?", "/a/bc", false),
        ("/a/[b-d]x", "/a/cx", true),
        ("/a/[!b-d]x", "/a/cx", false),
        ("/a/[!b-d]x", "/a/ex", true),
        ("/**/x", "/x", true),
        ("/**/x", "/a/b/x/y", true),
        ("/**/x", "/a/xx", false),
        ("/a/**", "/a", true),
        ("/a/**/b/**/c", "/a/b/c", true),
        ("/a/**/b/**/c", "/a/1/b/2/3/c", true),
        ("/a/**/b/**/c", "/a/1/c/2/3/b", false),
    ] {
        assert_eq!(pattern(text).covers(Path::new(path)), covered, "{text} over {path}");
    }
}

#[test]
fn names_that_are_not_utf8() {
    let odd = OsStr::from_bytes(b"a\xffb");
    assert!(pattern("/a?b").covers(&Path::new("/").join(odd)));
    assert!(pattern("/a*").covers(&Path::new("/").join(odd)));
    assert!(!pattern("/ab").covers(&Path::new("/").join(odd)));
}

#[test]
fn no_pattern_is_slow() {
    let stars = pattern(&format!("/{}b", "*a".repeat(100)));
    let deep = pattern(&format!("/{}x", "**/a/".repeat(50)));
    let name = format!("/{}", "a".repeat(250));
    let path: String = "/a".repeat(2000);
    let start = std::time::Instant::now();
    assert!(!stars.covers(Path::new(&name)));
    assert!(!deep.covers(Path::new(&path)));
    // Exponential matching would take forever.
    assert!(start.elapsed().as_secs() < 60);
}

/// The definition of the wildcards, with all the backtracking that the real matcher avoids.
fn naive_name(pattern: &[char], name: &[char]) -> bool {
    match (pattern.first(), name.first()) {
        (None, None) => true,
        (Some('*'), _) => naive_name(&pattern[1..], name) || (!name.is_empty() && naive_name(pattern, &name[1..])),
        (Some('?'), Some(_)) => naive_name(&pattern[1..], &name[1..]),
        (Some(p), Some(n)) => p == n && naive_name(&pattern[1..], &name[1..]),
        _ => false,
    }
}

/// Returns true if the whole of `path` matches; covering is the same for some directory above.
fn naive(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.first(), path.first()) {
        (None, None) => true,
        (Some(&"**"), _) => naive(&pattern[1..], path) || (!path.is_empty() && naive(pattern, &path[1..])),
        (Some(p), Some(n)) => {
            let (p, n): (Vec<char>, Vec<char>) = (p.chars().collect(), n.chars().collect());
            naive_name(&p, &n) && naive(&pattern[1..], &path[1..])
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_matcher_is_the_definition(
        parts in prop::collection::vec(prop_oneof![2 => "[ab*?]{1,4}", 1 => Just("**".to_owned())], 0..5),
        names in prop::collection::vec("[ab]{1,3}", 0..6),
    ) {
        prop_assume!(parts.iter().all(|p| p == "**" || !p.contains("**")));
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let pattern = pattern(&format!("/{}", parts.join("/")));
        let path = PathBuf::from(format!("/{}", names.join("/")));
        prop_assert_eq!(pattern.matches(&path), naive(&parts, &names));
        let covered = (0..=names.len()).any(|n| naive(&parts, &names[..n]));
        prop_assert_eq!(pattern.covers(&path), covered);
    }

    #[test]
    fn the_text_reads_back(text in "/[ab*?!^\\[\\]-]{1,6}(/[a*]{1,2}){0,2}") {
        if let Ok(path) = RulePath::parse(&text) {
            let again = RulePath::parse(&path.to_string());
            prop_assert_eq!(again.as_ref(), Ok(&path));
            let pattern = path.on(Path::new("/")).unwrap();
            prop_assert_eq!(RulePath::parse(&pattern.text()).unwrap(), path);
        }
    }
}
