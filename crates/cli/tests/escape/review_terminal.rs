//! Attacks on the reviewer's terminal: file names, contents, link targets and commands chosen by a guest, in every verb
//! that prints them. JSON carries the same text, escaped.

use crate::review_unseen::Desk;
use crate::support::{As, Place};
use serde_json::Value;

/// Control characters C0 and C1, and characters that reverse direction or are invisible.
const HOSTILE: [&str; 6] = ["\u{1b}", "\u{7}", "\u{9b}", "\u{202e}", "\u{200b}", "\u{e0041}"];

// promise 13
#[test]
fn no_verb_of_review_drives_the_terminal() {
    let evil = "evil\u{9b}2J\u{1b}]0;t\u{7}\u{202e}\u{200b}\u{e0041}";
    let work = format!("echo '{evil}' > '{evil}'; echo '{evil}' > file; ln -s '{evil}' link; : '{evil}'");
    let desk = Desk::new(Place::new(As::User), &[("file", "base\n")], &work);
    let verbs: [&[&str]; 12] = [
        &["diff", "agent"],
        &["diff", "agent", "--stat"],
        &["diff", "agent", "--name-only"],
        &["diff", "agent", "--json"],
        &["ls"],
        &["ls", "--json"],
        &["inspect", "agent"],
        &["audit", "log"],
        &["audit", "log", "--json"],
        &["conflicts", "agent"],
        &["approve", "agent", "--json", evil],
        &["provenance", ".", "--json"],
    ];
    for words in verbs {
        let screen = desk.ok(words);
        let found: Vec<_> = HOSTILE.iter().filter(|c| screen.contains(**c)).collect();
        assert!(found.is_empty(), "{words:?} printed {found:?}: {screen}");
    }
    // Control: JSON contains the guest's text to the letter.
    let known: Value = serde_json::from_str(&desk.ok(&["provenance", ".", "--json"])).unwrap();
    assert!(known.to_string().contains(&Value::from(evil).to_string()), "{known}");
    assert!(desk.has(evil), "it landed under its own name");
    for words in [&["diff", "agent", evil][..], &["approve", evil], &["inspect", evil], &["undo", evil]] {
        let output = desk.cofferdam(words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !HOSTILE.iter().any(|c| stderr.contains(c)), "{words:?}: {stderr}");
    }
}
